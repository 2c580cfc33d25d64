//! Control groups: a gang's ranks in groups of their own, which nobody leaves by making a session
//! or by cleaning its environment, and which limit memory and processes (cgroups(7)).
//!
//! Version 2 where its controllers can be had, version 1 where that is what the machine has, and
//! none where this process may make no groups: everything else works then as well.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use het_core::Bytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Processes and threads of a rank: far more than a program needs, fewer than a machine has.
const TASKS_MAX: u64 = 32_768;

/// `het-USER` holds the groups of all engines of a user: `DEVICE-INODE-PID-NUMBER`, by the run
/// directory and the process of the engine. It stays when they end.
const PREFIX: &str = "het-";
/// Where the supervisor itself goes where version 2 wants groups with members to be leaves.
const SUPERVISOR: &str = "het-supervisor";

/// The file of a group that lists its processes, and lets others in.
const MEMBERS: &str = "cgroup.procs";

/// Whether an engine makes control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControlGroups {
    /// Where it may.
    #[default]
    Auto,
    Off,
}

/// Names that are tried for a group.
const NAMES_MAX: usize = 1_024;

/// What a group may still be charged for, mostly cached pages of files, to be used again.
const LEFT_BYTES_MAX: u64 = 16 << 20;

/// Groups that are kept for the next rank: making one costs more than all else at a start.
const FREE_MAX: usize = 64;

/// Where an engine makes its groups, and those that nobody is in.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    trees: Vec<Tree>,
    /// What the names of its groups begin with.
    engine: String,
    next: u64,
    free: Vec<Group>,
}

#[derive(Debug)]
struct Tree {
    dir: PathBuf,
    version: Version,
    memory: bool,
    pids: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// What a machine's control groups are good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlGroupFinding {
    /// Version, and whether memory is limited.
    Usable {
        version: u8,
        limits_memory: bool,
    },
    Unusable {
        why: String,
    },
}

impl fmt::Display for ControlGroupFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable { version, limits_memory: true } => {
                write!(f, "control groups (version {version}) hold jobs to their memory")
            }
            Self::Usable { version, limits_memory: false } => write!(
                f,
                "control groups (version {version}) keep jobs together, but may not limit memory"
            ),
            Self::Unusable { why } => {
                write!(f, "no control groups: {why}; jobs may use more memory than they asked for")
            }
        }
    }
}

/// As whom an engine makes groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It stays where it was started: what it runs belongs to whatever it belongs to itself.
    Guest,
    /// It has a keeper, and neither of them belongs to a job that happened to start them.
    Service,
}

/// What control groups this process could make. Makes some and removes them again.
pub fn control_groups() -> ControlGroupFinding {
    let probe = || {
        let places = Place::all(Standing::Guest)?;
        for place in &places {
            let dir = place.make("het-probe")?;
            fs::remove_dir(dir)?;
        }
        Ok::<_, io::Error>(places)
    };
    match probe() {
        Ok(places) => {
            let version = if places[0].version == Version::One { 1 } else { 2 };
            let limits_memory = places.iter().any(Place::hands_memory_on);
            ControlGroupFinding::Usable { version, limits_memory }
        }
        Err(error) => ControlGroupFinding::Unusable { why: error.to_string() },
    }
}

impl Forest {
    /// Of an engine with this run directory; empty where it may make none.
    pub(crate) fn of(run_dir: &Path, standing: Standing) -> Self {
        let Ok(metadata) = fs::metadata(run_dir) else { return Self::default() };
        let name = format!("{PREFIX}{}", nix::unistd::getuid());
        let trees = Place::all(standing).and_then(|places| {
            places.iter().map(|place| place.plant(&name, standing)).collect::<io::Result<_>>()
        });
        let engine = format!("{:x}-{:x}-", metadata.dev(), metadata.ino());
        let (trees, engine) = (trees.unwrap_or_default(), engine);
        let forest = Self { trees, engine, next: 0, free: Vec::new() };
        // What a supervisor that died left empty; what has members is in use.
        for tree in &forest.trees {
            let own = |dir: &PathBuf| {
                dir.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&forest.engine))
            };
            below(&tree.dir).filter(own).for_each(|dir| remove_tree(&dir));
        }
        forest
    }

    /// A group for each rank of a gang by its memory, of which zero is not limited; none at all
    /// where the machine gives none.
    pub(crate) fn take(&mut self, memory: &[Bytes]) -> Vec<Group> {
        let mut taken = Vec::new();
        if self.trees.is_empty() {
            return taken;
        }
        for &memory in memory {
            match self.take_one(memory) {
                Ok(group) => taken.push(group),
                Err(_) => {
                    taken.into_iter().for_each(|group| self.take_back(group));
                    return Vec::new();
                }
            }
        }
        taken
    }

    fn take_one(&mut self, memory: Bytes) -> io::Result<Group> {
        let mut group = match self.free.pop() {
            Some(group) => group,
            None => self.plant()?,
        };
        if group.memory != Some(memory) {
            if let Err(error) = self.limit(&group, memory) {
                group.remove();
                return Err(error);
            }
            group.memory = Some(memory);
        }
        group.kills_before = group.kills();
        Ok(group)
    }

    /// Nobody is to be in it any more. One that a supervisor before this one made, or that is still
    /// charged for what its rank left in memory, is not used again.
    pub(crate) fn take_back(&mut self, group: Group) {
        let clean = group.memory.is_some() && group.is_empty();
        if clean && self.free.len() < FREE_MAX {
            self.free.push(group);
        } else {
            group.remove();
        }
    }

    fn plant(&mut self) -> io::Result<Group> {
        for _ in 0..NAMES_MAX {
            let name = format!("{}{}-{}", self.engine, std::process::id(), self.next);
            self.next += 1;
            match self.make(&name) {
                // Of an engine before this one in the same process, or with the same id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn make(&self, name: &str) -> io::Result<Group> {
        let mut group = Group { memory: Some(Bytes::ZERO), ..Group::default() };
        for tree in &self.trees {
            let dir = tree.dir.join(name);
            if let Err(error) = fs::create_dir(&dir) {
                group.remove();
                return Err(error);
            }
            group.dirs.push(dir.clone());
            let limited = match tree.pids {
                true => fs::write(dir.join("pids.max"), TASKS_MAX.to_string()),
                false => Ok(()),
            };
            if let Err(error) = limited.and_then(|()| group.open_last()) {
                group.remove();
                return Err(error);
            }
        }
        Ok(group)
    }

    fn limit(&self, group: &Group, memory: Bytes) -> io::Result<()> {
        for (tree, dir) in self.trees.iter().zip(&group.dirs).filter(|(tree, _)| tree.memory) {
            let (file, none) = match tree.version {
                Version::One => ("memory.limit_in_bytes", "-1"),
                Version::Two => ("memory.max", "max"),
            };
            let text = if memory == Bytes::ZERO { none.to_owned() } else { memory.0.to_string() };
            fs::write(dir.join(file), text)?;
        }
        Ok(())
    }
}

impl Drop for Forest {
    fn drop(&mut self) {
        self.free.iter().for_each(Group::remove);
    }
}

/// A place in a hierarchy where this process stands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    dir: PathBuf,
    version: Version,
    memory: bool,
    pids: bool,
}

impl Place {
    /// Those of one version that hold the controllers.
    ///
    /// # Errors
    /// When there are none.
    fn all(standing: Standing) -> io::Result<Vec<Self>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let mut places = places(&mounts, &own, standing);
        // Where both are there, the controllers are with version 1.
        let one = places.iter().any(|place| place.version == Version::One);
        places.retain(|place| (place.version == Version::One) == one);
        if places.is_empty() {
            return Err(io::Error::other("the machine has none"));
        }
        Ok(places)
    }

    fn make(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join(name);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(dir),
        }
    }

    /// Makes the directory of an engine there.
    fn plant(&self, name: &str, standing: Standing) -> io::Result<Tree> {
        let dir = self.make(name)?;
        let Self { version, mut memory, mut pids, .. } = *self;
        if version == Version::Two {
            let limits = self.delegate(&dir, standing).is_ok();
            (memory, pids) = (limits, limits);
        }
        Ok(Tree { dir, version, memory, pids })
    }

    /// Whether what is made there can limit memory, as far as can be told from looking.
    fn hands_memory_on(&self) -> bool {
        let handed_on = || fs::read_to_string(self.dir.join("cgroup.subtree_control"));
        match self.version {
            Version::One => self.memory,
            Version::Two => handed_on().is_ok_and(|text| text.contains("memory")),
        }
    }

    /// Has the controllers of version 2 below `dir`. A group that hands them on may have no members
    /// of its own: if those are a service and its keeper only, they move.
    fn delegate(&self, dir: &Path, standing: Standing) -> io::Result<()> {
        let hand_on = |from: &Path| fs::write(from.join("cgroup.subtree_control"), "+memory +pids");
        if hand_on(&self.dir).is_err() {
            let members = members(&self.dir);
            let (own, keeper) = (nix::unistd::getpid(), nix::unistd::getppid());
            let ours = |pid: &i32| [own.as_raw(), keeper.as_raw()].contains(pid);
            if standing == Standing::Guest || !members.iter().all(ours) {
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
fn places(mounts: &str, own: &str, standing: Standing) -> Vec<Place> {
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
            dir: if standing == Standing::Service { outside_of_jobs(&dir) } else { dir },
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
        for place in Place::all(Standing::Service).unwrap_or_default() {
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

fn members(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join(MEMBERS)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Groups inside a group.
fn below(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path())
}

/// Removes a group and those inside it. What is still in use is left to whoever comes next.
fn remove_tree(dir: &Path) {
    below(dir).for_each(|inside| remove_tree(&inside));
    let _ = fs::remove_dir(dir);
}

fn members_of_tree(dir: &Path) -> Vec<i32> {
    let mut all = members(dir);
    below(dir).for_each(|inside| all.extend(members_of_tree(&inside)));
    all
}

/// The group of one rank.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Its directory in each hierarchy.
    dirs: Vec<PathBuf>,
    /// Where a process writes `0` to come in; none where nobody is to come any more.
    doors: Vec<OwnedFd>,
    /// What it is limited to; unknown of one that another supervisor made.
    memory: Option<Bytes>,
    /// What the kernel had counted when its present rank began.
    kills_before: Option<u64>,
}

impl Group {
    /// Of these directories, as another supervisor wrote them down. What is not there any more is
    /// nobody's.
    pub(crate) fn of(dirs: Vec<PathBuf>) -> Self {
        let there = dirs.iter().all(|dir| dir.exists());
        let group = Self { dirs: if there { dirs } else { Vec::new() }, ..Self::default() };
        Self { kills_before: group.kills(), ..group }
    }

    fn open_last(&mut self) -> io::Result<()> {
        if let Some(dir) = self.dirs.last() {
            let door = OpenOptions::new().write(true).open(dir.join(MEMBERS))?;
            self.doors.push(door.into());
        }
        Ok(())
    }

    /// Nobody is in it, and nothing to speak of is charged to it.
    fn is_empty(&self) -> bool {
        let files = ["memory.current", "memory.usage_in_bytes"];
        let used = |dir: &PathBuf| {
            let text = files.iter().find_map(|file| fs::read_to_string(dir.join(file)).ok())?;
            text.trim().parse::<u64>().ok()
        };
        let used = self.dirs.iter().find_map(used).unwrap_or_default();
        used <= LEFT_BYTES_MAX && self.members().is_empty()
    }

    pub(crate) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    pub(crate) fn doors(&self) -> &[OwnedFd] {
        &self.doors
    }

    /// Processes in it and in groups inside it. Whoever is in one hierarchy is in all.
    pub(crate) fn members(&self) -> Vec<i32> {
        self.dirs.first().map(|dir| members_of_tree(dir)).unwrap_or_default()
    }

    /// Kills all that are in it.
    pub(crate) fn kill(&self) {
        let at_once = self.dirs.iter().any(|dir| {
            let switch = dir.join("cgroup.kill");
            switch.exists() && fs::write(switch, "1").is_ok()
        });
        if !at_once {
            for pid in self.members() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }

    /// Whether the kernel killed somebody of its present rank because its memory was used up.
    pub(crate) fn used_its_memory_up(&self) -> bool {
        self.kills().is_some_and(|now| now > self.kills_before.unwrap_or(0))
    }

    /// What the kernel counts; `None` where it does not.
    fn kills(&self) -> Option<u64> {
        let files = ["memory.events", "memory.oom_control"];
        let count = |dir: &PathBuf| {
            let text = files.iter().find_map(|file| fs::read_to_string(dir.join(file)).ok())?;
            let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
            line.parse().ok()
        };
        self.dirs.iter().find_map(count)
    }

    /// Once nobody is in it.
    pub(crate) fn remove(&self) {
        self.dirs.iter().for_each(|dir| remove_tree(dir));
    }
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
        places(mounts, own, Standing::Service).iter().map(text).collect()
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
