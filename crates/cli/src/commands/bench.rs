//! `het bench`.

mod graph;
#[cfg(feature = "kubernetes")]
mod kubernetes;

use std::env;
use std::path::{Path, PathBuf};

use anstream::{eprintln, println};
use clap::{Args, Subcommand};
use het_bench::{FidelityOptions, Size, bench_fidelity, bench_node};
use het_core::Millis;
use het_lab::report::{ScalingRow, scaling_plot};
use het_lab::{RoundBench, RoundTimes, bench_rounds, mixed_cluster};
use het_server::Home;
use serde_json::{Value, json};

use crate::cluster;
use crate::fail::{Fail, code};
use crate::output::{self, Column, Form, Shown};
use crate::scheduling::{CadenceArgs, at_least_a_second, policy_named};

/// Sizes of `--scaling`.
const NODES: [u32; 4] = [64, 256, 1_024, 4_096];
const JOBS: [u64; 5] = [100, 300, 1_000, 3_000, 10_000];

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Bench,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Time launches, hops, submissions, reads and notices on this machine, beside a plain loop.
    Node(NodeBenchArgs),
    /// Run a mix of jobs on processes that sleep through steps of known lengths, play it again in
    /// the simulator, and compare the two.
    Fidelity(FidelityArgs),
    /// Time empty tasks of a step graph beside StarPU's, or compare schedulers of tasks.
    Graph(graph::GraphBenchArgs),
    /// Give pods their nodes on a Kubernetes API server without nodes, beside kube-scheduler.
    #[cfg(feature = "kubernetes")]
    Kubernetes(kubernetes::KubernetesBenchArgs),
    /// Time scheduling rounds on a simulated cluster with a long queue.
    Sim(RoundsArgs),
}

#[derive(Debug, Args)]
pub struct NodeBenchArgs {
    /// A tenth of everything: a first look.
    #[arg(long)]
    pub quick: bool,
    /// Programs at a time, of the launches and of the spawn loop beside them.
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    pub parallel: u16,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, Args)]
pub struct FidelityArgs {
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub jobs: u32,
    /// Runs, each with jobs of a seed of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100))]
    pub runs: u64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// As for `het server`, for both.
    #[arg(long, value_name = "DURATION", value_parser = at_least_a_second)]
    pub quantum: Option<Millis>,
    /// Mean time between two submissions.
    #[arg(long, value_name = "DURATION", value_parser = at_least_a_second, default_value = "2s")]
    pub interval: Millis,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, Args)]
pub struct RoundsArgs {
    /// As for `sim run`, instead of nodes of two classes in turn.
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["nodes", "devices"])]
    pub cluster: Option<String>,
    #[arg(long, default_value_t = 64)]
    pub nodes: u32,
    /// Accelerators a node.
    #[arg(long, default_value_t = 8)]
    pub devices: u32,
    /// Jobs that wait.
    #[arg(long, default_value_t = 1_000)]
    pub jobs: u64,
    /// Time 100 to 10,000 jobs on 64 to 4,096 nodes instead, and draw that as SVG.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "nodes", "jobs"])]
    pub scaling: Option<PathBuf>,
    #[arg(long, default_value_t = 1_000)]
    pub rounds: u32,
    #[command(flatten)]
    pub cadence: CadenceArgs,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[arg(long, default_value = "adaptive")]
    pub policy: String,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn bench(args: &BenchArgs) -> Result<u8, Fail> {
    match &args.what {
        Bench::Node(args) => node(args),
        Bench::Fidelity(args) => fidelity(args),
        Bench::Graph(args) => graph::graph(args),
        #[cfg(feature = "kubernetes")]
        Bench::Kubernetes(args) => kubernetes::kubernetes(args),
        Bench::Sim(args) => rounds(args),
    }
}

/// `--quick` measures one in so many.
const QUICK: usize = 10;

fn node(args: &NodeBenchArgs) -> Result<u8, Fail> {
    let part = if args.quick { QUICK } else { 1 };
    let dir = tempfile::tempdir().map_err(|error| Fail::file(&env::temp_dir(), error))?;
    let program = env::current_exe().map_err(|error| Fail::file(Path::new("het"), error))?;
    let whole = Size::default();
    let size = Size {
        // Fewer would measure how the first launches of an engine differ.
        launches: whole.launches.div_ceil(2).max(whole.launches / part),
        parallel: usize::from(args.parallel),
        hops: whole.hops / part,
        notices: whole.notices / part,
        gaps: whole.gaps / part,
        jobs_waiting: whole.jobs_waiting / part,
        jobs_ended: whole.jobs_ended / part,
        ..whole
    };
    let say = |what: &str| eprintln!("{what} …");
    let root = dir.path().to_string_lossy().into_owned();
    let home = Home::find(|name| (name == "HET_HOME").then(|| root.clone()))?;
    let run_dir = home.run_dir("bench");
    let figures =
        bench_node(dir.path(), &run_dir, &program, &size, say).map_err(Fail::from_error)?;

    let value = serde_json::to_value(&figures).unwrap_or_default();
    output::object(&value, args.output, || {
        for (name, figure) in value.as_object().into_iter().flatten() {
            println!("{name:<24} {:>10.3}", figure.as_f64().unwrap_or(f64::NAN));
        }
    });
    Ok(code::OK)
}

/// Columns of a fidelity table.
const FIDELITY: [Column; 11] = [
    Column("SEED", "seed", Shown::Always),
    Column("JOBS", "jobs", Shown::Always),
    Column("QUANTUM_S", "quantum_s", Shown::Always),
    Column("JCT", "jct_ratio", Shown::Always),
    Column("SIMULATED_MIN", "jct_simulated_min", Shown::Always),
    Column("SIMULATED_MAX", "jct_simulated_max", Shown::Always),
    Column("MAKESPAN", "makespan_ratio", Shown::Always),
    Column("UTILISATION", "utilisation_ratio", Shown::Always),
    Column("START_ORDER", "start_order_correlation", Shown::Always),
    Column("STOPS", "stops", Shown::Always),
    Column("STOPS_SIMULATED", "stops_simulated", Shown::Always),
];

fn fidelity(args: &FidelityArgs) -> Result<u8, Fail> {
    let dir = tempfile::tempdir().map_err(|error| Fail::file(&env::temp_dir(), error))?;
    let program = env::current_exe().map_err(|error| Fail::file(Path::new("het"), error))?;
    let mut rows = Vec::new();
    for seed in args.seed..args.seed + args.runs {
        let FidelityArgs { jobs, quantum, interval, .. } = *args;
        let options = FidelityOptions { jobs, seed, quantum, interval };
        let say = |what: &str| eprintln!("seed {seed}: {what} …");
        let root = dir.path().join(seed.to_string());
        let found = bench_fidelity(&root, &program, &options, say).map_err(Fail::from_error)?;
        rows.push(serde_json::to_value(&found).unwrap_or_default());
    }
    output::list("FidelityList", &rows, &FIDELITY, args.output);
    Ok(code::OK)
}

fn rounds(args: &RoundsArgs) -> Result<u8, Fail> {
    let RoundsArgs {
        cluster,
        nodes,
        devices,
        jobs,
        scaling,
        rounds,
        cadence,
        seed,
        policy: word,
        output: form,
    } = args;
    let policy = policy_named(word)?;
    let (rounds, seed, cadence) = ((*rounds).max(1), *seed, cadence.cadence());
    let timed = |topology, jobs| {
        bench_rounds(&RoundBench { topology, jobs, rounds, seed, cadence }, policy)
    };
    if let Some(file) = scaling {
        return scale(file, *form, |nodes, jobs| timed(mixed_cluster(nodes, *devices), jobs));
    }
    let topology = match cluster {
        Some(word) => cluster::cluster(word)?.topology,
        None => mixed_cluster(*nodes, *devices),
    };
    let (nodes, devices) = (topology.nodes.len(), topology.accelerators().count());
    if devices == 0 {
        return Err(Fail::new(code::USAGE, "the cluster has no accelerators to wait for"));
    }
    let times = timed(topology, *jobs);
    let mut value = told(nodes, *jobs, &times);
    value["devices"] = json!(devices);
    value["rounds"] = json!(rounds);
    value["policy"] = json!(policy.name());
    value["seed"] = json!(seed);
    output::object(&value, *form, || {
        println!(
            "a round of `{}` with {jobs} waiting jobs on {nodes} nodes with {devices} devices: p50 \
             {:.2} ms, p99 {:.2} ms, longest {:.2} ms over {rounds} rounds",
            policy.name(),
            times.p50_ms,
            times.p99_ms,
            times.max_ms
        );
    });
    Ok(code::OK)
}

fn told(nodes: usize, jobs: u64, times: &RoundTimes) -> Value {
    let micros = |ms: f64| (ms * 1e3).round() / 1e3;
    json!({
        "round_p50_ms": micros(times.p50_ms),
        "round_p99_ms": micros(times.p99_ms),
        "round_max_ms": micros(times.max_ms),
        "jobs": jobs,
        "nodes": nodes,
    })
}

const SCALING_COLUMNS: &[Column] = &[
    Column("NODES", "nodes", Shown::Always),
    Column("JOBS", "jobs", Shown::Always),
    Column("P50_MS", "round_p50_ms", Shown::Always),
    Column("P99_MS", "round_p99_ms", Shown::Always),
    Column("MAX_MS", "round_max_ms", Shown::Wide),
];

/// Every size once; a table, and the drawing in `file`.
fn scale(file: &Path, form: Form, timed: impl Fn(u32, u64) -> RoundTimes) -> Result<u8, Fail> {
    let sizes = NODES.into_iter().flat_map(|nodes| JOBS.map(|jobs| (nodes, jobs)));
    let rows: Vec<ScalingRow> =
        sizes.map(|(nodes, jobs)| ScalingRow { nodes, jobs, times: timed(nodes, jobs) }).collect();
    std::fs::write(file, scaling_plot(&rows)).map_err(|error| Fail::file(file, error))?;
    eprintln!("drawn in `{}`", file.display());
    let told = |row: &ScalingRow| told(row.nodes as usize, row.jobs, &row.times);
    let items: Vec<Value> = rows.iter().map(told).collect();
    output::list("RoundTimesList", &items, SCALING_COLUMNS, form);
    Ok(code::OK)
}
