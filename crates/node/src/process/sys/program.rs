//! What a child process is started with, and how it reports whether its program began.

use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::libc;

use crate::process::variables::Environment;

/// Length of the line in which a process notes its rank and id.
pub(crate) const NOTE_BYTES: usize = 24;
/// Most cgroup hierarchies that a child enters.
pub(super) const HIERARCHIES_MAX: usize = 4;

/// Where the process of a rank notes its id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note<'a> {
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) offset: u64,
}

/// The program of a rank. Everything is prepared, so that the child allocates nothing.
#[derive(Debug)]
pub(crate) struct Program {
    /// Absolute, or relative to `cwd`.
    pub(crate) path: CString,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Environment,
    pub(crate) cwd: CString,
    pub(crate) rank: u32,
    /// `None` leaves the process unpinned.
    pub(crate) cores: Option<libc::cpu_set_t>,
}

/// Descriptors that a child starts with.
#[derive(Debug)]
pub(crate) struct ChildFiles<'a> {
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    /// Where the child notes its id before its program begins, so that the next supervisor finds
    /// every process whose program may have begun.
    pub(crate) note: Note<'a>,
    /// `cgroup.procs` files to which the child writes `0` to enter its cgroups; at most
    /// [`HIERARCHIES_MAX`].
    pub(crate) cgroup_procs: &'a [OwnedFd],
    pub(crate) inherited: InheritedFds,
}

/// What happens to all other descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum InheritedFds {
    /// The program keeps those that are not close-on-exec.
    #[default]
    Kept,
    /// They are closed before anything can block the child: a copy of a lock would keep the next
    /// supervisor out.
    Closed,
}

/// Whether the program of a child has begun.
#[derive(Debug, Default)]
pub(crate) struct ExecStatus(pub(super) Arc<SharedStatus>);

/// Written by the kernel and the child.
#[derive(Debug, Default)]
pub(super) struct SharedStatus {
    /// Not 0 while the child shares this process's memory: the kernel writes 0 when the child has
    /// its own memory or is gone.
    pub(super) pending: AtomicI32,
    /// Error number for which the program cannot begin; 0 for none.
    pub(super) errno: AtomicI32,
}

impl ExecStatus {
    /// The program has begun, or never will.
    pub(crate) fn is_known(&self) -> bool {
        self.0.pending.load(Ordering::Acquire) == 0
    }

    /// Why the program will not begin. Final once [`Self::is_known`].
    pub(crate) fn error(&self) -> Option<io::Error> {
        match self.0.errno.load(Ordering::Acquire) {
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno)),
        }
    }
}
