//! The cgroup around all that runs for one user: root makes it and decides about devices, the user
//! makes those of ranks inside.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};

use super::Version;
use super::devices::{Denied, DeviceAccess, may_filter};
use super::directory::{PROCS, children, members_of_tree};
use super::hierarchy::{OwnCgroup, RunMode, SUPERVISOR, user_group};

/// What a user has to write to for cgroups inside, besides the directory itself (cgroups(7)).
const DELEGATED: [&str; 4] = [PROCS, "tasks", "cgroup.subtree_control", "cgroup.threads"];

/// Most tasks of a user, and the part of the machine's that this may be.
const TASKS_MAX: u64 = 65_536;
const TASKS_PART: u64 = 4;
const PID_MAX: &str = "/proc/sys/kernel/pid_max";

/// The cgroup of a user in each hierarchy, with all that runs for the user.
#[derive(Debug, Default)]
pub struct UserCgroup {
    dirs: Vec<UserDir>,
}

#[derive(Debug)]
struct UserDir {
    path: PathBuf,
    version: Version,
    devices: bool,
    denied: Denied,
}

impl UserCgroup {
    /// Makes it beside what the caller is in, or takes the one that is there. It is nowhere where
    /// this process may make none.
    pub fn make(user: &User) -> Self {
        let cgroups = OwnCgroup::all(RunMode::Service).unwrap_or_default();
        let made = cgroups.iter().filter_map(|own| {
            let hierarchy = own.create(&user_group(user.uid), RunMode::Service).ok()?;
            let (path, version) = (hierarchy.dir, hierarchy.version);
            delegate(&path, version, user).ok()?;
            if hierarchy.pids {
                // The file stays root's: the user leaves some of the machine's tasks to others.
                let _ = fs::write(path.join("pids.max"), tasks_max().to_string());
            }
            let devices = match version {
                Version::One => hierarchy.devices,
                Version::Two => may_filter(),
            };
            Some(UserDir { path, version, devices, denied: Denied::UNKNOWN })
        });
        Self { dirs: made.collect() }
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// When the kernel refuses, or the process is gone.
    pub fn take(&self, process: u32) -> io::Result<()> {
        self.dirs.iter().try_for_each(|dir| {
            let entered = match dir.version {
                Version::One => dir.path.clone(),
                // It could have no cgroups inside otherwise.
                Version::Two => dir.path.join(SUPERVISOR),
            };
            fs::write(entered.join(PROCS), process.to_string())
        })
    }

    /// Decides which device nodes what is in it may open, where the machine has a way to.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_access(&mut self, access: &DeviceAccess) -> io::Result<()> {
        self.dirs
            .iter_mut()
            .filter(|dir| dir.devices)
            .try_for_each(|dir| dir.denied.set(dir.version, &dir.path, access.clone()))
    }

    pub(crate) fn members(&self) -> Vec<i32> {
        self.dirs.iter().flat_map(|dir| members_of_tree(&dir.path)).collect()
    }

    /// Kills what is in it.
    pub(crate) fn kill(&self) {
        for dir in &self.dirs {
            // Of version 2 and a new kernel; at once, whatever forks.
            if fs::write(dir.path.join("cgroup.kill"), "1").is_err() {
                for process in members_of_tree(&dir.path) {
                    let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
                }
            }
        }
    }
}

fn tasks_max() -> u64 {
    let of_machine = fs::read_to_string(PID_MAX).ok().and_then(|text| text.trim().parse().ok());
    of_machine.map_or(TASKS_MAX, |all: u64| TASKS_MAX.min(all / TASKS_PART))
}

/// Gives a cgroup to a user, as far as one may be given.
fn delegate(dir: &Path, version: Version, user: &User) -> io::Result<()> {
    let (uid, gid) = (Some(user.uid.as_raw()), Some(user.gid.as_raw()));
    if version == Version::Two {
        let leaf = dir.join(SUPERVISOR);
        match fs::create_dir(&leaf) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    let leaf = children(dir).filter(|inside| inside.ends_with(SUPERVISOR));
    for dir in leaf.chain([dir.to_owned()]) {
        chown(&dir, uid, gid)?;
        for file in DELEGATED {
            match chown(dir.join(file), uid, gid) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}
