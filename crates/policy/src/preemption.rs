//! Whom to stop for a stage of higher priority, if it pays, and for one whose tenant is entitled to
//! what others borrowed.

mod victims;

use std::collections::BTreeSet;

use het_core::{
    Alternative, Grant, LeaseId, Millis, Name, Placement, Priority, Reason, Share, ShareMillis,
    StageKey, StopCause, StopCost,
};
use het_perf::{stop_cost, stop_cost_of};

use crate::placement::{Ends, Running, Unknown};
use crate::queue::Group;
use crate::tenants::Tenants;
use crate::{Pool, StopOrder, View};

pub(crate) use victims::Newcomer;
use victims::Victims;

/// How often one stage may be preempted in its life (law 7).
pub const PREEMPTIONS_MAX: u32 = 3;

/// Running time that a victim is assumed to have left when nothing is known about it.
const REMAINING_DEFAULT: Millis = Millis::seconds(1_800);

/// The cheapest victims among `candidates` for the first of `shapes` for which there are any, if
/// they cost less than that brings; none of a higher priority where those of lower ones suffice.
/// Nobody is stopped for a worse shape: whoever got that would be in the way of the better one.
///
/// # Errors
/// [`Reason::PreemptionTooDear`] where victims exist but are worth more; `None` where none exist.
pub(crate) fn find<'a, C: Iterator<Item = (LeaseId, StopCost)>>(
    view: &View<'_>,
    ends: impl Fn() -> &'a Ends<'a>,
    request: &Newcomer<'_>,
    shapes: &[usize],
    candidates: impl Fn() -> C,
) -> Result<(Placement, Vec<StopOrder>), Option<Reason>> {
    for &index in shapes {
        let orders = |(placement, victims): &Victims| {
            let orders = priced(view, ends(), request.key, placement, victims);
            let total: ShareMillis = orders.iter().map(|order| order.cost.cost).sum();
            let gain = orders.first().map_or(ShareMillis::ZERO, |order| order.cost.gain);
            (gain > total).then_some(orders)
        };
        let pays = |victims: &Victims| orders(victims).is_some();
        let found = victims::cheapest(view, request, index, candidates(), pays);
        let Some(found) = found else { continue };
        match orders(&found) {
            Some(orders) => return Ok((found.0, orders)),
            None => return Err(Some(Reason::PreemptionTooDear)),
        }
    }
    Err(None)
}

/// Where a waiting stage of higher priority could run if just this lease stopped beside what `pool`
/// has, and what that would cost and bring, whether or not it pays; `None` where it could not.
pub fn preemption(
    view: &View<'_>,
    pool: &Pool<'_>,
    victim: LeaseId,
    key: StageKey,
) -> Option<(Placement, StopOrder)> {
    let lease = view.state.leases().get(&victim)?;
    let (theirs, victim_spec, stage) = view.state.stage(lease.stage);
    let (ours, spec, _) = view.state.stage(key);
    let may = ours.priority() > theirs.priority()
        && stage.preemptions < PREEMPTIONS_MAX
        && victim_spec.preemptible.allows(lease.since, view.now);
    if !may || lease.phase.is_stopping() {
        return None;
    }
    let cost = stop_cost(view.rates, victim_spec, stage, lease, view.now);
    let request = Newcomer { key, pool, quota: &|| Box::new(|_| true) };
    let tenants = Tenants::of(view.state);
    let within_limits = |placement: &Placement| {
        let refusal =
            |tenants: &Tenants<'_>| tenants.refusal(&ours.spec.tenant, spec.preemptible, placement);
        tenants.as_ref().and_then(refusal).is_none()
    };
    let (placement, victims) = (0..spec.alternatives.len())
        .filter_map(|index| {
            victims::cheapest(view, &request, index, [(victim, cost)].into_iter(), |_| true)
        })
        .find(|(placement, victims)| !victims.is_empty() && within_limits(placement))?;
    let mut running = Running::default();
    running.update(view);
    let ends = Ends::of(view, &running);
    let order = priced(view, &ends, key, &placement, &victims).pop()?;
    Some((placement, order))
}

/// Says of one lease after the other whether it may be stopped too, beside those of which it said
/// so before.
pub(crate) type Quota<'q> = Box<dyn FnMut(LeaseId) -> bool + 'q>;

/// Nobody ends up with less than its quota for a stage of a group.
pub(crate) fn unprotected<'q>(
    view: &'q View<'_>,
    tenants: Option<&'q Tenants<'q>>,
    group: &'q Group,
) -> Quota<'q> {
    let Some(tenants) = tenants else { return Box::new(|_| true) };
    let newcomer = (group.tenant(), group.units());
    let wanted: BTreeSet<usize> = group.by_class(view.state).map(|(class, _)| class).collect();
    let mut rest = tenants.clone();
    Box::new(move |id| {
        let lease = &view.state.leases()[&id];
        let tenant = &view.state.stage(lease.stage).0.spec.tenant;
        let topology = view.state.topology();
        let class_of = |grant: Grant| topology.device(grant.device).class;
        let held: BTreeSet<usize> = lease.placement.grants().map(class_of).collect();
        let mut useful = held.intersection(&wanted).peekable();
        let may = useful.peek().is_some()
            && !useful.any(|&class| rest.is_protected(tenant, class, newcomer));
        if may {
            rest.will_free(tenant, &lease.placement);
        }
        may
    })
}

/// Only what others borrowed of a class that the tenant of an alternative is entitled to.
fn borrowed<'q>(
    view: &'q View<'_>,
    tenants: &Tenants<'q>,
    tenant: &'q Name,
    alternative: &'q Alternative,
    class: usize,
) -> Quota<'q> {
    let topology = view.state.topology();
    let mut rest = tenants.clone();
    Box::new(move |id| {
        let lease = &view.state.leases()[&id];
        let useful = |grant: Grant| {
            topology.device(grant.device).class == class
                && alternative.selector.accepts(topology, grant.device)
        };
        let theirs = &view.state.stage(lease.stage).0.spec.tenant;
        let newcomer = (tenant, alternative.count);
        let borrowed =
            lease.placement.grants().any(useful) && !rest.is_protected(theirs, class, newcomer);
        if borrowed {
            rest.will_free(theirs, &lease.placement);
        }
        borrowed
    })
}

/// The cheapest set among the leases `open` that hold what the tenant of a stage is entitled to and
/// others borrowed, for the first of `shapes` that can be had.
pub(crate) fn reclaim(
    view: &View<'_>,
    tenants: &Tenants<'_>,
    pool: &Pool<'_>,
    key: StageKey,
    shapes: &[usize],
    open: &[(LeaseId, StopCost)],
) -> Option<(Placement, Vec<StopOrder>)> {
    let (job, spec, _) = view.state.stage(key);
    let tenant = &job.spec.tenant;
    for &index in shapes {
        let alternative = &spec.alternatives[index];
        for class in 0..view.state.topology().classes.len() {
            let owns = || tenants.owns(tenant, class, Share::units(alternative.count));
            if !tenants.is_shared_out(class) || !owns() {
                continue;
            }
            let quota = || borrowed(view, tenants, tenant, alternative, class);
            let request = Newcomer { key, pool, quota: &quota };
            if let Some((placement, victims)) =
                victims::cheapest(view, &request, index, open.iter().copied(), |_| true)
                && tenants.is_entitled(tenant, &placement)
                && tenants.over_limit(tenant, &placement).is_none()
            {
                let cause = StopCause::Reclaim { preemptor: key };
                let order = |(lease, cost)| StopOrder { lease, cause, cost };
                return Some((placement, victims.into_iter().map(order).collect()));
            }
        }
    }
    None
}

/// The cheapest set of `candidates` that give way to a stage of their own priority, for the first
/// of `shapes` that can be had.
pub(crate) fn take_turn(
    view: &View<'_>,
    request: &Newcomer<'_>,
    shapes: &[usize],
    candidates: &[(LeaseId, StopCost)],
) -> Option<(Placement, Vec<StopOrder>)> {
    shapes.iter().find_map(|&index| {
        let candidates = candidates.iter().copied();
        let (placement, leaving) = victims::cheapest(view, request, index, candidates, |_| true)?;
        let order = |(lease, cost)| StopOrder { lease, cause: StopCause::Quantum, cost };
        Some((placement, leaving.into_iter().map(order).collect()))
    })
}

/// A running stage that may be stopped for others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stoppable {
    pub lease: LeaseId,
    pub cost: StopCost,
    /// It was preempted as often as a stage may be, or is to run for longer first.
    pub spared: bool,
}

/// Leases of one priority that may be stopped, the cheapest first; of equals those that saved,
/// before those that never did and would lose all they ever made.
pub(crate) fn stoppable(view: &View<'_>, running: &Running, priority: Priority) -> Vec<Stoppable> {
    let row = |id: LeaseId| {
        let lease = &view.state.leases()[&id];
        let runner = running.get(id)?;
        let stage = view.state.stage_record(lease.stage);
        let from = runner.spec().preemptible.from(lease.since)?;
        let times = view.rates.stop_times(runner.spec(), lease.placement.units());
        let cost = stop_cost_of(times, runner.held, stage, lease.since, view.now);
        let spared = stage.preemptions >= PREEMPTIONS_MAX || from > view.now;
        (!lease.phase.is_stopping()).then_some(Stoppable { lease: id, cost, spared })
    };
    let mut rows: Vec<Stoppable> = view.state.leases_of(priority).filter_map(row).collect();
    rows.sort_unstable_by_key(|row| (row.cost.cost, never_saved(view, row.lease), row.lease));
    rows
}

/// Whether a stop would cost a running stage all that it ever made.
fn never_saved(view: &View<'_>, id: LeaseId) -> bool {
    view.state.stage_record(view.state.leases()[&id].stage).checkpoint.is_none()
}

/// Writes the gain beside each cost: the wait that is spared, until as much becomes free by itself,
/// over the share that is needed, doubled for every step of priority between the two jobs.
fn priced(
    view: &View<'_>,
    ends: &Ends<'_>,
    key: StageKey,
    placement: &Placement,
    victims: &[(LeaseId, StopCost)],
) -> Vec<StopOrder> {
    let share: Share = placement.devices().map(|grant| grant.share).sum();
    let ours = view.state.stage(key).0.priority() as u32;
    let alternative = &view.state.stage(key).1.alternatives[placement.alternative];
    let unknown = Unknown::After(REMAINING_DEFAULT);
    // Where all of it is free only cores or memory beside it are missing.
    let wait = ends.until_free(alternative, alternative.count, unknown);
    let wait = wait.unwrap_or(REMAINING_DEFAULT);
    let theirs = victims
        .iter()
        .map(|(id, _)| view.state.stage(view.state.leases()[id].stage).0.priority() as u32);
    let gap = ours - theirs.max().unwrap_or(ours);
    let gain = ShareMillis(share.over(wait).0 << gap.saturating_sub(1));
    victims
        .iter()
        .map(|&(lease, cost)| StopOrder {
            lease,
            cause: StopCause::Priority { preemptor: key },
            cost: StopCost { gain, ..cost },
        })
        .collect()
}
