//! What stages ask for, each kind once: which devices would do, and whether it could ever fit,
//! follows from the cluster alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    Alternative, Bytes, Companions, Domain, Drivers, Isolation, Name, RankRule, Reason, Selector,
    StageSpec, State,
};

use super::place::never;
use super::pool::{Accepted, accepted};
use crate::Pool;

/// The devices of an alternative: word, number, least memory, whether it may have those that only
/// containers can, and the drivers of its program.
pub(crate) type Wanted = (Name, u32, Bytes, Isolation, Drivers);

pub(crate) fn wanted(alternative: &Alternative) -> Wanted {
    let Selector { word, memory_min, isolation, drivers, .. } = &alternative.selector;
    (word.clone(), alternative.count, *memory_min, *isolation, drivers.clone())
}

/// What decides where an alternative of a stage fits: its devices, what it needs beside them,
/// domain, ranks.
pub(crate) type Words = (Wanted, Companions, Domain, RankRule);

pub(crate) fn words(spec: &StageSpec, index: usize) -> Words {
    let devices = wanted(&spec.alternatives[index]);
    (devices, spec.companions, spec.within, spec.ranks)
}

/// Number of an [`Ask`]; what was forgotten and asked for again has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct AskId(u64);

/// What one or more alternatives ask for.
#[derive(Debug)]
pub(crate) struct Ask {
    pub id: AskId,
    pub accepted: Accepted,
    /// The same on devices of one class.
    by_class: Vec<(usize, Accepted)>,
    /// That it does not fit even the empty cluster.
    pub never: Option<Reason>,
}

impl Ask {
    fn new(id: AskId, state: &State, spec: &StageSpec, index: usize) -> Self {
        let selector = &spec.alternatives[index].selector;
        let all = accepted(state, selector, None);
        let mut classes: Vec<usize> = all.classes(state).collect();
        classes.sort_unstable();
        classes.dedup();
        let by_class = match *classes {
            [only] => vec![(only, all.clone())],
            _ => {
                let of_class = |class| (class, accepted(state, selector, Some(class)));
                classes.into_iter().map(of_class).collect()
            }
        };
        let never = never(&mut Pool::empty_cluster(state), spec, index);
        Self { id, accepted: all, by_class, never }
    }

    /// What would do of one class; `None` where nothing would.
    pub fn on_class(&self, class: usize) -> Option<&Accepted> {
        let (_, accepted) = self.by_class.iter().find(|(of, _)| *of == class)?;
        Some(accepted)
    }
}

/// Everything that anybody asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asks {
    known: BTreeMap<Words, Arc<Ask>>,
    next: AskId,
    /// Of those that nobody asks for any more, some are forgotten beyond this number.
    many: usize,
}

/// So many are kept however few are asked for.
const KEPT: usize = 1_024;

impl Asks {
    /// What alternative number `index` of a stage asks for.
    pub fn of(&mut self, state: &State, spec: &StageSpec, index: usize) -> Arc<Ask> {
        let words = words(spec, index);
        if let Some(ask) = self.known.get(&words) {
            return Arc::clone(ask);
        }
        if self.known.len() >= self.many.max(KEPT) {
            self.known.retain(|_, ask| Arc::strong_count(ask) > 1);
            self.many = 2 * self.known.len();
        }
        let ask = Arc::new(Ask::new(self.next, state, spec, index));
        self.next = AskId(self.next.0 + 1);
        self.known.insert(words, Arc::clone(&ask));
        ask
    }
}
