//! What each weight of `adaptive` is worth, on drawn workloads that share nothing with published
//! ones: every weight is set to other values, one at a time, and the score is printed beside that
//! of the weights that ship.
//!
//! `cargo run --release -p het-lab --example market_weights [WEIGHT…]` tries the named weights, or
//! all of them. `-- search` looks for weights, one after the other and from plain ones on: a value
//! has to be ahead on the instances of the first seed before it is tried on those of the others.
//! `-- search without FAMILY` leaves a family out and says how those found do on it.
//!
//! The score of an instance is the mean completion time, over that of the weights that ship, times
//! a penalty for a longer makespan, a longer 99th percentile and worse finish-time fairness; scores
//! are averaged geometrically, every family counting alike.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use het_core::{Millis, Topology};
use het_lab::workload::{Speeds, TraceJob, TraceStage, Work};
use het_lab::{
    Assumptions, Cadence, CheckpointModel, Draw, Noise, Outcome, Restart, Scenario, cluster,
    simulate, what_if,
};
use het_perf::{ElasticClass, ElasticProfile};
use het_policy::{Adaptive, Policy, Weights};
use het_sim::{Application, StepTime, StepTimes};

/// Seeds of each family; the instances of the first one are the first hurdle of the search.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// How much a part of a longer makespan, of a longer 99th percentile and of worse finish-time
/// fairness counts beside a part of the mean.
const MAKESPAN: f64 = 1.0;
const P99: f64 = 0.5;
const FAIRNESS: f64 = 0.2;

/// A value is taken if it makes the score smaller by more than this part: what drawn instances tell
/// apart. With 5e-4 a search went after their accidents, and lost on inputs that it had not seen.
const WORTH_A_CHANGE: f64 = 2e-3;

/// A weight, how it is reached, and the values that are tried.
struct Row {
    name: &'static str,
    of: fn(&mut Weights) -> &mut f64,
    values: &'static [f64],
}

const ROWS: &[Row] = &[
    Row { name: "load.light", of: |w| &mut w.load.0, values: &[0.8, 1.0, 1.2, 1.4] },
    Row { name: "load.heavy", of: |w| &mut w.load.1, values: &[1.6, 2.0, 3.0, 4.0] },
    Row { name: "common.light", of: |w| &mut w.common.0, values: &[0.0, 1.0, 2.0, 4.0, 8.0] },
    Row { name: "common.heavy", of: |w| &mut w.common.1, values: &[0.0, 4.0, 8.0, 16.0, 32.0] },
    Row { name: "critical", of: |w| &mut w.critical, values: &[0.6, 0.8, 0.9, 9.0] },
    Row { name: "draining_after", of: |w| &mut w.draining_after, values: &[0.1, 0.3, 0.6, 9.0] },
    Row { name: "late_power.light", of: |w| &mut w.late_power.0, values: &[0.0, 0.9, 2.0] },
    Row { name: "late_power.heavy", of: |w| &mut w.late_power.1, values: &[0.0, 1.0, 2.0, 4.0] },
    Row { name: "diminishing", of: |w| &mut w.diminishing, values: &[0.15, 0.25, 0.4, 0.6] },
    Row { name: "young_device_s", of: |w| &mut w.young_device_s, values: &[1e3, 3e3, 1e4, 3e4] },
    Row { name: "young_power", of: |w| &mut w.young_power, values: &[0.0, 0.1, 0.2, 0.4] },
    Row { name: "unknown_s", of: |w| &mut w.unknown_s, values: &[360.0, 3_600.0, 36_000.0] },
    Row { name: "caution", of: |w| &mut w.caution, values: &[2.0, 3.0, 5.0, 8.0] },
    Row { name: "stop", of: |w| &mut w.stop, values: &[1.0, 2.0, 4.0, 8.0] },
    Row { name: "quantum", of: |w| &mut w.quantum, values: &[1.0, 2.0, 3.0, 6.0] },
];

const FAMILIES: [&str; 5] = ["rigid", "at once", "elastic", "mixed", "sizes"];

/// What a search begins with: every term that can be switched off is, the others have the upper one
/// of the two middle values that are tried.
const PLAIN: Weights = Weights {
    load: (1.2, 3.0),
    common: (0.0, 0.0),
    critical: 9.0,
    draining_after: 0.6,
    late_power: (0.0, 0.0),
    diminishing: 0.4,
    young_device_s: 10_000.0,
    young_power: 0.0,
    unknown_s: 3_600.0,
    caution: 5.0,
    stop: 4.0,
    quantum: 3.0,
};

/// One instance.
struct Instance {
    family: &'static str,
    seed: u64,
    scenario: Scenario,
}

fn main() -> Result<(), Box<dyn Error>> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut instances = Vec::new();
    for seed in SEEDS {
        let mut add = |family, scenario| instances.push(Instance { family, seed, scenario });
        for load in [0.6, 1.0, 1.5] {
            for restart in [0, 60] {
                add("rigid", rigid(seed, Some(load), restart)?);
                add("sizes", sizes(seed, load, restart)?);
            }
            add("elastic", elastic(seed, load, 100)?);
            add("mixed", elastic(seed, load, 50)?);
        }
        for (more, restart) in [(0, 0), (10, 60), (20, 0), (30, 60)] {
            add("at once", rigid(seed + more, None, restart)?);
        }
    }
    match wanted.as_slice() {
        [word, rest @ ..] if word == "search" => search(&instances, rest),
        names => ablation(&instances, names),
    }
}

/// What every other value of the weights that ship does.
fn ablation(instances: &[Instance], names: &[String]) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let all: Vec<&Instance> = instances.iter().collect();
    let shipped = play_all(Weights::SHIPPED, &all)?;
    writeln!(out, "| weight | value | {} | all |", FAMILIES.join(" | "))?;
    writeln!(out, "| --- | ---: |{} ---: |", " ---: |".repeat(FAMILIES.len()))?;
    for row in ROWS.iter().filter(|row| names.is_empty() || names.iter().any(|n| n == row.name)) {
        for &value in row.values {
            let mut weights = Weights::SHIPPED;
            if *(row.of)(&mut weights) == value {
                continue;
            }
            *(row.of)(&mut weights) = value;
            let scores = Scores::of(&all, &play_all(weights, &all)?, &shipped);
            let cells = FAMILIES.map(|family| format!("{:.3}", scores.family(family)));
            let all = scores.all();
            writeln!(out, "| {} | {value} | {} | {all:.4} |", row.name, cells.join(" | "))?;
            out.flush()?;
        }
    }
    Ok(())
}

/// Better values, one weight after the other, until none brings anything.
fn search(instances: &[Instance], words: &[String]) -> Result<(), Box<dyn Error>> {
    let left_out = match words {
        [] => None,
        [without, family] if without == "without" && FAMILIES.contains(&family.as_str()) => {
            Some(family.as_str())
        }
        _ => return Err(format!("search, or search without {}", FAMILIES.join("|")).into()),
    };
    let mut out = std::io::stdout().lock();
    let (held, kept): (Vec<&Instance>, Vec<&Instance>) =
        instances.iter().partition(|instance| Some(instance.family) == left_out);
    let (first, others): (Vec<&Instance>, Vec<&Instance>) =
        kept.iter().partition(|instance| instance.seed == *SEEDS.start());
    let mut weights = PLAIN;
    let mut best = (play_all(weights, &first)?, play_all(weights, &others)?);
    loop {
        let before = weights;
        for row in ROWS {
            for &value in row.values {
                let mut tried = weights;
                if *(row.of)(&mut tried) == value {
                    continue;
                }
                *(row.of)(&mut tried) = value;
                let hurdle = play_all(tried, &first)?;
                let ahead = Scores::of(&first, &hurdle, &best.0);
                if ahead.all() >= 1.0 {
                    continue;
                }
                let rest = play_all(tried, &others)?;
                let scores = ahead.and(Scores::of(&others, &rest, &best.1));
                if scores.all() < 1.0 - WORTH_A_CHANGE {
                    writeln!(out, "{} {value}: {:.4}", row.name, scores.all())?;
                    out.flush()?;
                    (weights, best) = (tried, (hurdle, rest));
                }
            }
        }
        if weights == before {
            writeln!(out, "{weights:#?}")?;
            let mut compare =
                |title: &str, instances: &[&Instance]| -> Result<(), Box<dyn Error>> {
                    let found = play_all(weights, instances)?;
                    for (name, other) in [("plain", PLAIN), ("shipped", Weights::SHIPPED)] {
                        let scores = Scores::of(instances, &found, &play_all(other, instances)?);
                        writeln!(out, "{title}: {:.4} of {name}", scores.all())?;
                    }
                    Ok(())
                };
            compare("searched on", &kept)?;
            return if held.is_empty() { Ok(()) } else { compare("left out", &held) };
        }
        writeln!(out, "once more from {weights:?}")?;
    }
}

/// On every core.
fn play_all(weights: Weights, instances: &[&Instance]) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let policy: &'static dyn Policy = Box::leak(Box::new(Adaptive(weights)));
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let row = next.fetch_add(1, Ordering::Relaxed);
            let Some(instance) = instances.get(row) else { return };
            let outcome = simulate(&instance.scenario, policy);
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(row, outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(work);
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.into_values().map(|outcome| outcome.map_err(Into::into)).collect()
}

/// Logarithms of scores, by family.
struct Scores(BTreeMap<&'static str, Vec<f64>>);

impl Scores {
    fn of(instances: &[&Instance], ours: &[Outcome], theirs: &[Outcome]) -> Self {
        let mut logs: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for ((instance, ours), theirs) in instances.iter().zip(ours).zip(theirs) {
            logs.entry(instance.family).or_default().push(score(ours, theirs).ln());
        }
        Self(logs)
    }

    /// Of both lists of instances.
    fn and(mut self, other: Self) -> Self {
        for (family, logs) in other.0 {
            self.0.entry(family).or_default().extend(logs);
        }
        self
    }

    fn family(&self, name: &str) -> f64 {
        self.0.get(name).map_or(1.0, |logs| mean(logs).exp())
    }

    fn all(&self) -> f64 {
        let means: Vec<f64> = self.0.values().map(|logs| mean(logs)).collect();
        mean(&means).exp()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn score(ours: &Outcome, theirs: &Outcome) -> f64 {
    let worse = |ours: f64, theirs: f64, power: f64| (ours / theirs).powf(power);
    let fairness = |outcome: &Outcome| outcome.finish_time_fairness.worst.max(1.0);
    ours.avg_jct_s / theirs.avg_jct_s
        * worse(ours.makespan_s, theirs.makespan_s, MAKESPAN)
        * worse(ours.p99_jct_s, theirs.p99_jct_s, P99)
        * worse(fairness(ours), fairness(theirs), FAIRNESS)
}

/// 120 jobs of 12 kinds, each with a speed of its own on each class; all at once on a small
/// cluster, or so that the cluster is loaded to a part of what it could do.
fn rigid(seed: u64, load: Option<f64>, restart_s: u64) -> Result<Scenario, Box<dyn Error>> {
    let mut draw = Draw::new(seed, 1);
    let sizes = match load {
        Some(_) => [draw.between(4, 12), draw.between(4, 16), draw.between(8, 24)],
        None => [draw.between(2, 12), draw.between(4, 14), draw.between(4, 20)],
    };
    // Of some clusters all jobs are of one order, on others they range from minutes to days.
    let is_wide = draw.chance(50);
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
    for _ in 0..120 {
        let (kind, units) = (draw.between(0, 11), *draw.pick(&[1, 1, 1, 1, 1, 2, 2, 4]));
        let seconds = match is_wide {
            true => 1_800.0 * 10f64.powf(2.5 * draw.part()),
            false => 7_200.0 * draw.lognormal(1.2),
        };
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

/// 100 jobs of 8 kinds whose length is known and that may have 1 to 8 devices, on nodes of two
/// classes.
fn sizes(seed: u64, load: f64, restart_s: u64) -> Result<Scenario, Box<dyn Error>> {
    let mut draw = Draw::new(seed, 3);
    let topology = cluster("epyc-h100x8-910bx2")?;
    let accelerators = topology.classes.iter().filter(|class| class.kind != "cpu");
    let accelerators: Vec<_> = accelerators.map(|class| class.id.to_string()).collect();
    let mut speeds = Speeds::default();
    for kind in 0..8 {
        let kept = 0.55 + 0.4 * draw.part();
        for (faster, class) in accelerators.iter().enumerate() {
            let alone = 100.0 / (faster + 1) as f64 * draw.lognormal(0.4);
            for units in [1_u32, 2, 4, 8] {
                let rate = alone * f64::from(units).powf(kept);
                speeds.declare(&format!("kind-{kind}"), class, units, rate);
            }
        }
    }
    let mut jobs = Vec::new();
    let mut at = 0.0;
    let devices = topology.accelerators().count() as f64;
    for _ in 0..100 {
        let kind = draw.between(0, 7);
        let seconds = 1_200.0 * draw.lognormal(1.0);
        at += draw.exponential(seconds / devices / load);
        jobs.push(job(at, format!("kind-{kind}"), 0, Work::Steps((seconds * 100.0) as u64 + 1)));
    }
    let restart = Restart::Fixed(Millis::seconds(restart_s));
    built(&topology, &jobs, &speeds, restart, seed)
}

/// 120 jobs on three classes, so many in a hundred of them elastic, of six drawn applications.
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
    for _ in 0..120 {
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
        exchange: 0.0,
        cores: 0,
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
    let (noise, checkpoint) = (Noise { speed: 0.0, work: 0.1 }, CheckpointModel::default());
    let cadence = Cadence::default();
    Ok(what_if(
        topology,
        jobs,
        speeds,
        &Assumptions { cadence, restart, warm: None, noise, checkpoint, seed },
    )?)
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
