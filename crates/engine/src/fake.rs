//! The smallest engine that obeys the contract: scripted stages in virtual time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use het_core::{
    Action, Event, Failure, FailureCause, LeaseId, Millis, Name, NodeId, Outcome, Phase, Placement,
    Plan, StageKey, State, Time, Topology,
};

use crate::{Engine, GenerationFence};

/// What the program of a stage does, as far as the contract can see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// Ends its work after this long.
    Finish(Millis),
    /// Works until it is stopped, and obeys a notice at once.
    UntilNotice,
    /// Works on and ignores every notice.
    Deaf,
    /// One rank exits with this code after this long; the other ranks would go on.
    Fail(Millis, i32),
}

/// An engine that runs [`Script`]s. A stage without a script finishes at once.
#[derive(Debug, Default)]
pub struct Fake {
    scripts: BTreeMap<StageKey, Script>,
    now: Time,
    fence: GenerationFence,
    topology: Arc<Topology>,
    /// Names of nodes that were reported as removed and did not join again.
    removed: BTreeSet<Name>,
    /// Facts that somebody else found.
    reports: VecDeque<Event>,
    live: BTreeMap<LeaseId, Live>,
    /// In order of time, then lease, then position in a lease's life.
    queue: BTreeSet<(Time, LeaseId, u8)>,
    endings: BTreeMap<LeaseId, Outcome>,
    /// Ends that were reported and may not be durable yet.
    uncommitted: Vec<(LeaseId, Outcome)>,
}

/// A gang at work.
#[derive(Debug)]
struct Live {
    script: Script,
    placement: Arc<Placement>,
}

const STARTED: u8 = 0;
const ENDED: u8 = 1;

impl Fake {
    pub fn new(scripts: impl IntoIterator<Item = (StageKey, Script)>) -> Self {
        Self { scripts: scripts.into_iter().collect(), ..Self::default() }
    }

    /// Has the engine report a fact that somebody else found.
    pub fn report(&mut self, event: Event) {
        self.reports.push_back(event);
    }

    fn start(&mut self, lease: LeaseId, stage: StageKey, placement: &Arc<Placement>) {
        let missing = |node: NodeId| self.removed.contains(&self.topology.node(node).name);
        if let Some(rank) = placement.ranks.iter().find(|rank| missing(rank.node)) {
            let reason = format!("`{}` is not there any more", self.topology.node(rank.node).name);
            return self.end_at(self.now, lease, Outcome::Refused { reason });
        }
        let script = self.scripts.get(&stage).copied().unwrap_or(Script::Finish(Millis(0)));
        let placement = Arc::clone(placement);
        self.live.insert(lease, Live { script, placement });
        self.queue.insert((self.now, lease, STARTED));
        match script {
            Script::Finish(after) => self.end_at(self.now + after, lease, Outcome::Finished),
            Script::Fail(after, exit_code) => {
                let message = "scripted".to_owned();
                let cause = FailureCause::Program;
                let failure = Failure { rank: 0, exit_code, message, cause };
                self.end_at(self.now + after, lease, Outcome::Failed(failure));
            }
            Script::UntilNotice | Script::Deaf => {}
        }
    }

    fn stop(&mut self, lease: LeaseId, grace: Millis) {
        let wait = match self.live.get(&lease).map(|live| live.script) {
            Some(Script::Deaf) => grace,
            Some(_) => Millis(0),
            None => return,
        };
        self.end_at(self.now + wait, lease, Outcome::Stopped);
    }

    /// What happens to gangs when such a fact comes about.
    fn undergo(&mut self, event: &Event) {
        match event {
            Event::NodeRemoved { name } => {
                let topology = Arc::clone(&self.topology);
                let stands = |live: &Live| {
                    live.placement.ranks.iter().any(|rank| topology.node(rank.node).name == *name)
                };
                let hit = self.live.iter().filter(|(_, live)| stands(live));
                let hit: Vec<LeaseId> = hit.map(|(lease, _)| *lease).collect();
                hit.into_iter().for_each(|lease| self.end_at(self.now, lease, Outcome::Lost));
                self.removed.insert(name.clone());
            }
            Event::NodesJoined { nodes } => {
                nodes.nodes.iter().for_each(|node| {
                    self.removed.remove(&node.name);
                });
            }
            _ => {}
        }
    }

    fn end_at(&mut self, at: Time, lease: LeaseId, outcome: Outcome) {
        self.queue.retain(|&(_, other, part)| (other, part) != (lease, ENDED));
        self.queue.insert((at, lease, ENDED));
        self.endings.insert(lease, outcome);
    }
}

impl Engine for Fake {
    fn adopt(&mut self, state: &State) {
        self.fence.adopt(state);
        self.topology_changed(state.topology());
        for (lease, outcome) in std::mem::take(&mut self.uncommitted) {
            self.end_at(self.now, lease, outcome);
        }
        for (&lease, held) in state.leases() {
            if self.live.contains_key(&lease) {
                if held.phase == Phase::Starting {
                    self.queue.insert((self.now, lease, STARTED));
                }
            } else if held.phase == Phase::Starting {
                self.start(lease, held.stage, &held.placement);
            } else if !self.endings.contains_key(&lease) {
                self.end_at(self.now, lease, Outcome::Lost);
            }
            if held.phase.is_stopping() {
                self.stop(lease, Millis(0));
            }
        }
        let known = |lease: &LeaseId| state.leases().contains_key(lease);
        self.live.retain(|lease, _| known(lease));
        self.endings.retain(|lease, _| known(lease));
        self.queue.retain(|(_, lease, _)| known(lease));
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        self.topology = Arc::clone(topology);
    }

    fn submit(&mut self, plan: &Plan) {
        if !self.fence.admits(plan) {
            return;
        }
        for action in &plan.actions {
            match action {
                Action::Start { lease, stage, placement, .. } => {
                    self.start(*lease, *stage, placement);
                }
                Action::Stop { lease, grace, .. } => self.stop(*lease, *grace),
                Action::Claim { .. }
                | Action::Unclaim { .. }
                | Action::Prepare { .. }
                | Action::Unprepare { .. } => {}
            }
        }
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        if let Some(event) = self.reports.pop_front() {
            self.undergo(&event);
            return Some((self.now, event));
        }
        let due = self.queue.first().copied().filter(|&(at, ..)| until.is_none_or(|u| at <= u));
        let Some((at, lease, part)) = due else {
            self.now = self.now.max(until.unwrap_or(self.now));
            return None;
        };
        self.queue.pop_first();
        self.now = at;
        if part == STARTED {
            return Some((at, Event::StageStarted { lease }));
        }
        self.live.remove(&lease);
        let outcome = self.endings.remove(&lease).expect("an ending is stored with its row");
        self.uncommitted.push((lease, outcome.clone()));
        Some((at, Event::StageEnded { lease, outcome }))
    }

    fn committed(&mut self) {
        self.uncommitted.clear();
    }

    fn now(&self) -> Time {
        self.now
    }
}
