//! Everything a gang reports while it runs, gathered from its files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::SystemTime;

use het_core::{Checkpoint, Micro, Progress};
use serde::Deserialize;
use serde_json::Value;

use crate::checkpoint::tracker::{Saves, step_of};
use crate::checkpoint::watch::{STATE_FILE, Sign, Watch};
use crate::progress::lines::{Lines, Tally};

/// What the user is told then.
const BLIND: &str = "progress is read only at the end: inotify cannot be used, \
                     hint: raise `fs.inotify.max_user_instances`";

/// Bytes read at once from the progress file.
const CHUNK_BYTES: usize = 64 * 1024;
/// Largest `trainer_state.json` that is read: it holds the whole log of a run.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// Follows the progress file and the checkpoint directory of one gang.
#[derive(Debug)]
pub(crate) struct Report {
    progress: PathBuf,
    offset: u64,
    inode: u64,
    lines: Lines,
    tally: Tally,
    saves: Saves,
    saves_dir: Option<PathBuf>,
    /// Checkpoints that were heeded, or are of earlier attempts.
    old: BTreeSet<u64>,
    watch: Option<Watch>,
    /// Programs' relative paths start here.
    cwd: PathBuf,
}

impl Report {
    /// Begins to follow. Without inotify all is read at the end, and the user is told.
    pub(crate) fn begin(
        progress: PathBuf,
        saves_dir: Option<PathBuf>,
        cwd: PathBuf,
        sight: Sight,
    ) -> Self {
        let watch = saves_dir.as_deref().map(Watch::new).transpose();
        let mut tally = Tally::default();
        if watch.is_err() || sight == Sight::Blind {
            tally.suggest(&Progress { message: Some(BLIND.to_owned()), ..Progress::default() });
        }
        let mut report = Self {
            progress,
            offset: 0,
            inode: 0,
            lines: Lines::default(),
            tally,
            saves: Saves::default(),
            old: BTreeSet::new(),
            saves_dir,
            watch: watch.ok().flatten(),
            cwd,
        };
        report.old = report.steps_on_disk();
        report
    }

    /// Looks for what appeared since then, while nobody watched.
    pub(crate) fn catch_up(&mut self, since: SystemTime) {
        let dir = self.saves_dir.clone();
        let is_old = |step: &u64| {
            let path = dir.as_ref().map(|dir| dir.join(format!("checkpoint-{step}")));
            let changed = path.and_then(|path| fs::metadata(path).ok()?.modified().ok());
            changed.is_none_or(|changed| changed < since)
        };
        self.old.retain(is_old);
        self.heed(Sign::Missed);
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.tally.is_done()
    }

    /// There was a progress file.
    pub(crate) fn has_read(&self) -> bool {
        self.inode != 0
    }

    /// Reads what is new and gives it: progress, then checkpoints.
    pub(crate) fn read(&mut self) -> (Option<Progress>, Vec<Checkpoint>) {
        let signs = self.watch.as_ref().map(Watch::read).unwrap_or_default();
        for sign in signs {
            self.heed(sign);
        }
        self.read_lines();
        self.take()
    }

    /// As [`Self::read`], after every process has ended: nothing is left behind.
    pub(crate) fn finish(&mut self, all_orderly: Orderly) -> (Option<Progress>, Vec<Checkpoint>) {
        let signs = self.watch.as_ref().map(Watch::read).unwrap_or_default();
        for sign in signs {
            self.heed(sign);
        }
        self.heed(Sign::Missed);
        self.read_lines();
        self.lines.finish(&mut self.tally);
        if all_orderly == Orderly::Yes {
            self.saves.exited_orderly();
        }
        self.take()
    }

    fn heed(&mut self, sign: Sign) {
        match sign {
            Sign::Created(step) => self.created(step),
            Sign::MovedIn(step) => {
                self.old.insert(step);
                self.saves.moved_in(step);
            }
            Sign::StateWritten(step) => self.state_written(step),
            Sign::Missed => {
                let seen: Vec<u64> = self.steps_on_disk().difference(&self.old).copied().collect();
                for step in seen {
                    if !self.saves.is_open(step) {
                        self.created(step);
                    }
                }
            }
        }
    }

    fn created(&mut self, step: u64) {
        self.old.insert(step);
        self.saves.created(step);
        if let Some(watch) = &mut self.watch {
            watch.look_inside(step);
        }
        // It may have been written before anybody looked.
        self.state_written(step);
    }

    /// Half a file is not JSON: another sign follows when the rest is there.
    fn state_written(&mut self, step: u64) {
        if self.state(step).is_some() {
            self.saves.state_written(step);
        }
    }

    fn state(&self, step: u64) -> Option<TrainerState> {
        let path = self.saves_dir.as_ref()?.join(format!("checkpoint-{step}")).join(STATE_FILE);
        let file = File::open(path).ok()?;
        serde_json::from_reader(std::io::BufReader::new(file.take(STATE_BYTES_MAX))).ok()
    }

    fn steps_on_disk(&self) -> BTreeSet<u64> {
        let entries = self.saves_dir.as_ref().and_then(|dir| fs::read_dir(dir).ok());
        entries
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| step_of(entry.file_name().to_str()?))
            .collect()
    }

    /// Reads to the end that the file has now; from the start when it was replaced or cut.
    fn read_lines(&mut self) {
        let Ok(mut file) = File::open(&self.progress) else { return };
        let Ok(metadata) = file.metadata() else { return };
        if metadata.ino() != self.inode || metadata.len() < self.offset {
            self.inode = metadata.ino();
            self.offset = 0;
            self.lines.reset();
        }
        if file.seek(SeekFrom::Start(self.offset)).is_err() {
            return;
        }
        let mut rest = file.take(metadata.len() - self.offset);
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(length @ 1..) = rest.read(&mut chunk) {
            self.offset += length as u64;
            self.lines.feed(&chunk[..length], &mut self.tally);
        }
    }

    fn take(&mut self) -> (Option<Progress>, Vec<Checkpoint>) {
        let mut found = Vec::new();
        for step in self.saves.take() {
            if let Some(watch) = &mut self.watch {
                watch.stop_looking(step);
            }
            if let Some(state) = self.state(step) {
                self.tally.suggest(&state.progress());
            }
            let path = self.saves_dir.as_ref().map(|dir| dir.join(format!("checkpoint-{step}")));
            // A program that keeps only the newest may have deleted it again.
            if let Some(path) = path.filter(|path| path.is_dir()) {
                found.push(Checkpoint { step, path: path.to_string_lossy().into_owned() });
            }
        }
        let (progress, mut told) = self.tally.take();
        for checkpoint in &mut told {
            let path = self.cwd.join(&checkpoint.path);
            checkpoint.path = path.to_string_lossy().into_owned();
        }
        found.extend(told);
        found.sort_by_key(|checkpoint| checkpoint.step);
        found.retain(|checkpoint| self.saves.is_news(&checkpoint.path));
        (progress, found)
    }
}

/// Whether somebody tells of changes of the progress file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    Seeing,
    Blind,
}

/// Whether every process exited as it wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orderly {
    Yes,
    No,
}

/// The part of a Hugging Face `trainer_state.json` that is progress.
#[derive(Debug, Deserialize)]
struct TrainerState {
    global_step: u64,
    #[serde(default)]
    max_steps: u64,
    #[serde(default)]
    log_history: Vec<Value>,
}

impl TrainerState {
    fn progress(&self) -> Progress {
        let loss = self.log_history.iter().rev().find_map(|row| row.get("loss")?.as_f64());
        Progress {
            step: Some(self.global_step),
            total: (self.max_steps > 0).then_some(self.max_steps),
            loss: loss.and_then(Micro::from_f64),
            ..Progress::default()
        }
    }
}
