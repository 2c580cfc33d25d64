//! Measurements of the runtime itself, for `het bench graph`.

mod graphs;
mod overhead;
mod quality;

pub use graphs::{Factorisation, READYS, Transfers, Workload, machine};
pub use overhead::{Overhead, Shape, overhead};
pub use quality::{Quality, SchedulerQuality, quality};
