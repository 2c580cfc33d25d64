//! Short ways to write clusters and jobs.

use std::sync::Arc;

use het_core::{
    Action, Alternative, Bytes, CheckpointSpec, Companions, Container, Device, DeviceClass,
    DeviceId, Domain, Event, Generation, Grant, HostResources, JobId, JobSpec, Launch, LeaseId,
    Match, Millis, Name, Node, NodeId, Placement, Plan, PlannedSpeeds, Preemptible, Priority, Rank,
    RankRule, Selector, Share, StageIndex, StageKey, StageKind, StageSpec, StartConditions, State,
    Topology, VNPU,
};

/// Memory of every node that is built here.
pub const NODE_MEMORY: Bytes = Bytes::gib(64);

/// A class whose kind is `kind` and whose id is `id`.
pub fn class(id: &str, kind: &str, peak_gflops: u64) -> DeviceClass {
    DeviceClass {
        id: id.into(),
        kind: kind.into(),
        vendor: "test".into(),
        title: id.into(),
        peak_gflops: Some(peak_gflops),
        software: false,
    }
}

/// Nodes described by `(accelerators of classes, cores)`; classes are made as they are named, with
/// peaks in the order of first use (each half the one before). Devices of the class `vnpu` are of
/// use in containers only.
pub fn topology(nodes: &[(&[(&str, u32)], u32)]) -> Topology {
    let mut topology = Topology { classes: vec![class("cpu", "cpu", 1)], ..Topology::default() };
    for (row, (accelerators, cores)) in nodes.iter().enumerate() {
        let node = NodeId(row as u32);
        topology.nodes.push(Node {
            name: format!("n{row}").into(),
            host: HostResources::with_memory(NODE_MEMORY),
            rack: format!("r{}", row / 4).into(),
            pod: format!("p{}", row / 16).into(),
        });
        if *cores > 0 {
            topology.devices.push(device(node, "cpu0".into(), 0, Share::units(*cores)));
        }
        for (word, count) in *accelerators {
            let class = class_index(&mut topology, word);
            for index in 0..*count {
                let name = format!("{word}{index}").into();
                let mut device = device(node, name, class, Share::WHOLE);
                device.drivers.extend((*word == VNPU).then(|| VNPU.into()));
                topology.devices.push(device);
            }
        }
    }
    topology
}

fn class_index(topology: &mut Topology, word: &str) -> usize {
    let known = topology.classes.iter().position(|class| class.id == *word);
    known.unwrap_or_else(|| {
        let peak = 1_000_000 >> topology.classes.len();
        topology.classes.push(class(word, "gpu", peak));
        topology.classes.len() - 1
    })
}

fn device(node: NodeId, name: Name, class: usize, capacity: Share) -> Device {
    let memory = if class == 0 { Bytes::ZERO } else { Bytes::gib(80) };
    let drivers = vec![if class == 0 { "cpu".into() } else { "cuda".into() }];
    Device { node, visible_id: name.clone(), name, class, drivers, capacity, memory }
}

/// A request for `count` units of a class, or of a kind for `cpu`, `gpu` and `any`; with
/// `@container` behind it, for a program that runs in one.
pub fn alternative(word: &str, count: u32) -> Alternative {
    let (word, container) = match word.strip_suffix("@container") {
        Some(word) => (word, Some(container())),
        None => (word, None),
    };
    let launch = Launch { container, ..launch() };
    let matches = match word {
        "any" => Match::Any,
        "cpu" | "gpu" => Match::Kind(word.into()),
        class => Match::Classes(vec![class.into()]),
    };
    let selector = Selector {
        word: word.into(),
        matches,
        memory_min: Bytes::ZERO,
        isolation: launch.isolation(),
        drivers: launch.drivers.clone(),
    };
    Alternative { selector, count, launch: Arc::new(launch) }
}

fn container() -> Container {
    Container { image: "image".to_owned(), runtime: None, mounts: Vec::new(), volumes: Vec::new() }
}

fn launch() -> Launch {
    let checkpoint = CheckpointSpec {
        dir: "/ckpt".to_owned(),
        every: None,
        notice: "SIGTERM".into(),
        grace: Millis::seconds(30),
    };
    Launch { checkpoint: Some(checkpoint), ..Launch::default() }
}

/// A train stage with the given alternatives.
pub fn stage(name: &str, alternatives: Vec<Alternative>) -> StageSpec {
    StageSpec {
        name: name.into(),
        kind: StageKind::Train,
        after: Vec::new(),
        follows: Vec::new(),
        alternatives,
        companions: Companions::default(),
        within: Domain::Any,
        ranks: RankRule::PerNode,
        retries: 0,
        restarts: StageSpec::RESTARTS_DEFAULT,
        profile: name.into(),
        steps: None,
        preemptible: Preemptible::default(),
        planned: PlannedSpeeds::default(),
    }
}

/// A job of the given stages.
pub fn job(priority: Priority, stages: Vec<StageSpec>) -> JobSpec {
    JobSpec {
        name: "job".into(),
        tenant: "team".into(),
        priority,
        stages,
        time_limit: None,
        workdir: "/work".to_owned(),
        commit: None,
        start: StartConditions::default(),
        key: None,
    }
}

/// The event of a fresh submit.
pub fn submitted(id: u64, spec: JobSpec) -> Event {
    Event::JobSubmitted {
        job: JobId(id),
        spec: Arc::new(spec),
        succeeded: Vec::new(),
        checkpoints: Vec::new(),
    }
}

/// Stage `stage` of job `job`.
pub fn key(job: u64, stage: u16) -> StageKey {
    StageKey { job: JobId(job), stage: StageIndex(stage) }
}

/// The start of a waiting stage on whole accelerators of node 0, by its first alternative, from its
/// newest checkpoint: the lease that it gets, and the event that says so.
pub fn started(state: &State, key: StageKey, devices: &[u32]) -> (LeaseId, Event) {
    let whole = |&device: &u32| Grant { device: DeviceId(device), share: Share::WHOLE };
    let grants = devices.iter().map(whole).collect();
    let rank = Rank { node: NodeId(0), grants, companions: Vec::new(), host: HostResources::NONE };
    let (_, spec, stage) = state.stage(key);
    let lease = state.next_lease();
    let start = Action::Start {
        lease,
        stage: key,
        attempt: stage.attempts + 1,
        placement: Arc::new(Placement { alternative: 0, ranks: vec![rank] }),
        launch: Arc::clone(&spec.alternatives[0].launch),
        resume: stage.checkpoint.clone(),
        reasons: Vec::new(),
    };
    (lease, committed(state, start))
}

/// The next plan of a state, with one action.
pub fn committed(state: &State, action: Action) -> Event {
    let generation = Generation(state.generation().0 + 1);
    let plan = Plan { generation, actions: vec![action], waits: Vec::new() };
    Event::PlanCommitted { plan: Arc::new(plan) }
}
