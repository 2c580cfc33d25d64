//! Room for those who do not fit without stopping anybody: devices that are reserved, and waiting
//! until reserving them costs little.

use std::collections::BTreeSet;

use het_core::{DeviceId, Millis, Phase, Placement, Priority, Reason, StageKey, Time};
use serde::{Deserialize, Serialize};

use super::{Next, Pass};
use crate::placement::{Unknown, place_among};
use crate::queue::{AGEING_STEP, Group, GroupId, PendingQueue, Rank};
use crate::rules::Passing;
use crate::speed::steps_left;
use crate::{Pool, View, Want, memory};

/// Gangs that may have devices reserved at a time, so that reservations cannot idle a cluster.
const RESERVATIONS_MAX: usize = 1;

/// The longest that devices idle because they are reserved, as far as that can be told. Where it
/// would take longer, others may go on using them as long as they end in time (Lifka, JSSPP 1995,
/// "The ANL/IBM SP scheduling system").
const DRAIN_MAX: Millis = Millis::seconds(600);

/// How long what was worked out about a stage that should be able to begin holds at least.
const FRESH_MIN: Millis = Millis::seconds(10);

/// Stages that are refused one by one in a round because they would hold up another.
const DELAYS_MAX: usize = 256;

/// A stage that should be able to begin at some time, if nobody holds it up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Awaited {
    #[serde(with = "memory::stage")]
    pub key: StageKey,
    /// Its priority, raised by one for every [`AGEING_STEP`] that it has waited.
    level: u64,
    /// Its alternative that is waited for.
    shape: usize,
    #[serde(with = "memory::millis")]
    begins: Time,
    /// When that was worked out.
    #[serde(with = "memory::millis")]
    as_of: Time,
}

impl Awaited {
    /// Until when that need not be worked out again.
    fn fresh_until(&self) -> Time {
        // What is overdue may end any moment: asking all the time brings nothing.
        self.begins.min(self.as_of + DRAIN_MAX).max(self.as_of + FRESH_MIN)
    }
}

/// Devices that are kept for somebody who waits.
pub(super) struct Reserved {
    pub count: usize,
    /// Whom nobody may hold up.
    pub awaited: Option<Awaited>,
    /// Stages that were refused because they would hold it up.
    pub delays: usize,
}

impl Reserved {
    pub fn of(view: &View<'_>) -> Self {
        Self { count: reserved(view), awaited: None, delays: 0 }
    }
}

impl<'a> Pass<'a> {
    /// Whether one more may have devices reserved.
    pub(super) fn may_reserve(&self) -> bool {
        let reserves = matches!(self.rules.passing, Passing::Backfill { reserve_after: Some(_) });
        reserves && self.reserved.count < RESERVATIONS_MAX
    }

    /// Reserves the devices of running stages, without stopping anybody, for the first of a group
    /// that others have passed for too long because they need less at once.
    pub(super) fn reserve(&mut self, queue: &mut PendingQueue, id: GroupId, rank: Rank) {
        let Passing::Backfill { reserve_after: Some(after) } = self.rules.passing else { return };
        let group = queue.group(id);
        if !group.can_be_passed || !self.may_reserve() {
            return;
        }
        let key = rank.key;
        if self.bidding.is_some() && self.is_among_equals(group, &rank) {
            return;
        }
        if self.view.now < rank.since + after {
            self.orders.wake_by(rank.since + after);
            return;
        }
        let known = self.reserved.awaited.filter(|known| known.key == key);
        if known.is_some_and(|known| self.is_far(&known)) {
            return;
        }
        let Some(placement) = self.once_drained(group, key) else {
            self.reserved.awaited = self.reserved.awaited.filter(|awaited| awaited.key != key);
            return;
        };
        if known.is_none()
            && let Some(awaited) = self.await_stage(group, &rank, placement.alternative)
        {
            self.reserved.awaited.get_or_insert(awaited);
            if self.is_far(&awaited) {
                return;
            }
        }
        self.reserved.count += 1;
        self.take(key, &placement);
        self.orders.want(rank, Want::Run { placement, reasons: vec![Reason::ClaimPending] });
        queue.untold.insert(key);
    }

    /// Whether everybody who runs could be suspended for the stage by its bid alone.
    fn is_among_equals(&self, group: &Group, rank: &Rank) -> bool {
        let (state, own) = (self.view.state, group.priority());
        let of_own = |other: Option<Priority>| other.is_none_or(|other| other == own);
        rank.level() == own as u64
            && of_own(state.lowest_running())
            && of_own(state.highest_running())
            && !self.running.any_lasting()
    }

    /// Where a stage will fit when everything that runs has ended, and may run.
    fn once_drained(&self, group: &Group, key: StageKey) -> Option<Placement> {
        let drained = self.drained();
        let spec = group.spec();
        let fits =
            |index: usize| place_among(&drained, spec, index, &group.asks[index].accepted).ok();
        let found = group.worthwhile(self.opportunity_cost.as_ref()).find_map(fits);
        found.filter(|placement| self.may_have(key, placement))
    }

    /// Whether it is too early to reserve: it would take long until the stage can begin.
    fn is_far(&self, awaited: &Awaited) -> bool {
        awaited.begins > self.view.now + DRAIN_MAX
    }

    /// The same stage as in the round before, if it still waits and nothing is reserved for it.
    pub(super) fn awaits(&mut self, queue: &mut PendingQueue, known: Awaited) -> Option<Awaited> {
        let (state, key) = (self.view.state, known.key);
        if !state.is_waiting(key) || state.claims().contains_key(&key) {
            return None;
        }
        if self.view.now < known.fresh_until() {
            self.orders.wake_by(known.fresh_until());
            return Some(known);
        }
        let (rank, id) = queue.place_of(key)?;
        let group = queue.group(id);
        let shape = self.once_drained(group, key)?.alternative;
        self.await_stage(group, &rank, shape)
    }

    /// When a stage should be able to begin on a shape, if that can be told.
    fn await_stage(&mut self, group: &Group, rank: &Rank, shape: usize) -> Option<Awaited> {
        let alternative = &group.spec().alternatives[shape];
        let free = self.supply.pool.units(&group.asks[shape].accepted);
        // Where enough is free, but in the wrong places, nobody can tell.
        let missing = alternative.count.checked_sub(free).filter(|missing| *missing > 0)?;
        let wait = self.ends().until_free(alternative, missing, Unknown::Never)?;
        let as_of = self.view.now;
        let level = group.priority() as u64 + as_of.since(rank.since).0 / AGEING_STEP.0;
        let awaited = Awaited { key: rank.key, level, shape, begins: as_of + wait, as_of };
        self.orders.wake_by(awaited.fresh_until());
        Some(awaited)
    }

    /// Lets one wait that would hold up another; those behind it may be shorter.
    pub(super) fn refuse(&mut self, id: GroupId, blocker: StageKey) -> Next {
        self.told.passed = true;
        self.reserved.delays += 1;
        self.told.news.insert(id, vec![Reason::WouldDelay { blocker }]);
        if self.reserved.delays < DELAYS_MAX { Next::OfGroup } else { Next::Nobody }
    }

    /// Whom a stage would hold up however it ran: all that it accepts is wanted by the awaited one,
    /// and even its fastest shape would end too late.
    pub(super) fn delays_anyhow(&self, group: &Group, rank: &Rank) -> Option<StageKey> {
        let awaited = self.reserved.awaited?;
        let everywhere = || {
            let mut device_groups = group.asks.iter().flat_map(|ask| ask.accepted.sorts());
            device_groups.all(|sort| {
                self.is_wanted(&awaited, self.view.state.index().device_groups[sort].representative)
            })
        };
        let fastest = |left| group.span(group.ranked[0], left);
        if self.ends_in_time(&awaited, rank, fastest) || !everywhere() {
            return None;
        }
        Some(awaited.key)
    }

    /// Whom a stage would hold up on a placement.
    pub(super) fn delays(
        &self,
        group: &Group,
        rank: &Rank,
        placement: &Placement,
    ) -> Option<StageKey> {
        let awaited = self.reserved.awaited?;
        let wanted = || placement.devices().any(|grant| self.is_wanted(&awaited, grant.device));
        let there = |left| self.span_on(group, placement, left);
        if self.ends_in_time(&awaited, rank, there) || !wanted() {
            return None;
        }
        Some(awaited.key)
    }

    /// Whether a stage would have ended when the awaited one can begin, or stands above it, both as
    /// they have aged.
    fn ends_in_time(
        &self,
        awaited: &Awaited,
        rank: &Rank,
        span: impl FnOnce(u64) -> Option<Millis>,
    ) -> bool {
        if awaited.key == rank.key || rank.level() > awaited.level {
            return true;
        }
        let (_, spec, stage) = self.view.state.stage(rank.key);
        let span = steps_left(spec, stage).and_then(span);
        let pause = self.view.rates.restart(spec);
        span.is_some_and(|span| self.view.now + span + pause <= awaited.begins)
    }

    pub(super) fn is_wanted(&self, awaited: &Awaited, device: DeviceId) -> bool {
        let (_, spec, _) = self.view.state.stage(awaited.key);
        spec.alternatives[awaited.shape].selector.accepts(self.view.state.topology(), device)
    }

    /// The pool as it will be when everything that runs has ended.
    fn drained(&self) -> Pool<'a> {
        let mut drained = self.supply.pool.clone();
        let leases = self.view.state.leases().iter();
        for (_, lease) in leases.filter(|(id, _)| !self.orders.stopped.contains(id)) {
            drained.give_back(&lease.placement);
        }
        drained
    }
}

/// Reservations that stand: claims that no stop is making room for.
fn reserved(view: &View<'_>) -> usize {
    if view.state.claims().is_empty() {
        return 0;
    }
    let leases = view.state.leases();
    let preemptors: BTreeSet<StageKey> = leases
        .values()
        .filter_map(|lease| match lease.phase {
            Phase::Stopping { cause } => cause.preemptor(),
            Phase::Starting | Phase::Running { .. } => None,
        })
        .collect();
    view.state.claims().keys().filter(|key| !preemptors.contains(key)).count()
}
