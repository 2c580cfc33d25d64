//! Control groups (cgroups(7)): each rank of a gang in one of its own, which processes cannot leave
//! by starting a session or clearing their environment, and which limits memory and processes.
//!
//! Version 2 where its controllers are available, version 1 where the machine uses that, and none
//! where this process may not make any; everything else works without.

mod directory;
mod group;
mod hierarchy;
mod pool;

use std::fmt;
use std::fs;
use std::io;

use hierarchy::{OwnCgroup, Version};

pub(crate) use group::Group;
pub(crate) use hierarchy::{RunMode, leave_job};
pub(crate) use pool::CgroupPool;

/// Whether an engine makes control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControlGroups {
    /// Where it may.
    #[default]
    Auto,
    Off,
}

/// What cgroups of this machine can do.
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

/// Finds what cgroups this process can make, by making some and removing them.
pub fn control_groups() -> ControlGroupFinding {
    let probe = || {
        let cgroups = OwnCgroup::all(RunMode::Embedded)?;
        for cgroup in &cgroups {
            let dir = cgroup.make("het-probe")?;
            fs::remove_dir(dir)?;
        }
        Ok::<_, io::Error>(cgroups)
    };
    match probe() {
        Ok(cgroups) => {
            let version = if cgroups[0].version == Version::One { 1 } else { 2 };
            let limits_memory = cgroups.iter().any(OwnCgroup::delegates_memory);
            ControlGroupFinding::Usable { version, limits_memory }
        }
        Err(error) => ControlGroupFinding::Unusable { why: error.to_string() },
    }
}
