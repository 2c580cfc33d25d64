//! Starts programs without waiting until they have begun.
//!
//! A child shares this process's memory until it has its own, as after `vfork`, so that a start
//! costs the same however large the supervisor is. Unlike after `vfork`, the supervisor continues
//! meanwhile: loading a program takes several times as long as starting a child. What the child
//! needs until then lies in a [`ChildMemory`], which is reused once the kernel reports it free.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SIGKILL, SigSet, SigmaskHow, kill, pthread_sigmask};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::child::{ChildArgs, child_main};
use super::program::{ChildFiles, ExecStatus, Program};

/// Stack of a child before its program begins: few calls, none of them deep.
const STACK_BYTES: usize = 64 * 1024;
/// Free child memories that are kept.
const SPARE_MAX: usize = 16;
/// Interval between two checks whether a child has its own memory.
const PAUSE: Duration = Duration::from_micros(200);

/// A process that was just started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: i32,
    /// Readable when it ends.
    pub(crate) pidfd: OwnedFd,
    pub(crate) exec: ExecStatus,
}

/// Starts children; holds the memory that they run in before their programs begin.
#[derive(Debug, Default)]
pub(crate) struct Spawner(Vec<Arc<ChildMemory>>);

impl Spawner {
    /// Starts a program as the leader of its own session and process group.
    ///
    /// # Errors
    /// When there is no process. Whether its program began is in [`Started::exec`].
    pub(crate) fn start(
        &mut self,
        program: Program,
        files: &ChildFiles<'_>,
    ) -> io::Result<Started> {
        let free = self.0.iter().position(|memory| memory.is_free());
        let mut memory = free.map(|index| self.0.swap_remove(index)).unwrap_or_default();
        if self.0.len() > SPARE_MAX {
            self.0.retain(|memory| !memory.is_free());
        }
        let status = ExecStatus::default();
        let own = Arc::get_mut(&mut memory).expect("it is never shared");
        own.args.fill(program, files, &status);
        let started = own.start(status);
        self.0.push(memory);
        started
    }

    /// Waits until every child has its own memory or is gone, or until the limit.
    pub(crate) fn wait(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.0.iter().all(|memory| memory.is_free()) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        for memory in self.0.drain(..).filter(|memory| !memory.is_free()) {
            // A child still runs in it.
            mem::forget(memory);
        }
    }
}

/// What one child needs until it has its own memory.
#[derive(Debug)]
struct ChildMemory {
    stack: Box<[MaybeUninit<u8>]>,
    args: ChildArgs,
}

impl Default for ChildMemory {
    fn default() -> Self {
        let stack = Box::new_uninit_slice(STACK_BYTES);
        Self { stack, args: ChildArgs::default() }
    }
}

impl ChildMemory {
    fn is_free(&self) -> bool {
        self.args.status.is_known()
    }

    /// Starts the child with these arguments. No other child may run in this memory.
    fn start(&mut self, exec: ExecStatus) -> io::Result<Started> {
        // A signal handler of this process must not run in the child, on memory that both share.
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        let pending = &exec.0.pending;
        pending.store(1, Ordering::Release);
        let mut pidfd: c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
        // SAFETY: the child's stack grows down from an end that is aligned down to 16 bytes. It and
        // `args` belong to this memory, which `Spawner` neither changes nor frees before the kernel
        // has cleared `pending`, when the child has its own memory or is gone; `args` keep the
        // status as long. The child writes to its stack and to the status's atomics alone, the
        // kernel to `pending`, and to `pidfd` before the call returns.
        let pid = unsafe {
            let end = self.stack.as_mut_ptr().add(STACK_BYTES);
            let top = end.sub(end as usize % 16).cast::<c_void>();
            let args = ptr::from_ref(&self.args).cast_mut().cast::<c_void>();
            let (pidfd, no_tls) = (ptr::from_mut(&mut pidfd), ptr::null_mut::<c_void>());
            libc::clone(child_main, top, flags, args, pidfd, no_tls, pending.as_ptr())
        };
        let failed = io::Error::last_os_error();
        if pid < 0 {
            pending.store(0, Ordering::Release);
        }
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        if pid < 0 {
            return Err(failed);
        }
        if pidfd < 0 {
            // Linux before 5.2 ignores the flag.
            let pid = Pid::from_raw(pid);
            let _ = kill(pid, SIGKILL).and_then(|()| waitpid(pid, None));
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the kernel has just made this descriptor (close-on-exec), nobody else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok(Started { pid, pidfd, exec })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use nix::sys::wait::WaitStatus;

    use super::*;
    use crate::process::sys::child::EXIT_NOT_EXECUTED;
    use crate::process::sys::program::{InheritedFds, Note};
    use crate::process::variables::{Environment, Variables};

    fn start(spawner: &mut Spawner, program: &str) -> Started {
        let null = File::options().read(true).write(true).open("/dev/null").expect("it is there");
        let text = |text: &str| CString::new(text).expect("no byte is zero");
        let program = Program {
            path: text(program),
            argv: vec![text(program), text("-c"), text("exit 3")],
            env: Environment::new(&Arc::default(), Variables::new()).expect("no byte is zero"),
            cwd: text("/"),
            rank: 0,
            cores: None,
        };
        let note = Note { file: null.as_fd(), offset: 0 };
        let (stdin, inherited) = (null.as_fd(), InheritedFds::Closed);
        let files =
            ChildFiles { stdin, stdout: stdin, stderr: stdin, note, cgroup_procs: &[], inherited };
        spawner.start(program, &files).expect("a process can be made")
    }

    fn exit_code(started: &Started) -> i32 {
        match waitpid(Pid::from_raw(started.pid), None).expect("it is a child") {
            WaitStatus::Exited(_, code) => code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn many_children_start_at_a_time() {
        let mut spawner = Spawner::default();
        let started: Vec<Started> = (0..100).map(|_| start(&mut spawner, "/bin/sh")).collect();
        for started in &started {
            assert_eq!(exit_code(started), 3);
            assert!(started.exec.is_known() && started.exec.error().is_none());
        }
        start(&mut spawner, "/bin/sh");
        assert!(spawner.0.len() <= SPARE_MAX + 1, "memory beyond the spares is freed");
    }

    #[test]
    fn a_program_that_cannot_begin_reports_why() {
        let started = start(&mut Spawner::default(), "/nowhere");
        assert_eq!(exit_code(&started), EXIT_NOT_EXECUTED);
        let error = started.exec.error().map(|error| error.kind());
        assert_eq!(error, Some(io::ErrorKind::NotFound));
    }
}
