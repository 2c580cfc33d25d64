//! What `het sim` is asked to play: words and files become a scenario.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anstream::eprintln;
use clap::Args;
use het_core::{JobId, Millis, Name, Quotas, Time, Topology};
use het_lab::workload::{Speeds, read_jobs, read_speeds, roofline};
use het_lab::{
    Assumptions, CheckpointModel, Completions, FAULT_RATES, Fault, FaultCourse, LoggedRun, Noise,
    Restart, Scenario, WhatIfError, draw_faults, from_log, read_faults, what_if,
};
use het_wire::quotas::parse as parse_quotas;

use crate::cluster::cluster;
use crate::fail::{Fail, code};
use crate::scheduling::CadenceArgs;
use crate::workload::{format, history, unusable};

/// How long before it happens a failure is announced.
const WARNING: Millis = Millis::seconds(600);

/// Cluster, workload and what is assumed beside them.
#[derive(Debug, Args)]
pub struct ScenarioArgs {
    /// A cluster file, `this`, templates as in `hgx-h100-8x4+rail`, `8xh100-sxm5-80`,
    /// `uniform:NODESxDEVICES[/NODES_A_RACK]`, `gavel:V100,P100,K80`, `sia:default`, `sia:TIMES`,
    /// `alibaba-openb:NODES.csv` or `spot2026:FILE`.
    #[arg(long, value_name = "CLUSTER", required_unless_present = "from_log")]
    pub cluster: Option<String>,
    /// Trace file; `.gz` is unpacked on the way.
    #[arg(long, value_name = "FILE", required_unless_present = "from_log")]
    pub trace: Option<PathBuf>,
    /// Instead of cluster and trace, the jobs of a server's log on the cluster that they met, with
    /// the lengths that they declared and what was known before the first of them: a backup
    /// (`het server backup`), or the store of a server that does not run.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "trace", "profiles", "noise",
        "restart_cost", "warm_start", "checkpoint_every", "quotas"])]
    pub from_log: Option<PathBuf>,
    /// The first job of the log that is played; what ran before it is what is known.
    #[arg(long, value_name = "JOB", requires = "from_log")]
    pub first_job: Option<u64>,
    /// Format of the trace where its name does not say it: `het`, `gavel`, `philly`, `sia`,
    /// `pollux`, `alibaba-openb` or `sacct`.
    #[arg(long)]
    pub format: Option<String>,
    /// Throughput table, folder of measured applications, or `roofline[:SCALE]`: estimates from the
    /// device catalogue, with everything but the H100 that many times as fast.
    #[arg(long, value_name = "FILE|FOLDER|roofline")]
    pub profiles: Option<PathBuf>,
    #[command(flatten)]
    pub cadence: CadenceArgs,
    /// Pause at every start, restart and change of devices: `none`, seconds, or `profile` for that
    /// of each application.
    #[arg(long, value_name = "none|profile|SECONDS", default_value = "none")]
    pub restart_cost: String,
    /// Seconds of that pause in which programs need no devices yet. With it, the programs of stages
    /// that come next are started while their devices are still in use (`warm: true` in a job
    /// file).
    #[arg(long, value_name = "SECONDS")]
    pub warm_start: Option<f64>,
    /// Errors in what policies are told: `speed=0.2,work=0.3` (σ of a lognormal factor).
    #[arg(long, default_value = "")]
    pub noise: String,
    /// What tenants are entitled to and limited to: see `het schema quotas`.
    #[arg(long, value_name = "FILE")]
    pub quotas: Option<PathBuf>,
    /// Price of an hour of one device by class: `v100=2.5,p100=1`.
    #[arg(long, value_name = "CLASS=PRICE,…", default_value = "")]
    pub price: String,
    /// Failures: published rates (`llama3`, `rsc1`, `rsc2`) or a list in JSON Lines.
    #[arg(long, value_name = "RATES|FILE")]
    pub faults: Option<String>,
    /// Part of the failures that something announces ten minutes before.
    #[arg(long, value_name = "PART", default_value_t = 0.0, requires = "faults")]
    pub foreseen: f64,
    /// Seconds until a failed node is back.
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600.0, requires = "faults")]
    pub repair: f64,
    /// Seconds of running between two checkpoints; none but at a stop where absent.
    #[arg(long, value_name = "SECONDS")]
    pub checkpoint_every: Option<f64>,
    /// Seconds that a checkpoint takes.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub checkpoint_cost: f64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Everything that the arguments name, read and put together.
pub fn read(args: &ScenarioArgs, seed: u64) -> Result<Scenario, Fail> {
    read_recorded(args, seed).map(|(scenario, _)| scenario)
}

/// The same, and what really became of it where it is from a log.
pub fn read_recorded(
    args: &ScenarioArgs,
    seed: u64,
) -> Result<(Scenario, Option<Completions>), Fail> {
    let (mut scenario, recorded) = match &args.from_log {
        Some(path) => {
            let LoggedRun { scenario, recorded, .. } = logged(path, args)?;
            (Scenario { seed, ..scenario }, Some(recorded))
        }
        None => (described(args, seed)?, None),
    };
    scenario.prices = prices(&args.price, &scenario.topology)?;
    if let Some(word) = &args.faults {
        scenario.faults = faults(word, &scenario, args)?;
    }
    Ok((scenario, recorded))
}

/// The jobs of a server's log.
fn logged(path: &Path, args: &ScenarioArgs) -> Result<LoggedRun, Fail> {
    let (past, events) = history(path)?;
    let first = args.first_job.map(JobId);
    let run = from_log(past, &events, first, args.cadence.cadence()).ok_or_else(|| {
        Fail::new(code::USAGE, format!("no job of `{}` can be played", path.display())).hint(
            "jobs need `steps:`, and programs that were measured before: `--first-job` says from \
             which job on",
        )
    })?;
    for (why, count) in run.left_out.iter().fold(BTreeMap::new(), |mut counts, (_, why)| {
        *counts.entry(*why).or_insert(0_usize) += 1;
        counts
    }) {
        eprintln!("! {count} jobs are left out: {why}");
    }
    Ok(run)
}

/// What a cluster and a trace describe.
fn described(args: &ScenarioArgs, seed: u64) -> Result<Scenario, Fail> {
    let named = |name: &str| Fail::new(code::USAGE, format!("`--{name}` is missing"));
    let topology = cluster(args.cluster.as_ref().ok_or_else(|| named("cluster"))?)?.topology;
    let format = args.format.as_deref().map(format).transpose()?;
    let trace = args.trace.as_ref().ok_or_else(|| named("trace"))?;
    let jobs = read_jobs(trace, format).map_err(|error| unusable(&error))?;
    let speeds = match &args.profiles {
        Some(path) => speeds_of(path)?,
        None => Speeds::default(),
    };
    let assumptions = Assumptions {
        cadence: args.cadence.cadence(),
        restart: restart(&args.restart_cost)?,
        warm: args.warm_start.map(|imports| seconds("--warm-start", imports)).transpose()?,
        noise: noise(&args.noise)?,
        checkpoint: CheckpointModel {
            duration: seconds("--checkpoint-cost", args.checkpoint_cost)?,
            interval: args
                .checkpoint_every
                .map(|every| seconds("--checkpoint-every", every))
                .transpose()?,
        },
        seed,
    };
    let mut scenario =
        what_if(&topology, &jobs, &speeds, &assumptions).map_err(|error| unplayable(&error))?;
    if let Some(path) = &args.quotas {
        scenario.quotas = quotas(path, &topology)?;
        if let Some((job, units, tenant)) = scenario.beyond_limits() {
            return Err(unplayable(&WhatIfError::BeyondLimit { job, units, tenant }));
        }
    }
    Ok(scenario)
}

fn unplayable(error: &WhatIfError) -> Fail {
    let hint = match error {
        WhatIfError::UnknownProfile { .. } => "name the throughput table with `--profiles`",
        WhatIfError::NeverFits { .. } => "name a larger cluster",
        WhatIfError::NoSpeed { .. } => {
            "name a cluster with classes that `--profiles` has speeds of"
        }
        WhatIfError::BeyondLimit { .. } => "raise the limit",
    };
    Fail::new(code::USAGE, error.to_string()).hint(hint)
}

fn quotas(path: &Path, topology: &Topology) -> Result<Quotas, Fail> {
    let source = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
    parse_quotas(&text, &source, topology)
        .map_err(|problems| Fail::Report { code: code::USAGE, text: problems.to_string() })
}

/// `v100=2.5,p100=1`: of an hour of one device.
fn prices(word: &str, topology: &Topology) -> Result<BTreeMap<Name, f64>, Fail> {
    let mut prices = BTreeMap::new();
    for part in word.split(',').filter(|part| !part.is_empty()) {
        let row = part.split_once('=').and_then(|(class, price)| {
            let price = price.parse().ok().filter(|price: &f64| (0.0..1e9).contains(price))?;
            let class = topology.classes.iter().find(|known| known.id == *class)?;
            Some((class.id.clone(), price))
        });
        let Some((class, price)) = row else {
            let ids: Vec<&str> = topology.classes.iter().map(|class| class.id.as_str()).collect();
            let message = format!("`{part}` is no price of a device class");
            let hint = format!("write `{}=2.5`; classes here: {}", ids[0], ids.join(", "));
            return Err(Fail::new(code::USAGE, message).hint(hint));
        };
        prices.insert(class, price);
    }
    Ok(prices)
}

fn speeds_of(path: &Path) -> Result<Speeds, Fail> {
    let word = path.to_str().unwrap_or_default();
    let scale = match word.strip_prefix("roofline:") {
        Some(number) => number.parse().ok().filter(|scale| (0.01..=100.0).contains(scale)),
        None if word == "roofline" => Some(1.0),
        None => return read_speeds(path).map_err(|error| unusable(&error)),
    };
    scale.map(roofline).ok_or_else(|| {
        Fail::new(code::USAGE, format!("`{word}` has no usable scale"))
            .hint("write `roofline`, or `roofline:0.5` with a scale of 0.01 to 100")
    })
}

/// Failures by published rates until long after everything should be done, or from a list.
fn faults(
    word: &str,
    scenario: &Scenario,
    args: &ScenarioArgs,
) -> Result<Vec<(Time, Fault)>, Fail> {
    let Some(rates) = FAULT_RATES.iter().find(|rates| rates.name == word) else {
        return read_faults(Path::new(word), &scenario.topology).map_err(|error| unusable(&error));
    };
    if !(0.0..=1.0).contains(&args.foreseen) {
        let message = format!("{} of the failures cannot be foreseen", args.foreseen);
        return Err(Fail::new(code::USAGE, message).hint("give a part between 0 and 1"));
    }
    let course = FaultCourse {
        repair: seconds("--repair", args.repair)?,
        foreseen: args.foreseen,
        warning: WARNING,
    };
    let until = scenario.latest_end();
    Ok(draw_faults(&scenario.topology, rates, &course, until, scenario.seed))
}

fn seconds(name: &str, value: f64) -> Result<Millis, Fail> {
    let valid = Some(value).filter(|value| (0.0..1e9).contains(value)).map(millis);
    valid.ok_or_else(|| {
        Fail::new(code::USAGE, format!("`{name} {value}` is no time"))
            .hint("give seconds, zero or more")
    })
}

fn restart(word: &str) -> Result<Restart, Fail> {
    if word == "profile" {
        return Ok(Restart::Profiled);
    }
    let seconds = if word == "none" { Some(0.0) } else { word.parse().ok() };
    let fixed = seconds.filter(|seconds: &f64| *seconds >= 0.0).map(millis);
    fixed.map(Restart::Fixed).ok_or_else(|| {
        Fail::new(code::USAGE, format!("`{word}` is no restart cost"))
            .hint("give `none`, `profile` or seconds")
    })
}

fn millis(seconds: f64) -> Millis {
    Millis((seconds * 1e3).round() as u64)
}

fn noise(word: &str) -> Result<Noise, Fail> {
    let mut noise = Noise::default();
    for part in word.split(',').filter(|part| !part.is_empty()) {
        let sigma =
            part.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        match sigma.filter(|(_, sigma): &(&str, f64)| (0.0..=3.0).contains(sigma)) {
            Some(("speed", sigma)) => noise.speed = sigma,
            Some(("work", sigma)) => noise.work = sigma,
            _ => {
                let message = format!("`{part}` is no noise");
                return Err(Fail::new(code::USAGE, message).hint("write `speed=0.2,work=0.3`"));
            }
        }
    }
    Ok(noise)
}
