//! What a leader leaves of its jobs is what its successor needs: a state that is built from it
//! alone has the same jobs, leases and lines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_control::MemoryLog;
use het_core::{
    AdoptedJobs, Event, Job, JobId, LeaseId, Name, Placement, Share, StageKey, StageState, State,
    Time, Topology,
};
use het_lab::{play, random_scenario, with_start_conditions};
use het_policy::by_name;
use het_wire::record::{HandedOver, JobHandover, Record};

const SCENARIOS: u64 = 40;
/// Turns of a run after which the leader changes.
const EVERY: usize = 7;

/// The state of a successor that finds these nodes, by way of what is stored.
fn succeeded(state: &State, nodes: &Topology, at: Time) -> State {
    let mut events = vec![Event::NodesJoined { nodes: Arc::new(nodes.clone()) }];
    let mut next = State::new(Arc::default());
    next.apply(at, &events[0]);
    let mut adopted = AdoptedJobs::default();
    for id in state.jobs().keys() {
        let text = JobHandover::of(state, *id).expect("it is there").to_json();
        let handover = JobHandover::from_json(&text).expect("it was written here");
        let HandedOver { id, job, leases } = handover.read(next.topology()).expect("it fits");
        adopted.jobs.insert(id, Arc::new(job));
        adopted.leases.extend(leases);
    }
    let adopted = Arc::new(adopted.held_by(&next, at));
    events.push(Event::JobsAdopted { adopted });
    next.apply(at, &events[1]);
    // The log says the same again.
    let mut replayed = State::new(Arc::default());
    for event in &events {
        let line = Record::new(at, event).to_json();
        let (at, event) = Record::from_json(&line).expect("a record").read().expect("an event");
        replayed.apply(at, &event);
    }
    assert_eq!(replayed, next);
    next
}

/// Nodes and devices by names, which do not depend on rows.
type Places = Vec<(Name, Name, Share)>;

fn places(topology: &Topology, placement: &Placement) -> Places {
    let place = |grant: het_core::Grant| {
        let device = topology.device(grant.device);
        (topology.node(device.node).name.clone(), device.name.clone(), grant.share)
    };
    placement.grants().map(place).collect()
}

fn leases(state: &State) -> BTreeMap<LeaseId, (StageKey, u32, Places)> {
    let leases = state.leases().iter();
    let row = leases
        .map(|(id, it)| (*id, (it.stage, it.attempt, places(state.topology(), &it.placement))));
    row.collect()
}

/// Without what names rows, and is found out anew.
fn bare(job: &Job) -> Job {
    let mut job = job.clone();
    for stage in &mut job.stages {
        stage.placement = None;
        stage.start_reasons.clear();
        stage.wait_reasons.clear();
    }
    job
}

fn bare_jobs(state: &State) -> BTreeMap<JobId, Job> {
    let jobs = state.jobs().iter().map(|(id, job)| {
        let mut job = bare(job);
        if job.eligible.is_none() {
            // What was met before is not waited for again.
            Arc::make_mut(&mut job.spec).start = state.open_conditions(*id);
        }
        (*id, job)
    });
    jobs.collect()
}

/// The same nodes in another order, so that nothing has the row that it had.
fn turned_round(topology: &Topology) -> Topology {
    let mut turned = topology.clone();
    let last = topology.nodes.len() as u32 - 1;
    turned.nodes.reverse();
    turned.links.clear();
    turned.devices.iter_mut().for_each(|device| device.node.0 = last - device.node.0);
    turned.devices.sort_by_key(|device| device.node);
    turned
}

#[test]
fn a_successor_has_the_same_jobs_leases_and_lines() {
    let mut checked = 0;
    for seed in 1..=SCENARIOS {
        let (scenario, mut turns) = (with_start_conditions(random_scenario(seed)), 0);
        let observe = |_: &het_control::Turn, live: &State| {
            turns += 1;
            if turns % EVERY != 0 {
                return;
            }
            checked += 1;
            let next = succeeded(live, &turned_round(live.topology()), live.now());
            assert_eq!(leases(&next), leases(live), "seed {seed}, turn {turns}");
            assert_eq!(bare_jobs(&next), bare_jobs(live), "seed {seed}, turn {turns}");
            let waiting = |state: &State| state.waiting().collect::<BTreeSet<_>>();
            assert_eq!(waiting(&next), waiting(live), "seed {seed}, turn {turns}");
        };
        let policy = by_name("hybrid").expect("the table has it");
        play(&scenario, policy, MemoryLog::default(), observe).expect("it ends");
    }
    assert!(checked > 100, "{checked}");
}

#[test]
fn what_ran_on_a_node_that_is_gone_waits_again() {
    let mut lost = 0;
    for seed in 1..=SCENARIOS {
        let mut turns = 0;
        let observe = |_: &het_control::Turn, live: &State| {
            turns += 1;
            if turns % EVERY != 0 {
                return;
            }
            let next = succeeded(live, &Topology::default(), live.now());
            assert!(next.leases().is_empty());
            for (id, job) in live.jobs() {
                let stages = job.stages.iter().zip(&next.jobs()[id].stages);
                for (before, after) in stages {
                    let was_active = matches!(before.state, StageState::Active { .. });
                    lost += usize::from(was_active);
                    let is_idle = matches!(after.state, StageState::Stopped { .. });
                    let is_over = after.state == StageState::Cancelled && job.ending.is_some();
                    assert!(!was_active || is_idle || is_over, "seed {seed}: {:?}", after.state);
                }
            }
        };
        let policy = by_name("hybrid").expect("the table has it");
        play(&random_scenario(seed), policy, MemoryLog::default(), observe).expect("it ends");
    }
    assert!(lost > 100, "{lost}");
}
