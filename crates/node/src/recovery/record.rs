//! The files that outlive a supervisor: which processes belong to a lease, for whoever comes after.
//!
//! ```text
//! RUN_DIR/record-N           who a lease is and what was chosen for it, before there is a process;
//!                            then who each is, written by itself before its program; after the
//!                            end another lease has the file (`record_file`)
//! RUN_DIR/lease-N/           what its programs see also in containers, which see nothing else
//!                            here; made once there is something to say, at the start where ranks
//!                            may settle something or run in containers
//!     notice                 that it is to stop, once it is
//!     notice.agreed          after which step, as its ranks settled it (`python/heterosis`) by
//!                            `.asked` and `.steps` beside it
//! RUN_DIR/lease-N.containers/RANK   the container of a rank
//! RUN_DIR/lease-N.sick-RANK  that the health check of a rank failed
//! RUN_DIR/progress/lease-N   what its program reports
//! ```
//!
//! None of it means anything after a reboot, which the record tells by the boot's id.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use het_core::LeaseId;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::NodeError;
use crate::cgroup::Group;
use crate::launch::container;
use crate::launch::environment::NOTICE;
use crate::launch::spec::{containers_path, lease_path, notice_path, progress_path};
use crate::process::kill::{Marks, sweep};
use crate::process::procfs;
use crate::recovery::record_file::{self as record_file, Notes, RecordFile, Spares, Text};

/// How long killed processes may take to go: one in an uninterruptible system call goes after it.
const REAP_LIMIT: Duration = Duration::from_secs(10);

/// All ranks of a gang are born within this time after their record was written: however many they
/// are, and however busy the machine is.
const BIRTHS_LIMIT_MS: u64 = 120_000;

/// A process that can be told from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
}

impl Identity {
    /// `None` when the process is gone.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        procfs::stat(pid).map(|stat| Self { pid, start_ticks: stat.start_ticks })
    }

    pub(crate) fn own() -> Self {
        static OWN: LazyLock<Identity> = LazyLock::new(|| {
            let pid = std::process::id() as i32;
            Identity::of(pid).unwrap_or(Identity { pid, start_ticks: 0 })
        });
        *OWN
    }

    fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// What the first line of `RUN_DIR/record-N` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) lease: u64,
    pub(crate) job: String,
    pub(crate) stage: String,
    pub(crate) boot_id: String,
    /// Its processes were born at this time of this boot or later, in clock ticks.
    pub(crate) since_ticks: u64,
    pub(crate) supervisor: Identity,
    pub(crate) port: u16,
    /// Core ids by rank, and which of them belong to it alone, by socket.
    pub(crate) cores: Vec<CoresRecord>,
    /// Directories of the control group, by rank; none where there are no groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cgroups: Vec<Vec<PathBuf>>,
}

/// The cores that were chosen for a rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CoresRecord {
    pub(crate) cores: Vec<u32>,
    pub(crate) owned: Vec<(u32, u32)>,
}

impl Record {
    /// Writes it; processes note who they are behind it.
    pub(crate) fn write(&self, spares: &mut Spares) -> io::Result<RecordFile> {
        let text = serde_json::to_string(self).expect("text and numbers always become JSON");
        spares.write(text, self.cores.len())
    }

    /// Whether this process is one of the lease's: it noted its id, leads a session as all of them
    /// do, and is as old. A program may change its environment and its name, but not these.
    pub(crate) fn is_rank(&self, pid: i32) -> bool {
        // One tick early, since both times are cut to ticks.
        let from = self.since_ticks.saturating_sub(1);
        procfs::leads_since(pid, from, from + procfs::millis_to_ticks(BIRTHS_LIMIT_MS))
    }

    /// Time since it was written, in the same boot.
    pub(crate) fn age(&self) -> Duration {
        let ticks = boot_ticks().saturating_sub(self.since_ticks);
        Duration::from_millis(procfs::ticks_to_millis(ticks).0)
    }

    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot_id == procfs::boot_id()
    }

    pub(crate) fn control_groups(&self) -> Vec<Group> {
        self.cgroups.iter().cloned().map(Group::of).collect()
    }
}

/// A record that lies in a run directory.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) record: Record,
    /// As they noted it: the id of one that ended may be somebody else's now.
    pub(crate) noted: Notes,
}

impl Found {
    /// # Errors
    /// When the file cannot be read. One that is not a record is nobody's.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        let Text::Record(text, noted) = record_file::read(path)? else { return Ok(None) };
        let record = serde_json::from_str(&text).ok();
        Ok(record.map(|record| Self { path: path.to_owned(), record, noted }))
    }

    /// Reads it again, for notes that were not there.
    pub(crate) fn again(self) -> Self {
        let lease = self.record.lease;
        let again = Self::read(&self.path).ok().flatten();
        again.filter(|found| found.record.lease == lease).unwrap_or(self)
    }

    pub(crate) fn lease(&self) -> LeaseId {
        LeaseId(self.record.lease)
    }

    pub(crate) fn lease_dir(&self) -> PathBuf {
        lease_path(self.path.parent().unwrap_or(&self.path), self.lease())
    }

    /// Its first processes that live.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = i32> + '_ {
        self.noted.values().copied().filter(|&pid| self.record.is_rank(pid))
    }

    /// Removes it and all that goes with it, as far as possible. What stays behind is a file
    /// without a process, which a later engine removes.
    pub(crate) fn forget(&self) {
        forget_rest(&self.lease_dir());
        let _ = fs::remove_file(&self.path);
    }
}

/// The present in clock ticks of this boot, as `/proc/PID/stat` counts them.
pub(crate) fn boot_ticks() -> u64 {
    let since = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    procfs::millis_to_ticks(since.as_millis() as u64)
}

/// Readers see the old file or the whole new one.
pub(crate) fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("tmp");
    fs::write(&draft, text)?;
    fs::rename(&draft, path)
}

/// A lease whose supervisor died, and what was left of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaped {
    pub lease: LeaseId,
    pub job: String,
    pub stage: String,
    /// Processes that still ran and were killed.
    pub processes: usize,
}

/// See [`crate::Node::reap`].
pub(crate) fn reap(run_dir: &Path) -> Result<Vec<Reaped>, NodeError> {
    let records = match all(run_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        records => records.map_err(|source| trouble(run_dir, source))?,
    };
    let own = Identity::own();
    for found in &records {
        let supervisor = found.record.supervisor;
        if supervisor != own && supervisor.lives() && found.record.is_of_this_boot() {
            let (lease, pid) = (found.lease(), supervisor.pid);
            return Err(NodeError::Supervised { run_dir: run_dir.to_owned(), lease, pid });
        }
    }
    remove_blanks(run_dir);
    let mut reaped = Vec::new();
    for found in records {
        reaped.push(reap_one(&found)?);
        remove_all(&found)?;
    }
    Ok(reaped)
}

fn reap_one(found: &Found) -> Result<Reaped, NodeError> {
    let (record, lease_dir) = (&found.record, found.lease_dir());
    // The id of a dead leader may be another group's now; its processes still bear the mark.
    let (groups, mark) = (found.ranks().collect(), mark(&lease_dir));
    let cgroups = record.control_groups();
    let (killed, left) = if record.is_of_this_boot() {
        sweep(&Marks { groups, mark, cgroups: &cgroups }, Some(REAP_LIMIT))
    } else {
        Default::default()
    };
    container::remove_left(&lease_dir);
    cgroups.iter().for_each(Group::remove);
    let lease = found.lease();
    if !left.is_empty() {
        return Err(NodeError::Unkillable { lease, pids: left });
    }
    let (job, stage) = (record.job.clone(), record.stage.clone());
    Ok(Reaped { lease, job, stage, processes: killed.len() })
}

/// What only processes of a lease have in their environment.
pub(crate) fn mark(lease_dir: &Path) -> String {
    [NOTICE, "=", &notice_path(lease_dir).to_string_lossy()].concat()
}

/// The records of a run directory, in order of their leases.
fn all(run_dir: &Path) -> io::Result<Vec<Found>> {
    let (mut records, unread) = readable(run_dir);
    records.sort_by_key(Found::lease);
    unread.into_iter().next().map_or(Ok(records), Err)
}

/// The records that can be read, and what cannot.
pub(crate) fn readable(run_dir: &Path) -> (Vec<Found>, Vec<io::Error>) {
    let (mut records, mut unread) = (Vec::new(), Vec::new());
    let paths = record_file::files(run_dir).unwrap_or_else(|error| {
        unread.push(error);
        Vec::new()
    });
    for path in paths {
        match Found::read(&path) {
            Ok(found) => records.extend(found),
            Err(error) => unread.push(error),
        }
    }
    (records, unread)
}

/// The leases of this boot whose end is not durable yet, as far as they can be read.
pub(crate) fn live(run_dir: &Path) -> Vec<Found> {
    let (records, _) = readable(run_dir);
    records.into_iter().filter(|found| found.record.is_of_this_boot()).collect()
}

/// What goes with a record. The record itself goes last, so that a death in between leaves
/// something to find.
fn removals(lease_dir: &Path) -> impl Iterator<Item = (PathBuf, io::Result<()>)> {
    let dirs = [lease_dir.to_owned(), containers_path(lease_dir)];
    let dirs = dirs.into_iter().map(|path| (fs::remove_dir_all(&path), path));
    let progress = progress_path(lease_dir);
    dirs.chain([(fs::remove_file(&progress), progress)]).map(|(done, path)| (path, done))
}

fn remove_all(found: &Found) -> Result<(), NodeError> {
    removals(&found.lease_dir()).try_for_each(|(path, done)| remove(&path, done))?;
    remove(&found.path, fs::remove_file(&found.path))
}

/// Removes all of a lease that is over but its record.
pub(crate) fn forget_rest(lease_dir: &Path) {
    // Each is tried: they do not depend on each other any more.
    removals(lease_dir).for_each(drop);
}

/// Removes what an engine kept for its next leases that was killed, or was writing then: it had no
/// process yet.
pub(crate) fn remove_blanks(run_dir: &Path) {
    for path in record_file::files(run_dir).unwrap_or_default() {
        if matches!(Found::read(&path), Ok(None)) {
            let _ = fs::remove_file(path);
        }
    }
}

fn trouble(path: &Path, source: io::Error) -> NodeError {
    NodeError::Record { path: path.to_owned(), source }
}

fn remove(path: &Path, done: io::Result<()>) -> Result<(), NodeError> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(trouble(path, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn write(run_dir: &Path, supervisor: Identity, boot_id: String) {
        let (job, stage) = ("demo".to_owned(), "train".to_owned());
        let (since_ticks, port, cores, cgroups) = (0, 0, Vec::new(), Vec::new());
        let lease = 4;
        let record =
            Record { lease, job, stage, boot_id, since_ticks, supervisor, port, cores, cgroups };
        record.write(&mut Spares::new(run_dir)).expect("a file can be written");
    }

    #[test]
    fn a_lease_is_left_to_a_supervisor_that_lives() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut other = Command::new("sleep").arg("60").spawn().expect("`sleep` is there");
        let identity = Identity::of(other.id() as i32).expect("it runs");
        write(dir.path(), identity, procfs::boot_id());
        let refused = reap(dir.path());
        other.kill().expect("it can be killed");
        other.wait().expect("it can be waited for");
        assert!(matches!(refused, Err(NodeError::Supervised { .. })), "{refused:?}");
        assert_eq!(reap(dir.path()).expect("now it is nobody's").len(), 1);
    }

    #[test]
    fn after_a_reboot_only_the_files_are_left() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        write(dir.path(), Identity::own(), "another boot".to_owned());
        let reaped = reap(dir.path()).expect("files can be removed");
        assert_eq!(reaped[0].processes, 0);
        assert_eq!(reap(dir.path()).expect("nothing is left"), []);
    }
}
