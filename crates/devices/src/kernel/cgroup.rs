//! What the control groups of this process allow: cores, processor time, memory. Versions 1, 2 and
//! both at once, at the usual mount points.

use het_core::Bytes;

use crate::kernel::files::SystemFiles;
use crate::kernel::parse;

const MOUNT: &str = "sys/fs/cgroup";

/// The tightest limits that bind this process; `None` is unlimited or unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    pub(crate) cores: Option<Vec<u32>>,
    pub(crate) quota_millicores: Option<u64>,
    pub(crate) memory: Option<Bytes>,
}

pub(crate) fn limits(files: &SystemFiles) -> Limits {
    let memberships = memberships(&files.text("proc/self/cgroup").unwrap_or_default());
    let mut limits = Limits::default();
    for membership in &memberships {
        for directory in directories(files, membership) {
            limits.tighten(files, &directory, membership);
        }
    }
    limits
}

impl Limits {
    fn tighten(&mut self, files: &SystemFiles, directory: &str, membership: &Membership) {
        let text = |file: &str| files.text(&format!("{directory}/{file}"));
        let (cores, quota, memory) = if membership.controllers.is_empty() {
            (
                text("cpuset.cpus.effective"),
                text("cpu.max").and_then(|text| parse::cpu_max(&text)),
                text("memory.max"),
            )
        } else {
            (
                text("cpuset.effective_cpus").or_else(|| text("cpuset.cpus")),
                text("cpu.cfs_quota_us")
                    .zip(text("cpu.cfs_period_us"))
                    .and_then(|(quota, period)| parse::quota_millicores(&quota, &period)),
                text("memory.limit_in_bytes"),
            )
        };
        // The effective set of the innermost group is already cut down by the outer ones.
        if self.cores.is_none() {
            let cores = cores.and_then(|text| parse::core_list(&text));
            self.cores = cores.filter(|cores| !cores.is_empty());
        }
        self.quota_millicores = tighter(self.quota_millicores, quota);
        self.memory = tighter(self.memory, memory.and_then(|text| parse::memory_limit(&text)));
    }
}

fn tighter<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A line of `/proc/self/cgroup`: no controllers means version 2.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Membership {
    controllers: Vec<String>,
    path: String,
}

fn memberships(text: &str) -> Vec<Membership> {
    let parse = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let controllers =
            controllers.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        Some(Membership { controllers, path: path.to_owned() })
    };
    let mut memberships: Vec<_> = text.lines().filter_map(parse).collect();
    if memberships.is_empty() {
        // Without procfs the mounted tree is still what a container may use.
        memberships.push(Membership { controllers: Vec::new(), path: "/".to_owned() });
    }
    memberships
}

/// The group's directories, innermost first. In a container the path may name a group outside the
/// mount: then only the directories that exist are read, at least the mount's own.
fn directories(files: &SystemFiles, membership: &Membership) -> Vec<String> {
    let mount = if membership.controllers.is_empty() {
        let unified = format!("{MOUNT}/unified");
        if files.exists(&unified) { unified } else { MOUNT.to_owned() }
    } else {
        let together = format!("{MOUNT}/{}", membership.controllers.join(","));
        let alone = |word: &String| format!("{MOUNT}/{word}");
        if files.exists(&together) {
            together
        } else {
            let mut mounts = membership.controllers.iter().map(alone);
            mounts.find(|path| files.exists(path)).unwrap_or(together)
        }
    };
    // A path that climbs (`/../x` in a nested namespace) must not leave the mount.
    let mut parts: Vec<&str> =
        membership.path.split('/').filter(|part| !part.is_empty() && *part != "..").collect();
    let mut directories = Vec::new();
    loop {
        directories.push([&[mount.as_str()], parts.as_slice()].concat().join("/"));
        if parts.pop().is_none() {
            return directories;
        }
    }
}
