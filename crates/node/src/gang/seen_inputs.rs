//! Which files a gang reads while it starts, looked up in what its processes have open and mapped.
//! Files are looked at on a thread of their own: they may lie on a file system that hangs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use het_core::{MeasuredNeeds, Millis, Time};
use het_files::Kind;

use super::process::Process;
use super::processes::Processes;
use crate::launch::GangSpec;
use crate::process::procfs;

/// From the start to the first look: who has ended by then starts fast enough.
const FIRST_LOOK: Millis = Millis(500);
/// Between two looks at first. What is read within it is read fast enough.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Later they are as far apart as a part of the time that has passed.
const PASSED_PART: u32 = 20;
/// A look that takes long is followed by so many times as long without one.
const REST_FACTOR: u32 = 20;
/// By then a program has started.
const LOOK_LIMIT: Duration = Duration::from_secs(300);
/// Smaller files are read faster than they are looked for.
const BYTES_MIN: u64 = 1 << 20;
/// Where all of them together are smaller, it is not worth saying.
const SUM_BYTES_MIN: u64 = 32 << 20;
/// Paths that are looked at.
const PATHS_MAX: usize = 100_000;

/// What is known of one gang.
#[derive(Debug)]
pub(super) enum SeenInputs {
    /// Nobody looks, or not any more.
    None,
    Due(Time),
    /// A thread looks as long as the sender is there.
    Looking {
        found: Arc<Mutex<Found>>,
        _sender: Sender<Over>,
    },
}

/// The files, with their sizes.
type Found = BTreeSet<(u64, PathBuf)>;

/// What nobody ever sends.
#[derive(Debug)]
pub(super) enum Over {}

impl SeenInputs {
    /// Nobody looks where the job file names them, nor in a container, whose paths are others.
    pub(super) fn begin(spec: &GangSpec, now: Time) -> Self {
        let launch = &spec.launch;
        match launch.inputs.is_empty() && launch.container.is_none() {
            true => Self::Due(now + FIRST_LOOK),
            false => Self::None,
        }
    }

    /// When [`Self::look`] has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Due(at) => Some(*at),
            Self::None | Self::Looking { .. } => None,
        }
    }

    /// Begins with looking when it is due.
    pub(super) fn look(&mut self, now: Time, spec: &GangSpec, processes: &Processes) {
        if self.deadline().is_none_or(|at| at > now) {
            return;
        }
        let found = Arc::<Mutex<Found>>::default();
        let search = Search {
            ranks: processes.iter().filter_map(Process::valid_pid).collect(),
            written: spec.written_dirs(),
            since: Instant::now(),
            before: SystemTime::now() - Duration::from_millis(FIRST_LOOK.0),
            known: BTreeSet::new(),
            found: Arc::clone(&found),
        };
        let (sender, over) = channel();
        let thread = thread::Builder::new().name("inputs".to_owned());
        *self = match thread.spawn(move || search.run(&over)) {
            Ok(_) => Self::Looking { found, _sender: sender },
            Err(_) => Self::None,
        };
    }

    /// Ends looking; the largest files that were found, by path.
    pub(super) fn take(&mut self) -> Vec<String> {
        let Self::Looking { found, .. } = std::mem::replace(self, Self::None) else {
            return Vec::new();
        };
        let found = found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.iter().map(|(bytes, _)| bytes).sum::<u64>() < SUM_BYTES_MIN {
            return Vec::new();
        }
        let paths = found.iter().rev().filter_map(|(_, path)| path.to_str());
        let paths = paths.filter(|path| path.len() <= MeasuredNeeds::INPUT_BYTES_MAX);
        paths.take(MeasuredNeeds::INPUTS_MAX).map(str::to_owned).collect()
    }
}

/// What the thread does.
struct Search {
    ranks: Vec<i32>,
    /// Where its programs write.
    written: Vec<PathBuf>,
    since: Instant,
    /// What was written later was perhaps written by its programs.
    before: SystemTime,
    /// Paths that were looked at.
    known: BTreeSet<PathBuf>,
    found: Arc<Mutex<Found>>,
}

impl Search {
    /// Until it is over.
    fn run(mut self, over: &Receiver<Over>) {
        while self.since.elapsed() < LOOK_LIMIT {
            let begun = Instant::now();
            let pids: Vec<i32> = self.ranks.iter().flat_map(|&rank| procfs::tree(rank)).collect();
            for path in pids.into_iter().flat_map(procfs::files_read) {
                if self.since.elapsed() >= LOOK_LIMIT {
                    return;
                }
                if let Some(bytes) = self.size_of_input(&path) {
                    self.found.lock().unwrap_or_else(PoisonError::into_inner).insert((bytes, path));
                }
            }
            let rest = begun.elapsed() * REST_FACTOR;
            let rest = LOOK_EVERY.max(rest).max(self.since.elapsed() / PASSED_PART);
            match over.recv_timeout(rest) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// None for what is no input, or was looked at before.
    fn size_of_input(&mut self, path: &Path) -> Option<u64> {
        let is_known = self.known.len() >= PATHS_MAX || self.known.contains(path);
        if is_known || self.written.iter().any(|dir| path.starts_with(dir)) {
            return None;
        }
        self.known.insert(path.to_owned());
        let (kind, file) = het_files::kind(path).ok()?;
        let is_old = file.modified().is_ok_and(|at| at < self.before);
        (kind == Kind::File && is_old && file.len() >= BYTES_MIN).then_some(file.len())
    }
}
