//! Workloads like those of published clusters, drawn from a seed.

use het_core::{Priority, StageKind};

use super::{TraceJob, TraceStage, Work};
use crate::Draw;

/// Whose jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// Microsoft's Philly, 2017: one stage a job, most on one device, with the days and nights of
    /// its submissions. The tables below were counted in the reduced list (82,247 jobs, CC-BY-4.0).
    Philly,
    /// A cluster for large language models like Shanghai AI Laboratory's Seren, 2023 (Hu et al.,
    /// NSDI 2024): prepare on cores, load, train, validate on one device.
    Llm,
}

/// A workload of such a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterMix {
    pub of: Cluster,
    pub jobs: u32,
    /// Device time that arrives, over what `devices` have meanwhile.
    pub load: f64,
    pub devices: u32,
    pub seed: u64,
}

/// Gangs, each with how many of 10,000 jobs have it.
const PHILLY_GANGS: [(u32, u32); 8] =
    [(1, 9_317), (2, 221), (4, 227), (8, 200), (16, 24), (32, 8), (64, 2), (128, 1)];

/// Up to so many devices, the durations in seconds at the quantiles of [`QUANTILES`].
const PHILLY_DURATIONS: [(u32, [f64; 8]); 4] = [
    (1, [1.0, 62.0, 122.0, 1_117.0, 2_716.0, 8_512.0, 135_404.0, 3_256_045.0]),
    (4, [2.0, 15.0, 21.0, 367.0, 45_476.0, 166_199.0, 748_678.0, 2_750_674.0]),
    (8, [1.0, 216.0, 1_871.0, 23_683.0, 173_288.0, 352_409.0, 1_066_894.0, 4_628_226.0]),
    (u32::MAX, [1.0, 69.0, 566.0, 21_137.0, 104_218.0, 252_560.0, 1_152_387.0, 1_710_643.0]),
];

const QUANTILES: [f64; 8] = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];

/// How many of a thousand jobs came in each hour of the day.
const PHILLY_HOURS: [u32; 24] = [
    53, 41, 47, 46, 29, 48, 70, 87, 46, 42, 43, 36, 31, 29, 27, 27, 37, 28, 33, 30, 42, 38, 47, 42,
];

/// How many of a thousand jobs each virtual cluster submitted, the rest together.
const PHILLY_TENANTS: [(&str, u32); 5] =
    [("vc-1", 501), ("vc-2", 196), ("vc-3", 121), ("vc-4", 90), ("others", 92)];

/// Gangs chosen so that the median is 1 and the mean 5.7, as in Seren's summary.
const LLM_GANGS: [(u32, u32); 9] = [
    (1, 6_100),
    (2, 800),
    (4, 900),
    (8, 1_500),
    (16, 350),
    (32, 200),
    (64, 100),
    (128, 40),
    (256, 10),
];

/// Run time: Seren's median, 122 s, and the σ that gives its mean, 1,414 s.
const LLM_RUN_S: (f64, f64) = (122.0, 2.21);

/// Loading a base model: median and σ of Alibaba's 2026 GenAI data.
const LOAD_S: (f64, f64) = (22.7, 0.48);

/// Parts of the run time that are preparation, on so many cores, and validation: assumptions.
const PREPARING: (f64, u32) = (0.05, 8);
const VALIDATING: f64 = 0.05;

const LLM_TENANTS: [(&str, u32); 4] =
    [("pretraining", 250), ("alignment", 250), ("evaluation", 350), ("vision", 150)];

/// How many of a hundred jobs have each priority: an assumption.
const PRIORITIES: [(Priority, u32); 4] =
    [(Priority::Urgent, 5), (Priority::High, 15), (Priority::Normal, 60), (Priority::Low, 20)];

const HOUR_S: f64 = 3_600.0;

/// Jobs by arrival.
pub fn cluster_mix(mix: &ClusterMix) -> Vec<TraceJob> {
    let mut jobs: Vec<TraceJob> = (0..mix.jobs)
        .map(|index| job(mix, &mut Draw::new(mix.seed, 1 + u64::from(index))))
        .collect();
    let work_s: f64 = jobs.iter().flat_map(|job| &job.stages).map(device_seconds).sum();
    let gap_s = work_s / f64::from(mix.devices) / mix.load / f64::from(mix.jobs);
    let mut arrivals = Draw::new(mix.seed, 0);
    let mut at = 0.0;
    for job in &mut jobs {
        job.arrival_s = at;
        at += arrivals.exponential(gap_s) / busyness(mix.of, at);
    }
    jobs
}

/// Submissions at a time of day over the mean.
fn busyness(cluster: Cluster, at_s: f64) -> f64 {
    match cluster {
        Cluster::Philly => {
            let hour = (at_s / HOUR_S) as usize % PHILLY_HOURS.len();
            f64::from(PHILLY_HOURS[hour] * PHILLY_HOURS.len() as u32) / 1_000.0
        }
        Cluster::Llm => 1.0,
    }
}

fn job(mix: &ClusterMix, draw: &mut Draw) -> TraceJob {
    let (gangs, tenants): (&[_], &[_]) = match mix.of {
        Cluster::Philly => (&PHILLY_GANGS, &PHILLY_TENANTS),
        Cluster::Llm => (&LLM_GANGS, &LLM_TENANTS),
    };
    let gang = weighted(draw, gangs).min(mix.devices);
    let stages = match mix.of {
        Cluster::Philly => vec![stage(StageKind::Train, gang, &[], duration(draw, gang))],
        Cluster::Llm => llm_stages(draw, gang),
    };
    TraceJob {
        name: String::new(),
        arrival_s: 0.0,
        tenant: weighted(draw, tenants).to_owned(),
        priority: weighted(draw, &PRIORITIES),
        stages,
    }
}

fn llm_stages(draw: &mut Draw, gang: u32) -> Vec<TraceStage> {
    let run_s = LLM_RUN_S.0 * draw.lognormal(LLM_RUN_S.1);
    let load_s = LOAD_S.0 * draw.lognormal(LOAD_S.1);
    let training = 1.0 - PREPARING.0 - VALIDATING;
    vec![
        stage(StageKind::Preprocess, PREPARING.1, &["cpu"], run_s * PREPARING.0),
        stage(StageKind::Load, gang, &[], load_s),
        stage(StageKind::Train, gang, &[], run_s * training),
        stage(StageKind::Validate, 1, &[], run_s * VALIDATING),
    ]
}

fn stage(kind: StageKind, units: u32, classes: &[&str], seconds: f64) -> TraceStage {
    let classes = classes.iter().map(|&class| class.to_owned()).collect();
    let work = Work::Seconds(seconds.round().max(1.0));
    let (apart, exchange, cores) = (None, 0.0, 0);
    TraceStage { kind, profile: None, units, classes, apart, exchange, cores, work }
}

/// Seconds that a stage holds accelerators, over all of them.
fn device_seconds(stage: &TraceStage) -> f64 {
    match stage.work {
        Work::Seconds(seconds) if stage.classes.is_empty() => seconds * f64::from(stage.units),
        _ => 0.0,
    }
}

/// A duration in Philly, between the published quantiles along their logarithms.
fn duration(draw: &mut Draw, gang: u32) -> f64 {
    let row = PHILLY_DURATIONS.iter().find(|(most, _)| gang <= *most);
    let durations = row.map_or(PHILLY_DURATIONS[3].1, |(_, durations)| *durations);
    let part = draw.part();
    let upper = QUANTILES.iter().position(|quantile| part <= *quantile).unwrap_or(1).max(1);
    let (from, to) = (QUANTILES[upper - 1], QUANTILES[upper]);
    let within = (part - from) / (to - from);
    let (low, high) = (durations[upper - 1].ln(), durations[upper].ln());
    (low + (high - low) * within).exp()
}

/// One of the values, each as often as its weight says.
fn weighted<T: Copy>(draw: &mut Draw, rows: &[(T, u32)]) -> T {
    let all: u32 = rows.iter().map(|(_, weight)| weight).sum();
    let mut left = draw.between(1, u64::from(all)) as u32;
    for &(value, weight) in rows {
        if left <= weight {
            return value;
        }
        left -= weight;
    }
    rows[rows.len() - 1].0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(of: Cluster, load: f64) -> ClusterMix {
        ClusterMix { of, jobs: 4_000, load, devices: 400, seed: 7 }
    }

    #[test]
    fn the_load_holds_and_the_medians_are_the_published_ones() {
        let check = |of: Cluster, median_s: (f64, f64), mean_gang: (f64, f64)| {
            let jobs = cluster_mix(&mix(of, 0.8));
            assert_eq!(jobs, cluster_mix(&mix(of, 0.8)), "{of:?}");
            let stages = || jobs.iter().flat_map(|job| &job.stages);
            let work: f64 = stages().map(device_seconds).sum();
            let load = work / jobs[jobs.len() - 1].arrival_s / 400.0;
            assert!((load / 0.8 - 1.0).abs() < 0.15, "{of:?}: {load}");
            let train = || stages().filter(|stage| stage.kind == StageKind::Train);
            let mut spans: Vec<f64> = train()
                .map(|stage| match stage.work {
                    Work::Seconds(seconds) => seconds,
                    _ => 0.0,
                })
                .collect();
            spans.sort_by(f64::total_cmp);
            let median = spans[spans.len() / 2];
            assert!((median_s.0..median_s.1).contains(&median), "{of:?}: {median}");
            let gang =
                train().map(|stage| f64::from(stage.units)).sum::<f64>() / spans.len() as f64;
            assert!((mean_gang.0..mean_gang.1).contains(&gang), "{of:?}: {gang}");
        };
        check(Cluster::Philly, (950.0, 1_250.0), (1.15, 1.6));
        check(Cluster::Llm, (95.0, 125.0), (4.7, 6.7));
    }
}
