//! System calls that safe libraries do not offer. The only `unsafe` of this crate.

mod child;
mod program;
mod start;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use het_core::Millis;
use nix::libc;
use nix::sys::signal::Signal;

use crate::process::exit::Exit;

pub(crate) use program::{HIERARCHIES_MAX, InheritedFds, Program, RankFiles};
pub(crate) use start::{
    Forked, exit_now, fork, interrupt_on_child, keep_only, received, start_program,
};

/// Descriptor limit of programs that are started from here, where this process raised its own.
static DESCRIPTORS_BEFORE: OnceLock<libc::rlimit> = OnceLock::new();

/// Raises this process's descriptor limit to the hard limit. Programs that it starts keep the old
/// one: some close every number below the limit, or call select(2) on it.
pub fn raise_descriptor_limit() {
    // SAFETY: plain data for which all zeros is a value; the calls read and write one of it.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            // Where it cannot be raised the old limit applies.
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
                let _ = DESCRIPTORS_BEFORE.set(limit);
            }
        }
    }
}

/// Soft and hard limit of descriptors before this process raised its own; `None` where it did not.
pub(crate) fn descriptor_limit() -> Option<(u64, u64)> {
    DESCRIPTORS_BEFORE.get().map(|limit| (limit.rlim_cur, limit.rlim_max))
}

/// Names this process as `ps` shows it; longer than 15 bytes is cut.
pub fn name_process(name: &std::ffi::CStr) {
    // SAFETY: the kernel reads the name up to its end.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
    }
}

/// Keeps the memory of this process from core dumps, and from other processes of its user that are
/// not privileged. Programs that it starts are dumped as their limit says.
pub fn forbid_core_dumps() {
    // SAFETY: the call takes integers and touches no memory of this process. It fails for no value
    // of 0.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// A set of cores in the kernel's form; `None` for none, or where a number is too high.
pub(crate) fn cpu_set(cores: &[u32]) -> Option<libc::cpu_set_t> {
    let fits = cores.iter().all(|&core| core < libc::CPU_SETSIZE as u32);
    if cores.is_empty() || !fits {
        return None;
    }
    // SAFETY: a set of cores is plain data, all zeros is the empty set, and every number fits.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core as usize, &mut set));
        Some(set)
    }
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

/// How a child ended, and the processor time of it and of the children that it collected; `None`
/// while it runs. It stays a zombie.
///
/// # Errors
/// When it is not a child of this process.
pub(crate) fn exit_status(pid: i32) -> io::Result<Option<(Exit, Millis)>> {
    // SAFETY: both are plain data for which all zeros is a value.
    let (mut info, mut used): (libc::siginfo_t, libc::rusage) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel writes one `siginfo_t` and one `rusage` to where these pointers lead.
    let result = unsafe {
        let (info, used) = (ptr::from_mut(&mut info), ptr::from_mut(&mut used));
        libc::syscall(libc::SYS_waitid, libc::P_PID, pid, info, options, used)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: after a successful waitid(2) the fields of a child's end are what is there.
    let (ended, status) = unsafe { (info.si_pid() != 0, info.si_status()) };
    let millis = |time: libc::timeval| (time.tv_sec * 1_000 + time.tv_usec / 1_000) as u64;
    let time = Millis(millis(used.ru_utime) + millis(used.ru_stime));
    let exit = match (info.si_code, Signal::try_from(status)) {
        (libc::CLD_EXITED, _) => Exit::Code(status),
        (_, Ok(signal)) => Exit::Signal(signal),
        (_, Err(_)) => Exit::Unknown,
    };
    Ok(ended.then_some((exit, time)))
}

/// From now on, descendants whose parent ends become children of this process.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: the call takes integers and touches no memory of this process.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
