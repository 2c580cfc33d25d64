//! What the scheduler hears: JSON lines in the file or pipe that `HET_PROGRESS` names.
//!
//! A line is one `write`, so lines never mix; whoever cannot listen is not waited for.

use het_core::Millis;
use serde_json::{Value as Json, json};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct Progress {
    file: Option<File>,
}

impl Progress {
    pub fn from_environment() -> Self {
        Self::to(std::env::var_os("HET_PROGRESS").as_deref().map(Path::new))
    }

    pub fn to(path: Option<&Path>) -> Self {
        // Without O_NONBLOCK, opening a pipe that nobody reads would hang the training.
        let mut options = OpenOptions::new();
        options.append(true).create(true).custom_flags(nix::libc::O_NONBLOCK);
        Self { file: path.and_then(|path| options.open(path).ok()) }
    }

    pub fn send(&mut self, line: &Json) {
        if let Some(file) = &mut self.file {
            let _ = file.write(format!("{line}\n").as_bytes());
        }
    }

    pub fn driver(&mut self, name: &str, detail: &str) {
        self.send(&json!({"driver": name, "detail": detail}));
    }

    pub fn message(&mut self, text: &str) {
        self.send(&json!({"message": text}));
    }

    pub fn done(&mut self) {
        self.send(&json!({"done": true}));
    }
}

/// How fast a run is since it began or was resumed.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    began: Instant,
    step: u64,
    totals: Totals,
}

impl Pace {
    /// From here on; `step` steps were done before, which took `totals`.
    pub fn start(step: u64, totals: Totals) -> Self {
        Self { began: Instant::now(), step, totals }
    }

    /// Tokens a second of productive work.
    pub fn tokens_per_s(&self, totals: &Totals) -> f64 {
        let useful_ns = totals.useful_ns - self.totals.useful_ns;
        (totals.tokens - self.totals.tokens) as f64 / (useful_ns.max(1) as f64 / 1e9)
    }

    /// What the steps after `step` take at the pace so far, saves included.
    pub fn left(&self, step: u64, steps: u64) -> Millis {
        let done = (step - self.step).max(1) as f64;
        let each = self.began.elapsed().as_secs_f64() / done;
        Millis((each * steps.saturating_sub(step) as f64 * 1e3) as u64)
    }
}

/// Cumulative counts that a report carries; the time is that of productive work alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    pub samples: u64,
    pub tokens: u64,
    pub useful_ns: u64,
}

impl Totals {
    pub fn useful_ms(&self) -> u64 {
        self.useful_ns / 1_000_000
    }

    /// Runs productive work and adds its time.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let spent: Duration = start.elapsed();
        self.useful_ns += u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        result
    }

    /// The keys every report of progress has.
    pub fn report(&self, step: u64, total: u64) -> Json {
        json!({"step": step, "total": total, "samples": self.samples, "tokens": self.tokens,
               "useful_ms": self.useful_ms()})
    }
}
