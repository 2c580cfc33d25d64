//! Ends the leases whose supervisor died, instead of adopting them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use het_core::LeaseId;

use super::abandoned::{self, AbandonedLease};
use crate::cgroup::Group;
use crate::error::NodeError;
use crate::process::{Identity, ProcessSelector, containers, kill_and_wait, settle};
use crate::run_dir::{marker_variable, remove_lease_files};

/// How long killed processes may take to end: those in an uninterruptible system call end after it.
const REAP_LIMIT: Duration = Duration::from_secs(10);

/// A lease whose supervisor had died, and whose processes were killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaped {
    pub lease: LeaseId,
    pub job: String,
    pub stage: String,
    /// Processes that ran and were killed.
    pub processes: usize,
}

/// See [`crate::Node::reap`].
pub(crate) fn reap(run_dir: &Path) -> Result<Vec<Reaped>, NodeError> {
    let records = match abandoned::all(run_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        records => records.map_err(|source| record_error(run_dir, source))?,
    };
    let own = Identity::own();
    for found in &records {
        let supervisor = found.record.supervisor;
        if supervisor != own && supervisor.is_running() && found.record.is_of_this_boot() {
            let (lease, pid) = (found.lease(), supervisor.pid);
            return Err(NodeError::Supervised { run_dir: run_dir.to_owned(), lease, pid });
        }
    }
    // What was asked of the dead one's launcher has begun after this, or never will.
    if run_dir.is_dir() {
        settle(run_dir).map_err(|source| record_error(run_dir, source))?;
    }
    abandoned::remove_blank_files(run_dir);
    let mut reaped = Vec::new();
    for found in records {
        found.kill_shim();
        let found = found.reread();
        reaped.push(reap_one(&found)?);
        remove_all(&found)?;
    }
    Ok(reaped)
}

fn reap_one(found: &AbandonedLease) -> Result<Reaped, NodeError> {
    let (record, lease_dir) = (&found.record, found.lease_dir());
    // The id of a dead leader may be another group's now; its processes still have the variable.
    let (groups, variable) = (found.ranks().collect(), marker_variable(&lease_dir));
    let cgroups = record.control_groups();
    let (killed, left) = if record.is_of_this_boot() {
        kill_and_wait(&ProcessSelector { groups, variable, cgroups: &cgroups }, Some(REAP_LIMIT))
    } else {
        Default::default()
    };
    containers::remove_of_lease(&lease_dir);
    cgroups.iter().for_each(Group::remove);
    let lease = found.lease();
    if !left.is_empty() {
        return Err(NodeError::Unkillable { lease, pids: left });
    }
    let (job, stage) = (record.job.clone(), record.stage.clone());
    Ok(Reaped { lease, job, stage, processes: killed.len() })
}

/// The record goes last, so that a crash in between leaves something to find.
fn remove_all(found: &AbandonedLease) -> Result<(), NodeError> {
    remove_lease_files(&found.lease_dir()).try_for_each(|(path, done)| remove(&path, done))?;
    remove(&found.path, fs::remove_file(&found.path))
}

fn record_error(path: &Path, source: io::Error) -> NodeError {
    NodeError::Record { path: path.to_owned(), source }
}

fn remove(path: &Path, done: io::Result<()>) -> Result<(), NodeError> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(record_error(path, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::procfs;
    use crate::recovery::record::{RECORD_VERSION, Record};
    use crate::recovery::record_file::RecordFiles;
    use crate::recovery::refuse_later_records;

    fn write(run_dir: &Path, supervisor: Identity, boot_id: String) {
        let (job, stage) = ("demo".to_owned(), "train".to_owned());
        let (since_ticks, port, cores, cgroups) = (0, 0, Vec::new(), Vec::new());
        let lease = 4;
        let record = Record {
            version: RECORD_VERSION,
            lease,
            job,
            stage,
            boot_id,
            since_ticks,
            supervisor,
            shim: None,
            port,
            warm: false,
            cores,
            cgroups,
        };
        record.write(&mut RecordFiles::new(run_dir)).expect("a file can be written");
    }

    #[test]
    fn a_record_of_a_later_version_is_refused_while_its_programs_may_run() {
        let check = |boot_id: &str, expected: Option<&str>| {
            let dir = tempfile::tempdir().expect("a temporary directory can be made");
            let text = format!(r#"{{"version":99,"boot_id":"{boot_id}","ranks":"elsewhere"}}"#);
            let written = RecordFiles::new(dir.path()).write(text, 1);
            drop(written.expect("a file can be written"));
            let told = refuse_later_records(dir.path()).err().map(|error| {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                source.expect("it says why")
            });
            assert_eq!(told.as_deref(), expected);
            assert_eq!(reap(dir.path()).is_err(), expected.is_some());
        };
        let refused = "it is a lease record of version 99, and this program reads up to version 1";
        check(&procfs::boot_id(), Some(refused));
        check("of another boot", None);
    }

    #[test]
    fn a_lease_of_a_running_supervisor_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut other = Command::new("sleep").arg("60").spawn().expect("`sleep` is there");
        let identity = Identity::of(other.id() as i32).expect("it runs");
        write(dir.path(), identity, procfs::boot_id());
        let refused = reap(dir.path());
        other.kill().expect("it can be killed");
        other.wait().expect("it can be waited for");
        assert!(matches!(refused, Err(NodeError::Supervised { .. })), "{refused:?}");
        assert_eq!(reap(dir.path()).expect("its supervisor is gone").len(), 1);
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
