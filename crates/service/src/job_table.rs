//! One row a job, readable without the control loop, and the changes as they happen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use het_core::{JobId, State};
use het_wire::api::{Change, JobRow};
use tokio::sync::broadcast;

use crate::report::row;

/// Changes that a slow watcher may be behind before it misses some.
const CHANGES_MAX: usize = 4_096;

/// Rows that are dropped at a time: there may be many where fewer are kept than before.
const DROPPED_MAX: usize = 1_000;

/// The rows of all jobs, ended ones included.
#[derive(Debug)]
pub struct JobTable {
    table: RwLock<Table>,
    changes: broadcast::Sender<Arc<Change>>,
}

#[derive(Debug)]
struct Table {
    rows: BTreeMap<JobId, Arc<JobRow>>,
    live: BTreeSet<JobId>,
    /// How many of them each tenant has, with those of its lineage, by the tenant at its top.
    live_of: BTreeMap<String, usize>,
    /// The same of those that are being submitted.
    awaited_of: BTreeMap<String, usize>,
    /// The jobs of each array with their indices, by its first.
    arrays: BTreeMap<JobId, BTreeSet<(u32, JobId)>>,
    /// Those that are not live, in the order of their ends.
    ended: VecDeque<JobId>,
    /// So many of them stay.
    ended_max: usize,
    /// Events in the log.
    sequence: u64,
}

/// Which rows of a list.
#[derive(Debug, Clone, Default)]
pub struct Selection {
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

impl JobTable {
    /// With the rows of at most `ended_max` ended jobs.
    pub(crate) fn new(
        mut ended: Vec<JobRow>,
        state: &State,
        sequence: u64,
        ended_max: usize,
    ) -> Self {
        ended.sort_by(|one, other| (&one.ended_at, one.id).cmp(&(&other.ended_at, other.id)));
        let (rows, live, live_of, awaited_of, arrays, order) = Default::default();
        let mut table =
            Table { rows, live, live_of, awaited_of, arrays, ended: order, ended_max, sequence };
        ended.into_iter().for_each(|row| table.put(Arc::new(row)));
        for (&id, job) in state.jobs() {
            table.put(Arc::new(row(state, id, job)));
        }
        Self { table: RwLock::new(table), changes: broadcast::Sender::new(CHANGES_MAX) }
    }

    /// Takes new rows, and drops the oldest of those that ended; returns the jobs dropped.
    pub(crate) fn put(&self, rows: Vec<Arc<JobRow>>, sequence: u64) -> Vec<JobId> {
        let gone = {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            table.sequence = sequence;
            rows.iter().for_each(|row| table.put(Arc::clone(row)));
            table.drop_oldest()
        };
        if self.changes.receiver_count() > 0 {
            for row in rows {
                // Nobody may listen any more.
                let _ = self.changes.send(Arc::new(Change { sequence, job: (*row).clone() }));
            }
        }
        gone
    }

    pub(crate) fn has_ended(&self, id: JobId) -> bool {
        let table = self.read();
        table.rows.contains_key(&id) && !table.live.contains(&id)
    }

    /// Rows by id, for which `may_see` holds; at most `limit` of them.
    pub fn list(
        &self,
        selection: &Selection,
        may_see: impl Fn(&JobRow) -> bool,
    ) -> Vec<Arc<JobRow>> {
        let table = self.read();
        let after = (Bound::Excluded(JobId(selection.after)), Bound::Unbounded);
        let all = table.rows.range(after).map(|(_, row)| row);
        let shown = |row: &&Arc<JobRow>| {
            (selection.which == Which::All || row.ended_at.is_none()) && may_see(row)
        };
        match selection.which {
            Which::All => all.filter(shown).take(selection.limit).cloned().collect(),
            Which::Live => {
                let live = table.live.range(after).filter_map(|id| table.rows.get(id));
                live.filter(shown).take(selection.limit).cloned().collect()
            }
        }
    }

    pub fn row(&self, id: JobId) -> Option<Arc<JobRow>> {
        self.read().rows.get(&id).cloned()
    }

    /// The newest job of a name for which `may_see` holds.
    pub fn named(&self, name: &str, may_see: impl Fn(&JobRow) -> bool) -> Option<Arc<JobRow>> {
        let table = self.read();
        table.rows.values().rev().find(|row| row.name == name && may_see(row)).cloned()
    }

    /// The jobs of an array, by the id of its first; in the order of their ids.
    pub fn of_array(&self, first: JobId) -> Vec<Arc<JobRow>> {
        let table = self.read();
        let members = table.arrays.get(&first).into_iter().flatten();
        let mut rows: Vec<_> = members.filter_map(|(_, id)| table.rows.get(id).cloned()).collect();
        rows.sort_unstable_by_key(|row| row.id);
        rows
    }

    /// The job of an index in the array of that first job.
    pub fn of_index(&self, first: JobId, index: u32) -> Option<Arc<JobRow>> {
        let table = self.read();
        let bearers = (index, JobId(0))..=(index, JobId(u64::MAX));
        let (_, id) = table.arrays.get(&first)?.range(bearers).next()?;
        table.rows.get(id).cloned()
    }

    /// Whether `may_see` holds for any job of an array.
    pub fn has_array(&self, first: JobId, may_see: impl Fn(&JobRow) -> bool) -> bool {
        let table = self.read();
        let mut members = table.arrays.get(&first).into_iter().flatten();
        members.any(|(_, id)| table.rows.get(id).is_some_and(|row| may_see(row)))
    }

    /// The newest job for which `may_see` holds.
    pub fn newest(&self, may_see: impl Fn(&JobRow) -> bool) -> Option<Arc<JobRow>> {
        self.read().rows.values().rev().find(|row| may_see(row)).cloned()
    }

    pub fn live_count(&self) -> usize {
        self.read().live.len()
    }

    /// Room for one more live job of a tenant, counted with all of its lineage; `None` where these
    /// have so many, those included for which there is room.
    pub fn room(self: &Arc<Self>, tenant: &str, of_a_tenant: usize) -> Option<Room> {
        let top = top(tenant);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Table { live_of, awaited_of, .. } = &mut *table;
        let awaited = awaited_of.entry(top.to_owned()).or_default();
        if *awaited + live_of.get(top).copied().unwrap_or_default() >= of_a_tenant {
            return None;
        }
        *awaited += 1;
        Some(Room { jobs: Arc::clone(self), top: top.to_owned() })
    }

    /// Events in the log when the table was last changed.
    pub fn sequence(&self) -> u64 {
        self.read().sequence
    }

    /// Changes from now on.
    pub fn watch(&self) -> broadcast::Receiver<Arc<Change>> {
        self.changes.subscribe()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kept for a job that is being submitted, until it is dropped.
#[derive(Debug)]
pub struct Room {
    jobs: Arc<JobTable>,
    top: String,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut table = self.jobs.table.write().unwrap_or_else(PoisonError::into_inner);
        subtract(&mut table.awaited_of, &self.top);
    }
}

/// The tenant at the top of a lineage: whoever has one can name any below it.
fn top(tenant: &str) -> &str {
    tenant.split('/').next().unwrap_or(tenant)
}

fn subtract(counts: &mut BTreeMap<String, usize>, tenant: &str) {
    if let Some(count) = counts.get_mut(tenant) {
        *count -= 1;
        if *count == 0 {
            counts.remove(tenant);
        }
    }
}

impl Table {
    fn put(&mut self, row: Arc<JobRow>) {
        let (id, has_ended) = (JobId(row.id), row.ended_at.is_some());
        if let Some((array, index)) = row.array.zip(row.array_index) {
            self.arrays.entry(JobId(array)).or_default().insert((index, id));
        }
        let top = top(&row.tenant).to_owned();
        let before = self.rows.insert(id, row);
        if !has_ended {
            if self.live.insert(id) {
                *self.live_of.entry(top).or_default() += 1;
            }
        } else if before.is_none_or(|before| before.ended_at.is_none()) {
            if self.live.remove(&id) {
                subtract(&mut self.live_of, &top);
            }
            self.ended.push_back(id);
        }
    }

    fn drop_oldest(&mut self) -> Vec<JobId> {
        let many = self.ended.len().saturating_sub(self.ended_max).min(DROPPED_MAX);
        let gone: Vec<JobId> = self.ended.drain(..many).collect();
        for id in &gone {
            let place = self.rows.remove(id).and_then(|row| row.array.zip(row.array_index));
            if let Some((array, index)) = place
                && let Some(members) = self.arrays.get_mut(&JobId(array))
            {
                members.remove(&(index, *id));
                if members.is_empty() {
                    self.arrays.remove(&JobId(array));
                }
            }
        }
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

    #[test]
    fn a_tenant_has_room_with_those_below_it_and_with_what_is_on_its_way() {
        let table = Arc::new(empty(Vec::new(), 10));
        let row = JobRow { tenant: "lab/a".to_owned(), ..line(1, None) };
        table.put(vec![Arc::new(row)], 1);
        let second = table.room("lab/b", 2).expect("there is room for two");
        assert!(table.room("lab", 2).is_none(), "the second is on its way");
        assert!(table.room("other", 2).is_some());
        drop(second);
        assert!(table.room("lab", 2).is_some());
    }

    fn empty(ended: Vec<JobRow>, ended_max: usize) -> JobTable {
        let nothing = Topology {
            classes: Vec::new(),
            nodes: Vec::new(),
            devices: Vec::new(),
            links: Vec::new(),
        };
        JobTable::new(ended, &State::new(Arc::new(nothing)), 0, ended_max)
    }

    fn ids(table: &JobTable) -> Vec<u64> {
        let selection = Selection { limit: 10, which: Which::All, ..Selection::default() };
        table.list(&selection, |_| true).iter().map(|row| row.id).collect()
    }

    #[test]
    fn those_that_ended_first_go_first_whenever_they_came() {
        let kept = vec![line(2, Some("2026-01-01")), line(3, Some("2026-01-02"))];
        let table = empty(kept, 2);
        let put = |id, ended_at| table.put(vec![Arc::new(line(id, ended_at))], 1);
        assert_eq!(put(1, None), []);
        assert_eq!(put(1, Some("2026-01-03")), [JobId(2)]);
        assert_eq!(put(1, Some("2026-01-03")), [], "it ended once");
        assert_eq!(ids(&table), [1, 3]);
        assert_eq!(put(4, None), [], "what lives is no matter of this");
        assert_eq!(put(4, Some("2026-01-04")), [JobId(3)]);
        assert_eq!((ids(&table), table.live_count()), (vec![1, 4], 0));
    }

    #[test]
    fn jobs_of_an_array_are_found_by_index_and_listed_by_id() {
        let table = empty(Vec::new(), 1);
        let of = |id, index, ended_at| {
            let (array, array_index) = (Some(1), Some(index));
            table.put(vec![Arc::new(JobRow { array, array_index, ..line(id, ended_at) })], 1)
        };
        let listed = || table.of_array(JobId(1)).iter().map(|row| row.id).collect::<Vec<_>>();
        let found = |index| table.of_index(JobId(1), index).map(|row| row.id);
        for (id, index) in [(1, 7), (2, 3), (3, 7)] {
            of(id, index, None);
        }
        assert_eq!(
            (listed(), found(7), found(3), found(4)),
            (vec![1, 2, 3], Some(1), Some(2), None)
        );
        assert!(table.has_array(JobId(1), |row| row.id == 2));
        assert!(!table.has_array(JobId(2), |_| true));
        of(1, 7, Some("2026-01-01"));
        assert_eq!(of(2, 3, Some("2026-01-02")), [JobId(1)]);
        assert_eq!((listed(), found(7)), (vec![2, 3], Some(3)));
    }
}
