//! What is expected to be asked for: the like of what everybody who is here asks for.

use std::collections::BTreeMap;

use het_core::{Share, StageSpec, State};

use super::contents::item;
use super::packing::{Item, Mix};

/// Weight of one stage; its alternatives share it. All numbers up to 8 divide it.
const STAGE: u64 = 840;

/// What stages ask for that wait or run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Expected {
    weights: BTreeMap<Item, u64>,
    /// Of those that need cores beside accelerators.
    beside: u64,
}

/// What one stage adds.
pub(crate) type Part = Vec<(Item, u64)>;

/// What a stage adds that may have any of its alternatives.
pub(crate) fn waits(state: &State, spec: &StageSpec) -> Part {
    let count = spec.alternatives.len();
    // Nothing is 0: it would be taken for nothing that was added.
    let weight = (STAGE / count.max(1) as u64).max(1);
    (0..count).map(|index| (item(state, spec, index), weight)).collect()
}

/// What a stage adds that has one of them.
pub(crate) fn runs(state: &State, spec: &StageSpec, index: usize) -> Part {
    vec![(item(state, spec, index), STAGE)]
}

impl Expected {
    /// The same, counted at once.
    pub fn of(state: &State) -> Self {
        let mut expected = Self::default();
        for key in state.waiting() {
            expected.add(&waits(state, state.stage(key).1));
        }
        for lease in state.leases().values() {
            let (_, spec, _) = state.stage(lease.stage);
            expected.add(&runs(state, spec, lease.placement.alternative));
        }
        expected
    }

    pub fn add(&mut self, part: &[(Item, u64)]) {
        for &(item, weight) in part {
            *self.weights.entry(item).or_default() += weight;
            self.beside += beside(&item, weight);
        }
    }

    pub fn remove(&mut self, part: &[(Item, u64)]) {
        for &(item, weight) in part {
            let left = self.weights.get_mut(&item).expect("it was added");
            *left -= weight;
            if *left == 0 {
                self.weights.remove(&item);
            }
            self.beside -= beside(&item, weight);
        }
    }

    /// The mix of both; `None` where nobody needs cores beside accelerators, since then
    /// the fullest node is best for everybody.
    pub fn mix(&self, others: &Self) -> Option<Mix> {
        if self.beside + others.beside == 0 {
            return None;
        }
        let mut weights = self.weights.clone();
        for (item, weight) in &others.weights {
            *weights.entry(*item).or_default() += weight;
        }
        Some(Mix::weighted(weights))
    }
}

fn beside(item: &Item, weight: u64) -> u64 {
    let needs = item.devices > 0 && item.cores > Share::ZERO;
    if needs { weight } else { 0 }
}
