//! The restarter waits for any child, so this has a process of its own.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use het_node::run_restarter;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const ROUNDS: u32 = 300;

/// Between the look at a child that was stopped and what follows, it may go on or end.
#[test]
fn a_supervisor_that_is_stopped_and_killed_at_once_is_started_again() {
    let (to, started) = channel::<u32>();
    let somebody = thread::spawn(move || {
        for pid in started {
            let pid = Pid::from_raw(pid as i32);
            // It may have ended between two of them.
            for signal in [Signal::SIGSTOP, Signal::SIGCONT, Signal::SIGSTOP, Signal::SIGKILL] {
                let _ = kill(pid, signal);
            }
        }
    });
    let starts = AtomicU32::new(0);
    let start = || {
        let child = Command::new("sleep").arg("60").spawn()?;
        starts.fetch_add(1, Ordering::Relaxed);
        to.send(child.id()).expect("somebody listens");
        Ok(child)
    };
    let is_wanted = || starts.load(Ordering::Relaxed) < ROUNDS;
    let status = run_restarter(start, |_| true, is_wanted, |_| false).expect("it goes on");
    drop(to);
    somebody.join().expect("it ends");
    assert_eq!(starts.load(Ordering::Relaxed), ROUNDS, "{status:?}");
}
