//! Gavel's workloads: the re-implemented policies land where the originals did, and `adaptive`
//! beats them.

use het_core::Millis;
use het_lab::workload::{read_jobs, read_speeds};
use het_lab::{
    Assumptions, Cadence, CheckpointModel, Noise, Outcome, Restart, cluster, simulate, what_if,
};
use het_policy::by_name;

use crate::Data;

/// How far the mean completion time of a re-implemented policy may land from the original, as a
/// part; the makespan, which a few last jobs decide, may land a little farther: which of equally
/// good shares they get is up to the solver.
const CLOSE: f64 = 0.02;
const MAKESPAN_CLOSE: f64 = 0.03;

/// One cell of the published table: mean completion, p99 and makespan in seconds.
#[derive(Debug, Clone, Copy)]
struct Published {
    avg_jct_s: f64,
    p99_jct_s: f64,
    makespan_s: f64,
}

impl Data {
    /// Published policies play in the rounds of their simulator, ours as it ships.
    fn play(&self, trace: &str, sizes: &str, policy: &str, noise: Noise, restart: u64) -> Outcome {
        let cadence = match policy {
            "adaptive" => Cadence::default(),
            _ => Cadence::Rounds(Millis::seconds(360)),
        };
        let folder = self.root.join("gavel");
        let jobs = read_jobs(&folder.join(trace), None).expect("a published trace");
        let table = folder.join("simulation_throughputs.json");
        let speeds = read_speeds(&table).expect("a published table");
        let topology = cluster(&format!("gavel:{sizes}")).expect("three counts");
        let assumptions = Assumptions {
            cadence,
            restart: Restart::Fixed(Millis::seconds(restart)),
            warm: None,
            noise,
            checkpoint: CheckpointModel::default(),
            seed: 1,
        };
        let scenario = what_if(&topology, &jobs, &speeds, &assumptions).expect("it all fits");
        let outcome = simulate(&scenario, by_name(policy).expect("in the table"));
        let outcome = outcome.expect("no law is broken");
        assert_eq!(outcome.jobs_done, outcome.jobs_total, "{policy} drops jobs of {trace}");
        outcome
    }

    fn published(&self, trace: &str, sizes: &str, policy: &str) -> Published {
        let path = self.root.join("anchors/gavel_simulator_runs.csv");
        let text = std::fs::read_to_string(path).expect("the published results");
        let wanted = format!("gavel/{trace},{sizes},{},", policy.replace('-', "_"));
        let row = text.lines().find_map(|line| line.strip_prefix(&wanted)).expect("a row");
        let cell = |index| row.split(',').nth(index).and_then(|cell| cell.parse().ok());
        let cell = |index| cell(index).expect("a number");
        Published { avg_jct_s: cell(2), p99_jct_s: cell(3), makespan_s: cell(4) }
    }
}

#[test]
fn re_implemented_policies_land_where_the_originals_did() {
    let Some(data) = Data::find("gavel") else { return };
    for policy in ["fifo-perf", "max-min-fairness-perf", "min-total-duration-perf"] {
        for trace in ["max_min_fairness.trace", "minimize_makespan.trace"] {
            for sizes in ["8,16,24", "12,12,12"] {
                let ours = data.play(trace, sizes, policy, Noise::default(), 0);
                let theirs = data.published(trace, sizes, policy);
                let jct = ours.avg_jct_s / theirs.avg_jct_s - 1.0;
                let makespan = ours.makespan_s / theirs.makespan_s - 1.0;
                assert!(jct.abs() <= CLOSE, "{policy} {trace} {sizes}: JCT {jct:+.3}");
                assert!(
                    makespan.abs() <= MAKESPAN_CLOSE,
                    "{policy} {trace} {sizes}: span {makespan:+.3}"
                );
            }
        }
    }
}

#[test]
fn srpt_lands_on_the_published_reference() {
    let Some(data) = Data::find("gavel") else { return };
    for (trace, sizes, avg_jct_s, makespan_s) in [
        ("minimize_makespan.trace", "8,16,24", 27_918.0, 87_239.0),
        ("minimize_makespan.trace", "12,12,12", 28_642.0, 91_022.0),
        ("generated_static120_seed1.trace", "12,12,12", 21_593.0, 76_860.0),
        ("max_min_fairness.trace", "8,16,24", 12_953.0, 66_953.0),
    ] {
        let ours = data.play(trace, sizes, "srpt", Noise::default(), 0);
        let told = (ours.avg_jct_s / avg_jct_s, ours.makespan_s / makespan_s);
        let close = |ratio: f64| (ratio - 1.0).abs() <= 0.01;
        assert!(close(told.0) && close(told.1), "{trace} {sizes}: {told:?}");
    }
}

/// Completion times against max-min fairness, makespan against the shortest published one.
fn check_adaptive(trace: &str, sizes: &str, jct: f64, p99: f64, makespan: f64) {
    let Some(data) = Data::find("gavel") else { return };
    let ours = data.play(trace, sizes, "adaptive", Noise::default(), 0);
    let fair = data.published(trace, sizes, "max-min-fairness-perf");
    let short = data.published(trace, sizes, "min-total-duration-perf");
    let told = (
        ours.avg_jct_s / fair.avg_jct_s,
        ours.p99_jct_s / fair.p99_jct_s,
        ours.makespan_s / short.makespan_s,
    );
    assert!(told.0 <= jct && told.1 <= p99 && told.2 <= makespan, "{trace} {sizes}: {told:?}");
}

#[test]
fn adaptive_shortens_a_long_queue() {
    check_adaptive("minimize_makespan.trace", "8,16,24", 0.76, 1.09, 1.10);
    check_adaptive("minimize_makespan.trace", "12,12,12", 0.76, 1.09, 1.10);
    check_adaptive("generated_cont160_seed0.trace", "12,12,12", 0.76, 1.09, 1.10);
    check_adaptive("generated_static120_seed1.trace", "12,12,12", 0.76, 1.09, 1.10);
}

#[test]
fn adaptive_does_not_pay_for_it_at_light_load() {
    check_adaptive("max_min_fairness.trace", "8,16,24", 0.90, 1.09, 1.10);
    check_adaptive("max_min_fairness.trace", "12,12,12", 0.90, 1.09, 1.10);
}

#[test]
fn the_ranking_survives_restarts_and_wrong_numbers() {
    let Some(data) = Data::find("gavel") else { return };
    let noise = Noise { speed: 0.2, work: 0.3 };
    for (trace, sizes) in [
        ("minimize_makespan.trace", "8,16,24"),
        ("generated_cont160_seed0.trace", "12,12,12"),
        ("max_min_fairness.trace", "12,12,12"),
    ] {
        let ours = data.play(trace, sizes, "adaptive", noise, 60);
        let theirs = data.play(trace, sizes, "max-min-fairness-perf", noise, 60);
        let ratio = ours.avg_jct_s / theirs.avg_jct_s;
        assert!(ratio <= 0.85, "{trace} {sizes}: {ratio:.3}");
    }
}
