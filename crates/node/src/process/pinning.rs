//! Where the threads of running processes may run.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::procfs;

/// Pins every thread of a process and of its descendants to these cores; none leaves them unpinned.
/// What begins meanwhile inherits that, and what ends needs it no more.
pub(crate) fn pin_tree(pid: i32, cores: &[u32]) {
    let mut set = CpuSet::new();
    let fits = cores.iter().all(|&core| set.set(core as usize).is_ok());
    if cores.is_empty() || !fits {
        return;
    }
    for pid in procfs::descendants(pid).into_iter().chain([pid]) {
        for (_, thread) in procfs::threads(pid) {
            let _ = sched_setaffinity(Pid::from_raw(thread), &set);
        }
    }
}
