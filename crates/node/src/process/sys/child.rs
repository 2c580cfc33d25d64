//! What a child does between `clone` and `execve`, on memory that its parent prepared.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::libc;
use syscalls::{Sysno, raw_syscall};

use super::program::{HIERARCHIES_MAX, InheritedFds, Program, RankFiles};
use crate::process::slots::SLOT_BYTES;

/// Signals with a number that every Linux has (signal(7)).
const SIGNALS: std::ops::RangeInclusive<usize> = 1..=31;
/// Bytes of the kernel's set of signals.
const SIGNALS_BYTES: usize = 8;
/// Words of the kernel's `struct sigaction`, on the machine where it is longest.
const SIGACTION_WORDS: usize = 8;
/// Runs a file that is no binary and has no `#!` as a script.
const SHELL: &CStr = c"/bin/sh";
/// Exit code of a child whose program cannot be run.
const EXIT_NOT_EXECUTED: c_int = 127;

/// Arguments of [`child_main`], as system calls take them.
#[derive(Debug)]
pub(super) struct ChildArgs<'a> {
    path: usize,
    cwd: usize,
    /// Addresses with a 0 at the end.
    argv: Vec<usize>,
    /// The same as a script of [`SHELL`].
    shell_argv: Vec<usize>,
    env: Vec<usize>,
    stdin: RawFd,
    stdout: RawFd,
    stderr: RawFd,
    note: RawFd,
    note_at: u64,
    /// -1 where there is none.
    cgroup_procs: [RawFd; HIERARCHIES_MAX],
    inherited: InheritedFds,
    rank: u32,
    /// 0 for none.
    cores: usize,
    /// None leaves those of this process.
    descriptors: Option<[u64; 2]>,
    /// Why the program cannot begin; 0 once it has.
    pub(super) errno: AtomicI32,
    /// All addresses lead to what this owns or borrows.
    _program: &'a Program<'a>,
}

impl<'a> ChildArgs<'a> {
    pub(super) fn new(program: &'a Program<'a>, files: &RankFiles<'_>) -> Self {
        let arguments = program.argv.iter().skip(1).copied();
        let mut cgroup_procs = [-1; HIERARCHIES_MAX];
        for (procs, fd) in cgroup_procs.iter_mut().zip(files.cgroup_procs) {
            *procs = fd.as_raw_fd();
        }
        Self {
            path: address(program.path),
            cwd: address(program.cwd),
            argv: addresses(program.argv.iter().copied()),
            shell_argv: addresses([SHELL, program.path].into_iter().chain(arguments)),
            env: addresses(program.env.iter().copied()),
            stdin: files.stdin.as_raw_fd(),
            stdout: files.stdout.as_raw_fd(),
            stderr: files.stderr.as_raw_fd(),
            note: files.note.as_raw_fd(),
            note_at: files.note_at,
            cgroup_procs,
            inherited: files.inherited,
            rank: program.rank,
            cores: program.cores.as_ref().map_or(0, |cores| ptr::from_ref(cores) as usize),
            descriptors: program.descriptors.map(|(soft, hard)| [soft, hard]),
            errno: AtomicI32::new(0),
            _program: program,
        }
    }
}

fn address(text: &CStr) -> usize {
    text.as_ptr() as usize
}

fn addresses<'a>(texts: impl Iterator<Item = &'a CStr>) -> Vec<usize> {
    texts.map(address).chain([0]).collect()
}

/// Entry point of the child. It makes system calls only, on prepared memory, and none through the C
/// library, whose state is its parent's.
pub(super) extern "C" fn child_main(args: *mut c_void) -> c_int {
    // SAFETY: `start_program` passes arguments that live and do not change while this runs; every
    // address in them leads to prepared, terminated data that lives as long.
    unsafe {
        let args = &*args.cast::<ChildArgs<'_>>();
        let errno = exec(args);
        args.errno.store(errno, Ordering::Release);
        loop {
            raw_syscall!(Sysno::exit_group, EXIT_NOT_EXECUTED);
        }
    }
}

/// Becomes the program; gives the error number of what failed.
///
/// # Safety
/// Only in a child, on arguments of the memory that it runs in.
unsafe fn exec(args: &ChildArgs<'_>) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        // The id comes first, so that nothing can block it.
        if let Some(errno) = failed(raw_syscall!(Sysno::setsid)) {
            return errno;
        }
        let line = note(args.rank, raw_syscall!(Sysno::getpid) as u32);
        let (line, at) = (line.as_ptr(), args.note_at);
        let noted = raw_syscall!(Sysno::pwrite64, args.note, line, SLOT_BYTES, at);
        if let Some(errno) = failed(noted) {
            return errno;
        }
        for procs in args.cgroup_procs.into_iter().filter(|procs| *procs >= 0) {
            // Before the program begins, so that nothing of it is outside. A cgroup that cannot be
            // entered does not keep the program from running.
            raw_syscall!(Sysno::write, procs, address(c"0"), 1);
        }
        if args.cores != 0 {
            // A core may have gone offline since the topology was read: the program then runs
            // unpinned rather than not at all.
            let size = size_of::<libc::cpu_set_t>();
            raw_syscall!(Sysno::sched_setaffinity, 0, size, args.cores);
        }
        if let Some(limits) = &args.descriptors {
            // The kernel's `struct rlimit64` is two numbers.
            raw_syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NOFILE, limits.as_ptr(), 0);
        }
        for (from, to) in [(args.stdin, 0), (args.stdout, 1), (args.stderr, 2)] {
            if let Some(errno) = failed(raw_syscall!(Sysno::dup3, from, to, 0)) {
                return errno;
            }
        }
        if args.inherited == InheritedFds::Closed {
            // Linux before 5.9 lacks the call, and closes them when the program begins.
            raw_syscall!(Sysno::close_range, 3, u32::MAX, 0);
        }
        if let Some(errno) = failed(raw_syscall!(Sysno::chdir, args.cwd)) {
            return errno;
        }
        // All zeros are the default action, and the empty set.
        let zeros = [0usize; SIGACTION_WORDS];
        let zeros = zeros.as_ptr();
        for signal in SIGNALS {
            raw_syscall!(Sysno::rt_sigaction, signal, zeros, 0, SIGNALS_BYTES);
        }
        raw_syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, zeros, 0, SIGNALS_BYTES);
        let (argv, env) = (args.argv.as_ptr(), args.env.as_ptr());
        let mut failure = raw_syscall!(Sysno::execve, args.path, argv, env);
        if failed(failure) == Some(libc::ENOEXEC) {
            let argv = args.shell_argv.as_ptr();
            failure = raw_syscall!(Sysno::execve, address(SHELL), argv, env);
        }
        failed(failure).unwrap_or(libc::EINVAL)
    }
}

/// The error number in what a system call returned.
fn failed(returned: usize) -> Option<c_int> {
    let value = returned as isize;
    (-4_095..0).contains(&value).then_some(-value as c_int)
}

/// `RANK PID`, blanks, and an end of line.
fn note(rank: u32, pid: u32) -> [u8; SLOT_BYTES] {
    let mut line = [b' '; SLOT_BYTES];
    line[SLOT_BYTES - 1] = b'\n';
    let mut at = 0;
    for number in [rank, pid] {
        let mut divisor = 1_000_000_000;
        while divisor > 1 && number < divisor {
            divisor /= 10;
        }
        while divisor > 0 {
            line[at] = b'0' + (number / divisor % 10) as u8;
            divisor /= 10;
            at += 1;
        }
        at += 1;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_rank_and_pid() {
        let texts = [
            (0, 7, "0 7                    \n"),
            (12, 4_194_304, "12 4194304             \n"),
            (u32::MAX, u32::MAX, "4294967295 4294967295  \n"),
        ];
        for (rank, pid, text) in texts {
            assert_eq!(std::str::from_utf8(&note(rank, pid)), Ok(text));
        }
    }
}
