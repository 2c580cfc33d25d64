//! Where jobs keep their files: `$XDG_STATE_HOME/heterosis/jobs/N/`.
//!
//! ```text
//! jobs/7/events.redb   the event store
//! jobs/7/report.json   the newest report, readable while the job runs
//! jobs/7/work/         the job's own directory: outputs, logs, checkpoints
//! run/                 files of live leases
//! server/              the server's event store, socket, tokens and log
//! calibration/         what was measured of device classes
//! socket               where a server of several users is reached
//! users/ada/           what jobs of `ada` write, hers alone to change: jobs/7/, run/, kept/
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use het_files::replace;
use thiserror::Error;

use crate::calibrations::Calibrations;

/// Why the state directory cannot be used.
#[derive(Debug, Error)]
pub enum HomeError {
    #[error("neither `HET_HOME`, `XDG_STATE_HOME` nor `HOME` says where to keep state")]
    Nowhere,
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The state directory of this user.
#[derive(Debug, Clone)]
pub struct Home {
    root: PathBuf,
}

/// The files of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDir {
    pub id: u64,
    pub path: PathBuf,
    /// For files of its live leases, where it has an engine of its own.
    pub run: PathBuf,
}

impl Home {
    /// Where `het server install` puts the server of a machine.
    pub const OF_SYSTEM: &str = "/var/lib/heterosis";

    /// Before the id of a job that has an engine of its own.
    pub(crate) const JOB_ENGINE: &str = "job-";

    /// From `HET_HOME`, `XDG_STATE_HOME` or `HOME`, whichever the lookup finds first.
    ///
    /// # Errors
    /// When none is set or the directory cannot be made.
    pub fn find(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, HomeError> {
        let home = Self::named(lookup)?;
        let jobs = home.root.join("jobs");
        // What jobs write is for their owner; who wants to share it names another directory.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&jobs);
        made.map_err(|source| HomeError::Io { path: jobs, source })?;
        Ok(home)
    }

    /// The same, and nothing is made.
    ///
    /// # Errors
    /// When no variable is set.
    pub fn named(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, HomeError> {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = set("HET_HOME")
            .or_else(|| set("XDG_STATE_HOME").map(|state| state.join("heterosis")))
            .or_else(|| set("HOME").map(|home| home.join(".local/state/heterosis")));
        Ok(Self { root: root.ok_or(HomeError::Nowhere)? })
    }

    /// The one in this place.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// A server's that the whole machine uses.
    pub fn of_system() -> Self {
        Self { root: PathBuf::from(Self::OF_SYSTEM) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory for files of live leases of one engine. Not in memory, where it would cost
    /// less: what a user has there goes when the user logs out, and programs outlive that.
    pub fn run_dir(&self, engine: &str) -> PathBuf {
        self.run_root().join(engine)
    }

    /// What holds the directories of all engines.
    pub(crate) fn run_root(&self) -> PathBuf {
        self.root.join("run")
    }

    /// What was measured of device classes.
    pub fn calibrations(&self) -> Calibrations {
        Calibrations::below(self.root.join("calibration"))
    }

    /// The directory of the server's own files, which only its owner can open.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn server_dir(&self) -> Result<PathBuf, HomeError> {
        let path = self.root.join("server");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|source| HomeError::Io { path: path.clone(), source })?;
        Ok(path)
    }

    /// The event store of the server.
    pub fn store(&self) -> PathBuf {
        self.root.join("server/events.redb")
    }

    /// The second copy of the tail of the server's event log.
    pub fn store_copy(&self) -> PathBuf {
        self.root.join("server/copy")
    }

    /// Where the server is reached.
    pub fn socket(&self) -> PathBuf {
        self.root.join("server/socket")
    }

    /// Where a server of several users is reached.
    pub fn shared_socket(&self) -> PathBuf {
        self.root.join("socket")
    }

    /// Whether a server of several users has it.
    pub fn is_shared(&self) -> bool {
        self.users().is_dir()
    }

    /// Where each user has a directory for jobs.
    pub fn users(&self) -> PathBuf {
        self.root.join("users")
    }

    /// The directory of a job that runs as this user.
    pub fn work_of(&self, user: &str, job: u64) -> PathBuf {
        self.users().join(user).join("jobs").join(job.to_string())
    }

    /// What submissions leave beside their events.
    pub fn kept(&self) -> PathBuf {
        self.root.join("server/kept")
    }

    pub fn tokens(&self) -> PathBuf {
        self.root.join("server/tokens.json")
    }

    /// Holds the id of the server that came as far as serving.
    pub fn ready(&self) -> PathBuf {
        self.root.join("server/ready")
    }

    /// How the state's time follows from the time since boot.
    pub fn clock(&self) -> PathBuf {
        self.root.join("server/clock")
    }

    /// In which epoch of a cluster's leaders the log here was the leader's.
    pub fn epoch(&self) -> PathBuf {
        self.root.join("server/epoch")
    }

    /// Whether the quotas of the log are those of an object of the cluster.
    pub fn quotas_of_object(&self) -> PathBuf {
        self.root.join("server/quotas-of-object")
    }

    /// Which directory this is, if not a copy.
    pub fn instance(&self) -> PathBuf {
        self.root.join("server/instance")
    }

    /// What made servers stand still.
    pub fn stalls(&self) -> PathBuf {
        self.root.join("server/stalls.json")
    }

    /// A backup that is being made.
    pub fn backup(&self) -> PathBuf {
        self.root.join("server/backup")
    }

    /// Takes up the room that is kept for the ends of jobs.
    pub fn reserve(&self) -> PathBuf {
        self.root.join("server/reserve")
    }

    /// What the server has to say beside its answers.
    pub fn server_log(&self) -> PathBuf {
        self.root.join("server/log")
    }

    /// The directory of a job, whether it is there or not.
    pub fn job(&self, id: u64) -> JobDir {
        let run = self.run_dir(&format!("{}{id}", Self::JOB_ENGINE));
        JobDir { id, path: self.root.join("jobs").join(id.to_string()), run }
    }

    pub fn lock_file(&self) -> PathBuf {
        self.root.join("machine.lock")
    }

    /// Every job, oldest first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn jobs(&self) -> Result<Vec<JobDir>, HomeError> {
        let mut ids = numbers(&self.root.join("jobs"))?;
        ids.sort_unstable();
        Ok(ids.into_iter().map(|id| self.job(id)).collect())
    }

    /// Every job that ran as this user, oldest first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn jobs_of(&self, user: &str) -> Result<Vec<JobDir>, HomeError> {
        let dir = self.users().join(user);
        let mut ids = numbers(&dir.join("jobs"))?;
        ids.sort_unstable();
        let job = |id| JobDir { id, path: self.work_of(user, id), run: dir.join("run") };
        Ok(ids.into_iter().map(job).collect())
    }

    /// Jobs that left files here and have no event store of their own, oldest first: what they are
    /// only the server's store says.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn server_jobs(&self) -> Result<Vec<JobDir>, HomeError> {
        let mut jobs = self.jobs()?;
        jobs.retain(|job| !job.store().exists() && (job.report().exists() || job.work().exists()));
        Ok(jobs)
    }

    /// Makes the directory of the next job.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new_job(&self) -> Result<JobDir, HomeError> {
        let mut id = self.jobs()?.last().map_or(1, |job| job.id + 1);
        loop {
            let path = self.root.join("jobs").join(id.to_string());
            match fs::create_dir(&path) {
                Ok(()) => return Ok(self.job(id)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => id += 1,
                Err(source) => return Err(HomeError::Io { path, source }),
            }
        }
    }
}

/// Names in a directory that are numbers.
fn numbers(path: &Path) -> Result<Vec<u64>, HomeError> {
    let trouble = |source| HomeError::Io { path: path.to_owned(), source };
    let entries = fs::read_dir(path).map_err(trouble)?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

impl JobDir {
    pub fn store(&self) -> PathBuf {
        self.path.join("events.redb")
    }

    /// Longest report that is read.
    pub const REPORT_BYTES_MAX: u64 = 64 << 20;

    pub fn report(&self) -> PathBuf {
        self.path.join("report.json")
    }

    /// What its submission leaves beside its event, where it has an engine of its own.
    pub fn kept(&self) -> PathBuf {
        self.path.join("kept")
    }

    pub fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    /// Replaces the report as a whole.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_report(&self, text: &str) -> io::Result<()> {
        replace(&self.report(), text.as_bytes())
    }
}
