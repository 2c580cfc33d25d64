//! Why, and why not: typed values, so that every refusal can be explained in any language.

use crate::{Name, StageKey};

/// A reason for a decision about one stage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    // Why it starts, and why there.
    /// The only shape of the request.
    OnlyAlternative { word: Name },
    /// Chosen among several shapes because it should finish first.
    FastestFinish { word: Name },
    /// Chosen because it does most with its devices while these are short.
    BestUse { word: Name },
    /// Chosen because it is free now while a preferred shape is not.
    FreeNow { word: Name },
    /// The first of several shapes that this cluster could ever run.
    FirstPossible { word: Name },
    /// Fixed at submission by rule or profile.
    FixedAtSubmission { word: Name },
    /// Started past stages that are ahead of it but do not fit.
    Backfilled,
    /// Devices claimed for it earlier became free.
    ClaimReady,
    /// The planner of this round gives it its turn there.
    ItsTurn { word: Name },
    /// Nothing else is free, and it loses little if its program hangs there, as others did.
    OnSuspected { word: Name },
    /// Continues from a checkpoint.
    Resumed { step: u64 },
    /// Waited long enough to rise in priority.
    Aged { seconds: u64 },
    /// Its gang stands in so many domains of a kind, and is slower for it than in one.
    SpreadOver { count: u32, domain: Name, slower_pct: u32 },

    // Why it waits.
    /// Too few devices are free now.
    NotEnough { word: Name, need: u32 },
    /// Enough devices are free, but not inside one domain.
    TooSpread { word: Name, need: u32, domain: Name },
    /// Companion cores or memory are missing beside the devices.
    NoCompanions { word: Name },
    /// The cluster could not run it even if it were empty.
    NeverFits { word: Name, need: u32, largest: u32 },
    /// The cluster has the devices, and no driver of its program reaches enough of them.
    NoDriver { word: Name, drivers: Vec<Name> },
    /// Strict order: an earlier stage does not fit, so nobody passes it.
    HeadOfLine { blocker: StageKey },
    /// Others have their turn in this round.
    NotItsTurn,
    /// Its devices are claimed and being freed.
    ClaimPending,
    /// Waiting for faster devices ends sooner than starting on slower ones now.
    BetterToWait { word: Name },
    /// Stopping others would cost more than it brings.
    PreemptionTooDear,

    /// It would still run when a stage could begin that has waited long for more devices.
    WouldDelay { blocker: StageKey },
    /// Its tenant, or one above it, may hold no more of a device class.
    OverLimit { tenant: Name, class: Name, limit: u32 },
    /// What is free is kept for tenants who are entitled to it and could not take it back.
    KeptForOthers { class: Name },
    /// It is not preemptible, so its tenant could not give back what it would borrow for it.
    MayNotBorrow { tenant: Name, class: Name },

    // Why it is stopped.
    /// Makes room for a stage of higher priority.
    MakesRoom { preemptor: StageKey },
}

impl Reason {
    /// True where waiting with idle devices was chosen on purpose (law 9's exception).
    pub fn prefers_waiting(&self) -> bool {
        matches!(
            self,
            Self::HeadOfLine { .. }
                | Self::WouldDelay { .. }
                | Self::OverLimit { .. }
                | Self::KeptForOthers { .. }
                | Self::MayNotBorrow { .. }
                | Self::BetterToWait { .. }
                | Self::FixedAtSubmission { .. }
                | Self::ClaimPending
        )
    }
}
