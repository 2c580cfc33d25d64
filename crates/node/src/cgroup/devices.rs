//! Which accelerators the processes of a cgroup may open: those that its rank was granted.
//!
//! Variables such as `CUDA_VISIBLE_DEVICES` are a convention between a program and its framework;
//! this is the kernel's answer. Nodes of other devices are not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use het_core::Name;
use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};

use super::Version;
use super::device_filter::{
    DeviceNumber, attach_device_filter, attached_device_filters, detach_device_filter,
    load_device_filter,
};

/// The numbers of the nodes that open an accelerator, by device name. Several devices may need one
/// node, such as their driver's manager.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceNodes(BTreeMap<Name, BTreeSet<DeviceNumber>>);

impl DeviceNodes {
    /// Looks the nodes up. What is no character device is left out.
    pub(crate) fn read(paths: &BTreeMap<Name, Vec<PathBuf>>) -> Self {
        let numbers = |paths: &Vec<PathBuf>| paths.iter().filter_map(|path| number(path)).collect();
        Self(paths.iter().map(|(name, paths)| (name.clone(), numbers(paths))).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(BTreeSet::is_empty)
    }

    /// Allowed are the nodes that the granted devices need, denied all others.
    pub(crate) fn access_of(&self, granted: &[&Name]) -> DeviceAccess {
        let of = |wanted: bool| {
            let rows = self.0.iter().filter(move |(name, _)| granted.contains(name) == wanted);
            rows.flat_map(|(_, numbers)| numbers.iter().copied()).collect::<BTreeSet<_>>()
        };
        let allowed = of(true);
        DeviceAccess { denied: &of(false) - &allowed, allowed }
    }
}

fn number(path: &Path) -> Option<DeviceNumber> {
    let metadata = fs::metadata(path).ok()?;
    let device = metadata.rdev();
    let number = |part: u64| u32::try_from(part).ok();
    metadata.file_type().is_char_device().then_some(())?;
    Some(DeviceNumber { major: number(major(device))?, minor: number(minor(device))? })
}

/// Which nodes of accelerators some processes may open, and which not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceAccess {
    pub denied: BTreeSet<DeviceNumber>,
    pub allowed: BTreeSet<DeviceNumber>,
}

/// What a cgroup denies at present.
#[derive(Debug)]
pub(super) struct Denied {
    /// None where another process may have decided.
    numbers: Option<BTreeSet<DeviceNumber>>,
}

impl Denied {
    pub(super) const UNKNOWN: Self = Self { numbers: None };
    /// Of a new cgroup.
    pub(super) const NOTHING: Self = Self { numbers: Some(BTreeSet::new()) };

    /// Denies and allows these nodes.
    ///
    /// # Errors
    /// When the kernel refuses; what is denied is not known then.
    pub(super) fn set(
        &mut self,
        version: Version,
        dir: &Path,
        access: DeviceAccess,
    ) -> io::Result<()> {
        let before = self.numbers.take();
        if before.as_ref() != Some(&access.denied) {
            match version {
                Version::One => set_list(dir, before, &access)?,
                Version::Two => set_filter(dir, &access)?,
            }
        }
        self.numbers = Some(access.denied);
        Ok(())
    }
}

fn set_list(
    dir: &Path,
    before: Option<BTreeSet<DeviceNumber>>,
    access: &DeviceAccess,
) -> io::Result<()> {
    let write = |file: &str, number: &DeviceNumber| {
        let DeviceNumber { major, minor } = number;
        fs::write(dir.join(file), format!("c {major}:{minor} rwm"))
    };
    access.denied.iter().try_for_each(|number| write("devices.deny", number))?;
    let was_denied =
        |number: &&DeviceNumber| before.as_ref().is_none_or(|before| before.contains(number));
    access.allowed.iter().filter(was_denied).try_for_each(|number| write("devices.allow", number))
}

fn set_filter(dir: &Path, access: &DeviceAccess) -> io::Result<()> {
    let cgroup = File::open(dir)?;
    let before = attached_device_filters(cgroup.as_fd())?;
    if !access.denied.is_empty() {
        let filter = load_device_filter(access.denied.iter().copied())?;
        attach_device_filter(cgroup.as_fd(), filter.as_fd())?;
    }
    // Both hold for a moment; at no time does none.
    before.iter().try_for_each(|filter| detach_device_filter(cgroup.as_fd(), filter.as_fd()))
}

/// Whether version 2 lets this process decide about devices.
pub(super) fn may_filter() -> bool {
    load_device_filter(std::iter::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// A new cgroup of version 2; none, loudly, where none can be made or confined.
    fn unified() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let row = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let point = row.and_then(|row| row.split(' ').nth(4));
        let dir = point
            .map(|point| Path::new(point).join(format!("het-test-{}-devices", std::process::id())));
        let made = dir.filter(|dir| may_filter() && fs::create_dir(dir).is_ok());
        if made.is_none() {
            eprintln!("SKIPPED: no cgroup of version 2 can be confined here");
        }
        made
    }

    /// Whether a process in the cgroup opens `/dev/zero`.
    fn opens_zero(dir: &Path) -> bool {
        let script = "echo 0 > \"$0/cgroup.procs\" && : < /dev/zero";
        let status =
            Command::new("sh").args(["-c", script]).arg(dir).stderr(Stdio::null()).status();
        status.expect("a shell can be run").success()
    }

    #[test]
    fn version_2_denies_what_is_set_and_allows_it_again() {
        let Some(dir) = unified() else { return };
        let zero = number(Path::new("/dev/zero")).expect("every machine has one");
        let others = DeviceNumber { major: 195, minor: 0 };
        let set = |known: &mut Denied, numbers: &[DeviceNumber]| {
            let denied = numbers.iter().copied().collect();
            let access = DeviceAccess { denied, allowed: BTreeSet::new() };
            known.set(Version::Two, &dir, access).expect("this process may");
            opens_zero(&dir)
        };
        let mut known = Denied::NOTHING;
        let opened = [&[others][..], &[others, zero], &[], &[zero]].map(|it| set(&mut known, it));
        // What another process had denied is found.
        let mut unknown = Denied::UNKNOWN;
        let later = set(&mut unknown, &[others]);
        fs::remove_dir(&dir).expect("nobody is left in it");
        assert_eq!((opened, later), ([true, false, true, false], true));
    }

    fn nodes() -> DeviceNodes {
        let of = |minors: &[u32]| {
            minors.iter().map(|&minor| DeviceNumber { major: 195, minor }).collect::<BTreeSet<_>>()
        };
        let rows = [("npu0", of(&[0, 9])), ("npu1", of(&[1, 9])), ("npu2", of(&[2, 9]))];
        DeviceNodes(rows.into_iter().map(|(name, of)| (name.into(), of)).collect())
    }

    #[track_caller]
    fn check(granted: &[&str], minors: &[u32]) {
        let names: Vec<Name> = granted.iter().map(|name| Name::from(*name)).collect();
        let access = nodes().access_of(&names.iter().collect::<Vec<_>>());
        assert_eq!(access.denied.iter().map(|number| number.minor).collect::<Vec<_>>(), minors);
    }

    #[test]
    fn a_node_that_a_granted_device_needs_is_allowed() {
        check(&["npu1"], &[0, 2]);
        check(&["npu0", "npu2"], &[1]);
        check(&[], &[0, 1, 2, 9]);
        check(&["cpu0"], &[0, 1, 2, 9]);
    }
}
