//! One pass over the pending queue, best first: the shared core of our policies.
//!
//! - A stage whose claim became free starts on it.
//! - Every other stage, in order, starts where it fits.
//! - One that does not fit may preempt, or have devices reserved, or waits with its reasons; then
//!   so do all who ask for the same.

mod contest;
mod fit;
mod heads;
mod room;
mod supply;
mod victims;

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::sync::Arc;

use het_core::{
    HostResources, Lease, LeaseId, NodeId, Placement, Priority, Reason, StageKey, StopCause, Time,
};
use serde::{Deserialize, Serialize};

use crate::adaptive::{Prices, Weights};
use crate::market::Book;
use crate::memory::Recalled;
use crate::placement::{self, Ends, Expected, Improvement, OpportunityCost, Running};
use crate::queue::{AGEING_STEP, FootprintId, Group, GroupId, Head, PendingQueue, Rank};
use crate::rules::{Balancing, Choice, Passing, Sharing};
use crate::speed::spread_penalty;
use crate::{Cache, Decision, Pool, Rules, StopOrder, View, Want};
use contest::Bidding;
use heads::Heads;
use room::{Awaited, Reserved};
use supply::Supply;
use victims::Victims;

/// Searches for victims in one round: a round stays short however long the queue is, and the next
/// round goes on.
const PREEMPTION_SEARCHES_MAX: usize = 16;

/// Stages that are named as those who come next.
const NEXT_MAX: usize = 16;

/// Stages that are sent elsewhere in one round.
const MOVES_MAX: usize = 16;

/// What is not worked out anew for every decision.
#[derive(Debug, Clone, Default)]
struct Kept {
    queue: PendingQueue,
    running: Running,
    book: Book,
    memory: Recalled<Remembered>,
}

/// What follows from earlier decisions alone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Remembered {
    /// Who others may not hold up any more, although nothing is reserved for it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    awaited: Option<Awaited>,
    /// Where there is a market.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prices: Option<Prices>,
}

pub(crate) fn decide(
    rules: &Rules,
    weights: Option<&Weights>,
    view: &View<'_>,
    cache: &mut Cache,
) -> Decision {
    let state = view.state;
    let Kept { queue, running, book, memory } = cache.of::<Kept>();
    let Remembered { awaited, prices } = memory.recall(state, rules.name);
    running.update(view);
    let choosers: Vec<LeaseId> = match rules.balancing {
        Balancing::Throughout => running.choosers().collect(),
        Balancing::Never => Vec::new(),
    };
    let idle = state.waiting().next().is_none() && state.claims().is_empty();
    if idle && !state.empties_any() && choosers.is_empty() {
        return Decision::default();
    }
    queue.update(rules, view);
    let opportunity_cost = rules.balancing != Balancing::Never;
    let opportunity_cost = opportunity_cost.then(|| OpportunityCost::of(state));
    let bidding = weights.map(|weights| Bidding::open(view, weights, book, prices));
    let expected = queue.expected.mix(&running.expected);
    debug_assert_eq!(expected, Expected::of(state).mix(&Expected::default()));
    let expected = expected.map(Arc::new);
    let pool = Pool::of(state).expecting(expected);
    let mut pass = Pass::new(rules, view, running, (pool, opportunity_cost), bidding);
    pass.reserved.awaited = awaited.and_then(|known| pass.awaits(queue, known));
    pass.claims(queue);
    if pass.bidding.is_some() && queue.has_choice(|queue, id| !pass.is_unfit(queue, id)) {
        pass.bidding.iter_mut().for_each(|bidding| bidding.search(view, queue));
    }
    for level in heads::levels(&pass, queue) {
        pass.serve(queue, level);
        if pass.told.head.is_some() {
            break;
        }
    }
    pass.contest(queue, !choosers.is_empty());
    pass.moves(&choosers);
    if let Some(end) = running.next_end_of_min_runtime(view.now) {
        pass.orders.wake_by(end);
    }
    let prices = pass.bidding.as_mut().and_then(Bidding::close);
    let remembered = Remembered { awaited: pass.reserved.awaited, prices };
    let remembers = memory.remember(rules.name, remembered);
    Decision { remembers, ..pass.finish(queue) }
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
    running: &'a Running,
    supply: Supply<'a>,
    orders: Orders,
    told: Told,
    victims: Victims<'a>,
    reserved: Reserved,
    /// Where prices decide.
    bidding: Option<Bidding<'a>>,
    /// Whom stages have to consider that choose their devices.
    opportunity_cost: Option<OpportunityCost>,
}

/// What was decided.
#[derive(Default)]
struct Orders {
    wants: Vec<(Rank, Want)>,
    decided: BTreeSet<StageKey>,
    /// Who stops to go on elsewhere.
    moves: Vec<(StageKey, Want)>,
    stops: Vec<StopOrder>,
    stopped: BTreeSet<LeaseId>,
    wake_at: Option<Time>,
}

/// What those are told who wait.
#[derive(Default)]
struct Told {
    /// The first stage that did not fit, where nobody may pass it.
    head: Option<StageKey>,
    /// Somebody better placed in the order waits on.
    passed: bool,
    /// The heads of groups for whom there was no room, in order; kept where something can be done
    /// for them before there is.
    unserved: Vec<(GroupId, Rank)>,
    /// Those for whom nobody was found to stop, and whether there is somebody who is worth more.
    spared: BTreeMap<(FootprintId, Priority, Vec<usize>), Option<Reason>>,
    /// Footprints of which somebody was found not to fit, and why.
    refused: BTreeMap<FootprintId, Vec<Reason>>,
    /// What groups are to be told that were looked at by themselves.
    news: BTreeMap<GroupId, Vec<Reason>>,
}

impl Orders {
    fn want(&mut self, rank: Rank, want: Want) {
        self.decided.insert(rank.key);
        self.wants.push((rank, want));
    }

    fn stop(&mut self, order: StopOrder) {
        self.stopped.insert(order.lease);
        self.stops.push(order);
    }

    fn wake_by(&mut self, at: Time) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

impl<'a> Pass<'a> {
    fn new(
        rules: &'a Rules,
        view: &'a View<'a>,
        running: &'a Running,
        (pool, opportunity_cost): (Pool<'a>, Option<OpportunityCost>),
        bidding: Option<Bidding<'a>>,
    ) -> Self {
        Self {
            rules,
            view,
            running,
            supply: Supply::of(view, pool),
            orders: Orders::default(),
            told: Told::default(),
            victims: Victims::of(rules, view),
            reserved: Reserved::of(view),
            bidding,
            opportunity_cost,
        }
    }

    /// A claim that is free now becomes a start; one on a device that went down is given up; any
    /// other is waited for, unless the stage fits elsewhere already. Those of stages that still
    /// have to stop where they are stand.
    fn claims(&mut self, queue: &mut PendingQueue) {
        let state = self.view.state;
        for (&key, claim) in state.claims() {
            let placement = &claim.placement;
            // A node may have come to have less.
            let has = |(node, held): (&NodeId, &HostResources)| {
                held.fits(state.topology().node(*node).host)
            };
            let in_service = || {
                placement.grants().all(|grant| state.is_up(grant.device))
                    && placement.host_by_node().iter().all(has)
            };
            if state.is_moving(key) {
                let placement = in_service().then(|| (**placement).clone());
                let reasons = vec![Reason::ClaimPending];
                self.orders
                    .moves
                    .extend(placement.map(|p| (key, Want::Run { placement: p, reasons })));
                continue;
            }
            let Some((rank, id)) = queue.place_of(key) else { continue };
            queue.untold.insert(key);
            self.give_back(key, placement);
            let is_free = self.supply.pool.covers(placement);
            let may_start = is_free && self.may_have(key, placement);
            let may_have = may_start || self.may_have_once_stopped(key, placement);
            self.take(key, placement);
            if !may_have {
                // Its tenant may hold less now than when it was promised this.
                continue;
            }
            if may_start {
                let reasons = self.start_reasons(key, placement, Reason::ClaimReady);
                self.orders.want(rank, Want::Run { placement: (**placement).clone(), reasons });
            } else if let Ok((elsewhere, reason)) = self.fitting(queue.group(id), &rank) {
                self.start(rank, elsewhere, reason);
            } else if in_service() {
                let reasons = vec![Reason::ClaimPending];
                self.orders.want(rank, Want::Run { placement: (**placement).clone(), reasons });
            }
        }
    }

    /// Moves what would be better off elsewhere, after everybody who waits had a look at the room:
    /// off nodes that are going to fail first, then those of `choosers` that gain by it.
    fn moves(&mut self, choosers: &[LeaseId]) {
        let state = self.view.state;
        if self.rules.choice != Choice::Fixed && state.empties_any() {
            for (&id, lease) in state.leases() {
                if !self.orders.stopped.contains(&id)
                    && let Some((placement, cause)) =
                        placement::evacuation(self.view, &mut self.supply.pool, lease)
                    && self.may_have(lease.stage, &placement)
                {
                    self.go(id, lease, placement, cause);
                }
            }
        }
        let balances = self.rules.balancing == Balancing::Throughout;
        let Some(opportunity_cost) = self.opportunity_cost.take().filter(|_| balances) else {
            return;
        };
        for &id in
            choosers.iter().filter(|id| !self.orders.stopped.contains(id)).collect::<Vec<_>>()
        {
            if self.orders.moves.len() >= MOVES_MAX {
                break;
            }
            let lease = &state.leases()[&id];
            let Some(runner) = self.running.get(id) else { continue };
            // Two who weigh sizes differently would send it to and fro.
            if self.bidding.is_some() && runner.has_sizes {
                continue;
            }
            match placement::improvement(
                self.view,
                &mut self.supply.pool,
                &opportunity_cost,
                lease,
                runner,
            ) {
                Improvement::To(placement) if self.may_have(lease.stage, &placement) => {
                    self.go(id, lease, placement, StopCause::Migration);
                }
                Improvement::NotBefore(at) => self.orders.wake_by(at),
                Improvement::To(_) | Improvement::None => {}
            }
        }
    }

    /// Stops a lease and claims where it goes on.
    fn go(&mut self, id: LeaseId, lease: &Lease, placement: Placement, cause: StopCause) {
        self.take(lease.stage, &placement);
        self.orders.stop(StopOrder::of(self.view, id, lease, cause));
        let (_, spec, _) = self.view.state.stage(lease.stage);
        let word = spec.alternatives[placement.alternative].selector.word.clone();
        let reasons = vec![Reason::BestUse { word }, Reason::ClaimPending];
        self.orders.moves.push((lease.stage, Want::Run { placement, reasons }));
    }

    /// Looks at everybody of one level, best first.
    fn serve(&mut self, queue: &mut PendingQueue, level: Vec<Head>) {
        let mut heads = Heads::of(self, queue, level);
        while let Some((precedence, head)) = heads.pop() {
            let Head { rank, group: id, footprint, .. } = head;
            if self.is_unfit(queue, footprint) {
                self.told.passed = true;
                self.note_unserved(id, rank);
                if !self.told.refused.contains_key(&footprint) {
                    let reasons = self.reasons_to_wait(queue.group(id));
                    self.told.refused.insert(footprint, reasons);
                }
                if self.may_get_room(&head) && self.misfit(queue, id, rank) == Next::OfGroup {
                    heads.come_up(self, queue, id, rank);
                }
            } else if self.supply.tenants.is_some()
                // Others of its tenant may have got something since.
                && let now = self.precedence(queue, &head)
                && now > precedence
            {
                heads.later.insert((now, head));
            } else if self.look(queue, id, rank) == Next::OfGroup {
                heads.come_up(self, queue, id, rank);
            }
            if self.told.head.is_some() {
                break;
            }
        }
    }

    /// What becomes of one stage, the first of its group that was not looked at.
    fn look(&mut self, queue: &mut PendingQueue, id: GroupId, rank: Rank) -> Next {
        let key = rank.key;
        if self.orders.decided.contains(&key) {
            return Next::OfGroup;
        }
        let group = queue.group(id);
        self.wake_when_freed(group, &rank);
        if let Some(blocker) = self.delays_anyhow(group, &rank) {
            return self.refuse(id, blocker);
        }
        match self.fitting(group, &rank) {
            Ok((placement, reason)) => {
                self.start(rank, placement, reason);
                Next::OfGroup
            }
            Err(reasons) => {
                self.told.passed = true;
                match *reasons {
                    [Reason::WouldDelay { blocker }] => self.refuse(id, blocker),
                    // One that waits for something better says nothing about the others.
                    [Reason::BetterToWait { .. }] => {
                        let best = group.by_cost(self.opportunity_cost.as_ref())[0];
                        self.supply.ahead += group.spec().alternatives[best].count;
                        self.orders.want(rank, Want::Wait { reasons });
                        queue.untold.insert(key);
                        Next::OfGroup
                    }
                    _ => {
                        self.told.news.insert(id, reasons);
                        self.note_unserved(id, rank);
                        self.misfit(queue, id, rank)
                    }
                }
            }
        }
    }

    fn note_unserved(&mut self, id: GroupId, rank: Rank) {
        if self.view.state.preparable().next().is_some() && self.told.unserved.len() < NEXT_MAX {
            self.told.unserved.push((id, rank));
        }
    }

    /// The first of those for whom there was no room: the heads of groups in their order, and
    /// behind each those of its group; where nobody may pass the first, all in the order of the
    /// queue.
    fn next(&self, queue: &PendingQueue) -> Vec<StageKey> {
        let mut next: Vec<Rank> = Vec::new();
        if self.told.head.is_some() && self.view.state.preparable().next().is_some() {
            next.extend(
                queue.heads().flat_map(|head| self.undecided(queue, head.group, head.rank)),
            );
            next.sort_unstable();
        } else {
            let unserved = self.told.unserved.iter();
            next.extend(unserved.flat_map(|&(id, head)| self.undecided(queue, id, head)));
        }
        next.into_iter().take(NEXT_MAX).map(|rank| rank.key).collect()
    }

    /// The first of a group from one on, less those who get something.
    fn undecided<'q>(
        &'q self,
        queue: &'q PendingQueue,
        id: GroupId,
        from: Rank,
    ) -> impl Iterator<Item = Rank> + 'q {
        let group = successors(Some(from), move |rank| queue.next(id, *rank));
        let undecided = group.filter(|rank| {
            let decided = self.orders.wants.iter().find(|(of, _)| of.key == rank.key);
            !matches!(decided, Some((_, Want::Run { .. })))
        });
        undecided.take(NEXT_MAX)
    }

    /// Whether anything could still be done for one that fits nowhere.
    fn may_get_room(&self, head: &Head) -> bool {
        let searches = self.victims.searches < PREEMPTION_SEARCHES_MAX;
        self.rules.passing == Passing::Never
            || self.rules.sharing == Sharing::ByLevels
            || self.supply.tenants.is_some()
            || (searches && self.is_above_somebody(head.priority))
            || (head.can_be_passed && self.may_reserve())
    }

    /// A group that fits nowhere: preempt or reserve for its first, or let all wait.
    fn misfit(&mut self, queue: &mut PendingQueue, id: GroupId, rank: Rank) -> Next {
        let key = rank.key;
        if self.orders.decided.contains(&key) {
            return Next::OfGroup;
        }
        let group = queue.group(id);
        let refused = self.supply.tenants.is_some() && self.is_refused(group);
        if self.rules.passing == Passing::Never && !refused {
            self.told.head = Some(key);
            let reasons = self.reasons_to_wait(group);
            self.orders.want(rank, Want::Wait { reasons });
            queue.untold.insert(key);
            return Next::Nobody;
        }
        if self.delays_anyhow(group, &rank).is_some() {
            return Next::Nobody;
        }
        let made = self.room_by_priority(group, key, refused);
        let made = made.or_else(|| self.reclaim(group, key));
        let made = made.or_else(|| self.take_turn(group, key).filter(|_| !refused));
        if let Some((placement, orders)) = made {
            self.preempt(rank, placement, orders);
            queue.untold.insert(key);
            return Next::OfGroup;
        }
        if !refused {
            self.reserve(queue, id, rank);
        }
        Next::Nobody
    }

    fn start(&mut self, rank: Rank, placement: Placement, reason: Reason) {
        self.take(rank.key, &placement);
        let reasons = self.start_reasons(rank.key, &placement, reason);
        self.orders.want(rank, Want::Run { placement, reasons });
    }

    fn start_reasons(&self, key: StageKey, placement: &Placement, first: Reason) -> Vec<Reason> {
        let (job, spec, stage) = self.view.state.stage(key);
        let waited = self.view.now.since(job.waiting_since(key.stage));
        let mut reasons = vec![first];
        reasons.extend(spread_penalty(self.view, spec, placement));
        reasons.extend(self.told.passed.then_some(Reason::Backfilled));
        reasons.extend(stage.checkpoint.as_ref().map(|c| Reason::Resumed { step: c.step }));
        reasons
            .extend((waited >= AGEING_STEP).then_some(Reason::Aged { seconds: waited.0 / 1_000 }));
        reasons
    }

    /// A stage that is bound for a while is looked at again once it is not.
    fn wake_when_freed(&mut self, group: &Group, rank: &Rank) {
        if let (Choice::FixedUntil(patience), Some(_)) = (self.rules.choice, group.bound()) {
            self.orders.wake_by(rank.since + patience);
        }
    }

    fn ends(&self) -> &Ends<'a> {
        self.victims.ends.get_or_init(|| Ends::of(self.view, self.running))
    }

    /// Tells those who wait what is new to them, and puts everything in order.
    fn finish(mut self, queue: &mut PendingQueue) -> Decision {
        let mut waits: Vec<(Rank, Vec<Reason>)> = Vec::new();
        let mut news = std::mem::take(&mut self.told.news);
        if let Some(blocker) = self.told.head {
            news = queue.groups().map(|id| (id, vec![Reason::HeadOfLine { blocker }])).collect();
        } else {
            for (id, reasons) in std::mem::take(&mut self.told.refused) {
                queue.tell_all(id, reasons, |group| news.contains_key(&group), &mut waits);
            }
        }
        for (id, reasons) in news {
            queue.tell(id, reasons, &mut waits);
        }
        // Whoever has reasons of its own now has to hear those of its group later.
        for key in std::mem::take(&mut queue.untold) {
            match queue.place_of(key) {
                Some(_) if self.orders.decided.contains(&key) => {
                    queue.untold.insert(key);
                }
                Some((rank, id)) => waits.push((rank, queue.told(id).to_vec())),
                None => {}
            }
        }
        let next = self.next(queue);
        let state = self.view.state;
        for (rank, reasons) in waits {
            if state.is_waiting(rank.key) && self.orders.decided.insert(rank.key) {
                self.orders.wants.push((rank, Want::Wait { reasons }));
            }
        }
        let starting =
            self.orders.wants.iter().filter(|(_, want)| matches!(want, Want::Run { .. }));
        queue.to_start.extend(starting.map(|(rank, _)| rank.key));
        self.orders.wants.sort_unstable_by_key(|(rank, _)| *rank);
        let in_order = self.orders.wants.into_iter().map(|(rank, want)| (rank.key, want));
        Decision {
            wants: self.orders.moves.into_iter().chain(in_order).collect(),
            stops: self.orders.stops,
            next,
            wake_at: self.orders.wake_at,
            remembers: None,
        }
    }
}
