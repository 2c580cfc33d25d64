//! Nodes and devices that come, go, and are used by others.

use std::sync::Arc;

use het_core::{
    Device, DeviceId, Event, LeaseId, NodeId, Occupant, Outcome, Share, StageState, State,
    StopCause,
};

use super::world::{SHORT, World, finished, placement_on, stop, stopped};
use super::{Case, Subject, UNITS, this_node};
use crate::Script;

pub(super) fn cases<S: Subject>() -> Vec<Case<S>> {
    vec![
        ("a device that joins can be planned for", device_joins),
        ("a device that is gone from its node is out of service", device_is_gone),
        ("a node that joins again has the rows that it had", node_joins_again),
        ("what runs on a node that is removed ends", node_is_removed),
        ("a start on a node that is gone is refused with a reason", start_is_refused),
        ("a refused start leaves nothing behind", refused_and_adopted),
        ("a device that others use is named", device_is_occupied),
        ("capacity that others use is an amount", capacity_is_taken),
    ]
}

const HERE: NodeId = NodeId(0);
const SOCKET: DeviceId = DeviceId(0);

/// The first node with a second socket.
fn with_second_socket() -> Event {
    let mut node = this_node();
    let second = Device { name: "cpu1".into(), visible_id: "1".into(), ..node.devices[0].clone() };
    node.devices.push(second);
    Event::NodesJoined { nodes: Arc::new(node) }
}

fn removed(name: &str) -> Event {
    Event::NodeRemoved { name: name.into() }
}

fn free(state: &State, device: DeviceId) -> u32 {
    state.free().share(device).whole_units()
}

fn device_joins<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.report(&with_second_socket());
    let second = DeviceId(2);
    assert_eq!(free(&world.state, second), UNITS, "{}", world.case);
    world.act(vec![world.start_on(1, placement_on(HERE, second, 2))]);
    world.hear_ends(1);
    world.check_ended(1, finished);
}

fn device_is_gone<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.report(&with_second_socket());
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    world.report(&Event::NodesJoined { nodes: Arc::new(this_node()) });
    assert!(world.state.is_gone(DeviceId(2)), "{}", world.case);
    assert_eq!(free(&world.state, DeviceId(2)), 0, "{}", world.case);
    assert_eq!(free(&world.state, SOCKET), UNITS - 1, "{}: the other goes on", world.case);
    world.act(vec![stop(1)]);
    world.hear_ends(1);
    world.check_ended(1, stopped);
}

fn node_joins_again<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    let before = Arc::clone(world.state.topology());
    world.report(&removed("n0"));
    assert!(world.state.is_gone(SOCKET), "{}", world.case);
    world.report(&Event::NodesJoined { nodes: Arc::new(this_node()) });
    assert_eq!(*world.state.topology(), before, "{}", world.case);
    world.act(vec![world.start(1, 1)]);
    world.hear_ends(1);
    world.check_ended(1, finished);
}

fn node_is_removed<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 1)]);
    world.hear_start(1);
    world.report(&removed("n0"));
    assert_eq!(free(&world.state, SOCKET), 0, "{}", world.case);
    // Where the engine did not end it, the scheduler empties the node.
    if world.heard.ends() == 0 {
        world.act(vec![stop(1)]);
    }
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, stopped);
}

/// The plan was made before anybody heard of the removal.
fn start_is_refused<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.report(&removed("n1"));
    world.act(vec![world.start_on(1, placement_on(NodeId(1), DeviceId(1), 1))]);
    world.hear_ends(1);
    world.hear_nothing_more();
    world.check_ended(1, refused);
    assert!(!world.heard.started.contains_key(&LeaseId(1)), "{}", world.case);
    let stage = world.state.leases().len();
    assert_eq!(stage, 0, "{}", world.case);
    let (_, job) = world.state.jobs().iter().next().expect("it was submitted");
    let waits = StageState::Stopped { cause: StopCause::Fault, since: world.state.now() };
    assert_eq!(job.stages[0].state, waits, "{}: it can start elsewhere", world.case);
}

fn refused_and_adopted<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[SHORT]);
    world.report(&removed("n1"));
    world.act(vec![world.start_on(1, placement_on(NodeId(1), DeviceId(1), 1))]);
    world.hear_ends(1);
    world.crash();
    world.hear_nothing_more();
    world.check_ended(1, refused);
}

fn refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused { reason } if !reason.is_empty())
}

fn device_is_occupied<S: Subject>(world: World<'_, S>) {
    let mut world = world.with(&[]);
    let by = Occupant { process: 7, user: "eve".into(), command: "train".into() };
    world.report(&Event::DeviceOccupied { device: SOCKET, by: by.clone() });
    assert_eq!(world.state.occupant(SOCKET), Some(&by), "{}", world.case);
    assert_eq!(free(&world.state, SOCKET), 0, "{}", world.case);
    world.report(&Event::DeviceVacated { device: SOCKET });
    assert_eq!(free(&world.state, SOCKET), UNITS, "{}", world.case);
}

fn capacity_is_taken<S: Subject>(world: World<'_, S>) {
    let taken = |units| Event::CapacityTaken { node: HERE, class: 0, amount: Share::units(units) };
    let mut world = world.with(&[Script::UntilNotice]);
    world.act(vec![world.start(1, 2)]);
    world.hear_start(1);
    world.report(&taken(3));
    assert_eq!(free(&world.state, SOCKET), UNITS - 5, "{}", world.case);
    world.report(&taken(UNITS));
    assert_eq!(free(&world.state, SOCKET), 0, "{}", world.case);
    assert_eq!(world.heard.ends(), 0, "{}: what runs goes on", world.case);
    world.act(vec![stop(1)]);
    world.hear_ends(1);
    assert_eq!(free(&world.state, SOCKET), 0, "{}: what ended is theirs", world.case);
    world.report(&taken(0));
    assert_eq!(free(&world.state, SOCKET), UNITS, "{}", world.case);
}
