//! Builders, drawn scenes, the oracle, programs that may be missing: what tests share.
//!
//! Knows: how to make small clusters and jobs, and the laws, written down a second time.
//! Must never know: how the scheduler works. The oracle shares no code with it.

pub mod build;
pub mod oracle;
mod programs;
pub mod scene;

pub use programs::has_python;
