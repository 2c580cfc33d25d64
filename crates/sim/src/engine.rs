//! The simulator's engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use het_core::{
    Action, Checkpoint, DeviceId, Event, Failure, FailureCause, Grant, Index, LeaseId, Locality,
    Measured, Micro, Millis, Name, NodeId, Outcome, Placement, Plan, PreparationEnd, Progress,
    Rank, StageKey, State, Time, Topology,
};
use het_engine::{Engine, GenerationFence};

use crate::elastic::{RECONSIDERS_AFTER, Trainer};
use crate::event_queue::{EventQueue, ScheduledEvent};
use crate::{Fault, StageModel};

/// Virtual time over a topology.
#[derive(Debug)]
pub struct Sim {
    topology: Arc<Topology>,
    /// Made when first asked for.
    index: OnceLock<Index>,
    models: BTreeMap<StageKey, Arc<StageModel>>,
    /// The programs of elastic stages, which remember what they measured.
    trainers: BTreeMap<StageKey, Trainer>,
    now: Time,
    pub(crate) fence: GenerationFence,
    pub(crate) queue: EventQueue,
    pub(crate) runs: BTreeMap<LeaseId, Run>,
    pub(crate) prepared: BTreeMap<StageKey, Prepared>,
    /// Ends that were reported and may not be durable yet.
    pub(crate) uncommitted: Vec<(LeaseId, Outcome)>,
    lost: Vec<bool>,
    failed: BTreeSet<DeviceId>,
    /// Names of nodes that were removed and did not join again.
    removed: BTreeSet<Name>,
    /// Percent of the normal step time, by node.
    pace: Vec<u64>,
    /// The same for gangs that stand on several nodes.
    link_pace: Vec<u64>,
    /// Stages whose scripted failure has happened.
    failed_once: BTreeSet<StageKey>,
    /// Stages whose corrupt checkpoint was found to be so.
    corrupt_once: BTreeSet<StageKey>,
}

/// A program that waits for its devices, or is on its way there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared {
    pub(crate) lease: LeaseId,
    pub(crate) node: Option<NodeId>,
    pub(crate) since: Time,
}

/// A gang at work.
#[derive(Debug)]
pub(crate) struct Run {
    stage: StageKey,
    placement: Arc<Placement>,
    /// Steps done when `since_ns` began.
    done: u64,
    /// Steps that are safe in a checkpoint.
    pub(crate) saved: u64,
    /// Since when the present step is worked on.
    since_ns: u64,
    step_ns: u64,
    /// Time spent in steps, and the part of it that is saved.
    worked_ns: u64,
    kept_ns: u64,
    epoch: u32,
    /// It was told that its start is over: who still loads has nothing to save or to say.
    has_started: bool,
    pub(crate) stopping: bool,
    /// A rank of it hangs or computes nonsense: it neither ends nor saves anything of worth.
    broken: bool,
    /// When an elastic job next looks at its own speed.
    attunes: Option<Time>,
}

impl Run {
    /// Books the steps done until `now`.
    fn settle(&mut self, now: Time) {
        if self.broken {
            return;
        }
        let steps = ns(now).saturating_sub(self.since_ns) / self.step_ns;
        self.done += steps;
        self.since_ns += steps * self.step_ns;
        self.worked_ns += steps * self.step_ns;
        self.epoch += 1;
    }

    /// All work so far counts, whatever happens to the gang.
    fn keep(&mut self) {
        self.saved = self.done;
        self.kept_ns = self.worked_ns;
    }

    /// What the gang reports of itself.
    fn progress(&self, total: Option<u64>) -> Progress {
        let units = u64::from(self.placement.units());
        Progress {
            step: Some(self.done),
            total,
            busy: Some(Millis(self.worked_ns / NS_PER_MS * units)),
            useful: Some(Millis(self.kept_ns / NS_PER_MS)),
            ..Progress::default()
        }
    }
}

const NS_PER_MS: u64 = 1_000_000;

fn ns(at: Time) -> u64 {
    at.0 * NS_PER_MS
}

impl Sim {
    /// `models` says how each stage behaves; one without a model ends at once. `words` are what
    /// users say when: submits, holds, cancels.
    pub fn new(
        topology: Arc<Topology>,
        models: BTreeMap<StageKey, Arc<StageModel>>,
        words: impl IntoIterator<Item = (Time, Event)>,
        faults: impl IntoIterator<Item = (Time, Fault)>,
    ) -> Self {
        let mut queue = EventQueue::default();
        for (at, word) in words {
            queue.add(at, ScheduledEvent::Emit(Box::new(word)));
        }
        for (at, fault) in faults {
            queue.add(at, ScheduledEvent::InjectFault(fault));
        }
        Self {
            lost: vec![false; topology.nodes.len()],
            failed: BTreeSet::new(),
            pace: vec![100; topology.nodes.len()],
            link_pace: vec![100; topology.nodes.len()],
            index: OnceLock::new(),
            topology,
            models,
            trainers: BTreeMap::new(),
            now: Time::ZERO,
            fence: GenerationFence::default(),
            removed: BTreeSet::new(),
            queue,
            runs: BTreeMap::new(),
            prepared: BTreeMap::new(),
            uncommitted: Vec::new(),
            failed_once: BTreeSet::new(),
            corrupt_once: BTreeSet::new(),
        }
    }

    /// Has the engine report a fact that somebody else found.
    pub fn report(&mut self, event: Event) {
        self.queue.add(self.now, ScheduledEvent::InjectFault(Fault::Reported(event)));
    }

    /// When something happens next, if nobody does anything; `None` where nothing does.
    pub fn next_time(&self) -> Option<Time> {
        self.queue.next_time()
    }

    fn model(&self, stage: StageKey) -> Arc<StageModel> {
        self.models.get(&stage).cloned().unwrap_or_default()
    }

    pub(crate) fn start(
        &mut self,
        lease: LeaseId,
        stage: StageKey,
        placement: &Arc<Placement>,
        resume: Option<&Checkpoint>,
    ) {
        let is_removed = |rank: &&Rank| self.removed.contains(&self.topology.node(rank.node).name);
        if let Some(rank) = placement.ranks.iter().find(is_removed) {
            let reason = format!("`{}` is not there any more", self.topology.node(rank.node).name);
            self.emit(Event::StageEnded { lease, outcome: Outcome::Refused { reason } });
            return;
        }
        let is_gone = |rank: &Rank| self.lost[rank.node.index()];
        let has_failed = |grant: Grant| self.failed.contains(&grant.device);
        if placement.ranks.iter().any(is_gone) || placement.grants().any(has_failed) {
            self.emit(Event::StageEnded { lease, outcome: Outcome::Lost });
            return;
        }
        let model = self.model(stage);
        let loaded = self.now + model.load.saturating_sub(self.done_early(stage, lease, &model));
        let done = resume.map_or(0, |checkpoint| checkpoint.step);
        let is_corrupt = resume.is_some() && model.corrupt_at == Some(done);
        if is_corrupt && self.corrupt_once.insert(stage) {
            let message = "its checkpoint cannot be read".to_owned();
            let cause = FailureCause::Program;
            let outcome = Outcome::Failed(Failure { rank: 0, exit_code: 1, message, cause });
            self.queue
                .add(loaded, ScheduledEvent::Emit(Box::new(Event::StageEnded { lease, outcome })));
            return;
        }
        if let Some(application) = &model.elastic {
            let trainer = self.trainers.entry(stage).or_insert_with(|| Trainer::new(application));
            if let Some(device) = placement.devices().next() {
                let class = &self.topology.class_of(device.device).id;
                trainer.start(class, devices_by_node(placement));
            }
        }
        let run = Run {
            stage,
            placement: Arc::clone(placement),
            done,
            saved: done,
            since_ns: ns(loaded),
            step_ns: self.step_ns(stage, done, placement),
            worked_ns: 0,
            kept_ns: 0,
            epoch: 0,
            has_started: false,
            stopping: false,
            broken: false,
            attunes: model.elastic.as_ref().map(|_| loaded),
        };
        self.runs.insert(lease, run);
        self.queue.add(loaded, ScheduledEvent::Emit(Box::new(Event::StageStarted { lease })));
        if let Some(after) = model.publishes_after {
            let published = ScheduledEvent::Emit(Box::new(Event::StagePublished { lease }));
            self.queue.add(loaded + after, published);
        }
        self.schedule(lease);
    }

    /// What of the load of a stage was done while it waited.
    fn done_early(&mut self, stage: StageKey, lease: LeaseId, model: &StageModel) -> Millis {
        match self.prepared.remove(&stage) {
            Some(prepared) if prepared.lease == lease => {
                self.now.since(prepared.since).min(model.imports)
            }
            _ => Millis::ZERO,
        }
    }

    /// What waits on the node for devices is gone.
    fn lose_prepared(&mut self, node: NodeId) {
        let lost = self.prepared.extract_if(.., |_, prepared| prepared.node == Some(node));
        let lost: Vec<LeaseId> = lost.map(|(_, prepared)| prepared.lease).collect();
        let end = PreparationEnd::Lost;
        let ended = |lease| Event::PreparationEnded { lease, end: end.clone() };
        lost.into_iter().for_each(|lease| self.emit(ended(lease)));
    }

    /// The slowest rank or link sets the pace of a gang.
    fn step_ns(&self, stage: StageKey, done: u64, placement: &Placement) -> u64 {
        let spans = placement.nodes() > 1;
        let pace_of = |node: NodeId| {
            let link = if spans { self.link_pace[node.index()] } else { 100 };
            self.pace[node.index()] * link / 100
        };
        if let Some(trainer) = self.trainers.get(&stage) {
            let pace = placement.ranks.iter().map(|rank| pace_of(rank.node)).max();
            return (trainer.step_ns(done) * pace.unwrap_or(100)).div_ceil(100).max(1);
        }
        let model = &self.model(stage);
        let units = placement.units();
        let locality = match model.apart.is_empty() {
            true => Locality::BEST,
            false => {
                let index = self.index.get_or_init(|| Index::of(&self.topology));
                index.locality(&self.topology, placement)
            }
        };
        let of_rank = placement.ranks.iter().flat_map(|rank| {
            let pace = pace_of(rank.node);
            rank.grants.iter().map(move |grant| {
                let class = &self.topology.class_of(grant.device).id;
                let step = model.step_on(class, units, locality).unwrap_or(model.step_ns_default);
                (step * pace).div_ceil(100).max(1)
            })
        });
        of_rank.max().unwrap_or(1)
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.queue.add(self.now, ScheduledEvent::Emit(Box::new(event)));
    }

    /// The next step at which something happens to the stage.
    fn next_milestone(&self, run: &Run) -> u64 {
        let model = self.model(run.stage);
        let every = model.checkpoint_every;
        let checkpoint = match model.save {
            Some(_) => (run.done / every).saturating_add(1).saturating_mul(every),
            None => u64::MAX,
        };
        let elastic = self.trainers.get(&run.stage).map(|trainer| trainer.epoch_end(run.done));
        let failure = match model.fails_at {
            Some((step, _)) if !self.failed_once.contains(&run.stage) => step.max(run.done),
            _ => u64::MAX,
        };
        model.steps.min(checkpoint).min(failure).min(elastic.unwrap_or(u64::MAX))
    }

    fn schedule(&mut self, lease: LeaseId) {
        let Some(run) = self.runs.get(&lease) else { return };
        let steps = self.next_milestone(run).saturating_sub(run.done);
        let at_ns = run.since_ns.saturating_add(steps.saturating_mul(run.step_ns));
        let epoch = run.epoch;
        let at = Time(at_ns.div_ceil(NS_PER_MS));
        let at = run.attunes.map_or(at, |attunes| at.min(attunes));
        self.queue.add(at, ScheduledEvent::Milestone { lease, epoch });
    }

    fn milestone(&mut self, lease: LeaseId, epoch: u32) {
        let now = self.now;
        let Some(run) = self.runs.get_mut(&lease) else { return };
        if run.epoch != epoch || run.stopping || run.broken {
            return;
        }
        run.settle(now);
        let (stage, done) = (run.stage, run.done);
        let model = self.model(stage);
        if done >= model.steps {
            self.end(lease, Outcome::Finished);
        } else if model.elastic.is_some() {
            self.attune(lease);
        } else if let Some((step, exit_code)) = model.fails_at
            && step <= done
            && self.failed_once.insert(stage)
        {
            let message = "scripted failure".to_owned();
            let cause = FailureCause::Program;
            self.end(lease, Outcome::Failed(Failure { rank: 0, exit_code, message, cause }));
        } else {
            if let Some(run) = self.runs.get_mut(&lease) {
                run.keep();
                run.since_ns += model.save.unwrap_or_default().0 * NS_PER_MS;
                let progress = run.progress(Some(model.steps));
                self.emit(Event::Progressed { lease, progress });
            }
            self.emit(checkpointed(lease, done));
            self.schedule(lease);
        }
    }

    /// An elastic job looks at its speed: right after it started, at the end of an epoch, and some
    /// time after it measured something new. It chooses its batch, measures, and says so.
    fn attune(&mut self, lease: LeaseId) {
        let now = self.now;
        let Some(run) = self.runs.get_mut(&lease) else { return };
        let Some(trainer) = self.trainers.get_mut(&run.stage) else { return };
        let just_started = run.worked_ns == 0;
        let changed = !just_started && trainer.reconsider();
        let measured = trainer.measure(run.done);
        run.attunes = (just_started || changed).then_some(now + RECONSIDERS_AFTER);
        run.keep();
        let mut progress = run.progress(None);
        let (stage, done, placement) = (run.stage, run.done, Arc::clone(&run.placement));
        progress.measured = Some(Box::new(self.as_told(stage, &placement, measured)));
        let step_ns = self.step_ns(stage, done, &placement);
        if let Some(run) = self.runs.get_mut(&lease) {
            run.step_ns = step_ns;
        }
        self.emit(Event::Progressed { lease, progress });
        self.emit(checkpointed(lease, done));
        self.schedule(lease);
    }

    /// What the job says of its steps, which it may misread.
    fn as_told(&self, stage: StageKey, placement: &Placement, measured: Measured) -> Measured {
        let class = placement.devices().next().map(|grant| self.topology.class_of(grant.device));
        let misread = &self.model(stage).misread;
        let factor = class.and_then(|class| misread.get(&class.id)).copied().unwrap_or(1.0);
        let scaled = |micro: Micro| Micro((micro.0 as f64 * factor).round() as i64);
        Measured { step: scaled(measured.step), exchange: scaled(measured.exchange), ..measured }
    }

    /// The gang is gone; its last words come before the fact.
    fn end(&mut self, lease: LeaseId, outcome: Outcome) {
        let Some(mut run) = self.runs.remove(&lease) else { return };
        match outcome {
            Outcome::Finished => run.keep(),
            Outcome::Lost if run.broken => {}
            Outcome::Lost => run.settle(self.now),
            Outcome::Stopped | Outcome::Failed(_) | Outcome::Refused { .. } => {}
        }
        run.done = run.saved;
        let model = self.model(run.stage);
        if run.has_started {
            let progress = run.progress(model.elastic.is_none().then_some(model.steps));
            self.emit(Event::Progressed { lease, progress });
        }
        self.emit(Event::StageEnded { lease, outcome });
    }

    pub(crate) fn stop(&mut self, lease: LeaseId, grace: Millis) {
        let now = self.now;
        let Some(run) = self.runs.get_mut(&lease) else { return };
        run.settle(now);
        run.stopping = true;
        let (stage, done, broken) = (run.stage, run.done, run.broken);
        let may_save = run.has_started && !broken;
        let model = self.model(stage);
        let saves = model.save.filter(|save| !model.deaf && may_save && *save <= grace);
        let wait = match saves {
            Some(save) => save,
            None if model.deaf || broken => grace,
            None => Millis(0),
        };
        let at = now + wait;
        if saves.is_some() {
            self.queue.add(at, ScheduledEvent::Emit(Box::new(checkpointed(lease, done))));
        }
        self.queue.add(at, ScheduledEvent::Stopped { lease, saved: saves.is_some() });
    }

    fn inject(&mut self, fault: Fault) -> Option<Event> {
        match fault {
            Fault::Reported(event) => {
                self.undergo(&event);
                Some(event)
            }
            Fault::NodeLost { node } => {
                self.lost[node.index()] = true;
                self.lose_prepared(node);
                for lease in self.leases_on(node) {
                    self.end(lease, Outcome::Lost);
                }
                Some(Event::NodeLost { node })
            }
            Fault::NodeReturned { node } => {
                self.lost[node.index()] = false;
                Some(Event::NodeReturned { node })
            }
            Fault::DeviceFailed { device } => {
                self.failed.insert(device);
                let has_part = |run: &Run| run.placement.grants().any(|g| g.device == device);
                let hit = self.runs.iter().filter(|(_, run)| has_part(run));
                let leases: Vec<LeaseId> = hit.map(|(&lease, _)| lease).collect();
                leases.into_iter().for_each(|lease| self.end(lease, Outcome::Lost));
                Some(Event::DeviceFailed { device })
            }
            Fault::DeviceRepaired { device } => {
                self.failed.remove(&device);
                Some(Event::DeviceRepaired { device })
            }
            Fault::NodeSuspected { node } => Some(Event::NodeSuspected { node }),
            Fault::NodeCleared { node } => Some(Event::NodeCleared { node }),
            Fault::DeviceDrained { device } => Some(Event::DeviceDrained { device }),
            Fault::DeviceUndrained { device } => Some(Event::DeviceUndrained { device }),
            Fault::Slowed { node, percent } => {
                self.pace[node.index()] = percent;
                self.change_pace(node);
                None
            }
            Fault::LinkSlowed { node, percent } => {
                self.link_pace[node.index()] = percent;
                self.change_pace(node);
                None
            }
            Fault::Hung { node, noticed_after } | Fault::Corrupted { node, noticed_after } => {
                self.break_gangs(node);
                let noticed = ScheduledEvent::InjectFault(Fault::Noticed { node });
                self.queue.add(self.now + noticed_after, noticed);
                None
            }
            Fault::Noticed { node } => {
                let broken = |lease: &LeaseId| self.runs[lease].broken;
                let leases: Vec<LeaseId> =
                    self.leases_on(node).into_iter().filter(broken).collect();
                leases.into_iter().for_each(|lease| self.end(lease, stalled()));
                None
            }
        }
    }

    /// What a fact that somebody else found does to gangs.
    fn undergo(&mut self, event: &Event) {
        match event {
            Event::NodesJoined { nodes } => {
                nodes.nodes.iter().for_each(|node| self.node_joins(&node.name));
            }
            Event::NodeRemoved { name } => self.node_is_removed(name),
            _ => {}
        }
    }

    fn node_joins(&mut self, name: &Name) {
        self.removed.remove(name);
        if let Some(row) = self.row_of(name) {
            self.lost[row.index()] = false;
        }
    }

    fn node_is_removed(&mut self, name: &Name) {
        let row = self.row_of(name);
        row.into_iter().for_each(|node| self.lose_prepared(node));
        let hit = row.map(|node| self.leases_on(node)).unwrap_or_default();
        self.removed.insert(name.clone());
        hit.into_iter().for_each(|lease| self.end(lease, Outcome::Lost));
    }

    /// What runs on the node works on for nothing.
    fn break_gangs(&mut self, node: NodeId) {
        for lease in self.leases_on(node) {
            if let Some(run) = self.runs.get_mut(&lease) {
                run.settle(self.now);
                run.broken = true;
            }
        }
    }

    /// What runs on the node goes on at another pace.
    fn change_pace(&mut self, node: NodeId) {
        for lease in self.leases_on(node) {
            let run = &self.runs[&lease];
            let step_ns = self.step_ns(run.stage, run.done, &run.placement);
            if let Some(run) = self.runs.get_mut(&lease) {
                run.settle(self.now);
                run.step_ns = step_ns;
            }
            self.schedule(lease);
        }
    }

    fn row_of(&self, name: &Name) -> Option<NodeId> {
        self.topology.node_ids().find(|&id| self.topology.node(id).name == *name)
    }

    fn leases_on(&self, node: NodeId) -> Vec<LeaseId> {
        let on_node = self.runs.iter().filter(|(_, run)| run.placement.uses_node(node));
        on_node.map(|(&lease, _)| lease).collect()
    }

    /// Keeps in mind what is told.
    fn note(&mut self, event: &Event) {
        match event {
            Event::StageStarted { lease } => {
                self.runs.get_mut(lease).into_iter().for_each(|run| run.has_started = true);
            }
            Event::StageEnded { lease, outcome } => {
                self.uncommitted.push((*lease, outcome.clone()));
            }
            _ => {}
        }
    }

    /// Whether a fact still holds when its time comes: nothing is told of a lease after its end,
    /// nor of the start of one that was stopped while it loaded.
    fn still_true(&self, event: &Event) -> bool {
        match event {
            Event::StageStarted { lease } => self.runs.get(lease).is_some_and(|run| !run.stopping),
            Event::Checkpointed { lease, .. } | Event::StagePublished { lease } => {
                self.runs.contains_key(lease)
            }
            _ => true,
        }
    }
}

/// It was seen that a gang does nothing of use any more.
fn stalled() -> Outcome {
    let (exit_code, message) = (137, "it made no progress".to_owned());
    Outcome::Failed(Failure { rank: 0, exit_code, message, cause: FailureCause::Stalled })
}

/// How many devices a placement has on each of its nodes.
fn devices_by_node(placement: &Placement) -> Vec<u32> {
    let mut counts: BTreeMap<NodeId, u32> = BTreeMap::new();
    for rank in &placement.ranks {
        let units: u32 = rank.grants.iter().map(|grant| grant.share.whole_units()).sum();
        *counts.entry(rank.node).or_default() += units;
    }
    counts.into_values().collect()
}

pub(crate) fn checkpointed(lease: LeaseId, step: u64) -> Event {
    let checkpoint = Checkpoint { step, path: format!("checkpoint-{step}") };
    Event::Checkpointed { lease, checkpoint }
}

impl Engine for Sim {
    fn adopt(&mut self, state: &State) {
        self.take_up(state);
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        let before = std::mem::replace(&mut self.topology, Arc::clone(topology));
        self.index = OnceLock::new();
        let others = before.node_ids().filter(|&id| before.node(id).name != topology.node(id).name);
        for node in others {
            self.lost[node.index()] = false;
            self.pace[node.index()] = 100;
            self.link_pace[node.index()] = 100;
            self.failed.retain(|&device| topology.device(device).node != node);
        }
        let nodes = topology.nodes.len();
        self.lost.resize(nodes, false);
        [&mut self.pace, &mut self.link_pace].into_iter().for_each(|pace| pace.resize(nodes, 100));
    }

    fn submit(&mut self, plan: &Plan) {
        if !self.fence.admits(plan) {
            return;
        }
        for action in &plan.actions {
            match action {
                Action::Start { lease, stage, placement, resume, .. } => {
                    self.start(*lease, *stage, placement, resume.as_ref());
                }
                Action::Stop { lease, grace, .. } => self.stop(*lease, *grace),
                Action::Claim { .. } | Action::Unclaim { .. } => {}
                Action::Prepare { lease, stage, placement, .. } => {
                    let node = placement.ranks.first().map(|rank| rank.node);
                    let prepared = Prepared { lease: *lease, node, since: self.now };
                    self.prepared.insert(*stage, prepared);
                }
                Action::Unprepare { stage, .. } => {
                    self.prepared.remove(stage);
                }
            }
        }
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        loop {
            let due = self.queue.next_time();
            if due.is_none_or(|at| until.is_some_and(|until| at > until)) {
                self.now = self.now.max(until.unwrap_or(self.now));
                return None;
            }
            let (at, due) = self.queue.pop()?;
            self.now = self.now.max(at);
            match due {
                ScheduledEvent::Emit(event) if self.still_true(&event) => {
                    self.note(&event);
                    return Some((self.now, *event));
                }
                ScheduledEvent::Emit(_) => {}
                ScheduledEvent::Stopped { lease, saved } => {
                    if let (Some(run), true) = (self.runs.get_mut(&lease), saved) {
                        run.keep();
                    }
                    self.end(lease, Outcome::Stopped);
                }
                ScheduledEvent::Milestone { lease, epoch } => self.milestone(lease, epoch),
                ScheduledEvent::InjectFault(fault) => {
                    if let Some(event) = self.inject(fault) {
                        return Some((self.now, event));
                    }
                }
            }
        }
    }

    fn committed(&mut self) {
        self.uncommitted.clear();
    }

    fn now(&self) -> Time {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use het_core::Launch;
    use het_engine::Script;
    use het_engine::contract::{Subject, check_all, topology};

    struct SimSubject;

    impl Subject for SimSubject {
        type Engine = Sim;

        fn build(&self, scripts: &[(StageKey, Script)]) -> (Sim, Vec<Launch>) {
            let models = scripts.iter().map(|&(key, script)| (key, Arc::new(model(script))));
            let launches = vec![Launch::default(); scripts.len()];
            (Sim::new(Arc::new(topology()), models.collect(), [], []), launches)
        }

        fn crash(&self, engine: Sim) -> Sim {
            engine
        }

        fn report(&self, engine: &mut Sim, event: Event) {
            engine.report(event);
        }
    }

    fn model(script: Script) -> StageModel {
        let forever = StageModel { steps: 1 << 40, ..StageModel::default() };
        match script {
            Script::Finish(after) => StageModel { steps: after.0, ..StageModel::default() },
            Script::UntilNotice => forever,
            Script::Deaf => StageModel { deaf: true, ..forever },
            Script::Fail(after, code) => StageModel { fails_at: Some((after.0, code)), ..forever },
        }
    }

    #[test]
    fn the_simulator_keeps_the_contract() {
        check_all(&SimSubject);
    }
}
