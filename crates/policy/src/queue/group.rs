//! Stages that ask for the same: one answer about devices holds for all of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use het_core::{
    Companions, Domain, JobSpec, Millis, Name, PlannedSpeeds, Preemptible, Priority, RankRule,
    StageIndex, StageKey, StageSpec, State,
};

use super::order::Rank;
use crate::View;
use crate::placement::{
    Ask, Asks, OpportunityCost, Part, Shape, WORTHWHILE, Wanted, shapes, waits, wanted,
};

/// Number of a group; later ones are higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct GroupId(u64);

impl GroupId {
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Number of a footprint; those of footprints that are gone are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct FootprintId(usize);

impl FootprintId {
    pub fn new(index: usize) -> Self {
        Self(index)
    }

    pub fn index(self) -> usize {
        self.0
    }
}

/// The first of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head {
    pub rank: Rank,
    pub group: GroupId,
    pub footprint: FootprintId,
    pub priority: Priority,
    pub can_be_passed: bool,
}

/// What makes requests alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Request {
    alternatives: Vec<Wanted>,
    companions: Companions,
    within: Domain,
    ranks: RankRule,
    /// Speeds and stakes are alike too.
    pub profile: Name,
    planned: PlannedSpeeds,
    steps_known: bool,
    priority: Priority,
    /// Only the preferred alternative will do.
    bound: bool,
    /// Where tenants have quotas.
    quota_of: Option<QuotaOf>,
}

/// Whose quota a stage draws on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QuotaOf {
    pub tenant: Name,
    /// One that nobody may stop does not borrow.
    pub preemptible: Preemptible,
}

/// Stages that ask for the same.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub id: GroupId,
    pub request: Request,
    pub footprint: FootprintId,
    /// The job of one of them.
    job: Arc<JobSpec>,
    stage: StageIndex,
    /// Alternatives, the fastest first; in file order where nobody says how far there is to go or
    /// how fast they are.
    pub ranked: Vec<usize>,
    /// The alternative that rule and profile name whatever is free: the fastest that the cluster
    /// could ever run.
    pub preferred: usize,
    /// What each of them adds to what is expected.
    pub part: Part,
    /// By alternative.
    shapes: Vec<Option<Shape>>,
    pub asks: Vec<Arc<Ask>>,
    /// That any alternative accepts.
    pub classes: Vec<usize>,
    /// They need several devices at once, or cores or memory beside them, so that others who need
    /// less could slip past them for ever.
    pub can_be_passed: bool,
    pub queue: BTreeSet<Rank>,
    /// That all of them have to go, as far as is known.
    pub steps: u64,
}

impl Request {
    pub fn of(
        spec: &StageSpec,
        priority: Priority,
        steps_known: bool,
        bound: bool,
        quota_of: Option<QuotaOf>,
    ) -> Self {
        Self {
            alternatives: spec.alternatives.iter().map(wanted).collect(),
            companions: spec.companions,
            within: spec.within,
            ranks: spec.ranks,
            profile: spec.profile.clone(),
            planned: spec.planned.clone(),
            steps_known,
            priority,
            bound: bound && spec.alternatives.len() > 1,
            quota_of,
        }
    }

    /// Whether speeds say which alternative is best, and not the order of the file.
    fn weighs_speeds(&self) -> bool {
        self.steps_known || !self.planned.is_empty()
    }
}

impl Group {
    pub fn new(
        view: &View<'_>,
        asks: &mut Asks,
        (id, request): (GroupId, Request),
        key: StageKey,
    ) -> Self {
        let (job, spec, _) = view.state.stage(key);
        let indices = 0..spec.alternatives.len();
        let shapes = shapes(view, spec);
        let mut ranked: Vec<usize> = indices.collect();
        if request.weighs_speeds() {
            let slowness =
                |index: &usize| shapes[*index].map_or(f64::INFINITY, |shape| 1.0 / shape.rate);
            ranked.sort_by(|a, b| slowness(a).total_cmp(&slowness(b)));
        }
        let count = spec.alternatives.len();
        let asks: Vec<Arc<Ask>> =
            (0..count).map(|index| asks.of(view.state, spec, index)).collect();
        let classes: BTreeSet<usize> =
            asks.iter().flat_map(|ask| ask.accepted.classes(view.state)).collect();
        let possible = ranked.iter().copied().find(|&index| asks[index].never.is_none());
        Self {
            preferred: possible.unwrap_or(ranked[0]),
            job: Arc::clone(&job.spec),
            stage: key.stage,
            part: waits(view.state, spec),
            asks,
            classes: classes.into_iter().collect(),
            can_be_passed: can_be_passed(spec),
            id,
            request,
            footprint: FootprintId::default(),
            ranked,
            shapes,
            queue: BTreeSet::new(),
            steps: 0,
        }
    }

    /// They say how far there is to go, and may have more or fewer devices.
    pub fn knows_its_best_size(&self) -> bool {
        self.request.steps_known && self.spec().has_sizes()
    }

    /// One of them as its head.
    pub fn head(&self, rank: Rank) -> Head {
        let Self { id: group, footprint, can_be_passed, .. } = *self;
        Head { rank, group, footprint, priority: self.priority(), can_be_passed }
    }

    /// What each of them asks for.
    pub fn spec(&self) -> &StageSpec {
        self.job.stage(self.stage)
    }

    pub fn priority(&self) -> Priority {
        self.request.priority
    }

    /// Whose they are, where tenants have quotas.
    pub fn quota_of(&self) -> Option<&QuotaOf> {
        self.request.quota_of.as_ref()
    }

    /// Whose they are.
    pub fn tenant(&self) -> &Name {
        &self.job.tenant
    }

    /// The only alternative that will do, where the policy binds its stages to one.
    pub fn bound(&self) -> Option<usize> {
        self.request.bound.then_some(self.preferred)
    }

    /// Alternatives, the best first: the fastest, or in a crowd the one that costs all least.
    pub fn by_cost(&self, opportunity_cost: Option<&OpportunityCost>) -> Vec<usize> {
        let mut order = self.ranked.clone();
        let choice = order.len() > 1 && self.request.weighs_speeds();
        if let Some(opportunity_cost) = opportunity_cost.filter(|_| choice) {
            let cost = |index: &usize| {
                self.shapes[*index].map_or(f64::INFINITY, |s| opportunity_cost.cost(s))
            };
            order.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        }
        order
    }

    /// Alternatives for which others may be stopped or kept waiting: not those that are far slower
    /// than the fastest that the cluster could ever run.
    pub fn worthwhile(
        &self,
        opportunity_cost: Option<&OpportunityCost>,
    ) -> impl Iterator<Item = usize> + '_ {
        let fastest = self.shapes[self.preferred];
        let worth = move |index: &usize| match (self.shapes[*index], fastest) {
            (Some(shape), Some(fastest)) => shape.rate >= fastest.rate * WORTHWHILE,
            _ => true,
        };
        self.by_cost(opportunity_cost).into_iter().filter(worth)
    }

    /// The classes that would do, and how many of each.
    pub fn by_class<'a>(&'a self, state: &'a State) -> impl Iterator<Item = (usize, u32)> + 'a {
        let alternatives = self.spec().alternatives.iter().zip(&self.asks);
        alternatives.flat_map(|(alternative, ask)| {
            ask.accepted.classes(state).map(|class| (class, alternative.count))
        })
    }

    /// The most units that any alternative takes.
    pub fn units(&self) -> u32 {
        self.spec().alternatives.iter().map(|alternative| alternative.count).max().unwrap_or(0)
    }

    pub fn members(&self) -> impl Iterator<Item = Rank> + '_ {
        self.queue.iter().copied()
    }

    /// How long so many steps take on an alternative; `None` if nothing is known about its speed.
    pub fn span(&self, index: usize, steps: u64) -> Option<Millis> {
        self.shapes[index].map(|shape| shape.span(steps))
    }

    /// Least time on one device for so many steps.
    pub fn device_time(&self, spec: &StageSpec, steps: u64) -> Option<Millis> {
        let alternatives = spec.alternatives.iter().enumerate();
        let times = alternatives.filter_map(|(index, alternative)| {
            let span = self.span(index, steps)?;
            Some(Millis(span.0.saturating_mul(u64::from(alternative.count))))
        });
        times.min()
    }
}

fn can_be_passed(spec: &StageSpec) -> bool {
    let several = spec.alternatives.iter().all(|alternative| alternative.count > 1);
    several || spec.companions != Companions::default()
}
