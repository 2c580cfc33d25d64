//! Every policy by name: the table that commands and reports choose from.

use crate::Policy;
use crate::adaptive::{Adaptive, Weights};
use crate::packing::PackingRule;
use crate::pods::InOrder;
use crate::queue::{Queue, QueueOrder};
use crate::rules::{DYNAMIC, FEEDBACK, FIFO, HYBRID, STATIC};
use crate::shares::{Objective, Shares};
use crate::sia::Sia;

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
    &Queue { name: "srpt", order: QueueOrder::ShortestRemaining },
    &Queue { name: "las", order: QueueOrder::LeastAttained },
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
