//! The cgroups of one engine: it makes them and reuses those without processes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use het_core::{Bytes, Name};

use super::Version;
use super::devices::DeviceNodes;
use super::directory::{children, remove_tree};
use super::group::Group;
use super::hierarchy::{Hierarchy, RunMode};

/// Least memory limit: a child that enters a cgroup shares the supervisor's memory until its
/// program begins, and an OOM kill then would end the supervisor too.
const MEMORY_MIN: Bytes = Bytes(16 << 20);
/// Processes and threads of a rank: far more than a program needs, fewer than a machine has.
const TASKS_MAX: u64 = 32_768;

/// Names that are tried for a cgroup.
const NAMES_MAX: usize = 1_024;

/// Cgroups that are kept for the next rank: making one is the most expensive part of a start.
const FREE_MAX: usize = 64;

/// Where an engine makes its cgroups, and those that are free. Their names are
/// `DEVICE-INODE-PID-NUMBER`, by the run directory and the process of the engine.
#[derive(Debug, Default)]
pub(crate) struct CgroupPool {
    hierarchies: Vec<Hierarchy>,
    /// Prefix of the names of its cgroups.
    engine: String,
    next: u64,
    free: Vec<Group>,
    /// Those that ranks are kept from unless they were granted their devices.
    device_nodes: DeviceNodes,
}

/// What one rank is granted.
#[derive(Debug)]
pub(crate) struct RankGrant<'a> {
    /// Zero for no limit.
    pub(crate) memory: Bytes,
    pub(crate) devices: Vec<&'a Name>,
}

impl CgroupPool {
    pub(crate) fn device_nodes(&self) -> &DeviceNodes {
        &self.device_nodes
    }

    /// The pool of an engine with this run directory; empty where it may make no cgroups.
    pub(crate) fn new(run_dir: &Path, mode: RunMode, device_nodes: DeviceNodes) -> Self {
        let Ok(metadata) = fs::metadata(run_dir) else { return Self::default() };
        let mut hierarchies = Hierarchy::all(mode).unwrap_or_default();
        if device_nodes.is_empty() {
            // One cgroup less to make and to enter for each rank.
            hierarchies.retain(|of| of.version == Version::Two || of.memory || of.pids);
            hierarchies.iter_mut().for_each(|of| of.devices = false);
        }
        let pool = Self {
            hierarchies,
            engine: format!("{:x}-{:x}-", metadata.dev(), metadata.ino()),
            next: 0,
            free: Vec::new(),
            device_nodes,
        };
        // Empty ones of a supervisor that died. Those with processes are in use.
        for hierarchy in &pool.hierarchies {
            let own = |dir: &PathBuf| {
                dir.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&pool.engine))
            };
            children(&hierarchy.dir).filter(own).for_each(|dir| remove_tree(&dir));
        }
        pool
    }

    /// A cgroup for each rank of a gang; empty where they cannot be made.
    pub(crate) fn take(&mut self, ranks: &[RankGrant<'_>]) -> Vec<Group> {
        let mut taken = Vec::new();
        if self.hierarchies.is_empty() {
            return taken;
        }
        for rank in ranks {
            match self.take_one(rank) {
                Ok(group) => taken.push(group),
                Err(_) => {
                    taken.into_iter().for_each(|group| self.put_back(group));
                    return Vec::new();
                }
            }
        }
        taken
    }

    fn take_one(&mut self, rank: &RankGrant<'_>) -> io::Result<Group> {
        let mut group = match self.free.pop() {
            Some(group) => group,
            None => self.create()?,
        };
        let memory = rank.memory;
        let limited = match group.memory == Some(memory) {
            true => Ok(()),
            false => self.limit(&group, memory),
        };
        if let Err(error) = limited.and_then(|()| self.confine(&mut group, &rank.devices)) {
            group.remove();
            return Err(error);
        }
        group.memory = Some(memory);
        group.begin_rank();
        Ok(group)
    }

    /// Opens a cgroup to what its rank is granted now.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn allow(&self, group: &mut Group, rank: &RankGrant<'_>) -> io::Result<()> {
        self.confine(group, &rank.devices)
    }

    /// Takes back a cgroup without processes. One that an earlier supervisor made, or that is still
    /// charged for memory of its rank, is not reused.
    pub(crate) fn put_back(&mut self, group: Group) {
        let clean = group.memory.is_some() && group.is_reusable();
        if clean && self.free.len() < FREE_MAX {
            self.free.push(group);
        } else {
            group.remove();
        }
    }

    fn create(&mut self) -> io::Result<Group> {
        for _ in 0..NAMES_MAX {
            let name = format!("{}{}-{}", self.engine, std::process::id(), self.next);
            self.next += 1;
            match self.make(&name) {
                // Of an earlier engine in the same process, or with the same id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn make(&self, name: &str) -> io::Result<Group> {
        let mut group = Group::new();
        for hierarchy in &self.hierarchies {
            let dir = hierarchy.dir.join(name);
            if let Err(error) = fs::create_dir(&dir) {
                group.remove();
                return Err(error);
            }
            group.add(dir.clone());
            let limited = match hierarchy.pids {
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

    /// Keeps it from devices that were not granted.
    fn confine(&self, group: &mut Group, granted: &[&Name]) -> io::Result<()> {
        let Some(at) = self.hierarchies.iter().position(|hierarchy| hierarchy.devices) else {
            return Ok(());
        };
        let dir = group.dirs()[at].clone();
        group.denied.set(self.hierarchies[at].version, &dir, self.device_nodes.access_of(granted))
    }

    fn limit(&self, group: &Group, memory: Bytes) -> io::Result<()> {
        let dirs = self.hierarchies.iter().zip(group.dirs());
        for (hierarchy, dir) in dirs.filter(|(hierarchy, _)| hierarchy.memory) {
            let (file, none) = match hierarchy.version {
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

impl Drop for CgroupPool {
    fn drop(&mut self) {
        self.free.iter().for_each(Group::remove);
    }
}
