//! Elastic training jobs as they really are: how long a step takes on which placement, how the
//! noise of the gradient changes from epoch to epoch, and a trainer inside the job that chooses its
//! batch by what it has measured (Qiao et al., OSDI 2021, "Pollux").
//!
//! Progress is counted in thousandths of a step at the initial batch, whatever the batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{Measured, Micro, Millis, Name};
use het_perf::{Batch, ElasticProfile, Goodput, efficiency};

/// Units of progress in a step at the initial batch.
pub const PROGRESS_PER_STEP: f64 = 1_000.0;

/// A trainer reconsiders its batch so long after it measured something new.
pub(crate) const RECONSIDERS_AFTER: Millis = Millis::seconds(60);

/// A kind of job, from measurements of real ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Application {
    /// What is known of it before it runs.
    pub profile: ElasticProfile,
    pub classes: BTreeMap<Name, StepTimes>,
    /// Steps at the initial batch until the end of each epoch.
    pub epochs: Vec<f64>,
    /// By batch size of all devices together: gradient noise in each epoch.
    pub noise: BTreeMap<u32, Vec<f64>>,
    /// How much slower it is in reality than in its measurements.
    pub slowdown: f64,
}

/// Measured steps on one device class.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepTimes {
    /// By devices on each node, in an order that no rotation comes before; rows by local batch.
    pub by_placement: BTreeMap<Vec<u32>, Vec<StepTime>>,
    /// The same by nodes and devices, for what was not measured exactly.
    pub by_size: BTreeMap<(u32, u32), Vec<StepTime>>,
}

/// A measured step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Samples a device.
    pub local: f64,
    pub step_s: f64,
    /// The exchange between devices in it.
    pub exchange_s: f64,
}

impl Application {
    /// Progress at the end of the last epoch.
    pub fn steps(&self) -> u64 {
        self.epochs.last().map_or(0, |steps| (steps * PROGRESS_PER_STEP).ceil() as u64)
    }

    /// Seconds that it takes at least on so many devices of a class that stand as close together as
    /// they can: each epoch with the best of batches 2 % apart. `None` where nothing was measured.
    pub fn least_seconds(&self, class: &Name, devices: u32) -> Option<f64> {
        let times = self.classes.get(class)?;
        let limits = self.profile.classes.get(class)?;
        let per_node = limits.devices_per_node.max(1);
        let mut placement = vec![per_node; (devices / per_node) as usize];
        placement.extend(Some(devices % per_node).filter(|&rest| rest > 0));
        let local_max = times.local_max(&placement).unwrap_or(limits.local_max);
        let local_max = local_max.min(limits.local_max).max(1);
        let batches = std::iter::successors(Some(f64::from(devices)), |size| Some(size * 1.02));
        let batches = batches.take_while(|&size| size <= f64::from(self.profile.batch_max));
        let measured = |size: f64| {
            let local = size / f64::from(devices);
            let parts = (local / f64::from(local_max)).ceil().max(1.0);
            (size, parts, times.at(&placement, local / parts))
        };
        let tried: Vec<_> = batches.map(measured).collect();
        let mut begins = 0.0;
        let seconds = self.epochs.iter().enumerate().map(|(epoch, &ends)| {
            let per_step =
                tried.iter().map(|&(size, parts, times)| self.seconds(epoch, size, parts, times));
            let steps = ends - std::mem::replace(&mut begins, ends);
            steps * per_step.fold(f64::INFINITY, f64::min)
        });
        Some(seconds.sum()).filter(|seconds: &f64| seconds.is_finite())
    }

    /// Seconds of what a step at the initial batch brings, in batches of so many samples that each
    /// device takes in so many parts: a step of one part, and the exchange in it, take `times`.
    fn seconds(&self, epoch: usize, batch: f64, parts: f64, (step, exchange): (f64, f64)) -> f64 {
        let scale = batch / f64::from(self.profile.batch_initial);
        let gain = efficiency(scale, self.noise(batch, epoch)) * scale / self.slowdown;
        (step + (parts - 1.0) * (step - exchange)) / gain
    }

    /// The epoch in which it is after so much progress.
    fn epoch(&self, done: u64) -> usize {
        let last = self.epochs.len().saturating_sub(1);
        let ended = |steps: &f64| (steps * PROGRESS_PER_STEP).ceil() as u64 <= done;
        self.epochs.partition_point(ended).min(last)
    }

    /// Progress at which the present epoch ends.
    fn epoch_end(&self, done: u64) -> u64 {
        let end = self.epochs.get(self.epoch(done)).copied().unwrap_or_default();
        (end * PROGRESS_PER_STEP).ceil() as u64
    }

    /// Gradient noise between the two nearest batch sizes that were measured.
    fn noise(&self, batch: f64, epoch: usize) -> f64 {
        let at = |(size, noise): (&u32, &Vec<f64>)| {
            (f64::from(*size), noise.get(epoch).or(noise.last()).copied().unwrap_or_default())
        };
        let below = self.noise.range(..=batch as u32).next_back().map(at);
        let above = self.noise.range(batch.ceil() as u32..).next().map(at);
        match (below, above) {
            (Some(low), Some(high)) => between(low, high, batch),
            (Some((_, noise)), None) | (None, Some((_, noise))) => noise,
            (None, None) => 0.0,
        }
    }
}

impl StepTimes {
    /// Seconds of a step with `local` samples a device, and of the exchange in it.
    fn at(&self, placement: &[u32], local: f64) -> (f64, f64) {
        if let Some(rows) = self.by_placement.get(&first_rotation(placement)) {
            return interpolate(rows, local);
        }
        let devices: u32 = placement.iter().sum();
        let size = (placement.len() as u32, devices);
        if let Some(rows) = self.by_size.get(&size) {
            return interpolate(rows, local);
        }
        // Between the nearest sizes with as many devices on each node or so, by devices.
        let spread = |&(nodes, devices): &(u32, u32)| f64::from(devices) / f64::from(nodes);
        let apart = |row: &(u32, u32)| (spread(row) / spread(&size)).ln().abs();
        let near = |beyond: bool| {
            let sizes = self.by_size.keys().filter(|(_, count)| (*count > devices) == beyond);
            sizes.min_by(|a, b| {
                let far =
                    |row: &(u32, u32)| f64::from(row.1.abs_diff(devices)) / f64::from(devices);
                (apart(a) + far(a)).total_cmp(&(apart(b) + far(b)))
            })
        };
        let value = |size: &(u32, u32)| interpolate(&self.by_size[size], local);
        match (near(false), near(true)) {
            (Some(low), Some(high)) => {
                let (below, above) = (value(low), value(high));
                let (x, low, high) = (f64::from(devices), f64::from(low.1), f64::from(high.1));
                (
                    between((low, below.0), (high, above.0), x),
                    between((low, below.1), (high, above.1), x),
                )
            }
            (Some(only), None) | (None, Some(only)) => value(only),
            (None, None) => (1.0, 0.0),
        }
    }

    /// Largest local batch that was measured there.
    fn local_max(&self, placement: &[u32]) -> Option<u32> {
        let rows = self.by_placement.get(&first_rotation(placement)).or_else(|| {
            let size = (placement.len() as u32, placement.iter().sum());
            self.by_size.range(size..).next().map(|(_, rows)| rows)
        })?;
        rows.last().map(|row| row.local as u32)
    }
}

/// The rotation that comes first; `[2, 1]` and `[1, 2]` are the same placement.
pub fn first_rotation(placement: &[u32]) -> Vec<u32> {
    let rotations = (0..placement.len()).map(|by| [&placement[by..], &placement[..by]].concat());
    rotations.min().unwrap_or_default()
}

/// Between the rows next to `local`; the nearest one outside of all.
fn interpolate(rows: &[StepTime], local: f64) -> (f64, f64) {
    let after = rows.partition_point(|row| row.local < local);
    match (after.checked_sub(1).map(|row| rows[row]), rows.get(after)) {
        (Some(low), Some(high)) => (
            between((low.local, low.step_s), (high.local, high.step_s), local),
            between((low.local, low.exchange_s), (high.local, high.exchange_s), local),
        ),
        (Some(row), None) | (None, Some(&row)) => (row.step_s, row.exchange_s),
        (None, None) => (1.0, 0.0),
    }
}

fn between(low: (f64, f64), high: (f64, f64), x: f64) -> f64 {
    if high.0 <= low.0 {
        return low.1;
    }
    low.1 + (high.1 - low.1) * (x - low.0) / (high.0 - low.0)
}

/// What the program inside one job knows and does.
#[derive(Debug, Clone)]
pub(crate) struct Trainer {
    application: Arc<Application>,
    goodput: Goodput,
    class: Name,
    /// Devices on each node.
    placement: Vec<u32>,
    batch: Batch,
}

impl Trainer {
    pub fn new(application: &Arc<Application>) -> Self {
        Self {
            application: Arc::clone(application),
            goodput: Goodput::new(application.profile.clone()),
            class: Name::default(),
            placement: Vec::new(),
            batch: Batch::default(),
        }
    }

    /// Begins on a placement, which has devices on each of its nodes.
    pub fn start(&mut self, class: &Name, placement: Vec<u32>) {
        self.class = class.clone();
        self.placement = placement;
        self.reconsider();
    }

    /// Nanoseconds of a unit of progress at present.
    pub fn step_ns(&self, done: u64) -> u64 {
        let application = &self.application;
        let Batch { local, accumulation } = self.batch;
        let devices: u32 = self.placement.iter().sum();
        let whole = f64::from(devices * local * (accumulation + 1));
        let (epoch, parts) = (application.epoch(done), f64::from(accumulation + 1));
        let seconds = application.seconds(epoch, whole, parts, self.truth(local));
        (seconds / PROGRESS_PER_STEP * 1e9).round().max(1.0) as u64
    }

    /// Measures a step, and learns from it.
    pub fn measure(&mut self, done: u64) -> Measured {
        let Batch { local, accumulation } = self.batch;
        let devices: u32 = self.placement.iter().sum();
        let whole = f64::from(devices * local * (accumulation + 1));
        let (step, exchange) = self.truth(local);
        let noise = self.application.noise(whole, self.application.epoch(done));
        let micro = |value: f64| Micro::from_f64(value).unwrap_or(Micro(i64::MAX));
        let measured = Measured {
            batch: local,
            accumulation,
            step: micro(step),
            exchange: micro(exchange),
            gradient_noise: micro(noise),
        };
        self.goodput.observe(&self.class, self.placement.len() as u32, devices, &measured);
        measured
    }

    /// Chooses the batch by what is known now; whether it changed.
    pub fn reconsider(&mut self) -> bool {
        let devices: u32 = self.placement.iter().sum();
        let nodes = self.placement.len() as u32;
        let profile = self.goodput.profile();
        let Some(limits) = profile.classes.get(&self.class) else { return false };
        let measured = self.application.classes.get(&self.class);
        let local_max = measured.and_then(|times| times.local_max(&self.placement));
        let local_max = local_max.unwrap_or(limits.local_max).min(limits.local_max);
        let first = f64::from(profile.batch_initial.max(limits.local_min * devices));
        let best = self.goodput.best(&self.class, nodes, devices, local_max);
        let mut batch =
            best.map_or_else(|| self.goodput.cut(first, devices, local_max), |(_, batch)| batch);
        let parts = devices * (batch.accumulation + 1);
        batch.local = batch.local.min(local_max).min(profile.batch_max / parts.max(1)).max(1);
        std::mem::replace(&mut self.batch, batch) != batch
    }

    /// Progress at which its speed changes by itself.
    pub fn epoch_end(&self, done: u64) -> u64 {
        self.application.epoch_end(done)
    }

    fn truth(&self, local: u32) -> (f64, f64) {
        let times = self.application.classes.get(&self.class);
        times.map_or((1.0, 0.0), |times| times.at(&self.placement, f64::from(local)))
    }
}
