//! The two system calls that the safe libraries do not offer. The only `unsafe` of this crate.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, setsid};

/// Makes the process the leader of its own session and group, pinned to `cores` unless that is
/// empty, before the program begins.
pub(crate) fn lead_own_group(command: &mut Command, cores: &[u32]) {
    let set = cpu_set(cores);
    let prepare = move || {
        setsid()?;
        if let Some(set) = &set {
            // A core may have been taken from this machine since the topology was read: the
            // program then runs unpinned rather than not at all.
            let _ = sched_setaffinity(Pid::from_raw(0), set);
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes the async-signal-safe calls setsid(2)
    // and sched_setaffinity(2) on a set that was filled before; it allocates and locks nothing.
    unsafe { command.pre_exec(prepare) };
}

fn cpu_set(cores: &[u32]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    let fits = cores.iter().all(|&core| set.set(core as usize).is_ok());
    (fits && !cores.is_empty()).then_some(set)
}

/// A descriptor that becomes readable when the process ends, whoever its parent is.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers and touches no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor (close-on-exec) and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
