//! How long things take: throughput tables, learned rates, costs of stopping, the fabric.
//!
//! Knows: measured and estimated speeds as pure numbers.
//! Must never know: policies, the simulator, real devices.
//!
//! `rates` learns steps per second of every job, with `goodput` for elastic ones; `stop_cost` and
//! `checkpoint_interval` say what interruptions cost. [`training`] predicts the step of a
//! transformer from its parallel configuration, [`fabric`] flows and collectives of a network.

mod checkpoint_interval;
pub mod fabric;
mod goodput;
mod moments;
mod rate_source;
mod rates;
mod stop_cost;
pub mod training;

pub use checkpoint_interval::{
    CHECKPOINT_INTERVAL_MAX, FAILURES_PER_DEVICE_DAY, checkpoint_interval,
    mean_time_between_failures,
};
pub use goodput::{Batch, ElasticClass, ElasticProfile, Goodput, SeenStep, efficiency};
pub use moments::Moments;
pub use rate_source::RateSource;
pub use rates::{
    Gang, LOAD_DEFAULT, Learned, Observed, ObservedElastic, ObservedTime, Rates, SAVE_DEFAULT,
    StopTimes, Timed,
};
pub use stop_cost::{HeldResources, expected_loss, stop_cost, stop_cost_of};
