//! What a scheduler leaves of a job to its successor, who may know neither its log nor the rows of
//! its topology: nodes and devices go by their names.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    DeviceId, Grant, Job, JobId, Lease, LeaseId, Name, NodeId, Placement, Rank, Share, Stage,
    StageIndex, StageKey, StageState, State, Time, Topology,
};
use serde::{Deserialize, Serialize};

use super::RecordError;
use super::host::HostRecord;
use super::kept_job::{KeptJobRecord, read_kept_job, write_kept_job};
use super::lease::{PhaseRecord, read_phase, write_phase};

/// Of the shape below.
const VERSION: u32 = 1;
/// Highest number of a job or lease that is believed: those that follow it are numbers, too.
pub const NUMBER_MAX: u64 = 1 << 52;

/// A job and the leases of its active stages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHandover {
    version: u32,
    id: u64,
    job: KeptJobRecord,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    leases: BTreeMap<u64, NamedLease>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NamedLease {
    stage: u16,
    attempt: u32,
    alternative: usize,
    ranks: Vec<NamedRank>,
    since_ms: u64,
    phase: PhaseRecord,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NamedRank {
    node: String,
    /// Pairs of a device of the node and the share in 1/10,000.
    grants: Vec<(String, u32)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    companions: Vec<(String, u32)>,
    #[serde(flatten)]
    host: HostRecord,
}

/// A job as its successor finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedOver {
    pub id: JobId,
    pub job: Job,
    /// Without those of nodes or devices that are not there.
    pub leases: BTreeMap<LeaseId, Lease>,
}

impl JobHandover {
    /// `None` of a job that is not there.
    pub fn of(state: &State, id: JobId) -> Option<Self> {
        let job = state.job(id)?;
        let active = job.stages.iter().filter_map(|stage| match stage.state {
            StageState::Active { lease } => Some(lease),
            _ => None,
        });
        let leases = active.filter_map(|id| Some((id.0, state.leases().get(&id)?)));
        let leases = leases.map(|(id, lease)| (id, write_named(state.topology(), lease)));
        let mut bare = job.clone();
        bare.stages.iter_mut().for_each(forget_rows);
        if bare.eligible.is_none() {
            Arc::make_mut(&mut bare.spec).start = state.open_conditions(id);
        }
        let job = write_kept_job(&bare);
        Some(Self { version: VERSION, id: id.0, job, leases: leases.collect() })
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("records hold nothing that JSON cannot")
    }

    /// # Errors
    /// When it is none, or one of another version.
    pub fn from_json(text: &str) -> Result<Self, RecordError> {
        let record: Self = serde_json::from_str(text)?;
        let numbers = record.leases.keys().chain([&record.id]);
        match (record.version, numbers.max()) {
            (VERSION, Some(number)) if *number > NUMBER_MAX => Err(RecordError::Number),
            (VERSION, _) => Ok(record),
            (version, _) => Err(RecordError::Version { version }),
        }
    }

    /// # Errors
    /// When it holds words that this version does not know.
    pub fn read(&self, topology: &Topology) -> Result<HandedOver, RecordError> {
        let (id, mut job) = (JobId(self.id), read_kept_job(&self.job)?);
        let mut leases = BTreeMap::new();
        let names = Names::of(topology);
        for (&number, record) in &self.leases {
            if let Some(lease) = read_named(&names, id, record) {
                if let Some(stage) = job.stages.get_mut(lease.stage.stage.index()) {
                    stage.placement = Some(Arc::clone(&lease.placement));
                }
                leases.insert(LeaseId(number), lease);
            }
        }
        Ok(HandedOver { id, job, leases })
    }

    /// The nodes that its leases name.
    pub fn nodes(&self) -> impl Iterator<Item = Name> + '_ {
        let ranks = self.leases.values().flat_map(|lease| &lease.ranks);
        ranks.map(|rank| rank.node.as_str().into())
    }

    pub fn lease_count(&self) -> usize {
        self.leases.len()
    }

    pub fn id(&self) -> JobId {
        JobId(self.id)
    }

    /// The number of its newest lease.
    pub fn newest_lease(&self) -> Option<LeaseId> {
        self.leases.keys().next_back().map(|number| LeaseId(*number))
    }
}

/// What names devices by their rows, and is found out anew.
fn forget_rows(stage: &mut Stage) {
    stage.placement = None;
    stage.start_reasons.clear();
    stage.wait_reasons.clear();
}

fn write_named(topology: &Topology, lease: &Lease) -> NamedLease {
    let pair = |it: &Grant| (topology.device(it.device).name.to_string(), it.share.0);
    let ranks = lease.placement.ranks.iter().map(|rank| NamedRank {
        node: topology.node(rank.node).name.to_string(),
        grants: rank.grants.iter().map(pair).collect(),
        companions: rank.companions.iter().map(pair).collect(),
        host: rank.host.into(),
    });
    NamedLease {
        stage: lease.stage.stage.0,
        attempt: lease.attempt,
        alternative: lease.placement.alternative,
        ranks: ranks.collect(),
        since_ms: lease.since.0,
        phase: write_phase(lease.phase),
    }
}

/// Where each node and device of a topology stands, by name.
struct Names<'a> {
    nodes: BTreeMap<&'a str, NodeId>,
    devices: BTreeMap<(NodeId, &'a str), DeviceId>,
}

impl<'a> Names<'a> {
    fn of(topology: &'a Topology) -> Self {
        let nodes = topology.node_ids().map(|id| (topology.node(id).name.as_str(), id));
        let devices = topology.device_ids().map(|id| {
            let device = topology.device(id);
            ((device.node, device.name.as_str()), id)
        });
        Self { nodes: nodes.collect(), devices: devices.collect() }
    }
}

/// `None` where it names what is not there.
fn read_named(names: &Names<'_>, job: JobId, record: &NamedLease) -> Option<Lease> {
    let rank = |record: &NamedRank| {
        let node = *names.nodes.get(record.node.as_str())?;
        let grants = |pairs: &[(String, u32)]| {
            let grant = |(name, share): &(String, u32)| {
                let device = *names.devices.get(&(node, name.as_str()))?;
                Some(Grant { device, share: Share(*share) })
            };
            pairs.iter().map(grant).collect::<Option<Vec<_>>>()
        };
        Some(Rank {
            node,
            grants: grants(&record.grants)?,
            companions: grants(&record.companions)?,
            host: record.host.into(),
        })
    };
    let ranks = record.ranks.iter().map(rank).collect::<Option<_>>()?;
    Some(Lease {
        stage: StageKey { job, stage: StageIndex(record.stage) },
        attempt: record.attempt,
        placement: Arc::new(Placement { alternative: record.alternative, ranks }),
        since: Time(record.since_ms),
        phase: read_phase(record.phase),
    })
}
