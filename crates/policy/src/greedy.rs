//! One pass over the waiting line, best first: the shared core of our policies.
//!
//! - A stage whose claim became free starts on it.
//! - Every other stage, in order, starts where it fits.
//! - One that does not fit may preempt, or have devices reserved, or waits with its reasons; then
//!   so do all who ask for the same.

use std::collections::BTreeSet;

use het_core::{
    DeviceId, Grant, LeaseId, Millis, Phase, Placement, Priority, Reason, StageKey, StopCause, Time,
};
use het_perf::stop_cost;

use crate::line::{Group, GroupId, Line, rate, steps_left};
use crate::order::{AGEING_STEP, Rank};
use crate::place::place_among;
use crate::rules::{Choice, Passing, Preempts};
use crate::{Decision, Memory, Pool, Rules, StopOrder, View, Want, place, preempt};

/// Searches for victims in one round: a round stays short however long the queue is, and the next
/// round goes on.
const PREEMPTION_SEARCHES_MAX: usize = 16;

/// Gangs that may have devices reserved at a time, so that reservations cannot idle a cluster.
const RESERVATIONS_MAX: usize = 1;

pub(crate) fn decide(rules: &Rules, view: &View<'_>, memory: &mut Memory) -> Decision {
    if view.state.waiting().next().is_none() && !view.state.suspects_any() {
        return Decision::default();
    }
    let line = memory.of::<Line>();
    line.update(rules, view);
    let mut pass = Pass::new(rules, view, line.accelerators_wanted());
    pass.claims(line);
    let mut heads = line.heads(view);
    while let Some((rank, id)) = heads.pop_first() {
        if pass.look(line, id, rank) == Next::OfGroup {
            heads.extend(line.next(view, id, Some(rank)).map(|next| (next, id)));
        }
        if pass.head.is_some() {
            break;
        }
    }
    pass.evacuate();
    pass.finish(line)
}

/// Whether the rest of a group has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    OfGroup,
    Nobody,
}

struct Pass<'a> {
    rules: &'a Rules,
    view: &'a View<'a>,
    pool: Pool<'a>,
    wants: Vec<(Rank, Want)>,
    decided: BTreeSet<StageKey>,
    stops: Vec<StopOrder>,
    wake_at: Option<Time>,
    /// The first stage that did not fit, where nobody may pass it.
    head: Option<StageKey>,
    /// Somebody better placed in the order waits on.
    passed: bool,
    /// Units that stages wait for although others are free to them.
    ahead: u32,
    /// More accelerators are wanted than are free: what a stage makes of its devices counts then.
    pressed: bool,
    /// The lowest priority that runs: only higher ones need to look for victims.
    lowest_running: Option<Priority>,
    /// The pool is larger than the state says: it has what victims will leave.
    widened: bool,
    stopped: BTreeSet<LeaseId>,
    searches: usize,
    reservations: usize,
}

impl<'a> Pass<'a> {
    fn new(rules: &'a Rules, view: &'a View<'a>, wanted: Option<u64>) -> Self {
        let preempts = rules.preempts == Preempts::ForHigherPriority;
        Self {
            rules,
            view,
            pool: Pool::of(view.state),
            wants: Vec::new(),
            decided: BTreeSet::new(),
            stops: Vec::new(),
            wake_at: None,
            head: None,
            passed: false,
            ahead: 0,
            pressed: rules.choice == Choice::EarliestFinish
                && wanted.is_some_and(|wanted| wanted > free_accelerators(view)),
            lowest_running: preempts.then(|| view.state.lowest_running()).flatten(),
            widened: false,
            stopped: BTreeSet::new(),
            searches: 0,
            reservations: reserved(view),
        }
    }

    /// A claim that is free now becomes a start; one on a device that went down is given up; any
    /// other is waited for, unless the stage fits elsewhere already.
    fn claims(&mut self, line: &mut Line) {
        let state = self.view.state;
        for (&key, claim) in state.claims() {
            let Some((rank, id)) = line.place_of(key) else { continue };
            let group = line.group(id);
            let placement = &claim.placement;
            if Pool::for_stage(state, key).covers(placement) {
                let reasons = self.start_reasons(key, Reason::ClaimReady);
                self.want(rank, Want::Run { placement: (**placement).clone(), reasons });
            } else if let Ok((elsewhere, reason)) = self.fitting(group, key) {
                self.start(rank, elsewhere, reason);
            } else if placement.devices().all(|grant| state.is_up(grant.device)) {
                let reasons = vec![Reason::ClaimPending];
                self.want(rank, Want::Run { placement: (**placement).clone(), reasons });
            }
            line.untold.insert(key);
        }
    }

    /// Moves off nodes that are going to fail what can save itself and has room elsewhere, after
    /// everybody who waits had a look at that room.
    fn evacuate(&mut self) {
        let state = self.view.state;
        if self.rules.choice == Choice::Fixed || !state.suspects_any() {
            return;
        }
        for (&id, lease) in state.leases() {
            let (_, spec, stage) = state.stage(lease.stage);
            let index = lease.placement.alternative;
            let movable = spec.saves(index) && matches!(lease.phase, Phase::Running { .. });
            if !movable || !state.is_endangered(lease) {
                continue;
            }
            self.pool.give_back(&lease.placement);
            match place(&mut self.pool, spec, index) {
                Ok(elsewhere) => {
                    self.pool.take(&elsewhere);
                    let cost = stop_cost(spec, stage, lease, self.view.now);
                    self.stopped.insert(id);
                    self.stops.push(StopOrder { lease: id, cause: StopCause::Drain, cost });
                }
                Err(_) => self.pool.take(&lease.placement),
            }
        }
    }

    /// What becomes of one stage, the first of its group that was not looked at.
    fn look(&mut self, line: &mut Line, id: GroupId, rank: Rank) -> Next {
        let key = rank.key;
        if self.decided.contains(&key) {
            return Next::OfGroup;
        }
        let group = line.group(id);
        self.wake_when_freed(group, key);
        let reasons = match self.known_misfit(group) {
            Some(reasons) => reasons,
            None => match self.fitting(group, key) {
                Ok((placement, reason)) => {
                    self.start(rank, placement, reason);
                    return Next::OfGroup;
                }
                // One that waits for something better says nothing about the others.
                Err(reasons) if matches!(*reasons, [Reason::BetterToWait { .. }]) => {
                    self.passed = true;
                    self.ahead += group.spec().alternatives[group.thrifty[0]].count;
                    self.want(rank, Want::Wait { reasons });
                    line.untold.insert(key);
                    return Next::OfGroup;
                }
                Err(reasons) => {
                    if !self.widened {
                        group.misfit = Some((self.view.state.releases(), reasons.clone()));
                    }
                    reasons
                }
            },
        };
        self.passed = true;
        self.misfit(line, id, rank, reasons)
    }

    /// What is known about a group since nothing has become free.
    fn known_misfit(&self, group: &Group) -> Option<Vec<Reason>> {
        let (at, reasons) = group.misfit.as_ref()?;
        (*at == self.view.state.releases() && !self.widened).then(|| reasons.clone())
    }

    /// A group that fits nowhere: preempt for its first, reserve for its oldest, or let all wait.
    fn misfit(&mut self, line: &mut Line, id: GroupId, rank: Rank, reasons: Vec<Reason>) -> Next {
        let key = rank.key;
        let group = line.group(id);
        let mut reasons = reasons;
        if self.rules.passing == Passing::Never {
            self.head = Some(key);
            self.want(rank, Want::Wait { reasons });
            line.untold.insert(key);
            return Next::Nobody;
        }
        if self.lowest_running.is_some_and(|lowest| lowest < group.priority())
            && self.searches < PREEMPTION_SEARCHES_MAX
        {
            self.searches += 1;
            let shapes: Vec<usize> = group.worthwhile().collect();
            match preempt::find(self.view, &self.pool, key, &shapes, &self.stopped) {
                Ok((placement, orders)) => {
                    self.preempt(rank, placement, orders);
                    line.untold.insert(key);
                    return Next::OfGroup;
                }
                Err(reason) => reasons.extend(reason),
            }
        }
        group.news = Some(reasons);
        self.reserve(line, id);
        Next::Nobody
    }

    fn preempt(&mut self, rank: Rank, placement: Placement, orders: Vec<StopOrder>) {
        // What the victims free beyond the placement may fit others.
        self.widened = true;
        for order in &orders {
            self.stopped.insert(order.lease);
            self.pool.give_back(&self.view.state.leases()[&order.lease].placement);
        }
        self.pool.take(&placement);
        self.stops.extend(orders);
        self.want(rank, Want::Run { placement, reasons: vec![Reason::ClaimPending] });
    }

    /// Reserves the devices of running stages, without stopping anybody, for the oldest of a group
    /// that others have passed for too long.
    fn reserve(&mut self, line: &mut Line, id: GroupId) {
        let Passing::Backfill { reserve_after: Some(after) } = self.rules.passing else { return };
        if self.reservations >= RESERVATIONS_MAX {
            return;
        }
        let Some((since, key)) = line.oldest(self.view, id) else { return };
        if self.view.now < since + after {
            self.wake_by(since + after);
            return;
        }
        let Some((rank, _)) = line.place_of(key) else { return };
        if self.decided.contains(&key) {
            return;
        }
        let group = line.group(id);
        let mut drained = self.drained();
        let spec = group.spec();
        let fits = |index| place_among(&mut drained, spec, index, &group.accepted[index]).ok();
        let found = group.worthwhile().find_map(fits);
        if let Some(placement) = found {
            self.reservations += 1;
            self.pool.take(&placement);
            self.want(rank, Want::Run { placement, reasons: vec![Reason::ClaimPending] });
            line.untold.insert(key);
        }
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

    fn start(&mut self, rank: Rank, placement: Placement, reason: Reason) {
        self.pool.take(&placement);
        let reasons = self.start_reasons(rank.key, reason);
        self.want(rank, Want::Run { placement, reasons });
    }

    fn want(&mut self, rank: Rank, want: Want) {
        self.decided.insert(rank.key);
        self.wants.push((rank, want));
    }

    fn start_reasons(&self, key: StageKey, first: Reason) -> Vec<Reason> {
        let (job, _, stage) = self.view.state.stage(key);
        let waited = self.view.now.since(job.waiting_since(key.stage));
        let mut reasons = vec![first];
        reasons.extend(self.passed.then_some(Reason::Backfilled));
        reasons.extend(stage.checkpoint.as_ref().map(|c| Reason::Resumed { step: c.step }));
        reasons
            .extend((waited >= AGEING_STEP).then_some(Reason::Aged { seconds: waited.0 / 1_000 }));
        reasons
    }

    fn wake_by(&mut self, at: Time) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// A stage that is bound for a while is looked at again once it is not.
    fn wake_when_freed(&mut self, group: &Group, key: StageKey) {
        if let (Choice::FixedUntil(patience), Some(_)) = (self.rules.choice, group.bound()) {
            self.wake_by(self.view.state.stage(key).0.waiting_since(key.stage) + patience);
        }
    }

    /// Where a stage of the group fits now, and why there; or why it fits nowhere.
    fn fitting(
        &mut self,
        group: &mut Group,
        key: StageKey,
    ) -> Result<(Placement, Reason), Vec<Reason>> {
        if let Some(index) = group.bound() {
            let word = group.spec().alternatives[index].selector.word.clone();
            let bound = Reason::FixedAtSubmission { word };
            let fit = place_among(&mut self.pool, group.spec(), index, &group.accepted[index]);
            return fit.map(|placement| (placement, bound.clone())).map_err(|_| {
                let mut reasons = self.reasons_why_not(group);
                reasons.push(bound);
                reasons
            });
        }
        let ranked = if self.pressed { &group.thrifty } else { &group.ranked };
        let best = ranked[0];
        let fits = |&index: &usize| {
            let enough =
                self.pool.units(&group.accepted[index]) >= group.spec().alternatives[index].count;
            let try_out =
                || place_among(&mut self.pool, group.spec(), index, &group.accepted[index]).ok();
            enough.then(try_out).flatten()
        };
        let Some(placement) = ranked.iter().find_map(fits) else {
            return Err(self.reasons_why_not(group));
        };
        let index = placement.alternative;
        let spec = group.spec();
        if index != best && self.waiting_pays(group, key, best, index) {
            let word = spec.alternatives[best].selector.word.clone();
            return Err(vec![Reason::BetterToWait { word }]);
        }
        let word = spec.alternatives[index].selector.word.clone();
        let reason = match (spec.alternatives.len(), index == best) {
            (1, _) => Reason::OnlyAlternative { word },
            (_, true) if best == group.ranked[0] => Reason::FastestFinish { word },
            (_, true) => Reason::BestUse { word },
            _ if index == group.preferred => Reason::FirstPossible { word },
            (_, false) => Reason::FreeNow { word },
        };
        Ok((placement, reason))
    }

    /// One reason an alternative, telling *never* from *not now*.
    fn reasons_why_not(&mut self, group: &mut Group) -> Vec<Reason> {
        let pool = &mut self.pool;
        let group = group.with_nevers(self.view);
        let why = |index: usize| match &group.nevers[index] {
            Some(never) => Some(never.clone()),
            None => place_among(pool, group.spec(), index, &group.accepted[index]).err(),
        };
        (0..group.accepted.len()).filter_map(why).collect()
    }

    /// Whether the better shape, once its present users end, still finishes before the free one.
    fn waiting_pays(&self, group: &Group, key: StageKey, best: usize, free: usize) -> bool {
        if self.rules.choice != Choice::EarliestFinish {
            return false;
        }
        let Some(left) = steps_left(self.view, key) else { return false };
        let (Some(fast), Some(slow)) = (group.span(best, left), group.span(free, left)) else {
            return false;
        };
        let alternative = &group.spec().alternatives[best];
        let topology = self.view.state.topology();
        let mut ends: Vec<(Millis, u32)> = Vec::new();
        let mut all_known = true;
        for lease in self.view.state.leases().values() {
            let ours = |grant: &Grant| alternative.selector.accepts(topology, grant.device);
            let units = lease.placement.devices().filter(ours).map(|g| g.share.whole_units()).sum();
            if units > 0 {
                let end = expected_span(self.view, lease.stage, lease.placement.alternative);
                all_known &= end.is_some();
                ends.extend(end.map(|end| (end, units)));
            }
        }
        ends.sort_unstable();
        // The wait lasts until enough are free, for those who wait for the same before it too.
        let mut wanted = alternative.count + self.ahead;
        let enough = ends.iter().find_map(|(end, units)| {
            wanted = wanted.saturating_sub(*units);
            (wanted == 0).then_some(*end)
        });
        // An unknown end is never waited for.
        let last = ends.last().filter(|_| all_known).map(|(end, _)| *end);
        let wait = enough.or(last);
        wait.is_some_and(|wait| wait + fast < slow)
    }

    /// Tells those who wait what is new to them, and puts everything in order.
    fn finish(mut self, line: &mut Line) -> Decision {
        if let Some(blocker) = self.head {
            let behind = vec![Reason::HeadOfLine { blocker }];
            line.groups().for_each(|group| group.news = Some(behind.clone()));
        }
        let mut waits: Vec<(Rank, Vec<Reason>)> = Vec::new();
        for group in line.groups() {
            if let Some(news) = group.news.take().filter(|news| *news != group.told) {
                waits.extend(group.members().map(|rank| (rank, news.clone())));
                group.told = news;
            }
        }
        // Whoever has reasons of its own now has to hear those of its group later.
        for key in std::mem::take(&mut line.untold) {
            match line.place_of(key) {
                Some(_) if self.decided.contains(&key) => {
                    line.untold.insert(key);
                }
                Some((rank, id)) => waits.push((rank, line.group(id).told.clone())),
                None => {}
            }
        }
        let state = self.view.state;
        for (rank, reasons) in waits {
            if state.is_waiting(rank.key) && self.decided.insert(rank.key) {
                self.wants.push((rank, Want::Wait { reasons }));
            }
        }
        self.wants.sort_unstable_by_key(|(rank, _)| *rank);
        Decision {
            wants: self.wants.into_iter().map(|(rank, want)| (rank.key, want)).collect(),
            stops: self.stops,
            wake_at: self.wake_at,
        }
    }
}

/// Reservations that stand: claims that no stop is making room for.
fn reserved(view: &View<'_>) -> usize {
    let leases = view.state.leases();
    let beneficiaries: BTreeSet<StageKey> = leases
        .values()
        .filter_map(|lease| match lease.phase {
            Phase::Stopping { cause: StopCause::Priority { beneficiary } } => Some(beneficiary),
            _ => None,
        })
        .collect();
    view.state.claims().keys().filter(|key| !beneficiaries.contains(key)).count()
}

fn free_accelerators(view: &View<'_>) -> u64 {
    let topology = view.state.topology();
    let (service, held) = (view.state.service(), view.state.held_shares());
    let free = |id: DeviceId| service[id.index()].saturating_sub(held[id.index()]).whole_units();
    topology.accelerators().map(|id| u64::from(free(id))).sum()
}

/// How long the rest of a stage should take on an alternative; `None` if its steps or rate are
/// unknown.
pub(crate) fn expected_span(view: &View<'_>, key: StageKey, index: usize) -> Option<Millis> {
    let (_, spec, _) = view.state.stage(key);
    let left = steps_left(view, key)?;
    rate(view, spec, index).map(|rate| Millis((left as f64 / rate * 1_000.0) as u64))
}
