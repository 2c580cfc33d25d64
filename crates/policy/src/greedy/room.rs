//! Room for those who do not fit: victims of preemption, borrowed quota that comes back, devices
//! that are reserved, and waiting until reserving them costs little.

use std::collections::BTreeSet;

use het_core::{DeviceId, Millis, Phase, Placement, Priority, Reason, StageKey, Time};

use super::{Next, PREEMPTION_SEARCHES_MAX, Pass};
use crate::ends::Unknown;
use crate::line::{Group, GroupId, Line};
use crate::order::Rank;
use crate::place::place_among;
use crate::pool::Accepted;
use crate::rules::{Passing, Preempts};
use crate::speed::steps_left;
use crate::{Pool, StopOrder, View, Want, preempt};

/// Gangs that may have devices reserved at a time, so that reservations cannot idle a cluster.
const RESERVATIONS_MAX: usize = 1;

/// The longest that devices idle because they are reserved, as far as that can be told. Where it
/// would take longer, others may go on using them as long as they end in time (Lifka, JSSPP 1995,
/// "The ANL/IBM SP scheduling system").
const DRAIN_MAX: Millis = Millis::seconds(600);

/// Stages that are refused one by one in a round because they would hold up another.
const DELAYS_MAX: usize = 256;

/// A stage that should be able to begin at some time, if nobody holds it up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    pub key: StageKey,
    priority: Priority,
    /// Its alternative that is waited for.
    shape: usize,
    begins: Time,
    /// When that was worked out.
    as_of: Time,
}

impl<'a> Pass<'a> {
    /// Whom to stop for a stage that is refused its tenant's own, because others borrowed it.
    pub(super) fn reclaim(
        &mut self,
        group: &Group,
        key: StageKey,
    ) -> Option<(Placement, Vec<StopOrder>)> {
        let tenants = self.tenants.as_ref()?;
        if self.rules.preempts == Preempts::Never || self.searches >= PREEMPTION_SEARCHES_MAX {
            return None;
        }
        let shapes: Vec<usize> = group.worthwhile(self.crowd.as_ref()).collect();
        self.searches += 1;
        preempt::reclaim(self.view, tenants, &self.pool, key, &shapes, &self.stopped)
    }

    pub(super) fn preempt(&mut self, rank: Rank, placement: Placement, orders: Vec<StopOrder>) {
        // What the victims free beyond the placement may fit others.
        self.unfit.clear();
        for order in &orders {
            self.stopped.insert(order.lease);
            let lease = &self.view.state.leases()[&order.lease];
            self.pool.give_back(&lease.placement);
            let nodes = lease.placement.ranks.iter().map(|rank| rank.node.index());
            let classes = nodes.flat_map(|node| &self.view.state.index().classes[node]);
            self.widened.extend(classes);
            if let Some(tenants) = &mut self.tenants {
                tenants
                    .will_free(&self.view.state.stage(lease.stage).0.spec.tenant, &lease.placement);
            }
        }
        self.take(rank.key, &placement);
        self.stops.extend(orders);
        self.want(rank, Want::Run { placement, reasons: vec![Reason::ClaimPending] });
    }

    /// Reserves the devices of running stages, without stopping anybody, for the first of a group
    /// that others have passed for too long because they need less at once.
    pub(super) fn reserve(&mut self, line: &mut Line, id: GroupId, rank: Rank) {
        let Passing::Backfill { reserve_after: Some(after) } = self.rules.passing else { return };
        let group = line.group(id);
        if self.reservations >= RESERVATIONS_MAX || !group.can_be_passed {
            return;
        }
        let key = rank.key;
        if self.view.now < rank.since + after {
            self.wake_by(rank.since + after);
            return;
        }
        if self.claims_later(group, key) {
            return;
        }
        let mut drained = self.drained();
        let spec = group.spec();
        let fits = |index| place_among(&mut drained, spec, index, &group.accepted[index]).ok();
        let found = group.worthwhile(self.crowd.as_ref()).find_map(fits);
        if let Some(placement) = found.filter(|placement| self.may_have(key, placement)) {
            self.reservations += 1;
            self.take(key, &placement);
            self.want(rank, Want::Run { placement, reasons: vec![Reason::ClaimPending] });
            line.untold.insert(key);
        }
    }

    /// Whether it is too early to reserve: it would take long until a stage can begin. From now on
    /// nobody who could hold it up begins.
    fn claims_later(&mut self, group: &Group, key: StageKey) -> bool {
        let now = self.view.now;
        let known = self.awaited.filter(|known| known.key == key);
        let Some(awaited) = known.or_else(|| self.await_stage(group, key)) else { return false };
        self.awaited.get_or_insert(awaited);
        let later = awaited.begins > now + DRAIN_MAX;
        if later {
            self.wake_by(Time(awaited.begins.0 - DRAIN_MAX.0));
        }
        later
    }

    /// The same stage as in the round before, if it still waits and nothing is reserved for it.
    pub(super) fn awaits(&mut self, line: &mut Line, known: Awaited) -> Option<Awaited> {
        let (state, key) = (self.view.state, known.key);
        if !state.is_waiting(key) || state.claims().contains_key(&key) {
            return None;
        }
        if self.is_fresh(&known) {
            return Some(known);
        }
        let (_, id) = line.place_of(key)?;
        self.await_stage(line.group(id), key)
    }

    /// Whether what is known of when a stage can begin need not be worked out again yet.
    fn is_fresh(&self, known: &Awaited) -> bool {
        self.view.now < known.begins.min(known.as_of + DRAIN_MAX)
    }

    /// Until as much is free as a stage of a group needs, if that can be told.
    fn await_stage(&mut self, group: &Group, key: StageKey) -> Option<Awaited> {
        let shape = group.worthwhile(self.crowd.as_ref()).next()?;
        let alternative = &group.spec().alternatives[shape];
        let free = self.pool.units(&group.accepted[shape]);
        // Where enough is free, but in the wrong places, nobody can tell.
        let missing = alternative.count.checked_sub(free).filter(|missing| *missing > 0)?;
        let wait = self.ends().until_free(alternative, missing, Unknown::Never)?;
        let (priority, as_of) = (group.priority(), self.view.now);
        Some(Awaited { key, priority, shape, begins: as_of + wait, as_of })
    }

    /// Lets one wait that would hold up another; those behind it may be shorter.
    pub(super) fn refuse(&mut self, group: &mut Group, blocker: StageKey) -> Next {
        self.passed = true;
        self.delays += 1;
        group.news = Some(vec![Reason::WouldDelay { blocker }]);
        if self.delays < DELAYS_MAX { Next::OfGroup } else { Next::Nobody }
    }

    /// Whom a stage would hold up however it ran: all that it accepts is wanted by the awaited one,
    /// and even its fastest shape would end too late.
    pub(super) fn delays_anyhow(&self, group: &Group, key: StageKey) -> Option<StageKey> {
        let awaited = self.awaited?;
        let everywhere = || {
            let mut sorts = group.accepted.iter().flat_map(Accepted::sorts);
            sorts.all(|sort| self.is_wanted(&awaited, self.view.state.index().sorts[sort].exemplar))
        };
        if self.ends_in_time(&awaited, group, key, group.ranked[0]) || !everywhere() {
            return None;
        }
        Some(awaited.key)
    }

    /// Whom a stage would hold up on a placement.
    pub(super) fn delays(
        &self,
        group: &Group,
        key: StageKey,
        placement: &Placement,
    ) -> Option<StageKey> {
        let awaited = self.awaited?;
        let wanted = || placement.devices().any(|grant| self.is_wanted(&awaited, grant.device));
        if self.ends_in_time(&awaited, group, key, placement.alternative) || !wanted() {
            return None;
        }
        Some(awaited.key)
    }

    fn ends_in_time(&self, awaited: &Awaited, group: &Group, key: StageKey, index: usize) -> bool {
        if awaited.key == key || group.priority() > awaited.priority {
            return true;
        }
        let (_, spec, stage) = self.view.state.stage(key);
        let span = steps_left(spec, stage).and_then(|left| group.span(index, left));
        let pause = self.view.rates.restart(&spec.profile);
        span.is_some_and(|span| self.view.now + span + pause <= awaited.begins)
    }

    fn is_wanted(&self, awaited: &Awaited, device: DeviceId) -> bool {
        let (_, spec, _) = self.view.state.stage(awaited.key);
        spec.alternatives[awaited.shape].selector.accepts(self.view.state.topology(), device)
    }

    /// The pool as it will be when everything that runs has ended.
    fn drained(&self) -> Pool<'a> {
        let mut drained = self.pool.clone();
        let leases = self.view.state.leases().iter();
        for (_, lease) in leases.filter(|(id, _)| !self.stopped.contains(id)) {
            drained.give_back(&lease.placement);
        }
        drained
    }
}

/// Reservations that stand: claims that no stop is making room for.
pub(super) fn reserved(view: &View<'_>) -> usize {
    let leases = view.state.leases();
    let beneficiaries: BTreeSet<StageKey> = leases
        .values()
        .filter_map(|lease| match lease.phase {
            Phase::Stopping { cause } => cause.beneficiary(),
            Phase::Starting | Phase::Running { .. } => None,
        })
        .collect();
    view.state.claims().keys().filter(|key| !beneficiaries.contains(key)).count()
}
