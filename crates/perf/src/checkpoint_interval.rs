//! How often to write a checkpoint: the interval at which failures and checkpoints together cost
//! least.

use het_core::Millis;

/// Failures of a device a day that end a job: 419 in 54 days on 16,384 devices (Llama team 2024,
/// "The Llama 3 herd of models", table 5).
pub const FAILURES_PER_DEVICE_DAY: f64 = 419.0 / 16_384.0 / 54.0;

/// Longest time between two checkpoints, however seldom devices fail: a failure that no statistic
/// covers, such as a machine that is switched off, costs no more than this.
pub const CHECKPOINT_INTERVAL_MAX: Millis = Millis::seconds(3_600);

/// Least work between two checkpoints.
const CHECKPOINT_INTERVAL_MIN: Millis = Millis::seconds(10);

/// Mean time between failures that end a job on so many devices.
pub fn mean_time_between_failures(devices: u32) -> Millis {
    let days = 1.0 / (FAILURES_PER_DEVICE_DAY * f64::from(devices.max(1)));
    Millis((days * 86_400e3) as u64)
}

/// Work between two checkpoints that loses least time, where one takes `save`: Daly 2006, "A higher
/// order estimate of the optimum checkpoint interval for restart dumps", equation 37; its first
/// term is Young's (1974).
pub fn checkpoint_interval(save: Millis, mean_time_between_failures: Millis) -> Millis {
    let (save, mean) = (save.0 as f64, mean_time_between_failures.0.max(1) as f64);
    let ratio = save / (2.0 * mean);
    let best = if ratio < 1.0 {
        (2.0 * save * mean).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - save
    } else {
        mean
    };
    Millis(best as u64).clamp(CHECKPOINT_INTERVAL_MIN, CHECKPOINT_INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 24 h job of Daly's: 5 minutes to save, 24 hours between failures. Young's first order says
    /// sqrt(2 · 5 · 1440) = 120 min, less the save and with the higher orders 116.7.
    #[test]
    fn the_interval_is_dalys() {
        let ratio: f64 = 5.0 / 2_880.0;
        let best = 120.0 * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - 5.0;
        assert!((best - 116.7).abs() < 0.05, "{best}");
        let minutes = |count: u64| Millis::seconds(60 * count);
        assert_eq!(checkpoint_interval(minutes(5), minutes(1_440)), CHECKPOINT_INTERVAL_MAX);
        // 9,600 devices at Llama 3's rate and saves of 10 s: Young's 617 s, as in the faults study.
        let every = checkpoint_interval(Millis::seconds(10), mean_time_between_failures(9_600));
        assert_eq!(every.0 / 1_000, 609);
    }

    #[test]
    fn the_interval_is_the_time_between_failures_where_a_checkpoint_takes_longer() {
        let every = checkpoint_interval(Millis::seconds(600), Millis::seconds(100));
        assert_eq!(every, Millis::seconds(100));
    }
}
