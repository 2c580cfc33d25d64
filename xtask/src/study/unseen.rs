//! Inputs that nothing was chosen on: drawn as Gavel's generator draws its own, rigid and mixed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{folder, het, items, number};

/// Jobs, mean gap between them in seconds (none: all at once), shortest and longest in hours,
/// cluster.
const INPUTS: [(usize, f64, (f64, f64), &str); 6] = [
    (160, 600.0, (0.5, 8.0), "12,12,12"),
    (160, 600.0, (0.5, 8.0), "8,16,24"),
    (200, 450.0, (0.5, 8.0), "12,12,12"),
    (120, 0.0, (1.0, 4.0), "12,12,12"),
    (120, 0.0, (0.5, 8.0), "8,16,24"),
    (160, 1_200.0, (0.5, 5.0), "12,12,12"),
];

const SEEDS: [u64; 3] = [11, 12, 13];

/// Lengths are one of so many between the shortest and the longest, as in Gavel's generator.
const LENGTHS: u64 = 16;

const PUBLISHED: &str = "max-min-fairness-perf,min-total-duration-perf,finish-time-fairness-perf";

/// Draws of a rigid input one of whose jobs may have any number of devices.
const ONE_WITH_SIZES: u64 = 20;

pub fn unseen(data: &Path) -> Result<()> {
    let table = folder(data, "gavel")?.join("simulation_throughputs.json");
    let speeds: Value = serde_json::from_slice(&std::fs::read(&table).context("the table")?)?;
    println!("### Rigid jobs, restarts free\n");
    println!("| jobs, gap s | cluster | seed | JCT | p99 JCT | makespan | worst FTF |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    let mut means = Vec::new();
    for (jobs, gap, hours, sizes) in INPUTS {
        for seed in SEEDS {
            let drawn = draw(&speeds, seed, jobs, gap, hours);
            let trace = Trace::write(&drawn, None)?;
            let play = |words: &[&str]| {
                let cluster = format!("gavel:{sizes}");
                let words = [&["sim", "compare", "--cluster", cluster.as_str()], words].concat();
                items(&words, &[("--trace", &trace.0), ("--profiles", &table)])
            };
            let ours = play(&["--policies", "adaptive"])?;
            let theirs = play(&["--policies", PUBLISHED, "--round", "360"])?;
            let shortest =
                theirs.iter().map(|row| number(row, "makespan_s")).fold(f64::INFINITY, f64::min);
            let of_max_min = |name| number(&ours[0], name) / number(&theirs[0], name);
            means.push(of_max_min("avg_jct_s"));
            println!(
                "| {jobs}, {gap} | {sizes} | {seed} | {:.3} | {:.3} | {:.3} | {:.2} |",
                of_max_min("avg_jct_s"),
                of_max_min("p99_jct_s"),
                number(&ours[0], "makespan_s") / shortest,
                number(&ours[0], "worst_finish_time_fairness"),
            );
        }
    }
    println!("\nMean JCT {:.3} of `max-min-fairness-perf`.", mean(&means));
    println!("\n### One job that may have any number of devices, against the same job rigid\n");
    let mut changes = Vec::new();
    for seed in 1..=ONE_WITH_SIZES {
        let (jobs, gap) = if seed % 2 == 0 { (120, 0.0) } else { (160, 600.0) };
        let drawn = draw(&speeds, 100 + seed, jobs, gap, (0.5, 8.0));
        let chosen = seed as usize * 37 % jobs;
        let others = |sizes: bool| -> Result<f64> {
            let trace = Trace::write(&drawn, Some((chosen, sizes)))?;
            let words = ["sim", "run", "--cluster", "gavel:12,12,12", "--output", "json"];
            let run = het(&words, &[("--trace", &trace.0), ("--profiles", &table)])?;
            let run: Value = serde_json::from_slice(&run).context("the run")?;
            let mean = run["tenants"]["others"]["avg_jct_s"].as_f64();
            mean.context("the mean of the others")
        };
        changes.push(others(true)? / others(false)? - 1.0);
    }
    let largest = changes.iter().fold(0.0, |most: f64, change| most.max(change.abs()));
    println!(
        "Over {ONE_WITH_SIZES} draws the mean completion time of the others changes by {:+.2} %, \
         at most by {:.2} % in one draw.",
        100.0 * mean(&changes),
        100.0 * largest,
    );
    Ok(())
}

/// A job: seconds until it comes, type, devices, steps.
struct Job(f64, String, u32, u64);

/// Types all equally likely, three in four on one device.
fn draw(speeds: &Value, seed: u64, jobs: usize, gap: f64, hours: (f64, f64)) -> Vec<Job> {
    let mut random = Random(seed);
    let on_v100 = &speeds["v100"];
    let rate = |kind: &str, units: u32| {
        on_v100[format!("('{kind}', {units})")]["null"].as_f64().unwrap_or(0.0)
    };
    let names = on_v100.as_object().into_iter().flat_map(serde_json::Map::keys);
    let single = |key: &String| key.strip_prefix("('")?.strip_suffix("', 1)").map(str::to_owned);
    let kinds: Vec<String> = names.filter_map(single).collect();
    let mut at = 0.0;
    let mut drawn = Vec::new();
    while drawn.len() < jobs {
        let kind = &kinds[(random.next() % kinds.len() as u64) as usize];
        let units = match random.part() {
            ..0.75 => 1,
            0.75..0.8 => 2,
            _ => 4,
        };
        let length = (random.next() % LENGTHS) as f64 / (LENGTHS - 1) as f64;
        let speed = rate(kind, units);
        if speed == 0.0 {
            continue;
        }
        let seconds = 3_600.0 * (hours.0 + (hours.1 - hours.0) * length);
        drawn.push(Job(at, kind.clone(), units, (seconds * speed) as u64));
        at -= gap * (1.0 - random.part()).ln();
    }
    drawn
}

/// A drawn trace, removed when it is not needed any more.
struct Trace(PathBuf);

impl Trace {
    /// One job may belong to a tenant of its own, and have any number of devices.
    fn write(jobs: &[Job], chosen: Option<(usize, bool)>) -> Result<Self> {
        let mut text = String::new();
        for (index, Job(at, kind, units, steps)) in jobs.iter().enumerate() {
            let (tenant, units) = match chosen {
                Some((own, sizes)) if own == index => ("chosen", if sizes { 0 } else { *units }),
                _ => ("others", *units),
            };
            let stage = json!({"profile": kind, "units": units, "steps": steps});
            let job = json!({"arrival_s": at.round(), "tenant": tenant, "stages": [stage]});
            writeln!(text, "{job}")?;
        }
        let path = std::env::temp_dir().join(format!("het-unseen-{}.jsonl", std::process::id()));
        std::fs::write(&path, text).context("the drawn trace")?;
        Ok(Self(path))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Between 0 and 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
