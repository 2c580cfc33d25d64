//! Who runs and would be better off elsewhere.
//!
//! - Off a node that is going to fail, or a device on which programs hang: [`evacuation`], whatever
//!   it costs. Off a device that has become slow, where that costs less than to stay.
//! - To more, fewer or other devices: [`improvement`], where the rest of the work costs everybody
//!   less there, the pause of moving included. Nobody is stopped for a guess: what is faster there
//!   has been measured or declared.
//! - To fewer of its devices, where others are given some: [`smaller`].

use std::cmp::Reverse;

use het_core::{Lease, Locality, Micro, Millis, Phase, Placement, StageSpec, StopCause, Time};

use het_perf::{StopTimes, expected_loss};

use super::opportunity_cost::{OpportunityCost, Shape, shape};
use super::place::on_class;
use super::running::Runner;
use crate::speed::{ends_soon, steps_made, time_left};
use crate::{Pool, View, place};

/// Between two moves a stage works for this many times as long as a move takes, and no less than
/// [`SETTLED_MIN`].
const SETTLED_AFTER: u64 = 10;
const SETTLED_MIN: Millis = Millis::seconds(60);

/// Where a lease can go that cannot stay, or should not, where it is.
pub(crate) fn evacuation(
    view: &View<'_>,
    pool: &mut Pool<'_>,
    lease: &Lease,
) -> Option<(Placement, StopCause)> {
    let (_, spec, _) = view.state.stage(lease.stage);
    let index = lease.placement.alternative;
    let movable = spec.saves(index) && matches!(lease.phase, Phase::Running { .. });
    if !movable {
        return None;
    }
    if view.state.is_endangered(lease) || should_leave(view, lease) {
        return Some((elsewhere(pool, lease, spec, index)?, StopCause::Drain));
    }
    if view.state.pace_for(lease) == Micro::ONE {
        return None;
    }
    let there = elsewhere(pool, lease, spec, index)?;
    is_worth_leaving(view, lease, &there).then_some((there, StopCause::Slow))
}

/// Whether slow devices cost the rest of a stage more than leaving them does. One of which nobody
/// knows how far it is has as much before it as behind it.
fn is_worth_leaving(view: &View<'_>, lease: &Lease, there: &Placement) -> bool {
    let (_, spec, stage) = view.state.stage(lease.stage);
    let here = view.state.pace_for(lease).as_f64();
    let other = view.state.pace_of(there).as_f64();
    let behind = view.now.since(lease.since);
    let left = time_left(view, lease.stage, &lease.placement).unwrap_or(behind).as_seconds();
    let StopTimes { save, load } = view.rates.stop_times(spec, lease.placement.units());
    let lost = expected_loss(spec.saves(lease.placement.alternative), stage, lease.since, view.now);
    let pause = (save + load + lost).as_seconds();
    left / here > left / other + pause
}

/// Whether it has saved on a device on which programs hang, and is not about to end.
fn should_leave(view: &View<'_>, lease: &Lease) -> bool {
    view.state.has_saved_on_suspected(lease) && !ends_soon(view, lease.stage, &lease.placement)
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
    opportunity_cost: &OpportunityCost,
    lease: &Lease,
    runner: &Runner,
) -> Improvement {
    let current = lease.placement.alternative;
    let Some(here) = runner.here else { return Improvement::None };
    // On the same number of devices, too, where it could stand better.
    let is_other = |index: usize| index != current || runner.locality != Locality::BEST;
    let is_cheaper = |(index, shape): (usize, &Option<Shape>)| {
        is_other(index)
            && shape.is_some_and(|shape| opportunity_cost.cost(shape) < opportunity_cost.cost(here))
    };
    if !runner.shapes.iter().enumerate().any(is_cheaper) {
        return Improvement::None;
    }
    let (spec, stage) = (runner.spec(), view.state.stage_record(lease.stage));
    let Phase::Running { since } = lease.phase else { return Improvement::None };
    let Some(total) = runner.steps.or(stage.progress.total) else { return Improvement::None };
    let Some(preemptible) = spec.preemptible.from(lease.since) else { return Improvement::None };
    let pause = view.rates.restart(spec);
    let settled = (since + Millis(pause.0 * SETTLED_AFTER).max(SETTLED_MIN)).max(preemptible);
    let left = (total as f64 - steps_made(view, stage, lease, here.rate)).max(0.0);
    let stay = left * opportunity_cost.cost(here);
    // What is lost on the way has to be done again there.
    let lost = expected_loss(runner.held.saves, stage, lease.since, view.now);
    let redone = (lost.as_seconds() * here.rate).min(total as f64 - left);
    let cost = |shape: Shape| {
        (left + redone) * opportunity_cost.cost(shape)
            + pause.as_seconds() * opportunity_cost.price(shape)
    };
    let there = |(index, shape): (usize, &Option<Shape>)| {
        let is_known =
            |shape: &Shape| !shape.guessed || is_back_to_what_it_asks_for(view, lease, index);
        let shape = shape.filter(|shape| is_other(index) && is_known(shape))?;
        (cost(shape) < stay).then_some((cost(shape), index))
    };
    let mut better: Vec<_> = runner.shapes.iter().enumerate().filter_map(there).collect();
    if !better.is_empty() && view.now < settled {
        return Improvement::NotBefore(settled);
    }
    better.sort_by(|a, b| a.0.total_cmp(&b.0));
    // What is better at its best may not be where there is room.
    let still_pays = |placement: &Placement| match view.state.locality(spec, placement) {
        Locality::BEST => true,
        worse => shape(view, spec, placement.alternative, worse).is_some_and(|s| cost(s) < stay),
    };
    let found = better
        .into_iter()
        .find_map(|(_, index)| elsewhere(pool, lease, spec, index).filter(still_pays));
    found.map_or(Improvement::None, Improvement::To)
}

/// Whether an elastic stage that shrank would have the devices again that it is meant for. Who
/// shrank before its speed on them was measured would never learn it else.
fn is_back_to_what_it_asks_for(view: &View<'_>, lease: &Lease, index: usize) -> bool {
    let (_, spec, _) = view.state.stage(lease.stage);
    let there = &spec.alternatives[index];
    let is_meant = there.launch.elastic.is_some_and(|elastic| elastic.reference == there.count);
    let held = lease.placement.units();
    let accepts = |device| there.selector.accepts(view.state.topology(), device);
    is_meant && there.count > held && lease.placement.devices().all(|grant| accepts(grant.device))
}

/// The largest part of its devices that a stage which stops finds room for; no other class of
/// them, and none where it would begin anew. One that is just starting goes on there as well.
pub(crate) fn smaller(view: &View<'_>, pool: &mut Pool<'_>, lease: &Lease) -> Option<Placement> {
    let (_, spec, _) = view.state.stage(lease.stage);
    let topology = view.state.topology();
    let class = topology.device(lease.placement.devices().next()?.device).class;
    let held = lease.placement.units();
    if !spec.saves(lease.placement.alternative) {
        return None;
    }
    let fewer = |index: &usize| spec.alternatives[*index].count < held && spec.saves(*index);
    let mut sizes: Vec<usize> = (0..spec.alternatives.len()).filter(fewer).collect();
    sizes.sort_by_key(|&index| Reverse(spec.alternatives[index].count));
    sizes.into_iter().find_map(|index| on_class(pool, spec, index, class).ok())
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
