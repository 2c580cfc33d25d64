//! One line a job, readable without the control loop, and the changes as they happen.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use het_core::{JobId, State};
use het_wire::api::{Change, JobRow};
use tokio::sync::broadcast;

use crate::report::row;

/// Changes that a slow watcher may be behind before it misses some.
const CHANGES_MAX: usize = 4_096;

/// The lines of all jobs, ended ones included.
#[derive(Debug)]
pub struct Board {
    lines: RwLock<Lines>,
    changes: broadcast::Sender<Arc<Change>>,
}

#[derive(Debug, Default)]
struct Lines {
    rows: BTreeMap<JobId, Arc<JobRow>>,
    live: BTreeSet<JobId>,
    /// Events in the log.
    sequence: u64,
}

/// Which lines are asked for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Only jobs with a later id.
    pub after: u64,
    pub limit: usize,
    pub which: Which,
}

/// Live jobs are those that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    #[default]
    Live,
    All,
}

impl Board {
    pub(super) fn of(ended: Vec<JobRow>, state: &State, sequence: u64) -> Self {
        let ended = ended.into_iter().map(|row| (JobId(row.id), Arc::new(row)));
        let mut lines = Lines { rows: ended.collect(), live: BTreeSet::new(), sequence };
        for (&id, job) in state.jobs() {
            lines.put(Arc::new(row(state, id, job)));
        }
        Self { lines: RwLock::new(lines), changes: broadcast::Sender::new(CHANGES_MAX) }
    }

    pub(super) fn put(&self, rows: Vec<Arc<JobRow>>, sequence: u64) {
        {
            let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
            lines.sequence = sequence;
            rows.iter().for_each(|row| lines.put(Arc::clone(row)));
        }
        if self.changes.receiver_count() > 0 {
            for row in rows {
                // Nobody may listen any more.
                let _ = self.changes.send(Arc::new(Change { sequence, job: (*row).clone() }));
            }
        }
    }

    pub(super) fn has_ended(&self, id: JobId) -> bool {
        let lines = self.read();
        lines.rows.contains_key(&id) && !lines.live.contains(&id)
    }

    /// Lines by id, for which `may_see` holds; at most `limit` of them.
    pub fn list(&self, wanted: &Wanted, may_see: impl Fn(&JobRow) -> bool) -> Vec<Arc<JobRow>> {
        let lines = self.read();
        let after = (Bound::Excluded(JobId(wanted.after)), Bound::Unbounded);
        let all = lines.rows.range(after).map(|(_, row)| row);
        let shown = |row: &&Arc<JobRow>| {
            (wanted.which == Which::All || row.ended_at.is_none()) && may_see(row)
        };
        match wanted.which {
            Which::All => all.filter(shown).take(wanted.limit).cloned().collect(),
            Which::Live => {
                let live = lines.live.range(after).filter_map(|id| lines.rows.get(id));
                live.filter(shown).take(wanted.limit).cloned().collect()
            }
        }
    }

    pub fn row(&self, id: JobId) -> Option<Arc<JobRow>> {
        self.read().rows.get(&id).cloned()
    }

    /// The newest job of a name for which `may_see` holds.
    pub fn named(&self, name: &str, may_see: impl Fn(&JobRow) -> bool) -> Option<Arc<JobRow>> {
        let lines = self.read();
        lines.rows.values().rev().find(|row| row.name == name && may_see(row)).cloned()
    }

    /// The newest job for which `may_see` holds.
    pub fn newest(&self, may_see: impl Fn(&JobRow) -> bool) -> Option<Arc<JobRow>> {
        self.read().rows.values().rev().find(|row| may_see(row)).cloned()
    }

    pub fn live_count(&self) -> usize {
        self.read().live.len()
    }

    /// Events in the log when the board was last changed.
    pub fn sequence(&self) -> u64 {
        self.read().sequence
    }

    /// Changes from now on.
    pub fn watch(&self) -> broadcast::Receiver<Arc<Change>> {
        self.changes.subscribe()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Lines> {
        self.lines.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn put(&mut self, row: Arc<JobRow>) {
        let id = JobId(row.id);
        if row.ended_at.is_none() {
            self.live.insert(id);
        } else {
            self.live.remove(&id);
        }
        self.rows.insert(id, row);
    }
}
