//! What runs, as far as it stays the same while it runs: kept between decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_core::{
    JobSpec, Lease, LeaseId, Locality, Preemptible, StageIndex, StageSpec, State, Time,
};

use het_perf::HeldResources;

use super::expected::{Expected, Part, runs};
use super::opportunity_cost::{Shape, shape, shapes};
use crate::View;

/// Everything that runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Running {
    /// How often a stage had stopped waiting when it was last looked who began.
    departures: u64,
    /// Of the rates that speeds were found with.
    revision: u64,
    leases: BTreeMap<LeaseId, Runner>,
    /// Those that have a choice of devices.
    choosers: BTreeSet<LeaseId>,
    /// How many of them are not suspended, or would lose all they did.
    lasting: usize,
    /// When those may be stopped for others that are to run for a while first.
    ends_of_min_runtime: BTreeMap<LeaseId, Time>,
    /// What they ask for.
    pub expected: Expected,
}

/// One stage that runs.
#[derive(Debug, Clone)]
pub(crate) struct Runner {
    job: Arc<JobSpec>,
    stage: StageIndex,
    pub held: HeldResources,
    part: Part,
    /// It may have more or fewer devices.
    pub has_sizes: bool,
    /// That it has in all, where its job says so.
    pub steps: Option<u64>,
    pub locality: Locality,
    /// Where it stands.
    pub here: Option<Shape>,
    /// Its alternatives, each in the best place that the cluster could have for it; empty for one
    /// that has no choice.
    pub shapes: Vec<Option<Shape>>,
}

impl Running {
    /// Takes in who began since the last decision, and drops who ended.
    pub fn update(&mut self, view: &View<'_>) {
        let state = view.state;
        let departed = std::mem::replace(&mut self.departures, state.departures());
        if departed == state.departures() && self.leases.len() == state.leases().len() {
            return self.update_speeds(view);
        }
        self.drop_ended(state);
        for (id, lease) in self.begun(state) {
            let runner = Runner::new(view, lease);
            self.lasting += usize::from(runner.lasts());
            let from = runner.spec().preemptible.from(lease.since);
            let from = from.filter(|from| *from > view.now).map(|from| (id, from));
            self.ends_of_min_runtime.extend(from);
            self.expected.add(&runner.part);
            self.choosers.extend(runner.has_choice().then_some(id));
            self.leases.insert(id, runner);
        }
        self.update_speeds(view);
    }

    /// Who began since. One that goes on with a preparation may have a lower number than those who
    /// run.
    fn begun<'s>(&self, state: &'s State) -> Vec<(LeaseId, &'s Lease)> {
        let mut known = self.leases.keys().peekable();
        let mut is_new = |id: LeaseId| {
            while known.next_if(|known| **known < id).is_some() {}
            known.peek() != Some(&&id)
        };
        let leases = state.leases().iter().map(|(id, lease)| (*id, lease));
        leases.filter(|(id, _)| is_new(*id)).collect()
    }

    fn drop_ended(&mut self, state: &State) {
        let mut held = state.leases().keys().peekable();
        let Self { leases, choosers, lasting, ends_of_min_runtime, expected, .. } = self;
        leases.retain(|id, runner| {
            while held.next_if(|held| *held < id).is_some() {}
            let runs = held.peek() == Some(&id);
            if !runs {
                *lasting -= usize::from(runner.lasts());
                ends_of_min_runtime.remove(id);
                choosers.remove(id);
                expected.remove(&runner.part);
            }
            runs
        });
    }

    fn update_speeds(&mut self, view: &View<'_>) {
        if self.revision != view.rates.revision() {
            let revision = std::mem::replace(&mut self.revision, view.rates.revision());
            for (id, runner) in &mut self.leases {
                let last = view.rates.revision_of(&runner.spec().profile);
                if last.is_some_and(|last| last > revision) {
                    runner.weigh(view, &view.state.leases()[id]);
                }
            }
        }
    }

    pub fn get(&self, id: LeaseId) -> Option<&Runner> {
        self.leases.get(&id)
    }

    /// Those that have a choice of devices.
    pub fn choosers(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.choosers.iter().copied()
    }

    /// Whether somebody runs who cannot save or is not preemptible: nobody can count on a turn.
    pub fn any_lasting(&self) -> bool {
        self.lasting > 0
    }

    /// When the next of them may be stopped for others that may not yet.
    pub fn next_end_of_min_runtime(&self, now: Time) -> Option<Time> {
        self.ends_of_min_runtime.values().copied().filter(|end| *end > now).min()
    }
}

impl Runner {
    fn new(view: &View<'_>, lease: &Lease) -> Self {
        let (job, spec, _) = view.state.stage(lease.stage);
        let mut runner = Self {
            job: Arc::clone(&job.spec),
            stage: lease.stage.stage,
            held: HeldResources::of(spec, lease),
            part: runs(view.state, spec, lease.placement.alternative),
            has_sizes: spec.has_sizes(),
            steps: spec.steps,
            locality: Locality::BEST,
            here: None,
            shapes: Vec::new(),
        };
        runner.weigh(view, lease);
        runner
    }

    /// What it asked for.
    pub fn spec(&self) -> &StageSpec {
        self.job.stage(self.stage)
    }

    fn lasts(&self) -> bool {
        !self.held.saves || self.spec().preemptible == Preemptible::Never
    }

    fn has_choice(&self) -> bool {
        self.spec().alternatives.len() > 1
    }

    /// Finds its speeds.
    fn weigh(&mut self, view: &View<'_>, lease: &Lease) {
        let spec = self.job.stage(self.stage);
        self.locality = view.state.locality(spec, &lease.placement);
        self.here = shape(view, spec, lease.placement.alternative, self.locality);
        self.shapes = if spec.alternatives.len() > 1 { shapes(view, spec) } else { Vec::new() };
    }
}
