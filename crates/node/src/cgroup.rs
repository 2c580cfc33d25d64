//! Control groups (cgroups(7)): each rank of a gang in one of its own, which processes cannot leave
//! by starting a session or clearing their environment, which limits memory and processes, and
//! which keeps it from accelerators that it was not granted.
//!
//! Version 2 where its controllers are available, version 1 where the machine uses that, and none
//! where this process may not make any; everything else works without.

mod device_filter;
mod devices;
mod directory;
mod group;
mod hierarchy;
mod pool;
mod user;

use std::fmt;
use std::fs;
use std::io;

use hierarchy::OwnCgroup;

pub use device_filter::DeviceNumber;
pub use devices::DeviceAccess;
pub(crate) use devices::DeviceNodes;
pub(crate) use group::Group;
pub(crate) use hierarchy::leave_job;
pub use hierarchy::{RunMode, delegate_own_cgroup};
pub(crate) use pool::{CgroupPool, RankGrant};
pub use user::UserCgroup;

/// Whether an engine makes control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControlGroups {
    /// Where it may.
    #[default]
    Auto,
    Off,
}

/// Of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// What cgroups of this machine can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlGroupFinding {
    /// Version, whether memory is limited, and whether accelerators of others cannot be opened.
    Usable {
        version: u8,
        limits_memory: bool,
        confines_devices: bool,
    },
    Unusable {
        why: String,
    },
}

impl fmt::Display for ControlGroupFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable { version, limits_memory, confines_devices } => {
                let memory = match limits_memory {
                    true => "hold jobs to their memory",
                    false => "keep jobs together, but may not limit memory",
                };
                let devices = match confines_devices {
                    true => "and to the devices they were granted",
                    false => "and cannot keep them from devices of others: variables only ask",
                };
                write!(f, "control groups (version {version}) {memory}, {devices}")
            }
            Self::Unusable { why } => write!(
                f,
                "no control groups: {why}; jobs may use more memory than they asked for, and \
                 devices of others"
            ),
        }
    }
}

/// Finds what cgroups this process can make, by making some and removing them.
pub fn control_groups() -> ControlGroupFinding {
    let probe = || {
        let cgroups = OwnCgroup::all(RunMode::Embedded)?;
        let mut usable = Vec::new();
        for cgroup in cgroups {
            match cgroup.make("het-probe").and_then(fs::remove_dir) {
                Ok(()) => usable.push(cgroup),
                // Another process that looked at the same time was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => usable.push(cgroup),
                Err(_) if cgroup.is_optional() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(usable)
    };
    match probe() {
        Ok(cgroups) => {
            let is_one = cgroups.iter().any(|cgroup| cgroup.version == Version::One);
            ControlGroupFinding::Usable {
                version: if is_one { 1 } else { 2 },
                limits_memory: cgroups.iter().any(OwnCgroup::delegates_memory),
                confines_devices: cgroups.iter().any(OwnCgroup::confines_devices),
            }
        }
        Err(error) => ControlGroupFinding::Unusable { why: error.to_string() },
    }
}
