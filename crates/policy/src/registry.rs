//! Every policy by name: the table that commands and reports choose from.

use crate::adaptive::Weights;
use crate::packing::PackingRule;
use crate::peers::{InOrder, Index, IndexPolicy, Objective, Shares, Sia};
use crate::rules::{ADAPTIVE, DYNAMIC, FEEDBACK, FIFO, HYBRID, Rules, STATIC};
use crate::{Cache, Decision, Policy, View, greedy};

/// Ours first, then the published ones, re-implemented for honest comparison.
pub static POLICIES: &[&dyn Policy] = &[
    &FIFO,
    &STATIC,
    &DYNAMIC,
    &HYBRID,
    &FEEDBACK,
    &Adaptive(Weights::SHIPPED),
    &Sia,
    &InOrder(PackingRule::LeastFragmentation),
    &InOrder(PackingRule::BestFit),
    &InOrder(PackingRule::Random),
    &IndexPolicy { name: "srpt", order: Index::ShortestRemaining },
    &IndexPolicy { name: "las", order: Index::LeastAttained },
    &Shares { name: "fifo-perf", objective: Objective::FirstComeFastest },
    &Shares { name: "isolated", objective: Objective::Isolated },
    &Shares { name: "max-min-fairness", objective: Objective::MaxMinTime },
    &Shares { name: "max-min-fairness-perf", objective: Objective::MaxMinSpeed },
    &Shares { name: "max-sum-throughput-perf", objective: Objective::SumThroughput },
    &Shares { name: "min-total-duration-perf", objective: Objective::Makespan },
    &Shares { name: "finish-time-fairness-perf", objective: Objective::FinishTimeFairness },
];

/// The policy of that name.
pub fn by_name(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|policy| policy.name() == name)
}

impl Policy for Rules {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&self, view: &View<'_>, cache: &mut Cache) -> Decision {
        greedy::decide(self, None, view, cache)
    }
}

/// Prices choose. See `adaptive::value` for what an offer is worth, `market` for prices.
#[derive(Debug, Clone, Copy)]
pub struct Adaptive(pub Weights);

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        ADAPTIVE.name
    }

    fn decide(&self, view: &View<'_>, cache: &mut Cache) -> Decision {
        greedy::decide(&ADAPTIVE, Some(&self.0), view, cache)
    }
}
