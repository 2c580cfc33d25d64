//! How long things take: throughput tables, learned rates, costs of stopping, the fabric.
//!
//! Knows: measured and estimated speeds as pure numbers.
//! Must never know: policies, the simulator, real devices.

pub mod fabric;
mod goodput;
mod moments;
mod rate_source;
mod rates;
mod saving;
mod stopping;
pub mod training;

pub use goodput::{Batch, ElasticClass, ElasticProfile, Goodput, efficiency};
pub use moments::Moments;
pub use rate_source::RateSource;
pub use rates::{Gang, Learned, Observed, Rates};
pub use saving::{
    FAILURES_PER_DEVICE_DAY, SAVE_EVERY_MAX, checkpoint_interval, mean_time_between_failures,
};
pub use stopping::{Held, LOAD_DEFAULT, SAVE_DEFAULT, cost_of, stop_cost};
