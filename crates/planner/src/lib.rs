//! Planning of one job: from what a job file, a cluster and measurements say to the speeds that the
//! scheduler expects.
//!
//! Knows: known models, device figures and links, and how a search over cuts answers for a gang.
//! Must never know: queues, storage, or other jobs.

mod speeds;

pub use speeds::{Measured, models, plan};
