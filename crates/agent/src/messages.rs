//! What is said between a server and an agent: one JSON line each.

use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use het_core::{
    Action, Event, Generation, LeaseId, Phase, Plan, StageIndex, StageKey, StopCause, Time,
};
use het_node::{GangResources, LiveLease, NodeSettings};
use het_wire::record::{Record, TopologyRecord};
use serde::{Deserialize, Serialize};

/// Longest line that a server reads: an event with the last lines of a program.
pub(crate) const LINE_BYTES_MAX: u64 = 256 << 10;

/// From the server, which is trusted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// The first message.
    Begin(Begin),
    /// What ids in plans mean from now on.
    Rows(TopologyRecord),
    /// What a submission left beside the log, before the first start that names it.
    Keep { name: String, text: String },
    /// The second message: what lives according to the log.
    Adopt(Vec<Adopted>),
    /// Starts and stops of this user's leases; resources by lease, for starts.
    Act { plan: Record, resources: Vec<(u64, GangResources)> },
    /// The ends of these leases are durable.
    Committed(Vec<u64>),
}

/// What an agent has to know of its machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// The machine as it was found: one node.
    pub found: TopologyRecord,
    pub rows: TopologyRecord,
    /// The directory of this user's jobs.
    pub dir: PathBuf,
    /// Where submissions are kept; paths below it stand for what is sent as [`ToAgent::Keep`].
    pub kept: PathBuf,
    /// The time of the engine, and that since boot then.
    pub at: u64,
    pub since_boot: u64,
    pub settings: NodeSettings,
}

/// One lease that lives according to the log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Adopted {
    /// A plan that starts it.
    start: Record,
    phase: PhaseWord,
    /// What was chosen for it, where the server knows.
    pub resources: Option<GangResources>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum PhaseWord {
    Starting,
    Running,
    Stopping,
}

/// From an agent, which may say anything.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// It does from now on what it is sent.
    Ready,
    Event(Box<Record>),
    /// What a lease has that the agent adopted.
    Has {
        lease: u64,
        resources: GangResources,
    },
    /// Why it cannot go on.
    Failed {
        why: String,
    },
}

impl Adopted {
    pub(crate) fn new(live: &LiveLease, resources: Option<GangResources>) -> Self {
        let LiveLease { lease, attempt, placement, launch, resume, phase } = live;
        let start = Action::Start {
            lease: *lease,
            // The agent does not ask whose it is.
            stage: StageKey { job: het_core::JobId(0), stage: StageIndex(0) },
            attempt: *attempt,
            placement: placement.clone(),
            launch: launch.clone(),
            resume: resume.clone(),
            reasons: Vec::new(),
        };
        let phase = match phase {
            Phase::Starting => PhaseWord::Starting,
            Phase::Running { .. } => PhaseWord::Running,
            Phase::Stopping { .. } => PhaseWord::Stopping,
        };
        Self { start: record(vec![start]), phase, resources }
    }

    /// `None` where it is no such record.
    pub(crate) fn live(&self) -> Option<LiveLease> {
        let mut actions = actions(&self.start)?;
        let Some(Action::Start { lease, attempt, placement, launch, resume, .. }) = actions.pop()
        else {
            return None;
        };
        let phase = match self.phase {
            PhaseWord::Starting => Phase::Starting,
            PhaseWord::Running => Phase::Running { since: Time::ZERO },
            PhaseWord::Stopping => Phase::Stopping { cause: StopCause::User },
        };
        Some(LiveLease { lease, attempt, phase, placement, launch, resume })
    }
}

/// Actions as the log would have them.
pub(crate) fn record(actions: Vec<Action>) -> Record {
    let plan = Plan { generation: Generation(0), actions, waits: Vec::new() };
    Record::new(Time::ZERO, &Event::PlanCommitted { plan: plan.into() })
}

pub(crate) fn actions(record: &Record) -> Option<Vec<Action>> {
    match record.read() {
        Ok((_, Event::PlanCommitted { plan })) => Some(plan.actions.clone()),
        _ => None,
    }
}

pub(crate) fn leases(ids: &[u64]) -> impl Iterator<Item = LeaseId> + '_ {
    ids.iter().map(|&id| LeaseId(id))
}

pub(crate) fn line(message: &impl Serialize) -> String {
    let mut line = serde_json::to_string(message).expect("messages hold nothing that JSON cannot");
    line.push('\n');
    line
}

pub(crate) fn write(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(line(message).as_bytes())
}

/// The next message; `None` at the end.
///
/// # Errors
/// When it is longer than the limit, or no such message.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(
    stream: &mut impl BufRead,
    bytes_max: u64,
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    stream.by_ref().take(bytes_max).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return match line.len() as u64 {
            length if length >= bytes_max => Err(io::ErrorKind::InvalidData.into()),
            // Cut off by the end.
            _ => Ok(None),
        };
    }
    Ok(Some(serde_json::from_slice(&line)?))
}
