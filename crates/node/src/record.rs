//! The files that outlive a supervisor: which processes belong to a lease, for whoever comes after.
//!
//! ```text
//! RUN_DIR/lease-N.json       one line: who it is and what was chosen for it, before there is a
//!                            process; then `RANK PID` a line, written by each before its program;
//!                            after its end a blank, until another lease has the file (`slip`)
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

use std::collections::{BTreeMap, BTreeSet};
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
use crate::container;
use crate::environment::NOTICE;
use crate::order::{containers_path, lease_path, notice_path, progress_path};
use crate::procfs;
use crate::slip::{Slip, Spares, is_blank};
use crate::sweep::{Marks, sweep};

/// How long killed processes may take to go: one in an uninterruptible system call goes after it.
const REAP_LIMIT: Duration = Duration::from_secs(10);

/// All ranks of a gang are born within this time after their record was written.
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

/// What `WORKDIR/run/lease-N.json` says.
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
    /// Writes it; processes note who they are on the descriptor. Half a record, left by a death in
    /// the middle, says that no process had begun. One that is there already is of a lease of the
    /// same number whose supervisor died.
    pub(crate) fn create(&self, path: &Path, spares: &mut Spares) -> io::Result<Slip> {
        let mut text = serde_json::to_string(self).expect("text and numbers always become JSON");
        text.push('\n');
        let mut slip = spares.take(path).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                forget(path);
                spares.take(path)
            }
            _ => Err(error),
        })?;
        slip.write(&text, self.cores.len())?;
        Ok(slip)
    }

    /// Whether this process is one of the lease's: it noted its id, leads a session as all of them
    /// do, and is as old. A program may change its environment and its name, but not these.
    pub(crate) fn is_rank(&self, pid: i32) -> bool {
        // One tick early, since both times are cut to ticks.
        let from = self.since_ticks.saturating_sub(1);
        procfs::leads_since(pid, from, from + procfs::millis_to_ticks(BIRTHS_LIMIT_MS))
    }

    /// Time since it was written.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(
            procfs::ticks_to_millis(boot_ticks().saturating_sub(self.since_ticks)).0,
        )
    }

    pub(crate) fn control_groups(&self) -> Vec<Group> {
        self.cgroups.iter().cloned().map(Group::of).collect()
    }

    /// Of this boot; `None` where there is none, or of a boot that is over.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let record: Self = serde_json::from_str(text.lines().next()?).ok()?;
        (record.boot_id == procfs::boot_id()).then_some(record)
    }
}

/// Processes by rank, as they noted it. A line that is cut short was not finished: its program had
/// not begun.
pub(crate) fn noted(record: &Path) -> BTreeMap<u32, i32> {
    let text = fs::read_to_string(record).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let pair = |line: &str| {
        let (rank, pid) = line.split_once(' ')?;
        Some((rank.parse().ok()?, pid.parse().ok()?))
    };
    whole.lines().skip(1).filter_map(pair).collect()
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
    let records = read_records(run_dir)?;
    let own = Identity::own();
    for (_, record) in &records {
        let supervisor = record.supervisor;
        if supervisor != own && supervisor.lives() && record.boot_id == procfs::boot_id() {
            let (lease, pid) = (LeaseId(record.lease), supervisor.pid);
            return Err(NodeError::Supervised { run_dir: run_dir.to_owned(), lease, pid });
        }
    }
    let mut reaped = Vec::new();
    for (path, record) in records {
        reaped.push(reap_one(&path, &record)?);
        remove_all(&path)?;
    }
    Ok(reaped)
}

fn reap_one(path: &Path, record: &Record) -> Result<Reaped, NodeError> {
    let lease = LeaseId(record.lease);
    let mark = mark(path);
    // The id of a dead leader may be another group's now; its processes still bear the mark.
    let leaders = noted(path).into_values().filter(|&pid| record.is_rank(pid));
    let groups: BTreeSet<i32> = leaders.collect();
    let cgroups = record.control_groups();
    let (killed, left) = if record.boot_id == procfs::boot_id() {
        sweep(&Marks { groups, mark, cgroups: &cgroups }, Some(REAP_LIMIT))
    } else {
        Default::default()
    };
    container::remove_left(path);
    cgroups.iter().for_each(Group::remove);
    if !left.is_empty() {
        return Err(NodeError::Unkillable { lease, pids: left });
    }
    let (job, stage) = (record.job.clone(), record.stage.clone());
    Ok(Reaped { lease, job, stage, processes: killed.len() })
}

/// What only processes of the lease with this record have in their environment.
pub(crate) fn mark(record: &Path) -> String {
    format!("{NOTICE}={}", notice_path(record).display())
}

/// The leases of this boot whose end is not durable yet, by their records.
pub(crate) fn live(run_dir: &Path) -> Vec<(PathBuf, Record)> {
    let paths = fs::read_dir(run_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let records =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    records.filter_map(|path| Record::read(&path).map(|record| (path, record))).collect()
}

/// Records in order of their lease. A file that is not a record is nobody's lease.
fn read_records(run_dir: &Path) -> Result<Vec<(PathBuf, Record)>, NodeError> {
    let trouble = |source| NodeError::Record { path: run_dir.to_owned(), source };
    let entries = match fs::read_dir(run_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(trouble)?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry.map_err(trouble)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            if is_blank(&path) {
                fs::remove_file(&path).map_err(trouble)?;
                continue;
            }
            let text = fs::read_to_string(&path).map_err(trouble)?;
            let first = text.lines().next().unwrap_or_default();
            if let Ok(record) = serde_json::from_str::<Record>(first) {
                records.push((path, record));
            }
        }
    }
    records.sort_by_key(|(_, record)| record.lease);
    Ok(records)
}

/// Removes what goes with a record. The record itself goes last, so that a death in between leaves
/// something to find.
fn removals(record: &Path) -> impl Iterator<Item = (PathBuf, io::Result<()>)> {
    let dirs = [lease_path(record), containers_path(record)];
    let dirs = dirs.into_iter().map(|path| (fs::remove_dir_all(&path), path));
    let progress = progress_path(record);
    dirs.chain([(fs::remove_file(&progress), progress)]).map(|(done, path)| (path, done))
}

fn remove_all(record: &Path) -> Result<(), NodeError> {
    removals(record).try_for_each(|(path, done)| remove(&path, done))?;
    remove(record, fs::remove_file(record))
}

/// The same after the end of a lease, of which nobody has the file open. What stays behind is a
/// file without a process, which a later lease of the same number or a reap removes.
pub(crate) fn forget(record: &Path) {
    forget_rest(record);
    let _ = fs::remove_file(record);
}

/// Removes all of a lease that is over but its record.
pub(crate) fn forget_rest(record: &Path) {
    // Each is tried: they do not depend on each other any more.
    removals(record).for_each(drop);
}

/// Removes what an engine kept for its next leases that was killed.
pub(crate) fn remove_blanks(run_dir: &Path) {
    let paths = fs::read_dir(run_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let records =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    records.filter(|path| is_blank(path)).for_each(|path| drop(fs::remove_file(path)));
}

fn remove(path: &Path, done: io::Result<()>) -> Result<(), NodeError> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(NodeError::Record { path: path.to_owned(), source: error })
        }
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
        let path = run_dir.join("lease-4.json");
        record.create(&path, &mut Spares::default()).expect("a file can be written");
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

    #[test]
    fn a_note_that_is_cut_short_is_nobody() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let record = dir.path().join("lease-1.json");
        fs::write(&record, "{}\n0 17\n1 1").expect("a file can be written");
        assert_eq!(noted(&record), BTreeMap::from([(0, 17)]));
    }
}
