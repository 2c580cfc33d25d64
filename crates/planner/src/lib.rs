//! Planning of one job: from what a job file, a cluster and measurements say to the speeds that the
//! scheduler expects.
//!
//! Knows: known models, device figures and links, how a search over cuts answers for a gang, the
//! words that tell a launcher of a cut, and how near estimates come to measured runs.
//! Must never know: queues, storage, or other jobs.

mod launch;
pub mod pools;
mod speeds;
pub mod validation;

pub use launch::Launcher;
pub use pools::{PoolError, Pools};
pub use speeds::{Measured, models, plan};
