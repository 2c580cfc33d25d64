//! Starting programs without waiting until they have begun.
//!
//! A child shares this process's memory until it has its own, as after `vfork`, so that a start
//! costs the same however large the supervisor is. Unlike there, the supervisor goes on meanwhile:
//! to load a program takes several times as long as to start a child. What the child needs until
//! then lies in a [`ChildSetup`], which the kernel says is free again.

use std::ffi::{CStr, CString, c_int, c_void};
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SIGKILL, SigSet, SigmaskHow, kill, pthread_sigmask};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use syscalls::{Sysno, raw_syscall};

use super::DESCRIPTORS_BEFORE;
use crate::process::variables::Environment;
use crate::recovery::record_file::{NOTE_BYTES, Note};

/// Stack of a child before its program begins: it calls little and nothing deep.
const STACK_BYTES: usize = 64 * 1024;
/// Free setups that are kept.
const SPARE_MAX: usize = 16;
/// Between two looks at whether a child has left its setup.
const PAUSE: Duration = Duration::from_micros(200);
/// Hierarchies of control groups that a child enters.
const DOORS_MAX: usize = 4;
/// Signals with a number that every Linux has (signal(7)).
const SIGNALS: std::ops::RangeInclusive<usize> = 1..=31;
/// Bytes of the kernel's set of signals.
const SIGNALS_BYTES: usize = 8;
/// Words of the kernel's `struct sigaction`, on the machine where it is longest.
const SIGACTION_WORDS: usize = 8;
/// Takes a file that is no binary and has no `#!` for a script.
const SHELL: &CStr = c"/bin/sh";
/// How a child exits whose program cannot be run.
const EXIT_UNBORN: c_int = 127;

/// What a rank is started with; everything is prepared, so that the child allocates nothing.
#[derive(Debug)]
pub(crate) struct Image {
    /// Absolute, or relative to `cwd`.
    pub(crate) program: CString,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Environment,
    pub(crate) cwd: CString,
    pub(crate) rank: u32,
    /// Not pinned where there is none.
    pub(crate) cores: Option<libc::cpu_set_t>,
}

/// Descriptors that a child begins with.
#[derive(Debug)]
pub(crate) struct Streams<'a> {
    pub(crate) input: BorrowedFd<'a>,
    /// Standard output and error.
    pub(crate) log: BorrowedFd<'a>,
    /// Where the child notes who it is before its program begins: whoever comes after a supervisor
    /// that died finds every process whose program may have begun.
    pub(crate) note: Note<'a>,
    /// Files that the child writes `0` to, to enter its control groups; at most [`DOORS_MAX`].
    pub(crate) doors: &'a [OwnedFd],
    pub(crate) others: Others,
}

/// What becomes of descriptors that are none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Others {
    /// Its program has those that this process was given for it.
    #[default]
    PassedOn,
    /// None is left before anything can hold the child up: a copy of a lock would keep the next
    /// supervisor out.
    Closed,
}

/// A process that has just been started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: i32,
    /// Readable when it ends.
    pub(crate) pidfd: OwnedFd,
    pub(crate) exec_status: ExecStatus,
}

/// What becomes of a start, as far as is known.
#[derive(Debug, Default)]
pub(crate) struct ExecStatus(Arc<Fate>);

/// What the kernel and the child write.
#[derive(Debug, Default)]
struct Fate {
    /// Not 0 while the child uses its setup: the kernel writes 0 when the child has its own
    /// memory or is gone.
    starting: AtomicI32,
    /// Number of the error for which the program cannot begin.
    errno: AtomicI32,
}

impl ExecStatus {
    /// The program has begun, or never will.
    pub(crate) fn is_over(&self) -> bool {
        self.0.starting.load(Ordering::Acquire) == 0
    }

    /// Why the program will not begin; known once it is over.
    pub(crate) fn error(&self) -> Option<io::Error> {
        match self.0.errno.load(Ordering::Acquire) {
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Where children stand before their programs begin.
#[derive(Debug, Default)]
pub(crate) struct Spawner(Vec<Arc<ChildSetup>>);

impl Spawner {
    /// Starts a program as the leader of its own session and group.
    ///
    /// # Errors
    /// When there is no process. Whether its program began is told by [`Started::exec_status`].
    pub(crate) fn start(&mut self, image: Image, streams: &Streams<'_>) -> io::Result<Started> {
        let free = self.0.iter().position(|child_setup| child_setup.is_free());
        let mut child_setup = free.map(|index| self.0.swap_remove(index)).unwrap_or_default();
        if self.0.len() > SPARE_MAX {
            self.0.retain(|child_setup| !child_setup.is_free());
        }
        let exec_status = ExecStatus::default();
        let own = Arc::get_mut(&mut child_setup).expect("nobody else has it");
        own.words.lay(image, streams, &exec_status);
        let started = own.start(exec_status);
        self.0.push(child_setup);
        started
    }

    /// Waits until every child has its own memory or is gone, or until the limit.
    pub(crate) fn wait(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.0.iter().all(|child_setup| child_setup.is_free()) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        for child_setup in self.0.drain(..).filter(|child_setup| !child_setup.is_free()) {
            // A child stands in it still.
            mem::forget(child_setup);
        }
    }
}

/// What one child needs until it has its own memory.
#[derive(Debug)]
struct ChildSetup {
    stack: Box<[MaybeUninit<u8>]>,
    words: Words,
}

impl Default for ChildSetup {
    fn default() -> Self {
        let stack = Box::new_uninit_slice(STACK_BYTES);
        Self { stack, words: Words::default() }
    }
}

impl ChildSetup {
    fn is_free(&self) -> bool {
        self.words.exec_status.is_over()
    }

    /// Starts the child whose words lie there. Nobody else may be in it.
    fn start(&mut self, exec_status: ExecStatus) -> io::Result<Started> {
        // A handler of this process must not run in the child, on memory that both share.
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        let starting = &exec_status.0.starting;
        starting.store(1, Ordering::Release);
        let mut pidfd: c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
        // SAFETY: the child's stack grows down from an end that is aligned down to 16 bytes. It and
        // `words` belong to this setup, which `Spawner` neither changes nor frees before the
        // kernel has cleared `starting`, when the child has its own memory or is gone; `words` keep
        // the status as long. The child writes to its stack and to the atomics of its status alone,
        // the kernel to `starting`, and to `pidfd` before the call returns.
        let pid = unsafe {
            let end = self.stack.as_mut_ptr().add(STACK_BYTES);
            let top = end.sub(end as usize % 16).cast::<c_void>();
            let words = ptr::from_ref(&self.words).cast_mut().cast::<c_void>();
            let (pidfd, no_tls) = (ptr::from_mut(&mut pidfd), ptr::null_mut::<c_void>());
            libc::clone(be_born, top, flags, words, pidfd, no_tls, starting.as_ptr())
        };
        let failed = io::Error::last_os_error();
        if pid < 0 {
            starting.store(0, Ordering::Release);
        }
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        if pid < 0 {
            return Err(failed);
        }
        if pidfd < 0 {
            // Linux before 5.2 knows no such flag.
            let pid = Pid::from_raw(pid);
            let _ = kill(pid, SIGKILL).and_then(|()| waitpid(pid, None));
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the kernel has just made this descriptor (close-on-exec), nobody else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok(Started { pid, pidfd, exec_status })
    }
}

/// What a child reads, as the system's calls take it; and what owns all that the addresses lead to.
#[derive(Debug, Default)]
struct Words {
    program: usize,
    cwd: usize,
    /// Addresses with a 0 at the end.
    argv: Vec<usize>,
    /// The same as a script of [`SHELL`].
    shell_argv: Vec<usize>,
    env: Vec<usize>,
    input: RawFd,
    log: RawFd,
    note: RawFd,
    note_at: u64,
    /// -1 where there is none.
    doors: [RawFd; DOORS_MAX],
    others: Others,
    rank: u32,
    /// 0 for none.
    cores: usize,
    /// As they were before this process took more; 0 where it did not.
    descriptors: usize,
    exec_status: ExecStatus,
    image: Option<Box<Image>>,
}

impl Words {
    fn lay(&mut self, image: Image, streams: &Streams<'_>, exec_status: &ExecStatus) {
        let image = Box::new(image);
        refill(&mut self.argv, image.argv.iter().map(CString::as_c_str));
        let arguments = image.argv.iter().skip(1).map(CString::as_c_str);
        refill(&mut self.shell_argv, [SHELL, &image.program].into_iter().chain(arguments));
        refill(&mut self.env, image.env.pairs());
        self.program = address(&image.program);
        self.cwd = address(&image.cwd);
        (self.input, self.log) = (streams.input.as_raw_fd(), streams.log.as_raw_fd());
        (self.note, self.note_at) = (streams.note.file.as_raw_fd(), streams.note.offset);
        self.doors = [-1; DOORS_MAX];
        for (door, fd) in self.doors.iter_mut().zip(streams.doors) {
            *door = fd.as_raw_fd();
        }
        self.others = streams.others;
        self.rank = image.rank;
        self.cores = image.cores.as_ref().map_or(0, |cores| ptr::from_ref(cores) as usize);
        let descriptors = DESCRIPTORS_BEFORE.get();
        self.descriptors = descriptors.map_or(0, |limit| ptr::from_ref(limit) as usize);
        self.exec_status = ExecStatus(Arc::clone(&exec_status.0));
        self.image = Some(image);
    }
}

fn address(text: &CStr) -> usize {
    text.as_ptr() as usize
}

fn refill<'a>(addresses: &mut Vec<usize>, texts: impl Iterator<Item = &'a CStr>) {
    addresses.clear();
    addresses.extend(texts.map(address).chain([0]));
}

/// What the child does before its program. System calls only, on memory that was prepared, and none
/// of the C library's: these leave their errors where the supervisor, which goes on meanwhile, has
/// its own.
extern "C" fn be_born(words: *mut c_void) -> c_int {
    // SAFETY: `ChildSetup::start` passes words that live and do not change while this runs; every
    // address in them leads to prepared, terminated data that lives as long.
    unsafe {
        let words = &*words.cast::<Words>();
        let errno = begin(words);
        words.exec_status.0.errno.store(errno, Ordering::Release);
        loop {
            raw_syscall!(Sysno::exit_group, EXIT_UNBORN);
        }
    }
}

/// Becomes the program; gives the error number of what failed.
///
/// # Safety
/// Only in a child, on words of the setup that it uses.
unsafe fn begin(words: &Words) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        // First of all who it is, so that nothing can hold that up.
        if let Some(errno) = failed(raw_syscall!(Sysno::setsid)) {
            return errno;
        }
        let line = note(words.rank, raw_syscall!(Sysno::getpid) as u32);
        let (line, at) = (line.as_ptr(), words.note_at);
        let noted = raw_syscall!(Sysno::pwrite64, words.note, line, NOTE_BYTES, at);
        if let Some(errno) = failed(noted) {
            return errno;
        }
        for door in words.doors.into_iter().filter(|door| *door >= 0) {
            // Before its program begins, so that nothing of it is outside. A group that lets nobody
            // in is no reason not to run.
            raw_syscall!(Sysno::write, door, address(c"0"), 1);
        }
        if words.cores != 0 {
            // A core may have been taken from this machine since the topology was read: the
            // program then runs unpinned rather than not at all.
            let size = size_of::<libc::cpu_set_t>();
            raw_syscall!(Sysno::sched_setaffinity, 0, size, words.cores);
        }
        if words.descriptors != 0 {
            raw_syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NOFILE, words.descriptors, 0);
        }
        for (from, to) in [(words.input, 0), (words.log, 1), (words.log, 2)] {
            if let Some(errno) = failed(raw_syscall!(Sysno::dup3, from, to, 0)) {
                return errno;
            }
        }
        if words.others == Others::Closed {
            // Linux before 5.9 does not know it, and closes them when the program begins.
            raw_syscall!(Sysno::close_range, 3, u32::MAX, 0);
        }
        if let Some(errno) = failed(raw_syscall!(Sysno::chdir, words.cwd)) {
            return errno;
        }
        // All zeros are the default action, and the empty set.
        let zeros = [0usize; SIGACTION_WORDS];
        let zeros = zeros.as_ptr();
        for signal in SIGNALS {
            raw_syscall!(Sysno::rt_sigaction, signal, zeros, 0, SIGNALS_BYTES);
        }
        raw_syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, zeros, 0, SIGNALS_BYTES);
        let (argv, env) = (words.argv.as_ptr(), words.env.as_ptr());
        let mut failure = raw_syscall!(Sysno::execve, words.program, argv, env);
        if failed(failure) == Some(libc::ENOEXEC) {
            let argv = words.shell_argv.as_ptr();
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
fn note(rank: u32, pid: u32) -> [u8; NOTE_BYTES] {
    let mut line = [b' '; NOTE_BYTES];
    line[NOTE_BYTES - 1] = b'\n';
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
    use std::fs::File;
    use std::os::fd::AsFd;

    use nix::sys::wait::WaitStatus;

    use super::*;
    use crate::process::variables::Variables;

    fn start(spawner: &mut Spawner, program: &str) -> Started {
        let null = File::options().read(true).write(true).open("/dev/null").expect("it is there");
        let text = |text: &str| CString::new(text).expect("no byte is zero");
        let image = Image {
            program: text(program),
            argv: vec![text(program), text("-c"), text("exit 3")],
            env: Environment::own_and(Variables::new()).expect("no byte is zero"),
            cwd: text("/"),
            rank: 0,
            cores: None,
        };
        let note = Note { file: null.as_fd(), offset: 0 };
        let (input, others) = (null.as_fd(), Others::Closed);
        let streams = Streams { input, log: input, note, doors: &[], others };
        spawner.start(image, &streams).expect("a process can be made")
    }

    fn exit_code(started: &Started) -> i32 {
        match waitpid(Pid::from_raw(started.pid), None).expect("it is a child") {
            WaitStatus::Exited(_, code) => code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn many_are_born_at_a_time() {
        let mut spawner = Spawner::default();
        let started: Vec<Started> = (0..100).map(|_| start(&mut spawner, "/bin/sh")).collect();
        for started in &started {
            assert_eq!(exit_code(started), 3);
            assert!(started.exec_status.is_over() && started.exec_status.error().is_none());
        }
        start(&mut spawner, "/bin/sh");
        assert!(spawner.0.len() <= SPARE_MAX + 1, "what many needed at a time is given back");
    }

    #[test]
    fn a_program_that_cannot_begin_says_why() {
        let started = start(&mut Spawner::default(), "/nowhere");
        assert_eq!(exit_code(&started), EXIT_UNBORN);
        let error = started.exec_status.error().map(|error| error.kind());
        assert_eq!(error, Some(io::ErrorKind::NotFound));
    }

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
