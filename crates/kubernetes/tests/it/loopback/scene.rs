//! Nodes, jobs and their programs, and plans that are legal for a state.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::rig::container;
use het_core::{
    Action, Alternative, Bytes, CheckpointSpec, Companions, Device, DeviceClass, DeviceId, Domain,
    Drivers, Event, Grant, HostResources, Isolation, JobId, JobSpec, Launch, LeaseId, Match,
    Millis, Node, NodeId, Placement, PlannedSpeeds, Preemptible, Priority, Rank, RankRule,
    Selector, Share, StageKey, StageKind, StageSpec, StartConditions, State, StopCause, Topology,
};

use super::draw::Draw;
use super::pods::NODE_CORES;

const RANKS_MAX: u64 = 4;

/// Nodes with one CPU socket each.
pub fn topology(nodes: u64) -> Topology {
    let class = DeviceClass {
        id: "cpu".into(),
        kind: "cpu".into(),
        vendor: "test".into(),
        title: "cpu".into(),
        peak_gflops: None,
        software: false,
    };
    let host = HostResources::with_memory(Bytes::gib(16));
    let node =
        |row: u64| Node { name: format!("n{row}").into(), host, rack: "r".into(), pod: "p".into() };
    let device = |row: u64| Device {
        node: NodeId(row as u32),
        name: "cpu0".into(),
        class: 0,
        drivers: vec!["cpu".into()],
        capacity: Share::units(NODE_CORES as u32),
        memory: Bytes::ZERO,
        visible_id: "0".into(),
    };
    Topology {
        classes: vec![class],
        nodes: (0..nodes).map(node).collect(),
        devices: (0..nodes).map(device).collect(),
        links: Vec::new(),
    }
}

/// A node of [`topology`] alone.
pub fn alone(name: &str) -> Topology {
    let mut topology = topology(1);
    topology.nodes[0].name = name.into();
    topology
}

pub fn submitted(job: JobId, draw: &mut Draw) -> Event {
    let spec = Arc::new(job_of(&launch(job, draw)));
    Event::JobSubmitted { job, spec, succeeded: Vec::new(), checkpoints: Vec::new() }
}

/// What its pods do is said by their command: see `kubelet.rs`.
fn launch(job: JobId, draw: &mut Draw) -> Launch {
    let turns = draw.between(1, 20);
    let words = match draw.between(0, 9) {
        0..=3 => format!("finish {turns}"),
        4..=6 => "until-notice".to_owned(),
        7 => "deaf".to_owned(),
        _ => format!("fail {} {turns} {}", draw.between(0, 1), draw.between(1, 3)),
    };
    let checkpoint = CheckpointSpec {
        dir: "/checkpoints".to_owned(),
        every: None,
        notice: "SIGTERM".into(),
        grace: Millis::seconds(1),
    };
    Launch {
        job: format!("job-{job}").as_str().into(),
        stage: "train".into(),
        argv: words.split(' ').map(str::to_owned).collect(),
        checkpoint: draw.chance(50).then_some(checkpoint),
        container: Some(container()),
        ..Launch::default()
    }
}

fn job_of(launch: &Launch) -> JobSpec {
    let selector = Selector {
        word: "cpu".into(),
        matches: Match::Kind("cpu".into()),
        memory_min: Bytes::ZERO,
        isolation: Isolation::default(),
        drivers: Drivers::Unknown,
    };
    let stage = StageSpec {
        name: "train".into(),
        kind: StageKind::Custom,
        after: Vec::new(),
        follows: Vec::new(),
        alternatives: vec![Alternative { selector, count: 1, launch: Arc::new(launch.clone()) }],
        companions: Companions::default(),
        within: Domain::Any,
        ranks: RankRule::PerNode,
        retries: 2,
        restarts: StageSpec::RESTARTS_DEFAULT,
        profile: "train".into(),
        steps: None,
        preemptible: Preemptible::default(),
        planned: PlannedSpeeds::default(),
    };
    JobSpec {
        name: launch.job.clone(),
        tenant: "team".into(),
        priority: Priority::Normal,
        stages: vec![stage],
        time_limit: None,
        workdir: "/".to_owned(),
        commit: None,
        start: StartConditions::default(),
        key: None,
    }
}

/// The start of a waiting stage as a gang that fits, where one does.
pub fn start(state: &State, key: StageKey, lease: LeaseId, draw: &mut Draw) -> Option<Action> {
    let topology = state.topology();
    let mut free: BTreeMap<DeviceId, u32> = topology
        .device_ids()
        .map(|device| (device, state.free().share(device).whole_units()))
        .collect();
    let mut ranks = Vec::new();
    for _ in 0..draw.between(1, RANKS_MAX) {
        let fits: Vec<DeviceId> =
            free.iter().filter(|(_, units)| **units > 0).map(|(device, _)| *device).collect();
        let device = draw.pick(&fits)?;
        free.entry(device).and_modify(|units| *units -= 1);
        ranks.push(Rank {
            node: topology.device(device).node,
            grants: vec![Grant { device, share: Share::WHOLE }],
            companions: Vec::new(),
            host: HostResources::NONE,
        });
    }
    let (_, spec, stage) = state.stage(key);
    Some(Action::Start {
        lease,
        stage: key,
        attempt: stage.attempts + 1,
        placement: Arc::new(Placement { alternative: 0, ranks }),
        launch: Arc::clone(&spec.alternatives[0].launch),
        resume: None,
        reasons: Vec::new(),
    })
}

pub fn stop(lease: LeaseId, grace: Millis) -> Action {
    Action::Stop { lease, cause: StopCause::User, grace, cost: None }
}
