//! Inputs that nothing was chosen on, drawn as Gavel's generator draws its own (Narayanan et al.,
//! OSDI 2020): `adaptive` on every event beside published policies in their rounds, and what one
//! job that may have any number of devices does to the others.
//!
//! `cargo run --release -p het-lab --example unseen FOLDER` prints the tables of
//! `docs/studies/unseen.md`; `FOLDER` holds `gavel/`.

use std::error::Error;
use std::io::Write;
use std::path::Path;

use het_core::{Millis, Priority, StageKind};
use het_lab::workload::{Speeds, TraceJob, TraceStage, Work, read_speeds};
use het_lab::{
    Assumptions, Bound, Cadence, CheckpointModel, Draw, Noise, Outcome, Restart, Scenario, cluster,
    simulate, what_if,
};
use het_policy::by_name;

/// Inputs of one kind.
struct Kind {
    jobs: usize,
    /// Mean gap between arrivals in seconds; all at once where it is zero.
    gap_s: f64,
    /// Shortest and longest job.
    hours: (f64, f64),
    /// V100, P100 and K80.
    sizes: &'static str,
}

const KINDS: [Kind; 6] = [
    Kind { jobs: 160, gap_s: 600.0, hours: (0.5, 8.0), sizes: "12,12,12" },
    Kind { jobs: 160, gap_s: 600.0, hours: (0.5, 8.0), sizes: "8,16,24" },
    Kind { jobs: 200, gap_s: 450.0, hours: (0.5, 8.0), sizes: "12,12,12" },
    Kind { jobs: 120, gap_s: 0.0, hours: (1.0, 4.0), sizes: "12,12,12" },
    Kind { jobs: 120, gap_s: 0.0, hours: (0.5, 8.0), sizes: "8,16,24" },
    Kind { jobs: 160, gap_s: 1_200.0, hours: (0.5, 5.0), sizes: "12,12,12" },
];

const SEEDS: [u64; 3] = [11, 12, 13];

/// Lengths are one of so many between the shortest and the longest.
const LENGTHS: u64 = 16;

const PUBLISHED: [&str; 3] =
    ["max-min-fairness-perf", "min-total-duration-perf", "finish-time-fairness-perf"];

const ROUND: Cadence = Cadence::Rounds(Millis::seconds(360));

/// Seeds of inputs one of whose jobs may have any number of devices.
const WITH_SIZES: std::ops::RangeInclusive<u64> = 101..=120;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name the folder that holds `gavel/`")?;
    let speeds = read_speeds(&Path::new(&folder).join("gavel/simulation_throughputs.json"))?;
    against_published(&speeds)?;
    one_with_sizes(&speeds)
}

fn against_published(speeds: &Speeds) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "| jobs, gap s | cluster | seed | JCT | of the bound | p99 JCT | makespan | worst FTF |"
    )?;
    writeln!(out, "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    let mut means = Vec::new();
    for kind in &KINDS {
        for seed in SEEDS {
            let jobs = draw(speeds, kind, seed);
            let ours = play(kind, &jobs, speeds, "adaptive", Cadence::default())?;
            let theirs = PUBLISHED.map(|policy| play(kind, &jobs, speeds, policy, ROUND));
            let [max_min, shortest, fairest] = theirs;
            let (max_min, others) = (max_min?, [shortest?.makespan_s, fairest?.makespan_s]);
            let least = others.into_iter().fold(max_min.makespan_s, f64::min);
            let bound = Bound::of(&scenario(kind, &jobs, speeds, ROUND)?).ok_or("no bound")?;
            means.push(ours.avg_jct_s / max_min.avg_jct_s);
            writeln!(
                out,
                "| {}, {} | {} | {seed} | {:.3} | {:.2} | {:.3} | {:.3} | {:.2} |",
                kind.jobs,
                kind.gap_s,
                kind.sizes,
                ours.avg_jct_s / max_min.avg_jct_s,
                ours.avg_jct_s / bound.avg_jct_s,
                ours.p99_jct_s / max_min.p99_jct_s,
                ours.makespan_s / least,
                ours.finish_time_fairness.worst,
            )?;
            out.flush()?;
        }
    }
    writeln!(out, "\nMean JCT {:.3} of `{}`.", mean(&means), PUBLISHED[0])?;
    Ok(())
}

/// The same input twice: one job of a tenant of its own is rigid, or may have any number of
/// devices.
fn one_with_sizes(speeds: &Speeds) -> Result<(), Box<dyn Error>> {
    let mut changes = Vec::new();
    for seed in WITH_SIZES {
        let kind = if seed % 2 == 0 { &KINDS[3] } else { &KINDS[0] };
        let mut jobs = draw(speeds, kind, seed);
        let chosen = Draw::new(seed, 1).between(0, kind.jobs as u64 - 1) as usize;
        jobs[chosen].tenant = "chosen".to_owned();
        let others = |jobs: &[TraceJob]| -> Result<f64, Box<dyn Error>> {
            let outcome = play(kind, jobs, speeds, "adaptive", Cadence::default())?;
            Ok(outcome.tenants["others"].avg_jct_s)
        };
        let rigid = others(&jobs)?;
        jobs[chosen].stages[0].units = 0;
        changes.push(others(&jobs)? / rigid - 1.0);
    }
    let most = changes.iter().map(|change| change.abs()).fold(0.0, f64::max);
    writeln!(
        std::io::stdout(),
        "\nOne of them with sizes changes the mean completion time of the others by {:+.2} % over \
         {} draws, by {:.2} % at most.",
        100.0 * mean(&changes),
        changes.len(),
        100.0 * most,
    )?;
    Ok(())
}

/// Types all equally likely, three in four on one device.
fn draw(speeds: &Speeds, kind: &Kind, seed: u64) -> Vec<TraceJob> {
    let mut draw = Draw::new(seed, 0);
    let on_v100 = |profile: &str, units: u32| speeds.rate(profile, "v100", units);
    let profiles: Vec<&str> =
        speeds.profiles().filter(|profile| on_v100(profile, 1).is_some()).collect();
    let (shortest, longest) = kind.hours;
    let mut arrival_s = 0.0;
    let mut jobs = Vec::new();
    while jobs.len() < kind.jobs {
        let profile = *draw.pick(&profiles);
        let units = match draw.between(0, 99) {
            0..75 => 1,
            75..80 => 2,
            _ => 4,
        };
        let part = draw.between(0, LENGTHS - 1) as f64 / (LENGTHS - 1) as f64;
        // Some do not run on several devices.
        let Some(rate) = on_v100(profile, units) else { continue };
        let seconds = 3_600.0 * (shortest + (longest - shortest) * part);
        let stage = TraceStage {
            kind: StageKind::Train,
            profile: Some(profile.to_owned()),
            units,
            classes: Vec::new(),
            apart: None,
            exchange: 0.0,
            cores: 0,
            work: Work::Steps((seconds * rate) as u64),
        };
        jobs.push(TraceJob {
            name: String::new(),
            arrival_s,
            tenant: "others".to_owned(),
            priority: Priority::Normal,
            stages: vec![stage],
        });
        arrival_s += draw.exponential(kind.gap_s);
    }
    jobs
}

fn play(
    kind: &Kind,
    jobs: &[TraceJob],
    speeds: &Speeds,
    policy: &str,
    cadence: Cadence,
) -> Result<Outcome, Box<dyn Error>> {
    let policy = by_name(policy).ok_or("a policy that the table has not")?;
    Ok(simulate(&scenario(kind, jobs, speeds, cadence)?, policy)?)
}

/// Exact speeds and work; restarts cost nothing.
fn scenario(
    kind: &Kind,
    jobs: &[TraceJob],
    speeds: &Speeds,
    cadence: Cadence,
) -> Result<Scenario, Box<dyn Error>> {
    let topology = cluster(&format!("gavel:{}", kind.sizes))?;
    let (restart, noise) = (Restart::Fixed(Millis::ZERO), Noise::default());
    let assumed = Assumptions {
        cadence,
        restart,
        warm: None,
        noise,
        checkpoint: CheckpointModel::default(),
        seed: 1,
    };
    Ok(what_if(&topology, jobs, speeds, &assumed)?)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
