//! Scratch: how a setting of weights does on published inputs.
use het_core::Millis;
use het_lab::workload::{Format, read_jobs, read_speeds};
use het_lab::{Assumptions, Cadence, Noise, Outcome, Restart, Saving, cluster, simulate, what_if};
use het_policy::{Adaptive, Policy, Weights};
use std::path::Path;

fn policy(w: Weights) -> &'static dyn Policy {
    Box::leak(Box::new(Adaptive(w)))
}

fn gavel(trace: &str, sizes: &str, p: &'static dyn Policy, noise: Noise, restart: u64) -> Outcome {
    let folder = Path::new("/work/shared/data/gavel");
    let jobs = read_jobs(&folder.join(trace), None).unwrap();
    let speeds = read_speeds(&folder.join("simulation_throughputs.json")).unwrap();
    let topology = cluster(&format!("gavel:{sizes}")).unwrap();
    let a = Assumptions {
        cadence: Cadence::EveryEvent { quantum: None },
        restart: Restart::Fixed(Millis::seconds(restart)),
        noise,
        saving: Saving::default(),
        seed: 1,
    };
    let s = what_if(&topology, &jobs, &speeds, &a).unwrap();
    simulate(&s, p).unwrap()
}
fn published(trace: &str, sizes: &str, policy: &str) -> (f64, f64, f64) {
    let text =
        std::fs::read_to_string("/work/shared/data/anchors/gavel_simulator_runs.csv").unwrap();
    let wanted = format!("gavel/{trace},{sizes},{},", policy.replace('-', "_"));
    let row = text.lines().find_map(|l| l.strip_prefix(&wanted)).unwrap();
    let c: Vec<f64> = row.split(',').map(|c| c.parse().unwrap_or(0.0)).collect();
    (c[2], c[3], c[4])
}
fn sia(workload: &str, p: &'static dyn Policy) -> Outcome {
    let folder = Path::new("/work/shared/data/sia");
    let jobs = read_jobs(&folder.join("workloads").join(workload), Some(Format::Sia)).unwrap();
    let speeds = read_speeds(&folder.join("profiles")).unwrap();
    let topology = cluster("sia:default").unwrap();
    let a = Assumptions {
        cadence: Cadence::EveryEvent { quantum: None },
        restart: Restart::Profiled,
        noise: Noise::default(),
        saving: Saving::default(),
        seed: 1,
    };
    let s = what_if(&topology, &jobs, &speeds, &a).unwrap();
    simulate(&s, p).unwrap()
}
fn main() {
    let mut w = Weights::SHIPPED;
    let mut which = "gs".to_owned();
    for arg in std::env::args().skip(1) {
        let Some((k, v)) = arg.split_once('=') else {
            which = arg;
            continue;
        };
        let f: f64 = v.parse().unwrap();
        set(&mut w, k, f);
    }
    let p = policy(w);
    if which.contains('g') || which.contains('n') {
        let (noise, restart) = if which.contains('n') {
            (Noise { speed: 0.2, work: 0.3 }, 60)
        } else {
            (Noise::default(), 0)
        };
        for (t, s) in [
            ("minimize_makespan.trace", "8,16,24"),
            ("minimize_makespan.trace", "12,12,12"),
            ("generated_cont160_seed0.trace", "12,12,12"),
            ("generated_static120_seed1.trace", "12,12,12"),
            ("max_min_fairness.trace", "8,16,24"),
            ("max_min_fairness.trace", "12,12,12"),
        ] {
            let o = gavel(t, s, p, noise, restart);
            let fair = published(t, s, "max-min-fairness-perf");
            let short = published(t, s, "min-total-duration-perf");
            let (fj, fp) = if restart > 0 {
                let f = gavel_rounds(t, s, noise, restart);
                (f.avg_jct_s, f.p99_jct_s)
            } else {
                (fair.0, fair.1)
            };
            println!(
                "{t:34} {s:9} jct {:.3} p99 {:.3} span {:.3} ftf {:.2} stops {} dec {} p99ms {:.2} wall {:.2}",
                o.avg_jct_s / fj,
                o.p99_jct_s / fp,
                o.makespan_s / short.2,
                o.finish_time_fairness.worst,
                o.suspensions + o.migrations,
                o.decisions,
                o.decision_p99_ms,
                o.wall_s
            );
        }
    }
    if which.contains('s') {
        for (wl, jct, span) in [
            ("philly/workload-1.csv", 1_949.8, 55_913.0),
            ("saturn/workload-1.csv", 2_091.0, 44_859.0),
            ("philly/workload-2.csv", 2_620.8, 49_267.0),
        ] {
            let o = sia(wl, p);
            println!(
                "{wl:34} jct {:.3} span {:.3} p50 {:.0} stops {} dec {} p99ms {:.2} wall {:.2}",
                o.avg_jct_s / jct,
                o.makespan_s / span,
                o.p50_jct_s,
                o.suspensions + o.migrations,
                o.decisions,
                o.decision_p99_ms,
                o.wall_s
            );
        }
    }
}
fn gavel_rounds(t: &str, sizes: &str, noise: Noise, restart: u64) -> Outcome {
    let folder = Path::new("/work/shared/data/gavel");
    let jobs = read_jobs(&folder.join(t), None).unwrap();
    let speeds = read_speeds(&folder.join("simulation_throughputs.json")).unwrap();
    let topology = cluster(&format!("gavel:{sizes}")).unwrap();
    let a = Assumptions {
        cadence: Cadence::Rounds(Millis::seconds(360)),
        restart: Restart::Fixed(Millis::seconds(restart)),
        noise,
        saving: Saving::default(),
        seed: 1,
    };
    let s = what_if(&topology, &jobs, &speeds, &a).unwrap();
    simulate(&s, het_policy::by_name("max-min-fairness-perf").unwrap()).unwrap()
}
fn set(w: &mut Weights, k: &str, f: f64) {
    match k {
        "load0" => w.load.0 = f,
        "load1" => w.load.1 = f,
        "common0" => w.common.0 = f,
        "common1" => w.common.1 = f,
        "crit0" => w.critical.0 = f,
        "crit1" => w.critical.1 = f,
        "critp" => w.critical_power = f,
        "drain" => w.draining_after = f,
        "age" => w.ageing = f,
        "late" => w.late = f,
        "latep0" => w.late_power.0 = f,
        "latep1" => w.late_power.1 = f,
        "up" => w.unknown_power = f,
        "yd" => w.young_device_s = f,
        "yp" => w.young_power = f,
        "us" => w.unknown_s = f,
        "caution" => w.caution = f,
        "q" => w.quantum = f,
        _ => panic!("{k}"),
    }
}
