//! The pure choosers: which jobs, how much, where, and why.
//!
//! Knows: [`Policy`], the rules that our policies combine, and placement on a pool of free devices.
//! Must never know: engines, clocks, or another policy's name.

mod adaptive;
mod decision;
mod greedy;
mod market;
mod memory;
mod peers;
mod placement;
mod preemption;
mod queue;
mod registry;
mod remainder;
mod rules;
mod speed;
mod suspected;
mod tenants;
mod upcoming;

pub use adaptive::Weights;
pub use decision::{Cadence, Decision, StopOrder, View, Want};
pub use memory::Cache;
pub use placement::{Candidate, Pool, Stands, Terms, candidates, packing, place, reasons_why_not};
pub use preemption::{PREEMPTIONS_MAX, preemption};
pub use registry::{Adaptive, POLICIES, by_name};
pub use remainder::Remainder;
pub use rules::Rules;
pub use suspected::on_suspected;
pub use upcoming::upcoming;

/// A pure chooser: the same view gives the same decision.
pub trait Policy: std::fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// What should be, given what is. `cache` is this policy's own, empty at first; it saves work
    /// and changes nothing.
    fn decide(&self, view: &View<'_>, cache: &mut Cache) -> Decision;
}
