//! Whom to look at next.

use std::collections::BTreeSet;

use super::Pass;
use crate::line::{GroupId, Line};
use crate::order::{Precedence, Rank};

/// The first of every group.
pub(super) struct Heads {
    /// Whoever is looked at first is last.
    sorted: Vec<(Precedence, Rank, GroupId)>,
    /// Those who came to stand at the head of their group meanwhile.
    pub later: BTreeSet<(Precedence, Rank, GroupId)>,
}

impl Heads {
    pub fn of(pass: &mut Pass<'_>, line: &Line) -> Self {
        let row =
            |(rank, id): (Rank, GroupId)| (pass.precedence(line.look_up(id), &rank), rank, id);
        let mut sorted: Vec<_> = line.heads().map(row).collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        Self { sorted, later: BTreeSet::new() }
    }

    pub fn pop(&mut self) -> Option<(Precedence, Rank, GroupId)> {
        match (self.sorted.last(), self.later.first()) {
            (Some(row), Some(other)) if other < row => self.later.pop_first(),
            (None, _) => self.later.pop_first(),
            _ => self.sorted.pop(),
        }
    }
}
