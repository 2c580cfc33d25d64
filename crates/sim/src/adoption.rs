//! Taking up what runs according to a state read from the log: the loop before may have died
//! between a fact and its commit, or between a commit and its submission.

use het_core::{CheckpointSpec, Event, LeaseId, Outcome, Phase, State};
use het_engine::Engine;

use crate::Sim;
use crate::engine::{Prepared, checkpointed};

impl Sim {
    pub(crate) fn take_up(&mut self, state: &State) {
        self.fence.adopt(state);
        self.topology_changed(state.topology());
        for (lease, outcome) in std::mem::take(&mut self.uncommitted) {
            self.emit(Event::StageEnded { lease, outcome });
        }
        for (&lease, held) in state.leases() {
            let (_, spec, stage) = state.stage(held.stage);
            if self.runs.contains_key(&lease) {
                self.report_again(state, lease);
            } else if self.will_end(lease) {
                continue;
            } else if held.phase == Phase::Starting {
                self.start(lease, held.stage, &held.placement, stage.checkpoint.as_ref());
            } else {
                self.emit(Event::StageEnded { lease, outcome: Outcome::Lost });
            }
            let stops = self.runs.get(&lease).is_some_and(|run| !run.stopping);
            if held.phase.is_stopping() && stops {
                let launch = &spec.alternatives[held.placement.alternative].launch;
                let grace = launch.checkpoint.as_ref().map(|checkpoint| checkpoint.grace);
                self.stop(lease, grace.unwrap_or(CheckpointSpec::GRACE_DEFAULT));
            }
        }
        self.runs.retain(|lease, _| state.leases().contains_key(lease));
        self.prepared = state
            .preparations()
            .map(|(stage, it)| {
                let node = it.placement.ranks.first().map(|rank| rank.node);
                (stage, Prepared { lease: it.lease, node, since: it.since })
            })
            .collect();
    }

    /// What was reported of a live run and may not have been heard.
    fn report_again(&mut self, state: &State, lease: LeaseId) {
        let held = &state.leases()[&lease];
        let starts =
            |event: &Event| matches!(event, Event::StageStarted { lease: of } if *of == lease);
        if held.phase == Phase::Starting && !self.will_emit(starts) {
            self.emit(Event::StageStarted { lease });
        }
        let saved = self.runs[&lease].saved;
        let known = state.stage(held.stage).2.checkpoint.as_ref().map_or(0, |newest| newest.step);
        if saved > known {
            self.emit(checkpointed(lease, saved));
        }
    }

    fn will_end(&self, lease: LeaseId) -> bool {
        self.will_emit(|event| matches!(event, Event::StageEnded { lease: of, .. } if *of == lease))
    }

    fn will_emit(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.queue.events().any(wanted)
    }
}
