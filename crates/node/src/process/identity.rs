//! Which process an id means.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::procfs;

/// Identifies a process, also against a later one with the same id.
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

    pub(crate) fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}
