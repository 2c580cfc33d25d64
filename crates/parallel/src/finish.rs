//! When the job is done: failures, saves, energy and price included.

use het_core::Millis;
use het_perf::fabric::{Loading, LoadingLimit};
use het_perf::training::Island;
use het_perf::{checkpoint_interval, mean_time_between_failures};

use crate::layout::Layout;
use crate::request::{Dataset, Request};

/// The end of a job on so many tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finish {
    pub days: f64,
    /// Without failures and saves.
    pub days_undisturbed: f64,
    /// Of these, what is waited for weights and samples to be read.
    pub reading_s: f64,
    pub reading_limit: Option<LoadingLimit>,
    /// Time that goes into steps which count: a fraction.
    pub productive: f64,
    pub checkpoint_every: Millis,
    /// Training stands still for so long at each.
    pub save: Millis,
    pub mean_time_between_failures: Millis,
    /// At the power that devices draw at most, without hosts and cooling.
    pub energy_kwh: Option<f64>,
    pub price: Option<f64>,
}

/// Bytes of a checkpoint for each weight: itself, its master copy and two moments.
const CHECKPOINT_BYTES: f64 = 14.0;

impl Finish {
    /// The end of `tokens`, at so many a second.
    pub(crate) fn of(request: &Request, layout: &Layout, tokens: f64, tokens_per_s: f64) -> Self {
        let pools = layout.pools();
        let used = |pool: &usize| f64::from(layout.devices_of(*pool));
        let devices: f64 = pools.iter().map(used).sum();
        let slowest = pools
            .iter()
            .map(|pool| request.pools[*pool].machine.island.storage_gbps)
            .fold(f64::INFINITY, f64::min);
        let bytes = request.model.parameters() as f64 * CHECKPOINT_BYTES / devices;
        let save = Millis((bytes / (slowest * 1e6)).ceil() as u64);
        let between = mean_time_between_failures(devices as u32);
        let every = checkpoint_interval(save, between);
        let productive = productive(every, save, request.restart, between);
        let work_s = tokens / tokens_per_s;
        let loading = request.dataset.as_ref().map(|dataset| loading(request, layout, dataset));
        let reading_s = loading.map_or(0.0, |loading| loading.added_s(work_s));
        let undisturbed_s = work_s + reading_s;
        let seconds = undisturbed_s / productive;
        let hours = seconds / 3_600.0;
        let sum = |figure: &dyn Fn(usize) -> Option<f64>| -> Option<f64> {
            pools.iter().map(|pool| figure(*pool).map(|each| each * used(pool))).sum()
        };
        Self {
            days: seconds / 86_400.0,
            days_undisturbed: undisturbed_s / 86_400.0,
            reading_s,
            reading_limit: loading.map(|loading| loading.times().limit),
            productive,
            checkpoint_every: every,
            save,
            mean_time_between_failures: between,
            energy_kwh: sum(&|pool| request.pools[pool].power_w).map(|watts| watts * hours / 1e3),
            price: sum(&|pool| request.pools[pool].price_an_hour).map(|rate| rate * hours),
        }
    }
}

/// Bytes of a weight as it is published.
const WEIGHT_BYTES: f64 = 2.0;

/// Every replica reads the weights, all nodes of the layout read their part of a pass.
fn loading(request: &Request, layout: &Layout, dataset: &Dataset) -> Loading {
    let pools = layout.pools();
    let islands = || pools.iter().map(|pool| (*pool, request.pools[*pool].machine.island));
    let nodes = islands()
        .map(|(pool, island)| layout.devices_of(pool).div_ceil(island.devices_per_node.max(1)));
    let least = |rate: &dyn Fn(&Island) -> f64| {
        let of_node = |island: &Island| rate(island) * f64::from(island.devices_per_node) * 1e9;
        islands().map(|(_, island)| of_node(&island)).fold(f64::INFINITY, f64::min)
    };
    let replicas: u32 = layout.replicas.iter().map(|kind| kind.count).sum();
    Loading {
        pass_bytes: dataset.bytes.0 as f64,
        passes: dataset.passes,
        weights_bytes: request.model.parameters() as f64 * WEIGHT_BYTES * f64::from(replicas),
        nodes: nodes.sum(),
        storage: dataset.storage_gbps * 1e9,
        cards: dataset.cards_gbps.map_or(f64::INFINITY, |cards| cards * 1e9),
        route: dataset.route,
        host_memory: least(&|island| island.host_memory_gbps),
        cache_bytes: dataset.cache.0 as f64,
        cache: least(&|island| island.storage_gbps),
    }
}

/// Daly 2006, equation 20: a stretch of work of `every` with its save takes M·e^(R/M)·(e^((every +
/// save)/M) − 1), where failures come at random with a mean of M between them and R goes by until
/// work goes on.
fn productive(every: Millis, save: Millis, restart: Millis, between: Millis) -> f64 {
    let mean = between.0.max(1) as f64;
    let share = |time: f64| time / mean;
    let stretch = mean * share(restart.0 as f64).exp() * share((every.0 + save.0) as f64).exp_m1();
    every.0 as f64 / stretch
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3's 3.09 hours between failures, 30 s to save, 5 minutes to go on: 90.0 % to first
    /// order, 1 − C/T − T/2M − R/M with T = 817 s.
    #[test]
    fn more_than_nine_tenths_of_llama_threes_time_counts() {
        let between = mean_time_between_failures(16_384);
        assert!((between.0 as f64 / 3_600e3 - 3.09).abs() < 0.01);
        let save = Millis::seconds(30);
        let every = checkpoint_interval(save, between);
        let share = productive(every, save, Millis::seconds(300), between);
        assert!((share - 0.90).abs() < 0.01, "{share}");
    }
}
