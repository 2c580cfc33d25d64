//! One pass over the waiting line, best first: the shared core of our policies.
//!
//! - A stage whose claim became free starts on it.
//! - Every other stage, in order, starts where it fits.
//! - One that does not fit may preempt, or have devices reserved, or waits with its reasons; then
//!   so do all who ask for the same.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use het_core::{
    DeviceId, Lease, LeaseId, Millis, Name, Phase, Placement, Priority, Reason, Share, StageKey,
    StopCause, StopCost, Time,
};

use crate::ends::{Ends, Unknown};
use crate::line::{Ask, Group, GroupId, Line};
use crate::moves::{self, Choosers, Improvement};
use crate::order::{AGEING_STEP, Order, Precedence, Quota, Rank};
use crate::place::{on_class, place_among};
use crate::pool::Accepted;
use crate::rules::{Balancing, Choice, Passing, Preempts};
use crate::speed::steps_left;
use crate::tenants::Tenants;
use crate::worth::Crowd;
use crate::{Decision, Memory, Pool, Rules, StopOrder, View, Want, preempt};

/// Searches for victims in one round: a round stays short however long the queue is, and the next
/// round goes on.
const PREEMPTION_SEARCHES_MAX: usize = 16;

/// Gangs that may have devices reserved at a time, so that reservations cannot idle a cluster.
const RESERVATIONS_MAX: usize = 1;

/// The longest that devices idle because they are reserved, as far as that can be told. Where it
/// would take longer, others may go on using them as long as they end in time (Lifka, JSSPP 1995,
/// "The ANL/IBM SP scheduling system").
const DRAIN_MAX: Millis = Millis::seconds(600);

/// Stages that are refused one by one in a round because they would hold up another.
const DELAYS_MAX: usize = 256;

/// Stages that are sent elsewhere in one round.
const MOVES_MAX: usize = 16;

/// What is kept between rounds.
#[derive(Debug, Default)]
struct Kept {
    line: Line,
    choosers: Choosers,
    /// Who others may not hold up any more, although nothing is reserved for it yet.
    awaited: Option<Awaited>,
}

pub(crate) fn decide(rules: &Rules, view: &View<'_>, memory: &mut Memory) -> Decision {
    let state = view.state;
    let Kept { line, choosers, awaited } = memory.of::<Kept>();
    let choosers: Vec<LeaseId> = match rules.balancing {
        Balancing::Throughout => choosers.update(state).collect(),
        Balancing::Never => Vec::new(),
    };
    let idle = state.waiting().next().is_none() && state.claims().is_empty();
    if idle && !state.suspects_any() && choosers.is_empty() {
        return Decision::default();
    }
    line.update(rules, view);
    let crowd = rules.balancing != Balancing::Never;
    let crowd = crowd.then(|| Crowd::of(state));
    let mut pass = Pass::new(rules, view, crowd);
    pass.awaited = awaited.take().and_then(|known| pass.awaits(line, known));
    pass.claims(line);
    let mut heads = Heads::of(&pass, line);
    while let Some((precedence, rank, id)) = heads.pop() {
        // Others of its tenant may have got something since.
        let now = pass.precedence(line.look_up(id), &rank);
        if now > precedence {
            heads.later.insert((now, rank, id));
            continue;
        }
        if pass.look(line, id, rank) == Next::OfGroup
            && let Some(next) = line.next(id, rank)
        {
            heads.later.insert((pass.precedence(line.look_up(id), &next), next, id));
        }
        if pass.head.is_some() {
            break;
        }
    }
    pass.moves(&choosers);
    *awaited = pass.awaited;
    pass.finish(line)
}

/// The first of every group.
struct Heads {
    /// Whoever is looked at first is last.
    sorted: Vec<(Precedence, Rank, GroupId)>,
    /// Those who came to stand at the head of their group meanwhile.
    later: BTreeSet<(Precedence, Rank, GroupId)>,
}

impl Heads {
    fn of(pass: &Pass<'_>, line: &Line) -> Self {
        let row =
            |(rank, id): (Rank, GroupId)| (pass.precedence(line.look_up(id), &rank), rank, id);
        let mut sorted: Vec<_> = line.heads().map(row).collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        Self { sorted, later: BTreeSet::new() }
    }

    fn pop(&mut self) -> Option<(Precedence, Rank, GroupId)> {
        match (self.sorted.last(), self.later.first()) {
            (Some(row), Some(other)) if other < row => self.later.pop_first(),
            (None, _) => self.later.pop_first(),
            _ => self.sorted.pop(),
        }
    }
}

/// Whether there is anything new to say to those who fit nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    None,
    Misfit,
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
    /// Where they have quotas.
    tenants: Option<Tenants<'a>>,
    wants: Vec<(Rank, Want)>,
    decided: BTreeSet<StageKey>,
    /// Who stops to go on elsewhere.
    moves: Vec<(StageKey, Want)>,
    stops: Vec<StopOrder>,
    wake_at: Option<Time>,
    /// The first stage that did not fit, where nobody may pass it.
    head: Option<StageKey>,
    /// Somebody better placed in the order waits on.
    passed: bool,
    /// Units that stages wait for although others are free to them.
    ahead: u32,
    /// Whom stages have to consider that choose their devices.
    crowd: Option<Crowd>,
    /// The lowest priority that runs: only higher ones need to look for victims.
    lowest_running: Option<Priority>,
    /// Device classes of nodes on which the pool has more than the state says: what victims will
    /// leave.
    widened: BTreeSet<usize>,
    /// What does not fit into the pool.
    unfit: BTreeMap<Ask, Reason>,
    stopped: BTreeSet<LeaseId>,
    searches: usize,
    /// When what runs should end, once somebody asked.
    ends: OnceCell<Ends<'a>>,
    /// Whom a stage of a priority may stop, by that priority, once somebody asked.
    candidates: BTreeMap<Priority, Vec<(LeaseId, StopCost)>>,
    reservations: usize,
    awaited: Option<Awaited>,
    /// Stages that were refused because they would hold it up.
    delays: usize,
}

/// A stage that should be able to begin at some time, if nobody holds it up.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    key: StageKey,
    priority: Priority,
    /// Its alternative that is waited for.
    shape: usize,
    begins: Time,
    /// When that was worked out.
    as_of: Time,
}

impl<'a> Pass<'a> {
    fn new(rules: &'a Rules, view: &'a View<'a>, crowd: Option<Crowd>) -> Self {
        let preempts = rules.preempts == Preempts::ForHigherPriority;
        Self {
            rules,
            view,
            pool: Pool::of(view.state),
            tenants: Tenants::of(view.state),
            wants: Vec::new(),
            decided: BTreeSet::new(),
            moves: Vec::new(),
            stops: Vec::new(),
            wake_at: None,
            head: None,
            passed: false,
            ahead: 0,
            crowd,
            lowest_running: preempts.then(|| view.state.lowest_running()).flatten(),
            widened: BTreeSet::new(),
            unfit: BTreeMap::new(),
            stopped: BTreeSet::new(),
            searches: 0,
            ends: OnceCell::new(),
            candidates: BTreeMap::new(),
            reservations: reserved(view),
            awaited: None,
            delays: 0,
        }
    }

    /// A claim that is free now becomes a start; one on a device that went down is given up; any
    /// other is waited for, unless the stage fits elsewhere already. Those of stages that still
    /// have to stop where they are stand.
    fn claims(&mut self, line: &mut Line) {
        let state = self.view.state;
        for (&key, claim) in state.claims() {
            let placement = &claim.placement;
            let in_service = || placement.devices().all(|grant| state.is_up(grant.device));
            if state.is_moving(key) {
                let placement = in_service().then(|| (**placement).clone());
                let reasons = vec![Reason::ClaimPending];
                self.moves.extend(placement.map(|p| (key, Want::Run { placement: p, reasons })));
                continue;
            }
            let Some((rank, id)) = line.place_of(key) else { continue };
            let group = line.group(id);
            self.give_back(key, placement);
            let is_free = self.pool.covers(placement);
            let refused = self.refusal(&state.stage(key).0.spec.tenant, placement);
            self.take(key, placement);
            if refused.is_some() {
                // Its tenant has less than when it was promised this.
            } else if is_free {
                let reasons = self.start_reasons(key, Reason::ClaimReady);
                self.want(rank, Want::Run { placement: (**placement).clone(), reasons });
            } else if let Ok((elsewhere, reason)) = self.fitting(group, key) {
                self.start(rank, elsewhere, reason);
            } else if in_service() {
                let reasons = vec![Reason::ClaimPending];
                self.want(rank, Want::Run { placement: (**placement).clone(), reasons });
            }
            line.untold.insert(key);
        }
    }

    /// Moves what would be better off elsewhere, after everybody who waits had a look at the room:
    /// off nodes that are going to fail first, then those of `choosers` that gain by it.
    fn moves(&mut self, choosers: &[LeaseId]) {
        let state = self.view.state;
        let may_move = self.rules.choice != Choice::Fixed && state.suspects_any();
        for (&id, lease) in state.leases().iter().filter(|_| may_move) {
            if !self.stopped.contains(&id)
                && let Some(placement) = moves::evacuation(self.view, &mut self.pool, lease)
                && self.may_have(lease.stage, &placement)
            {
                self.go(id, lease, placement, StopCause::Drain);
            }
        }
        let Some(crowd) = self.crowd.take() else { return };
        for &id in choosers.iter().filter(|id| !self.stopped.contains(id)).collect::<Vec<_>>() {
            if self.moves.len() >= MOVES_MAX {
                break;
            }
            let lease = &state.leases()[&id];
            match moves::improvement(self.view, &mut self.pool, &crowd, lease) {
                Improvement::To(placement) if self.may_have(lease.stage, &placement) => {
                    self.go(id, lease, placement, StopCause::Migration);
                }
                Improvement::NotBefore(at) => self.wake_by(at),
                Improvement::To(_) | Improvement::None => {}
            }
        }
    }

    /// Stops a lease and claims where it goes on.
    fn go(&mut self, id: LeaseId, lease: &Lease, placement: Placement, cause: StopCause) {
        self.take(lease.stage, &placement);
        self.stopped.insert(id);
        self.stops.push(StopOrder::of(self.view, id, lease, cause));
        let (_, spec, _) = self.view.state.stage(lease.stage);
        let word = spec.alternatives[placement.alternative].selector.word.clone();
        let reasons = vec![Reason::BestUse { word }, Reason::ClaimPending];
        self.moves.push((lease.stage, Want::Run { placement, reasons }));
    }

    /// What becomes of one stage, the first of its group that was not looked at.
    fn look(&mut self, line: &mut Line, id: GroupId, rank: Rank) -> Next {
        let key = rank.key;
        if self.decided.contains(&key) {
            return Next::OfGroup;
        }
        let group = line.group(id);
        self.wake_when_freed(group, &rank);
        if group.still_misfits(self.view.state, &self.widened) {
            self.passed = true;
            return self.misfit(line, id, rank, News::None);
        }
        if let Some(blocker) = self.delays_anyhow(group, key) {
            return self.refuse(group, blocker);
        }
        match self.fitting(group, key) {
            Ok((placement, reason)) => {
                self.start(rank, placement, reason);
                Next::OfGroup
            }
            Err(reasons) => {
                self.passed = true;
                match *reasons {
                    [Reason::WouldDelay { blocker }] => self.refuse(group, blocker),
                    // One that waits for something better says nothing about the others.
                    [Reason::BetterToWait { .. }] => {
                        let best = group.by_worth(self.crowd.as_ref())[0];
                        self.ahead += group.spec().alternatives[best].count;
                        self.want(rank, Want::Wait { reasons });
                        line.untold.insert(key);
                        Next::OfGroup
                    }
                    _ => {
                        group.misfit = Some((self.view.state.releases(), reasons));
                        self.misfit(line, id, rank, News::Misfit)
                    }
                }
            }
        }
    }

    /// Lets one wait that would hold up another; those behind it may be shorter.
    fn refuse(&mut self, group: &mut Group, blocker: StageKey) -> Next {
        self.passed = true;
        self.delays += 1;
        group.news = Some(vec![Reason::WouldDelay { blocker }]);
        if self.delays < DELAYS_MAX { Next::OfGroup } else { Next::Nobody }
    }

    /// A group that fits nowhere: preempt or reserve for its first, or let all wait.
    fn misfit(&mut self, line: &mut Line, id: GroupId, rank: Rank, news: News) -> Next {
        let key = rank.key;
        let group = line.group(id);
        let reasons = || group.misfit.iter().flat_map(|(_, reasons)| reasons);
        let refused = reasons().any(|reason| {
            matches!(reason, Reason::OverLimit { .. } | Reason::KeptForOthers { .. })
        });
        let mut told: Option<Vec<Reason>> =
            (news == News::Misfit).then(|| reasons().cloned().collect());
        if self.rules.passing == Passing::Never && !refused {
            self.head = Some(key);
            let reasons = reasons().cloned().collect();
            self.want(rank, Want::Wait { reasons });
            line.untold.insert(key);
            return Next::Nobody;
        }
        let higher = self.lowest_running.is_some_and(|lowest| lowest < group.priority());
        if higher && !refused && self.searches < PREEMPTION_SEARCHES_MAX {
            self.searches += 1;
            let shapes: Vec<usize> = group.worthwhile(self.crowd.as_ref()).collect();
            let of_priority = || preempt::lower_than(self.view, group.priority());
            let all = self.candidates.entry(group.priority()).or_insert_with(of_priority);
            let tenants = self.tenants.as_ref();
            let may_stop = |id: &LeaseId| {
                let protects = |tenants: &Tenants<'_>| {
                    preempt::is_protected(self.view, tenants, *id, group.tenant(), group.units())
                };
                !self.stopped.contains(id) && !tenants.is_some_and(protects)
            };
            let left = all.iter().copied().filter(|(id, _)| may_stop(id));
            let ends = self.ends.get_or_init(|| Ends::of(self.view));
            match preempt::find(self.view, ends, &self.pool, key, &shapes, left) {
                Ok((placement, orders)) if self.may_have(key, &placement) => {
                    self.preempt(rank, placement, orders);
                    line.untold.insert(key);
                    return Next::OfGroup;
                }
                Ok(_) => {}
                Err(too_dear) => told = Some(reasons().cloned().chain(too_dear).collect()),
            }
        }
        if let Some((placement, orders)) = self.reclaim(group, key) {
            self.preempt(rank, placement, orders);
            line.untold.insert(key);
            return Next::OfGroup;
        }
        let group = line.group(id);
        group.news = told;
        if refused {
            return Next::Nobody;
        }
        self.reserve(line, id, rank);
        Next::Nobody
    }

    /// Whom to stop for a stage that is refused its tenant's own, because others borrowed it.
    fn reclaim(&mut self, group: &Group, key: StageKey) -> Option<(Placement, Vec<StopOrder>)> {
        let tenants = self.tenants.as_ref()?;
        if self.rules.preempts == Preempts::Never || self.searches >= PREEMPTION_SEARCHES_MAX {
            return None;
        }
        let shapes: Vec<usize> = group.worthwhile(self.crowd.as_ref()).collect();
        self.searches += 1;
        preempt::reclaim(self.view, tenants, &self.pool, key, &shapes, &self.stopped)
    }

    fn preempt(&mut self, rank: Rank, placement: Placement, orders: Vec<StopOrder>) {
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
    fn reserve(&mut self, line: &mut Line, id: GroupId, rank: Rank) {
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
    fn awaits(&mut self, line: &mut Line, known: Awaited) -> Option<Awaited> {
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
        let missing = alternative.count.saturating_sub(free);
        let wait = self.ends().until_free(alternative, missing, Unknown::Never)?;
        let (priority, as_of) = (group.priority(), self.view.now);
        Some(Awaited { key, priority, shape, begins: as_of + wait, as_of })
    }

    /// Whom a stage would hold up however it ran: all that it accepts is wanted by the awaited one,
    /// and even its fastest shape would end too late.
    fn delays_anyhow(&self, group: &Group, key: StageKey) -> Option<StageKey> {
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
    fn delays(&self, group: &Group, key: StageKey, placement: &Placement) -> Option<StageKey> {
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

    fn start(&mut self, rank: Rank, placement: Placement, reason: Reason) {
        self.take(rank.key, &placement);
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
    fn wake_when_freed(&mut self, group: &Group, rank: &Rank) {
        if let (Choice::FixedUntil(patience), Some(_)) = (self.rules.choice, group.bound()) {
            self.wake_by(rank.since + patience);
        }
    }

    /// Where a stage of the group fits now, and why there; or why it fits nowhere.
    fn fitting(
        &mut self,
        group: &mut Group,
        key: StageKey,
    ) -> Result<(Placement, Reason), Vec<Reason>> {
        if let Some(fixed) = group.bound() {
            let index = match self.rules.choice {
                Choice::FixedUntil(_) => group.by_worth(self.crowd.as_ref())[0],
                _ => fixed,
            };
            let word = group.spec().alternatives[index].selector.word.clone();
            let bound = Reason::FixedAtSubmission { word };
            let fit = self.place(group, index);
            if let Some(blocker) = fit.as_ref().ok().and_then(|p| self.delays(group, key, p)) {
                return Err(vec![Reason::WouldDelay { blocker }]);
            }
            return fit.map(|placement| (placement, bound.clone())).map_err(|_| {
                let mut reasons = self.reasons_why_not(group);
                reasons.push(bound);
                reasons
            });
        }
        let ranked = group.by_worth(self.crowd.as_ref());
        let best = ranked[0];
        let mut delayed = None;
        let mut fits = |&index: &usize| {
            let placement = self.place(group, index).ok()?;
            let delays = self.delays(group, key, &placement);
            delayed = delayed.or(delays);
            delays.is_none().then_some(placement)
        };
        let Some(placement) = ranked.iter().find_map(&mut fits) else {
            return Err(match delayed {
                Some(blocker) => vec![Reason::WouldDelay { blocker }],
                None => self.reasons_why_not(group),
            });
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
        let group = group.with_nevers(self.view);
        let why = |index: usize| match &group.nevers[index] {
            Some(never) => Some(never.clone()),
            None => self.place(group, index).err(),
        };
        (0..group.accepted.len()).filter_map(why).collect()
    }

    /// Where an alternative of a group fits now. The pool only shrinks while the line is looked at,
    /// so that what did not fit once need not be tried again.
    fn place(&mut self, group: &Group, index: usize) -> Result<Placement, Reason> {
        let ask = group.ask(index);
        if let Some(reason) = self.unfit.get(&ask) {
            return Err(reason.clone());
        }
        let found = place_among(&mut self.pool, group.spec(), index, &group.accepted[index]);
        if let Err(reason) = &found {
            self.unfit.insert(ask, reason.clone());
        }
        let found = found?;
        let Some(reason) = self.refusal(group.tenant(), &found) else { return Ok(found) };
        // Another class that will do may be open to its tenant.
        let classes = 0..self.view.state.topology().classes.len();
        let mut open = classes.filter_map(|class| {
            let found = on_class(&mut self.pool, group.spec(), index, class).ok()?;
            let tenants = self.tenants.as_ref();
            let refused = tenants.and_then(|t| refusal(t, self.rules, group.tenant(), &found));
            refused.is_none().then_some(found)
        });
        open.next().ok_or(reason)
    }

    /// Why a tenant may not have a placement that is free.
    fn refusal(&self, tenant: &Name, placement: &Placement) -> Option<Reason> {
        refusal(self.tenants.as_ref()?, self.rules, tenant, placement)
    }

    fn may_have(&self, key: StageKey, placement: &Placement) -> bool {
        self.refusal(&self.view.state.stage(key).0.spec.tenant, placement).is_none()
    }

    /// Uses a placement for a stage, or keeps it for it.
    fn take(&mut self, key: StageKey, placement: &Placement) {
        self.pool.take(placement);
        if let Some(tenants) = &mut self.tenants {
            tenants.take(&self.view.state.stage(key).0.spec.tenant, placement);
        }
    }

    fn give_back(&mut self, key: StageKey, placement: &Placement) {
        self.pool.give_back(placement);
        if let Some(tenants) = &mut self.tenants {
            tenants.give_back(&self.view.state.stage(key).0.spec.tenant, placement);
        }
    }

    /// Where a group stands among tenants.
    fn precedence(&self, group: &Group, rank: &Rank) -> Precedence {
        let Some(tenants) = self.tenants.as_ref().filter(|_| self.rules.order != Order::Submission)
        else {
            return Precedence::of(rank);
        };
        let owns =
            |(class, units): (usize, u32)| tenants.owns(group.tenant(), class, Share::units(units));
        let quota = match group.by_class(self.view.state).any(owns) {
            true => Quota::Own,
            false => Quota::Borrowed,
        };
        Precedence::among_tenants(rank, quota, tenants.standing(group.tenant()))
    }

    fn ends(&self) -> &Ends<'a> {
        self.ends.get_or_init(|| Ends::of(self.view))
    }

    /// Whether the better shape, once its present users end, still finishes before the free one.
    fn waiting_pays(&self, group: &Group, key: StageKey, best: usize, free: usize) -> bool {
        if self.rules.choice != Choice::EarliestFinish {
            return false;
        }
        let (_, spec, stage) = self.view.state.stage(key);
        let Some(left) = steps_left(spec, stage) else { return false };
        let (Some(fast), Some(slow)) = (group.span(best, left), group.span(free, left)) else {
            return false;
        };
        let alternative = &group.spec().alternatives[best];
        // For those who wait for the same before it too.
        let wanted = alternative.count + self.ahead;
        let wait = self.ends().until_free(alternative, wanted, Unknown::Never);
        let price = self.crowd.as_ref().map_or(1.0, Crowd::price_of_waiting);
        wait.is_some_and(|wait| price * wait.as_seconds() + fast.as_seconds() < slow.as_seconds())
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
        let starting = self.wants.iter().filter(|(_, want)| matches!(want, Want::Run { .. }));
        line.to_start.extend(starting.map(|(rank, _)| rank.key));
        self.wants.sort_unstable_by_key(|(rank, _)| *rank);
        let in_order = self.wants.into_iter().map(|(rank, want)| (rank.key, want));
        Decision {
            wants: self.moves.into_iter().chain(in_order).collect(),
            stops: self.stops,
            wake_at: self.wake_at,
        }
    }
}

fn refusal(
    tenants: &Tenants<'_>,
    rules: &Rules,
    tenant: &Name,
    placement: &Placement,
) -> Option<Reason> {
    // What is never taken back must not be lent.
    let lends = rules.preempts == Preempts::ForHigherPriority;
    let kept = || tenants.kept_for_others(tenant, placement).filter(|_| !lends);
    tenants.over_limit(tenant, placement).or_else(kept)
}

/// Reservations that stand: claims that no stop is making room for.
fn reserved(view: &View<'_>) -> usize {
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
