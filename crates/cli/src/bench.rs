//! `het bench`.

use anstream::println;
use het_lab::{RoundBench, bench_rounds};
use serde_json::json;

use crate::args::{Bench, BenchArgs};
use crate::fail::{Fail, code};
use crate::{output, run};

pub fn bench(args: &BenchArgs) -> Result<u8, Fail> {
    let Bench::Sim { nodes, devices, jobs, rounds, seed, ref policy, output: form } = args.what;
    let policy = run::policy(policy)?;
    let size = RoundBench { nodes, devices_per_node: devices, jobs, rounds: rounds.max(1), seed };
    let times = bench_rounds(size, policy);
    let value = json!({
        "round_p50_ms": times.p50_ms,
        "round_p99_ms": times.p99_ms,
        "round_max_ms": times.max_ms,
        "jobs": jobs,
        "nodes": nodes,
        "devices": u64::from(nodes) * u64::from(devices),
        "rounds": rounds,
        "policy": policy.name(),
        "seed": seed,
    });
    output::object(&value, form, || {
        println!(
            "a round of `{}` with {jobs} waiting jobs on {nodes} nodes × {devices} devices: p50 \
             {:.2} ms, p99 {:.2} ms, longest {:.2} ms over {rounds} rounds",
            policy.name(),
            times.p50_ms,
            times.p99_ms,
            times.max_ms
        );
    });
    Ok(code::OK)
}
