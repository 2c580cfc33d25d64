//! Why one stage waits or stands where it stands, with numbers, and what would start it now.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    Action, Alternative, Companions, DeviceId, Domain, Drivers, Event, JobChange, JobId, JobSpec,
    Name, Occupant, Plan, Priority, Reason, Selector, Share, Stage, StageIndex, StageKey,
    StageSpec, StageState, StartConditions, State, Topology,
};
use het_policy::{Cache, Decision, Policy, Pool, View, place, reasons_why_not};

use crate::{Proposal, propose, settle};

/// Everything there is to say about a stage's fate.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub stage: StageKey,
    /// Why it runs where it runs; empty while it never ran.
    pub start_reasons: Vec<Reason>,
    /// Every reason why it does not start now, as the planner sees it.
    pub wait_reasons: Vec<Reason>,
    /// Stages of its own job that have to succeed first.
    pub after: Vec<Name>,
    /// Stages of its own job that have to run and to have published first.
    pub follows: Vec<Name>,
    /// One an alternative, in file order.
    pub blockers: Vec<Blocker>,
    /// Also while it runs.
    pub passed_over: Vec<PassedOver>,
    /// Place in the order of the policy, from 1; `None` while it does not wait.
    pub position: Option<usize>,
    pub what_if: Vec<WhatIf>,
}

/// What stands against one alternative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    pub word: Name,
    pub need: u32,
    pub free: u32,
    /// Units that the cluster has.
    pub total: u32,
    /// Of these, units that others use, nobody knows of which devices.
    pub used_by_others: u32,
    /// Units of devices that are down, or that somebody took out of service.
    pub out_of_service: u32,
    /// Of those, the ones that somebody uses beside all jobs.
    pub occupied: Vec<(Name, Occupant)>,
    /// The devices would do, if it were not for what it asks for beside them.
    pub lacks_beside: bool,
    /// It could not run even on the empty cluster.
    pub never: bool,
    pub held_by: Vec<Holder>,
}

/// Devices that an alternative does not take because no driver of its program reaches them; those
/// of the same drivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    pub word: Name,
    pub devices: Vec<DeviceId>,
    /// Of the devices.
    pub drivers: Vec<Name>,
    pub of_program: Vec<Name>,
}

/// Who holds accepted devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub stage: StageKey,
    pub units: u32,
}

/// A relaxed request that the planner would start at once, or after stopping others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhatIf {
    FewerDevices { word: Name, count: u32 },
    AnyDomain,
    HigherPriority { priority: Priority, stops: Vec<StageKey> },
}

/// What a question is put to: what is, the memory of the policy included.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    pub view: View<'a>,
    pub policy: &'a dyn Policy,
    /// Of the view's state, or of what that was before its newest events.
    pub cache: &'a RefCell<Cache>,
}

impl Situation<'_> {
    /// What would be decided now.
    fn decide(&self) -> Decision {
        self.policy.decide(&self.view, &mut self.cache.borrow_mut())
    }

    /// What would be decided and done if `fork`, a copy of the state after further events, were
    /// true.
    pub(crate) fn propose_on(&self, fork: &State) -> Proposal {
        let mut cache = self.cache.borrow().clone();
        propose(&View { state: fork, ..self.view }, self.policy, &mut cache)
    }
}

/// Explains a stage. Reasons are those that were recorded with the decision; where a stage stands
/// in the order, and what would start it, come from deciding again on a copy of the state, for an
/// option with one constraint relaxed.
pub fn explain(situation: &Situation<'_>, key: StageKey) -> Explanation {
    let state = situation.view.state;
    let (job, spec, stage) = state.stage(key);
    let names = |stages: &[StageIndex], is_met: fn(&Stage) -> bool| -> Vec<Name> {
        let pending = stages.iter().filter(|dep| !is_met(&job.stages[dep.index()]));
        let pending = pending.filter(|_| !stage.state.is_terminal());
        pending.map(|dep| job.spec.stage(*dep).name.clone()).collect()
    };
    let explanation = Explanation {
        stage: key,
        start_reasons: stage.start_reasons.clone(),
        wait_reasons: Vec::new(),
        after: names(&spec.after, |dep| dep.state == StageState::Succeeded),
        follows: names(&spec.follows, Stage::can_be_followed),
        blockers: Vec::new(),
        passed_over: passed_over(state.topology(), spec),
        position: None,
        what_if: Vec::new(),
    };
    match state.is_waiting(key) {
        true => waiting(situation, key, explanation),
        false => explanation,
    }
}

/// Adds what there is to say of a stage that waits.
fn waiting(situation: &Situation<'_>, key: StageKey, explanation: Explanation) -> Explanation {
    let state = situation.view.state;
    let (_, spec, stage) = state.stage(key);
    let mut pool = Pool::for_stage(state, key);
    let decision = situation.decide();
    let position = decision.wants.iter().position(|(other, _)| *other == key);
    let wait_reasons = match stage.wait_reasons.is_empty() {
        true => reasons_why_not(&mut pool, spec),
        false => stage.wait_reasons.clone(),
    };
    let what_if = match wait_reasons.is_empty() {
        true => Vec::new(),
        false => what_if(situation, key, decision),
    };
    Explanation {
        blockers: blockers(state, &mut pool, spec),
        position: position.map(|index| index + 1),
        wait_reasons,
        what_if,
        ..explanation
    }
}

fn blockers(state: &State, pool: &mut Pool<'_>, spec: &StageSpec) -> Vec<Blocker> {
    let mut cluster = Pool::empty_cluster(state);
    let topology = state.topology();
    let bare = StageSpec { companions: Companions::default(), ..spec.clone() };
    let mut misfits: Vec<usize> = (0..spec.alternatives.len()).collect();
    misfits.retain(|&index| place(pool, spec, index).is_err());
    misfits
        .into_iter()
        .map(|index| {
            let alternative = &spec.alternatives[index];
            let accepts = |id| alternative.selector.accepts(topology, id);
            let ids = || topology.device_ids().filter(|&id| accepts(id));
            let capacity = |id| topology.device(id).capacity.whole_units();
            let is_down = |id| !state.is_up(id) && state.taken_of(id) == Share::ZERO;
            let held_by = state.leases().values().filter_map(|lease| {
                let grants = lease.placement.grants().filter(|grant| accepts(grant.device));
                let units = grants.map(|grant| grant.share.whole_units()).sum();
                (units > 0).then_some(Holder { stage: lease.stage, units })
            });
            Blocker {
                word: alternative.selector.word.clone(),
                need: alternative.count,
                free: ids().map(|id| pool.free(id).whole_units()).sum(),
                total: ids().map(capacity).sum(),
                used_by_others: ids().map(|id| state.taken_of(id).whole_units()).sum(),
                out_of_service: ids().filter(|&id| is_down(id)).map(capacity).sum(),
                occupied: ids().filter_map(|id| occupied(state, id)).collect(),
                lacks_beside: place(pool, &bare, index).is_ok(),
                never: place(&mut cluster, spec, index).is_err(),
                held_by: held_by.collect(),
            }
        })
        .collect()
}

/// In file order, alternatives of one word once.
fn passed_over(topology: &Topology, spec: &StageSpec) -> Vec<PassedOver> {
    let mut found: Vec<PassedOver> = Vec::new();
    for (index, Alternative { selector, .. }) in spec.alternatives.iter().enumerate() {
        let Some(of_program) = selector.drivers.named() else { continue };
        let earlier = &spec.alternatives[..index];
        if earlier.iter().any(|other| other.selector == *selector) {
            continue;
        }
        let any = Selector { drivers: Drivers::Unknown, ..selector.clone() };
        let mut alike: BTreeMap<&[Name], Vec<DeviceId>> = BTreeMap::new();
        for id in topology.device_ids().filter(|&id| any.accepts(topology, id)) {
            let device = topology.device(id);
            if !selector.drivers.reach(device) {
                alike.entry(&device.drivers).or_default().push(id);
            }
        }
        found.extend(alike.into_iter().map(|(drivers, devices)| PassedOver {
            word: selector.word.clone(),
            devices,
            drivers: drivers.to_vec(),
            of_program: of_program.to_vec(),
        }));
    }
    found
}

fn occupied(state: &State, id: DeviceId) -> Option<(Name, Occupant)> {
    Some((state.topology().device(id).name.clone(), state.occupant(id)?.clone()))
}

/// `decision` is what is decided on the state as it is.
fn what_if(situation: &Situation<'_>, key: StageKey, decision: Decision) -> Vec<WhatIf> {
    let state = situation.view.state;
    let (job, spec, _) = state.stage(key);
    let anyway = stopped(state, &settle(&situation.view, decision).plan);
    let starts_as = |stage: StageSpec| {
        let (fork, key) = resubmitted(situation, key, stage);
        given(situation, &fork, key, &anyway).is_some_and(|stops| stops.is_empty())
    };
    let mut found = Vec::new();
    for (index, alternative) in spec.alternatives.iter().enumerate() {
        let fewer = (1..alternative.count).rev().find(|&count| {
            let mut relaxed = spec.clone();
            relaxed.alternatives = vec![alternative.clone()];
            relaxed.alternatives[0].count = count;
            place(&mut Pool::of(state), &relaxed, 0).is_ok() && starts_as(relaxed)
        });
        if let Some(count) = fewer {
            let word = spec.alternatives[index].selector.word.clone();
            found.push(WhatIf::FewerDevices { word, count });
        }
    }
    if spec.within != Domain::Any {
        let starts = starts_as(StageSpec { within: Domain::Any, ..spec.clone() });
        found.extend(starts.then_some(WhatIf::AnyDomain));
    }
    let higher = Priority::ALL.into_iter().rev().filter(|&other| other > job.priority());
    let raised = higher.filter_map(|priority| {
        let stops = given(situation, &raised(situation, key, priority), key, &anyway)?;
        Some(WhatIf::HigherPriority { priority, stops })
    });
    found.extend(raised.take(1));
    found
}

/// The state with a job of one stage submitted in the place of the stage's own, and that stage.
fn resubmitted(situation: &Situation<'_>, key: StageKey, stage: StageSpec) -> (State, StageKey) {
    let View { state, now, .. } = situation.view;
    let job: JobId = state.next_job();
    let stage = StageSpec { after: Vec::new(), follows: Vec::new(), ..stage };
    let spec = JobSpec {
        stages: vec![stage],
        start: StartConditions::default(),
        ..(*state.stage(key).0.spec).clone()
    };
    let mut fork = state.clone();
    fork.apply(now, &Event::JobCancelled { job: key.job });
    let submitted = Event::JobSubmitted {
        job,
        spec: Arc::new(spec),
        succeeded: Vec::new(),
        checkpoints: Vec::new(),
    };
    fork.apply(now, &submitted);
    (fork, StageKey { job, stage: StageIndex(0) })
}

/// The state with another priority of a stage's job.
fn raised(situation: &Situation<'_>, key: StageKey, priority: Priority) -> State {
    let View { state, now, .. } = situation.view;
    let change = JobChange { priority: Some(priority), time_limit: None };
    let mut fork = state.clone();
    fork.apply(now, &Event::JobChanged { job: key.job, change });
    fork
}

/// Whom the next plan on `fork` stops beside those who are stopped `anyway`, if it starts a stage
/// or makes room for it.
fn given(
    situation: &Situation<'_>,
    fork: &State,
    key: StageKey,
    anyway: &[StageKey],
) -> Option<Vec<StageKey>> {
    let plan = situation.propose_on(fork).plan;
    let mut stops = stopped(fork, &plan);
    stops.retain(|stage| !anyway.contains(stage) && stage.job != key.job);
    let is_given = |action: &Action| match action {
        Action::Start { stage, .. } => *stage == key,
        Action::Claim { stage, .. } => *stage == key && !stops.is_empty(),
        Action::Stop { .. }
        | Action::Unclaim { .. }
        | Action::Prepare { .. }
        | Action::Unprepare { .. } => false,
    };
    plan.actions.iter().any(is_given).then_some(stops)
}

fn stopped(state: &State, plan: &Plan) -> Vec<StageKey> {
    let stage = |action: &Action| match action {
        Action::Stop { lease, .. } => Some(state.leases()[lease].stage),
        _ => None,
    };
    plan.actions.iter().filter_map(stage).collect()
}
