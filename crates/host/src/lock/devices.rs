//! Which devices of this machine belong to this control loop: locks that every control loop takes
//! at one place, whatever its state directory, so that no two of them promise the same device.
//!
//! The locks are bytes of one file (fcntl(2), open file description locks): one for each core and
//! one for each accelerator on the PCI bus. They go with the process that holds them. Files beside
//! it say who that is.
//!
//! What runs outlives its control loop, so the shim of each gang holds locks on further bytes, of
//! which each device has one for each state directory ([`JobLocks`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use het_core::{DeviceId, Name, Occupant, Share};
use het_devices::{Discovery, PciAddress};
use het_files::replace_private;
use het_node::HoldDevices;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::kill;
use nix::unistd::{Pid, Uid, User, geteuid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::machine::Machine;

/// Where root keeps the locks. Others may not write there unless root lets them.
const OF_ROOT: &str = "/run/heterosis";
const LOCKS: &str = "devices.lock";
const HOLDER: &str = "holder-";

/// The first byte that jobs lock. Every device has as many as there are tags of state directories.
const JOBS: u64 = 1 << 60;
const TAGS: u64 = 1 << 16;

/// The byte of the first accelerator; cores have theirs by number.
const ACCELERATORS: u64 = 1 << 32;
/// Bytes of one function on the PCI bus: a device may be cut into so many.
const PARTS_MAX: u64 = 256;

/// Why devices cannot be taken.
#[derive(Debug, Error)]
pub enum DeviceLockError {
    #[error("`{}` is not a directory that only its owner can write to", dir.display())]
    Unsafe { dir: PathBuf },
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("there is no device `{name}`, hint: there are {there}")]
    NoDevice { name: String, there: String },
    #[error("`{device}` has {there} cores and cannot give {wanted}")]
    TooFew { device: Name, there: usize, wanted: usize },
    #[error("{0}")]
    Held(Box<Conflict>),
}

/// A device that another control loop holds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{device}` {holder}")]
pub struct Conflict {
    pub device: Name,
    pub holder: Holder,
    /// What nobody holds, as `--devices` takes it.
    pub free: Vec<String>,
}

/// Who has a device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Holder {
    #[error("belongs to {0}")]
    ControlLoop(DeviceHolder),
    #[error("belongs to another server")]
    Somebody,
    /// Its control loop has ended, what it started goes on.
    #[error("is used by jobs of a server that was stopped")]
    Jobs,
}

/// What kind of control loop holds devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlLoopKind {
    Server,
    /// `het run` without a server.
    Run,
}

/// Who holds devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHolder {
    pub kind: ControlLoopKind,
    pub pid: u32,
    pub user: String,
    /// Its state directory.
    pub home: PathBuf,
    pub devices: Vec<String>,
}

impl std::fmt::Display for DeviceHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, pid, user, home, .. } = self;
        let kind = match kind {
            ControlLoopKind::Server => "a server",
            ControlLoopKind::Run => "a run",
        };
        write!(f, "{kind} (process {pid}) of `{user}` with its state in `{}`", home.display())
    }
}

/// A device by name, and how many of its cores if not all: `cuda1`, `cpu0:8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    pub name: String,
    pub cores: Option<u32>,
}

/// Locks on devices, until they are dropped.
#[derive(Debug)]
pub struct DeviceLocks {
    _locks: File,
    holder_file: PathBuf,
}

impl Drop for DeviceLocks {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.holder_file);
    }
}

/// The directory of the locks: `HET_LOCK_DIR`; `/run/heterosis` for root and those whom root lets
/// write there; else one of this user alone, in `XDG_RUNTIME_DIR` or in `/tmp`.
///
/// # Errors
/// When it cannot be made, or when others could write there.
pub fn lock_dir(lookup: impl Fn(&str) -> Option<String>) -> Result<PathBuf, DeviceLockError> {
    private(lock_dir_name(lookup))
}

/// The same directory, and nothing is made or looked at.
pub fn lock_dir_name(lookup: impl Fn(&str) -> Option<String>) -> PathBuf {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("HET_LOCK_DIR") {
        return dir;
    }
    let of_root = PathBuf::from(OF_ROOT);
    if geteuid().is_root() || may_lock(&of_root) {
        return of_root;
    }
    match set("XDG_RUNTIME_DIR") {
        Some(dir) => dir.join("heterosis"),
        None => PathBuf::from(format!("/tmp/heterosis-{}", geteuid())),
    }
}

fn may_lock(dir: &Path) -> bool {
    OpenOptions::new().write(true).open(dir.join(LOCKS)).is_ok()
}

/// Makes the directory, or takes one that nobody else could have prepared or can change.
fn private(dir: PathBuf) -> Result<PathBuf, DeviceLockError> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(&dir);
    made.map_err(|source| DeviceLockError::Io { path: dir.clone(), source })?;
    let found = fs::symlink_metadata(&dir);
    let found = found.map_err(|source| DeviceLockError::Io { path: dir.clone(), source })?;
    let is_owned = [0, geteuid().as_raw()].contains(&found.uid());
    match found.is_dir() && is_owned && found.mode() & 0o002 == 0 {
        true => Ok(dir),
        false => Err(DeviceLockError::Unsafe { dir }),
    }
}

/// Makes the directory of root's for the server of this user too, with the file of the locks. Who
/// has it otherwise, if that is neither of the two.
///
/// # Errors
/// When it cannot be made.
pub fn share_lock_dir(dir: &Path, user: &User) -> io::Result<Option<u32>> {
    let (uid, gid) = (user.uid.as_raw(), Some(user.gid.as_raw()));
    DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() || ![0, uid].contains(&found.uid()) {
        return Ok(Some(found.uid()));
    }
    lchown(dir, Some(0), gid)?;
    fs::set_permissions(dir, Permissions::from_mode(0o775))?;
    lchown(open_locks(dir)?.1, Some(uid), gid)?;
    Ok(None)
}

/// The file of the locks, which is made where there is none, and its path.
fn open_locks(dir: &Path) -> io::Result<(File, PathBuf)> {
    let path = dir.join(LOCKS);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW).open(&path).map(|file| (file, path))
}

/// Takes the chosen devices of a machine, or all of them, and leaves the others to others: the
/// machine has only the cores that were taken, and its other devices are reserved.
///
/// # Errors
/// When somebody else holds one of them, or there is no such device.
pub fn take_devices(
    dir: &Path,
    machine: &mut Machine,
    choices: Option<&[DeviceChoice]>,
    (kind, home): (ControlLoopKind, &Path),
) -> Result<DeviceLocks, DeviceLockError> {
    let locks = open_locks(dir);
    let (locks, path) =
        locks.map_err(|source| DeviceLockError::Io { path: dir.join(LOCKS), source })?;
    let broken = |source| DeviceLockError::Io { path: path.clone(), source };
    let tag = tag(home);
    check_names(&machine.discovery, choices.unwrap_or_default())?;
    let (mut taken, mut left) = (BTreeMap::new(), Vec::new());
    for device in machine.discovery.topology.device_ids() {
        let slots = slots(&machine.discovery, device);
        let Some(wanted) = wanted(&machine.discovery, device, choices, slots.len())? else {
            left.push(device);
            continue;
        };
        let mut own = Vec::new();
        for slot in slots {
            let is_free = own.len() < wanted && jobs_of_others(&locks, slot, tag).is_none();
            if is_free && lock(&locks, slot).map_err(broken)? {
                own.push(slot);
            }
        }
        if own.len() < wanted {
            let conflict = conflict((dir, &locks, tag), &machine.discovery, device);
            return Err(DeviceLockError::Held(Box::new(conflict)));
        }
        taken.insert(device, own);
    }
    let name = |id: &DeviceId| machine.discovery.topology.device(*id).name.to_string();
    let devices = taken.keys().map(name).collect();
    let pid = std::process::id();
    let holder_file = dir.join(format!("{HOLDER}{pid}"));
    let holder = DeviceHolder { kind, pid, user: user(), home: home.to_owned(), devices };
    let text = serde_json::to_vec(&holder).unwrap_or_default();
    replace_private(&holder_file, &text)
        .map_err(|source| DeviceLockError::Io { path: holder_file.clone(), source })?;
    let others = holders(dir);
    left.into_iter().for_each(|device| reserve(machine, device, &others));
    taken.into_iter().for_each(|(device, slots)| keep_cores(machine, device, &slots));
    machine.device_holds = Some(Arc::new(JobLocks::of(&machine.discovery, path, tag)));
    Ok(DeviceLocks { _locks: locks, holder_file })
}

/// The bytes that the shims of a control loop's jobs lock, of the devices that the jobs use.
#[derive(Debug, Clone)]
struct JobLocks {
    path: PathBuf,
    tag: u16,
    /// Of accelerators, by name.
    slots: BTreeMap<Name, Vec<u64>>,
}

impl JobLocks {
    fn of(discovery: &Discovery, path: PathBuf, tag: u16) -> Self {
        let ids = discovery.topology.device_ids();
        let accelerators = ids.filter(|id| !discovery.cores.contains_key(id));
        let named = accelerators
            .map(|id| (discovery.topology.device(id).name.clone(), slots(discovery, id)));
        Self { path, tag, slots: named.collect() }
    }
}

impl HoldDevices for JobLocks {
    fn hold(&self, devices: &BTreeSet<Name>, cores: &[u32]) -> io::Result<OwnedFd> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let accelerators = devices.iter().flat_map(|name| self.slots.get(name)).flatten().copied();
        for slot in cores.iter().map(|&core| u64::from(core)).chain(accelerators) {
            let byte = JOBS + slot * TAGS + u64::from(self.tag);
            fcntl(&file, FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, byte, 1)))?;
        }
        Ok(file.into())
    }
}

/// What tells the jobs of one state directory from those of others, but for one in 65,536.
fn tag(home: &Path) -> u16 {
    let mut hasher = DefaultHasher::new();
    home.hash(&mut hasher);
    hasher.finish() as u16
}

/// The first byte at which jobs of other state directories hold this slot.
fn jobs_of_others(file: &File, slot: u64, tag: u16) -> Option<u64> {
    let (first, own) = (JOBS + slot * TAGS, JOBS + slot * TAGS + u64::from(tag));
    let parts = [(first, own), (own + 1, first + TAGS)];
    parts.into_iter().filter(|(from, to)| from < to).find_map(|(from, to)| {
        let mut asked = range(libc::F_WRLCK, from, to - from);
        let answered = fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked));
        let is_held = answered.is_ok() && i32::from(asked.l_type) != libc::F_UNLCK;
        is_held.then_some(asked.l_start as u64)
    })
}

fn check_names(discovery: &Discovery, choices: &[DeviceChoice]) -> Result<(), DeviceLockError> {
    let names = || discovery.topology.devices.iter().map(|device| &device.name);
    let unknown = choices.iter().find(|choice| !names().any(|name| *name == choice.name.as_str()));
    let Some(choice) = unknown else { return Ok(()) };
    let there: Vec<String> = names().map(|name| format!("`{name}`")).collect();
    Err(DeviceLockError::NoDevice { name: choice.name.clone(), there: there.join(", ") })
}

/// How many of a device's slots are wanted; none where the device is not.
fn wanted(
    discovery: &Discovery,
    device: DeviceId,
    choices: Option<&[DeviceChoice]>,
    there: usize,
) -> Result<Option<usize>, DeviceLockError> {
    let Some(choices) = choices else { return Ok(Some(there)) };
    let device = &discovery.topology.device(device).name;
    let Some(choice) = choices.iter().find(|choice| *device == choice.name.as_str()) else {
        return Ok(None);
    };
    let wanted = choice.cores.map_or(there, |cores| cores as usize);
    match wanted <= there {
        true => Ok(Some(wanted)),
        false => Err(DeviceLockError::TooFew { device: device.clone(), there, wanted }),
    }
}

/// The bytes of a device; none of one that is on no bus, such as a declared one.
fn slots(discovery: &Discovery, device: DeviceId) -> Vec<u64> {
    if let Some(cores) = discovery.cores.get(&device) {
        return cores.iter().map(|&core| u64::from(core)).collect();
    }
    let address = |id: &DeviceId| discovery.places.get(id).and_then(|place| place.address);
    let Some(own) = address(&device) else { return Vec::new() };
    let PciAddress { domain, bus, device: slot, function } = own;
    let number = u64::from(domain) << 16 | u64::from(bus) << 8 | u64::from(slot << 3 | function);
    let parts = discovery.places.keys().filter(|id| address(id) == Some(own));
    let part = parts.take_while(|id| **id != device).count() as u64;
    vec![ACCELERATORS + number * PARTS_MAX + part % PARTS_MAX]
}

/// Waits until nobody holds the device of this name.
///
/// # Errors
/// When the locks cannot be used, or a signal came ([`io::ErrorKind::Interrupted`]).
pub fn wait_for_device(
    (dir, home): (&Path, &Path),
    machine: &Machine,
    device: &Name,
) -> Result<(), DeviceLockError> {
    let path = dir.join(LOCKS);
    let broken = |source| DeviceLockError::Io { path: path.clone(), source };
    let locks = OpenOptions::new().read(true).write(true).open(&path).map_err(broken)?;
    let tag = tag(home);
    let topology = &machine.discovery.topology;
    let ids = topology.device_ids().filter(|&id| topology.device(id).name == *device);
    let mut slots = ids.flat_map(|id| slots(&machine.discovery, id));
    slots.try_for_each(|slot| {
        let wait = |byte| fcntl(&locks, FcntlArg::F_OFD_SETLKW(&range(libc::F_WRLCK, byte, 1)));
        let mut locked = wait(slot);
        while let (Ok(_), Some(byte)) = (locked, jobs_of_others(&locks, slot, tag)) {
            locked = wait(byte);
        }
        locked.map(drop).map_err(|errno| broken(errno.into()))
    })
}

fn lock(file: &File, slot: u64) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_WRLCK, slot, 1))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn is_free(file: &File, slot: u64) -> bool {
    let mut range = range(libc::F_WRLCK, slot, 1);
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut range));
    asked.is_ok() && i32::from(range.l_type) == libc::F_UNLCK
}

fn range(kind: libc::c_int, start: u64, length: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as libc::off_t,
        l_len: length as libc::off_t,
        l_pid: 0,
    }
}

/// Who holds the device, and what is left. Locks of the asker, which is about to give them up,
/// count as free.
fn conflict(
    (dir, locks, tag): (&Path, &File, u16),
    discovery: &Discovery,
    device: DeviceId,
) -> Conflict {
    let is_usable = |slot| is_free(locks, slot) && jobs_of_others(locks, slot, tag).is_none();
    let topology = &discovery.topology;
    let free = topology.device_ids().filter_map(|id| {
        let (name, slots) = (&topology.device(id).name, slots(discovery, id));
        let free = slots.iter().filter(|&&slot| is_usable(slot)).count();
        match free {
            0 => None,
            free if free < slots.len() => Some(format!("{name}:{free}")),
            _ => Some(name.to_string()),
        }
    });
    let free = free.collect();
    let are_held = slots(discovery, device).into_iter().any(|slot| !is_free(locks, slot));
    let device = topology.device(device).name.clone();
    let holder = match holders(dir).into_iter().find(|holder| names(holder, &device)) {
        Some(holder) => Holder::ControlLoop(holder),
        None if are_held => Holder::Somebody,
        None => Holder::Jobs,
    };
    Conflict { device, holder, free }
}

/// Those that live.
fn holders(dir: &Path) -> Vec<DeviceHolder> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(HOLDER));
    let read = files.filter_map(|entry| serde_json::from_slice(&fs::read(entry.path()).ok()?).ok());
    let lives =
        |holder: &DeviceHolder| kill(Pid::from_raw(holder.pid as i32), None) != Err(Errno::ESRCH);
    read.filter(lives).collect()
}

fn names(holder: &DeviceHolder, device: &Name) -> bool {
    holder.devices.iter().any(|name| name == device.as_str())
}

fn user() -> String {
    let uid = Uid::effective();
    let user = User::from_uid(uid).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Nothing of this control loop may use the device.
fn reserve(machine: &mut Machine, device: DeviceId, others: &[DeviceHolder]) {
    let name = &machine.discovery.topology.device(device).name;
    let by = match others.iter().find(|holder| names(holder, name)) {
        Some(holder) => Occupant {
            process: holder.pid,
            user: holder.user.as_str().into(),
            command: "het".into(),
        },
        None => Occupant {
            process: std::process::id(),
            user: user().into(),
            command: "not in `--devices`".into(),
        },
    };
    machine.reserved.insert(device, by);
}

fn keep_cores(machine: &mut Machine, device: DeviceId, slots: &[u64]) {
    let Some(cores) = machine.discovery.cores.get_mut(&device) else { return };
    if cores.len() == slots.len() {
        return;
    }
    cores.retain(|core| slots.contains(&u64::from(*core)));
    let capacity = Share::units(cores.len() as u32);
    machine.discovery.topology.devices[device.index()].capacity = capacity;
    let mut topology = (*machine.topology).clone();
    topology.devices[device.index()].capacity = capacity;
    machine.topology = topology.into();
}

#[cfg(test)]
mod tests {
    use het_devices::System;

    use super::*;

    /// A machine of four cores and nothing else.
    fn machine() -> Machine {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut system = System::recorded(dir.path());
        system.fallback_cores = vec![0, 1, 2, 3];
        crate::machine::machine(system)
    }

    fn who() -> (ControlLoopKind, &'static Path) {
        (ControlLoopKind::Server, Path::new("/home/ada/state"))
    }

    fn choice(cores: u32) -> [DeviceChoice; 1] {
        [DeviceChoice { name: "cpu0".to_owned(), cores: Some(cores) }]
    }

    #[test]
    fn two_control_loops_share_the_cores_of_a_machine() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut first = machine();
        let held = take_devices(dir.path(), &mut first, Some(&choice(3)), who());
        let held = held.expect("nobody has any");
        assert_eq!(first.discovery.cores[&DeviceId(0)], [0, 1, 2]);
        assert_eq!(first.topology.device(DeviceId(0)).capacity, Share::units(3));
        let refused = take_devices(dir.path(), &mut machine(), None, who());
        let text = refused.expect_err("three cores are held").to_string();
        assert!(text.starts_with("`cpu0` belongs to a server (process "), "{text}");
        assert!(text.ends_with("with its state in `/home/ada/state`"), "{text}");
        let mut second = machine();
        let other = take_devices(dir.path(), &mut second, Some(&choice(1)), who());
        assert_eq!(second.discovery.cores[&DeviceId(0)], [3]);
        drop((held, other));
        take_devices(dir.path(), &mut machine(), None, who()).expect("they were given up");
    }

    #[test]
    fn jobs_hold_what_they_use_for_longer_than_their_control_loop() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut first = machine();
        let held = take_devices(dir.path(), &mut first, None, who()).expect("nobody has any");
        let locks = first.device_holds.expect("it took devices");
        let job = locks.hold(&BTreeSet::new(), &[1]).expect("a file can be locked");
        let beside = locks.hold(&BTreeSet::new(), &[1]).expect("jobs of one server may share");
        drop((held, beside));
        let other = (ControlLoopKind::Server, Path::new("/home/bob/state"));
        let refused = take_devices(dir.path(), &mut machine(), None, other);
        let Err(DeviceLockError::Held(conflict)) = refused else { panic!("{refused:?}") };
        assert_eq!(
            (conflict.holder.clone(), &conflict.free[..]),
            (Holder::Jobs, &["cpu0:3".to_owned()][..])
        );
        let text = "`cpu0` is used by jobs of a server that was stopped";
        assert_eq!(conflict.to_string(), text);
        let own = take_devices(dir.path(), &mut machine(), None, who());
        drop(own.expect("its next server takes them up"));
        drop(job);
        take_devices(dir.path(), &mut machine(), None, other).expect("the job has ended");
    }

    #[test]
    fn what_is_left_is_named() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let held = take_devices(dir.path(), &mut machine(), Some(&choice(3)), who());
        let refused = take_devices(dir.path(), &mut machine(), None, who());
        let Err(DeviceLockError::Held(conflict)) = refused else { panic!("{refused:?}") };
        assert_eq!(conflict.free, ["cpu0:1"]);
        drop(held);
    }

    #[test]
    fn a_device_that_was_not_taken_is_somebody_elses() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut machine = machine();
        take_devices(dir.path(), &mut machine, Some(&[]), who()).expect("nothing is asked for");
        assert_eq!(machine.reserved[&DeviceId(0)].command, "not in `--devices`");
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let check = |choices: &[DeviceChoice], text: &str| {
            let refused = take_devices(dir.path(), &mut machine(), Some(choices), who());
            assert_eq!(refused.expect_err("it is not there").to_string(), text);
        };
        let cuda = DeviceChoice { name: "cuda0".to_owned(), cores: None };
        check(&[cuda], "there is no device `cuda0`, hint: there are `cpu0`");
        check(&choice(5), "`cpu0` has 4 cores and cannot give 5");
    }

    #[test]
    fn a_place_where_others_can_write_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("locks");
        let find = || lock_dir(|name| (name == "HET_LOCK_DIR").then(|| path.display().to_string()));
        find().expect("it is made");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&path, open).expect("it is ours");
        assert!(matches!(find(), Err(DeviceLockError::Unsafe { .. })));
    }
}
