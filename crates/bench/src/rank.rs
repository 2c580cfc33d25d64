//! The program that measurements launch: it notes when it began and when it was told to stop.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};

/// The word by which the program is told to be a rank: `__bench-rank FILE once|wait`.
pub const RANK_COMMAND: &str = "__bench-rank";

/// Nanoseconds of the clock that all processes share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(std::time::Duration::from);
    now.unwrap_or_default().as_nanos() as u64
}

/// Notes the time of its start; with `wait` also that of SIGTERM, for which it waits.
pub fn rank_main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [path, what] = &arguments[..] else { return ExitCode::FAILURE };
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    if term.thread_block().is_err() {
        return ExitCode::FAILURE;
    }
    let file = OpenOptions::new().create(true).append(true).open(path);
    let noted = file.and_then(|mut file| {
        writeln!(file, "{}", now_ns())?;
        if what == "wait" {
            term.wait()?;
        }
        writeln!(file, "{}", now_ns())
    });
    if noted.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
