//! What the process of a rank is started with.

use std::ffi::{CStr, c_int};
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::libc;

/// Most cgroup hierarchies that a process enters.
pub(crate) const HIERARCHIES_MAX: usize = 4;

/// The program of a rank. Everything is prepared, so that its process allocates nothing.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    /// Absolute, or relative to `cwd`.
    pub(crate) path: &'a CStr,
    pub(crate) cwd: &'a CStr,
    pub(crate) argv: Vec<&'a CStr>,
    /// `NAME=VALUE` each.
    pub(crate) env: Vec<&'a CStr>,
    pub(crate) rank: u32,
    /// `None` leaves the process unpinned.
    pub(crate) cores: Option<libc::cpu_set_t>,
    /// Soft and hard limit of descriptors; `None` leaves those of the launcher.
    pub(crate) descriptors: Option<(u64, u64)>,
}

/// Descriptors that the process of a rank starts with.
#[derive(Debug)]
pub(crate) struct RankFiles<'a> {
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    /// Where the process notes its id before its program begins, so that the next supervisor finds
    /// every process whose program may have begun.
    pub(crate) note: BorrowedFd<'a>,
    /// Offset in that file.
    pub(crate) note_at: u64,
    /// `cgroup.procs` files to which the process writes `0` to enter its cgroups; at most
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
    /// They are closed before anything can block the process.
    Closed,
}

/// A process that was started, and the error number for which its program cannot begin.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: i32,
    pub(crate) errno: Option<c_int>,
}
