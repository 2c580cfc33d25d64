//! Whom to stop for a stage of higher priority, if it pays, and for one whose tenant is entitled to
//! what others borrowed.

use std::collections::BTreeSet;

use het_core::{
    Grant, LeaseId, Millis, Placement, Priority, Rank, Reason, Share, ShareMillis, StageKey,
    StopCause, StopCost,
};
use het_perf::{stop_cost, stop_cost_of};

use crate::placement::{Ends, Running, Unknown, accepted, place_among};
use crate::queue::Group;
use crate::tenants::Tenants;
use crate::{Pool, StopOrder, View};

/// How often one stage may be preempted in its life (law 7).
pub const PREEMPTIONS_MAX: u32 = 3;

/// Running time that a victim is assumed to have left when nothing is known about it.
const REMAINING_DEFAULT: Millis = Millis::seconds(1_800);

/// The least sufficient set of victims among `candidates` for the first of `shapes` that can be
/// had, if its cost is below its gain.
///
/// # Errors
/// [`Reason::PreemptionTooDear`] where victims exist but are worth more; `None` where none exist.
pub(crate) fn find<'a, C: Iterator<Item = (LeaseId, StopCost)>>(
    view: &View<'_>,
    ends: impl Fn() -> &'a Ends<'a>,
    pool: &Pool<'_>,
    key: StageKey,
    shapes: &[usize],
    candidates: impl Fn() -> C,
) -> Result<(Placement, Vec<StopOrder>), Option<Reason>> {
    for &index in shapes {
        let Some((placement, victims)) = sufficient(view, pool, key, index, candidates()) else {
            continue;
        };
        let orders = priced(view, ends(), key, &placement, &victims);
        let total: ShareMillis = orders.iter().map(|order| order.cost.cost).sum();
        let gain = orders.first().map_or(ShareMillis::ZERO, |order| order.cost.gain);
        if gain <= total {
            return Err(Some(Reason::PreemptionTooDear));
        }
        return Ok((placement, orders));
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
    let may = ours.priority() > theirs.priority() && stage.preemptions < PREEMPTIONS_MAX;
    if !may || lease.phase.is_stopping() {
        return None;
    }
    let cost = stop_cost(victim_spec, stage, lease, view.now);
    let tenants = Tenants::of(view.state);
    let within_limits = |placement: &Placement| {
        let over = |tenants: &Tenants<'_>| tenants.over_limit(&ours.spec.tenant, placement);
        tenants.as_ref().and_then(over).is_none()
    };
    let (placement, victims) = (0..spec.alternatives.len())
        .filter_map(|index| sufficient(view, pool, key, index, [(victim, cost)].into_iter()))
        .find(|(placement, victims)| !victims.is_empty() && within_limits(placement))?;
    let mut running = Running::default();
    running.update(view);
    let ends = Ends::of(view, &running);
    let order = priced(view, &ends, key, &placement, &victims).pop()?;
    Some((placement, order))
}

/// Those of `candidates` that may be stopped for a stage of a group without anybody ending up with
/// less than its quota.
pub(crate) fn unprotected(
    view: &View<'_>,
    tenants: &Tenants<'_>,
    group: &Group,
    candidates: Vec<(LeaseId, StopCost)>,
) -> Vec<(LeaseId, StopCost)> {
    let newcomer = (group.tenant(), group.units());
    let wanted: BTreeSet<usize> = group.by_class(view.state).map(|(class, _)| class).collect();
    let mut rest = tenants.clone();
    let mut candidates = candidates;
    candidates.retain(|(id, _)| {
        let lease = &view.state.leases()[id];
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
    });
    candidates
}

/// The least sufficient set among the leases `open` that hold what the tenant of a stage is
/// entitled to and others borrowed, for the first of `shapes` that can be had.
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
    let topology = view.state.topology();
    for &index in shapes {
        let alternative = &spec.alternatives[index];
        for class in 0..topology.classes.len() {
            let owns = || tenants.owns(tenant, class, Share::units(alternative.count));
            if !tenants.is_shared_out(class) || !owns() {
                continue;
            }
            let mut rest = tenants.clone();
            let gives_back = |(id, _): &(LeaseId, StopCost)| {
                let lease = &view.state.leases()[id];
                let useful = |grant: Grant| {
                    topology.device(grant.device).class == class
                        && alternative.selector.accepts(topology, grant.device)
                };
                let theirs = &view.state.stage(lease.stage).0.spec.tenant;
                let newcomer = (tenant, alternative.count);
                let borrowed = lease.placement.grants().any(useful)
                    && !rest.is_protected(theirs, class, newcomer);
                if borrowed {
                    rest.will_free(theirs, &lease.placement);
                }
                borrowed
            };
            let borrowers = open.iter().copied().filter(gives_back);
            if let Some((placement, victims)) = sufficient(view, pool, key, index, borrowers)
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

/// The least sufficient set of `candidates` that give way to a stage of their own priority, for the
/// first of `shapes` that can be had.
pub(crate) fn take_turn(
    view: &View<'_>,
    pool: &Pool<'_>,
    key: StageKey,
    shapes: &[usize],
    candidates: &[(LeaseId, StopCost)],
) -> Option<(Placement, Vec<StopOrder>)> {
    shapes.iter().find_map(|&index| {
        let candidates = candidates.iter().copied();
        let (placement, leaving) = sufficient(view, pool, key, index, candidates)?;
        let order = |(lease, cost)| StopOrder { lease, cause: StopCause::Quantum, cost };
        Some((placement, leaving.into_iter().map(order).collect()))
    })
}

/// A running stage that may be stopped for others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stoppable {
    pub lease: LeaseId,
    pub cost: StopCost,
    /// It was preempted as often as a stage may be.
    pub spared: bool,
}

/// Leases of one priority that may be stopped, the cheapest first.
pub(crate) fn stoppable(view: &View<'_>, running: &Running, priority: Priority) -> Vec<Stoppable> {
    let row = |id: LeaseId| {
        let lease = &view.state.leases()[&id];
        let held = running.get(id)?.held;
        let stage = view.state.stage_record(lease.stage);
        let cost = stop_cost_of(held, stage, lease.since, view.now);
        let spared = stage.preemptions >= PREEMPTIONS_MAX;
        (!lease.phase.is_stopping()).then_some(Stoppable { lease: id, cost, spared })
    };
    let mut rows: Vec<Stoppable> = view.state.leases_of(priority).filter_map(row).collect();
    rows.sort_unstable_by_key(|row| (row.cost.cost, row.lease));
    rows
}

/// Adds candidates until the alternative fits, then drops those that the placement does not touch.
fn sufficient(
    view: &View<'_>,
    pool: &Pool<'_>,
    key: StageKey,
    index: usize,
    candidates: impl Iterator<Item = (LeaseId, StopCost)>,
) -> Option<(Placement, Vec<(LeaseId, StopCost)>)> {
    let (_, spec, _) = view.state.stage(key);
    let alternative = &spec.alternatives[index];
    let accepted = accepted(view.state, &alternative.selector, None);
    let placement_of = |id: LeaseId| &view.state.leases()[&id].placement;
    let units = |id: LeaseId| -> u32 {
        let ours = placement_of(id).grants().filter(|grant| accepted.has(view.state, grant.device));
        ours.map(|grant| grant.share.whole_units()).sum()
    };
    let with_units = |(id, cost)| Some((id, cost, units(id))).filter(|(.., units)| *units > 0);
    let mut candidates = candidates.filter_map(with_units);
    let mut useful: Vec<(LeaseId, StopCost)> = Vec::new();
    let mut free = pool.units(&accepted);
    let fits = |useful: &[(LeaseId, StopCost)]| {
        let mut freed = pool.clone();
        useful.iter().for_each(|(id, _)| freed.give_back(placement_of(*id)));
        place_among(&freed, spec, index, &accepted).ok()
    };
    // What fits beside fewer fits beside more: the number doubles until it fits, and is then halved
    // to where it just does.
    let mut too_few = 0;
    let mut found = loop {
        let least = (2 * too_few).max(1);
        while useful.len() < least || free < alternative.count {
            let Some((id, cost, units)) = candidates.next() else { break };
            free += units;
            useful.push((id, cost));
            too_few = if free < alternative.count { useful.len() } else { too_few };
        }
        if useful.len() <= too_few {
            return None;
        }
        match fits(&useful) {
            Some(placement) => break placement,
            None => too_few = useful.len(),
        }
    };
    let mut enough = useful.len();
    while enough - too_few > 1 {
        let middle = usize::midpoint(too_few, enough);
        match fits(&useful[..middle]) {
            Some(placement) => (enough, found) = (middle, placement),
            None => too_few = middle,
        }
    }
    let mut chosen = useful[..enough].to_vec();
    let is_near = |rank: &Rank| found.uses_node(rank.node);
    chosen.retain(|(id, _)| placement_of(*id).ranks.iter().any(is_near));
    // The dearest victims are tried for sparing first.
    for position in (0..chosen.len()).rev() {
        let mut fewer = pool.clone();
        let rest = chosen.iter().enumerate().filter(|(other, _)| *other != position);
        rest.for_each(|(_, (id, _))| fewer.give_back(placement_of(*id)));
        if fewer.covers(&found) {
            chosen.remove(position);
        }
    }
    Some((found, chosen))
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
    let wait = ends.until_free(alternative, alternative.count, unknown).unwrap_or_default();
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
