//! The process that starts the server, and starts it again when it dies.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::{env, thread};

use het_files::Links;
use het_server::{Privileged, forward_signal, lock_dir_name, run_restarter};
use nix::sys::signal::Signal;

use super::{ServerArgs, signals};
use crate::fail::{Fail, code};
use crate::local::{home, server_home};

/// Digits of a process's id.
const READY_BYTES_MAX: u64 = 20;

/// Starts the process that serves, and starts it again when it dies.
pub(super) fn keep_one(args: &ServerArgs) -> Result<u8, Fail> {
    let program = env::current_exe().map_err(|error| Fail::file(Path::new("het"), error))?;
    let (home, privileged) = match args.shared() {
        None => {
            let home = home()?;
            home.server_dir()?;
            (home, None)
        }
        Some(names) => {
            // What is in it is for the server to make: it is not root's.
            let home = server_home()?;
            let locks = lock_dir_name(|name| env::var(name).ok());
            let privileged = Privileged::prepare(&home, names, &locks, program.clone());
            (home, Some(privileged.map_err(Fail::from_error)?))
        }
    };
    let mut arguments: Vec<_> = env::args_os().skip(1).collect();
    let kept = Arc::new(Kept::default());
    pass_signals_on(Arc::clone(&kept))?;
    let start = || {
        let mut command = Command::new(&program);
        // The allocator returns freed pages at once: a peak of waiting jobs does not stay.
        command.args(&arguments).arg("--kept").env("MIMALLOC_PURGE_DELAY", "0");
        if let Some(privileged) = &privileged {
            privileged.prepare_server(&mut command)?;
        }
        let child = command.spawn()?;
        // It was meant once: a store that is lost later is not begun anew by a restart.
        arguments.retain(|argument| argument != "--new-store");
        kept.server.store(child.id(), Ordering::SeqCst);
        Ok(child)
    };
    let ready = home.ready();
    let was_of_use = |id: u32| {
        // Its id may soon be another's.
        kept.server.store(0, Ordering::SeqCst);
        het_files::read(&ready, Links::Refused, READY_BYTES_MAX)
            .is_ok_and(|text| text == id.to_string().as_bytes())
    };
    let is_wanted = || !kept.stopped.load(Ordering::SeqCst);
    let keeps_running = |id| privileged.as_ref().is_some_and(|it| it.is_agent(id));
    let status = run_restarter(start, was_of_use, is_wanted, keeps_running);
    let status = status.map_err(|error| Fail::file(&program, error))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(code::FAILED))
}

/// What the keeper's signals are about.
#[derive(Default)]
struct Kept {
    /// The process that serves; 0 between two of them.
    server: AtomicU32,
    stopped: AtomicBool,
}

/// Whoever stops the keeper means the server. A second signal ends the keeper too, which may still
/// wait for what a server left behind.
fn pass_signals_on(kept: Arc<Kept>) -> Result<(), Fail> {
    let mut signals = signals()?;
    thread::spawn(move || {
        for _ in signals.forever() {
            let server = kept.server.load(Ordering::SeqCst);
            if server != 0 {
                forward_signal(server, Signal::SIGTERM);
            } else if kept.stopped.load(Ordering::SeqCst) {
                std::process::exit(i32::from(code::INTERRUPTED));
            }
            kept.stopped.store(true, Ordering::SeqCst);
        }
    });
    Ok(())
}
