//! Which of the running stages that may be stopped it costs least to stop, so that a request fits.
//!
//! A set of victims is *better* than another if the highest priority in it is lower, then if it
//! costs less, then if fewer of it never saved. Where at most [`EXACT_MAX`] candidates hold what
//! the request needs, the best set that pays is found by looking at all that could be better than
//! one found greedily; of more candidates that one is taken: the cheapest that suffice together,
//! less those that are not needed.

use het_core::{Companions, LeaseId, Placement, Priority, Rank, ShareMillis, StageKey, StopCost};

use super::{Quota, never_saved};
use crate::placement::{Accepted, accepted, place_among};
use crate::{Pool, View};

/// Candidates of which every set is looked at: at most 1,023 in one search.
const EXACT_MAX: usize = 10;

/// A stage that wants devices which others hold.
pub(crate) struct Newcomer<'a> {
    pub key: StageKey,
    /// What it could have anyway.
    pub pool: &'a Pool<'a>,
    /// Asked about those of a set in the order of the candidates.
    pub quota: &'a dyn Fn() -> Quota<'a>,
}

/// One who may be stopped and holds what is wanted, or cores or memory beside that.
#[derive(Clone, Copy)]
struct Candidate {
    lease: LeaseId,
    cost: StopCost,
    /// Of what is wanted.
    units: u32,
    priority: Priority,
    never_saved: bool,
}

/// A search for one shape of a request.
struct Search<'s, 'a> {
    view: &'s View<'s>,
    request: &'s Newcomer<'a>,
    /// Of the stage that wants devices.
    alternative: usize,
    count: u32,
    accepted: Accepted,
    /// Units that are free of what is wanted.
    free: u32,
}

/// The best set found so far.
#[derive(Clone)]
struct Best {
    /// What they cost, and how many of them never saved.
    worth: (ShareMillis, usize),
    chosen: Vec<Candidate>,
    placement: Placement,
}

/// Where a request fits once these are stopped.
pub(super) type Victims = (Placement, Vec<(LeaseId, StopCost)>);

/// The best set of candidates to stop for an alternative that `pays`, or else the best of all.
/// Candidates come by priority, the lowest first, and of one priority the cheapest first.
pub(super) fn cheapest(
    view: &View<'_>,
    request: &Newcomer<'_>,
    alternative: usize,
    candidates: impl Iterator<Item = (LeaseId, StopCost)>,
    pays: impl Fn(&Victims) -> bool,
) -> Option<Victims> {
    let (_, spec, _) = view.state.stage(request.key);
    let shape = &spec.alternatives[alternative];
    let accepted = accepted(view.state, &shape.selector, None);
    let free = request.pool.units(&accepted);
    let search = Search { view, request, alternative, count: shape.count, accepted, free };
    let mut useful = candidates.filter_map(|(id, cost)| search.candidate(id, cost));
    let first: Vec<Candidate> = useful.by_ref().take(EXACT_MAX + 1).collect();
    if first.len() > EXACT_MAX {
        return search.greedy(first.into_iter().chain(useful)).map(Best::into_victims);
    }
    let mut dear = None;
    let mut found = search.by_priority(&first).into_iter().map(Best::into_victims);
    let paying = found.find_map(|victims| match pays(&victims) {
        true => Some(victims),
        false => {
            dear.get_or_insert(victims);
            None
        }
    });
    paying.or(dear)
}

impl Best {
    fn into_victims(self) -> Victims {
        let chosen = self.chosen.into_iter().map(|row| (row.lease, row.cost));
        (self.placement, chosen.collect())
    }
}

impl Search<'_, '_> {
    fn candidate(&self, lease: LeaseId, cost: StopCost) -> Option<Candidate> {
        let state = self.view.state;
        let held = self.placement_of(lease).grants();
        let ours = held.filter(|grant| self.accepted.has(state, grant.device));
        let units = ours.map(|grant| grant.share.whole_units()).sum();
        let priority = state.stage(state.leases()[&lease].stage).0.priority();
        let never_saved = never_saved(self.view, lease);
        let needed = units > 0 || self.stands_beside(lease);
        needed.then_some(Candidate { lease, cost, units, priority, never_saved })
    }

    /// Whether a lease may hold cores or memory that the request needs beside its devices.
    fn stands_beside(&self, lease: LeaseId) -> bool {
        let state = self.view.state;
        let spec = state.stage(self.request.key).1;
        let devices = &state.index().devices;
        let is_near = |rank: &Rank| {
            devices[rank.node.index()].iter().any(|&device| self.accepted.has(state, device))
        };
        spec.companions != Companions::default()
            && self.placement_of(lease).ranks.iter().any(is_near)
    }

    fn placement_of(&self, lease: LeaseId) -> &Placement {
        &self.view.state.leases()[&lease].placement
    }

    /// Where the request fits once these are stopped.
    fn fit<'c>(&self, chosen: impl Iterator<Item = &'c Candidate>) -> Option<Placement> {
        let mut freed = self.request.pool.clone();
        chosen.for_each(|row| freed.give_back(self.placement_of(row.lease)));
        let spec = self.view.state.stage(self.request.key).1;
        place_among(&freed, spec, self.alternative, &self.accepted).ok()
    }

    /// The best of a few for every highest priority that may be stopped, the lowest first, by
    /// looking at all sets that could be better than the greedy one.
    fn by_priority(&self, all: &[Candidate]) -> Vec<Best> {
        let greedy = self.greedy(all.iter().copied());
        let highest = |rows: &[Candidate]| rows.iter().map(|row| row.priority).max();
        let mut found: Vec<Best> = Vec::new();
        let mut up_to = 0;
        for level in all.chunk_by(|a, b| a.priority == b.priority) {
            up_to += level.len();
            let open = &all[..up_to];
            if self.fit(open.iter()).is_none() {
                continue;
            }
            let at_hand = found.last().or(greedy.as_ref());
            let mut best = at_hand.filter(|best| highest(&best.chosen) <= highest(open)).cloned();
            let before = best.as_ref().map(|best| best.worth);
            let units = self.free + open.iter().map(|row| row.units).sum::<u32>();
            self.visit(open, &mut Vec::new(), units, &mut best);
            let is_new = |best: &Best| found.is_empty() || Some(best.worth) != before;
            found.extend(best.filter(is_new));
        }
        found
    }

    /// Looks at every set of `rest` beside `chosen` that could be better than `best`. `units` are
    /// free if all of them stop.
    fn visit(
        &self,
        rest: &[Candidate],
        chosen: &mut Vec<Candidate>,
        units: u32,
        best: &mut Option<Best>,
    ) {
        let Some((next, rest)) = rest.split_first() else { return };
        chosen.push(*next);
        let worth = worth(chosen);
        if best.as_ref().is_none_or(|best| worth < best.worth) && self.may_stop(chosen) {
            match self.fit_if_enough(chosen) {
                Some(placement) => {
                    *best = Some(Best { worth, chosen: chosen.clone(), placement });
                }
                // What suffices is not made cheaper by more.
                None => self.visit(rest, chosen, units, best),
            }
        }
        chosen.pop();
        if units - next.units >= self.count {
            self.visit(rest, chosen, units - next.units, best);
        }
    }

    fn fit_if_enough(&self, chosen: &[Candidate]) -> Option<Placement> {
        let units = self.free + chosen.iter().map(|row| row.units).sum::<u32>();
        if units < self.count { None } else { self.fit(chosen.iter()) }
    }

    fn may_stop(&self, chosen: &[Candidate]) -> bool {
        let mut may = (self.request.quota)();
        chosen.iter().all(|row| may(row.lease))
    }

    /// Adds candidates until the request fits, then drops those that are not needed.
    fn greedy(&self, candidates: impl Iterator<Item = Candidate>) -> Option<Best> {
        let mut may = (self.request.quota)();
        let mut candidates = candidates.filter(|row| may(row.lease));
        let mut useful: Vec<Candidate> = Vec::new();
        let mut free = self.free;
        // What fits beside fewer fits beside more: the number doubles until it fits, and is then
        // halved to where it just does.
        let mut too_few = 0;
        let mut placement = loop {
            let least = (2 * too_few).max(1);
            while useful.len() < least || free < self.count {
                let Some(row) = candidates.next() else { break };
                free += row.units;
                useful.push(row);
                too_few = if free < self.count { useful.len() } else { too_few };
            }
            if useful.len() <= too_few {
                return None;
            }
            match self.fit(useful.iter()) {
                Some(placement) => break placement,
                None => too_few = useful.len(),
            }
        };
        let mut enough = useful.len();
        while enough - too_few > 1 {
            let middle = usize::midpoint(too_few, enough);
            match self.fit(useful[..middle].iter()) {
                Some(found) => (enough, placement) = (middle, found),
                None => too_few = middle,
            }
        }
        let chosen = self.needed(&useful[..enough], &placement);
        Some(Best { worth: worth(&chosen), chosen, placement })
    }

    /// Those that a placement needs; the dearest are tried for sparing first.
    fn needed(&self, chosen: &[Candidate], placement: &Placement) -> Vec<Candidate> {
        let is_near = |rank: &Rank| placement.uses_node(rank.node);
        let mut needed = chosen.to_vec();
        needed.retain(|row| self.placement_of(row.lease).ranks.iter().any(is_near));
        for position in (0..needed.len()).rev() {
            let mut fewer = self.request.pool.clone();
            let rest = needed.iter().enumerate().filter(|(other, _)| *other != position);
            rest.for_each(|(_, row)| fewer.give_back(self.placement_of(row.lease)));
            if fewer.covers(placement) {
                needed.remove(position);
            }
        }
        needed
    }
}

fn worth(chosen: &[Candidate]) -> (ShareMillis, usize) {
    let cost = chosen.iter().map(|row| row.cost.cost).sum();
    (cost, chosen.iter().filter(|row| row.never_saved).count())
}
