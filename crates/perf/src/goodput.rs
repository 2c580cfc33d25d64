//! How fast an elastic training job learns on so many devices: samples per second times how much a
//! sample of a large batch is worth (Qiao et al., OSDI 2021, "Pollux"; on several device classes:
//! Jayaram Subramanya et al., SOSP 2023, "Sia"). Everything is learned from steps that the job
//! made; a class that it never ran on is projected from one that it did.

use std::collections::BTreeMap;

use het_core::{BatchRange, Measured, Name};

use crate::rate_source::{REVISION_THRESHOLD, RateSource};

/// What is known about a job before it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct ElasticProfile {
    /// Batch of all devices together that it starts with, and that its progress is counted in.
    pub batch_initial: u32,
    pub batch_max: u32,
    pub classes: BTreeMap<Name, ElasticClass>,
}

impl ElasticProfile {
    /// What its progress is counted in, and how large they may be: progress in other batches says
    /// nothing about it.
    pub fn batches(&self) -> BatchRange {
        BatchRange { min: self.batch_initial, max: self.batch_max }
    }
}

/// How it stands on one device class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElasticClass {
    /// Least and largest batch that a device takes at once.
    pub local_min: u32,
    pub local_max: u32,
    pub devices_per_node: u32,
    /// Samples per second of one device, relative to the other classes; used once the job has been
    /// seen to run somewhere.
    pub relative_speed: f64,
}

/// How a job cuts its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Batch {
    /// Samples a device takes at once.
    pub local: u32,
    /// Further such batches before each update of the weights.
    pub accumulation: u32,
}

/// The learned model of one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Goodput {
    profile: ElasticProfile,
    /// By class: seconds of a step, and of the exchange in it.
    seen: BTreeMap<Name, BTreeMap<Shape, (f64, f64)>>,
    fitted: BTreeMap<Name, StepTime>,
    /// Gradient noise: variance of the gradient over its square, at the initial batch.
    noise: Option<f64>,
}

/// Nodes, devices, samples a device.
type Shape = (u32, u32, u32);

/// Seconds of a step on so many devices in so many nodes, with so many samples a device at once,
/// and of the exchange in it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenStep {
    pub class: Name,
    pub nodes: u32,
    pub devices: u32,
    pub local: u32,
    pub step_s: f64,
    pub exchange_s: f64,
}

/// Shapes of which the times of a step are kept, of each class: a job may report any number.
const SHAPES_MAX: usize = 256;

/// The one of as many devices whose batch is nearest says most of the same; else any will do.
fn drop_nearest(seen: &mut BTreeMap<Shape, (f64, f64)>, (nodes, devices, local): Shape) {
    let alike = seen.range((nodes, devices, 0)..=(nodes, devices, u32::MAX));
    let nearest = alike.min_by_key(|((_, _, other), _)| other.abs_diff(local));
    let dropped = nearest.or_else(|| seen.first_key_value()).map(|(shape, _)| *shape);
    dropped.map(|shape| seen.remove(&shape));
}

/// Whether a step, or the exchange in it, took so much more or less that it makes a difference.
fn differs(before: (f64, f64), now: (f64, f64)) -> bool {
    let least = REVISION_THRESHOLD * before.0;
    (now.0 - before.0).abs() > least || (now.1 - before.1).abs() > least
}

/// Batches tried between the least and the largest, in equal ratios.
const BATCHES: usize = 50;

/// A job may be trusted with this many times the devices that it was ever seen on (Sia).
const GROWTH_TRUSTED: u32 = 2;

/// The model is asked for no more than this many times.
const GROWTH_MAX: u32 = 4;

/// Before the first step, so many devices are taken to be worth their number to this power.
const FIRST_DEVICES_MAX: u32 = 4;
const FIRST_SCALING: f64 = 0.5;

/// No more devices than this.
const DEVICES_MAX: u32 = 64;

impl Goodput {
    pub fn new(profile: ElasticProfile) -> Self {
        Self { profile, seen: BTreeMap::new(), fitted: BTreeMap::new(), noise: None }
    }

    pub fn profile(&self) -> &ElasticProfile {
        &self.profile
    }

    /// Learns from a step on `devices` devices of `class` that stand in `nodes` nodes. Whether any
    /// rate is another one now.
    pub fn observe(&mut self, class: &Name, nodes: u32, devices: u32, measured: &Measured) -> bool {
        let noise = measured.gradient_noise.as_f64();
        let known = |known: f64| (noise - known).abs() <= REVISION_THRESHOLD * known;
        let mut is_news = !self.noise.is_some_and(known);
        if is_news {
            self.noise = Some(noise);
        }
        let local = measured.batch.min(self.profile.batch_max);
        if let Some(own) = self.profile.classes.get_mut(class) {
            own.local_max = own.local_max.max(local);
        }
        let seen = self.seen.entry(class.clone()).or_default();
        let times = (measured.step.as_f64(), measured.exchange.as_f64());
        let shape = (nodes, devices, local);
        if seen.get(&shape).is_none_or(|&before| differs(before, times)) {
            if seen.len() >= SHAPES_MAX && !seen.contains_key(&shape) {
                drop_nearest(seen, shape);
            }
            seen.insert(shape, times);
            let fitted = StepTime::fit(seen);
            self.fitted.insert(class.clone(), fitted);
            is_news = true;
        }
        is_news
    }

    /// Learns of classes as they are now; what is known of the job stays.
    pub fn extend(&mut self, classes: BTreeMap<Name, ElasticClass>) {
        for (name, class) in classes {
            let local_max = self.profile.classes.get(&name).map_or(0, |known| known.local_max);
            let class = ElasticClass { local_max: class.local_max.max(local_max), ..class };
            self.profile.classes.insert(name, class);
        }
    }

    /// What was learned: of each class and shape the times of a step, and the noise.
    pub fn seen(&self) -> (Vec<SeenStep>, Option<f64>) {
        let steps =
            self.seen.iter().flat_map(|(class, steps)| {
                steps.iter().map(move |(&(nodes, devices, local), &(step_s, exchange_s))| {
                    SeenStep { class: class.clone(), nodes, devices, local, step_s, exchange_s }
                })
            });
        (steps.collect(), self.noise)
    }

    /// The job of which that was learned.
    pub fn from_seen(profile: ElasticProfile, steps: Vec<SeenStep>, noise: Option<f64>) -> Self {
        let mut seen: BTreeMap<Name, BTreeMap<Shape, (f64, f64)>> = BTreeMap::new();
        for SeenStep { class, nodes, devices, local, step_s, exchange_s } in steps {
            let steps = seen.entry(class).or_default();
            steps.insert((nodes, devices, local), (step_s, exchange_s));
        }
        let fitted = seen.iter().map(|(class, steps)| (class.clone(), StepTime::fit(steps)));
        Self { profile, fitted: fitted.collect(), seen, noise }
    }

    /// Progress per second on `devices` devices of a class, in batches of the initial size, and
    /// whether that size was seen or nearly so. `None` for numbers of devices about which nothing
    /// can be said yet. Before the first step all classes are taken to be equally fast.
    pub fn rate(&self, class: &Name, devices: u32) -> Option<(f64, RateSource)> {
        let own = self.profile.classes.get(class)?;
        if devices > self.devices_max(GROWTH_MAX, FIRST_DEVICES_MAX) {
            return None;
        }
        let source = match devices > self.devices_max(GROWTH_TRUSTED, 1) {
            true => RateSource::Extrapolated,
            false => RateSource::History,
        };
        let initial = f64::from(self.profile.batch_initial);
        let goodput = |name: &Name, class: &ElasticClass| {
            let nodes = devices.div_ceil(class.devices_per_node.max(1));
            Some(self.best(name, nodes, devices, class.local_max)?.0 / initial)
        };
        let rate = if self.fitted.contains_key(class) {
            goodput(class, own)?
        } else if let Some(other) = self.fitted.keys().next() {
            let there = self.profile.classes.get(other)?;
            goodput(other, there)? * own.relative_speed / there.relative_speed
        } else {
            f64::from(devices).powf(FIRST_SCALING)
        };
        Some((rate, source))
    }

    /// The batch with the highest goodput in samples per second, and that goodput; no device takes
    /// more than `local_max` samples at once. `None` on a class without a model.
    pub fn best(
        &self,
        class: &Name,
        nodes: u32,
        devices: u32,
        local_max: u32,
    ) -> Option<(f64, Batch)> {
        let model = self.fitted.get(class)?;
        let noise = self.noise?;
        let local_min = self.profile.classes.get(class)?.local_min;
        let initial = f64::from(self.profile.batch_initial);
        let least = initial.max(f64::from(local_min * devices));
        let ratio = f64::from(self.profile.batch_max) / least;
        let tried = (0..BATCHES).filter_map(|row| {
            let size = least * ratio.powf(row as f64 / (BATCHES - 1) as f64);
            let batch = self.cut(size, devices, local_max);
            if batch.local < local_min || batch.local > local_max {
                return None;
            }
            let whole = f64::from(devices * batch.local * (batch.accumulation + 1));
            let seconds = model.seconds(nodes, devices, batch);
            Some((whole / seconds * efficiency(whole / initial, noise), batch))
        });
        tried.reduce(|best, next| if next.0 > best.0 { next } else { best })
    }

    /// Cuts a batch of `size` samples for `devices` devices that take at most `local_max` at once.
    /// One device that goes beyond the initial batch accumulates, so that it can tell the noise of
    /// its gradient.
    pub fn cut(&self, size: f64, devices: u32, local_max: u32) -> Batch {
        const SLACK: f64 = 1e-8;
        let local = size / f64::from(devices);
        let mut accumulation = (local / f64::from(local_max) - SLACK).ceil() as u32;
        accumulation = accumulation.saturating_sub(1);
        if devices == 1 && local > f64::from(self.profile.batch_initial) + SLACK {
            accumulation = accumulation.max(1);
        }
        let local = (local / f64::from(accumulation + 1) - SLACK).ceil() as u32;
        Batch { local, accumulation }
    }

    /// Devices that a job may have after it was seen on a `growth`-th of them, or `first`.
    fn devices_max(&self, growth: u32, first: u32) -> u32 {
        let seen = self.seen.values().flat_map(BTreeMap::keys).map(|(_, devices, _)| *devices);
        let grown = seen.max().map_or(first, |most| most * growth);
        let classes = self.profile.classes.values();
        let cut = classes.map(|class| self.profile.batch_max / class.local_min.max(1));
        grown.min(DEVICES_MAX).min(cut.max().unwrap_or(1)).max(1)
    }
}

/// What a sample is worth in a batch that is `scale` times the initial one (McCandlish et al. 2018,
/// "An empirical model of large-batch training"; in this form Qiao et al. 2021).
pub fn efficiency(scale: f64, noise: f64) -> f64 {
    (noise + 1.0) / (noise / scale + 1.0) / scale
}

/// Seconds of a step: computing grows with the local batch, exchange with the number of devices,
/// and the two overlap in part: (compute^overlap + exchange^overlap)^(1 / overlap).
#[derive(Debug, Clone, Copy, PartialEq)]
struct StepTime {
    compute: Line,
    within_node: Line,
    across_nodes: Line,
    overlap: f64,
}

/// `constant + slope · x`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Line {
    constant: f64,
    slope: f64,
}

/// Overlaps that are tried: 1 is none, 10 nearly all.
const OVERLAPS: [f64; 8] = [1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0];

/// Pulls towards little overlap where the data do not tell, as in Pollux.
const OVERLAP_PENALTY: f64 = 1e-3;

/// Exchange across nodes costs at least this much more than within one, until it is seen.
const ACROSS_AT_LEAST: f64 = 1.1;

/// Less is nothing.
const SECONDS_MIN: f64 = 1e-8;

impl StepTime {
    fn seconds(&self, nodes: u32, devices: u32, batch: Batch) -> f64 {
        let compute = self.compute.at(f64::from(batch.local));
        let exchange = self.exchange(nodes, devices);
        let update =
            (compute.powf(self.overlap) + exchange.powf(self.overlap)).powf(1.0 / self.overlap);
        f64::from(batch.accumulation) * compute + update
    }

    fn exchange(&self, nodes: u32, devices: u32) -> f64 {
        match (nodes, devices) {
            (_, 0 | 1) => SECONDS_MIN,
            (0 | 1, _) => self.within_node.at(beyond_two(devices)),
            _ => self.across_nodes.at(beyond_two(devices)),
        }
    }

    /// The model with the least error in the logarithm of the step times.
    fn fit(seen: &BTreeMap<Shape, (f64, f64)>) -> Self {
        let computes = seen.iter().map(|((_, _, local), (step, exchange))| {
            (f64::from(*local), (step - exchange).max(SECONDS_MIN))
        });
        let compute = Line::through_batches(&computes.collect::<Vec<_>>());
        let model = |overlap: f64| {
            let exchanges = |across: bool| {
                let rows = seen
                    .iter()
                    .filter(move |((nodes, devices, _), _)| *devices > 1 && (*nodes > 1) == across);
                rows.map(move |((_, devices, local), (step, _))| {
                    let compute = compute.at(f64::from(*local)).powf(overlap);
                    let rest = (step.powf(overlap) - compute).max(SECONDS_MIN);
                    (beyond_two(*devices), rest.powf(1.0 / overlap))
                })
            };
            let within_node = Line::through(&exchanges(false).collect::<Vec<_>>());
            let across: Vec<(f64, f64)> = exchanges(true).collect();
            let across_nodes = if across.is_empty() {
                within_node.times(ACROSS_AT_LEAST)
            } else {
                Line::through(&across)
            };
            Self { compute, within_node, across_nodes, overlap }
        };
        let error = |model: &Self| {
            let squares = seen.iter().map(|(&(nodes, devices, local), (step, _))| {
                let batch = Batch { local, accumulation: 0 };
                (model.seconds(nodes, devices, batch) / step).ln().powi(2)
            });
            let mean = squares.sum::<f64>() / seen.len() as f64;
            mean.sqrt() + OVERLAP_PENALTY * (model.overlap - 1.0).powi(2)
        };
        let models = OVERLAPS.map(model).into_iter();
        let best = models.min_by(|a, b| error(a).total_cmp(&error(b)));
        best.unwrap_or_else(|| model(1.0))
    }
}

/// Rounds of a ring exchange beyond those of two devices.
fn beyond_two(devices: u32) -> f64 {
    f64::from(devices.saturating_sub(2))
}

impl Line {
    fn at(&self, x: f64) -> f64 {
        (self.constant + self.slope * x).max(SECONDS_MIN)
    }

    fn times(&self, factor: f64) -> Self {
        Self { constant: self.constant * factor, slope: self.slope * factor }
    }

    /// The line of least relative error that never falls and starts above zero; flat through one
    /// point.
    fn through(points: &[(f64, f64)]) -> Self {
        if points.is_empty() {
            return Self { constant: SECONDS_MIN, slope: 0.0 };
        }
        // Weighted least squares, each point by one over its square.
        let mut sums = [0.0; 5];
        for (x, y) in points {
            let weight = 1.0 / (y * y);
            let terms = [weight, weight * x, weight * x * x, weight * y, weight * x * y];
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum += term;
            }
        }
        let [w, wx, wxx, wy, wxy] = sums;
        let determinant = w * wxx - wx * wx;
        if determinant > 1e-12 * w * wxx {
            let slope = (w * wxy - wx * wy) / determinant;
            let constant = (wy - slope * wx) / w;
            if slope >= 0.0 && constant >= 0.0 {
                return Self { constant, slope };
            }
            if slope > 0.0 && wxx > 0.0 {
                return Self { constant: 0.0, slope: wxy / wxx };
            }
        }
        Self { constant: wy / w, slope: 0.0 }
    }

    /// The same over batch sizes; of a single size half is taken to be constant.
    fn through_batches(points: &[(f64, f64)]) -> Self {
        let Some((first, _)) = points.first() else { return Self::default() };
        if points.iter().all(|(x, _)| x == first) {
            let mean = points.iter().map(|(_, y)| y).sum::<f64>() / points.len() as f64;
            return Self { constant: mean / 2.0, slope: mean / 2.0 / first.max(1.0) };
        }
        Self::through(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use het_core::Micro;

    fn profile() -> ElasticProfile {
        let class = |relative_speed| ElasticClass {
            local_min: 8,
            local_max: 64,
            devices_per_node: 4,
            relative_speed,
        };
        ElasticProfile {
            batch_initial: 32,
            batch_max: 1_024,
            classes: [("slow".into(), class(1.0)), ("fast".into(), class(3.0))].into(),
        }
    }

    /// A job whose step takes 10 ms and 1 ms a sample, and 5 ms to exchange.
    fn measured(batch: u32, devices: u32) -> Measured {
        let exchange = if devices > 1 { 0.005 } else { 0.0 };
        let micro = |seconds: f64| Micro::from_f64(seconds).expect("in range");
        Measured {
            batch,
            accumulation: 0,
            step: micro(0.010 + 0.001 * f64::from(batch) + exchange),
            exchange: micro(exchange),
            gradient_noise: micro(20.0),
        }
    }

    #[test]
    fn what_is_unknown_is_not_promised() {
        let (slow, fast) = (Name::from("slow"), Name::from("fast"));
        let mut job = Goodput::new(profile());
        let source = |job: &Goodput, devices| job.rate(&slow, devices).map(|(_, source)| source);
        assert_eq!(job.rate(&slow, 1), job.rate(&fast, 1));
        assert_eq!(source(&job, 1), Some(RateSource::History));
        assert_eq!(source(&job, 2), Some(RateSource::Extrapolated));
        assert_eq!(source(&job, 8), None);
        job.observe(&slow, 1, 2, &measured(32, 2));
        assert_eq!(source(&job, 4), Some(RateSource::History));
        assert_eq!(source(&job, 8), Some(RateSource::Extrapolated));
        assert_eq!(source(&job, 16), None);
        let (there, here) = job.rate(&fast, 2).zip(job.rate(&slow, 2)).expect("both are projected");
        assert!((there.0 / here.0 - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_model_fitted_to_its_own_kind_predicts_it() {
        let slow = Name::from("slow");
        let mut job = Goodput::new(profile());
        for (devices, batch) in [(1, 32), (1, 64), (2, 32), (4, 48)] {
            job.observe(&slow, 1, devices, &measured(batch, devices));
        }
        let model = job.fitted[&slow];
        for (devices, local) in [(1, 16), (2, 64), (4, 24)] {
            let seconds = model.seconds(1, devices, Batch { local, accumulation: 0 });
            let truth = measured(local, devices).step.as_f64();
            assert!(
                (seconds / truth - 1.0).abs() < 0.02,
                "{devices} × {local}: {seconds}, {truth}"
            );
        }
    }

    #[test]
    fn a_job_that_reports_any_number_of_batches_fills_no_memory() {
        let slow = Name::from("slow");
        let mut job = Goodput::new(profile());
        for batch in 1..=2_000 {
            job.observe(&slow, 1, 4, &measured(batch, 4));
        }
        assert_eq!(job.seen().0.len(), SHAPES_MAX);
    }

    #[test]
    fn noisier_gradients_ask_for_larger_batches() {
        let slow = Name::from("slow");
        let batch_at = |noise: f64| {
            let mut job = Goodput::new(profile());
            let gradient_noise = Micro::from_f64(noise).expect("in range");
            job.observe(&slow, 1, 4, &Measured { gradient_noise, ..measured(32, 4) });
            let (_, batch) = job.best(&slow, 1, 4, 64).expect("it has a model");
            batch.local * 4 * (batch.accumulation + 1)
        };
        assert!(batch_at(0.1) < batch_at(10.0));
        assert!(batch_at(10.0) < batch_at(1_000.0));
    }
}
