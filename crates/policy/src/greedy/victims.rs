//! Whom to stop for those who do not fit: those of a lower priority, those who borrowed from its
//! tenant, and equals that have had more.

use std::cell::OnceCell;

use het_core::{LeaseId, Placement, Priority, Reason, StageKey, StopCause, StopCost};

use super::{PREEMPTION_SEARCHES_MAX, Pass};
use crate::placement::{Ends, smaller};
use crate::preemption::{Newcomer, Stoppable};
use crate::queue::{Group, Rank};
use crate::rules::{Preempts, Sharing};
use crate::speed::time_left;
use crate::{Rules, StopOrder, View, Want, preemption, queue};

/// Who may be stopped for others, worked out once somebody asks.
pub(super) struct Victims<'a> {
    /// The lowest priority that runs: only higher ones need to look for victims.
    pub lowest_running: Option<Priority>,
    pub searches: usize,
    /// When what runs should end.
    pub ends: OnceCell<Ends<'a>>,
    /// Who may be stopped for equals.
    pub at_boundary: OnceCell<Vec<(LeaseId, StopCost)>>,
    /// Who may be stopped for others, by priority from low to urgent.
    pub stoppable: [OnceCell<Vec<Stoppable>>; Priority::ALL.len()],
}

impl Victims<'_> {
    pub fn of(rules: &Rules, view: &View<'_>) -> Self {
        let preempts = rules.preempts == Preempts::ForHigherPriority;
        Self {
            lowest_running: preempts.then(|| view.state.lowest_running()).flatten(),
            searches: 0,
            ends: OnceCell::new(),
            at_boundary: OnceCell::new(),
            stoppable: Default::default(),
        }
    }
}

impl Pass<'_> {
    /// Whether somebody runs whose priority is lower.
    pub(super) fn is_above_somebody(&self, priority: Priority) -> bool {
        self.victims.lowest_running.is_some_and(|lowest| lowest < priority)
    }

    /// Whether its tenant may not have what is free.
    pub(super) fn is_refused(&mut self, group: &Group) -> bool {
        self.reasons_to_wait(group).iter().all(|reason| {
            matches!(
                reason,
                Reason::OverLimit { .. }
                    | Reason::KeptForOthers { .. }
                    | Reason::MayNotBorrow { .. }
            )
        })
    }

    /// Whom to stop for a stage that stands above them.
    pub(super) fn room_by_priority(
        &mut self,
        group: &Group,
        key: StageKey,
        refused: bool,
    ) -> Option<(Placement, Vec<StopOrder>)> {
        if refused || !self.is_above_somebody(group.priority()) {
            return None;
        }
        let shapes: Vec<usize> = group.worthwhile(self.opportunity_cost.as_ref()).collect();
        let alike = (group.footprint, group.priority(), shapes);
        let too_dear = match self.told.spared.get(&alike) {
            Some(known) => known.clone(),
            None if self.victims.searches >= PREEMPTION_SEARCHES_MAX => return None,
            None => {
                self.victims.searches += 1;
                let found = self.victims(group, key, &alike.2);
                match found {
                    Ok((placement, orders)) if self.may_have(key, &placement) => {
                        return Some((placement, orders));
                    }
                    Ok(_) => return None,
                    Err(too_dear) => {
                        self.told.spared.insert(alike, too_dear.clone());
                        too_dear
                    }
                }
            }
        };
        if let Some(too_dear) = too_dear {
            let mut reasons = self.reasons_to_wait(group);
            reasons.push(too_dear);
            self.told.news.insert(group.id, reasons);
        }
        None
    }

    fn victims(
        &self,
        group: &Group,
        key: StageKey,
        shapes: &[usize],
    ) -> Result<(Placement, Vec<StopOrder>), Option<Reason>> {
        let lower = || {
            let lower = self.stoppable(|other| other < group.priority());
            self.not_stopped(lower.filter(|row| !row.spared))
        };
        let quota = || preemption::unprotected(self.view, self.supply.tenants.as_ref(), group);
        let newcomer = Newcomer { key, pool: &self.supply.pool, quota: &quota };
        preemption::find(self.view, || self.ends(), &newcomer, shapes, lower)
    }

    /// Who may be stopped of priorities that `may`: the lowest first, and of those the cheapest.
    fn stoppable<'s>(
        &'s self,
        may: impl Fn(Priority) -> bool + 's,
    ) -> impl Iterator<Item = &'s Stoppable> {
        let priorities = Priority::ALL.into_iter().rev().filter(move |priority| may(*priority));
        priorities.flat_map(|priority| {
            let rows = &self.victims.stoppable[priority as usize];
            rows.get_or_init(|| preemption::stoppable(self.view, self.running, priority))
        })
    }

    /// Those of them who go on as far as was decided yet.
    fn not_stopped<'s>(
        &'s self,
        rows: impl Iterator<Item = &'s Stoppable>,
    ) -> impl Iterator<Item = (LeaseId, StopCost)> {
        let open = rows.filter(|row| !self.orders.stopped.contains(&row.lease));
        open.map(|row| (row.lease, row.cost))
    }

    /// What equals that have had more leave to a stage, where they do.
    pub(super) fn take_turn(
        &self,
        group: &Group,
        key: StageKey,
    ) -> Option<(Placement, Vec<StopOrder>)> {
        if self.rules.sharing != Sharing::ByLevels {
            return None;
        }
        let view = self.view;
        let all = self.victims.at_boundary.get_or_init(|| queue::at_boundary(view));
        let gives_way = |id: &LeaseId| {
            let lease = &view.state.leases()[id];
            !self.orders.stopped.contains(id) && queue::gives_way(view, lease, key)
        };
        let open: Vec<_> = all.iter().copied().filter(|(id, _)| gives_way(id)).collect();
        if open.is_empty() {
            return None;
        }
        let quota = || preemption::unprotected(view, self.supply.tenants.as_ref(), group);
        let newcomer = Newcomer { key, pool: &self.supply.pool, quota: &quota };
        let shapes: Vec<usize> = group.worthwhile(self.opportunity_cost.as_ref()).collect();
        let found = preemption::take_turn(view, &newcomer, &shapes, &open)?;
        self.may_have(key, &found.0).then_some(found)
    }

    /// Whom to stop for a stage that is refused its tenant's own, because others borrowed it.
    pub(super) fn reclaim(
        &mut self,
        group: &Group,
        key: StageKey,
    ) -> Option<(Placement, Vec<StopOrder>)> {
        let tenants = self.supply.tenants.as_ref()?;
        if self.rules.preempts == Preempts::Never
            || self.victims.searches >= PREEMPTION_SEARCHES_MAX
        {
            return None;
        }
        let shapes: Vec<usize> = group.worthwhile(self.opportunity_cost.as_ref()).collect();
        self.victims.searches += 1;
        let open: Vec<_> = self.not_stopped(self.stoppable(|_| true)).collect();
        preemption::reclaim(self.view, tenants, &self.supply.pool, key, &shapes, &open)
    }

    pub(super) fn preempt(&mut self, rank: Rank, placement: Placement, orders: Vec<StopOrder>) {
        // What the victims free beyond the placement may fit others.
        self.widen();
        for order in &orders {
            let lease = &self.view.state.leases()[&order.lease];
            self.supply.pool.give_back(&lease.placement);
            if let Some(tenants) = &mut self.supply.tenants {
                tenants
                    .will_free(&self.view.state.stage(lease.stage).0.spec.tenant, &lease.placement);
            }
        }
        self.take(rank.key, &placement);
        for order in orders {
            let order = self.shrink(&placement, order);
            self.orders.stop(order);
        }
        self.orders.want(rank, Want::Run { placement, reasons: vec![Reason::ClaimPending] });
    }

    /// A victim that may have fewer devices goes on with what others leave of those that it frees
    /// for a `placement`, where that is worth a start.
    fn shrink(&mut self, placement: &Placement, order: StopOrder) -> StopOrder {
        let Some(preemptor) = order.cause.preemptor() else { return order };
        let lease = &self.view.state.leases()[&order.lease];
        let pause = self.view.rates.restart(self.view.state.stage(lease.stage).1);
        let passes = time_left(self.view, preemptor, placement).is_some_and(|left| left <= pause);
        let smaller = (!passes).then(|| smaller(self.view, &mut self.supply.pool, lease)).flatten();
        let Some(rest) = smaller.filter(|rest| self.may_have(lease.stage, rest)) else {
            return order;
        };
        self.take(lease.stage, &rest);
        let want = Want::Run { placement: rest, reasons: vec![Reason::ClaimPending] };
        self.orders.moves.push((lease.stage, want));
        StopOrder { cause: StopCause::Shrink { preemptor }, ..order }
    }
}
