//! The trainer that is installed beside this program, and the drivers that it says it has.
//!
//! It is the only program that anybody runs to find out about a job, and it is never looked up:
//! what a submitter's `PATH` calls `het-train` may be anything.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fs};

use het_wire::job::TRAINER;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use thiserror::Error;

/// It starts a process for each driver and waits for each no longer than ten seconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// A line a driver is expected.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The trainer that is installed beside this program.
#[derive(Debug, Clone)]
pub struct Trainer {
    program: PathBuf,
    limit: Duration,
}

/// One driver that it has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TrainerDriver {
    pub name: String,
    /// Whether it computes on this machine.
    pub starts: bool,
    /// What it computes on, or why it does not.
    pub detail: String,
}

/// Which file it is, and which version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainerVersion {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

/// Why it did not say which drivers it has.
#[derive(Debug, Error)]
#[error("`{program} drivers` {why}")]
pub struct TrainerFault {
    program: String,
    why: Why,
}

#[derive(Debug, Error)]
enum Why {
    #[error("does not start: {0}")]
    Start(io::Error),
    #[error("did not answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("ended with {0} and listed no drivers")]
    NoList(ExitStatus),
}

#[derive(Debug, Deserialize)]
struct DriverList {
    items: Vec<TrainerDriver>,
}

impl Trainer {
    /// The one beside this program, if there is one.
    pub fn installed() -> Option<Self> {
        let program = env::current_exe().ok()?.with_file_name(TRAINER);
        let is_file = fs::metadata(&program).is_ok_and(|found| found.is_file());
        is_file.then_some(Self { program, limit: ANSWER_LIMIT })
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Changes whenever another version is installed.
    ///
    /// # Errors
    /// When the file is gone.
    pub fn version(&self) -> io::Result<TrainerVersion> {
        let found = fs::metadata(&self.program)?;
        Ok(TrainerVersion {
            file: (found.dev(), found.ino()),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }

    /// Every driver that it has, working or not; takes as long as it takes to start each.
    ///
    /// # Errors
    /// When it does not start, does not end in time or prints something else.
    pub fn drivers(&self) -> Result<Vec<TrainerDriver>, TrainerFault> {
        let program = || self.program.display().to_string();
        self.answer().map_err(|why| TrainerFault { program: program(), why })
    }

    fn answer(&self) -> Result<Vec<TrainerDriver>, Why> {
        let mut command = Command::new(&self.program);
        command.args(["drivers", "--output", "json"]).stdin(Stdio::null()).stdout(Stdio::piped());
        // A group of its own, so that what it has started ends with it.
        let mut child =
            command.stderr(Stdio::null()).process_group(0).spawn().map_err(Why::Start)?;
        let stdout = child.stdout.take();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            let stdout = stdout.map(|stdout| stdout.take(ANSWER_BYTES_MAX));
            let read = stdout.map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut text));
            // The receiver is gone only when the time was up.
            drop(sender.send(read.map(|_| text)));
        });
        let text = receiver.recv_timeout(self.limit);
        // One that has ended keeps the status it ended with.
        let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
        let status = child.wait().map_err(Why::Unreadable)?;
        let text = text.map_err(|_| Why::Late(self.limit))?.map_err(Why::Unreadable)?;
        let list = serde_json::from_str::<DriverList>(&text).map_err(|_| Why::NoList(status))?;
        Ok(list.items)
    }
}

impl TrainerFault {
    pub fn hint(&self) -> String {
        "run it to see why, or say in the job file which `drivers` the program has".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(script: &str) -> Result<Vec<TrainerDriver>, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let program = dir.path().join(TRAINER);
        // Nobody can start a file that is open to write, and what other threads start may have it.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        let mut shell = Command::new("sh");
        let written = shell.args(["-c", write]).arg(&program).arg(script).status();
        assert!(written.expect("a shell starts").success());
        let trainer = Trainer { program: program.clone(), limit: Duration::from_millis(500) };
        let folder = dir.path().display().to_string();
        trainer.drivers().map_err(|fault| fault.to_string().replace(&folder, "DIR"))
    }

    #[test]
    fn it_says_what_it_has() {
        let list = r#"[ "$*" = "drivers --output json" ] && echo '{"kind": "DriverList", "items":
            [{"name": "cpu", "starts": true, "detail": "4 threads"},
             {"name": "vulkan", "starts": false, "detail": "no loader"}]}'"#;
        let row = |name: &str, starts, detail: &str| TrainerDriver {
            name: name.to_owned(),
            starts,
            detail: detail.to_owned(),
        };
        let expected = vec![row("cpu", true, "4 threads"), row("vulkan", false, "no loader")];
        assert_eq!(asked(list), Ok(expected));
    }

    #[test]
    fn one_that_does_not_answer_is_no_news() {
        let check = |script: &str, why: &str| {
            assert_eq!(asked(script), Err(format!("`DIR/het-train drivers` {why}")), "{script}");
        };
        check("exit 3", "ended with exit status: 3 and listed no drivers");
        check("echo '{}'", "ended with exit status: 0 and listed no drivers");
        check("kill -TERM $$", "ended with signal: 15 (SIGTERM) and listed no drivers");
        // What it started holds its output open.
        check("sleep 60 & wait", "did not answer within 0.5 s");
    }
}
