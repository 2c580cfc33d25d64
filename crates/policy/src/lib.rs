//! The pure choosers: which jobs, how much, where, and why.
//!
//! Knows: [`Policy`], the rules that our policies combine, and placement on a pool of free devices.
//! Must never know: engines, clocks, or another policy's name.

mod decision;
mod greedy;
mod order;
mod place;
mod pool;
mod preempt;
mod rules;

pub use decision::{Decision, StopOrder, View, Want};
pub use place::{place, reasons_why_not};
pub use pool::Pool;
pub use preempt::PREEMPTIONS_MAX;
pub use rules::{POLICIES, Rules, by_name};

/// A pure chooser: the same view gives the same decision.
pub trait Policy: Send + Sync {
    fn name(&self) -> &'static str;

    /// What should be, given what is.
    fn decide(&self, view: &View<'_>) -> Decision;
}
