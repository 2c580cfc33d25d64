//! Who runs and would be better off elsewhere.
//!
//! - Off a node that is going to fail: [`evacuation`], whatever it costs.
//! - To more, fewer or other devices: [`improvement`], where the rest of the work costs everybody
//!   less there, the pause of moving included. Nobody is stopped for a guess: what is faster there
//!   has been measured or declared.

use std::collections::BTreeSet;

use het_core::{Domain, Lease, LeaseId, Millis, Phase, Placement, StageSpec, State, Time};

use crate::demand::steps_done;
use crate::worth::{Crowd, Shape, shape, shapes};
use crate::{Pool, View, place};

/// Between two moves a stage works for this many times as long as a move takes, and no less than
/// [`SETTLED_MIN`].
const SETTLED_AFTER: u64 = 10;
const SETTLED_MIN: Millis = Millis::seconds(60);

/// The leases of stages that have a choice of devices, kept between rounds: most have none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choosers {
    /// All below were looked at.
    seen_until: LeaseId,
    leases: BTreeSet<LeaseId>,
    /// Those of stages that cannot save: nobody takes turns with them.
    unsaving: BTreeSet<LeaseId>,
}

impl Choosers {
    pub fn update(&mut self, state: &State) -> impl Iterator<Item = LeaseId> + '_ {
        let has_choice = |lease: &Lease| state.stage(lease.stage).1.alternatives.len() > 1;
        let new = state.leases().range(self.seen_until..).filter(|(_, lease)| has_choice(lease));
        self.leases.extend(new.map(|(id, _)| *id));
        let saves = |lease: &Lease| state.stage(lease.stage).1.saves(lease.placement.alternative);
        let new = state.leases().range(self.seen_until..).filter(|(_, lease)| !saves(lease));
        self.unsaving.extend(new.map(|(id, _)| *id));
        self.seen_until = state.next_lease();
        self.leases.retain(|id| state.leases().contains_key(id));
        self.unsaving.retain(|id| state.leases().contains_key(id));
        self.leases.iter().copied()
    }

    /// Whether somebody runs who cannot save.
    pub fn any_unsaving(&self) -> bool {
        !self.unsaving.is_empty()
    }
}

/// Where a lease off a node that is going to fail can go.
pub(crate) fn evacuation(view: &View<'_>, pool: &mut Pool<'_>, lease: &Lease) -> Option<Placement> {
    let (_, spec, _) = view.state.stage(lease.stage);
    let index = lease.placement.alternative;
    let movable = spec.saves(index) && matches!(lease.phase, Phase::Running { .. });
    if !movable || !view.state.is_endangered(lease) {
        return None;
    }
    elsewhere(pool, lease, spec, index)
}

/// What became of the search for something better.
#[derive(Debug, PartialEq)]
pub(crate) enum Improvement {
    To(Placement),
    /// It moved too short a while ago.
    NotBefore(Time),
    None,
}

/// Where a lease costs all less, if it can have that now.
pub(crate) fn improvement(
    view: &View<'_>,
    pool: &mut Pool<'_>,
    crowd: &Crowd,
    lease: &Lease,
) -> Improvement {
    let (_, spec, stage) = view.state.stage(lease.stage);
    let current = lease.placement.alternative;
    let Phase::Running { since } = lease.phase else { return Improvement::None };
    let Some(total) = spec.steps.or(stage.progress.total) else { return Improvement::None };
    if !spec.saves(current) {
        return Improvement::None;
    }
    let pause = view.rates.restart(&spec.profile);
    let settled = since + Millis(pause.0 * SETTLED_AFTER).max(SETTLED_MIN);
    let within = |placement: &Placement| spec.spread(view.state.topology(), placement);
    let here = shape(view, spec, current, within(&lease.placement));
    let Some(here) = here else { return Improvement::None };
    let left = (total as f64 - steps_done(view, lease.stage, here.rate)).max(0.0);
    let stay = left * crowd.cost(here);
    let cost = |shape: Shape| left * crowd.cost(shape) + pause.as_seconds() * crowd.price(shape);
    let there = |(index, shape): (usize, Option<_>)| {
        let shape = shape.filter(|shape: &Shape| index != current && !shape.guessed)?;
        (cost(shape) < stay).then_some((cost(shape), index))
    };
    let shapes = shapes(view, spec).into_iter().enumerate();
    let mut better: Vec<_> = shapes.filter_map(there).collect();
    if !better.is_empty() && view.now < settled {
        return Improvement::NotBefore(settled);
    }
    better.sort_by(|a, b| a.0.total_cmp(&b.0));
    // What is better at its best may not be where there is room.
    let still_pays = |placement: &Placement| match within(placement) {
        Domain::Node => true,
        apart => shape(view, spec, placement.alternative, apart).is_some_and(|s| cost(s) < stay),
    };
    let found = better
        .into_iter()
        .find_map(|(_, index)| elsewhere(pool, lease, spec, index).filter(still_pays));
    found.map_or(Improvement::None, Improvement::To)
}

/// Where a lease finds room if it gives up its own.
fn elsewhere(
    pool: &mut Pool<'_>,
    lease: &Lease,
    spec: &StageSpec,
    index: usize,
) -> Option<Placement> {
    pool.give_back(&lease.placement);
    let found = place(pool, spec, index).ok();
    pool.take(&lease.placement);
    found
}
