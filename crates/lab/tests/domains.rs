//! Gangs that are slower apart, played to the end: a policy that sees it beats one that is blind
//! to it, and where it makes no difference nothing changes.

use std::path::Path;
use std::sync::Arc;

use het_control::MemoryLog;
use het_core::{
    DeviceClass, Domain, Event, JobSpec, Micro, Millis, Plan, Planned, PlannedSpeeds, Speeds,
    StageSpec, Time, Topology,
};
use het_lab::workload::{Speeds as Table, read_jobs};
use het_lab::{
    Assumptions, Cadence, CheckpointModel, Draw, Noise, Restart, Scenario, cluster, play,
    random_scenario, simulate, what_if,
};
use het_policy::by_name;

/// Two leaves of four nodes with four devices each, and gangs of one to four nodes that make half
/// the steps over both leaves.
fn two_leaves(seed: u64) -> Scenario {
    let mut draw = Draw::new(seed, 1);
    let mut lines = String::new();
    for row in 0..80 {
        let (units, seconds) = (*draw.pick(&[2, 4, 4, 8, 8, 16]), draw.between(200, 2_000));
        lines += &format!(
            "{{\"arrival_s\":{},\"stages\":[{{\"units\":{units},\"seconds\":{seconds},\
             \"apart\":{{\"rack\":1,\"pod\":0.5,\"any\":0.5}}}}]}}\n",
            row * 250
        );
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("two-leaves-{seed}.jsonl"));
    std::fs::write(&path, lines).expect("the folder is there");
    let jobs = read_jobs(&path, None).expect("the lines are well formed");
    let topology = cluster("uniform:8x4/4").expect("the words are known");
    let assumptions = Assumptions {
        cadence: Cadence::default(),
        restart: Restart::Fixed(Millis(0)),
        warm: None,
        noise: Noise::default(),
        checkpoint: CheckpointModel::default(),
        seed,
    };
    what_if(&topology, &jobs, &Table::default(), &assumptions).expect("every job fits")
}

/// The same jobs, each stage changed.
fn with_stages(scenario: &Scenario, change: impl Fn(&StageSpec) -> StageSpec) -> Scenario {
    let changed = |spec: &JobSpec| {
        let stages = spec.stages.iter().map(&change).collect();
        Arc::new(JobSpec { stages, ..spec.clone() })
    };
    let jobs = scenario.jobs.iter().map(|(at, spec)| (*at, changed(spec))).collect();
    Scenario { jobs, ..scenario.clone() }
}

/// What happens is the same; policies are told nothing of it.
fn blind(scenario: &Scenario) -> Scenario {
    with_stages(scenario, |stage| StageSpec { planned: PlannedSpeeds::default(), ..stage.clone() })
}

fn average_jct_s(scenario: &Scenario) -> f64 {
    let policy = by_name("adaptive").expect("the table has it");
    simulate(scenario, policy).expect("it ends").avg_jct_s
}

#[test]
fn seeing_domains_beats_being_blind_to_them() {
    let of_seed = |seed| {
        let scenario = two_leaves(seed);
        let (aware, unaware) = (average_jct_s(&scenario), average_jct_s(&blind(&scenario)));
        println!("seed {seed}: {aware:.0} s aware, {unaware:.0} s blind");
        (aware, unaware)
    };
    let (aware, unaware): (Vec<f64>, Vec<f64>) = (1..=10).map(of_seed).unzip();
    let (aware, unaware) = (aware.iter().sum::<f64>(), unaware.iter().sum::<f64>());
    assert!(aware < 0.95 * unaware, "{aware} s against {unaware} s");
}

/// Speeds of every gang in a table, and how far there is to go.
fn with_known_speeds(scenario: &Scenario) -> Scenario {
    let mut known = with_stages(scenario, |stage| StageSpec { steps: Some(100), ..stage.clone() });
    for (_, spec) in &scenario.jobs {
        for stage in &spec.stages {
            for (class, units, speed) in gangs(&scenario.topology, stage) {
                known.rates.declare(&stage.profile, &class.id, units, speed.as_f64());
            }
        }
    }
    known
}

/// The gangs that a stage may become, with a speed for each.
fn gangs<'a>(
    topology: &'a Topology,
    stage: &'a StageSpec,
) -> impl Iterator<Item = (&'a DeviceClass, u32, Micro)> {
    stage.alternatives.iter().flat_map(|one| {
        let accepts = |class: &&DeviceClass| one.selector.accepts_class(topology, &class.id);
        let speed = |class: &DeviceClass| {
            Micro(i64::from(one.count) * class.peak_gflops.unwrap_or(1) as i64 * 1_000)
        };
        let classes = topology.classes.iter().filter(accepts);
        classes.map(move |class| (class, one.count, speed(class)))
    })
}

/// The same speeds wherever a gang stands.
fn with_level_speeds(scenario: &Scenario) -> Scenario {
    with_stages(scenario, |stage| {
        let mut planned = PlannedSpeeds::default();
        for (class, units, speed) in gangs(&scenario.topology, stage) {
            let speeds = Speeds::new(Domain::ALL.map(|_| speed)).expect("a speed");
            planned.insert(class.id.clone(), units, Planned::Runs(speeds));
        }
        StageSpec { planned, ..stage.clone() }
    })
}

fn plans(scenario: &Scenario, policy: &str) -> Vec<(Time, Plan)> {
    let policy = by_name(policy).expect("the table has it");
    let control = play(scenario, policy, MemoryLog::default(), |_, _| {}).expect("it ends");
    let plan = |(at, event): &(Time, Event)| match event {
        Event::PlanCommitted { plan, .. } => Some((*at, (**plan).clone())),
        _ => None,
    };
    control.log().0.iter().filter_map(plan).collect()
}

#[test]
fn where_all_domains_are_equal_nothing_changes() {
    for policy in ["fifo", "static", "dynamic", "hybrid", "feedback", "adaptive", "fgd"] {
        for seed in 1..=40 {
            let known = with_known_speeds(&random_scenario(seed));
            let level = with_level_speeds(&known);
            assert_eq!(plans(&known, policy), plans(&level, policy), "{policy}, seed {seed}");
        }
    }
}

#[test]
fn where_all_domains_are_equal_nothing_changes_in_rounds() {
    let cadence = Cadence::Rounds(Millis::seconds(10));
    for seed in 1..=20 {
        let random = Scenario { cadence, ..random_scenario(seed) };
        let known = with_known_speeds(&random);
        let level = with_level_speeds(&known);
        assert_eq!(plans(&known, "adaptive"), plans(&level, "adaptive"), "seed {seed}");
    }
}
