//! Where control groups can be made: the hierarchies of this machine, and where this process stands
//! in them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{MEMBERS, members};

/// `het-USER` holds the groups of all engines of a user, and stays when they end.
const PREFIX: &str = "het-";
/// Where the supervisor itself goes where version 2 wants groups with members to be leaves.
const SUPERVISOR: &str = "het-supervisor";

/// As whom an engine makes groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostRole {
    /// It stays where it was started: what it runs belongs to whatever it belongs to itself.
    Guest,
    /// It has a keeper, and neither of them belongs to a job that happened to start them.
    Service,
}

/// A directory that holds groups, and what they can be held to.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) dir: PathBuf,
    pub(super) version: Version,
    pub(super) memory: bool,
    pub(super) pids: bool,
}

impl Tree {
    /// One in each hierarchy.
    pub(super) fn all(role: HostRole) -> io::Result<Vec<Self>> {
        let name = format!("{PREFIX}{}", nix::unistd::getuid());
        Place::all(role)?.iter().map(|place| place.plant(&name, role)).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A place in a hierarchy where this process stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    dir: PathBuf,
    pub(super) version: Version,
    memory: bool,
    pids: bool,
}

impl Place {
    /// Those of one version that hold the controllers.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn all(role: HostRole) -> io::Result<Vec<Self>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let mut places = places(&mounts, &own, role);
        // Where both are there, the controllers are with version 1.
        let one = places.iter().any(|place| place.version == Version::One);
        places.retain(|place| (place.version == Version::One) == one);
        if places.is_empty() {
            return Err(io::Error::other("the machine has none"));
        }
        Ok(places)
    }

    pub(super) fn make(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join(name);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(dir),
        }
    }

    /// Makes the directory of an engine there.
    fn plant(&self, name: &str, role: HostRole) -> io::Result<Tree> {
        let dir = self.make(name)?;
        let Self { version, mut memory, mut pids, .. } = *self;
        if version == Version::Two {
            let limits = self.delegate(&dir, role).is_ok();
            (memory, pids) = (limits, limits);
        }
        Ok(Tree { dir, version, memory, pids })
    }

    /// Whether what is made there can limit memory, as far as can be told from looking.
    pub(super) fn hands_memory_on(&self) -> bool {
        let handed_on = || fs::read_to_string(self.dir.join("cgroup.subtree_control"));
        match self.version {
            Version::One => self.memory,
            Version::Two => handed_on().is_ok_and(|text| text.contains("memory")),
        }
    }

    /// Has the controllers of version 2 below `dir`. A group that hands them on may have no members
    /// of its own: if those are a service and its keeper only, they move.
    fn delegate(&self, dir: &Path, role: HostRole) -> io::Result<()> {
        let hand_on = |from: &Path| fs::write(from.join("cgroup.subtree_control"), "+memory +pids");
        if hand_on(&self.dir).is_err() {
            let members = members(&self.dir);
            let (own, keeper) = (nix::unistd::getpid(), nix::unistd::getppid());
            let ours = |pid: &i32| [own.as_raw(), keeper.as_raw()].contains(pid);
            if role == HostRole::Guest || !members.iter().all(ours) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            let leaf = self.make(SUPERVISOR)?;
            for pid in members {
                fs::write(leaf.join(MEMBERS), pid.to_string())?;
            }
            hand_on(&self.dir)?;
        }
        hand_on(dir)
    }
}

/// Where this process stands in the hierarchies that can limit something, or keep together.
fn places(mounts: &str, own: &str, role: HostRole) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
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
            _ => continue,
        };
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            controllers.split(',').any(|controller| controller == word).then_some(path)
        });
        let Some(path) = path else { continue };
        // A mount of another part of the hierarchy, and one of what is mounted already.
        let Ok(below) = Path::new(path).strip_prefix(root) else { continue };
        if !seen.insert(word) {
            continue;
        }
        let dir = Path::new(point).join(below);
        places.push(Place {
            dir: if role == HostRole::Service { outside_of_jobs(&dir) } else { dir },
            version,
            memory: options.contains("memory"),
            pids: options.contains("pids"),
        });
    }
    places
}

/// Of a place in a job's group, where that group was made.
fn outside_of_jobs(dir: &Path) -> PathBuf {
    let is_ours = |dir: &&Path| {
        dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    };
    let outermost = dir.ancestors().filter(is_ours).last();
    outermost.and_then(Path::parent).unwrap_or(dir).to_owned()
}

/// Leaves the group of a job that this process was started by, whose end would be its own.
pub(crate) fn leave_job() {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if is_in_job(&own) {
        for place in Place::all(HostRole::Service).unwrap_or_default() {
            // Whoever may not move is ended with the job, as before there were groups.
            let _ = fs::write(place.dir.join(MEMBERS), "0");
        }
    }
}

/// A service may stand in a leaf of its own.
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
        let text = |place: &Place| place.dir.to_string_lossy().trim_end_matches('/').to_owned();
        places(mounts, own, HostRole::Service).iter().map(text).collect()
    }

    #[test]
    fn a_process_finds_where_it_stands() {
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
    fn a_supervisor_does_not_stand_below_a_job() {
        let own = "0::/user.slice/het-0/1f-2-7.0/het-0\n";
        assert_eq!(dirs(UNIFIED, own), ["/sys/fs/cgroup/user.slice"]);
    }
}
