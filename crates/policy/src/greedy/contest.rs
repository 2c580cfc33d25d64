//! Equals share time: who waits and gives more for devices than those who run there has them, once
//! their quantum is over. What is free then goes to those who run and could use more.

use std::collections::BTreeSet;

use het_core::{
    DeviceId, LeaseId, Millis, Phase, Placement, Priority, Reason, StageKey, StopCause, Time,
};

use super::Pass;
use crate::adaptive::{Bid, Prices, Weights, quantum};
use crate::market;
use crate::market::{Book, Demand, Demands, Offer, Party, Remaining, demand, density, exchange};
use crate::placement::on_class;
use crate::queue::PendingQueue;
use crate::{StopOrder, View, Want};

/// Between two searches there is at least this much time for each stage that took part in the last
/// one, so that the effort of searching does not grow with the square of the queue.
const PAUSE_PER_PARTY: Millis = Millis::seconds(1);
const PAUSE_MAX: Millis = Millis::seconds(1_800);

/// Where somebody waits, prices are searched anew after so long even if nothing happened: who waits
/// becomes later.
const SEARCH_AGAIN: Millis = Millis::seconds(360);

/// A quantum is twice as long after each lease in a row that saved nothing, up to so many: a stage
/// that never saves loses no more by turns than it needs to run.
const FRUITLESS_MAX: u32 = 20;

/// The market as one decision uses it.
#[derive(Debug)]
pub(super) struct Bidding<'a> {
    weights: &'a Weights,
    book: &'a mut Book,
    prices: Option<Prices>,
    /// Everybody who took part if prices were searched just now, and what each gives.
    searched: Option<(Demands, Vec<Vec<f64>>)>,
}

impl<'a> Bidding<'a> {
    /// `last` is what the last search found.
    pub fn open(
        view: &View<'_>,
        weights: &'a Weights,
        book: &'a mut Book,
        last: Option<Prices>,
    ) -> Self {
        let classes = view.state.topology().classes.len();
        book.open(view);
        let prices = last.filter(|last| last.per_unit.len() == classes);
        Self { weights, book, prices, searched: None }
    }

    /// What the next decision has to know.
    pub fn close(&mut self) -> Option<Prices> {
        self.prices.take()
    }

    /// Searches prices anew where that is due.
    pub fn search(&mut self, view: &View<'_>, queue: &PendingQueue) {
        let last = self.prices.as_ref();
        if self.searched.is_some() || last.is_some_and(|last| view.now < next_search(last)) {
            return;
        }
        let listed = queue.shortlist(view.state);
        let demands = Demands::of(view, self.book, listed.iter().copied());
        let rest = queue.rest(self.book, &listed);
        let (prices, values) = Prices::search(view, self.weights, &demands, &rest, last);
        self.prices = Some(prices);
        self.searched = Some((demands, values));
    }

    /// Who a waiting stage is to the market, and what it gives for each of its offers.
    fn bid(&mut self, view: &View<'_>, key: StageKey) -> Option<(Demand, Vec<f64>)> {
        let demand = demand(view, self.book, key, None);
        let prices = self.prices.as_ref().filter(|_| !demand.offers.is_empty())?;
        let values = prices.values(view, self.weights, &demand);
        Some((demand, values))
    }

    /// What a waiting stage gives for each of its offers, those first that are worth most beyond
    /// their price; nothing where no class alone has enough devices.
    pub fn bids(&mut self, view: &View<'_>, key: StageKey) -> Vec<Bid> {
        let Some((demand, values)) = self.bid(view, key) else { return Vec::new() };
        let prices = self.prices.as_ref();
        prices.map_or_else(Vec::new, |prices| prices.bids(&demand, &values))
    }

    /// What a device brings to a waiting stage where it brings most.
    pub fn density(&mut self, view: &View<'_>, key: StageKey) -> f64 {
        self.bid(view, key).map_or(0.0, |(demand, values)| density(&demand, &values))
    }
}

/// When prices may be searched again at the earliest.
fn next_search(last: &Prices) -> Time {
    let pause = Millis(PAUSE_PER_PARTY.0 * last.parties as u64);
    last.searched_at + pause.min(PAUSE_MAX)
}

/// A running stage that may be moved, resized or suspended for its equals.
struct Running {
    lease: LeaseId,
    row: usize,
    offer: usize,
    /// Its quantum is over; before, it may only grow into what is free.
    ripe: bool,
}

/// Who gets what by a contest.
struct Outcome<'a> {
    /// Who runs and takes part; the first of `parties`.
    running: Vec<Running>,
    parties: Vec<Party<'a>>,
    chosen: Vec<Option<usize>>,
}

impl Pass<'_> {
    /// Hands out anew what is free and what those hold whose quantum is over.
    pub(super) fn contest(&mut self, queue: &mut PendingQueue, any_chooser: bool) {
        if let Some(mut bidding) = self.bidding.take() {
            self.contest_by(&mut bidding, queue, any_chooser);
            self.bidding = Some(bidding);
        }
    }

    fn contest_by(
        &mut self,
        bidding: &mut Bidding<'_>,
        queue: &mut PendingQueue,
        any_chooser: bool,
    ) {
        let open = self.view.state.waiting().any(|key| self.is_open(key));
        if open || any_chooser {
            bidding.search(self.view, queue);
        }
        let Some((demands, values)) = &bidding.searched else {
            self.wake_for_contest(bidding.prices.as_ref(), None);
            // Devices may have become free for those who run, too short a while after a search.
            if let (true, Some(prices)) = (any_chooser, &bidding.prices) {
                self.orders.wake_by(next_search(prices).max(self.view.now));
            }
            return;
        };
        let (running, next) = self.running(demands, bidding.weights);
        self.wake_for_contest(bidding.prices.as_ref(), next);
        let waits = |demand: &Demand| {
            self.view.state.is_waiting(demand.key)
                && queue.place_of(demand.key).is_some()
                && self.is_open(demand.key)
                && !self.is_awaited_on(demand)
        };
        let waiting = (0..demands.stages.len()).filter(|&row| waits(&demands.stages[row]));
        let party = |row: usize, has: Option<usize>, loses: bool| Party {
            demand: &demands.stages[row],
            values: &values[row],
            has,
            loses,
        };
        let holders = running.iter().map(|r| party(r.row, Some(r.offer), r.ripe));
        let parties: Vec<Party<'_>> =
            holders.chain(waiting.map(|row| party(row, None, true))).collect();
        let prices = bidding.prices.as_ref().map_or(&[][..], |s| s.per_unit.as_slice());
        let free = self.supply.pool.units_by_class();
        let chosen = share_out(demands, &parties, prices, &free);
        let stays = |r: &Running, to: Option<usize>| to == Some(r.offer);
        let rows = running.iter().zip(&chosen).filter(|(r, to)| stays(r, **to));
        let could_grow = rows.map(|(r, _)| &demands.stages[r.row]).filter(|d| could_grow(d, &free));
        let pauses = could_grow.map(|demand| growth_pause(self.view.now, demand));
        if let Some(pause) = pauses.min() {
            self.orders.wake_by(self.view.now + pause);
        }
        self.carry_out(queue, &Outcome { running, parties, chosen });
    }

    /// A stage would get devices that another one has waited for too long: those who run there are
    /// to come to their ends.
    fn is_awaited_on(&self, demand: &Demand) -> bool {
        let device_groups = &self.view.state.index().device_groups;
        let classes = |class: usize| {
            let of_class = device_groups.iter().map(|sort| sort.representative);
            of_class.filter(move |id| self.view.state.topology().device(*id).class == class)
        };
        self.reserved.awaited.is_some_and(|awaited| {
            let mut wanted = demand.offers.iter().flat_map(|offer| classes(offer.class));
            demand.key != awaited.key && wanted.any(|id| self.is_wanted(&awaited, id))
        })
    }

    /// Nothing was decided yet about a waiting stage.
    fn is_open(&self, key: StageKey) -> bool {
        !self.orders.decided.contains(&key)
    }

    /// Who waits is looked at again once somebody's quantum is over, and as time passes.
    fn wake_for_contest(&mut self, prices: Option<&Prices>, next: Option<Time>) {
        let waits = self.view.state.waiting().any(|key| self.is_open(key));
        if let Some(prices) = prices.filter(|_| waits) {
            let again = prices.searched_at + SEARCH_AGAIN;
            let next = next.map_or(again, |next| next.min(again));
            self.orders.wake_by(next.max(next_search(prices)));
        }
    }

    /// Running stages that take part, and when the next quantum ends.
    fn running(&self, demands: &Demands, weights: &Weights) -> (Vec<Running>, Option<Time>) {
        let (state, now) = (self.view.state, self.view.now);
        let mut running = Vec::new();
        let mut next: Option<Time> = None;
        for (row, demand) in demands.stages.iter().enumerate() {
            let Some((id, offer)) = demand.running else { continue };
            let lease = &state.leases()[&id];
            let (_, spec, stage) = state.stage(lease.stage);
            let Some(preemptible) = spec.preemptible.from(lease.since) else { continue };
            if preemptible > now || self.orders.stopped.contains(&id) {
                continue;
            }
            let quantum = quantum(self.view, weights, demand.restart_known);
            // Whoever loses its work at every stop still comes to its end.
            let over = lease.since + Millis(quantum.0 << stage.fruitless.min(FRUITLESS_MAX));
            if over > now {
                next = Some(next.map_or(over, |earlier| earlier.min(over)));
            }
            if matches!(lease.phase, Phase::Running { .. }) {
                running.push(Running { lease: id, row, offer, ripe: over <= now });
            }
        }
        (running, next)
    }

    /// Stops who leaves, and claims or starts what was handed out.
    fn carry_out(&mut self, queue: &mut PendingQueue, result: &Outcome<'_>) {
        let state = self.view.state;
        let Outcome { running, parties, chosen } = result;
        let changes = |(r, to): &(&Running, &Option<usize>)| **to != Some(r.offer);
        let leaving = || running.iter().zip(chosen).filter(changes).filter(|(r, _)| r.ripe);
        if running.iter().zip(chosen).find(changes).is_none()
            && chosen[running.len()..].iter().all(Option::is_none)
        {
            return;
        }
        // What starts at once does so beside those who leave.
        let mut beside = (self.supply.pool.clone(), self.supply.tenants.clone());
        for (leaver, _) in leaving() {
            let lease = &state.leases()[&leaver.lease];
            self.give_back(lease.stage, &lease.placement);
        }
        let placed = self.place_all(result);
        let goes_on: BTreeSet<StageKey> =
            placed.iter().map(|(party, _)| parties[*party].demand.key).collect();
        let devices = placed.iter().flat_map(|(_, placement)| placement.grants());
        let needed: BTreeSet<DeviceId> = devices.map(|grant| grant.device).collect();
        for unripe in running.iter().filter(|r| !r.ripe) {
            let lease = &state.leases()[&unripe.lease];
            if goes_on.contains(&lease.stage) {
                let order = StopOrder::of(self.view, unripe.lease, lease, StopCause::Migration);
                self.orders.stop(order);
            }
        }
        for (leaver, _) in leaving() {
            let lease = &state.leases()[&leaver.lease];
            let moves = goes_on.contains(&lease.stage);
            if !moves && !lease.placement.grants().any(|grant| needed.contains(&grant.device)) {
                // Nobody comes where it stands.
                self.take(lease.stage, &lease.placement);
                continue;
            }
            let cause = if moves { StopCause::Migration } else { StopCause::Quantum };
            self.orders.stop(StopOrder::of(self.view, leaver.lease, lease, cause));
        }
        for (party, placement) in placed {
            let key = parties[party].demand.key;
            let reasons = vec![Reason::ClaimPending];
            let Some((rank, _)) = queue.place_of(key) else {
                self.orders.moves.push((key, Want::Run { placement, reasons }));
                continue;
            };
            let tenant = &state.stage(key).0.spec.tenant;
            let (pool, tenants) = &mut beside;
            if pool.covers(&placement) {
                pool.take(&placement);
                let over = tenants.as_mut().is_some_and(|tenants| {
                    let over = tenants.over_limit(tenant, &placement).is_some();
                    tenants.take(tenant, &placement);
                    over
                });
                if over {
                    continue;
                }
            }
            self.orders.want(rank, Want::Run { placement, reasons });
            queue.untold.insert(key);
        }
    }

    /// Exact devices for everybody who got something new; the largest first, so that they find
    /// whole nodes.
    fn place_all(&mut self, result: &Outcome<'_>) -> Vec<(usize, Placement)> {
        let Outcome { running, parties, chosen } = result;
        let mut rows: Vec<(u32, f64, usize)> = Vec::new();
        for (index, (party, to)) in parties.iter().zip(chosen).enumerate() {
            let stays = running.get(index).is_some_and(|r| Some(r.offer) == *to);
            if let Some(offer) = to.filter(|_| !stays) {
                let units = party.demand.offers[offer].units;
                rows.push((units, density(party.demand, party.values), index));
            }
        }
        rows.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
        let mut placed = Vec::new();
        for (.., index) in rows {
            let Party { demand, .. } = parties[index];
            let offer = chosen[index].map(|offer| demand.offers[offer]);
            // Nobody else comes where one stands whose quantum is not over.
            let stands = result.running.get(index).filter(|r| !r.ripe);
            let stands = stands.map(|r| &self.view.state.leases()[&r.lease]);
            if let Some(lease) = stands {
                self.give_back(lease.stage, &lease.placement);
            }
            let found = offer.and_then(|offer| self.on_offer(demand.key, &offer));
            if let (Some(lease), None) = (stands, &found) {
                self.take(lease.stage, &lease.placement);
            }
            if let Some(placement) = found {
                self.take(demand.key, &placement);
                placed.push((index, placement));
            }
        }
        placed
    }

    fn on_offer(&mut self, key: StageKey, offer: &Offer) -> Option<Placement> {
        let (_, spec, _) = self.view.state.stage(key);
        let found = on_class(&mut self.supply.pool, spec, offer.alternative, offer.class).ok()?;
        self.may_have(key, &found).then_some(found)
    }
}

/// Whether a stage that runs would be faster on devices that are free beside its own.
fn could_grow(demand: &Demand, free: &[u32]) -> bool {
    let Some((_, here)) = demand.running else { return false };
    let here = &demand.offers[here];
    let is_better = |offer: &Offer| {
        let more = offer.units.saturating_sub(here.units);
        offer.class == here.class && more > 0 && more <= free[offer.class] && offer.rate > here.rate
    };
    demand.offers.iter().any(is_better)
}

/// Until it is looked at again whether a stage should grow: the older it is, the less a restart is
/// of its life, in ever longer intervals.
fn growth_pause(now: Time, demand: &Demand) -> Millis {
    let age = now.since(demand.submitted);
    Millis(age.0 / 2).clamp(PAUSE_PER_PARTY, SEARCH_AGAIN)
}

/// What everybody should have. Those of a higher priority come first to what is free, and nobody
/// takes from another priority here. `free` is what nobody has, by class.
fn share_out(
    demands: &Demands,
    parties: &[Party<'_>],
    prices: &[f64],
    free: &[u32],
) -> Vec<Option<usize>> {
    let mut remaining = Remaining::whole(demands);
    remaining.keep_to_parts(demands);
    for demand in &demands.stages {
        if let Some((_, offer)) = demand.running {
            remaining.take(demand, &demand.offers[offer]);
        }
    }
    remaining.only(free);
    let mut chosen: Vec<Option<usize>> = parties.iter().map(|party| party.has).collect();
    for priority in Priority::ALL {
        let is_next = |party: &usize| parties[*party].demand.priority == priority;
        let rows: Vec<usize> = (0..parties.len()).filter(is_next).collect();
        let equals: Vec<Party<'_>> = rows.iter().map(|&row| parties[row]).collect();
        let found = among_equals(&equals, prices, &mut remaining);
        rows.iter().zip(found).for_each(|(&row, offer)| chosen[row] = offer);
    }
    chosen
}

/// Of what comes of the present by exchange, and of prices by exchange, what is worth more.
fn among_equals(
    parties: &[Party<'_>],
    prices: &[f64],
    remaining: &mut Remaining,
) -> Vec<Option<usize>> {
    let has: Vec<Option<usize>> = parties.iter().map(|party| party.has).collect();
    let mut anew = remaining.clone();
    let (worth, chosen) = exchange(parties, has.clone(), remaining);
    let open: Vec<usize> = (0..parties.len()).filter(|&party| parties[party].loses).collect();
    let mut start = has;
    for &party in &open {
        if let Some(offer) = start[party].take() {
            anew.put_back(parties[party].demand, &parties[party].demand.offers[offer]);
        }
    }
    let bidders: Vec<&Demand> = open.iter().map(|&party| parties[party].demand).collect();
    let values: Vec<&[f64]> = open.iter().map(|&party| parties[party].values).collect();
    let handed = market::hand_out(&bidders, &values, prices, &mut anew);
    open.iter().zip(handed).for_each(|(&party, offer)| start[party] = offer);
    let (other, found) = exchange(parties, start, &mut anew);
    if other > worth {
        *remaining = anew;
        return found;
    }
    chosen
}
