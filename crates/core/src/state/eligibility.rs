//! Which jobs may ask for devices, as their start conditions have it.
//!
//! Nothing here decides when a job becomes eligible: [`State::eligibility_events`] says which facts
//! are due, and they count once they are applied like any others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Job, JobEnd, State};
use crate::{
    Dependency, DependencyCondition, DependencyRule, Event, JobId, NotEligible, StartConditions,
    Time,
};

/// Follows from the jobs of a state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Eligibility {
    /// Jobs that are not eligible yet, by a job that they depend on.
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Jobs whose conditions are met but for the time, by that time.
    due: BTreeSet<(Time, JobId)>,
    /// The same by job.
    due_at: BTreeMap<JobId, Time>,
    /// Jobs whose dependencies cannot be met any more.
    hopeless: BTreeSet<JobId>,
    /// By array, where so many of it may run at a time.
    arrays: BTreeMap<JobId, Slots>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Slots {
    parallel_max: usize,
    /// Eligible members that have not ended.
    taken: BTreeSet<JobId>,
    /// Members that could run but for the others, with the time before which they may not.
    waiting: BTreeMap<JobId, Time>,
    /// The first of those who wait: there is room for them.
    next: BTreeSet<JobId>,
}

/// How far a dependency is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open,
    /// Since this time.
    Met(Time),
    Impossible,
}

impl State {
    /// The facts about start conditions, failures and checkpoints that are due at `now`.
    pub fn eligibility_events(&self, now: Time) -> Vec<Event> {
        let due = self.eligibility.due.iter().take_while(|(at, _)| *at <= now);
        let eligible = due.map(|(_, job)| Event::JobEligible { job: *job });
        let hopeless = self.eligibility.hopeless.iter();
        let failed = hopeless.map(|job| Event::DependencyFailed { job: *job });
        eligible.chain(failed).chain(self.recovery_events(now)).collect()
    }

    /// When the next of these facts is due by time alone.
    pub fn next_eligible(&self) -> Option<Time> {
        let eligible = self.eligibility.due.first().map(|(at, _)| *at);
        [eligible, self.next_retry()].into_iter().flatten().min()
    }

    /// Why a job may not ask for devices yet, or was ended without having asked.
    pub fn not_eligible(&self, id: JobId) -> Vec<NotEligible> {
        let Some(job) = self.job(id).filter(|job| job.eligible.is_none()) else {
            return Vec::new();
        };
        let conditions = &job.spec.start;
        let mut reasons = Vec::new();
        let mut not_before = conditions.begin;
        match self.dependencies_met(conditions) {
            Standing::Met(at) => not_before = not_before.max(Some(at)),
            Standing::Open | Standing::Impossible => {
                for dependency in &conditions.dependencies.on {
                    let Dependency { job, condition, .. } = *dependency;
                    reasons.extend(match self.standing(*dependency) {
                        Standing::Open => Some(NotEligible::DependsOn { job, condition }),
                        Standing::Impossible => {
                            Some(NotEligible::DependencyFailed { job, condition })
                        }
                        Standing::Met(_) => None,
                    });
                }
            }
        }
        if job.end.is_some() || job.ending.is_some() {
            reasons.retain(|reason| matches!(reason, NotEligible::DependencyFailed { .. }));
            return reasons;
        }
        if let Some(at) = not_before.filter(|at| *at > self.now) {
            reasons.push(NotEligible::NotBefore { at });
        }
        if let Some(parallel_max) = conditions.array.and_then(|array| array.parallel_max)
            && reasons.is_empty()
        {
            reasons.push(NotEligible::ArrayFull { parallel_max });
        }
        reasons
    }

    pub(super) fn began_waiting_to_start(&mut self, id: JobId) {
        for dependency in &self.jobs[&id].spec.start.dependencies.on {
            self.eligibility.dependents.entry(dependency.job).or_default().insert(id);
        }
        self.settle_eligibility(id);
    }

    /// A job has started or ended: others may have waited for that.
    pub(super) fn settle_dependents(&mut self, id: JobId) {
        let Some(dependents) = self.eligibility.dependents.get(&id) else { return };
        for dependent in dependents.clone() {
            self.settle_eligibility(dependent);
        }
    }

    /// Finds out anew whether the conditions of a job are met.
    pub(super) fn settle_eligibility(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.end.is_some() || job.ending.is_some() {
            return self.left(id);
        }
        if job.eligible.is_some() {
            return;
        }
        let conditions = &job.spec.start;
        let array = conditions.array.and_then(|it| Some((it.array, it.parallel_max?)));
        match self.dependencies_met(conditions) {
            Standing::Open => {}
            Standing::Impossible => {
                self.eligibility.hopeless.insert(id);
            }
            Standing::Met(at) => {
                let at = at.max(conditions.begin.unwrap_or(Time::ZERO));
                match (array, job.held) {
                    (None, _) => self.eligibility.set_due(id, at),
                    // It would keep the others from running and not run itself.
                    (Some((array, _)), true) => {
                        self.slots(array).waiting.remove(&id);
                        self.eligibility.fill(array);
                    }
                    (Some((array, parallel_max)), false) => {
                        let slots = self.slots(array);
                        slots.parallel_max = parallel_max as usize;
                        slots.waiting.insert(id, at);
                        self.eligibility.fill(array);
                    }
                }
            }
        }
    }

    /// The job may ask for devices from now on.
    pub(super) fn became_eligible(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.eligible.is_some() || job.end.is_some() || job.ending.is_some() {
            return;
        }
        self.forget_conditions(id);
        if let Some(array) = self.limited_array(id) {
            let slots = self.slots(array);
            slots.waiting.remove(&id);
            slots.taken.insert(id);
            self.eligibility.fill(array);
        }
        let now = self.now;
        self.job_mut(id).eligible = Some(now);
        self.refresh(id);
    }

    /// What a job still waits for: whoever goes on with it may not know the jobs that it waited for
    /// before.
    pub fn open_conditions(&self, id: JobId) -> StartConditions {
        let Some(job) = self.job(id) else { return StartConditions::default() };
        let mut open = job.spec.start.clone();
        let dependencies = &mut open.dependencies;
        let met: Vec<Time> =
            dependencies.on.iter().filter_map(|one| self.standing(*one).met_at()).collect();
        let met = match dependencies.rule {
            DependencyRule::All => {
                dependencies.on.retain(|one| self.standing(*one).met_at().is_none());
                met.into_iter().max()
            }
            DependencyRule::Any => {
                if !met.is_empty() {
                    dependencies.on.clear();
                }
                met.into_iter().min()
            }
        };
        open.begin = open.begin.max(met);
        open
    }

    /// Jobs that wait for this one to start or to end.
    pub fn dependents(&self, id: JobId) -> impl Iterator<Item = JobId> + '_ {
        self.eligibility.dependents.get(&id).into_iter().flatten().copied()
    }

    /// An ended job leaves the state: what it meant for those that depend on it stays with them.
    pub(super) fn keep_what_was_met(&mut self, id: JobId) {
        let Some(dependents) = self.eligibility.dependents.remove(&id) else { return };
        for dependent in dependents {
            let on = &self.jobs[&dependent].spec.start.dependencies;
            let rule = on.rule;
            let of_it = on.on.iter().filter(|dependency| dependency.job == id);
            let standings: Vec<Standing> = of_it.map(|one| self.standing(*one)).collect();
            let met = standings.iter().filter_map(|standing| standing.met_at());
            let met = if rule == DependencyRule::Any { met.min() } else { met.max() };
            if rule == DependencyRule::Any && met.is_some() {
                self.depends_on_nothing(dependent);
            }
            let spec = Arc::make_mut(&mut self.job_mut(dependent).spec);
            let start = &mut spec.start;
            start.begin = start.begin.max(met);
            match rule {
                // Nothing else needs to be met.
                DependencyRule::Any if met.is_some() => start.dependencies.on.clear(),
                _ => start.dependencies.on.retain(|dependency| dependency.job != id),
            }
        }
    }

    /// The job has ended or is about to: it waits for nothing, and leaves its place in its array.
    fn left(&mut self, id: JobId) {
        self.forget_conditions(id);
        let Some(array) = self.limited_array(id) else { return };
        let over = self.jobs[&id].end.is_some();
        let Some(slots) = self.eligibility.arrays.get_mut(&array) else { return };
        slots.waiting.remove(&id);
        if over {
            slots.taken.remove(&id);
        }
        self.eligibility.fill(array);
    }

    fn limited_array(&self, id: JobId) -> Option<JobId> {
        let array = self.jobs[&id].spec.start.array?;
        array.parallel_max.map(|_| array.array)
    }

    fn forget_conditions(&mut self, id: JobId) {
        self.depends_on_nothing(id);
        self.eligibility.hopeless.remove(&id);
        self.eligibility.unset_due(id);
    }

    fn depends_on_nothing(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let dependents = &mut self.eligibility.dependents;
        for dependency in &job.spec.start.dependencies.on {
            if let Some(others) = dependents.get_mut(&dependency.job) {
                others.remove(&id);
                if others.is_empty() {
                    dependents.remove(&dependency.job);
                }
            }
        }
    }

    fn slots(&mut self, array: JobId) -> &mut Slots {
        self.eligibility.arrays.entry(array).or_default()
    }

    fn dependencies_met(&self, conditions: &StartConditions) -> Standing {
        let dependencies = &conditions.dependencies;
        let standings = || dependencies.on.iter().map(|dependency| self.standing(*dependency));
        match dependencies.rule {
            _ if dependencies.on.is_empty() => Standing::Met(Time::ZERO),
            DependencyRule::All if standings().any(|one| one == Standing::Impossible) => {
                Standing::Impossible
            }
            DependencyRule::All => {
                let all: Option<Vec<Time>> = standings().map(Standing::met_at).collect();
                let last = all.map(|times| times.into_iter().max().unwrap_or(Time::ZERO));
                last.map_or(Standing::Open, Standing::Met)
            }
            DependencyRule::Any => match standings().filter_map(Standing::met_at).min() {
                Some(first) => Standing::Met(first),
                None if standings().all(|one| one == Standing::Impossible) => Standing::Impossible,
                None => Standing::Open,
            },
        }
    }

    fn standing(&self, dependency: Dependency) -> Standing {
        let Dependency { job, condition, delay } = dependency;
        // One that has left the state ended long ago, nobody knows how.
        let Some(job) = self.job(job) else { return Standing::Impossible };
        match job.met(condition) {
            Standing::Met(at) => Standing::Met(at + delay),
            other => other,
        }
    }

    /// What follows from the jobs, after they were put together.
    pub(super) fn derive_eligibility(&mut self) {
        let alive = self.jobs.iter().filter(|(_, job)| job.end.is_none());
        let conditional: Vec<JobId> =
            alive.filter(|(_, job)| !job.spec.start.is_empty()).map(|(id, _)| *id).collect();
        for &id in &conditional {
            let job = &self.jobs[&id];
            let limit = job.spec.start.array.and_then(|it| Some((it.array, it.parallel_max?)));
            if let (true, Some((array, parallel_max))) = (job.eligible.is_some(), limit) {
                let slots = self.slots(array);
                slots.parallel_max = parallel_max as usize;
                slots.taken.insert(id);
            }
        }
        for id in conditional {
            if self.jobs[&id].eligible.is_none() {
                self.began_waiting_to_start(id);
            }
        }
    }
}

impl Eligibility {
    fn set_due(&mut self, id: JobId, at: Time) {
        self.unset_due(id);
        self.due_at.insert(id, at);
        self.due.insert((at, id));
    }

    fn unset_due(&mut self, id: JobId) {
        if let Some(at) = self.due_at.remove(&id) {
            self.due.remove(&(at, id));
        }
    }

    /// Lets in as many members of an array as may run, those with the lowest ids first.
    fn fill(&mut self, array: JobId) {
        let Some(slots) = self.arrays.get_mut(&array) else { return };
        let room = slots.parallel_max.saturating_sub(slots.taken.len());
        let next: BTreeMap<JobId, Time> =
            slots.waiting.iter().take(room).map(|(id, at)| (*id, *at)).collect();
        let before = std::mem::replace(&mut slots.next, next.keys().copied().collect());
        if slots.taken.is_empty() && slots.waiting.is_empty() {
            self.arrays.remove(&array);
        }
        before.into_iter().filter(|id| !next.contains_key(id)).for_each(|id| self.unset_due(id));
        next.into_iter().for_each(|(id, at)| self.set_due(id, at));
    }
}

impl Standing {
    fn met_at(self) -> Option<Time> {
        match self {
            Self::Met(at) => Some(at),
            Self::Open | Self::Impossible => None,
        }
    }
}

impl Job {
    fn met(&self, condition: DependencyCondition) -> Standing {
        let started = self.stages.iter().filter_map(|stage| stage.first_started).min();
        match (condition, self.end) {
            (DependencyCondition::Started, end) => {
                let at = started.or(end.map(|(at, _)| at));
                at.map_or(Standing::Open, Standing::Met)
            }
            (_, None) => Standing::Open,
            (DependencyCondition::Ended, Some((at, _)))
            | (DependencyCondition::Succeeded, Some((at, JobEnd::Succeeded)))
            | (DependencyCondition::Failed, Some((at, JobEnd::Failed | JobEnd::Cancelled))) => {
                Standing::Met(at)
            }
            (DependencyCondition::Succeeded | DependencyCondition::Failed, Some(_)) => {
                Standing::Impossible
            }
        }
    }
}
