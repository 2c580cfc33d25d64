//! Ends a server whose control loop stands still, such as at a file system that does not answer.
//! The server's parent process starts it again.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use std::{io, process};

use het_node::{Heartbeat, LoopTask};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stalls;

/// Looks within the limit.
const LOOKS: u32 = 8;

/// From now on the loop may take so long for a task of its own, apart from writing to its store.
/// What it stands still at is noted in a file.
///
/// # Errors
/// When there can be no thread.
pub(crate) fn start(heartbeat: Heartbeat, limit: Duration, file: PathBuf) -> io::Result<()> {
    let run = move || {
        let task = heartbeat.watch(limit / LOOKS, LOOKS);
        end(&file, task);
    };
    thread::Builder::new().name("watchdog".to_owned()).spawn(run).map(drop)
}

/// Ends this process as nothing else would: a thread that waits in the kernel gives way to SIGKILL
/// alone.
fn end(file: &Path, task: LoopTask) {
    // Without it the next server knows nothing of the cause and stands still once more.
    let _ = stalls::note(file, task);
    let _ = kill(Pid::from_raw(process::id() as i32), Signal::SIGKILL);
}
