//! `het fabric`: flows through a network, paths for them, and thresholds for its switches.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anstream::{eprintln, println};
use het_lab::report::{Cloud, queue_plot, rate_plot, scatter_plot};
use het_lab::{FlowError, FlowScenario, FlowScore, read_flows, score_flows, summarise};
use het_perf::fabric::{
    Bottleneck, Clos, Dcqcn, Demand, EcnProposal, EcnReason, Rail, SpineLeaf, TrafficMix,
    dual_plane, hashed_paths, plan_paths, propose_marking, rail, spine_leaf, worst_link_load,
};
use het_wire::sonic::{PortThresholds, config_db};
use serde_json::{Map, Value, json};

use crate::args::{EcnArgs, FabricCommand, FabricKind, PathsArgs, SimulateArgs, TrafficWord};
use crate::fail::{Fail, code};
use crate::output::object;
use crate::trace;

/// Points of a plot over time.
const PLOT_EVERY: usize = 50;
const PLOT_SECONDS: f64 = 40e-3;

/// Hashes that planned paths are compared with.
const HASHES: u64 = 100;

/// Of every cable, with the switch behind it: 0.5 µs in the published pods (SimAI's templates).
const CABLE_S: f64 = 0.5e-6;

pub fn fabric(command: &FabricCommand) -> Result<u8, Fail> {
    match command {
        FabricCommand::Simulate(args) => simulate(args),
        FabricCommand::Paths(args) => paths(args),
        FabricCommand::Ecn(args) => ecn(args),
    }
}

/// Plays published flows, and says how far our times are from theirs.
fn simulate(args: &SimulateArgs) -> Result<u8, Fail> {
    let scenarios = read_flows(&args.flows).map_err(|error| trace::unusable(&error))?;
    let began = Instant::now();
    let scores = score_flows(&scenarios);
    let wall_s = began.elapsed().as_secs_f64();
    let flows = || scores.iter().flat_map(|score| &score.flows);
    if let Some(path) = &args.plot {
        write(path, &scatter_plot(&clouds(&scenarios, &scores), "µs"))?;
        eprintln!("drawn in `{}`", path.display());
    }
    let difference = flows().map(|flow| flow.max_min_difference).fold(0.0, f64::max);
    let (median, mean) = (by_control(&scores, |score| score.0), by_control(&scores, |s| s.1));
    let value = json!({
        "flows": flows().count(),
        "scenarios": scores.len(),
        "max_rel_diff_maxmin": difference,
        "median_err_by_cc": median,
        "mean_err_by_cc": mean,
        "wall_s": (wall_s * 1e3).round() / 1e3,
    });
    object(&value, args.output, || {
        println!(
            "{} flows of {} scenarios in {wall_s:.2} s; max-min shares within {difference:.1e} of \
             the published",
            flows().count(),
            scores.len()
        );
        for (name, error) in &median {
            let (median, mean) = (percent(error), percent(&mean[name]));
            println!("  {name:<18} median error {median:>5.1} %, mean {mean:>5.1} %");
        }
    });
    Ok(code::OK)
}

/// Completion times in microseconds, by congestion control.
fn clouds(scenarios: &[FlowScenario], scores: &[FlowScore]) -> Vec<Cloud> {
    let mut clouds: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for (scenario, score) in scenarios.iter().zip(scores) {
        let times = scenario.flows.iter().zip(&score.flows);
        let points = times.map(|(told, ours)| (told.packets_ns / 1e3, ours.predicted_ns / 1e3));
        clouds.entry(score.control.family()).or_default().extend(points);
    }
    clouds.into_iter().map(|(name, points)| Cloud { name: name.to_owned(), points }).collect()
}

fn percent(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN) * 100.0
}

/// One of (median, mean) of every congestion control, by the name of its family.
fn by_control(scores: &[FlowScore], pick: impl Fn((f64, f64)) -> f64) -> Map<String, Value> {
    let mut errors: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for score in scores {
        let of_flows = score.flows.iter().map(|flow: &FlowError| flow.predicted_error);
        errors.entry(score.control.family()).or_default().extend(of_flows);
    }
    let rows = errors.into_iter().filter_map(|(name, errors)| {
        let summary = summarise(errors.into_iter())?;
        let value = pick((summary.median, summary.mean));
        Some((name.to_owned(), json!((value * 1e6).round() / 1e6)))
    });
    rows.collect()
}

/// Plans explicit paths, beside what switches would choose by hash.
fn paths(args: &PathsArgs) -> Result<u8, Fail> {
    let clos = network(args)?;
    let demands = demands(args, &clos)?;
    let trouble = |error: het_perf::fabric::PathError| Fail::new(code::USAGE, error.to_string());
    let planned = plan_paths(&clos.network, &demands).map_err(trouble)?;
    let load = worst_link_load(&clos.network, &demands, &planned);
    let mut hashed = 0.0;
    for seed in 0..HASHES {
        let paths = hashed_paths(&clos.network, &demands, seed).map_err(trouble)?;
        hashed += worst_link_load(&clos.network, &demands, &paths) / HASHES as f64;
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
    if !(args.oversubscription >= 1.0 && args.link > 0.0) {
        return Err(Fail::new(code::USAGE, "links need a speed, and uplinks no less than 1:1")
            .hint("write for example `--link 400 --oversubscription 1`"));
    }
    let nic_bytes_per_s = args.link * 1e9 / 8.0;
    let pods = SpineLeaf {
        pods: args.pods,
        leaves_per_pod: args.leaves,
        nics_per_leaf: args.nics_per_leaf,
        spines_per_pod: args.spines,
        cores_per_spine: args.spines,
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

/// Who sends to whom, at line rate.
fn demands(args: &PathsArgs, clos: &Clos) -> Result<Vec<Demand>, Fail> {
    let count = clos.nics.len();
    let bytes_per_s = args.link * 1e9 / 8.0;
    let demand = |from: usize, to: usize| Demand {
        from: clos.nics[from],
        to: clos.nics[to % count],
        bytes_per_s,
    };
    let step = args.nics_per_leaf as usize;
    let all = (0..count).collect::<Vec<_>>();
    let pairs: Vec<Demand> = match args.traffic {
        TrafficWord::Ring => all.iter().map(|&nic| demand(nic, nic + step)).collect(),
        TrafficWord::Leaf => all.iter().take(step).map(|&nic| demand(nic, nic + step)).collect(),
        TrafficWord::Halves => all.iter().map(|&nic| demand(nic, nic + count / 2)).collect(),
    };
    let pairs: Vec<Demand> = pairs.into_iter().filter(|pair| pair.from != pair.to).collect();
    if pairs.is_empty() {
        return Err(Fail::new(code::USAGE, "nobody has anybody to send to")
            .hint("give the fabric more leaves or NICs"));
    }
    Ok(pairs)
}

/// Proposes thresholds for a mix of traffic.
fn ecn(args: &EcnArgs) -> Result<u8, Fail> {
    let sane = args.link > 0.0 && args.rtt_us > 0.0 && args.buffer_mb > 0.0 && args.flows > 0;
    if !sane || !(0.0..=1.0).contains(&args.short_share) {
        return Err(Fail::new(
            code::USAGE,
            "flows, link, round trip and buffer have to be positive, \
                                           and the part of short flows between 0 and 1",
        ));
    }
    let link_bytes_per_s = args.link * 1e9 / 8.0;
    let mix = TrafficMix {
        flows: args.flows,
        link_bytes_per_s,
        base_rtt_s: args.rtt_us * 1e-6,
        packet_bytes: args.packet_bytes,
        buffer_bytes: args.buffer_mb * 1e6,
        short_share: args.short_share,
        rules: Dcqcn::vendor(link_bytes_per_s),
    };
    let proposal = propose_marking(&mix);
    if let Some(path) = &args.plot {
        plot(path, &mix, &proposal)?;
    }
    let thresholds = thresholds(&proposal);
    if let Some(path) = &args.sonic {
        let config = config_db(&thresholds, &args.port, args.queue);
        write(path, &format!("{config:#}\n"))?;
    }
    let reasons: Vec<String> = proposal.reasons.iter().map(sentence).collect();
    let value = json!({
        "kmin_bytes": thresholds.mark_min,
        "kmax_bytes": thresholds.mark_max,
        "pmax": proposal.marking.probability_max,
        "pause_bytes": thresholds.pause,
        "resume_bytes": thresholds.resume,
        "headroom_bytes": thresholds.headroom,
        "queue_bytes_mean": proposal.queue_bytes_mean.round(),
        "queue_delay_us": (proposal.queue_delay_s * 1e9).round() / 1e3,
        "throughput": (proposal.throughput * 1e4).round() / 1e4,
        "slowdown": (proposal.slowdown * 1e4).round() / 1e4,
        "compared": proposal.compared,
        "reasons": reasons,
    });
    object(&value, args.output, || {
        println!(
            "Kmin {} kB · Kmax {} kB · Pmax {:.2}",
            thresholds.mark_min / 1000,
            thresholds.mark_max / 1000,
            proposal.marking.probability_max
        );
        println!(
            "queue {:.0} kB in the mean ({:.1} µs), {:.1} % of the link used",
            proposal.queue_bytes_mean / 1e3,
            proposal.queue_delay_s * 1e6,
            proposal.throughput * 100.0
        );
        reasons.iter().for_each(|reason| println!("  · {reason}"));
    });
    Ok(code::OK)
}

fn thresholds(proposal: &EcnProposal) -> PortThresholds {
    let whole = |bytes: f64| bytes.round().max(0.0) as u64;
    PortThresholds {
        mark_min: whole(proposal.marking.min_bytes),
        mark_max: whole(proposal.marking.max_bytes),
        mark_percent: (proposal.marking.probability_max * 100.0).round() as u32,
        pause: whole(proposal.pause.pause_bytes),
        resume: whole(proposal.pause.resume_bytes),
        headroom: whole(proposal.pause.headroom_bytes),
    }
}

fn sentence(reason: &EcnReason) -> String {
    match reason {
        EcnReason::MarksFromRoundTrip { least_bytes, min_bytes } => format!(
            "marks from {:.0} kB: one marked from less than {:.0} kB would run empty after a cut",
            min_bytes / 1e3,
            least_bytes / 1e3
        ),
        EcnReason::MarksBeforePause { max_bytes, pause_bytes } => format!(
            "marks everything above {:.0} kB, before senders are paused at {:.0} kB",
            max_bytes / 1e3,
            pause_bytes / 1e3
        ),
        EcnReason::RestsWithin { marked, probability_max, queue_bytes } => format!(
            "the flows rest at a queue of {:.0} kB, {:.2} % of packets marked, within Pmax {:.0} %",
            queue_bytes / 1e3,
            marked * 100.0,
            probability_max * 100.0
        ),
        EcnReason::RestsAtMax { marked, queue_bytes } => format!(
            "so many flows need {:.2} % of packets marked and rest at Kmax, {:.0} kB",
            marked * 100.0,
            queue_bytes / 1e3
        ),
        EcnReason::ShortFlowsWait { delay_s, base_rtt_s } => format!(
            "short flows wait {:.1} µs in the queue, beside a round trip of {:.1} µs",
            delay_s * 1e6,
            base_rtt_s * 1e6
        ),
    }
}

/// Queue and rates over time under the proposal, in two files: `NAME.svg` and `NAME-rates.svg`.
fn plot(path: &Path, mix: &TrafficMix, proposal: &EcnProposal) -> Result<(), Fail> {
    let bottleneck = Bottleneck {
        link_bytes_per_s: mix.link_bytes_per_s,
        base_rtt_s: mix.base_rtt_s,
        packet_bytes: mix.packet_bytes,
        rules: mix.rules,
        marking: proposal.marking,
    };
    // Between half of its share and half more than that: they come together or they do not.
    let share = mix.link_bytes_per_s / f64::from(mix.flows);
    let part = |flow: u32| 0.5 + f64::from(flow) / f64::from(mix.flows.saturating_sub(1).max(1));
    let initial: Vec<f64> = (0..mix.flows).map(|flow| share * part(flow)).collect();
    let points = bottleneck.follow(&initial, PLOT_SECONDS, PLOT_EVERY);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let rates = path.with_file_name(format!("{stem}-rates.svg"));
    write(path, &queue_plot(&points))?;
    write(&rates, &rate_plot(&points))?;
    eprintln!("drawn in `{}` and `{}`", path.display(), rates.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Fail> {
    fs::write(path, text).map_err(|error| Fail::file(path, error))
}
