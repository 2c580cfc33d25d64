//! What each weight of `adaptive` is worth, on drawn workloads that share nothing with published
//! ones: every weight is set to other values, one at a time, and the score is printed beside that
//! of the weights that ship.
//!
//! `cargo run --release -p het-lab --example market_weights [WEIGHT…]` tries the named weights, or
//! all of them; `-- search` looks for better ones, one weight after the other: a value has to be
//! ahead on the instances of the first seed before it is tried on those of the others.
//!
//! The score of an instance is the mean completion time, over that of the weights that ship, times
//! a penalty for a longer makespan, a longer 99th percentile and worse finish-time fairness; scores
//! are averaged geometrically, every family counting alike.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;

use het_core::{Millis, Topology};
use het_lab::workload::{Speeds, TraceJob, TraceStage, Work};
use het_lab::{
    Assumptions, Cadence, Draw, Noise, Outcome, Restart, Saving, Scenario, cluster, simulate,
    what_if,
};
use het_perf::{ElasticClass, ElasticProfile};
use het_policy::{Adaptive, Policy, Weights};
use het_sim::{Application, StepTime, StepTimes};

/// Seeds of each family.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// Part of a longer makespan, and of a longer 99th percentile, that counts beside the mean.
const TAIL: f64 = 0.25;

/// A weight, how it is set, and the values that are tried.
struct Row {
    name: &'static str,
    set: fn(&mut Weights, f64),
    values: &'static [f64],
}

const ROWS: &[Row] = &[
    Row { name: "load.light", set: |w, v| w.load.0 = v, values: &[0.8, 1.0, 1.4] },
    Row { name: "load.heavy", set: |w, v| w.load.1 = v, values: &[1.4, 2.0, 3.0] },
    Row { name: "common.light", set: |w, v| w.common.0 = v, values: &[0.0, 1.0, 4.0] },
    Row { name: "common.heavy", set: |w, v| w.common.1 = v, values: &[0.0, 4.0, 8.0, 32.0] },
    Row { name: "critical.light", set: |w, v| w.critical.0 = v, values: &[0.9, 9.0] },
    Row { name: "critical.heavy", set: |w, v| w.critical.1 = v, values: &[0.6, 0.9, 9.0] },
    Row { name: "critical_power", set: |w, v| w.critical_power = v, values: &[0.0, 1.0, 8.0] },
    Row { name: "draining_after", set: |w, v| w.draining_after = v, values: &[0.1, 0.6, 9.0] },
    Row { name: "ageing", set: |w, v| w.ageing = v, values: &[0.0, 0.1] },
    Row { name: "late", set: |w, v| w.late = v, values: &[0.8, 1.0, 1.6] },
    Row { name: "late_power.light", set: |w, v| w.late_power.0 = v, values: &[0.0, 2.0] },
    Row { name: "late_power.heavy", set: |w, v| w.late_power.1 = v, values: &[0.0, 2.0, 10.0] },
    Row { name: "unknown_power", set: |w, v| w.unknown_power = v, values: &[0.25, 0.6, 1.0] },
    Row { name: "young_device_s", set: |w, v| w.young_device_s = v, values: &[3e3, 3e4] },
    Row { name: "young_power", set: |w, v| w.young_power = v, values: &[0.0, 0.1, 0.4, 0.8] },
    Row { name: "unknown_s", set: |w, v| w.unknown_s = v, values: &[360.0, 36_000.0] },
    Row { name: "caution", set: |w, v| w.caution = v, values: &[0.0, 1.0, 2.0, 5.0] },
    Row { name: "quantum", set: |w, v| w.quantum = v, values: &[0.5, 1.0, 2.0, 3.0, 6.0] },
];

fn main() -> Result<(), Box<dyn Error>> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout().lock();
    let mut scenarios = Vec::new();
    for seed in SEEDS {
        for load in [0.6, 0.9, 1.2] {
            for restart in [0, 60] {
                scenarios.push(("rigid", rigid(seed, Some(load), restart)?));
            }
            scenarios.push(("elastic", elastic(seed, load, 100)?));
            scenarios.push(("mixed", elastic(seed, load, 50)?));
        }
        scenarios.push(("at once", rigid(seed, None, 0)?));
    }
    let shipped = play_all(Weights::SHIPPED, &scenarios)?;
    writeln!(out, "| weight | value | rigid | at once | elastic | mixed | all |")?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for row in ROWS {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == row.name) {
            continue;
        }
        for &value in row.values {
            let mut weights = Weights::SHIPPED;
            (row.set)(&mut weights, value);
            let outcomes = play_all(weights, &scenarios)?;
            let mut logs: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for (((family, _), ours), theirs) in scenarios.iter().zip(&outcomes).zip(&shipped) {
                let score = score(ours, theirs).ln();
                logs.entry(family).or_default().push(score);
                logs.entry("all").or_default().push(score);
            }
            let mean = |name: &str| {
                let rows = logs.get(name).map_or(&[][..], Vec::as_slice);
                (rows.iter().sum::<f64>() / rows.len().max(1) as f64).exp()
            };
            let [rigid, at_once, elastic, mixed, all] =
                ["rigid", "at once", "elastic", "mixed", "all"].map(mean);
            write!(out, "| {} | {value} | {rigid:.3} | {at_once:.3} ", row.name)?;
            writeln!(out, "| {elastic:.3} | {mixed:.3} | {all:.4} |")?;
            out.flush()?;
        }
    }
    Ok(())
}

fn play_all(
    weights: Weights,
    scenarios: &[(&str, Scenario)],
) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let policy: &'static dyn Policy = Box::leak(Box::new(Adaptive(weights)));
    let play = |(_, scenario): &(&str, Scenario)| simulate(scenario, policy).map_err(Into::into);
    scenarios.iter().map(play).collect()
}

fn score(ours: &Outcome, theirs: &Outcome) -> f64 {
    let longer = |ours: f64, theirs: f64| (ours / theirs).max(1.0).powf(TAIL);
    ours.avg_jct_s / theirs.avg_jct_s
        * longer(ours.makespan_s, theirs.makespan_s)
        * longer(ours.p99_jct_s, theirs.p99_jct_s)
}

/// 80 jobs of 12 kinds, each with a speed of its own on each class; all at once, or so that the
/// cluster is loaded to a part of what it could do.
fn rigid(seed: u64, load: Option<f64>, restart_s: u64) -> Result<Scenario, Box<dyn Error>> {
    let mut draw = Draw::new(seed, 1);
    let sizes = [draw.between(4, 12), draw.between(4, 16), draw.between(8, 24)];
    let topology = cluster(&format!("gavel:{},{},{}", sizes[0], sizes[1], sizes[2]))?;
    let mut speeds = Speeds::default();
    for kind in 0..12 {
        let spread = draw.lognormal(0.6);
        for (class, faster) in topology.classes.iter().zip([4.0, 2.5, 1.0_f64]) {
            let alone = faster.powf(spread) * draw.lognormal(0.25);
            for units in [1, 2, 4] {
                let kept = 0.6 + 0.4 * draw.part();
                let rate = alone * f64::from(units).powf(kept);
                speeds.declare(&format!("kind-{kind}"), class.id.as_str(), units, rate);
            }
        }
    }
    let mut jobs = Vec::new();
    let mut at = 0.0;
    for _ in 0..80 {
        let (kind, units) = (draw.between(0, 11), *draw.pick(&[1, 1, 1, 1, 1, 2, 2, 4]));
        let seconds = 7_200.0 * draw.lognormal(1.2);
        let middle = topology.classes[1].id.as_str();
        let rate = speeds.rate(&format!("kind-{kind}"), middle, units).unwrap_or(1.0);
        let everything: u64 = sizes.iter().sum();
        let mean = seconds * f64::from(units) / everything as f64;
        at += load.map_or(0.0, |load| draw.exponential(mean / load));
        jobs.push(job(at, format!("kind-{kind}"), units, Work::Steps((seconds * rate) as u64 + 1)));
    }
    let restart = Restart::Fixed(Millis::seconds(restart_s));
    built(&topology, &jobs, &speeds, restart, seed)
}

/// 60 jobs on three classes, so many in a hundred of them elastic, of six drawn applications.
fn elastic(seed: u64, load: f64, elastic_pct: u64) -> Result<Scenario, Box<dyn Error>> {
    let topology = cluster("sia:default")?;
    let mut draw = Draw::new(seed, 2);
    let mut speeds = Speeds::default();
    let mut lengths = Vec::new();
    for kind in 0..6 {
        let hours = 0.15 * draw.lognormal(1.3);
        let (application, rate) = application(&mut draw, &topology, hours * 3_600.0);
        let pause = Millis::seconds(draw.between(10, 250));
        speeds.declare_application(&format!("app-{kind}"), application, pause);
        for (class, rate) in topology.classes.iter().zip(rate) {
            for units in [1_u32, 2, 4] {
                let gang = rate * f64::from(units).powf(0.8);
                speeds.declare(&format!("app-{kind}"), class.id.as_str(), units, gang);
            }
        }
        lengths.push(hours * 3_600.0);
    }
    let mut jobs = Vec::new();
    let mut at = 0.0;
    for _ in 0..60 {
        let kind = draw.between(0, 5) as usize;
        at += draw.exponential(lengths[kind] * 4.0 / 64.0 / load);
        let work = match draw.chance(elastic_pct) {
            true => Work::Epochs,
            false => Work::Steps((lengths[kind] * 100.0) as u64 + 1),
        };
        jobs.push(job(at, format!("app-{kind}"), *draw.pick(&[1, 2, 4]), work));
    }
    built(&topology, &jobs, &speeds, Restart::Profiled, seed)
}

fn job(arrival_s: f64, profile: String, units: u32, work: Work) -> TraceJob {
    let stage = TraceStage {
        kind: het_core::StageKind::Train,
        profile: Some(profile),
        units,
        classes: Vec::new(),
        apart: None,
        work,
    };
    TraceJob {
        name: String::new(),
        arrival_s,
        tenant: String::new(),
        priority: het_core::Priority::Normal,
        stages: vec![stage],
    }
}

fn built(
    topology: &Topology,
    jobs: &[TraceJob],
    speeds: &Speeds,
    restart: Restart,
    seed: u64,
) -> Result<Scenario, Box<dyn Error>> {
    let (noise, saving) = (Noise { speed: 0.0, work: 0.1 }, Saving::default());
    let cadence = Cadence::default();
    Ok(what_if(topology, jobs, speeds, &Assumptions { cadence, restart, noise, saving, seed })?)
}

/// An application that takes about so long on one device of the slowest class, and its steps per
/// second there, by class: 100 on the slowest.
fn application(draw: &mut Draw, topology: &Topology, seconds: f64) -> (Application, Vec<f64>) {
    let initial = 1 << draw.between(5, 8);
    let exchange = 0.02 * draw.lognormal(1.0);
    let mut classes = BTreeMap::new();
    let mut limits = BTreeMap::new();
    let mut rates = Vec::new();
    for (class, (faster, node)) in topology.classes.iter().zip([(1.0, 4), (4.0, 8), (2.0, 8_u32)]) {
        let speed = faster * draw.lognormal(0.3);
        rates.push(100.0 * speed);
        let mut times = StepTimes::default();
        for devices in [1_u32, 2, 4, 8, 16, 24] {
            let nodes = devices.div_ceil(node);
            let spread = f64::from(devices).log2() * if nodes > 1 { 3.0 } else { 1.0 };
            let row = |local: u32| {
                let work = f64::from(local) / f64::from(initial) / speed;
                let exchange_s = exchange * spread / speed.sqrt();
                StepTime { local: f64::from(local), step_s: work + exchange_s, exchange_s }
            };
            let rows = (0..6).map(|power| row((initial / 4) << power)).collect();
            times.by_size.insert((nodes, devices), rows);
        }
        classes.insert(class.id.clone(), times);
        let limit = ElasticClass {
            local_min: initial / 4,
            local_max: initial * 8,
            devices_per_node: node,
            relative_speed: speed,
        };
        limits.insert(class.id.clone(), limit);
    }
    let epochs = draw.between(5, 30);
    let steps = (1..=epochs).map(|epoch| seconds * epoch as f64 / epochs as f64);
    let noise = (1.0 + draw.part() * 4.0, draw.part() * 10.0);
    let of_epoch = |epoch: u64| noise.0 + noise.1 * epoch as f64 / epochs as f64;
    let application = Application {
        profile: ElasticProfile {
            batch_initial: initial,
            batch_max: initial * 32,
            classes: limits,
        },
        classes,
        epochs: steps.collect(),
        noise: [(initial, (0..epochs).map(of_epoch).collect())].into(),
        slowdown: 1.0,
    };
    (application, rates)
}
