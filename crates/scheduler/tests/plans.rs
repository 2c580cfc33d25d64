//! From a decision to a plan, and the last look at it.

use std::sync::Arc;

use het_core::{
    Action, DeviceId, Event, Finding, Generation, Grant, HostResources, LeaseId, NodeId, Placement,
    Plan, Priority, Rank, Reason, Share, StageKey, State, StopCause, StopCost, Time,
};
use het_perf::Rates;
use het_policy::{Decision, StopOrder, Want};
use het_scheduler::{check, reconcile};
use het_testkit::build::{alternative, job, key, stage, submitted, topology};

/// A node with two accelerators and jobs 1 to 3, which want one each; job 3 is urgent.
fn state() -> State {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", 2)], 0)])));
    for (id, priority) in [(1, Priority::Normal), (2, Priority::Normal), (3, Priority::Urgent)] {
        let spec = job(priority, vec![stage("train", vec![alternative("h100", 1)])]);
        state.apply(Time::ZERO, &submitted(id, spec));
    }
    state
}

fn on(devices: &[u32]) -> Placement {
    let grant = |&device: &u32| Grant { device: DeviceId(device), share: Share::WHOLE };
    let grants = devices.iter().map(grant).collect();
    let rank = Rank { node: NodeId(0), grants, companions: Vec::new(), host: HostResources::NONE };
    Placement { alternative: 0, ranks: vec![rank] }
}

fn run(job: u64, device: u32) -> (StageKey, Want) {
    let reasons = vec![Reason::ClaimReady];
    (key(job, 0), Want::Run { placement: on(&[device]), reasons })
}

fn stop(lease: u64, cause: StopCause) -> StopOrder {
    StopOrder { lease: LeaseId(lease), cause, cost: StopCost::default() }
}

fn planned(state: &State, wants: Vec<(StageKey, Want)>, stops: Vec<StopOrder>) -> Plan {
    let decision = Decision { wants, stops, ..Decision::default() };
    reconcile(state, &Rates::default(), &decision, state.now())
}

fn commit(state: &mut State, plan: Plan) {
    state.apply(state.now(), &Event::PlanCommitted { plan: Arc::new(plan) });
}

/// A state in which job 1 runs on the first accelerator.
fn with_one_running() -> State {
    let mut state = state();
    let plan = planned(&state, vec![run(1, 0)], Vec::new());
    commit(&mut state, plan);
    state.apply(Time::ZERO, &Event::StageStarted { lease: LeaseId(1) });
    state
}

fn words(plan: &Plan) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Start { stage, .. } => format!("start {stage}"),
        Action::Stop { lease, .. } => format!("stop {lease}"),
        Action::Claim { stage, .. } => format!("claim {stage}"),
        Action::Unclaim { stage } => format!("unclaim {stage}"),
        Action::Prepare { stage, .. } => format!("prepare {stage}"),
        Action::Unprepare { stage, .. } => format!("unprepare {stage}"),
    };
    plan.actions.iter().map(word).collect()
}

#[test]
fn what_is_free_becomes_a_start_and_what_is_used_a_claim() {
    let state = with_one_running();
    let plan = planned(&state, vec![run(2, 0), run(3, 1)], Vec::new());
    assert_eq!(words(&plan), ["claim 2.0", "start 3.0"]);
    assert_eq!(check(&state, &plan, Time::ZERO), []);
}

#[test]
fn stops_come_first_and_nothing_is_repeated() {
    let mut state = with_one_running();
    let order = || vec![stop(1, StopCause::Quantum)];
    let plan = planned(&state, vec![run(2, 0)], order());
    assert_eq!(words(&plan), ["stop 1", "claim 2.0"]);
    commit(&mut state, plan);
    let again = planned(&state, vec![run(2, 0)], Vec::new());
    assert_eq!(words(&again), Vec::<String>::new(), "it is so already");
}

#[test]
fn a_claim_that_nobody_wants_any_more_is_given_up() {
    let mut state = with_one_running();
    let plan = planned(&state, vec![run(2, 0)], vec![stop(1, StopCause::Quantum)]);
    commit(&mut state, plan);
    let wait = (key(2, 0), Want::Wait { reasons: vec![Reason::ClaimPending] });
    assert_eq!(words(&planned(&state, vec![wait], Vec::new())), ["unclaim 2.0"]);
}

/// One fault in a plan that would be right otherwise.
#[track_caller]
fn check_fault(state: &State, spoil: impl FnOnce(&mut Plan), expected: &[Finding]) {
    let mut plan = planned(state, vec![run(2, 1)], Vec::new());
    assert_eq!(check(state, &plan, Time::ZERO), []);
    spoil(&mut plan);
    assert_eq!(check(state, &plan, Time::ZERO), expected);
}

fn placement_of(plan: &mut Plan) -> &mut Placement {
    match &mut plan.actions[0] {
        Action::Start { placement, .. } => Arc::make_mut(placement),
        other => panic!("{other:?} is no start"),
    }
}

#[test]
fn a_device_that_is_held_is_not_promised_again() {
    let (device, stage) = (DeviceId(0), key(2, 0));
    check_fault(
        &with_one_running(),
        |plan| *placement_of(plan) = on(&[0]),
        &[Finding::DeviceOverbooked { device, stage }],
    );
}

#[test]
fn a_device_that_others_use_is_not_promised() {
    let mut state = with_one_running();
    let class = state.topology().device(DeviceId(1)).class;
    let taken = Event::CapacityTaken { node: NodeId(0), class, amount: Share::WHOLE };
    state.apply(Time::ZERO, &taken);
    let plan = planned(&state, vec![run(2, 1)], Vec::new());
    assert_eq!(words(&plan), ["claim 2.0"], "it is waited for");
}

#[test]
fn a_gang_is_whole() {
    let stage = key(2, 0);
    check_fault(
        &with_one_running(),
        |plan| placement_of(plan).ranks[0].grants.clear(),
        &[Finding::GangIncomplete { stage }],
    );
}

#[test]
fn a_lease_number_is_the_next_one() {
    check_fault(
        &with_one_running(),
        |plan| {
            if let Action::Start { lease, .. } = &mut plan.actions[0] {
                *lease = LeaseId(1);
            }
        },
        &[Finding::StaleLease { lease: LeaseId(1) }],
    );
}

#[test]
fn nothing_starts_where_a_node_is_lost() {
    let mut state = with_one_running();
    let plan = planned(&state, vec![run(2, 1)], Vec::new());
    state.apply(Time::ZERO, &Event::NodeLost { node: NodeId(0) });
    let down = Finding::DeviceDown { device: DeviceId(1), stage: key(2, 0) };
    assert_eq!(check(&state, &plan, Time::ZERO), [down]);
}

#[test]
fn a_preemption_is_for_a_higher_priority_and_pays() {
    let state = with_one_running();
    let preempts = |by: u64, gain: u64| {
        let cause = StopCause::Priority { preemptor: key(by, 0) };
        let cost = StopCost { gain: het_core::ShareMillis(gain), ..StopCost::default() };
        let actions = vec![Action::Stop {
            lease: LeaseId(1),
            cause,
            grace: Default::default(),
            cost: Some(cost),
        }];
        let plan = Plan { generation: Generation(9), actions, waits: Vec::new() };
        check(&state, &plan, Time::ZERO)
    };
    let unjust = [Finding::UnjustPreemption { lease: LeaseId(1) }];
    assert_eq!(preempts(3, 1), []);
    assert_eq!(preempts(3, 0), unjust, "it costs as much as it brings");
    assert_eq!(preempts(2, 1), unjust, "they are equals");
}
