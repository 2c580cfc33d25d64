//! Our policies as a table of rules; no policy asks another's name.

use het_core::Millis;

/// How waiting stages are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Strictly by submission.
    Submission,
    /// By priority, then submission.
    Priority,
    /// By raised priority, then least expected device time beside the time waited; those of whom
    /// that is not known come last, by level.
    AgedShortest,
    /// By raised priority, then level, then submission.
    Feedback,
}

/// May a stage start past one that does not fit?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    Never,
    /// Yes; a stage passed for `reserve_after` gets its devices reserved as they become free.
    Backfill {
        reserve_after: Option<Millis>,
    },
}

/// Which of several alternatives a stage takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The one that rule and profile name at submission, whatever is free.
    Fixed,
    /// The best among those that fit now: the one that is expected to finish first, or, where they
    /// are balanced, the one that costs all least.
    FreeNow,
    /// The best one at first, whatever is free; free now once the stage has waited this long.
    FixedUntil(Millis),
    /// The one among those that fit now that is worth most beyond its price.
    ByPrice,
}

/// Whether stages that have a choice of devices heed what those are worth to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balancing {
    Never,
    /// When they start, and while they run: they move where the rest of their work costs all less.
    Throughout,
}

/// Whether those of one priority take turns while they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    Never,
    /// Who has had much gives way, at a checkpoint, to who has had little.
    ByLevels,
    /// Who gives least for its devices gives way, once its quantum is over, to who gives most.
    ByPrice,
}

/// What a policy is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub name: &'static str,
    pub order: Order,
    pub passing: Passing,
    pub choice: Choice,
    pub balancing: Balancing,
    pub preempts: Preempts,
    pub sharing: Sharing,
}

/// Whether running stages of lower priority are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preempts {
    Never,
    ForHigherPriority,
}

/// After this long behind others, a stage that does not fit gets devices reserved for it.
const RESERVE_AFTER: Millis = Millis::seconds(600);

/// How long `hybrid` keeps to its static plan before it corrects it.
const HYBRID_PATIENCE: Millis = Millis::seconds(60);

/// Strict order of submission.
pub(crate) static FIFO: Rules = Rules {
    name: "fifo",
    order: Order::Submission,
    passing: Passing::Never,
    choice: Choice::FreeNow,
    balancing: Balancing::Never,
    preempts: Preempts::Never,
    sharing: Sharing::Never,
};

/// Rule and profile fix the devices at submission.
pub(crate) static STATIC: Rules = Rules {
    name: "static",
    order: Order::Priority,
    passing: Passing::Backfill { reserve_after: None },
    choice: Choice::Fixed,
    balancing: Balancing::Never,
    preempts: Preempts::Never,
    sharing: Sharing::Never,
};

/// Decided again on every event from what is free.
pub(crate) static DYNAMIC: Rules = Rules {
    name: "dynamic",
    order: Order::AgedShortest,
    passing: Passing::Backfill { reserve_after: Some(RESERVE_AFTER) },
    choice: Choice::FreeNow,
    balancing: Balancing::Throughout,
    preempts: Preempts::ForHigherPriority,
    sharing: Sharing::Never,
};

/// Planned as if all were free, corrected once that makes a stage late and while it runs.
pub(crate) static HYBRID: Rules = Rules {
    name: "hybrid",
    order: Order::AgedShortest,
    passing: Passing::Backfill { reserve_after: Some(RESERVE_AFTER) },
    choice: Choice::FixedUntil(HYBRID_PATIENCE),
    balancing: Balancing::Throughout,
    preempts: Preempts::ForHigherPriority,
    sharing: Sharing::Never,
};

/// A multi-level feedback queue: nothing is known about lengths, what was had decides.
pub(crate) static FEEDBACK: Rules = Rules {
    name: "feedback",
    order: Order::Feedback,
    passing: Passing::Backfill { reserve_after: Some(RESERVE_AFTER) },
    choice: Choice::FreeNow,
    balancing: Balancing::Throughout,
    preempts: Preempts::ForHigherPriority,
    sharing: Sharing::ByLevels,
};

/// Ordered, placed and shared by prices: see `adaptive::value`.
pub(crate) static ADAPTIVE: Rules = Rules {
    name: "adaptive",
    order: Order::AgedShortest,
    passing: Passing::Backfill { reserve_after: Some(RESERVE_AFTER) },
    choice: Choice::ByPrice,
    balancing: Balancing::Throughout,
    preempts: Preempts::ForHigherPriority,
    sharing: Sharing::ByPrice,
};
