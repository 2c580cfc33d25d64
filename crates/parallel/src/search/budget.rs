//! How many of the mixes are searched.

/// Expansions of mixes that are left. Counted, not timed: the same question has the same answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchBudget {
    whole: u64,
    left: u64,
    of_this: u64,
    in_part: bool,
}

/// Pools whose mixes are all looked at. Those of more grow with a power of their number.
const POOLS_WHOLE: usize = 2;

/// Expansions of each shape of mixes where there are more pools: about a second.
const EXPANSIONS: u64 = 1_000_000;

/// Expansions that pricing is worth.
pub(super) const PRICED: u64 = 50;

impl SearchBudget {
    pub fn on(pools: usize) -> Self {
        let whole = if pools > POOLS_WHOLE { EXPANSIONS } else { u64::MAX };
        Self { whole, left: whole, of_this: 0, in_part: false }
    }

    /// Begins with another shape.
    pub fn renew(&mut self) {
        self.left = self.whole;
    }

    /// Begins one of so many parts that are still to come, each of which has as much as the others.
    pub fn begin(&mut self, parts: usize) {
        self.of_this = self.left / parts.max(1) as u64;
    }

    /// Whether this part may go on, for so many expansions.
    pub fn spend(&mut self, expansions: u64) -> bool {
        if self.of_this < expansions {
            self.in_part = true;
            return false;
        }
        self.of_this -= expansions;
        self.left -= expansions;
        true
    }

    /// Whether something was left out.
    pub fn in_part(&self) -> bool {
        self.in_part
    }
}
