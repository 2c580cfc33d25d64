//! One line a job, readable without the control loop, and the changes as they happen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use het_core::{JobId, State};
use het_wire::api::{Change, JobRow};
use tokio::sync::broadcast;

use crate::report::row;

/// Changes that a slow watcher may be behind before it misses some.
const CHANGES_MAX: usize = 4_096;

/// Lines that go at a time: there may be many where fewer are kept than before.
const LET_GO_MAX: usize = 1_000;

/// The lines of all jobs, ended ones included.
#[derive(Debug)]
pub struct Board {
    lines: RwLock<Lines>,
    changes: broadcast::Sender<Arc<Change>>,
}

#[derive(Debug)]
struct Lines {
    rows: BTreeMap<JobId, Arc<JobRow>>,
    live: BTreeSet<JobId>,
    /// The others, in the order of their ends.
    ended: VecDeque<JobId>,
    /// So many of them stay.
    ended_max: usize,
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
    /// With the lines of at most so many ended jobs.
    pub(super) fn of(
        mut ended: Vec<JobRow>,
        state: &State,
        sequence: u64,
        ended_max: usize,
    ) -> Self {
        ended.sort_by(|one, other| (&one.ended_at, one.id).cmp(&(&other.ended_at, other.id)));
        let (rows, live, order) = Default::default();
        let mut lines = Lines { rows, live, ended: order, ended_max, sequence };
        ended.into_iter().for_each(|row| lines.put(Arc::new(row)));
        for (&id, job) in state.jobs() {
            lines.put(Arc::new(row(state, id, job)));
        }
        Self { lines: RwLock::new(lines), changes: broadcast::Sender::new(CHANGES_MAX) }
    }

    /// Takes new lines, and lets those go that ended before the newest so many: gives their jobs.
    pub(super) fn put(&self, rows: Vec<Arc<JobRow>>, sequence: u64) -> Vec<JobId> {
        let gone = {
            let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
            lines.sequence = sequence;
            rows.iter().for_each(|row| lines.put(Arc::clone(row)));
            lines.let_go()
        };
        if self.changes.receiver_count() > 0 {
            for row in rows {
                // Nobody may listen any more.
                let _ = self.changes.send(Arc::new(Change { sequence, job: (*row).clone() }));
            }
        }
        gone
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
        let (id, has_ended) = (JobId(row.id), row.ended_at.is_some());
        let before = self.rows.insert(id, row);
        if !has_ended {
            self.live.insert(id);
        } else if before.is_none_or(|before| before.ended_at.is_none()) {
            self.live.remove(&id);
            self.ended.push_back(id);
        }
    }

    fn let_go(&mut self) -> Vec<JobId> {
        let many = self.ended.len().saturating_sub(self.ended_max).min(LET_GO_MAX);
        let gone: Vec<JobId> = self.ended.drain(..many).collect();
        gone.iter().for_each(|id| drop(self.rows.remove(id)));
        gone
    }
}

#[cfg(test)]
mod tests {
    use het_core::Topology;

    use super::*;

    fn line(id: u64, ended_at: Option<&str>) -> JobRow {
        JobRow { id, ended_at: ended_at.map(str::to_owned), ..JobRow::default() }
    }

    fn ids(board: &Board) -> Vec<u64> {
        let wanted = Wanted { limit: 10, which: Which::All, ..Wanted::default() };
        board.list(&wanted, |_| true).iter().map(|row| row.id).collect()
    }

    #[test]
    fn those_that_ended_first_go_first_whenever_they_came() {
        let kept = vec![line(2, Some("2026-01-01")), line(3, Some("2026-01-02"))];
        let nothing = Topology {
            classes: Vec::new(),
            nodes: Vec::new(),
            devices: Vec::new(),
            links: Vec::new(),
        };
        let state = State::new(Arc::new(nothing));
        let board = Board::of(kept, &state, 0, 2);
        let put = |id, ended_at| board.put(vec![Arc::new(line(id, ended_at))], 1);
        assert_eq!(put(1, None), []);
        assert_eq!(put(1, Some("2026-01-03")), [JobId(2)]);
        assert_eq!(put(1, Some("2026-01-03")), [], "it ended once");
        assert_eq!(ids(&board), [1, 3]);
        assert_eq!(put(4, None), [], "what lives is no matter of this");
        assert_eq!(put(4, Some("2026-01-04")), [JobId(3)]);
        assert_eq!((ids(&board), board.live_count()), (vec![1, 4], 0));
    }
}
