//! The system calls that the safe libraries do not offer. The only `unsafe` of this crate.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use het_core::Millis;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::environment::Pair;
use crate::exit::Exit;

/// Stack of a child between its birth and its program: it calls little and nothing deep.
const CHILD_STACK_BYTES: usize = 64 * 1024;
/// Signals with a number that every Linux has (signal(7)).
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=31;

/// Descriptors that a program may have which is started from here, where this process took more.
static DESCRIPTORS_BEFORE: OnceLock<libc::rlimit> = OnceLock::new();

/// Lets this process have as many descriptors as it may. Programs that it starts keep the limit of
/// before: some take every number below it for one that they have to close, or to select(2) on.
pub fn raise_descriptor_limit() {
    // SAFETY: plain data for which all zeros is a value; the calls read and write one of it.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            // Whoever may have no more has what there is.
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
                let _ = DESCRIPTORS_BEFORE.set(limit);
            }
        }
    }
}

/// Has all threads of this process take memory from one heap: a heap of a thread that was busy once
/// keeps what it had. For processes that live long and do most on one thread.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a parameter of the allocator, which is safe to set at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives memory back that was freed, where somebody had much of it for a moment.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: looks for free pages under the allocator's own lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Hierarchies of control groups that a child enters.
const DOORS_MAX: usize = 4;

/// What a rank is started with; everything is prepared, so that the child allocates nothing.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    /// Absolute, or relative to `cwd`.
    pub(crate) program: CString,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<Pair>,
    pub(crate) cwd: CString,
    /// Standard output and error.
    pub(crate) log: &'a OwnedFd,
    pub(crate) input: &'a OwnedFd,
    /// Where the child notes who it is before its program begins: whoever comes after a supervisor
    /// that died finds every process whose program may have begun.
    pub(crate) note: BorrowedFd<'a>,
    /// Files that the child writes `0` to, to enter its control groups; at most [`DOORS_MAX`].
    pub(crate) doors: &'a [OwnedFd],
    pub(crate) rank: u32,
    /// Not pinned where there is none.
    pub(crate) cores: Option<libc::cpu_set_t>,
}

/// What a child stands on between its birth and its program, one after the other.
#[derive(Debug)]
pub(crate) struct Stack(Vec<MaybeUninit<u8>>);

impl Stack {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(CHILD_STACK_BYTES))
    }
}

/// A process that has just been started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: i32,
    /// Readable when it ends.
    pub(crate) pidfd: OwnedFd,
}

/// What the child reads, and writes its error to.
struct Birth {
    program: *const c_char,
    argv: *const *const c_char,
    /// The same as a script of `/bin/sh`, for a file without `#!`.
    shell_argv: *const *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    log: c_int,
    input: c_int,
    note: c_int,
    /// -1 where there is none.
    doors: [c_int; DOORS_MAX],
    rank: u32,
    cores: *const libc::cpu_set_t,
    descriptors: *const libc::rlimit,
    error: c_int,
}

/// Starts a program as the leader of its own session and group; returns once it has begun.
///
/// The child shares this process's memory until then, as with `vfork`: no page table is copied,
/// however large the supervisor is.
///
/// # Errors
/// Why it did not begin; there is no process then.
pub(crate) fn start(image: &Image<'_>, stack: &mut Stack) -> io::Result<Started> {
    let argv = pointers(image.argv.iter().map(CString::as_c_str));
    let env = pointers(image.env.iter().map(AsRef::as_ref));
    let shell = c"/bin/sh";
    let arguments = argv.iter().skip(1).copied();
    let shell_argv: Vec<*const c_char> =
        [shell.as_ptr(), image.program.as_ptr()].into_iter().chain(arguments).collect();
    let mut doors = [-1; DOORS_MAX];
    for (door, fd) in doors.iter_mut().zip(image.doors) {
        *door = fd.as_raw_fd();
    }
    let mut birth = Birth {
        program: image.program.as_ptr(),
        argv: argv.as_ptr(),
        shell_argv: shell_argv.as_ptr(),
        env: env.as_ptr(),
        cwd: image.cwd.as_ptr(),
        log: image.log.as_raw_fd(),
        input: image.input.as_raw_fd(),
        note: image.note.as_raw_fd(),
        doors,
        rank: image.rank,
        cores: image.cores.as_ref().map_or(ptr::null(), ptr::from_ref),
        descriptors: DESCRIPTORS_BEFORE.get().map_or(ptr::null(), ptr::from_ref),
        error: 0,
    };
    // A handler of this process must not run in the child, on memory that both share.
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the stack grows down from the end of an allocation that outlives the child's use of
    // it and that nobody else has meanwhile, and the end is aligned down to 16 bytes; `birth` and
    // all it points to live in this frame, which is suspended (CLONE_VFORK) until the child has its
    // own memory or is gone; `pidfd` is written by the kernel only.
    let pid = unsafe {
        let end = stack.0.as_mut_ptr().add(CHILD_STACK_BYTES);
        let top = end.sub(end as usize % 16).cast::<c_void>();
        let birth = ptr::from_mut(&mut birth).cast::<c_void>();
        libc::clone(be_born, top, flags, birth, ptr::from_mut(&mut pidfd))
    };
    let failed = io::Error::last_os_error();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    if pid < 0 {
        return Err(failed);
    }
    if birth.error != 0 {
        // Its status says nothing more.
        let _ = waitpid(Pid::from_raw(pid), None);
        if pidfd >= 0 {
            // SAFETY: as below; it is closed at once.
            drop(unsafe { OwnedFd::from_raw_fd(pidfd) });
        }
        return Err(io::Error::from_raw_os_error(birth.error));
    }
    let pidfd = match pidfd {
        // Linux before 5.2 knows no such flag.
        ..0 => pidfd_open(pid)?,
        // SAFETY: the kernel has just made this descriptor (close-on-exec), nobody else owns it.
        _ => unsafe { OwnedFd::from_raw_fd(pidfd) },
    };
    Ok(Started { pid, pidfd })
}

/// As execve(2) takes them.
fn pointers<'a>(texts: impl Iterator<Item = &'a CStr>) -> Vec<*const c_char> {
    texts.map(CStr::as_ptr).chain([ptr::null()]).collect()
}

/// What the child does before its program: system calls only, on memory that was prepared.
extern "C" fn be_born(birth: *mut c_void) -> c_int {
    // SAFETY: `start` passes a `Birth` that lives and is touched by nobody else while this runs;
    // every pointer in it is to prepared, zero-terminated data; all calls are async-signal-safe.
    unsafe {
        let birth = &mut *birth.cast::<Birth>();
        if libc::setsid() < 0 || libc::chdir(birth.cwd) < 0 {
            return give_up(birth);
        }
        for door in birth.doors.into_iter().filter(|door| *door >= 0) {
            // Before its program begins, so that nothing of it is outside. A group that lets nobody
            // in is no reason not to run.
            let _ = libc::write(door, c"0".as_ptr().cast(), 1);
        }
        if !birth.cores.is_null() {
            // A core may have been taken from this machine since the topology was read: the
            // program then runs unpinned rather than not at all.
            let size = size_of::<libc::cpu_set_t>();
            let _ = libc::sched_setaffinity(0, size, birth.cores);
        }
        if !birth.descriptors.is_null() {
            let _ = libc::setrlimit(libc::RLIMIT_NOFILE, birth.descriptors);
        }
        let streams = [(birth.input, 0), (birth.log, 1), (birth.log, 2)];
        for (from, to) in streams {
            if libc::dup2(from, to) < 0 {
                return give_up(birth);
            }
        }
        let mut line = [0u8; 24];
        let length = note(&mut line, birth.rank, libc::getpid() as u32);
        if libc::write(birth.note, line.as_ptr().cast(), length) < 0 {
            return give_up(birth);
        }
        for signal in SIGNALS {
            libc::signal(signal, libc::SIG_DFL);
        }
        let none = SigSet::empty();
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ref(), ptr::null_mut());
        libc::execve(birth.program, birth.argv, birth.env);
        if *libc::__errno_location() == libc::ENOEXEC {
            libc::execve(c"/bin/sh".as_ptr(), birth.shell_argv, birth.env);
        }
        give_up(birth)
    }
}

/// Leaves the error to the parent.
///
/// # Safety
/// Only in the child, after a call that failed.
unsafe fn give_up(birth: &mut Birth) -> c_int {
    // SAFETY: both calls take no memory; `_exit` runs no handler of the parent's.
    unsafe {
        birth.error = *libc::__errno_location();
        libc::_exit(127)
    }
}

/// Writes `RANK PID\n`; gives its length.
fn note(line: &mut [u8; 24], rank: u32, pid: u32) -> usize {
    let mut length = 0;
    for (number, end) in [(rank, b' '), (pid, b'\n')] {
        let mut divisor = 1_000_000_000;
        while divisor > 1 && number < divisor {
            divisor /= 10;
        }
        while divisor > 0 {
            line[length] = b'0' + (number / divisor % 10) as u8;
            length += 1;
            divisor /= 10;
        }
        line[length] = end;
        length += 1;
    }
    length
}

/// A set of cores as the kernel takes it; `None` for none, or where one has too high a number.
pub(crate) fn cpu_set(cores: &[u32]) -> Option<libc::cpu_set_t> {
    let fits = cores.iter().all(|&core| core < libc::CPU_SETSIZE as u32);
    if cores.is_empty() || !fits {
        return None;
    }
    // SAFETY: a set of cores is plain data, and all zeros is the empty one; every number is within
    // it.
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

/// How a child ended and the processor time of it and of the children that it collected; `None`
/// while it lives. It stays a zombie.
///
/// # Errors
/// When it is not a child of this process.
pub(crate) fn look_at_end(pid: i32) -> io::Result<Option<(Exit, Millis)>> {
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

/// From now on descendants whose parent ends become children of this process.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    // SAFETY: the call takes integers and touches no memory of this process.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_rank_and_pid() {
        let mut line = [0; 24];
        for (rank, pid, text) in [(0, 7, "0 7\n"), (12, 4_194_304, "12 4194304\n")] {
            let length = note(&mut line, rank, pid);
            assert_eq!(std::str::from_utf8(&line[..length]), Ok(text));
        }
    }
}
