//! Control groups: a gang's ranks in groups of their own, which nobody leaves by making a session
//! or by cleaning its environment, and which limit memory and processes (cgroups(7)).
//!
//! Version 2 where its controllers can be had, version 1 where that is what the machine has, and
//! none where this process may make no groups: everything else works then as well.

mod own;

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use het_core::Bytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) use own::{HostRole, leave_job};
use own::{Place, Tree, Version};

/// Least limit of a group: whoever enters it stands in the supervisor's memory until its program
/// begins, and goes together with the supervisor where there is too little for that.
const MEMORY_MIN: Bytes = Bytes(16 << 20);
/// Processes and threads of a rank: far more than a program needs, fewer than a machine has.
const TASKS_MAX: u64 = 32_768;

/// Names that are tried for a group.
const NAMES_MAX: usize = 1_024;

/// What a group may still be charged for, mostly cached pages of files, to be used again.
const LEFT_BYTES_MAX: u64 = 16 << 20;

/// Groups that are kept for the next rank: making one costs more than all else at a start.
const FREE_MAX: usize = 64;

/// Files that say what a group uses and how often somebody was killed in it, of both versions.
const USED: [&str; 2] = ["memory.current", "memory.usage_in_bytes"];
const KILLS: [&str; 2] = ["memory.events", "memory.oom_control"];

/// Longer than any of them.
const GAUGE_BYTES_MAX: usize = 512;

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

/// Where an engine makes its groups, and those that nobody is in. They are called
/// `DEVICE-INODE-PID-NUMBER`, by the run directory and the process of the engine.
#[derive(Debug, Default)]
pub(crate) struct Hierarchy {
    trees: Vec<Tree>,
    /// What the names of its groups begin with.
    engine: String,
    next: u64,
    free: Vec<Group>,
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

/// What control groups this process could make. Makes some and removes them again.
pub fn control_groups() -> ControlGroupFinding {
    let probe = || {
        let places = Place::all(HostRole::Guest)?;
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

impl Hierarchy {
    /// Of an engine with this run directory; empty where it may make none.
    pub(crate) fn of(run_dir: &Path, role: HostRole) -> Self {
        let Ok(metadata) = fs::metadata(run_dir) else { return Self::default() };
        let hierarchy = Self {
            trees: Tree::all(role).unwrap_or_default(),
            engine: format!("{:x}-{:x}-", metadata.dev(), metadata.ino()),
            next: 0,
            free: Vec::new(),
        };
        // What a supervisor that died left empty; what has members is in use.
        for tree in &hierarchy.trees {
            let own = |dir: &PathBuf| {
                dir.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&hierarchy.engine))
            };
            below(&tree.dir).filter(own).for_each(|dir| remove_tree(&dir));
        }
        hierarchy
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
            let text = match memory {
                Bytes::ZERO => none.to_owned(),
                memory => memory.max(MEMORY_MIN).0.to_string(),
            };
            fs::write(dir.join(file), text)?;
        }
        Ok(())
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        self.free.iter().for_each(Group::remove);
    }
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
    gauges: Gauges,
}

/// What the kernel says of a group, in files that stay open: to look for them costs more than to
/// read them. None of a group that another supervisor made.
#[derive(Debug, Default)]
struct Gauges {
    /// Processes and threads in it and in groups inside it, and zombies that nobody has collected.
    tasks: Option<File>,
    /// Bytes it is charged for.
    used: Option<File>,
    /// How often somebody was killed because they ran out.
    kills: Option<File>,
}

impl Gauges {
    /// Opens what there is of each hierarchy.
    fn open(&mut self, dir: &Path) {
        let first = |names: &[&str]| names.iter().find_map(|name| File::open(dir.join(name)).ok());
        self.tasks = self.tasks.take().or_else(|| first(&["pids.current"]));
        self.used = self.used.take().or_else(|| first(&USED));
        self.kills = self.kills.take().or_else(|| first(&KILLS));
    }
}

/// The whole of a small file of the kernel's, as it is now.
fn read(file: &File) -> Option<String> {
    let mut text = [0; GAUGE_BYTES_MAX];
    let length = file.read_at(&mut text, 0).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

fn number(file: &File) -> Option<u64> {
    read(file)?.trim().parse().ok()
}

fn kills_in(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.parse().ok()
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
            self.gauges.open(dir);
        }
        Ok(())
    }

    /// Nobody is in it, and nothing to speak of is charged to it.
    fn is_empty(&self) -> bool {
        let used = self.gauges.used.as_ref().and_then(number).unwrap_or_default();
        used <= LEFT_BYTES_MAX && !self.has_members()
    }

    /// Whether anybody is left in it whose first process has ended and is still to be collected.
    pub(crate) fn has_members(&self) -> bool {
        match self.gauges.tasks.as_ref().and_then(number) {
            // The first process itself is counted until then.
            Some(0..=1) => false,
            _ => !self.members().is_empty(),
        }
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
        if let Some(file) = &self.gauges.kills {
            return kills_in(&read(file)?);
        }
        let read =
            |dir: &PathBuf| KILLS.iter().find_map(|file| fs::read_to_string(dir.join(file)).ok());
        kills_in(&self.dirs.iter().find_map(read)?)
    }

    /// Once nobody is in it.
    pub(crate) fn remove(&self) {
        self.dirs.iter().for_each(|dir| remove_tree(dir));
    }
}
