//! The cgroup of one rank.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use het_core::Bytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::devices::Denied;
use super::directory::{PROCS, members_of_tree, remove_tree};

/// Most memory, mostly page cache, that a cgroup may still be charged for to be reused.
const LEFT_BYTES_MAX: u64 = 16 << 20;

/// Files with the memory use and the number of OOM kills of a cgroup, of both versions.
const USED: [&str; 2] = ["memory.current", "memory.usage_in_bytes"];
const KILLS: [&str; 2] = ["memory.events", "memory.oom_control"];

/// Longer than any of them.
const COUNTER_BYTES_MAX: usize = 512;

/// The cgroup of one rank.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its directory in each hierarchy.
    dirs: Vec<PathBuf>,
    /// Open `cgroup.procs` files; none of a cgroup that another supervisor made.
    procs: Vec<OwnedFd>,
    /// Its limit, zero for none; unknown of one that another supervisor made.
    pub(super) memory: Option<Bytes>,
    /// Device nodes that its processes may not open.
    pub(super) denied: Denied,
    /// OOM kills that the kernel had counted when its present rank began.
    kills_before: Option<u64>,
    counters: Counters,
}

/// Files of the kernel's counters that stay open: opening costs more than reading. None of a cgroup
/// that another supervisor made.
#[derive(Debug, Default)]
struct Counters {
    /// Processes and threads in it and in cgroups inside it, with uncollected zombies.
    tasks: Option<File>,
    /// Bytes it is charged for.
    used: Option<File>,
    /// OOM kills.
    kills: Option<File>,
}

impl Counters {
    /// Opens the counters that this hierarchy has.
    fn open(&mut self, dir: &Path) {
        let first = |names: &[&str]| names.iter().find_map(|name| File::open(dir.join(name)).ok());
        self.tasks = self.tasks.take().or_else(|| first(&["pids.current"]));
        self.used = self.used.take().or_else(|| first(&USED));
        self.kills = self.kills.take().or_else(|| first(&KILLS));
    }
}

/// Current contents of a small kernel file.
fn read(file: &File) -> Option<String> {
    let mut text = [0; COUNTER_BYTES_MAX];
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
    /// An empty one without limits.
    pub(super) fn new() -> Self {
        Self {
            dirs: Vec::new(),
            procs: Vec::new(),
            memory: Some(Bytes::ZERO),
            denied: Denied::NOTHING,
            kills_before: None,
            counters: Counters::default(),
        }
    }

    /// One that another supervisor made, by its recorded directories. If any is gone, so is the
    /// cgroup.
    pub(crate) fn recorded(dirs: Vec<PathBuf>) -> Self {
        let there = dirs.iter().all(|dir| dir.exists());
        let group = Self {
            dirs: if there { dirs } else { Vec::new() },
            memory: None,
            denied: Denied::UNKNOWN,
            ..Self::new()
        };
        Self { kills_before: group.kills(), ..group }
    }

    /// Adds its directory in one more hierarchy.
    pub(super) fn add(&mut self, dir: PathBuf) {
        self.dirs.push(dir);
    }

    /// Opens the files of the directory that was added last.
    pub(super) fn open_last(&mut self) -> io::Result<()> {
        if let Some(dir) = self.dirs.last() {
            let procs = OpenOptions::new().write(true).open(dir.join(PROCS))?;
            self.procs.push(procs.into());
            self.counters.open(dir);
        }
        Ok(())
    }

    /// Another rank begins in it.
    pub(super) fn begin_rank(&mut self) {
        self.kills_before = self.kills();
    }

    /// It has no processes and hardly any memory is charged to it.
    pub(super) fn is_reusable(&self) -> bool {
        let used = self.counters.used.as_ref().and_then(number).unwrap_or_default();
        used <= LEFT_BYTES_MAX && !self.has_members()
    }

    /// Whether processes are left in it whose first one has ended and is not collected yet.
    pub(crate) fn has_members(&self) -> bool {
        match self.counters.tasks.as_ref().and_then(number) {
            // The first process itself counts until it is collected.
            Some(0..=1) => false,
            _ => !self.members().is_empty(),
        }
    }

    pub(crate) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Open `cgroup.procs` files: a process that writes `0` to all of them enters.
    pub(crate) fn procs(&self) -> &[OwnedFd] {
        &self.procs
    }

    /// Processes in it and in cgroups inside it. A process is in all hierarchies or none.
    pub(crate) fn members(&self) -> Vec<i32> {
        self.dirs.first().map(|dir| members_of_tree(dir)).unwrap_or_default()
    }

    /// Kills all processes in it.
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

    /// Whether the kernel killed a process of its present rank because the limit was reached.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        self.kills().is_some_and(|now| now > self.kills_before.unwrap_or(0))
    }

    /// OOM kills so far; `None` where the kernel does not count.
    fn kills(&self) -> Option<u64> {
        if let Some(file) = &self.counters.kills {
            return kills_in(&read(file)?);
        }
        let read =
            |dir: &PathBuf| KILLS.iter().find_map(|file| fs::read_to_string(dir.join(file)).ok());
        kills_in(&self.dirs.iter().find_map(read)?)
    }

    /// Removes it, once it has no processes.
    pub(crate) fn remove(&self) {
        self.dirs.iter().for_each(|dir| remove_tree(dir));
    }
}
