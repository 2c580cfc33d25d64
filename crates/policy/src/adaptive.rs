//! What `adaptive` goes by beside its rules: what devices are worth to a stage, and the weights of
//! that.

mod value;

pub(crate) use value::{Bid, Prices, quantum};

/// Every weight of ours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Between a lightly and a heavily loaded cluster, by how many times longer than the longest
    /// job all the work takes.
    pub load: (f64, f64),
    /// Weight of common progress at light and at heavy load.
    pub common: (f64, f64),
    /// At heavy load, or once the queue drains, a stage is critical from this part of the horizon
    /// on.
    pub critical: f64,
    /// Without arrivals for this part of the horizon the queue is taken to drain.
    pub draining_after: f64,
    /// A stage that would end later than alone on an equal part of the cluster is late, and rises
    /// with a power of its lateness at light and at heavy load.
    pub late_power: (f64, f64),
    /// Power of the progress of a stage that may have more or fewer devices, and of the speed of
    /// one of unknown length.
    pub diminishing: f64,
    /// Of unknown length: device-seconds from which on the weight falls, and how fast, and the
    /// seconds that it is taken to need.
    pub young_device_s: f64,
    pub young_power: f64,
    pub unknown_s: f64,
    /// How often the gain of a change must make up for what it costs.
    pub caution: f64,
    /// How often a change must make up for a restart, beside what is left to do.
    pub stop: f64,
    /// Length of a quantum, in costs of a stop.
    pub quantum: f64,
}

impl Weights {
    /// `common` at light load, `critical`, `diminishing`, `young_device_s`, `caution` and `stop`
    /// were found by `lab/examples/market_weights` on drawn workloads alone. For the others it
    /// found nothing better than what an earlier search on Gavel's and Sia's inputs had found.
    /// `docs/studies/weights.md` shows what each is worth.
    pub const SHIPPED: Self = Self {
        load: (1.2, 1.6),
        common: (4.0, 16.0),
        critical: 0.9,
        draining_after: 0.3,
        late_power: (0.9, 2.0),
        diminishing: 0.25,
        young_device_s: 30_000.0,
        young_power: 0.2,
        unknown_s: 3_600.0,
        caution: 5.0,
        stop: 1.0,
        quantum: 3.0,
    };
}
