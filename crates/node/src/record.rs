//! The file that outlives a supervisor: which processes belong to a lease, for [`reap`].

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use het_core::LeaseId;
use serde::{Deserialize, Serialize};

use crate::NodeError;
use crate::environment::NOTICE;
use crate::order::RUN_DIR;
use crate::procfs;
use crate::sweep::sweep;

/// How long killed processes may take to go: one in an uninterruptible system call goes after it.
const REAP_LIMIT: Duration = Duration::from_secs(10);

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
        let pid = std::process::id() as i32;
        Self::of(pid).unwrap_or(Self { pid, start_ticks: 0 })
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
    pub(crate) supervisor: Identity,
    /// By rank; each leads its own group.
    pub(crate) ranks: Vec<Identity>,
}

impl Record {
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self).expect("text and numbers always become JSON");
        write_atomically(path, &text)
    }
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
pub(crate) fn reap(workdir: &Path) -> Result<Vec<Reaped>, NodeError> {
    let run_dir = workdir.join(RUN_DIR);
    let records = read_records(&run_dir)?;
    let own = Identity::own();
    for (_, record) in &records {
        let supervisor = record.supervisor;
        if supervisor != own && supervisor.lives() && record.boot_id == procfs::boot_id() {
            let (lease, pid) = (LeaseId(record.lease), supervisor.pid);
            return Err(NodeError::Supervised { workdir: workdir.to_owned(), lease, pid });
        }
    }
    let mut reaped = Vec::new();
    for (path, record) in records {
        reaped.push(reap_one(&run_dir, &record)?);
        let lease_dir = path.with_extension("");
        remove(&lease_dir, fs::remove_dir_all(&lease_dir))?;
        remove(&path, fs::remove_file(&path))?;
    }
    Ok(reaped)
}

fn reap_one(run_dir: &Path, record: &Record) -> Result<Reaped, NodeError> {
    let lease = LeaseId(record.lease);
    let notice = run_dir.join(format!("lease-{lease}")).join("notice.json");
    let mark = format!("{NOTICE}={}", notice.display());
    // The id of a dead leader may be another group's now; its processes still bear the mark.
    let groups: BTreeSet<i32> =
        record.ranks.iter().filter(|rank| rank.lives()).map(|rank| rank.pid).collect();
    let (killed, left) = if record.boot_id == procfs::boot_id() {
        sweep(&groups, &mark, Some(REAP_LIMIT))
    } else {
        Default::default()
    };
    if !left.is_empty() {
        return Err(NodeError::Unkillable { lease, pids: left });
    }
    let (job, stage) = (record.job.clone(), record.stage.clone());
    Ok(Reaped { lease, job, stage, processes: killed.len() })
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
            let text = fs::read_to_string(&path).map_err(trouble)?;
            if let Ok(record) = serde_json::from_str::<Record>(&text) {
                records.push((path, record));
            }
        }
    }
    records.sort_by_key(|(_, record)| record.lease);
    Ok(records)
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
        let record = Record { lease: 4, job, stage, boot_id, supervisor, ranks: Vec::new() };
        fs::create_dir_all(run_dir).expect("a directory can be made");
        record.write(&run_dir.join("lease-4.json")).expect("a file can be written");
    }

    #[test]
    fn a_lease_is_left_to_a_supervisor_that_lives() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut other = Command::new("sleep").arg("60").spawn().expect("`sleep` is there");
        let identity = Identity::of(other.id() as i32).expect("it runs");
        write(&dir.path().join(RUN_DIR), identity, procfs::boot_id());
        let refused = reap(dir.path());
        other.kill().expect("it can be killed");
        other.wait().expect("it can be waited for");
        assert!(matches!(refused, Err(NodeError::Supervised { .. })), "{refused:?}");
        assert_eq!(reap(dir.path()).expect("now it is nobody's").len(), 1);
    }

    #[test]
    fn after_a_reboot_only_the_files_are_left() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        write(&dir.path().join(RUN_DIR), Identity::own(), "another boot".to_owned());
        let reaped = reap(dir.path()).expect("files can be removed");
        assert_eq!(reaped[0].processes, 0);
        assert_eq!(reap(dir.path()).expect("nothing is left"), []);
    }
}
