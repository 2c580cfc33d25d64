//! The program that fidelity is measured with: it sleeps through loading, steps and saves of known
//! lengths, and does what a training program does in between.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::{Value, json};

/// The word by which the program is told to be a trainer.
pub const TRAINER_COMMAND: &str = "__bench-trainer";

/// "Saved, call me again": EX_TEMPFAIL of sysexits.h.
const EXIT_SAVED: u8 = 75;

/// What a program that crashes exits with.
pub(super) const CRASH_CODE: u8 = 9;

/// Class → number of devices → nanoseconds of a step.
pub(super) type Table = BTreeMap<String, BTreeMap<u32, u64>>;

/// Trains until it is done, told to stop, or crashes.
pub fn trainer_main() -> ExitCode {
    match train() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

struct Trainer {
    notices: SignalFd,
    progress: fs::File,
    checkpoints: PathBuf,
    steps: u64,
    step: u64,
    save: Duration,
}

fn train() -> io::Result<u8> {
    let begun = Instant::now();
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    term.thread_block()?;
    let notices = SignalFd::with_flags(&term, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut progress = fs::File::options();
    let progress = progress.append(true).create(true).open(variable("HET_PROGRESS")?)?;
    let resumed = env::var_os("HET_RESUME_FROM").map(PathBuf::from);
    let step = match &resumed {
        Some(path) => number(&fs::read_to_string(path.join("step"))?)?,
        None => 0,
    };
    let crashed = Path::new(&variable("HET_OUTPUT")?).join("crashed");
    let every = number(&variable("BENCH_EVERY")?)?;
    let crash_at = variable("BENCH_CRASH_AT")?.parse::<u64>().ok();
    let step_time = Duration::from_nanos(step_ns()?);
    let mut trainer = Trainer {
        notices,
        progress,
        checkpoints: variable("HET_CHECKPOINT_DIR")?.into(),
        steps: number(&variable("BENCH_STEPS")?)?,
        step,
        save: Duration::from_millis(number(&variable("BENCH_SAVE_MS")?)?),
    };
    let mut next = begun + Duration::from_millis(number(&variable("BENCH_LOAD_MS")?)?);
    if trainer.is_told_before(next)? {
        return trainer.leave();
    }
    while trainer.step < trainer.steps {
        next += step_time;
        if trainer.is_told_before(next)? {
            return trainer.leave();
        }
        trainer.step += 1;
        if crash_at.is_some_and(|at| at <= trainer.step) && !crashed.exists() {
            fs::write(&crashed, "")?;
            return Ok(CRASH_CODE);
        }
        if trainer.step.is_multiple_of(every) && trainer.step < trainer.steps {
            trainer.say(&json!({ "step": trainer.step, "total": trainer.steps }))?;
            next += trainer.save;
            if trainer.is_told_before(next)? {
                return trainer.leave();
            }
            trainer.write()?;
        }
    }
    trainer.say(&json!({ "step": trainer.step, "total": trainer.steps, "done": true }))?;
    Ok(0)
}

impl Trainer {
    /// Sleeps until then, unless it is told to stop before.
    fn is_told_before(&self, at: Instant) -> io::Result<bool> {
        loop {
            let left = at.saturating_duration_since(Instant::now());
            let mut waited = [PollFd::new(self.notices.as_fd(), PollFlags::POLLIN)];
            // In whole milliseconds: the rest is slept.
            let whole = PollTimeout::try_from(left.as_millis() as i32).unwrap_or(PollTimeout::ZERO);
            if poll(&mut waited, whole)? > 0 {
                return Ok(true);
            }
            let left = at.saturating_duration_since(Instant::now());
            if left < Duration::from_millis(1) {
                std::thread::sleep(left);
                return Ok(false);
            }
        }
    }

    /// Saves and ends, to go on later.
    fn leave(&mut self) -> io::Result<u8> {
        std::thread::sleep(self.save);
        self.say(&json!({ "step": self.step, "total": self.steps }))?;
        self.write()?;
        Ok(EXIT_SAVED)
    }

    fn write(&mut self) -> io::Result<()> {
        let path = self.checkpoints.join(format!("checkpoint-{}", self.step));
        if !path.exists() {
            let draft = self.checkpoints.join(format!("draft-{}", self.step));
            fs::create_dir_all(&draft)?;
            fs::write(draft.join("step"), self.step.to_string())?;
            fs::rename(draft, &path)?;
        }
        self.say(&json!({ "checkpoint": { "step": self.step, "path": path } }))
    }

    fn say(&mut self, line: &Value) -> io::Result<()> {
        self.progress.write_all(format!("{line}\n").as_bytes())
    }
}

/// Of the devices that it was given.
fn step_ns() -> io::Result<u64> {
    let table: Table = serde_json::from_str(&variable("BENCH_STEP_NS")?)?;
    let devices: Vec<Value> = serde_json::from_str(&variable("HET_DEVICES")?)?;
    let class = devices.first().and_then(|device| device["class"].as_str()).unwrap_or_default();
    let step = table.get(class).and_then(|sizes| sizes.get(&(devices.len() as u32)));
    step.copied().ok_or_else(|| io::Error::other(format!("no speed on {devices:?}")))
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(|_| io::Error::other(format!("{name} is not set")))
}

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(io::Error::other)
}
