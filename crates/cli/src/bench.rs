//! `het bench`.

use std::env;
use std::path::Path;

use anstream::{eprintln, println};
use het_bench::{Size, bench_node};
use het_lab::report::{ScalingRow, scaling_plot};
use het_lab::{RoundBench, RoundTimes, bench_rounds, mixed_cluster};
use het_server::Home;
use serde_json::{Value, json};

use crate::args::{Bench, BenchArgs, Form, NodeBenchArgs, RoundsArgs};
use crate::fail::{Fail, code};
use crate::output::{self, Column, Shown};
use crate::{cluster, run};

/// Sizes of `--scaling`.
const NODES: [u32; 4] = [64, 256, 1_024, 4_096];
const JOBS: [u64; 5] = [100, 300, 1_000, 3_000, 10_000];

pub fn bench(args: &BenchArgs) -> Result<u8, Fail> {
    match &args.what {
        Bench::Node(args) => node(args),
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
        launches: whole.launches / part,
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
    let policy = run::policy(word)?;
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
