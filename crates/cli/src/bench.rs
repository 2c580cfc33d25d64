//! `het bench`.

use anstream::println;
use het_lab::{RoundBench, bench_rounds, mixed_cluster};
use serde_json::json;

use crate::args::{Bench, BenchArgs};
use crate::fail::{Fail, code};
use crate::{output, run, sim};

pub fn bench(args: &BenchArgs) -> Result<u8, Fail> {
    let Bench::Sim { cluster, nodes, devices, jobs, rounds, round, seed, policy, output: form } =
        &args.what;
    let policy = run::policy(policy)?;
    let topology = match cluster {
        Some(word) => sim::topology(word)?,
        None => mixed_cluster(*nodes, *devices),
    };
    let (nodes, devices) = (topology.nodes.len(), topology.accelerators().count());
    if devices == 0 {
        return Err(Fail::new(code::USAGE, "the cluster has no accelerators to wait for"));
    }
    let (rounds, seed, cadence) = ((*rounds).max(1), *seed, sim::cadence(*round)?);
    let size = RoundBench { topology, jobs: *jobs, rounds, seed, cadence };
    let times = bench_rounds(&size, policy);
    let value = json!({
        "round_p50_ms": times.p50_ms,
        "round_p99_ms": times.p99_ms,
        "round_max_ms": times.max_ms,
        "jobs": jobs,
        "nodes": nodes,
        "devices": devices,
        "rounds": rounds,
        "policy": policy.name(),
        "seed": seed,
    });
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
