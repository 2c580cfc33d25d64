//! `het fabric paths`: explicit paths, beside what switches would choose by hash.

use anstream::println;
use clap::{Args, ValueEnum};
use het_perf::fabric::{
    Clos, Demand, Rail, Routes, SpineLeaf, VertexId, dual_plane, rail, spine_leaf, worst_link_load,
};
use serde_json::{Value, json};

use crate::fail::{Fail, code};
use crate::output::{Form, object};

/// Hashes that planned paths are compared with.
const HASHES: u64 = 100;

/// Of every cable, with the switch behind it: 0.5 µs in the published pods (SimAI's templates).
const CABLE_S: f64 = 0.5e-6;

/// More than the largest published training cluster has: 24,576 NICs in eight pods.
const CABLES_MAX: f64 = 100_000.0;

/// Cables looked at for every leaf: above it planning takes more than seconds.
const LOOKS_MAX: f64 = 3e8;

#[derive(Debug, Args)]
pub struct PathsArgs {
    #[arg(long, value_enum, default_value_t = FabricKind::SpineLeaf)]
    pub fabric: FabricKind,
    #[arg(long, default_value_t = 1)]
    pub pods: u32,
    /// Leaf switches of a pod, or groups of nodes that share the leaves of their rails.
    #[arg(long, default_value_t = 2)]
    pub leaves: u32,
    #[arg(long, default_value_t = 8)]
    pub nics_per_leaf: u32,
    /// Spine switches of a pod.
    #[arg(long, default_value_t = 8)]
    pub spines: u32,
    /// NICs of a node, where the fabric is by rails.
    #[arg(long, default_value_t = 8)]
    pub rails: u32,
    /// Gb/s of a NIC.
    #[arg(long, default_value_t = 400.0)]
    pub link: f64,
    /// What the NICs of a leaf could send over what its uplinks carry.
    #[arg(long, default_value_t = 1.0)]
    pub oversubscription: f64,
    #[arg(long, value_enum, default_value_t = TrafficWord::Ring)]
    pub traffic: TrafficWord,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FabricKind {
    SpineLeaf,
    /// NICs of the same place in their nodes share leaves.
    Rail,
    /// Every NIC has a port in each of two planes.
    DualPlane,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrafficWord {
    /// Every NIC to the same place below the next leaf: data parallel over nodes.
    Ring,
    /// The NICs of the first leaf to those of the second.
    Leaf,
    /// Every NIC to the one half of the fabric away.
    Halves,
}

/// Plans explicit paths, beside what switches would choose by hash.
pub fn paths(args: &PathsArgs) -> Result<u8, Fail> {
    let clos = network(args)?;
    let demands = demands(args, &clos)?;
    let routes = Routes::of(&clos.network, &demands)
        .map_err(|error| Fail::new(code::USAGE, error.to_string()))?;
    let planned = routes.planned();
    let load = worst_link_load(&clos.network, &demands, &planned);
    let mut hashed = 0.0;
    for seed in 0..HASHES {
        hashed += worst_link_load(&clos.network, &demands, &routes.hashed(seed)) / HASHES as f64;
    }
    let name = |id| clos.network.name(id).to_owned();
    let rows: Vec<Value> = demands
        .iter()
        .zip(&planned)
        .map(|(demand, path)| {
            let stops = path.iter().map(|link| name(clos.network.link(*link).to));
            json!({
                "from": name(demand.from),
                "to": name(demand.to),
                "gbps": demand.bytes_per_s * 8e-9,
                "path": stops.collect::<Vec<_>>(),
            })
        })
        .collect();
    let share = |load: f64| (1.0 / load.max(1.0) * 1e4).round() / 1e4;
    let value = json!({
        "flows": demands.len(),
        "worst_load_planned": (load * 1e4).round() / 1e4,
        "worst_load_hashed": (hashed * 1e4).round() / 1e4,
        "slowest_planned": share(load),
        "slowest_hashed": share(hashed),
        "paths": rows,
    });
    object(&value, args.output, || {
        println!(
            "{} flows: planned paths load the worst link to {:.0} %, paths by hash to {:.0} % in \
             the mean of {HASHES}",
            demands.len(),
            load * 100.0,
            hashed * 100.0
        );
        for (demand, path) in demands.iter().zip(&planned) {
            let stops: Vec<String> =
                path.iter().map(|link| name(clos.network.link(*link).to)).collect();
            println!("  {} → {}", name(demand.from), stops.join(" → "));
        }
    });
    Ok(code::OK)
}

fn network(args: &PathsArgs) -> Result<Clos, Fail> {
    check(args)?;
    let nic_bytes_per_s = args.link * 1e9 / 8.0;
    let pods = SpineLeaf {
        pods: args.pods,
        leaves_per_pod: args.leaves,
        nics_per_leaf: args.nics_per_leaf,
        spines_per_pod: args.spines,
        cores_per_spine: args.leaves,
        nic_bytes_per_s,
        oversubscription: args.oversubscription,
        latency_s: CABLE_S,
    };
    Ok(match args.fabric {
        FabricKind::SpineLeaf => spine_leaf(&pods),
        FabricKind::DualPlane => dual_plane(&pods),
        FabricKind::Rail => rail(&Rail {
            nodes: args.leaves * args.nics_per_leaf,
            rails: args.rails,
            nodes_per_leaf: args.nics_per_leaf,
            spines: args.spines,
            nic_bytes_per_s,
            oversubscription: args.oversubscription,
            latency_s: CABLE_S,
        }),
    })
}

/// Who sends to whom, at line rate: with two planes half of it over the ports of each.
fn demands(args: &PathsArgs, clos: &Clos) -> Result<Vec<Demand>, Fail> {
    let planes = match args.fabric {
        FabricKind::DualPlane => 2,
        FabricKind::SpineLeaf | FabricKind::Rail => 1,
    };
    let bytes_per_s = args.link * 1e9 / 8.0 / planes as f64;
    let pairs = pairs(args, clos.nics.len() / planes);
    let demand = |ports: &[VertexId], (from, to): (usize, usize)| Demand {
        from: ports[from],
        to: ports[to],
        bytes_per_s,
    };
    let demands: Vec<Demand> = clos
        .nics
        .chunks(clos.nics.len() / planes)
        .flat_map(|ports| pairs.iter().map(move |pair| demand(ports, *pair)))
        .collect();
    if demands.is_empty() {
        return Err(Fail::new(code::USAGE, "nobody has anybody to send to")
            .hint("give the fabric more leaves or NICs"));
    }
    Ok(demands)
}

/// Senders and receivers, by their places among so many NICs; nobody sends to itself.
fn pairs(args: &PathsArgs, nics: usize) -> Vec<(usize, usize)> {
    let leaf = args.nics_per_leaf as usize;
    let (senders, step) = match args.traffic {
        TrafficWord::Ring => (nics, leaf),
        TrafficWord::Leaf => (leaf.min(nics), leaf),
        TrafficWord::Halves => (nics, nics / 2),
    };
    let pair = |nic: usize| (nic, (nic + step) % nics);
    (0..senders).map(pair).filter(|(from, to)| from != to).collect()
}

/// Refuses fabrics of nothing, of more than anybody builds, and links of no speed.
fn check(args: &PathsArgs) -> Result<(), Fail> {
    let positive = [
        ("--leaves", args.leaves),
        ("--nics-per-leaf", args.nics_per_leaf),
        ("--spines", args.spines),
        ("--pods", args.pods),
        ("--rails", args.rails),
    ];
    if let Some((name, _)) = positive.iter().find(|(_, count)| *count == 0) {
        return Err(Fail::new(code::USAGE, format!("`{name}` is 0: a fabric needs one at least")));
    }
    let product = |counts: &[u32]| counts.iter().map(|count| f64::from(*count)).product::<f64>();
    let leaves = match args.fabric {
        FabricKind::Rail => product(&[args.leaves, args.rails]),
        FabricKind::SpineLeaf => product(&[args.leaves, args.pods]),
        FabricKind::DualPlane => product(&[2, args.leaves, args.pods]),
    };
    // As many cables to cores as to leaves; fewer where there is one pod, or rails.
    let cables = leaves * (f64::from(args.nics_per_leaf) + 2.0 * f64::from(args.spines));
    if cables > CABLES_MAX || leaves * cables > LOOKS_MAX {
        let text =
            format!("a fabric of {cables:.0} cables on {leaves:.0} leaves is more than is planned");
        return Err(Fail::new(code::USAGE, text)
            .hint(format!("plan a pod at a time: at most {CABLES_MAX:.0} cables")));
    }
    let speeds = args.oversubscription >= 1.0 && args.link > 0.0;
    if !(speeds && args.oversubscription.is_finite() && args.link.is_finite()) {
        return Err(Fail::new(code::USAGE, "links need a speed, and uplinks no less than 1:1")
            .hint("write for example `--link 400 --oversubscription 1`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worst load of a plan at 1:1.
    fn planned(fabric: FabricKind, pods: u32, traffic: TrafficWord) -> f64 {
        let args = PathsArgs {
            fabric,
            pods,
            leaves: 2,
            nics_per_leaf: 8,
            spines: 8,
            rails: 8,
            link: 400.0,
            oversubscription: 1.0,
            traffic,
            output: Form::Table,
        };
        let clos = network(&args).expect("is a fabric");
        let demands = demands(&args, &clos).expect("there is somebody");
        let routes = Routes::of(&clos.network, &demands).expect("all is joined");
        worst_link_load(&clos.network, &demands, &routes.planned())
    }

    #[test]
    fn nothing_collides_where_nothing_blocks() {
        let check = |fabric, pods| {
            for traffic in [TrafficWord::Ring, TrafficWord::Leaf, TrafficWord::Halves] {
                let load = planned(fabric, pods, traffic);
                assert!((load - 1.0).abs() < 1e-9, "{fabric:?}, {pods} pods, {traffic:?}: {load}");
            }
        };
        check(FabricKind::SpineLeaf, 1);
        check(FabricKind::SpineLeaf, 2);
        check(FabricKind::DualPlane, 1);
        check(FabricKind::DualPlane, 2);
        check(FabricKind::Rail, 1);
    }
}
