//! Gangs that are slower apart: which place and which alternative they are given, and what is said.
//! Four nodes of two devices make a rack.

use std::sync::Arc;

use het_core::{
    Event, Grant, JobSpec, Micro, Millis, Name, NodeId, Planned, PlannedSpeeds, Priority, Reason,
    Speeds, StageSpec, State, Time, Topology,
};
use het_perf::Rates;
use het_policy::{Cache, Cadence, Candidate, Stands, View, Want, by_name, candidates};
use het_testkit::build::{alternative, job, key, stage, submitted, topology};

/// Classes of the nodes, each with two devices.
fn cluster(classes: &[&str]) -> Arc<Topology> {
    let nodes: Vec<[(&str, u32); 1]> = classes.iter().map(|class| [(*class, 2)]).collect();
    let rows: Vec<(&[(&str, u32)], u32)> = nodes.iter().map(|node| (&node[..], 0)).collect();
    Arc::new(topology(&rows))
}

/// A stage of 100 steps that makes so many a second: within a rack, and over several.
fn gang(shapes: &[(&str, u32, i64, i64)]) -> StageSpec {
    let mut planned = PlannedSpeeds::default();
    for &(class, units, rack, apart) in shapes {
        let speeds = [rack, rack, apart, apart].map(|speed| Micro(speed * 1_000_000));
        let speeds = Speeds::new(speeds).expect("a speed");
        planned.insert(class.into(), units, Planned::Runs(speeds));
    }
    let alternatives = shapes.iter().map(|(class, units, ..)| alternative(class, *units)).collect();
    StageSpec { steps: Some(100), planned, ..stage("train", alternatives) }
}

fn one(stage: StageSpec) -> JobSpec {
    job(Priority::Normal, vec![stage])
}

/// A cluster on whose nodes of these numbers somebody else's devices are out of service.
fn busy(topology: Arc<Topology>, nodes: &[u32]) -> State {
    let mut state = State::new(topology);
    for &node in nodes {
        state.apply(Time::ZERO, &Event::NodeLost { node: NodeId(node) });
    }
    state
}

/// Nodes that `adaptive` gives the only job, and why.
fn given(state: &mut State, spec: JobSpec) -> (Vec<Name>, Vec<Reason>) {
    state.apply(Time::ZERO, &submitted(1, spec));
    let rates = Rates::default();
    let view = View { state, rates: &rates, now: Time::ZERO, cadence: Cadence::default() };
    let policy = by_name("adaptive").expect("the table has it");
    let decision = policy.decide(&view, &mut Cache::default());
    match decision.wants.first() {
        Some((_, Want::Run { placement, reasons })) => {
            let name = |grant: Grant| {
                let device = state.topology().device(grant.device);
                state.topology().node(device.node).name.clone()
            };
            let mut nodes: Vec<Name> = placement.devices().map(name).collect();
            nodes.dedup();
            (nodes, reasons.clone())
        }
        other => panic!("it should start: {other:?}"),
    }
}

fn names(nodes: &[&str]) -> Vec<Name> {
    nodes.iter().map(|name| (*name).into()).collect()
}

#[test]
fn a_gang_that_is_slower_apart_stands_in_one_rack_where_there_is_room() {
    let topology = cluster(&["h100"; 8]);
    let whole = |apart| one(gang(&[("h100", 4, 10, apart)]));
    let (nodes, reasons) = given(&mut busy(Arc::clone(&topology), &[1, 2, 3, 4]), whole(5));
    assert_eq!(nodes, names(&["n5", "n6"]));
    assert_eq!(reasons, [Reason::OnlyAlternative { word: "h100".into() }]);
    // To one that is not, all places are the same.
    let (nodes, _) = given(&mut busy(topology, &[1, 2, 3, 4]), whole(10));
    assert_eq!(nodes, names(&["n0", "n5"]));
}

#[test]
fn it_is_told_what_standing_apart_costs() {
    let mut state = busy(cluster(&["h100"; 8]), &[1, 2, 3, 5, 6, 7]);
    let (nodes, reasons) = given(&mut state, one(gang(&[("h100", 4, 50, 44)])));
    assert_eq!(nodes, names(&["n0", "n4"]));
    let apart = Reason::SpreadOver { count: 2, domain: "rack".into(), slower_pct: 12 };
    assert_eq!(reasons, [Reason::OnlyAlternative { word: "h100".into() }, apart]);
}

#[test]
fn it_is_split_only_where_that_ends_before_every_alternative_that_is_free() {
    let classes = ["h100", "h100", "a100", "a100", "h100", "h100", "a100", "a100"];
    let free = |apart| {
        let shapes = [("h100", 4, 10, apart), ("a100", 4, 6, 6)];
        given(&mut busy(cluster(&classes), &[1, 5]), one(gang(&shapes))).0
    };
    assert_eq!(free(5), names(&["n2", "n3"]));
    assert_eq!(free(7), names(&["n0", "n4"]));
}

#[test]
fn candidates_tell_the_terms_of_where_they_would_stand() {
    let mut state = busy(cluster(&["h100"; 8]), &[1, 2, 3, 5, 6, 7]);
    state.apply(Time::ZERO, &submitted(1, one(gang(&[("h100", 4, 50, 40), ("h100", 8, 80, 80)]))));
    let rates = Rates::default();
    let view = View { state: &state, rates: &rates, now: Time::ZERO, cadence: Cadence::default() };
    let told = candidates(&view, key(1, 0));
    let [Candidate { stands: Stands::Free(_), terms: Some(terms), best, .. }, large] = &told[..]
    else {
        panic!("one is free and one is not: {told:?}");
    };
    assert_eq!((best.map(|(rate, _)| rate), terms.rate), (Some(50.0), 40.0));
    assert_eq!(terms.ends_in, Some(Millis(2_500)));
    assert!(matches!(large.stands, Stands::Nowhere(Reason::NotEnough { need: 8, .. })));
}
