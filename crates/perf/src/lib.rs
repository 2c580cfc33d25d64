//! How long things take: throughput tables, learned rates, costs of stopping.
//!
//! Knows: measured and estimated speeds as pure numbers.
//! Must never know: policies, the simulator, real devices.

mod goodput;
mod moments;
mod rates;
mod stopping;

pub use goodput::{Batch, ElasticClass, ElasticProfile, Goodput, efficiency};
pub use moments::Moments;
pub use rates::{RateSource, Rates};
pub use stopping::{LOAD_DEFAULT, SAVE_DEFAULT, stop_cost};
