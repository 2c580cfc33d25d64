//! Work for devices on which programs hang: what can afford it, and only where nothing else is
//! free.

use std::sync::Arc;

use het_core::{
    Action, Checkpoint, ClassQuota, DeviceId, Event, Failure, FailureCause, JobSpec, LeaseId,
    Micro, Millis, Outcome, Placement, Plan, Planned, Priority, Quota, Quotas, Rank, Reason, Share,
    Speeds, State, StopCause, Time,
};
use het_perf::Rates;
use het_testkit::build::{alternative, job, key, stage, started, submitted, topology};
use het_testkit::scene;

/// Accelerator 0 is suspected after job 1 and 2 hung on it; both have been cancelled since.
fn state(accelerators: u32) -> State {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", accelerators)], 0)])));
    for id in [1, 2] {
        submit(&mut state, id, training());
        run(&mut state, id, 0);
        let failure = Failure { cause: FailureCause::Stalled, ..Failure::default() };
        let lease = *state.leases().keys().next().expect("it runs");
        let at = state.now() + Millis::seconds(3_600);
        state.apply(at, &Event::StageEnded { lease, outcome: Outcome::Failed(failure) });
        state.apply(at, &Event::JobCancelled { job: key(id, 0).job });
    }
    assert!(state.suspected_since(DeviceId(0)).is_some());
    state
}

fn training() -> JobSpec {
    job(Priority::Normal, vec![stage("train", vec![alternative("h100", 1)])])
}

/// As [`training`], but its program cannot be stopped without losing everything.
fn unsaving() -> JobSpec {
    let mut spec = training();
    let launch = Arc::make_mut(&mut spec.stages[0].alternatives[0].launch);
    launch.checkpoint = None;
    spec
}

fn submit(state: &mut State, id: u64, spec: JobSpec) {
    state.apply(state.now(), &submitted(id, spec));
}

fn run(state: &mut State, id: u64, device: u32) -> LeaseId {
    let (lease, start) = started(state, key(id, 0), &[device]);
    state.apply(state.now(), &start);
    state.apply(state.now(), &Event::StageStarted { lease });
    lease
}

fn proposed(state: &State, policy: &str) -> Plan {
    scene::proposed(state, &Rates::default(), policy)
}

/// Where each job is started, by its id.
fn starts(plan: &Plan) -> Vec<(u64, u32)> {
    let device = |placement: &Placement| {
        let mut grants = placement.ranks.iter().flat_map(|rank: &Rank| &rank.grants);
        grants.next().expect("it has a device").device.0
    };
    let start = |action: &Action| match action {
        Action::Start { stage, placement, .. } => Some((stage.job.0, device(placement))),
        _ => None,
    };
    plan.actions.iter().filter_map(start).collect()
}

const POLICIES: [&str; 5] = ["static", "dynamic", "hybrid", "adaptive", "max-min-fairness"];

#[test]
fn it_is_the_last_that_anybody_gets() {
    for policy in POLICIES {
        let mut state = state(3);
        for id in 3..=6 {
            submit(&mut state, id, training());
        }
        let plan = proposed(&state, policy);
        let mut devices: Vec<u32> = starts(&plan).into_iter().map(|(_, device)| device).collect();
        assert_eq!(devices.last(), Some(&0), "{policy}: {plan:?}");
        devices.sort_unstable();
        assert_eq!(devices, [0, 1, 2], "{policy}");
        let Some(Action::Start { reasons, .. }) = plan.actions.last() else { panic!("{plan:?}") };
        assert_eq!(reasons[0], Reason::OnSuspected { word: "h100".into() });
    }
}

#[test]
fn what_would_lose_all_waits_for_another() {
    for policy in POLICIES {
        let mut state = state(2);
        submit(&mut state, 3, unsaving());
        submit(&mut state, 4, unsaving());
        let started = starts(&proposed(&state, policy));
        let devices: Vec<u32> = started.iter().map(|(_, device)| *device).collect();
        assert_eq!(devices, [1], "{policy}");
    }
}

#[test]
fn what_is_short_may_have_it() {
    let mut state = state(2);
    submit(&mut state, 3, training());
    run(&mut state, 3, 1);
    let mut short = unsaving();
    short.stages[0].steps = Some(100);
    let speeds = Speeds::new([Micro(1_000_000); 4]).expect("a speed");
    short.stages[0].planned.insert("h100".into(), 1, Planned::Runs(speeds));
    submit(&mut state, 4, short);
    assert_eq!(starts(&proposed(&state, "adaptive")), [(4, 0)]);
}

#[test]
fn what_has_no_other_device_may_have_it() {
    let mut state = state(1);
    submit(&mut state, 3, unsaving());
    assert_eq!(starts(&proposed(&state, "adaptive")), [(3, 0)]);
}

#[test]
fn nobody_gets_more_of_it_than_a_quota_allows() {
    let mut state = state(2);
    let limit = ClassQuota { entitled: None, limit: Some(Share::WHOLE) };
    let classes = [("h100".into(), limit)].into();
    let tenant = training().tenant;
    let tenants = [(tenant, Quota { classes, ..Quota::new(1) })].into();
    let quotas = Quotas { tenants, ..Quotas::default() };
    state.apply(state.now(), &Event::QuotasSet { quotas: Arc::new(quotas) });
    submit(&mut state, 3, training());
    submit(&mut state, 4, training());
    assert_eq!(starts(&proposed(&state, "adaptive")).len(), 1);
}

#[test]
fn who_has_saved_leaves_it_for_what_is_free() {
    let mut state = state(2);
    submit(&mut state, 3, training());
    let lease = run(&mut state, 3, 0);
    let at = state.now() + Millis::seconds(60);
    assert_eq!(proposed(&state, "adaptive").actions, [], "it has not saved yet");
    let checkpoint = Checkpoint { step: 10, path: "checkpoint-10".to_owned() };
    state.apply(at, &Event::Checkpointed { lease, checkpoint });
    let plan = proposed(&state, "adaptive");
    let is_leaving = |action: &Action| match action {
        Action::Stop { lease: of, cause, .. } => *of == lease && *cause == StopCause::Drain,
        _ => false,
    };
    assert!(plan.actions.iter().any(is_leaving), "{plan:?}");
    assert_eq!(proposed(&full(state), "adaptive").actions, [], "there is no room elsewhere");
}

/// The same with somebody on the other accelerator.
fn full(mut state: State) -> State {
    submit(&mut state, 4, training());
    run(&mut state, 4, 1);
    assert_ne!(state.now(), Time::ZERO);
    state
}
