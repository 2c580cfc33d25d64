//! The pure choosers: which jobs, how much, where, and why.
//!
//! Knows: [`Policy`], the rules that our policies combine, and placement on a pool of free devices.
//! Must never know: engines, clocks, or another policy's name.

mod adaptive;
mod asks;
mod assign;
mod candidates;
mod decision;
mod demand;
mod ends;
mod exchange;
mod footprint;
mod greedy;
mod group;
mod left;
mod levels;
mod line;
mod market;
mod memory;
mod moves;
mod order;
pub mod packing;
mod place;
mod pods;
mod pool;
mod preempt;
mod queue;
mod registry;
mod rules;
mod running;
mod shares;
mod sia;
mod speed;
mod tenants;
mod turns;
mod value;
mod worth;

pub use adaptive::{Adaptive, Weights};
pub use candidates::{Candidate, Stands, Terms, candidates};
pub use decision::{Cadence, Decision, StopOrder, View, Want};
pub use memory::Cache;
pub use place::{place, reasons_why_not};
pub use pool::Pool;
pub use preempt::{PREEMPTIONS_MAX, preemption};
pub use registry::{POLICIES, by_name};
pub use rules::Rules;

/// A pure chooser: the same view gives the same decision.
pub trait Policy: std::fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// What should be, given what is. `cache` is this policy's own, empty at first; it saves work
    /// and changes nothing.
    fn decide(&self, view: &View<'_>, cache: &mut Cache) -> Decision;
}
