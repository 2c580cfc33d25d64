//! What is in service: counts that are kept equal those made from nothing, whatever happens.

use std::sync::Arc;

use het_core::{
    Action, Bytes, DeviceId, Event, Generation, Grant, HostResources, LeaseId, Millis, NodeId,
    Outcome, Placement, Plan, Priority, Rank, Share, State, Time,
};
use het_testkit::build::{alternative, job, key, stage, submitted, topology};

/// Two nodes of two accelerators each, and jobs that want one.
fn state(jobs: u64) -> State {
    let node: (&[(&str, u32)], u32) = (&[("h100", 2)], 4);
    let mut state = State::new(Arc::new(topology(&[node, node])));
    for id in 1..=jobs {
        let spec = job(Priority::Normal, vec![stage("train", vec![alternative("h100", 1)])]);
        state.apply(Time::ZERO, &submitted(id, spec));
    }
    state
}

/// Applies an event, and makes the state again from its parts.
#[track_caller]
fn apply(state: &mut State, event: &Event) {
    state.apply(Time(state.now().0 + 1), event);
    let made = State::from_parts(state.clone().into_parts()).expect("its own parts");
    assert_eq!(made, *state, "after {event:?}");
}

fn accelerators(state: &State, node: u32) -> Vec<DeviceId> {
    let topology = state.topology();
    topology.accelerators().filter(|id| topology.device(*id).node == NodeId(node)).collect()
}

fn start(state: &mut State, job: u64, device: DeviceId) {
    start_as(state, job, (job, 1), device);
}

fn start_as(state: &mut State, job: u64, (lease, attempt): (u64, u32), device: DeviceId) {
    let node = state.topology().device(device).node;
    let grants = vec![Grant { device, share: Share::WHOLE }];
    let host = HostResources { memory: Bytes::gib(1), ..HostResources::NONE };
    let rank = Rank { node, grants, companions: Vec::new(), host };
    let action = Action::Start {
        lease: LeaseId(lease),
        stage: key(job, 0),
        attempt,
        placement: Arc::new(Placement { alternative: 0, ranks: vec![rank] }),
        launch: Arc::default(),
        resume: None,
        reasons: Vec::new(),
    };
    let generation = Generation(state.generation().0 + 1);
    let plan = Plan { generation, actions: vec![action], waits: Vec::new() };
    apply(state, &Event::PlanCommitted { plan: Arc::new(plan) });
}

fn free(state: &State, node: u32) -> u32 {
    let shares = accelerators(state, node).into_iter().map(|id| state.free().share(id));
    shares.map(Share::whole_units).sum()
}

#[test]
fn what_fails_and_is_drained_at_once_returns_when_both_are_over() {
    let mut state = state(1);
    let device = accelerators(&state, 0)[0];
    start(&mut state, 1, device);
    let node = NodeId(0);
    for event in [
        Event::DeviceDrained { device },
        Event::NodeLost { node },
        Event::DeviceFailed { device },
        Event::NodeReturned { node },
        Event::DeviceUndrained { device },
    ] {
        apply(&mut state, &event);
    }
    assert!(!state.is_up(device));
    apply(&mut state, &Event::DeviceRepaired { device });
    assert_eq!((state.is_up(device), free(&state, 0)), (true, 1), "its lease goes on");
}

#[test]
fn what_others_use_is_counted_off_where_no_lease_is() {
    let mut state = state(2);
    let [first, second] = accelerators(&state, 0)[..] else { panic!("two of them") };
    start(&mut state, 1, second);
    let class = state.topology().device(first).class;
    let taken =
        |units| Event::CapacityTaken { node: NodeId(0), class, amount: Share::units(units) };
    apply(&mut state, &taken(1));
    assert_eq!(state.taken_of(first), Share::WHOLE);
    apply(&mut state, &taken(2));
    assert_eq!(state.taken_of(second), Share::ZERO, "its lease comes first");
    apply(&mut state, &Event::StageEnded { lease: LeaseId(1), outcome: Outcome::Lost });
    assert_eq!((state.taken_of(second), free(&state, 0)), (Share::WHOLE, 0));
    apply(&mut state, &taken(0));
    assert_eq!(free(&state, 0), 2);
}

#[test]
fn what_others_use_beside_devices_is_not_free_and_goes_with_the_node() {
    let mut state = state(1);
    let node = NodeId(0);
    let all = state.host_free(node);
    let amount = HostResources { memory: Bytes(all.memory.0 / 4), ..HostResources::NONE };
    apply(&mut state, &Event::HostTaken { node, amount });
    assert_eq!(state.host_free(node), all.minus(amount));
    let own = state.topology().only(node);
    apply(&mut state, &Event::NodeRemoved { name: own.nodes[0].name.clone() });
    let mut guest = own;
    guest.nodes[0].name = "guest".into();
    apply(&mut state, &Event::NodesJoined { nodes: Arc::new(guest) });
    assert_eq!(state.topology().node(node).name, "guest");
    assert_eq!(state.host_free(node), all);
}

#[test]
fn the_row_of_a_node_that_left_waits_for_whoever_is_named_there() {
    let mut state = state(1);
    let own = state.topology().only(NodeId(0));
    start(&mut state, 1, DeviceId(1));
    apply(&mut state, &Event::NodeRemoved { name: own.nodes[0].name.clone() });
    let mut guest = own.clone();
    guest.nodes[0].name = "guest".into();
    apply(&mut state, &Event::NodesJoined { nodes: Arc::new(guest.clone()) });
    assert_eq!(state.topology().nodes.len(), 3, "a lease names the row");
    apply(&mut state, &Event::StageEnded { lease: LeaseId(1), outcome: Outcome::Finished });
    apply(&mut state, &Event::JobRetired { job: key(1, 0).job });
    guest.nodes[0].name = "another".into();
    apply(&mut state, &Event::NodesJoined { nodes: Arc::new(guest) });
    assert_eq!(state.topology().nodes.len(), 3);
    assert_eq!(state.topology().node(NodeId(0)).name, "another");
    assert_eq!(free(&state, 0), 2);
}

#[test]
fn starts_that_are_refused_again_and_again_wait_longer_and_fail_nothing() {
    let mut state = state(1);
    let reason = || Outcome::Refused { reason: "no port is free".to_owned() };
    let device = accelerators(&state, 0)[0];
    for (attempt, rest) in (1..).zip([0, 5, 10, 20, 40, 80, 160, 300, 300]) {
        assert!(state.is_waiting(key(1, 0)), "attempt {attempt}");
        let lease = u64::from(attempt);
        start_as(&mut state, 1, (lease, attempt), device);
        apply(&mut state, &Event::StageEnded { lease: LeaseId(lease), outcome: reason() });
        let stage = &state.jobs()[&key(1, 0).job].stages[0];
        let due = stage.faults.retry_at.map(|at| at.since(state.now()));
        assert_eq!(due, (rest > 0).then(|| Millis::seconds(rest)));
        let told = stage.faults.last.as_ref().map(|failure| failure.message.as_str());
        assert_eq!((told, stage.faults.count), (Some("no port is free"), 0));
        apply(&mut state, &Event::RetryDue { stage: key(1, 0) });
    }
}
