//! Starting processes: those of ranks, as `vfork` does, and copies of this one.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::Ordering;

use nix::libc;

use super::child::{ChildArgs, child_main};
use super::program::{Program, RankFiles, Started};

/// Stack of a child before its program begins: few calls, none of them deep.
const STACK_BYTES: usize = 64 * 1024;

/// Starts a program as the leader of its own session and process group, and waits until it has
/// begun or cannot: until then its process uses the memory of this one.
///
/// # Errors
/// When there is no process.
pub(crate) fn start_program(program: &Program<'_>, files: &RankFiles<'_>) -> io::Result<Started> {
    let args = ChildArgs::new(program, files);
    let mut stack = Box::<[MaybeUninit<u8>]>::new_uninit_slice(STACK_BYTES);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child's stack grows down from an end that is aligned down to 16 bytes. It and
    // `args` live and are not touched here until the call returns, when the child has its own
    // memory or is gone. The child writes to its stack and to the atomic alone. All signals but
    // one, whose handler does nothing, are blocked in this process.
    let pid = unsafe {
        let end = stack.as_mut_ptr().add(STACK_BYTES).cast::<u8>();
        let top = end.sub(end as usize % 16).cast::<c_void>();
        libc::clone(child_main, top, flags, ptr::from_ref(&args).cast_mut().cast::<c_void>())
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    let errno = args.errno.load(Ordering::Acquire);
    Ok(Started { pid, errno: (errno != 0).then_some(errno) })
}

/// In which process a call returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forked {
    Parent { child: i32 },
    Child,
}

/// Copies this process.
///
/// # Errors
/// When there is no room for another.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: a launcher has one thread, so its copy may do all that it may. An engine that copies
    // itself has more; its copy allocates, which the C library provides for, and takes no lock.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        child => Ok(Forked::Parent { child }),
    }
}

/// In a copy of an engine: has these two as standard input and output, and no other descriptor but
/// standard error.
pub(crate) fn keep_only(input: BorrowedFd<'_>, output: BorrowedFd<'_>) {
    // SAFETY: the calls take integers and touch no memory of this process. Values that own other
    // descriptors are never used or dropped here: the copy ends by `exit_now`.
    unsafe {
        libc::dup2(output.as_raw_fd(), 1);
        libc::dup2(input.as_raw_fd(), 0);
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
    }
}

/// Ends this process at once, without what a program does at its end.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: the call does not return.
    unsafe { libc::_exit(code) }
}

/// Owns a descriptor that was received.
pub(crate) fn received(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made it for the message that names it, and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Has `SIGCHLD` interrupt waits.
pub(crate) fn interrupt_on_child() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGCHLD, &action) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;

    use super::*;
    use crate::process::sys::program::InheritedFds;

    fn check(path: &std::ffi::CStr, code: i32, kind: Option<io::ErrorKind>) {
        let null = File::options().read(true).write(true).open("/dev/null").expect("it is there");
        let program = Program {
            path,
            cwd: c"/",
            argv: vec![path, c"-c", c"exit 3"],
            env: Vec::new(),
            rank: 0,
            cores: None,
            descriptors: None,
        };
        let files = RankFiles {
            stdin: null.as_fd(),
            stdout: null.as_fd(),
            stderr: null.as_fd(),
            note: null.as_fd(),
            note_at: 0,
            cgroup_procs: &[],
            inherited: InheritedFds::Closed,
        };
        let started = start_program(&program, &files).expect("a process can be made");
        let error = started.errno.map(|errno| io::Error::from_raw_os_error(errno).kind());
        assert_eq!(error, kind);
        let ended = waitpid(Pid::from_raw(started.pid), None).expect("it is a child");
        assert_eq!(ended, WaitStatus::Exited(Pid::from_raw(started.pid), code));
    }

    #[test]
    fn a_program_begins() {
        check(c"/bin/sh", 3, None);
    }

    #[test]
    fn a_program_that_cannot_begin_reports_why() {
        check(c"/nowhere", 127, Some(io::ErrorKind::NotFound));
    }
}
