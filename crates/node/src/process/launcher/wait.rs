//! Waiting for a descriptor or a child, in processes of one thread that block all signals else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// The descriptor is ready.
    ByDescriptor,
    /// A child ended or stopped.
    ByChild,
}

/// Waits until a descriptor can be read or its other end is closed, or a child ends.
pub(super) fn wait_for(fd: &OwnedFd) -> io::Result<Woken> {
    let mut watched = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    wait(&mut watched)
}

/// Waits for any of these descriptors, or a child. That signal is let through only here, so that
/// none is missed.
pub(super) fn wait(watched: &mut [PollFd<'_>]) -> io::Result<Woken> {
    let mut mask = SigSet::all();
    mask.remove(Signal::SIGCHLD);
    match ppoll(watched, None, Some(mask)) {
        Ok(_) => Ok(Woken::ByDescriptor),
        Err(Errno::EINTR) => Ok(Woken::ByChild),
        Err(errno) => Err(errno.into()),
    }
}
