//! `het rank`: supervises a program inside of a pod.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anstream::eprintln;
use clap::Args;
use het_core::{Checkpoint, Millis, Progress, StallRule};
use het_server::{Access, OwnPod, PodName, Rank, RankError, RankReport, RankSignals, run_rank};
use het_wire::progress::to_line;

use crate::fail::{Fail, code};

/// Between two reports; a checkpoint and the end are told at once.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// How long the end waits for the last report.
const LAST_REPORT_MAX: Duration = Duration::from_secs(5);
/// Between two tries of a report that was not taken.
const TRY_EVERY: Duration = Duration::from_secs(2);
/// A program that does not exist, as a shell has it.
const NOT_FOUND: u8 = 127;

#[derive(Debug, Args)]
pub struct RankArgs {
    /// Copy this program to a directory, for a container that has it not, and end.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub copy: Option<PathBuf>,
    /// Where its files of progress and notice lie.
    #[arg(long, value_name = "DIR", default_value = "/tmp/het-rank")]
    pub dir: PathBuf,
    /// A directory that the program finds, made where it is not there; several by repetition.
    #[arg(long = "make-dir", value_name = "DIR")]
    pub made_dirs: Vec<PathBuf>,
    /// The API server, where it is not the one of the pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required_unless_present = "copy")]
    pub command: Vec<String>,
}

pub fn rank(args: &RankArgs) -> Result<u8, Fail> {
    if let Some(dir) = &args.copy {
        return copy_to(dir);
    }
    // Before there is another thread.
    let signals = RankSignals::block().map_err(Fail::from_error)?;
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let seconds = |name: &str| variable(name).and_then(|text| text.parse().ok());
    let rank = Rank {
        argv: args.command.clone(),
        dir: args.dir.clone(),
        checkpoint_dir: variable("HET_CHECKPOINT_DIR").map(PathBuf::from),
        made_dirs: args.made_dirs.clone(),
        grace: Millis::seconds(seconds("HET_GRACE").unwrap_or(30)),
        notice: variable("HET_NOTICE_SIGNAL")
            .unwrap_or_else(|| "SIGTERM".to_owned())
            .as_str()
            .into(),
        stall: stall_rule(variable("HET_STALL").as_deref())?,
    };
    let pod = variable("HET_NAMESPACE").zip(variable("HET_POD"));
    let (sender, reports) = channel();
    // Ends with the reporter.
    let (alive, ended_too) = channel::<()>();
    let access = Access { kubeconfig: args.kubeconfig.clone(), context: None };
    match pod {
        Some((namespace, name)) => {
            let pod = PodName { namespace, name };
            drop(thread::spawn(move || {
                tell_all(&reports, &access, &pod);
                drop(alive);
            }));
        }
        None => {
            drop(alive);
            eprintln!("HET_NAMESPACE or HET_POD is not set: nobody is told of its progress");
        }
    }
    // Nobody may be there to hear.
    let ended = run_rank(&rank, &signals, |report| drop(sender.send(report)));
    drop(sender);
    let _ = ended_too.recv_timeout(LAST_REPORT_MAX);
    match ended {
        Ok(code) => Ok(code),
        Err(error @ RankError::Start { .. }) => {
            Fail::from_error(error).print();
            Ok(NOT_FOUND)
        }
        Err(error) => Err(Fail::from_error(error)),
    }
}

/// `never`, or milliseconds; as its own silences have it where nobody says.
fn stall_rule(text: Option<&str>) -> Result<StallRule, Fail> {
    match text {
        None => Ok(StallRule::Measured),
        Some("never") => Ok(StallRule::Never),
        Some(text) => match text.parse() {
            Ok(limit) => Ok(StallRule::After(Millis(limit))),
            Err(_) => {
                let what = format!("`HET_STALL` is `{text}`");
                Err(Fail::new(code::USAGE, what).hint("it is `never`, or milliseconds"))
            }
        },
    }
}

/// A pod's containers share a directory that this fills before they begin.
fn copy_to(dir: &Path) -> Result<u8, Fail> {
    let own = env::current_exe().map_err(|error| Fail::file(Path::new("het"), error))?;
    let to = dir.join("het");
    fs::copy(own, &to).map_err(|error| Fail::file(&to, error))?;
    let readable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&to, readable).map_err(|error| Fail::file(&to, error))?;
    Ok(code::OK)
}

/// What is to be told: all progress so far, and the newest checkpoint.
#[derive(Default)]
struct Told {
    progress: Progress,
    checkpoint: Option<Checkpoint>,
    /// It hangs.
    silent: Option<Millis>,
    is_new: bool,
    is_urgent: bool,
    is_last: bool,
}

impl Told {
    fn add(&mut self, report: RankReport) {
        let RankReport { progress, mut checkpoints, silent, is_last } = report;
        self.is_new |= progress.is_some() || !checkpoints.is_empty() || silent.is_some();
        self.is_urgent |= is_last || !checkpoints.is_empty() || silent.is_some();
        // What came after it was a sign of life.
        self.silent = silent;
        self.is_last |= is_last;
        progress.iter().for_each(|progress| self.progress.merge(progress));
        self.checkpoint = checkpoints.pop().or(self.checkpoint.take());
    }
}

/// Until nobody reports any more, and everything was told.
fn tell_all(reports: &Receiver<RankReport>, access: &Access, pod: &PodName) {
    let mut told = Told::default();
    let mut own: Option<OwnPod> = None;
    let mut next = Instant::now();
    loop {
        let wait = match told.is_new {
            true if told.is_urgent => Duration::ZERO,
            true => next.saturating_duration_since(Instant::now()),
            false => REPORT_EVERY,
        };
        match reports.recv_timeout(wait) {
            Ok(report) => {
                told.add(report);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if !told.is_new => return,
            Err(RecvTimeoutError::Disconnected) => {}
        }
        if !told.is_new {
            continue;
        }
        if own.is_none() {
            own = OwnPod::connect(access.clone(), pod).inspect_err(|error| say(error)).ok();
        }
        let line = to_line(&told.progress, told.checkpoint.as_ref(), told.silent);
        let taken = own.as_ref().map(|own| own.report(&line).inspect_err(|error| say(error)));
        next = Instant::now() + REPORT_EVERY;
        match taken {
            Some(Ok(())) => {
                (told.is_new, told.is_urgent) = (false, false);
                if told.is_last {
                    return;
                }
            }
            // It is told again with whatever comes until then.
            _ => thread::sleep(TRY_EVERY),
        }
    }
}

fn say(error: &dyn std::error::Error) {
    let why = error.source().map(|why| format!(": {why}")).unwrap_or_default();
    eprintln!("progress is not told: {error}{why}");
}
