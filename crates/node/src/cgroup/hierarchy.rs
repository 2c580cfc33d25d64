//! The cgroup hierarchies of this machine, and the cgroups that this process is in.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use super::Version;
use super::devices::may_filter;
use super::directory::{PROCS, members};

/// `het-USER` holds the cgroups of all engines of a user, and stays when they end.
const PREFIX: &str = "het-";
/// Where the supervisor itself moves, because version 2 wants cgroups with processes to be leaves.
pub(super) const SUPERVISOR: &str = "het-supervisor";

/// The name of the cgroup with all that runs for a user.
pub(super) fn user_group(user: Uid) -> String {
    format!("{PREFIX}{user}")
}

/// How an engine runs, which decides where it makes cgroups and what programs inherit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMode {
    /// It stays in the cgroup it was started in, and so does what it runs; programs also inherit
    /// the descriptors that it was given for them.
    Embedded,
    /// It has a restarter. Both leave the cgroup of a job that started them.
    Service,
}

/// The directory of an engine's cgroups in one hierarchy, and what they can limit.
#[derive(Debug)]
pub(super) struct Hierarchy {
    pub(super) dir: PathBuf,
    pub(super) version: Version,
    pub(super) memory: bool,
    pub(super) pids: bool,
    pub(super) devices: bool,
}

impl Hierarchy {
    /// One in each hierarchy that limits memory or processes, and in that which decides about
    /// devices where this process may make one.
    pub(super) fn all(mode: RunMode) -> io::Result<Vec<Self>> {
        let name = user_group(nix::unistd::getuid());
        let created = OwnCgroup::all(mode)?.into_iter().filter_map(|own| {
            let created = own.create(&name, mode);
            (created.is_ok() || !own.is_optional()).then_some(created)
        });
        created.collect()
    }
}

/// The cgroup of a hierarchy that this process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnCgroup {
    dir: PathBuf,
    pub(super) version: Version,
    memory: bool,
    pids: bool,
    devices: bool,
}

impl OwnCgroup {
    /// Those of the version that has the controllers.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn all(mode: RunMode) -> io::Result<Vec<Self>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let mut found = own_cgroups(&mounts, &own, mode);
        // Where both versions are mounted, version 1 has the controllers.
        let limits = |cgroup: &OwnCgroup| cgroup.memory || cgroup.pids;
        let one = found.iter().any(|cgroup| cgroup.version == Version::One && limits(cgroup));
        found.retain(|cgroup| (cgroup.version == Version::One) == one);
        if found.is_empty() {
            return Err(io::Error::other("the machine has none"));
        }
        Ok(found)
    }

    pub(super) fn make(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join(name);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(dir),
        }
    }

    /// Makes the directory of an engine's cgroups inside it.
    pub(super) fn create(&self, name: &str, mode: RunMode) -> io::Result<Hierarchy> {
        let dir = self.make(name)?;
        let Self { version, mut memory, mut pids, mut devices, .. } = *self;
        if version == Version::Two {
            // Root may have done it for this user.
            let limits = delegates(&dir) || self.delegate(&dir, mode).is_ok();
            (memory, pids) = (limits, limits);
            devices = may_filter();
        }
        Ok(Hierarchy { dir, version, memory, pids, devices })
    }

    /// Whether cgroups inside it can limit memory, as far as its files show.
    pub(super) fn delegates_memory(&self) -> bool {
        match self.version {
            Version::One => self.memory,
            Version::Two => delegates(&self.dir),
        }
    }

    /// Ranks can do without it: it decides about devices only.
    pub(super) fn is_optional(&self) -> bool {
        self.devices && !self.memory && !self.pids
    }

    /// Whether cgroups inside it can keep processes from devices.
    pub(super) fn confines_devices(&self) -> bool {
        match self.version {
            Version::One => self.devices,
            Version::Two => may_filter(),
        }
    }

    /// Enables the controllers of version 2 below `dir`. A cgroup that delegates them may not have
    /// processes of its own: if those are only a service and its restarter, they move.
    fn delegate(&self, dir: &Path, mode: RunMode) -> io::Result<()> {
        let enable = |from: &Path| fs::write(from.join("cgroup.subtree_control"), "+memory +pids");
        if enable(&self.dir).is_err() {
            let members = members(&self.dir);
            let (own, restarter) = (nix::unistd::getpid(), nix::unistd::getppid());
            let ours = |pid: &i32| [own.as_raw(), restarter.as_raw()].contains(pid);
            if mode == RunMode::Embedded || !members.iter().all(ours) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            let leaf = self.make(SUPERVISOR)?;
            for pid in members {
                fs::write(leaf.join(PROCS), pid.to_string())?;
            }
            enable(&self.dir)?;
        }
        enable(dir)
    }
}

/// Whether a cgroup of version 2 lets those inside limit memory and processes.
fn delegates(dir: &Path) -> bool {
    let enabled = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
    ["memory", "pids"].iter().all(|word| enabled.split_whitespace().any(|other| other == *word))
}

/// The cgroups of this process in the hierarchies that can limit or at least group processes, or
/// decide about devices, from the text of `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn own_cgroups(mounts: &str, own: &str, mode: RunMode) -> Vec<OwnCgroup> {
    let mut found: Vec<OwnCgroup> = Vec::new();
    let mut seen = BTreeSet::new();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (left, right): (Vec<&str>, Vec<&str>) =
            (left.split(' ').collect(), right.split(' ').collect());
        let (Some(root), Some(point), Some(kind)) = (left.get(3), left.get(4), right.first())
        else {
            continue;
        };
        let options: BTreeSet<&str> = right.get(2).map_or("", |o| *o).split(',').collect();
        let (version, word) = match *kind {
            "cgroup2" => (Version::Two, ""),
            "cgroup" if options.contains("memory") => (Version::One, "memory"),
            "cgroup" if options.contains("pids") => (Version::One, "pids"),
            "cgroup" if options.contains("devices") => (Version::One, "devices"),
            _ => continue,
        };
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            controllers.split(',').any(|controller| controller == word).then_some(path)
        });
        let Some(path) = path else { continue };
        // Skips mounts of another part of the hierarchy, and repeated mounts.
        let Ok(below) = Path::new(path).strip_prefix(root) else { continue };
        if !seen.insert(word) {
            continue;
        }
        let dir = Path::new(point).join(below);
        found.push(OwnCgroup {
            dir: if mode == RunMode::Service { outside_jobs(&dir) } else { dir },
            version,
            memory: options.contains("memory"),
            pids: options.contains("pids"),
            devices: options.contains("devices"),
        });
    }
    found
}

/// For a cgroup inside that of a job, the parent of the job's.
fn outside_jobs(dir: &Path) -> PathBuf {
    let is_ours = |dir: &&Path| {
        dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    };
    let outermost = dir.ancestors().filter(is_ours).last();
    outermost.and_then(Path::parent).unwrap_or(dir).to_owned()
}

/// Lets the cgroup of a service that has it alone hold cgroups of users: version 2 wants it empty.
pub fn delegate_own_cgroup() {
    let own = OwnCgroup::all(RunMode::Service).unwrap_or_default();
    for cgroup in own.iter().filter(|own| own.version == Version::Two) {
        // Without it memory and processes are not limited, as `het doctor` says.
        if let Ok(leaf) = cgroup.make(SUPERVISOR)
            && fs::write(leaf.join(PROCS), "0").is_ok()
        {
            let _ = fs::write(cgroup.dir.join("cgroup.subtree_control"), "+memory +pids");
        }
    }
}

/// Leaves the cgroup of a job that started this process, and with which it would be killed.
pub(crate) fn leave_job() {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if is_in_job(&own) {
        for cgroup in OwnCgroup::all(RunMode::Service).unwrap_or_default() {
            // A process that may not move is killed with the job.
            let _ = fs::write(cgroup.dir.join(PROCS), "0");
        }
    }
}

/// The leaf that a service moves itself to is no job.
fn is_in_job(own: &str) -> bool {
    own.lines()
        .flat_map(|line| line.split('/'))
        .any(|part| part.starts_with(PREFIX) && part != SUPERVISOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        33 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        36 31 0:33 /outer /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    fn dirs(mounts: &str, own: &str) -> Vec<String> {
        let text =
            |cgroup: &OwnCgroup| cgroup.dir.to_string_lossy().trim_end_matches('/').to_owned();
        own_cgroups(mounts, own, RunMode::Service).iter().map(text).collect()
    }

    #[test]
    fn a_process_finds_its_own_cgroups() {
        let own = "8:pids:/\n4:memory:/outer/inner\n0::/ignored\n";
        assert_eq!(dirs(HYBRID, own), ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/pids"]);
        let own = "0::/system.slice/het.service\n";
        assert_eq!(dirs(UNIFIED, own), ["/sys/fs/cgroup/system.slice/het.service"]);
    }

    #[test]
    fn a_service_in_a_leaf_of_its_own_is_in_no_job() {
        let own = "0::/het.service/het-supervisor\n";
        assert!(!is_in_job(own));
        assert!(is_in_job("0::/user.slice/het-0/1f-2-7-0\n"));
        assert_eq!(dirs(UNIFIED, own), ["/sys/fs/cgroup/het.service"]);
    }

    #[test]
    fn a_hierarchy_that_is_mounted_again_is_used_once() {
        let again = "99 1 0:26 / /run/other rw - cgroup2 cgroup2 rw\n\
                     98 1 0:26 /elsewhere /mnt rw - cgroup2 cgroup2 rw\n";
        let mounts = format!("98 1 0:26 /elsewhere /mnt rw - cgroup2 x rw\n{UNIFIED}\n{again}");
        assert_eq!(dirs(&mounts, "0::/a\n"), ["/sys/fs/cgroup/a"]);
    }

    #[test]
    fn a_supervisor_makes_no_cgroups_below_a_job() {
        let own = "0::/user.slice/het-0/1f-2-7.0/het-0\n";
        assert_eq!(dirs(UNIFIED, own), ["/sys/fs/cgroup/user.slice"]);
    }
}
