//! How far the lists are of what there is.

use std::collections::BTreeSet;

/// How far the list of all objects of a kind is.
#[derive(Debug, Default)]
pub(super) enum Listing<K> {
    #[default]
    Never,
    /// Those that the list has named so far.
    UnderWay(BTreeSet<K>),
    Done,
}

impl<K: Ord> Listing<K> {
    pub fn name(&mut self, key: K) {
        if let Self::UnderWay(named) = self {
            named.insert(key);
        }
    }

    /// Ends the list; which objects it named, where it was one.
    pub fn end(&mut self) -> Option<BTreeSet<K>> {
        match std::mem::replace(self, Self::Done) {
            Self::UnderWay(named) => Some(named),
            Self::Never | Self::Done => None,
        }
    }
}
