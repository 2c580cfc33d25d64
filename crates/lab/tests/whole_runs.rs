//! Small queues, played to their end: what only shows over a whole run.

use std::path::Path;

use het_core::{ClassQuota, DeviceId, Millis, Quota, Quotas, Share, Time};
use het_lab::workload::{FineTuning, Shapes, Speeds, fine_tuning, read_jobs, roofline};
use het_lab::{
    Assumptions, Bound, Cadence, CheckpointModel, Fault, Noise, Outcome, Restart, Scenario,
    cluster, random_scenario, simulate, what_if,
};
use het_policy::by_name;

/// A job a line: arrival, tenant, priority, devices, seconds.
fn scenario(
    name: &str,
    devices: u32,
    jobs: &[(f64, &str, &str, u32, f64)],
    cadence: Cadence,
) -> Scenario {
    let line = |(at, tenant, priority, units, seconds): &(f64, &str, &str, u32, f64)| {
        format!(
            "{{\"arrival_s\":{at},\"tenant\":\"{tenant}\",\"priority\":\"{priority}\",\
             \"stages\":[{{\"kind\":\"train\",\"units\":{units},\"seconds\":{seconds}}}]}}\n"
        )
    };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.jsonl"));
    std::fs::write(&path, jobs.iter().map(line).collect::<String>()).expect("the folder is there");
    let jobs = read_jobs(&path, None).expect("the lines are well formed");
    let topology = cluster(&format!("uniform:1x{devices}")).expect("the words are known");
    let assumptions = assumptions(cadence, Millis(0));
    what_if(&topology, &jobs, &Speeds::default(), &assumptions).expect("every job fits")
}

fn assumptions(cadence: Cadence, pause: Millis) -> Assumptions {
    Assumptions {
        cadence,
        restart: Restart::Fixed(pause),
        warm: None,
        noise: Noise::default(),
        checkpoint: CheckpointModel::default(),
        seed: 1,
    }
}

fn play(scenario: &Scenario, policy: &str) -> Outcome {
    simulate(scenario, by_name(policy).expect("the table has it")).expect("it ends")
}

#[test]
fn no_policy_beats_the_bound_and_one_machine_reaches_it() {
    // Shortest remaining first on one device: 10 s from 5 s on, then the rest of 100 s.
    let jobs = [(0.0, "team", "normal", 1, 100.0), (5.0, "team", "normal", 1, 10.0)];
    let one = scenario("one machine", 1, &jobs, Cadence::default());
    let bound = Bound::of(&one).expect("nothing is cancelled");
    assert_eq!((bound.avg_jct_s, bound.makespan_s), (60.0, 110.0));
    let mut held = 0;
    for seed in 0..300 {
        let mut scenario = random_scenario(seed);
        scenario.words.clear();
        let Some(bound) = Bound::of(&scenario) else { continue };
        for policy in ["adaptive", "dynamic", "fifo"] {
            let outcome = play(&scenario, policy);
            let least = (bound.avg_jct_s, bound.makespan_s);
            let seen = (outcome.avg_jct_s, outcome.makespan_s);
            // Times are whole milliseconds.
            let holds = seen.0 > least.0 - 0.002 && seen.1 > least.1 - 0.002;
            let counts = outcome.jobs_done == outcome.jobs_total;
            assert!(holds || !counts, "seed {seed}, {policy}: {seen:?} for {least:?}");
            held += usize::from(counts);
        }
    }
    assert!(held > 100, "only {held} runs say something");
}

/// The headline study, small: whoever changes it without wanting to shall see it.
#[test]
fn a_mix_of_fine_tuning_is_as_fast_as_the_headline_says() {
    let topology = cluster("epyc-h100x8-910bx2").expect("it is a template");
    let mean = |policy: &str, shapes: Shapes| {
        let mix = FineTuning { jobs: 300, load: 1.2, h100s: 16, shapes, seed: 2 };
        let assumptions = assumptions(Cadence::default(), Millis::seconds(30));
        let scenario = what_if(&topology, &fine_tuning(&mix), &roofline(1.0), &assumptions);
        let outcome = play(&scenario.expect("every job fits"), policy);
        (outcome.avg_jct_s, outcome.preemptions)
    };
    let validate_on = "h100-sxm5-80".to_owned();
    let (fixed, _) = mean("static", Shapes::Ruled { h100s: [1, 1, 1, 2], validate_on });
    let (adaptive, stopped) = mean("adaptive", Shapes::Any);
    assert!(adaptive < 0.6 * fixed, "{adaptive} s against {fixed} s");
    assert!(stopped < 60, "{stopped} preemptions of 300 jobs");
}

#[test]
fn a_gang_that_waits_for_a_long_job_idles_nobody() {
    let mut jobs = vec![(0.0, "team", "normal", 1, 100_000.0), (1.0, "team", "normal", 2, 1_000.0)];
    jobs.extend((0..200).map(|row| (2.0 + 300.0 * f64::from(row), "team", "normal", 1, 200.0)));
    for policy in ["dynamic", "hybrid", "adaptive"] {
        let outcome = play(&scenario(policy, 2, &jobs, Cadence::default()), policy);
        assert_eq!(outcome.jobs_done, 202);
        assert!(outcome.p50_jct_s < 300.0, "{policy}: {} s", outcome.p50_jct_s);
        // Nor do the others hold it up: it begins when the long one ends.
        assert!(outcome.makespan_s < 101_500.0, "{policy}: {} s", outcome.makespan_s);
    }
}

#[test]
fn a_job_that_is_silent_for_thousands_of_rounds_ends() {
    let jobs = [(0.0, "team", "normal", 1, 300_000.0)];
    let cadence = Cadence::Rounds(Millis::seconds(60));
    let outcome = play(&scenario("silent", 1, &jobs, cadence), "adaptive");
    assert_eq!((outcome.jobs_done, outcome.makespan_s), (1, 300_000.0));
}

#[test]
fn in_rounds_a_quota_is_a_part_of_every_class() {
    let jobs: Vec<_> = (0..40)
        .map(|row| (0.0, if row % 4 == 0 { "lab" } else { "shop" }, "normal", 1, 6_000.0))
        .collect();
    let cadence = Cadence::Rounds(Millis::seconds(60));
    let mut scenario = scenario("parts", 8, &jobs, cadence);
    let free = play(&scenario, "adaptive").tenants["lab"].avg_jct_s;
    let own = ClassQuota { entitled: Some(Share::units(6)), limit: None };
    let quota = Quota { classes: [("gpu".into(), own)].into(), ..Quota::new(1) };
    scenario.quotas = Quotas { tenants: [("lab".into(), quota)].into(), ..Quotas::default() };
    let entitled = play(&scenario, "adaptive").tenants["lab"].avg_jct_s;
    assert!(entitled < 0.6 * free, "{entitled} s with a quota, {free} s without");
}

#[test]
fn nobody_waits_for_a_gang_that_cannot_begin() {
    // The gang wants both devices and one has failed for good.
    let mut jobs = vec![(0.0, "team", "normal", 1, 5_000.0), (1.0, "team", "normal", 2, 1_000.0)];
    jobs.extend((0..20).map(|row| (1_000.0 * f64::from(row), "team", "normal", 1, 3_000.0)));
    let mut scenario = scenario("broken", 2, &jobs, Cadence::default());
    let device = DeviceId(1);
    scenario.faults = vec![(Time(10_000), Fault::DeviceFailed { device })];
    let outcome = play(&scenario, "adaptive");
    assert_eq!(outcome.jobs_done, 21, "all but the gang");
}

#[test]
fn higher_priorities_do_not_hold_up_a_gang_for_ever() {
    let mut jobs = vec![(0.0, "team", "normal", 4, 1_000.0)];
    jobs.extend((0..400).map(|row| (900.0 * f64::from(row) - 0.0, "team", "high", 1, 3_600.0)));
    jobs[0].0 = 10_000.0;
    for policy in ["dynamic", "adaptive"] {
        let outcome = play(&scenario(policy, 4, &jobs, Cadence::default()), policy);
        assert!(outcome.p99_jct_s < 20_000.0, "{policy}: {} s", outcome.p99_jct_s);
        let waited = outcome.finish_time_fairness.worst;
        assert!(waited < 60.0, "{policy}: the gang ends {waited} times as late as alone");
    }
}
