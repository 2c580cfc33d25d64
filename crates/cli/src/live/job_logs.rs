//! What the ranks of a job write, attempt after attempt.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use het_files::{kind, list};
use het_wire::report::RunReport;

use super::log_reader::{LogReader, Piece};

/// The logs of which a user wants to know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    pub stage: Option<String>,
    pub rank: Option<u32>,
}

impl Selection {
    fn has_stage(&self, name: &str) -> bool {
        self.stage.as_ref().is_none_or(|stage| stage == name)
    }

    fn has_rank(&self, rank: u32) -> bool {
        self.rank.is_none_or(|wanted| wanted == rank)
    }
}

/// Which attempts are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    All,
    /// From the last one on that has begun.
    FromLast,
}

/// Most entries of a directory that are looked at: of attempts, or of the ranks of one.
const ENTRIES_MAX: usize = 100_000;

/// Where reading begins in logs that are there already, in bytes; at 0 in all others.
pub type Begins = BTreeMap<PathBuf, u64>;

/// The ends of all logs below a working directory: a job may be given one that others wrote to.
pub fn ends(workdir: &Path) -> Begins {
    let entries = |dir: &Path| list(dir, ENTRIES_MAX).entries.into_iter();
    let stages = entries(&workdir.join("logs"));
    let attempts = stages.flat_map(|stage| entries(&stage.path));
    let files = attempts.flat_map(|attempt| entries(&attempt.path));
    let length = |path: PathBuf| kind(&path).ok().map(|(_, metadata)| (path, metadata.len()));
    files.filter_map(|file| length(file.path)).collect()
}

/// Entries named `PREFIXnSUFFIX`, by n.
pub fn numbered(dir: &Path, prefix: &str, suffix: &str) -> Vec<(u32, PathBuf)> {
    let entries = list(dir, ENTRIES_MAX).entries.into_iter();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.name.to_str()?;
            let number = name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()?;
            Some((number, entry.path))
        })
        .collect();
    found.sort();
    found
}

/// Which rank of which stage writes; by name and number.
pub type Source = (String, u32);

/// What happened to the output of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    /// With the title of its source, where there are several.
    Written { source: Source, title: Option<String>, bytes: Vec<u8> },
    /// The beginning of a log was cut off before it was read.
    Cut { source: Source },
    /// What it wrote cannot be read, or not all of it.
    Unreadable { what: String, why: String },
    /// A process has ended, and all that it wrote is told.
    Ended { source: Source },
    /// A stage has begun again.
    Restarted { stage: String, attempt: u32 },
}

/// Whether there is more to read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    Nothing,
    More,
}

/// The logs of one job.
#[derive(Debug)]
pub struct JobLogs {
    selection: Selection,
    attempts: Attempts,
    begins: Begins,
    /// In the order of the job file.
    stages: Vec<StageLogs>,
}

/// The logs of a stage, one attempt at a time.
#[derive(Debug)]
struct StageLogs {
    name: String,
    dir: PathBuf,
    /// The attempt that is read, and the last one that has begun; they count from 1.
    attempt: u32,
    begun: u32,
    ranks: BTreeMap<u32, LogReader>,
    /// Ranks of the attempt that were there at the last look.
    seen: usize,
    writers: Writers,
}

/// Whether processes of a stage may still write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    Live,
    /// All have ended, and what they wrote last is not read.
    Gone,
    /// All is read.
    Told,
}

impl JobLogs {
    pub fn new(selection: Selection, attempts: Attempts, begins: Begins) -> Self {
        Self { selection, attempts, begins, stages: Vec::new() }
    }

    /// Which stages there are and which attempts of them have begun.
    pub fn update(&mut self, report: &RunReport) {
        let wanted = report.stages.iter().filter(|stage| self.selection.has_stage(&stage.name));
        for stage in wanted {
            let name = &stage.name;
            let found = self.stages.iter().position(|logs| logs.name == *name);
            let index = found.unwrap_or_else(|| {
                let attempt = match self.attempts {
                    Attempts::All => 1,
                    Attempts::FromLast => stage.attempts.max(1),
                };
                let dir = Path::new(&report.workdir).join("logs").join(name);
                self.stages.push(StageLogs::new(name, dir, attempt));
                self.stages.len() - 1
            });
            let logs = &mut self.stages[index];
            logs.begun = stage.attempts;
            let is_over = matches!(&*stage.state, "succeeded" | "failed" | "cancelled");
            logs.writers = match (is_over, logs.writers) {
                (false, _) => Writers::Live,
                (true, Writers::Live) => Writers::Gone,
                (true, writers) => writers,
            };
        }
    }

    /// Tells what is new, a piece of each log.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn read(&mut self, tell: &mut dyn FnMut(Followed)) -> io::Result<Rest> {
        let mut rest = Rest::Nothing;
        let stages = self.stages.len();
        for stage in &mut self.stages {
            while stage.attempt < stage.begun {
                // Its processes are gone: this is all.
                stage.look(&self.selection, &self.begins);
                stage.read_to_the_end(stages, tell)?;
                stage.next_attempt(tell);
            }
            if stage.writers == Writers::Gone {
                stage.look(&self.selection, &self.begins);
                stage.read_to_the_end(stages, tell)?;
                stage.writers = Writers::Told;
            }
            // Ranks start one after another: how many there are is known once no more come.
            if stage.look(&self.selection, &self.begins) == Ranks::AsBefore
                && stage.read(stages, tell)? == Rest::More
            {
                rest = Rest::More;
            }
        }
        Ok(rest)
    }

    /// Tells all that is left, once nobody writes any more.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn finish(&mut self, tell: &mut dyn FnMut(Followed)) -> io::Result<()> {
        self.read(tell)?;
        let stages = self.stages.len();
        for stage in &mut self.stages {
            stage.look(&self.selection, &self.begins);
            stage.read_to_the_end(stages, tell)?;
        }
        Ok(())
    }
}

/// What a look for the ranks of an attempt found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ranks {
    AsBefore,
    More,
}

impl StageLogs {
    fn new(name: &str, dir: PathBuf, attempt: u32) -> Self {
        Self {
            name: name.to_owned(),
            dir,
            attempt,
            begun: 0,
            ranks: BTreeMap::new(),
            seen: 0,
            writers: Writers::Live,
        }
    }

    fn look(&mut self, selection: &Selection, begins: &Begins) -> Ranks {
        let dir = self.dir.join(format!("attempt-{}", self.attempt));
        for (rank, path) in numbered(&dir, "rank-", ".log") {
            let begin = begins.get(&path).copied();
            let length = || fs::metadata(&path).map_or(0, |metadata| metadata.len());
            // A log that somebody else left there is none of this job.
            if selection.has_rank(rank) && begin.is_none_or(|end| end == 0 || end != length()) {
                let begin = begin.unwrap_or(0);
                self.ranks.entry(rank).or_insert_with(|| LogReader::new(path, begin));
            }
        }
        let before = std::mem::replace(&mut self.seen, self.ranks.len());
        if before == self.seen { Ranks::AsBefore } else { Ranks::More }
    }

    fn read(&mut self, stages: usize, tell: &mut dyn FnMut(Followed)) -> io::Result<Rest> {
        let mut rest = Rest::Nothing;
        let ranks = self.ranks.len();
        for (&rank, reader) in &mut self.ranks {
            let Piece { bytes, is_cut } = reader.read()?;
            let source = (self.name.clone(), rank);
            if is_cut {
                tell(Followed::Cut { source: source.clone() });
            }
            if !bytes.is_empty() {
                rest = Rest::More;
                let title = match (stages, ranks) {
                    (0 | 1, 0 | 1) => None,
                    (_, 0 | 1) => Some(self.name.clone()),
                    _ => Some(format!("{}/{rank}", self.name)),
                };
                tell(Followed::Written { source, title, bytes });
            }
        }
        Ok(rest)
    }

    fn read_to_the_end(&mut self, stages: usize, tell: &mut dyn FnMut(Followed)) -> io::Result<()> {
        while self.read(stages, tell)? == Rest::More {}
        for rank in self.ranks.keys() {
            tell(Followed::Ended { source: (self.name.clone(), *rank) });
        }
        Ok(())
    }

    fn next_attempt(&mut self, tell: &mut dyn FnMut(Followed)) {
        self.attempt += 1;
        self.ranks.clear();
        self.seen = 0;
        tell(Followed::Restarted { stage: self.name.clone(), attempt: self.attempt });
    }
}
