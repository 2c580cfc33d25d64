//! Whom to stop for a stage of higher priority, if it pays, and for one whose tenant is entitled to
//! what others borrowed.

use std::collections::BTreeSet;

use het_core::{
    Grant, Job, LeaseId, Millis, Placement, Priority, Reason, Share, ShareMillis, Stage, StageKey,
    StopCause, StopCost,
};
use het_perf::stop_cost;

use crate::ends::{Ends, Unknown};
use crate::line::Group;
use crate::tenants::Tenants;
use crate::{Pool, StopOrder, View, place};

/// How often one stage may be preempted in its life (law 7).
pub const PREEMPTIONS_MAX: u32 = 3;

/// Running time that a victim is assumed to have left when nothing is known about it.
const REMAINING_DEFAULT: Millis = Millis::seconds(1_800);

/// The least sufficient set of victims among `candidates` for the first of `shapes` that can be
/// had, if its cost is below its gain.
///
/// # Errors
/// [`Reason::PreemptionTooDear`] where victims exist but are worth more; `None` where none exist.
pub(crate) fn find(
    view: &View<'_>,
    ends: &Ends<'_>,
    pool: &Pool<'_>,
    key: StageKey,
    shapes: &[usize],
    candidates: &[(LeaseId, StopCost)],
) -> Result<(Placement, Vec<StopOrder>), Option<Reason>> {
    for &index in shapes {
        let candidates = candidates.iter().copied();
        let Some((placement, victims)) = sufficient(view, pool, key, index, candidates) else {
            continue;
        };
        let orders = priced(view, ends, key, &placement, &victims);
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
    let order = priced(view, &Ends::of(view), key, &placement, &victims).pop()?;
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

/// The least sufficient set of leases that hold what the tenant of a stage is entitled to and
/// others borrowed, for the first of `shapes` that can be had.
pub(crate) fn reclaim(
    view: &View<'_>,
    tenants: &Tenants<'_>,
    pool: &Pool<'_>,
    key: StageKey,
    shapes: &[usize],
    stopped: &BTreeSet<LeaseId>,
) -> Option<(Placement, Vec<StopOrder>)> {
    let (job, spec, _) = view.state.stage(key);
    let tenant = &job.spec.tenant;
    let topology = view.state.topology();
    let borrowers = candidates(view, |_, _| true);
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
                let borrowed = !stopped.contains(id)
                    && lease.placement.grants().any(useful)
                    && !rest.is_protected(theirs, class, newcomer);
                if borrowed {
                    rest.will_free(theirs, &lease.placement);
                }
                borrowed
            };
            let borrowers = borrowers.iter().copied().filter(gives_back);
            if let Some((placement, victims)) = sufficient(view, pool, key, index, borrowers)
                && tenants.is_entitled(tenant, &placement)
                && tenants.over_limit(tenant, &placement).is_none()
            {
                let cause = StopCause::Reclaim { beneficiary: key };
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

/// Leases that may be stopped for jobs of `priority`, cheapest first.
pub(crate) fn lower_than(view: &View<'_>, priority: Priority) -> Vec<(LeaseId, StopCost)> {
    candidates(view, |job, stage| job.priority() < priority && stage.preemptions < PREEMPTIONS_MAX)
}

/// Leases that `may` be stopped, cheapest first: lowest priority, then least lost.
fn candidates(view: &View<'_>, may: impl Fn(&Job, &Stage) -> bool) -> Vec<(LeaseId, StopCost)> {
    let mut rows: Vec<_> = view
        .state
        .leases()
        .iter()
        .filter(|(_, lease)| !lease.phase.is_stopping())
        .filter_map(|(&id, lease)| {
            let (job, spec, stage) = view.state.stage(lease.stage);
            may(job, stage).then(|| (job.priority(), stop_cost(spec, stage, lease, view.now), id))
        })
        .collect();
    rows.sort_by_key(|&(priority, cost, id)| (priority, cost.cost, id));
    rows.into_iter().map(|(_, cost, id)| (id, cost)).collect()
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
    let selector = &spec.alternatives[index].selector;
    let mut freed = pool.clone();
    let accepted = freed.accepted(selector, None);
    let mut free = freed.units(&accepted);
    let mut chosen: Vec<(LeaseId, StopCost)> = Vec::new();
    let mut found = None;
    for (id, cost) in candidates {
        let placement = &view.state.leases()[&id].placement;
        let topology = view.state.topology();
        let useful = placement.grants().filter(|grant| selector.accepts(topology, grant.device));
        let units: u32 = useful.map(|grant| grant.share.whole_units()).sum();
        if units == 0 {
            continue;
        }
        free += units;
        freed.give_back(placement);
        chosen.push((id, cost));
        if free < spec.alternatives[index].count {
            continue;
        }
        if let Ok(placement) = place(&mut freed, spec, index) {
            found = Some(placement);
            break;
        }
    }
    let placement = found?;
    // Latest first: the dearest victims are tried for sparing first.
    for &(id, cost) in chosen.clone().iter().rev() {
        let mut fewer = pool.clone();
        let rest: Vec<_> = chosen.iter().copied().filter(|&(other, _)| other != id).collect();
        for (other, _) in &rest {
            fewer.give_back(&view.state.leases()[other].placement);
        }
        if fewer.covers(&placement) {
            chosen.retain(|&row| row != (id, cost));
        }
    }
    Some((placement, chosen))
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
            cause: StopCause::Priority { beneficiary: key },
            cost: StopCost { gain, ..cost },
        })
        .collect()
}
