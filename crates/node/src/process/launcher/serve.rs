//! The launcher: a small process of one thread that makes a shim for each gang by copying itself.
//!
//! It opens no file by itself: all that a shim needs comes as descriptors and bytes. It has a
//! descriptor of a locked file, which its shims inherit and close once they have noted themselves:
//! whoever takes the lock after the end of an engine knows of every gang that ever may begin.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, setsid};

use super::request::GangRequest;
use super::shim;
use super::wait::{Woken, wait_for};
use crate::process::messages::receive;
use crate::process::sys::{Forked, exit_now, fork, interrupt_on_child, name_process, received};

/// Descriptors of its own are above those that a program may get by number.
const OWN_FROM: i32 = 10;
/// As `ps` shows it.
const NAME: &std::ffi::CStr = c"het-launcher";
const NULL: &str = "/dev/null";

/// Runs a launcher until its engine is gone: standard input is the connection to it, standard
/// output the locked file.
pub(super) fn serve() -> io::Result<()> {
    name_process(NAME);
    // A terminal's signals are for the engine.
    let _ = setsid();
    let engine = received(fcntl(io::stdin(), FcntlArg::F_DUPFD_CLOEXEC(OWN_FROM))?);
    let lock = received(fcntl(io::stdout(), FcntlArg::F_DUPFD_CLOEXEC(OWN_FROM))?);
    let null = File::options().read(true).write(true).open(NULL)?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    drop(null);
    interrupt_on_child()?;
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?;
    loop {
        collect_shims();
        if wait_for(&engine)? == Woken::ByChild {
            continue;
        }
        let Some((bytes, descriptors)) = receive(engine.as_fd())? else { return Ok(()) };
        let request = GangRequest::decode(&bytes);
        let mut descriptors = descriptors.into_iter();
        // What is no request is dropped, and the engine sees that its end of the gang is closed.
        if let (Some(request), Some(connection)) = (request, descriptors.next()) {
            // Without a process the engine sees the same.
            if matches!(fork(), Ok(Forked::Child)) {
                drop(engine);
                let code = shim::run((request, descriptors), &connection, lock);
                exit_now(i32::from(code.is_err()));
            }
        }
    }
}

/// Collects shims that have ended. One that somebody stopped goes on: a gang whose shim stands
/// still would never end.
fn collect_shims() {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
    loop {
        match waitpid(None::<Pid>, Some(flags)) {
            Ok(WaitStatus::Stopped(shim, _)) => {
                let _ = kill(shim, Signal::SIGCONT);
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return,
            Ok(_) => {}
        }
    }
}
