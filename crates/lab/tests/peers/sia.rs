//! Sia's elastic workloads: `sia` lands where its own simulator did, and `adaptive`, which knows no
//! more, is ahead of it.

use het_core::Millis;
use het_lab::workload::{Format, read_jobs, read_speeds};
use het_lab::{
    Assumptions, Cadence, CheckpointModel, Noise, Outcome, Restart, cluster, simulate, what_if,
};
use het_policy::by_name;

use crate::Data;

/// Mean completion time and makespan in seconds, `anchors/sia_simulator_runs.csv`.
const PUBLISHED: [(&str, f64, f64); 3] = [
    ("philly/workload-1.csv", 1_949.8, 55_913.0),
    ("saturn/workload-1.csv", 2_091.0, 44_859.0),
    ("philly/workload-2.csv", 2_620.8, 49_267.0),
];

/// `sia` plays in the rounds of its simulator, ours as it ships.
fn play(data: &Data, workload: &str, policy: &str) -> Outcome {
    let cadence = match policy {
        "adaptive" => Cadence::default(),
        _ => Cadence::Rounds(Millis::seconds(60)),
    };
    let folder = data.root.join("sia");
    let trace = folder.join("workloads").join(workload);
    let jobs = read_jobs(&trace, Some(Format::Sia)).expect("a published workload");
    let speeds = read_speeds(&folder.join("profiles")).expect("published measurements");
    let topology = cluster("sia:default").expect("a known cluster");
    let assumptions = Assumptions {
        cadence,
        restart: Restart::Profiled,
        warm: None,
        noise: Noise::default(),
        checkpoint: CheckpointModel::default(),
        seed: 1,
    };
    let scenario = what_if(&topology, &jobs, &speeds, &assumptions).expect("it all fits");
    let outcome = simulate(&scenario, by_name(policy).expect("in the table"));
    let outcome = outcome.expect("no law is broken");
    assert_eq!(outcome.jobs_done, outcome.jobs_total, "{policy} drops jobs of {workload}");
    outcome
}

#[test]
fn sia_lands_where_its_simulator_did() {
    let Some(data) = Data::find("sia") else { return };
    for (workload, jct, _) in PUBLISHED {
        let ratio = play(&data, workload, "sia").avg_jct_s / jct;
        assert!((ratio - 1.0).abs() < 0.10, "{workload}: {ratio:.3} of the published");
    }
}

#[test]
fn adaptive_is_ahead_of_sia() {
    let Some(data) = Data::find("sia") else { return };
    // Single runs scatter by 2 %: whatever changes one decision changes all that follow.
    let mut sum = 0.0;
    for ((workload, jct, makespan), bar) in PUBLISHED.into_iter().zip([0.90, 0.97, 0.97]) {
        let ours = play(&data, workload, "adaptive");
        let ratios = (ours.avg_jct_s / jct, ours.makespan_s / makespan);
        assert!(ratios.0 <= bar && ratios.1 < 1.06, "{workload}: {ratios:.3?} of the published");
        sum += ratios.0;
    }
    assert!(sum / 3.0 <= 0.93, "{:.3} of the published on the mean", sum / 3.0);
}
