//! Damage: what a store holds that is not what was written; whatever it makes redb do, it ends no
//! process that looks.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use het_core::{Event, JobId, Time};
use het_wire::api::{JobRow, StoreCheck};
use het_wire::record::Record;
use het_wire::text::with_causes;
use redb::{ReadableTable, ReadableTableMetadata};

use super::{
    EVENTS, EventStore, GAPS, Hash, Mark, ROWS, StoreError, StoreReader, chained, snapshot, split,
};

/// What a store holds.
#[derive(Debug, Default)]
pub struct Checked {
    pub events: u64,
    pub snapshots: u64,
    /// Last lines of jobs that have left the state.
    pub rows: u64,
    /// What is not what was written, each with its place.
    pub damage: Vec<StoreError>,
}

/// Runs what reads or writes a store. redb panics over some damage; that is an error like others.
pub(super) fn guarded<T>(act: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    // Nobody goes on with what a panic left behind: the error ends its use.
    catch_unwind(AssertUnwindSafe(act))
        .unwrap_or_else(|panic| Err(StoreError::Damaged { found: message(&*panic) }))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.and_then(|text| text.lines().next()).unwrap_or("no reason was given").to_owned()
}

/// Follows the events, each chained to the one before.
pub(super) struct Chain {
    next: u64,
    hash: Hash,
}

impl Chain {
    pub(super) fn from(Mark { sequence, hash }: Mark) -> Self {
        Self { next: sequence, hash }
    }

    /// The event of a stored value; `gaps` says what was before it where that was removed. After
    /// an error the next event is held against what is stored of this.
    ///
    /// # Errors
    /// When it is not what was written or cannot be read.
    pub(super) fn event(
        &mut self,
        sequence: u64,
        value: &[u8],
        gaps: &impl ReadableTable<u64, &'static [u8]>,
    ) -> Result<(Time, Event), StoreError> {
        let is_next = sequence == self.next;
        self.next = sequence + 1;
        let (stored, record) = split(sequence, value)?;
        let before = std::mem::replace(&mut self.hash, stored);
        let before = match is_next {
            true => before,
            false => {
                let gap = gaps.get(sequence)?.ok_or(StoreError::Tampered { sequence })?;
                split(sequence, gap.value())?.0
            }
        };
        if chained(&before, record) != stored {
            return Err(StoreError::Tampered { sequence });
        }
        let text = String::from_utf8_lossy(record);
        let record = Record::from_json(&text).and_then(|record| record.read());
        record.map_err(|source| StoreError::Record { sequence, source })
    }
}

impl EventStore {
    /// Reads everything and names what is damaged. Nothing is changed.
    pub fn check(&self) -> Checked {
        self.reader().check()
    }
}

/// As it is told.
pub fn store_check(checked: &Checked, path: &Path) -> StoreCheck {
    let Checked { events, snapshots, rows, damage } = checked;
    StoreCheck {
        path: path.display().to_string(),
        events: *events,
        snapshots: *snapshots,
        rows: *rows,
        damage: damage.iter().map(|error| with_causes(error)).collect(),
    }
}

impl StoreReader {
    /// Reads everything and names what is damaged, also beside somebody who writes.
    pub fn check(&self) -> Checked {
        let mut checked = Checked::default();
        let parts = [
            guarded(|| self.check_events(&mut checked)),
            guarded(|| self.check_snapshots(&mut checked)),
            guarded(|| self.check_rows(&mut checked)),
        ];
        checked.damage.extend(parts.into_iter().filter_map(Result::err));
        checked
    }

    fn check_events(&self, checked: &mut Checked) -> Result<(), StoreError> {
        let read = self.0.begin_read()?;
        let (events, gaps) = (read.open_table(EVENTS)?, read.open_table(GAPS)?);
        let mut chain = Chain::from(Mark::BEGINNING);
        // As readers find them, by keys.
        for row in events.range(0..)? {
            let (key, value) = row?;
            let event = chain.event(key.value(), value.value(), &gaps);
            checked.events += 1;
            checked.damage.extend(event.err());
        }
        let all = events.iter()?.count() as u64;
        match events.len()? == checked.events && all == checked.events {
            true => Ok(()),
            false => Err(StoreError::Tampered { sequence: chain.next }),
        }
    }

    fn check_snapshots(&self, checked: &mut Checked) -> Result<(), StoreError> {
        let topology = Arc::new(self.topology()?);
        let (all, _) = snapshot::found(&self.0.begin_read()?)?;
        for sequence in all {
            checked.snapshots += 1;
            checked.damage.extend(self.snapshot(sequence, &topology).err());
        }
        Ok(())
    }

    fn check_rows(&self, checked: &mut Checked) -> Result<(), StoreError> {
        let read = self.0.begin_read()?;
        for row in read.open_table(ROWS)?.iter()? {
            let (job, value) = row?;
            let job = JobId(job.value());
            checked.rows += 1;
            let row = serde_json::from_slice::<JobRow>(value.value());
            checked.damage.extend(row.err().map(|source| StoreError::Row { job, source }));
        }
        Ok(())
    }
}
