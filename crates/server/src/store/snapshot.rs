//! Snapshots in the store: made apart from it, written a part with each batch of events, there once
//! the last part is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_control::Past;
use het_core::{JobId, PartsError, Topology};
use het_perf::{
    ElasticClass, ElasticProfile, Learned, Moments, Observed, ObservedElastic, ObservedTime,
    SeenStep, Timed,
};
use het_wire::record::{
    ElasticClassRecord, LearnedRecord, ObservedElasticRecord, ObservedRecord, ObservedTimeRecord,
    RecordError, SeenStepRecord, Snapshot, SnapshotError,
};
use redb::{ReadTransaction, ReadableTable, WriteTransaction};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{EventStore, Hash, NO_HASH, PARTS, SNAPSHOTS, StoreError};

/// A little less than redb gives a value together with what it notes of it: 128 KiB.
const PART_BYTES: usize = 120 << 10;

/// One part goes with each batch, and another for each so many events: what is written for a
/// snapshot stays below what is written anyway where much is, and below a few pages where not.
const EVENTS_A_PART: usize = 64;

/// The newest, and the one before it should that be damaged.
const SNAPSHOTS_KEPT: usize = 2;

/// What may be wrong with a stored snapshot.
#[derive(Debug, Error)]
pub enum SnapshotFault {
    #[error("a part of it is missing")]
    Incomplete,
    #[error("it is not what was written: its checksum does not fit")]
    Checksum,
    #[error("it cannot be read")]
    Unreadable(#[from] SnapshotError),
    #[error("it does not fit together")]
    Incoherent(#[from] PartsError),
    #[error("it is of another chain of events")]
    OtherChain,
}

impl SnapshotFault {
    /// It is what was written, and says things that nothing is known of here.
    pub(super) fn is_of_a_later_version(&self) -> bool {
        matches!(self, Self::Unreadable(_))
    }
}

/// A place in the log: before an event, and the hash of the one before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub sequence: u64,
    pub hash: [u8; 32],
}

impl Mark {
    /// Before the first event.
    pub(super) const BEGINNING: Self = Self { sequence: 0, hash: NO_HASH };
}

/// A snapshot that is not yet in a store.
#[derive(Debug)]
pub struct Draft {
    sequence: u64,
    json: Arc<Vec<u8>>,
    checksum: Hash,
    /// Jobs in it: their events stay.
    jobs: BTreeSet<JobId>,
}

/// A snapshot that is on its way into the store.
#[derive(Debug)]
pub(super) struct Writing {
    draft: Draft,
    parts: u32,
}

impl Draft {
    /// What the log adds up to before a mark; this is where the work is, and it needs no store.
    pub fn new(mark: Mark, past: Past) -> Self {
        let Mark { sequence, hash } = mark;
        let jobs = past.state.jobs().keys().copied().collect();
        let learned = write_learned(&past.rates.learned());
        let state = past.state.into_parts();
        let json = Arc::new(Snapshot { sequence, hash, state, learned }.to_json());
        let checksum = checksum(&json);
        Self { sequence, json, checksum, jobs }
    }

    /// How much is to be written.
    pub fn bytes(&self) -> usize {
        self.json.len()
    }
}

impl EventStore {
    /// Where the log ends.
    pub fn mark(&self) -> Mark {
        Mark { sequence: self.next, hash: self.hash }
    }

    /// Whether enough happened since the last snapshot, and none is on its way.
    pub fn snapshot_is_due(&self) -> bool {
        let last = self.newest_snapshot().unwrap_or(0);
        self.writing.is_none() && self.next - last >= self.keeping.snapshot_every.max(1)
    }

    /// How many events the newest snapshot stands for.
    pub fn newest_snapshot(&self) -> Option<u64> {
        self.snapshots.last().copied()
    }

    /// Lets a snapshot of this log be written with the batches to come.
    pub fn put_snapshot(&mut self, draft: Draft) {
        self.stale.extend(self.writing.take().map(|before| before.draft.sequence));
        self.writing = Some(Writing { draft, parts: 0 });
    }

    /// Writes the next parts, and once they are all there says so.
    pub(super) fn write_parts(
        &mut self,
        write: &WriteTransaction,
        events: usize,
    ) -> Result<(), StoreError> {
        let Some(mut writing) = self.writing.take() else { return Ok(()) };
        let Draft { sequence, json, checksum, .. } = &writing.draft;
        let written = writing.parts as usize * PART_BYTES;
        let mut table = write.open_table(PARTS)?;
        for part in json[written..].chunks(PART_BYTES).take(1 + events / EVENTS_A_PART) {
            table.insert((*sequence, writing.parts), part)?;
            writing.parts += 1;
        }
        if writing.parts as usize * PART_BYTES < json.len() {
            self.writing = Some(writing);
            return Ok(());
        }
        let head = [checksum.as_slice(), &writing.parts.to_be_bytes()].concat();
        write.open_table(SNAPSHOTS)?.insert(sequence, head.as_slice())?;
        self.snapshots.push(*sequence);
        if let Some(copy) = &mut self.copy {
            copy.put_snapshot(*sequence, Arc::clone(json));
        }
        let surplus = self.snapshots.len().saturating_sub(SNAPSHOTS_KEPT);
        self.stale.extend(self.snapshots.drain(..surplus));
        self.begin_removal(writing.draft.jobs);
        Ok(())
    }

    /// Removes what is left of snapshots that are not to be used any more.
    pub(super) fn remove_stale(&mut self, write: &WriteTransaction) -> Result<(), StoreError> {
        if self.stale.is_empty() {
            return Ok(());
        }
        let mut parts = write.open_table(PARTS)?;
        let mut snapshots = write.open_table(SNAPSHOTS)?;
        for sequence in self.stale.drain(..) {
            snapshots.remove(sequence)?;
            parts.retain_in((sequence, 0)..=(sequence, u32::MAX), |_, _| false)?;
        }
        Ok(())
    }
}

/// Snapshots that are whole, and those of which there are only parts.
pub(super) fn found(read: &ReadTransaction) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
    let mut whole = Vec::new();
    for row in read.open_table(SNAPSHOTS)?.iter()? {
        whole.push(row?.0.value());
    }
    let parts = read.open_table(PARTS)?;
    let (mut torn, mut from) = (Vec::new(), 0);
    while let Some(row) = parts.range((from, 0)..)?.next() {
        let sequence = row?.0.value().0;
        if !whole.contains(&sequence) {
            torn.push(sequence);
        }
        from = sequence + 1;
    }
    Ok((whole, torn))
}

/// A snapshot as it was written.
pub(super) fn read(
    read: &ReadTransaction,
    sequence: u64,
    topology: &Arc<Topology>,
) -> Result<Snapshot, StoreError> {
    let fault = |source| StoreError::Snapshot { sequence, source };
    let json = read_json(read, sequence)?;
    let snapshot = Snapshot::from_json(&json, topology).map_err(|error| fault(error.into()))?;
    match snapshot.sequence == sequence {
        true => Ok(snapshot),
        false => Err(fault(SnapshotFault::OtherChain)),
    }
}

/// The JSON of a snapshot as it was written.
pub(super) fn read_json(read: &ReadTransaction, sequence: u64) -> Result<Vec<u8>, StoreError> {
    let fault = |source| StoreError::Snapshot { sequence, source };
    let snapshots = read.open_table(SNAPSHOTS)?;
    let head = snapshots.get(sequence)?.ok_or(fault(SnapshotFault::Incomplete))?;
    let (stored, count) =
        head.value().split_first_chunk().ok_or(fault(SnapshotFault::Incomplete))?;
    let mut json = Vec::new();
    let mut found = 0_u32;
    for row in read.open_table(PARTS)?.range((sequence, 0)..=(sequence, u32::MAX))? {
        json.extend_from_slice(row?.1.value());
        found += 1;
    }
    if count != found.to_be_bytes() {
        return Err(fault(SnapshotFault::Incomplete));
    }
    match checksum(&json) == *stored {
        true => Ok(json),
        false => Err(fault(SnapshotFault::Checksum)),
    }
}

/// Writes a whole snapshot at once, where nobody waits for a turn.
pub(super) fn write_json(
    write: &WriteTransaction,
    sequence: u64,
    json: &[u8],
) -> Result<(), StoreError> {
    let mut table = write.open_table(PARTS)?;
    let mut count = 0_u32;
    for part in json.chunks(PART_BYTES) {
        table.insert((sequence, count), part)?;
        count += 1;
    }
    let head = [checksum(json).as_slice(), &count.to_be_bytes()].concat();
    write.open_table(SNAPSHOTS)?.insert(sequence, head.as_slice())?;
    Ok(())
}

pub(super) fn checksum(json: &[u8]) -> Hash {
    Sha256::digest(json).into()
}

fn write_learned(learned: &Learned) -> LearnedRecord {
    let history = learned.history.iter().map(|seen| {
        let (count, mean, sum_of_squares) = seen.moments.parts();
        ObservedRecord {
            profile: seen.profile.to_string(),
            class: seen.class.to_string(),
            units: seen.units,
            within: seen.within.word().to_owned(),
            count,
            mean_bits: mean.to_bits(),
            sum_of_squares_bits: sum_of_squares.to_bits(),
            told_bits: Some(seen.reported.to_bits()),
        }
    });
    let times = learned.times.iter().map(|seen| {
        let (count, mean, sum_of_squares) = seen.moments.parts();
        ObservedTimeRecord {
            profile: seen.profile.to_string(),
            timed: seen.timed.word().to_owned(),
            units: seen.units,
            count,
            mean_bits: mean.to_bits(),
            sum_of_squares_bits: sum_of_squares.to_bits(),
            told_bits: seen.reported.to_bits(),
        }
    });
    LearnedRecord {
        history: history.collect(),
        times: times.collect(),
        elastic: learned.elastic.iter().map(write_elastic).collect(),
        demands: renamed(&learned.demands, |demand| (*demand).into()),
        inputs: renamed(&learned.inputs, |of_tenant| renamed(of_tenant, Vec::clone)),
        peaks: renamed(&learned.peaks, |peak| *peak),
        revision: learned.revision,
        revisions: renamed(&learned.revisions, |at| *at),
    }
}

/// With names as the other side has them.
fn renamed<K: ToString, V, L: Ord + for<'a> From<&'a str>, W>(
    map: &BTreeMap<K, V>,
    value: impl Fn(&V) -> W,
) -> BTreeMap<L, W> {
    map.iter().map(|(key, of)| (key.to_string().as_str().into(), value(of))).collect()
}

fn write_elastic(seen: &ObservedElastic) -> ObservedElasticRecord {
    let classes = seen.elastic.classes.iter().map(|(name, class)| {
        let record = ElasticClassRecord {
            local_min: class.local_min,
            local_max: class.local_max,
            devices_per_node: class.devices_per_node,
            relative_speed_bits: class.relative_speed.to_bits(),
        };
        (name.to_string(), record)
    });
    let steps = seen.steps.iter().map(|step| SeenStepRecord {
        class: step.class.to_string(),
        nodes: step.nodes,
        devices: step.devices,
        local: step.local,
        step_bits: step.step_s.to_bits(),
        exchange_bits: step.exchange_s.to_bits(),
    });
    ObservedElasticRecord {
        profile: seen.profile.to_string(),
        batch_initial: seen.elastic.batch_initial,
        batch_max: seen.elastic.batch_max,
        classes: classes.collect(),
        steps: steps.collect(),
        noise_bits: seen.noise.map(f64::to_bits),
    }
}

fn read_elastic(record: &ObservedElasticRecord) -> ObservedElastic {
    let classes = record.classes.iter().map(|(name, class)| {
        let read = ElasticClass {
            local_min: class.local_min,
            local_max: class.local_max,
            devices_per_node: class.devices_per_node,
            relative_speed: f64::from_bits(class.relative_speed_bits),
        };
        (name.as_str().into(), read)
    });
    let steps = record.steps.iter().map(|step| SeenStep {
        class: step.class.as_str().into(),
        nodes: step.nodes,
        devices: step.devices,
        local: step.local,
        step_s: f64::from_bits(step.step_bits),
        exchange_s: f64::from_bits(step.exchange_bits),
    });
    ObservedElastic {
        profile: record.profile.as_str().into(),
        elastic: ElasticProfile {
            batch_initial: record.batch_initial,
            batch_max: record.batch_max,
            classes: classes.collect(),
        },
        steps: steps.collect(),
        noise: record.noise_bits.map(f64::from_bits),
    }
}

pub(super) fn read_learned(record: &LearnedRecord) -> Result<Learned, RecordError> {
    let history = record.history.iter().map(|seen| {
        let (mean, squares) = (seen.mean_bits, seen.sum_of_squares_bits);
        let parts = (seen.count, f64::from_bits(mean), f64::from_bits(squares));
        Ok(Observed {
            profile: seen.profile.as_str().into(),
            class: seen.class.as_str().into(),
            units: seen.units,
            within: seen.domain()?,
            moments: Moments::from_parts(parts),
            reported: f64::from_bits(seen.told_bits.unwrap_or(mean)),
        })
    });
    // Those of a later version are learned anew.
    let times = record.times.iter().filter_map(|seen| {
        let timed = Timed::ALL.into_iter().find(|timed| timed.word() == seen.timed)?;
        let (mean, squares) = (seen.mean_bits, seen.sum_of_squares_bits);
        let parts = (seen.count, f64::from_bits(mean), f64::from_bits(squares));
        Some(ObservedTime {
            profile: seen.profile.as_str().into(),
            timed,
            units: seen.units,
            moments: Moments::from_parts(parts),
            reported: f64::from_bits(seen.told_bits),
        })
    });
    Ok(Learned {
        history: history.collect::<Result<_, RecordError>>()?,
        times: times.collect(),
        elastic: record.elastic.iter().map(read_elastic).collect(),
        demands: renamed(&record.demands, |demand| (*demand).into()),
        inputs: renamed(&record.inputs, |of_tenant| renamed(of_tenant, Vec::clone)),
        peaks: renamed(&record.peaks, |peak| *peak),
        revision: record.revision,
        revisions: renamed(&record.revisions, |at| *at),
    })
}
