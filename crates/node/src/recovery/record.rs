//! The record of a lease, from which the next supervisor finds its processes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record_file::{RecordFile, RecordFiles};
use crate::cgroup::Group;
use crate::clock::since_boot;
use crate::process::{Identity, procfs};
use crate::resources::CoresRecord;

/// All ranks of a gang start within this time after their record was written, however many they
/// are and however busy the machine is.
const STARTS_LIMIT_MS: u64 = 120_000;

/// Of records: higher where a program of before would not understand one. Those of version 0 say
/// none.
pub(crate) const RECORD_VERSION: u16 = 1;

/// What every version can read of a record.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RecordHead {
    #[serde(default)]
    version: u16,
    #[serde(default)]
    boot_id: String,
}

impl RecordHead {
    pub(super) fn of(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// # Errors
    /// Where a later version wrote the record in this boot: its programs may run.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.version <= RECORD_VERSION || self.boot_id != procfs::boot_id() {
            return Ok(());
        }
        let text = format!(
            "it is a lease record of version {}, and this program reads up to version \
             {RECORD_VERSION}",
            self.version
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

/// The first line of `RUN_DIR/record-N`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(default)]
    pub(crate) version: u16,
    pub(crate) lease: u64,
    pub(crate) job: String,
    pub(crate) stage: String,
    pub(crate) boot_id: String,
    /// Its processes started at this time of this boot or later, in clock ticks.
    pub(crate) since_ticks: u64,
    pub(crate) supervisor: Identity,
    /// The shim that was idle and got this lease. A new one notes itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shim: Option<Identity>,
    pub(crate) port: u16,
    /// Its programs were started before it had devices. No cores were chosen for it then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) warm: bool,
    /// Core ids by rank, and which of them it has exclusively, by socket.
    pub(crate) cores: Vec<CoresRecord>,
    /// Directories of the control group, by rank; empty without control groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cgroups: Vec<Vec<PathBuf>>,
}

impl Record {
    /// Writes it to a file in which processes then note their ids.
    pub(crate) fn write(&self, files: &mut RecordFiles) -> io::Result<RecordFile> {
        let text = serde_json::to_string(self).expect("text and numbers always become JSON");
        files.write(text, self.cores.len())
    }

    /// Whether the process that noted this id is a rank of the lease, or its shim, and runs: it
    /// leads a session and has the right age. A program may change its environment and its name,
    /// but not these.
    pub(crate) fn is_of_lease(&self, pid: i32) -> bool {
        // One tick early, since both times are truncated to ticks.
        let from = self.since_ticks.saturating_sub(1);
        procfs::leads_session_since(pid, from, from + procfs::millis_to_ticks(STARTS_LIMIT_MS))
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
        self.cgroups.iter().cloned().map(Group::recorded).collect()
    }
}

/// The current time in clock ticks since boot, as in `/proc/PID/stat`.
pub(crate) fn boot_ticks() -> u64 {
    procfs::millis_to_ticks(since_boot().0)
}
