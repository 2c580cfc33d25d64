//! Supervision of one rank inside of a pod, by whoever its container starts first: the notice to
//! stop, its progress, the checkpoints that count, its silences, and its exit code.

mod output;

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use het_core::{Checkpoint, Millis, Name, Progress, StallRule, Time};
use het_files::replace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use thiserror::Error;

use crate::checkpoint::Orderly;
use crate::clock::{Clock, wall_time};
use crate::gang::{Report, Watched, notice};
use crate::process::Exit;
use crate::progress::SilenceDetector;
use crate::run_dir::NOTICE;
use output::Output;

/// How often it is looked for progress.
const LOOK_EVERY_MS: u16 = 1_000;
const REASON: &str = "the pod is stopped";
/// What asks a container to end, and what a terminal sends.
const STOPS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// A program and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    /// The program and its arguments; at least one word.
    pub argv: Vec<String>,
    /// Its own, for what it reports and is told; made where it is not there.
    pub dir: PathBuf,
    pub checkpoint_dir: Option<PathBuf>,
    /// Made where they are not there and can be: a program finds its own directories.
    pub made_dirs: Vec<PathBuf>,
    /// How long it may take from the notice to its end.
    pub grace: Millis,
    /// The signal of the notice: `SIGTERM`, `USR1`.
    pub notice: Name,
    /// After which silence it counts as hung.
    pub stall: StallRule,
}

/// What a rank reported since the last time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankReport {
    pub progress: Option<Progress>,
    /// Those that are whole, in the order of their steps.
    pub checkpoints: Vec<Checkpoint>,
    /// It hangs: it has given no sign of life for so long.
    pub silent: Option<Millis>,
    /// Nothing follows.
    pub is_last: bool,
}

/// Whether a program that reported steps still gives signs of life.
struct Life {
    clock: Clock,
    silence: SilenceDetector,
    /// What it writes is a sign where its submitter did not say how long it may be silent.
    output: Option<Output>,
    is_told: bool,
}

impl Life {
    /// How long it has been silent, where that is too long: once for each silence.
    fn hung_for(
        &mut self,
        progress: Option<&Progress>,
        checkpoints: &[Checkpoint],
    ) -> Option<Millis> {
        let now = self.clock.now();
        match progress {
            Some(Progress { step: Some(_), .. }) => self.silence.reported(now),
            Some(_) => self.silence.gave_sign(now),
            None if !checkpoints.is_empty() => self.silence.gave_sign(now),
            None => {}
        }
        let written_at = || self.output.as_ref().and_then(Output::written_at);
        let silent = self.silence.hung_for(now, written_at);
        let was_told = std::mem::replace(&mut self.is_told, silent.is_some());
        silent.filter(|_| !was_told)
    }
}

/// Why a rank cannot be supervised.
#[derive(Debug, Error)]
pub enum RankError {
    #[error("`{}` cannot be used", path.display())]
    Dir { path: PathBuf, source: io::Error },
    #[error("`{program}` cannot be started")]
    Start { program: String, source: io::Error },
    #[error("signals cannot be received")]
    Signals(#[source] io::Error),
    #[error("what the program writes cannot be passed on")]
    Output(#[source] io::Error),
}

/// The signals that a supervisor waits for, which come to nobody else from now on. Threads that
/// begin later leave them alone, too.
#[derive(Debug)]
pub struct RankSignals(SignalFd);

impl RankSignals {
    /// # Errors
    /// When the system is out of descriptors.
    pub fn block() -> Result<Self, RankError> {
        let mut signals: SigSet = STOPS.into_iter().collect();
        signals.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let made = signals.thread_block().and_then(|()| SignalFd::with_flags(&signals, flags));
        made.map(Self).map_err(|errno| RankError::Signals(errno.into()))
    }
}

/// Runs the program of a rank to its end; gives its exit code, 128 and its number for a signal.
/// `tell` hears what it reports and must not wait.
///
/// # Errors
/// When it cannot be started.
pub fn run_rank(
    rank: &Rank,
    signals: &RankSignals,
    mut tell: impl FnMut(RankReport),
) -> Result<u8, RankError> {
    // Where one cannot be made its program says so, if it wants it.
    rank.made_dirs.iter().for_each(|dir| drop(fs::create_dir_all(dir)));
    let in_dir = |source| RankError::Dir { path: rank.dir.clone(), source };
    fs::create_dir_all(&rank.dir).map_err(in_dir)?;
    let cwd = std::env::current_dir().map_err(in_dir)?;
    let progress = rank.dir.join("progress.jsonl");
    let checkpoints = rank.checkpoint_dir.clone();
    let mut report = Report::new(progress.clone(), checkpoints, cwd, Watched::Yes);
    let clock = Clock::start(Time::ZERO);
    let mut child = start(rank, &progress)?;
    let program = Pid::from_raw(child.id() as i32);
    let pipes = (child.stdout.take(), child.stderr.take());
    let copied = (rank.stall == StallRule::Measured).then(|| Output::copy(pipes, clock));
    let output = copied.transpose().map_err(RankError::Output)?;
    let silence = SilenceDetector::new(rank.stall, clock.now());
    let mut life = Life { clock, silence, output, is_told: false };
    let mut is_first = true;
    let exit = loop {
        wait(signals, &report);
        while let Ok(Some(signal)) = signals.0.read_signal() {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(signal) if STOPS.contains(&signal) => {
                    give_notice(rank, program, is_first, signal);
                    is_first = false;
                }
                // Whoever ended is found below.
                _ => {}
            }
        }
        if let Some(exit) = reap(program) {
            break exit;
        }
        let (progress, checkpoints) = report.read(None);
        let silent = life.hung_for(progress.as_ref(), &checkpoints);
        if progress.is_some() || !checkpoints.is_empty() || silent.is_some() {
            tell(RankReport { progress, checkpoints, silent, is_last: false });
        }
    };
    life.output.iter().for_each(Output::finish);
    let orderly = if exit.is_orderly() { Orderly::Yes } else { Orderly::No };
    let (progress, checkpoints) = report.finish(orderly, None);
    tell(RankReport { progress, checkpoints, silent: None, is_last: true });
    Ok(exit.code() as u8)
}

/// In a group of its own, so that the notice reaches all that it starts.
fn start(rank: &Rank, progress: &Path) -> Result<Child, RankError> {
    let (program, arguments) = rank.argv.split_first().expect("there is at least one word");
    let output = || match rank.stall {
        StallRule::Measured => Stdio::piped(),
        StallRule::After(_) | StallRule::Never => Stdio::inherit(),
    };
    Command::new(program)
        .args(arguments)
        .stdout(output())
        .stderr(output())
        .env("HET_PROGRESS", progress)
        .env(NOTICE, notice_file(rank))
        .process_group(0)
        .spawn()
        .map_err(|source| RankError::Start { program: program.clone(), source })
}

fn notice_file(rank: &Rank) -> PathBuf {
    rank.dir.join("notice.json")
}

/// Until a signal comes, a checkpoint changes, or it is time to look.
fn wait(signals: &RankSignals, report: &Report) {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = vec![readable(signals.0.as_fd())];
    fds.extend(report.fd().map(readable));
    // Interrupted or not, everything is looked at.
    let _ = poll(&mut fds, PollTimeout::from(LOOK_EVERY_MS));
}

/// The first time as its checkpoints want it, then as it came.
fn give_notice(rank: &Rank, program: Pid, is_first: bool, came: Signal) {
    let signal = match is_first {
        true => {
            let text = notice::text(wall_time() + rank.grace, rank.grace, REASON);
            // The signal carries the same request.
            let _ = replace(&notice_file(rank), text.as_bytes());
            notice::signal_named(rank.notice.as_str())
        }
        false => came,
    };
    // It may have ended.
    let _ = killpg(program, signal);
}

/// Collects whoever ended: where this is the first process of a container, orphans, too. How the
/// program ended, once it has.
fn reap(program: Pid) -> Option<Exit> {
    loop {
        let (who, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(who, code)) => (who, Exit::Code(code)),
            Ok(WaitStatus::Signaled(who, signal, _)) => (who, Exit::Signal(signal)),
            Ok(WaitStatus::StillAlive) => return None,
            Ok(_) => continue,
            Err(_) => return Some(Exit::Unknown),
        };
        if who == program {
            return Some(exit);
        }
    }
}
