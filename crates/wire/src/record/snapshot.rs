//! What a log adds up to at one place in it, as it is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_core::{
    Claim, Degraded, DeviceId, Domain, Generation, JobId, LeaseId, Micro, Millis, Name, NodeId,
    Preparation, PreparationOutcome, Share, ShareMillis, Slowness, StageKey, StateParts, Suspicion,
    Ticket, Time, Topology,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::RecordError;
use super::degradation::{DegradationRecord, read_degradation, write_degradation};
use super::host::HostRecord;
use super::kept_job::{KeptJobRecord, read_kept_job, write_kept_job};
use super::lease::{LeaseRecord, read_lease, write_lease};
use super::memory::{PolicyMemoryRecord, read_memory, write_memory};
use super::occupant::{OccupantRecord, read_occupant, write_occupant};
use super::plan::{
    CheckpointRecord, KeyRecord, PlacementRecord, read_checkpoint, read_key, read_placement,
    write_checkpoint, write_key, write_placement,
};
use super::quotas::{QuotasRecord, read_quotas, write_quotas};
use super::topology::{TopologyRecord, read_topology, write_topology};
use super::words::by_word;

/// Of the shape below.
const VERSION: u32 = 1;

/// Why a stored snapshot cannot be read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    #[error("it is not the JSON this version writes")]
    Json(#[from] serde_json::Error),
    #[error("it has version {version}, which this version of Heterosis does not know")]
    Version { version: u32 },
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// What all events before one place add up to.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The number of the first event that is not in it.
    pub sequence: u64,
    /// Of the event before that one: where the chain goes on.
    pub hash: [u8; 32],
    pub state: StateParts,
    pub learned: LearnedRecord,
}

/// Speeds that were observed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LearnedRecord {
    pub history: Vec<ObservedRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<ObservedTimeRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elastic: Vec<ObservedElasticRecord>,
    /// What a rank takes of its node, by profile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub demands: BTreeMap<String, HostRecord>,
    /// Files that programs read while they start, by tenant and profile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    /// By device class.
    pub peaks: BTreeMap<String, u64>,
    pub revision: u64,
    /// By profile.
    pub revisions: BTreeMap<String, u64>,
}

/// Running mean and variance of one speed. The numbers are bits of float64: what is read is what
/// was written, to the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedRecord {
    pub profile: String,
    pub class: String,
    pub units: u32,
    /// `node`, `rack`, `pod` or `any`: the smallest domain that held it.
    pub within: String,
    pub count: u64,
    pub mean_bits: u64,
    pub sum_of_squares_bits: u64,
    /// Absent in snapshots of version 0.1, which told the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_bits: Option<u64>,
}

/// The same of the seconds that starts or saves took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedTimeRecord {
    pub profile: String,
    /// `save` or `load`.
    pub timed: String,
    pub units: u32,
    pub count: u64,
    pub mean_bits: u64,
    pub sum_of_squares_bits: u64,
    pub told_bits: u64,
}

/// What a job whose batch follows the noise of its gradient showed of its steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedElasticRecord {
    pub profile: String,
    pub batch_initial: u32,
    pub batch_max: u32,
    /// By device class.
    pub classes: BTreeMap<String, ElasticClassRecord>,
    pub steps: Vec<SeenStepRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_bits: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElasticClassRecord {
    pub local_min: u32,
    pub local_max: u32,
    pub devices_per_node: u32,
    pub relative_speed_bits: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenStepRecord {
    pub class: String,
    pub nodes: u32,
    pub devices: u32,
    pub local: u32,
    pub step_bits: u64,
    pub exchange_bits: u64,
}

impl ObservedRecord {
    /// The smallest domain that held it.
    ///
    /// # Errors
    /// When the word is one of a later version.
    pub fn domain(&self) -> Result<Domain, RecordError> {
        by_word(&Domain::ALL, |domain| domain.word(), &self.within)
    }
}

#[derive(Serialize, Deserialize)]
struct SnapshotRecord {
    version: u32,
    sequence: u64,
    hash: String,
    state: StateRecord,
    learned: LearnedRecord,
}

/// Only the version, which says how to read the rest.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct StateRecord {
    /// Absent in snapshots of version 0.1: the head of their log has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topology: Option<TopologyRecord>,
    now_ms: u64,
    generation: u64,
    next_job: u64,
    next_lease: u64,
    jobs: BTreeMap<u64, KeptJobRecord>,
    leases: BTreeMap<u64, LeaseRecord>,
    claims: Vec<(KeyRecord, ClaimRecord)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    preparations: Vec<(KeyRecord, PreparationRecord)>,
    /// Stages with the tickets that they drew.
    waiting: Vec<(KeyRecord, u64)>,
    next_ticket: u64,
    departures: u64,
    last_checkpoint_ms: Option<u64>,
    yielding: Vec<(u64, KeyRecord)>,
    #[serde(flatten)]
    quotas: QuotasRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyMemoryRecord>,
    used: BTreeMap<String, Vec<u32>>,
    lost: Vec<bool>,
    suspected: Vec<bool>,
    failed: Vec<bool>,
    drained: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    suspicions: BTreeMap<u32, SuspicionRecord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    slow_devices: BTreeMap<u32, SlownessRecord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    degraded: BTreeMap<u32, DegradedRecord>,
    occupied: BTreeMap<u32, OccupantRecord>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    absent: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    taken: Vec<TakenRecord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    taken_of: BTreeMap<u32, u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    host_taken: BTreeMap<u32, HostRecord>,
    charged: Vec<u64>,
    busy: Vec<u64>,
    useful: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct ClaimRecord {
    placement: PlacementRecord,
    since_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct PreparationRecord {
    lease: u64,
    placement: PlacementRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resume: Option<CheckpointRecord>,
    since_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct SlownessRecord {
    part: i64,
    seen_ms: u64,
    job: u64,
}

#[derive(Serialize, Deserialize)]
struct DegradedRecord {
    #[serde(flatten)]
    degradation: DegradationRecord,
    since_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct SuspicionRecord {
    /// Pairs of job and time in ms.
    stalls: Vec<(u64, u64)>,
    owed_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct TakenRecord {
    node: u32,
    class: usize,
    amount: u32,
}

impl Snapshot {
    /// As JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let record = SnapshotRecord {
            version: VERSION,
            sequence: self.sequence,
            hash: self.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            state: write_state(&self.state),
            learned: self.learned.clone(),
        };
        serde_json::to_vec(&record).expect("snapshots hold nothing that JSON cannot")
    }

    /// `head` is the topology in the head of the log.
    ///
    /// # Errors
    /// When it is no snapshot, or one of another version.
    pub fn from_json(text: &[u8], head: &Arc<Topology>) -> Result<Self, SnapshotError> {
        let Versioned { version } = serde_json::from_slice(text)?;
        if version != VERSION {
            return Err(SnapshotError::Version { version });
        }
        let record: SnapshotRecord = serde_json::from_slice(text)?;
        Ok(Self {
            sequence: record.sequence,
            hash: read_hash(&record.hash)?,
            state: read_state(&record.state, head)?,
            learned: record.learned,
        })
    }
}

fn read_hash(text: &str) -> Result<[u8; 32], RecordError> {
    let unknown = || RecordError::UnknownWord { word: text.to_owned() };
    let mut hash = [0; 32];
    if text.len() != 2 * hash.len() || !text.is_ascii() {
        return Err(unknown());
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        let digits = &text[2 * index..2 * index + 2];
        *byte = u8::from_str_radix(digits, 16).map_err(|_| unknown())?;
    }
    Ok(hash)
}

fn write_state(state: &StateParts) -> StateRecord {
    let shares = |shares: &Vec<Share>| shares.iter().map(|share| share.0).collect();
    let spans = |spans: &[ShareMillis]| spans.iter().map(|span| span.0).collect();
    let claim = |claim: &Claim| ClaimRecord {
        placement: write_placement(&claim.placement),
        since_ms: claim.since.0,
    };
    let taken = |(&(node, class), amount): (&(NodeId, usize), &Share)| TakenRecord {
        node: node.0,
        class,
        amount: amount.0,
    };
    StateRecord {
        topology: Some(write_topology(&state.topology)),
        now_ms: state.now.0,
        generation: state.generation.0,
        next_job: state.next_job.0,
        next_lease: state.next_lease.0,
        jobs: state.jobs.iter().map(|(id, job)| (id.0, write_kept_job(job))).collect(),
        leases: state.leases.iter().map(|(id, held)| (id.0, write_lease(held))).collect(),
        claims: state.claims.iter().map(|(key, held)| (write_key(*key), claim(held))).collect(),
        preparations: state.preparations.iter().map(write_preparation).collect(),
        waiting: state.waiting.iter().map(|(key, ticket)| (write_key(*key), ticket.0)).collect(),
        next_ticket: state.next_ticket.0,
        departures: state.departures,
        last_checkpoint_ms: state.last_checkpoint.map(|at| at.0),
        yielding: state.yielding.iter().map(|(id, key)| (id.0, write_key(*key))).collect(),
        quotas: write_quotas(&state.quotas),
        policy: state.policy_memory.as_deref().map(write_memory),
        used: state.used.iter().map(|(name, used)| (name.to_string(), shares(used))).collect(),
        lost: state.lost.clone(),
        suspected: state.suspected.clone(),
        failed: state.failed.clone(),
        drained: state.drained.iter().map(|id| id.0).collect(),
        suspicions: state.suspicions.iter().map(write_suspicion).collect(),
        slow_devices: state.slow_devices.iter().map(write_slowness).collect(),
        degraded: state.degraded.iter().map(write_degraded).collect(),
        occupied: state.occupied.iter().map(|(id, by)| (id.0, write_occupant(by))).collect(),
        removed: state.removed.iter().map(|id| id.0).collect(),
        absent: state.absent.iter().map(|id| id.0).collect(),
        taken: state.taken.iter().map(taken).collect(),
        taken_of: state.taken_of.iter().map(|(id, of)| (id.0, of.0)).collect(),
        host_taken: state.host_taken.iter().map(|(id, of)| (id.0, (*of).into())).collect(),
        charged: spans(&state.charged),
        busy: spans(&state.busy),
        useful: spans(&state.useful),
    }
}

fn read_state(record: &StateRecord, head: &Arc<Topology>) -> Result<StateParts, RecordError> {
    let job = |(id, job): (&u64, &KeptJobRecord)| Ok((JobId(*id), Arc::new(read_kept_job(job)?)));
    let key = |key: &KeyRecord| read_key(*key);
    let by_key = record.waiting.iter().map(|(stage, ticket)| (key(stage), Ticket(*ticket)));
    let taken = |row: &TakenRecord| ((NodeId(row.node), row.class), Share(row.amount));
    let parts = StateParts {
        topology: match &record.topology {
            Some(record) => Arc::new(read_topology(record)?),
            None => Arc::clone(head),
        },
        now: Time(record.now_ms),
        generation: Generation(record.generation),
        next_job: JobId(record.next_job),
        next_lease: LeaseId(record.next_lease),
        jobs: record.jobs.iter().map(job).collect::<Result<_, RecordError>>()?,
        leases: record.leases.iter().map(|(id, held)| (LeaseId(*id), read_lease(held))).collect(),
        claims: record.claims.iter().map(read_claim).collect(),
        preparations: record.preparations.iter().map(read_preparation).collect(),
        waiting: by_key.collect(),
        next_ticket: Ticket(record.next_ticket),
        departures: record.departures,
        last_checkpoint: record.last_checkpoint_ms.map(Time),
        yielding: record.yielding.iter().map(|(id, to)| (LeaseId(*id), key(to))).collect(),
        quotas: Arc::new(read_quotas(&record.quotas)?),
        policy_memory: record
            .policy
            .as_ref()
            .map(|record| Arc::new(read_memory(&record.policy, &record.memory))),
        used: record.used.iter().map(read_used).collect(),
        lost: record.lost.clone(),
        suspected: record.suspected.clone(),
        failed: record.failed.clone(),
        drained: record.drained.iter().copied().map(DeviceId).collect(),
        suspicions: record.suspicions.iter().map(read_suspicion).collect(),
        slow_devices: record.slow_devices.iter().map(read_slowness).collect(),
        degraded: record.degraded.iter().map(read_degraded).collect(),
        occupied: record
            .occupied
            .iter()
            .map(|(id, by)| (DeviceId(*id), read_occupant(by)))
            .collect(),
        removed: record.removed.iter().copied().map(NodeId).collect(),
        absent: record.absent.iter().copied().map(DeviceId).collect(),
        taken: record.taken.iter().map(taken).collect(),
        taken_of: record.taken_of.iter().map(|(id, of)| (DeviceId(*id), Share(*of))).collect(),
        host_taken: record.host_taken.iter().map(|(id, of)| (NodeId(*id), (*of).into())).collect(),
        charged: record.charged.iter().copied().map(ShareMillis).collect(),
        busy: record.busy.iter().copied().map(ShareMillis).collect(),
        useful: record.useful.iter().copied().map(ShareMillis).collect(),
    };
    Ok(parts.filled_up())
}

fn read_claim((key, record): &(KeyRecord, ClaimRecord)) -> (StageKey, Claim) {
    let placement = Arc::new(read_placement(&record.placement));
    (read_key(*key), Claim { placement, since: Time(record.since_ms) })
}

fn write_preparation(
    (key, preparation): (&StageKey, &Preparation),
) -> (KeyRecord, PreparationRecord) {
    let record = PreparationRecord {
        lease: preparation.lease.0,
        placement: write_placement(&preparation.placement),
        resume: preparation.resume.as_ref().map(write_checkpoint),
        since_ms: preparation.since.0,
        failed: match &preparation.outcome {
            PreparationOutcome::Pending => None,
            PreparationOutcome::Failed { reason } => Some(reason.clone()),
        },
    };
    (write_key(*key), record)
}

fn read_preparation((key, record): &(KeyRecord, PreparationRecord)) -> (StageKey, Preparation) {
    let preparation = Preparation {
        lease: LeaseId(record.lease),
        placement: Arc::new(read_placement(&record.placement)),
        resume: record.resume.as_ref().map(read_checkpoint),
        since: Time(record.since_ms),
        outcome: match &record.failed {
            None => PreparationOutcome::Pending,
            Some(reason) => PreparationOutcome::Failed { reason: reason.clone() },
        },
    };
    (read_key(*key), preparation)
}

fn read_used((tenant, used): (&String, &Vec<u32>)) -> (Name, Vec<Share>) {
    (tenant.as_str().into(), used.iter().copied().map(Share).collect())
}

fn write_suspicion((device, suspicion): (&DeviceId, &Suspicion)) -> (u32, SuspicionRecord) {
    let stalls = suspicion.stalls.iter().map(|(job, at)| (job.0, at.0)).collect();
    (device.0, SuspicionRecord { stalls, owed_ms: suspicion.owed.0 })
}

fn write_slowness((device, slowness): (&DeviceId, &Slowness)) -> (u32, SlownessRecord) {
    let Slowness { part, seen, job } = slowness;
    (device.0, SlownessRecord { part: part.0, seen_ms: seen.0, job: job.0 })
}

fn read_slowness((device, record): (&u32, &SlownessRecord)) -> (DeviceId, Slowness) {
    let (part, seen, job) = (Micro(record.part), Time(record.seen_ms), JobId(record.job));
    (DeviceId(*device), Slowness { part, seen, job })
}

fn write_degraded((device, degraded): (&DeviceId, &Degraded)) -> (u32, DegradedRecord) {
    let degradation = write_degradation(&degraded.degradation);
    (device.0, DegradedRecord { degradation, since_ms: degraded.since.0 })
}

fn read_degraded((device, record): (&u32, &DegradedRecord)) -> (DeviceId, Degraded) {
    let degradation = read_degradation(&record.degradation);
    (DeviceId(*device), Degraded { degradation, since: Time(record.since_ms) })
}

fn read_suspicion((device, record): (&u32, &SuspicionRecord)) -> (DeviceId, Suspicion) {
    let stalls = record.stalls.iter().map(|(job, at)| (JobId(*job), Time(*at))).collect();
    (DeviceId(*device), Suspicion { stalls, owed: Millis(record.owed_ms) })
}

#[cfg(test)]
mod tests {
    use het_core::{State, Topology};

    use super::*;

    fn snapshot() -> Snapshot {
        let state = State::new(Arc::new(Topology::default())).into_parts();
        let observed = ObservedRecord {
            profile: "base".to_owned(),
            class: "h100".to_owned(),
            units: 2,
            within: "rack".to_owned(),
            count: 3,
            mean_bits: 0.1_f64.to_bits(),
            sum_of_squares_bits: f64::MIN_POSITIVE.to_bits(),
            told_bits: Some(0.3_f64.to_bits()),
        };
        let learned = LearnedRecord { history: vec![observed], ..LearnedRecord::default() };
        Snapshot { sequence: 7, hash: [0xa5; 32], state, learned }
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let snapshot = snapshot();
        let read =
            Snapshot::from_json(&snapshot.to_json(), &Arc::default()).expect("it was written here");
        assert_eq!(read, snapshot);
    }

    #[test]
    fn another_version_is_refused_and_not_guessed_at() {
        let json = String::from_utf8(snapshot().to_json()).expect("it is text");
        let later = json.replace("\"version\":1", "\"version\":2");
        let refused = Snapshot::from_json(later.as_bytes(), &Arc::default());
        assert!(matches!(refused, Err(SnapshotError::Version { version: 2 })), "{refused:?}");
    }

    #[test]
    fn a_hash_that_is_none_is_refused() {
        let json = String::from_utf8(snapshot().to_json()).expect("it is text");
        let refused = Snapshot::from_json(json.replace("a5a5", "zz€").as_bytes(), &Arc::default());
        assert!(matches!(refused, Err(SnapshotError::Record(_))), "{refused:?}");
    }
}
