//! Where a rate comes from, and when a rate counts as revised.

/// Where a rate comes from, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RateSource {
    /// Given by a throughput table.
    Table,
    /// Observed on this class before.
    History,
    /// Planned for this class, and corrected by what was observed of the plan elsewhere.
    Planned,
    /// Observed on another class, scaled by the ratio of the catalogue's peaks.
    Scaled,
    /// Projected by a model to more devices than were ever observed.
    Extrapolated,
}

impl RateSource {
    pub fn word(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::History => "history",
            Self::Planned => "plan",
            Self::Scaled => "scaled",
            Self::Extrapolated => "extrapolated",
        }
    }
}

/// A rate is revised once the observed mean is off by more than this fraction of it: a report of
/// what is already known changes no rate.
pub(crate) const REVISION_THRESHOLD: f64 = 0.02;
