//! What stages that wait can begin with before their devices are free: who comes next, and where
//! that is likely.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_core::{
    Action, Bytes, LeaseId, NodeId, Placement, Plan, Preparation, PreparationOutcome, StageKey,
    State,
};
use het_policy::{Decision, Pool, Remainder, View, Want, upcoming};

/// Stages that are prepared on a node at a time: the one that comes next, and the one after it.
const PREPARED_PER_NODE: usize = 2;

/// Waiting stages that are looked at.
const LOOKS_MAX: usize = 32;

/// Adds to a plan what is to be prepared now, and gives up what is of no use any more.
pub(crate) fn prepare(view: &View<'_>, decision: &Decision, plan: &mut Plan) {
    let state = view.state;
    if state.preparations().next().is_none() && state.preparable().next().is_none() {
        return;
    }
    let started = started(plan);
    // Who comes next is told by the decision that finds nothing to do: one that acts is followed by
    // another.
    let acts = !plan.actions.is_empty();
    let wanted = if acts { Vec::new() } else { wanted(view, decision) };
    let is_kept = |key: StageKey, preparation: &Preparation| match started.get(&key) {
        Some(lease) => *lease == preparation.lease,
        None => match preparation.outcome {
            _ if acts => state.is_waiting(key),
            PreparationOutcome::Pending => wanted.iter().any(|(of, placement)| {
                let checkpoint = state.stage_record(key).checkpoint.as_ref();
                *of == key && preparation.serves(state.stage(key).1, placement, checkpoint)
            }),
            // It says that no other is to be made.
            PreparationOutcome::Failed { .. } => state.is_waiting(key),
        },
    };
    let (kept, given_up): (Vec<_>, Vec<_>) =
        state.preparations().partition(|(key, preparation)| is_kept(*key, preparation));
    let given_up =
        given_up.into_iter().map(|(stage, it)| Action::Unprepare { stage, lease: it.lease });
    plan.actions.splice(0..0, given_up);
    let kept: BTreeSet<StageKey> = kept.into_iter().map(|(key, _)| key).collect();
    let new = wanted.into_iter().filter(|(key, _)| !kept.contains(key));
    let actions = new.zip(state.next_lease().0..).map(|((stage, placement), lease)| {
        let (_, spec, record) = state.stage(stage);
        Action::Prepare {
            lease: LeaseId(lease),
            stage,
            attempt: record.attempts + 1,
            launch: Arc::clone(&spec.alternatives[placement.alternative].launch),
            placement: Arc::new(placement),
            resume: record.checkpoint.clone(),
        }
    });
    plan.actions.extend(actions);
}

/// Who starts by a plan.
fn started(plan: &Plan) -> BTreeMap<StageKey, LeaseId> {
    let starts = plan.actions.iter().filter_map(|action| match action {
        Action::Start { stage, lease, .. } => Some((*stage, *lease)),
        _ => None,
    });
    starts.collect()
}

/// Who should be prepared and where, in the order in which they come: those for whom devices are
/// being freed, those who come next by the policy, and the rest by priority and by the time that
/// they waited; as many as a node has room for.
fn wanted(view: &View<'_>, decision: &Decision) -> Vec<(StageKey, Placement)> {
    let state = view.state;
    let claimed = decision.wants.iter().filter_map(|(key, want)| match want {
        Want::Run { placement, .. } => Some((*key, placement.clone())),
        Want::Wait { .. } => None,
    });
    let claimed: Vec<_> = claimed.collect();
    let remainder = Remainder::of(Pool::of(state).with_suspected(), decision);
    let order = |key: &StageKey| {
        let next = decision.next.iter().position(|next| next == key);
        let job = state.stage(*key).0;
        let since = job.waiting_since(key.stage);
        let is_new = state.preparation(*key).is_none();
        (next.unwrap_or(usize::MAX), Reverse(job.priority()), is_new, since, *key)
    };
    let waiting = state.preparable().filter(|key| !remainder.serves(*key));
    let mut waiting: Vec<StageKey> = waiting.collect();
    waiting.sort_by_cached_key(order);
    waiting.truncate(LOOKS_MAX);
    let rest = upcoming(view, decision, remainder, waiting);
    let mut rooms: BTreeMap<NodeId, Room> = BTreeMap::new();
    let rows = claimed.into_iter().chain(rest).filter_map(|(key, placement)| {
        let node = placement.ranks.first()?.node;
        let is_waiting = state.is_waiting(key) && state.stage(key).1.is_preparable();
        let is_on_one = placement.ranks.iter().all(|rank| rank.node == node);
        let room = rooms.entry(node).or_insert_with(|| Room::of(state, node));
        (is_waiting && is_on_one && room.take(&placement)).then_some((key, placement))
    });
    rows.collect()
}

/// What a node has for preparations: they use memory that nobody else does at the moment.
struct Room {
    count: usize,
    memory: Bytes,
}

impl Room {
    fn of(state: &State, node: NodeId) -> Self {
        Self { count: PREPARED_PER_NODE, memory: state.host_free(node).memory }
    }

    fn take(&mut self, placement: &Placement) -> bool {
        let asked = placement.ranks.iter().map(|rank| rank.host.memory.0).sum();
        let fits = self.count > 0 && self.memory >= Bytes(asked);
        if fits {
            self.count -= 1;
            self.memory = self.memory.saturating_sub(Bytes(asked));
        }
        fits
    }
}
