//! From who has what to who should have what: one stage after another, whoever would give most for
//! a device first, takes what is worth more to it than to those who lose it.
//!
//! Every exchange makes the sum of what everybody has worth more, so that it ends, and nothing is
//! exchanged without gain: who runs stays where it is unless somebody brings more there, pauses
//! included (a local search for the multiple-choice knapsack: Kellerer, Pferschy and Pisinger 2004,
//! chapter 11, over several classes).

use std::collections::{BTreeMap, BinaryHeap};

use het_core::Priority;

use super::demand::{Demand, Offer};
use super::remaining::Remaining;

/// Exchanges that one stage may take part in.
const LOOKS_MAX: u8 = 4;

/// A part of a gain below which it is noise.
const GAIN_MIN: f64 = 1e-9;

/// One who may take part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Party<'a> {
    pub demand: &'a Demand,
    /// What each of its offers is worth to it.
    pub values: &'a [f64],
    /// The offer that it has.
    pub has: Option<usize>,
    /// Others may take that from it, and it may take from them.
    pub loses: bool,
}

/// A way to get devices from somebody.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// What is lost by it for each unit.
    price: f64,
    party: usize,
    /// What is left to the party.
    keeps: Option<usize>,
    freed: u32,
    loss: f64,
}

/// What everybody should have, by party; `remaining` is what nobody has.
pub(crate) fn exchange(
    parties: &[Party<'_>],
    has: Vec<Option<usize>>,
    remaining: &mut Remaining,
) -> (f64, Vec<Option<usize>>) {
    let mut exchange =
        Exchange { parties, has, looks: vec![0; parties.len()], remaining, ways: BTreeMap::new() };
    exchange.run();
    let worth = (0..parties.len()).map(|party| exchange.value(party, exchange.has[party]));
    (worth.sum(), exchange.has)
}

struct Exchange<'a> {
    parties: &'a [Party<'a>],
    has: Vec<Option<usize>>,
    looks: Vec<u8>,
    remaining: &'a mut Remaining,
    /// By class and priority, the cheapest first.
    ways: BTreeMap<(usize, Priority), Vec<Way>>,
}

/// Who is looked at first.
#[derive(Debug, PartialEq)]
struct Next {
    density: f64,
    party: usize,
}

impl Eq for Next {}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.density.total_cmp(&other.density).then(other.party.cmp(&self.party))
    }
}

impl<'a> Exchange<'a> {
    fn run(&mut self) {
        let mut heap: BinaryHeap<Next> =
            (0..self.parties.len()).map(|party| self.next(party)).collect();
        while let Some(Next { party, .. }) = heap.pop() {
            if self.looks[party] >= LOOKS_MAX {
                continue;
            }
            let Some((offer, ways)) = self.best(party) else { continue };
            self.looks[party] += 1;
            let changes = ways.iter().map(|way| (way.party, way.keeps));
            let changes: Vec<_> = changes.chain([(party, Some(offer))]).collect();
            self.change(&changes);
            heap.extend(changes.iter().map(|(party, _)| self.next(*party)));
            self.ways.clear();
        }
    }

    fn next(&self, party: usize) -> Next {
        let Party { demand, values, .. } = self.parties[party];
        let per_unit = demand.offers.iter().zip(values);
        let per_unit = per_unit.map(|(offer, value)| value / f64::from(offer.units));
        Next { density: per_unit.fold(0.0, f64::max), party }
    }

    fn value(&self, party: usize, has: Option<usize>) -> f64 {
        has.map_or(0.0, |offer| self.parties[party].values[offer])
    }

    fn offer(&self, party: usize, has: Option<usize>) -> Option<&'a Offer> {
        has.map(|offer| &self.parties[party].demand.offers[offer])
    }

    /// All give back before anybody takes.
    fn change(&mut self, changes: &[(usize, Option<usize>)]) {
        for &(party, _) in changes {
            if let Some(offer) = self.offer(party, self.has[party]) {
                self.remaining.put_back(self.parties[party].demand, offer);
            }
        }
        for &(party, to) in changes {
            if let Some(offer) = self.offer(party, to) {
                self.remaining.take(self.parties[party].demand, offer);
            }
            self.has[party] = to;
        }
    }

    /// The offer that brings most to everybody, and from whom its devices come.
    fn best(&mut self, party: usize) -> Option<(usize, Vec<Way>)> {
        let Party { demand, .. } = self.parties[party];
        let now = self.has[party];
        let mut best: Option<(f64, usize, Vec<Way>)> = None;
        for index in 0..demand.offers.len() {
            let gain = self.value(party, Some(index)) - self.value(party, now);
            let least = best.as_ref().map_or(0.0, |(most, ..)| *most);
            if Some(index) == now || gain <= least + GAIN_MIN * gain.abs() {
                continue;
            }
            let Some(ways) = self.room(party, index, gain - least) else { continue };
            let net = gain - ways.iter().map(|way| way.loss).sum::<f64>();
            if net > least + GAIN_MIN * gain.abs() {
                best = Some((net, index, ways));
            }
        }
        best.map(|(_, offer, ways)| (offer, ways))
    }

    /// The cheapest ways to the devices that an offer needs beside those that are free and those
    /// that its stage gives up for it; `None` where they are dearer than `most`.
    fn room(&mut self, party: usize, index: usize, most: f64) -> Option<Vec<Way>> {
        let Party { demand, .. } = self.parties[party];
        let offer = &demand.offers[index];
        let own = self.offer(party, self.has[party]);
        if !self.remaining.may_have(demand, own, offer) {
            return None;
        }
        let back = own.filter(|own| own.class == offer.class).map_or(0, |own| own.units);
        let free = self.remaining.units(offer.class) + back;
        let missing = offer.units.saturating_sub(free);
        if missing == 0 {
            return Some(Vec::new());
        }
        if !self.parties[party].loses {
            return None;
        }
        let key = (offer.class, demand.priority);
        if !self.ways.contains_key(&key) {
            let ways = self.ways_to(offer.class, demand.priority);
            self.ways.insert(key, ways);
        }
        let (found, freed, loss) = self.cheapest_ways(party, offer, missing, most)?;
        let (found, loss) = without_surplus(found, freed - missing, loss);
        (loss < most).then_some(found)
    }

    /// Ways to at least `missing` devices of an offer's class in the order of their price, with the
    /// devices they free and what they cost; `None` where that is `most` or more.
    fn cheapest_ways(
        &self,
        party: usize,
        offer: &Offer,
        missing: u32,
        most: f64,
    ) -> Option<(Vec<Way>, u32, f64)> {
        let own = self.offer(party, self.has[party]);
        let mut found: Vec<Way> = Vec::new();
        let (mut freed, mut loss) = (0, 0.0);
        let mut spare: BTreeMap<usize, u32> = BTreeMap::new();
        if let Some(own) = own {
            spare.insert(own.class, own.units);
        }
        for way in &self.ways[&(offer.class, self.parties[party].demand.priority)] {
            if loss + way.price * f64::from((missing - freed).min(way.freed)) >= most {
                return None;
            }
            if way.party == party {
                continue;
            }
            if let Some(before) = found.iter_mut().find(|other| other.party == way.party) {
                // A wider way to the same devices.
                if way.freed > before.freed && way.keeps.is_none() {
                    freed += way.freed - before.freed;
                    loss += way.loss - before.loss;
                    *before = *way;
                } else {
                    continue;
                }
            } else {
                if let Some(there) = self.offer(way.party, way.keeps)
                    && there.class != offer.class
                {
                    let room = spare.entry(there.class).or_default();
                    if self.remaining.units(there.class) + *room < there.units {
                        continue;
                    }
                    *room = (*room).saturating_sub(there.units);
                }
                freed += way.freed;
                loss += way.loss;
                found.push(*way);
            }
            if freed >= missing {
                break;
            }
        }
        (freed >= missing).then_some((found, freed, loss))
    }

    /// Every way to devices of a class that equals have.
    fn ways_to(&self, class: usize, priority: Priority) -> Vec<Way> {
        let mut ways = Vec::new();
        for (index, party) in self.parties.iter().enumerate() {
            let Some(offer) = self.offer(index, self.has[index]) else { continue };
            if !party.loses || offer.class != class || party.demand.priority != priority {
                continue;
            }
            let now = self.value(index, self.has[index]);
            let mut way = |keeps: Option<usize>, freed: u32, value: f64| {
                let loss = now - value;
                ways.push(Way { price: loss / f64::from(freed), party: index, keeps, freed, loss });
            };
            way(None, offer.units, 0.0);
            for (other, shape) in party.demand.offers.iter().enumerate() {
                if shape.class != class {
                    way(Some(other), offer.units, party.values[other]);
                } else if shape.units < offer.units {
                    way(Some(other), offer.units - shape.units, party.values[other]);
                }
            }
        }
        ways.sort_by(|a, b| a.price.total_cmp(&b.price).then(a.party.cmp(&b.party)));
        ways
    }
}

/// Drops the dearest ways that `surplus` freed devices make needless, and what they cost.
fn without_surplus(mut found: Vec<Way>, mut surplus: u32, mut loss: f64) -> (Vec<Way>, f64) {
    for at in (0..found.len()).rev() {
        if found[at].freed <= surplus {
            surplus -= found[at].freed;
            loss -= found[at].loss;
            found.remove(at);
        }
    }
    (found, loss)
}
