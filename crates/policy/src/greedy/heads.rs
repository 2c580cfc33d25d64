//! Whom to look at next.

use std::collections::BTreeSet;

use super::Pass;
use crate::queue::{GroupId, Head, PendingQueue, Precedence, Rank};
use crate::rules::Order;

/// The first of every group, level by level: nobody of a lower level comes before one of a higher.
/// One level where tenants have quotas, which stand above it.
pub(super) fn levels(pass: &Pass<'_>, queue: &PendingQueue) -> Vec<Vec<Head>> {
    let heads: Vec<Head> = queue.heads().collect();
    if pass.supply.tenants.is_some() && pass.rules.order != Order::Submission {
        return vec![heads];
    }
    let of_one = heads.chunk_by(|a, b| a.rank.level() == b.rank.level());
    of_one.map(<[Head]>::to_vec).collect()
}

/// The heads of one level, as far as they were not looked at.
pub(super) struct Heads {
    /// Whoever is looked at first is last.
    sorted: Vec<(Precedence, Head)>,
    /// Those who came to stand at the head of their group meanwhile.
    pub later: BTreeSet<(Precedence, Head)>,
}

impl Heads {
    pub fn of(pass: &mut Pass<'_>, queue: &PendingQueue, level: Vec<Head>) -> Self {
        let row = |head: Head| (pass.precedence(queue, &head), head);
        let mut sorted: Vec<_> = level.into_iter().map(row).collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        Self { sorted, later: BTreeSet::new() }
    }

    /// Whoever waits next in a group comes to stand at its head.
    pub fn come_up(&mut self, pass: &mut Pass<'_>, queue: &PendingQueue, id: GroupId, after: Rank) {
        if let Some(rank) = queue.next(id, after) {
            let head = queue.group(id).head(rank);
            self.later.insert((pass.precedence(queue, &head), head));
        }
    }

    pub fn pop(&mut self) -> Option<(Precedence, Head)> {
        match (self.sorted.last(), self.later.first()) {
            (Some(row), Some(other)) if other < row => self.later.pop_first(),
            (None, _) => self.later.pop_first(),
            _ => self.sorted.pop(),
        }
    }
}
