//! Random small worlds: gangs, stages, priorities, alternatives, tenants, failing nodes and
//! devices, stragglers, users who change their minds.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use het_control::{Cadence, Retention};
use het_core::{
    Alternative, ArrayMember, Bytes, CheckpointSpec, ClassQuota, Companions, Dependencies,
    Dependency, DependencyCondition, DependencyRule, Device, DeviceClass, Domain, Drivers, Event,
    HostResources, Isolation, JobChange, JobId, JobSpec, Launch, LeaseId, Match, Millis, Name,
    Node, NodeId, PlannedSpeeds, Preemptible, Priority, Quota, Quotas, RankRule, Selector, Share,
    StageIndex, StageKey, StageKind, StageSpec, StartConditions, State, Time, Topology, lineage,
};
use het_perf::Rates;
use het_policy::{Pool, place};
use het_sim::{Fault, StageModel};

use crate::{Draw, Scenario};

/// Streams of the seed.
const CLUSTER: u64 = 0;
const FAULTS: u64 = 1;
const WORDS: u64 = 2;
const TENANTS: u64 = 3;
const DEVICE_FAULTS: u64 = 4;
const MEMBERSHIP: u64 = 5;
const CONDITIONS: u64 = 7;
const PREEMPTIBLE: u64 = 6;
const WARM_STARTS: u64 = 8;
const FIRST_JOB: u64 = 100;

/// All arrivals and faults fall into the first ten minutes.
const HORIZON_MS: u64 = 600_000;

/// A random scenario in which every job can finish once all nodes are back.
pub fn random_scenario(seed: u64) -> Scenario {
    let topology = cluster(&mut Draw::new(seed, CLUSTER));
    let count = Draw::new(seed, FIRST_JOB - 1).between(3, 24);
    let mut scenario = Scenario {
        seed,
        jobs: Vec::new(),
        models: BTreeMap::new(),
        rates: Rates::default(),
        cadence: Cadence::default(),
        retention: Retention::All,
        quotas: Quotas::default(),
        prices: BTreeMap::new(),
        faults: faults(seed, &topology),
        words: words(&mut Draw::new(seed, WORDS), count),
        topology,
    };
    let mut jobs: Vec<_> = (0..count)
        .map(|index| {
            let mut draw = Draw::new(seed, FIRST_JOB + index);
            let at = Time(draw.between(0, HORIZON_MS) * u64::from(draw.chance(80)));
            (at, draw)
        })
        .collect();
    jobs.sort_by_key(|(at, _)| *at);
    for (index, (at, mut draw)) in jobs.into_iter().enumerate() {
        let spec = job(&mut draw, &scenario.topology);
        for stage in spec.stage_indices() {
            let key = StageKey { job: JobId(index as u64 + 1), stage };
            scenario.models.insert(key, Arc::new(model(&mut draw, spec.stage(stage))));
        }
        scenario.jobs.push((at, Arc::new(spec)));
    }
    share_out(&mut Draw::new(seed, TENANTS), &mut scenario);
    spare(&mut Draw::new(seed, PREEMPTIBLE), &mut scenario);
    scenario
}

/// Some stages run for a while before they may be stopped for others, and some of those that never
/// have to borrow to their end.
fn spare(draw: &mut Draw, scenario: &mut Scenario) {
    let Scenario { jobs, quotas, topology, .. } = scenario;
    for (_, spec) in jobs {
        let spec = Arc::make_mut(spec);
        for stage in &mut spec.stages {
            let owns = owns(quotas, topology, &spec.tenant, stage);
            let never = draw.chance(15);
            let span = Millis(draw.between(1_000, 120_000));
            stage.preemptible = match (never, draw.chance(15)) {
                (true, _) if owns => Preemptible::Never,
                (_, true) => Preemptible::After(span),
                _ => Preemptible::default(),
            };
        }
    }
}

/// Whether the quota of a tenant alone is enough for a stage, whatever it runs on.
fn owns(quotas: &Quotas, topology: &Topology, tenant: &Name, stage: &StageSpec) -> bool {
    let enough = |class: &Name, count: u32| {
        let entitled = |name: &str| quotas.of(name, class.as_str()).entitled;
        let mut line = lineage(tenant.as_str()).rev();
        let own = line.find_map(entitled);
        let is_shared_out = quotas.tenants.keys().any(|name| entitled(name.as_str()).is_some());
        !is_shared_out || own.is_some_and(|own| Share::units(count) <= own)
    };
    stage.alternatives.iter().all(|shape| {
        let classes = topology.classes.iter().map(|class| &class.id);
        let accepted = |class: &&Name| shape.selector.accepts_class(topology, class);
        classes.filter(accepted).all(|class| enough(class, shape.count))
    })
}

/// The same where nodes leave the cluster and join it, under their own name or as others of the
/// same shape, lose devices, and are used by others for a while.
pub fn random_changing_scenario(seed: u64) -> Scenario {
    let mut scenario = random_scenario(seed);
    let changes = membership(&mut Draw::new(seed, MEMBERSHIP), &scenario.topology);
    let changes = changes.into_iter().map(|(at, event)| (at, Fault::Reported(event)));
    scenario.faults.extend(changes);
    scenario.faults.sort_by_key(|(at, _)| *at);
    scenario
}

/// At the end every node is back with all its devices, and guests have left.
fn membership(draw: &mut Draw, topology: &Topology) -> Vec<(Time, Event)> {
    let mut rows = Vec::new();
    for node in topology.node_ids() {
        let own = topology.only(node);
        let name = own.nodes[0].name.clone();
        let joins = |nodes: Topology| Event::NodesJoined { nodes: Arc::new(nodes) };
        let at = draw.between(1, HORIZON_MS);
        let back = at + draw.between(1_000, 300_000);
        if draw.chance(50) {
            rows.push((Time(at), Event::NodeRemoved { name }));
            rows.push((Time(back), joins(own.clone())));
        } else if draw.chance(30) {
            let mut fewer = own.clone();
            fewer.devices.pop();
            rows.push((Time(at), joins(fewer)));
            rows.push((Time(back), joins(own.clone())));
        }
        for visit in 0..draw.between(0, 2) {
            let mut guest = own.clone();
            guest.nodes[0].name = format!("guest{}-{visit}", node.0).into();
            let name = guest.nodes[0].name.clone();
            let at = draw.between(1, HORIZON_MS);
            rows.push((Time(at), joins(guest)));
            rows.push((Time(at + draw.between(1_000, 300_000)), Event::NodeRemoved { name }));
        }
        if draw.chance(40) {
            let class = own.devices[draw.between(0, own.devices.len() as u64 - 1) as usize].class;
            let amount = Share::units(draw.between(1, 6) as u32);
            let at = draw.between(1, HORIZON_MS);
            rows.push((Time(at), Event::CapacityTaken { node, class, amount }));
            let left = Event::CapacityTaken { node, class, amount: Share::ZERO };
            rows.push((Time(at + draw.between(1_000, 300_000)), left));
        }
        if draw.chance(40) {
            let amount = HostResources {
                memory: Bytes::gib(draw.between(0, 64)),
                tasks: draw.between(0, 16),
                ..HostResources::NONE
            };
            let at = draw.between(1, HORIZON_MS);
            rows.push((Time(at), Event::HostTaken { node, amount }));
            let left = Event::HostTaken { node, amount: HostResources::NONE };
            rows.push((Time(at + draw.between(1_000, 300_000)), left));
        }
    }
    rows
}

fn cluster(draw: &mut Draw) -> Topology {
    let class = |id: &str, kind: &str, peak_gflops| DeviceClass {
        id: id.into(),
        kind: kind.into(),
        vendor: "random".into(),
        title: id.into(),
        peak_gflops: Some(peak_gflops),
        software: false,
    };
    let mut topology = Topology {
        classes: vec![
            class("cpu", "cpu", 100),
            class("fast", "gpu", 1_000),
            class("slow", "gpu", 300),
            class("npu-x", "npu", 700),
        ],
        ..Topology::default()
    };
    for row in 0..draw.between(1, 6) as u32 {
        let node = NodeId(row);
        topology.nodes.push(Node {
            name: format!("n{row}").into(),
            host: HostResources {
                memory: Bytes::gib(64),
                scratch: Bytes::gib(64),
                read: Bytes::gib(16),
                tasks: 16,
            },
            rack: format!("r{}", row / 2).into(),
            pod: format!("p{}", row / 4).into(),
        });
        let mut add = |name: String, class: usize, capacity| {
            topology.devices.push(Device {
                node,
                visible_id: name.as_str().into(),
                name: name.into(),
                class,
                drivers: vec![if class == 0 { "cpu".into() } else { "cuda".into() }],
                capacity,
                memory: if class == 0 { Bytes::ZERO } else { Bytes::gib(80) },
            });
        };
        add("cpu0".to_owned(), 0, Share::units(draw.between(2, 8) as u32));
        let class = draw.between(1, 3) as usize;
        for index in 0..draw.between(0, 8) {
            add(format!("acc{index}"), class, Share::WHOLE);
        }
    }
    topology
}

fn faults(seed: u64, topology: &Topology) -> Vec<(Time, Fault)> {
    let mut rows = device_faults(&mut Draw::new(seed, DEVICE_FAULTS), topology);
    let draw = &mut Draw::new(seed, FAULTS);
    for node in topology.node_ids() {
        if draw.chance(40) {
            let at = draw.between(1, HORIZON_MS);
            rows.push((Time(at), Fault::NodeLost { node }));
            let back = at + draw.between(1_000, 300_000);
            rows.push((Time(back), Fault::NodeReturned { node }));
        }
        if draw.chance(20) {
            let at = draw.between(1, HORIZON_MS);
            rows.push((Time(at), Fault::NodeSuspected { node }));
            let cleared = at + draw.between(1_000, 300_000);
            rows.push((Time(cleared), Fault::NodeCleared { node }));
        }
        if draw.chance(20) {
            let at = Time(draw.between(1, HORIZON_MS));
            let noticed_after = Millis(draw.between(1_000, 120_000));
            let kinds =
                [Fault::Hung { node, noticed_after }, Fault::Corrupted { node, noticed_after }];
            rows.push((at, draw.pick(&kinds).clone()));
        }
        if draw.chance(20) {
            let at = Time(draw.between(1, HORIZON_MS));
            rows.push((at, Fault::LinkSlowed { node, percent: draw.between(120, 400) }));
        }
        if draw.chance(30) {
            let at = Time(draw.between(1, HORIZON_MS));
            rows.push((at, Fault::Slowed { node, percent: draw.between(120, 800) }));
        }
    }
    rows.sort_by_key(|(at, _)| *at);
    rows
}

fn device_faults(draw: &mut Draw, topology: &Topology) -> Vec<(Time, Fault)> {
    let mut rows = Vec::new();
    let mut out_of_service = |(goes, comes): (Fault, Fault)| {
        if draw.chance(10) {
            let at = draw.between(1, HORIZON_MS);
            rows.push((Time(at), goes));
            let back = at + draw.between(1_000, 300_000);
            rows.push((Time(back), comes));
        }
    };
    for device in topology.accelerators() {
        let failure = (Fault::DeviceFailed { device }, Fault::DeviceRepaired { device });
        let drain = (Fault::DeviceDrained { device }, Fault::DeviceUndrained { device });
        out_of_service(failure);
        out_of_service(drain);
    }
    rows
}

/// What people say to the scheduler.
fn words(draw: &mut Draw, jobs: u64) -> Vec<(Time, Event)> {
    let mut rows = Vec::new();
    for _ in 0..draw.between(0, 4) {
        let job = JobId(draw.between(1, jobs));
        let at = HORIZON_MS + draw.between(1, HORIZON_MS);
        if draw.chance(50) {
            rows.push((Time(at), Event::JobCancelled { job }));
        } else {
            rows.push((Time(at), Event::JobHeld { job }));
            rows.push((Time(at + draw.between(1, 100_000)), Event::JobReleased { job }));
        }
    }
    for _ in 0..draw.between(0, 4) {
        let priority = Some(*draw.pick(&Priority::ALL));
        let change = JobChange { priority, ..JobChange::default() };
        let job = JobId(draw.between(1, jobs));
        rows.push((Time(draw.between(1, HORIZON_MS)), Event::JobChanged { job, change }));
        let lease = LeaseId(draw.between(1, jobs));
        let preemptor = StageKey { job: JobId(draw.between(1, jobs)), stage: StageIndex(0) };
        let at = Time(draw.between(1, HORIZON_MS));
        rows.push((at, Event::StageYields { lease, preemptor }));
    }
    rows
}

/// The same work with jobs that wait for others, for a time, and for their turn in an array, in a
/// state that soon forgets those that ended.
pub fn with_start_conditions(mut scenario: Scenario) -> Scenario {
    let mut draw = Draw::new(scenario.seed, CONDITIONS);
    let mut array = None;
    for index in 0..scenario.jobs.len() {
        let (at, id) = (scenario.jobs[index].0, JobId(index as u64 + 1));
        let mut start = StartConditions::default();
        if index > 0 && draw.chance(40) {
            start.dependencies = dependencies(&mut draw, index as u64);
        }
        if draw.chance(20) {
            start.begin = Some(at + Millis(draw.between(0, HORIZON_MS)));
        }
        if draw.chance(30) {
            let first = *array.get_or_insert(id);
            let parallel_max = Some(2);
            start.array = Some(ArrayMember { array: first, index: index as u32, parallel_max });
        }
        Arc::make_mut(&mut scenario.jobs[index].1).start = start;
    }
    scenario.retention = Retention::Newest(2);
    scenario
}

/// The same with programs that can begin before they have devices, for some of the stages: they do
/// up to `part` percent of their loading then.
#[must_use]
pub fn with_warm_starts(mut scenario: Scenario, part: u64) -> Scenario {
    let mut draw = Draw::new(scenario.seed, WARM_STARTS);
    for index in 0..scenario.jobs.len() {
        let job = JobId(index as u64 + 1);
        let spec = Arc::make_mut(&mut scenario.jobs[index].1);
        for (row, stage) in (0..).zip(&mut spec.stages) {
            if draw.chance(30) {
                continue;
            }
            for alternative in &mut stage.alternatives {
                Arc::make_mut(&mut alternative.launch).warm = true;
            }
            let key = StageKey { job, stage: StageIndex(row) };
            if let Some(model) = scenario.models.get_mut(&key).map(Arc::make_mut) {
                model.imports = Millis(model.load.0 * part / 100);
            }
        }
    }
    scenario
}

/// On some of the jobs before.
fn dependencies(draw: &mut Draw, before: u64) -> Dependencies {
    let rule = if draw.chance(30) { DependencyRule::Any } else { DependencyRule::All };
    let on = (0..draw.between(1, 2)).map(|_| Dependency {
        job: JobId(draw.between(1, before)),
        condition: *draw.pick(&DependencyCondition::ALL),
        delay: Millis(draw.between(0, 60_000) * u64::from(draw.chance(30))),
    });
    Dependencies { rule, on: on.collect() }
}

fn job(draw: &mut Draw, topology: &Topology) -> JobSpec {
    let mut stages = Vec::new();
    for index in 0..draw.between(1, 3) as u16 {
        let mut stage = stage(draw, topology, index);
        if index > 0 {
            let earlier = StageIndex(draw.between(0, u64::from(index) - 1) as u16);
            let needs = if draw.chance(30) { &mut stage.follows } else { &mut stage.after };
            needs.push(earlier);
        }
        stages.push(stage);
    }
    JobSpec {
        name: "random".into(),
        tenant: "team".into(),
        priority: *draw_priority(draw),
        stages,
        time_limit: None,
        workdir: String::new(),
        commit: None,
        start: StartConditions::default(),
        key: None,
    }
}

/// In some scenarios jobs are of different tenants, who have quotas and limits beside which every
/// job still fits, also where nothing may be borrowed.
fn share_out(draw: &mut Draw, scenario: &mut Scenario) {
    if !draw.chance(60) {
        return;
    }
    const NAMES: [&str; 4] = ["lab/nlp", "lab/vision", "shop", "guest"];
    for (_, spec) in &mut scenario.jobs {
        Arc::make_mut(spec).tenant = (*draw.pick(&NAMES)).into();
    }
    let topology = &scenario.topology;
    for (index, &units) in topology.units_by_class().iter().enumerate() {
        let class = &topology.classes[index];
        let mut devices = topology.device_ids();
        let one = devices.find(|id| topology.device(*id).class == index);
        let stages = scenario.jobs.iter().flat_map(|(_, spec)| &spec.stages);
        let shapes = stages.flat_map(|stage| &stage.alternatives);
        let largest = shapes
            .filter(|shape| one.is_some_and(|id| shape.selector.accepts(topology, id)))
            .map(|shape| shape.count)
            .max()
            .unwrap_or(0);
        // Cores beside devices are not counted in `largest`.
        if class.kind == "cpu" || units <= largest {
            continue;
        }
        let mut spare = units - largest;
        set(&mut scenario.quotas, "guest", &class.id, 0, Some(largest));
        for tenant in ["lab", "shop"] {
            let own = draw.between(0, u64::from(spare)) as u32;
            spare -= own;
            let part = draw.between(0, u64::from(own)) as u32;
            let limit = draw.chance(50).then(|| largest.max(own) + draw.between(0, 2) as u32);
            set(&mut scenario.quotas, tenant, &class.id, own, limit);
            if tenant == "lab" {
                set(&mut scenario.quotas, "lab/nlp", &class.id, part, None);
            }
        }
    }
}

fn set(quotas: &mut Quotas, tenant: &str, class: &Name, own: u32, limit: Option<u32>) {
    let new = || Quota::new(1 + own);
    let quota = quotas.tenants.entry(tenant.into()).or_insert_with(new);
    let of = ClassQuota { entitled: Some(Share::units(own)), limit: limit.map(Share::units) };
    quota.classes.insert(class.clone(), of);
}

fn draw_priority(draw: &mut Draw) -> &'static Priority {
    const LIKELY: [Priority; 6] = [
        Priority::Low,
        Priority::Low,
        Priority::Normal,
        Priority::Normal,
        Priority::High,
        Priority::Urgent,
    ];
    draw.pick(&LIKELY)
}

/// A stage that fits the empty cluster.
fn stage(draw: &mut Draw, topology: &Topology, index: u16) -> StageSpec {
    let state = State::new(Arc::new(topology.clone()));
    loop {
        let wanted = draw.between(1, 3);
        let mut spec = StageSpec {
            name: format!("s{index}").into(),
            kind: *draw.pick(&StageKind::ALL),
            after: Vec::new(),
            follows: Vec::new(),
            alternatives: (0..wanted).map(|_| alternative(draw)).collect(),
            companions: companions(draw),
            within: if draw.chance(70) { Domain::Any } else { *draw.pick(&Domain::ALL) },
            ranks: if draw.chance(50) { RankRule::PerNode } else { RankRule::PER_DEVICE },
            retries: draw.between(0, 1) as u32,
            restarts: StageSpec::RESTARTS_DEFAULT,
            profile: format!("p{}", draw.between(0, 4)).into(),
            steps: None,
            preemptible: Preemptible::default(),
            planned: PlannedSpeeds::default(),
        };
        let are_even = spec.alternatives.iter().all(|it| it.count.is_multiple_of(2));
        if let Some(two) = NonZeroU32::new(2).filter(|_| are_even)
            && spec.ranks == RankRule::PER_DEVICE
        {
            spec.ranks = RankRule::PerUnits(two);
        }
        let mut cluster = Pool::empty_cluster(&state);
        if place(&mut cluster, &spec, 0).is_ok() {
            return spec;
        }
    }
}

fn companions(draw: &mut Draw) -> Companions {
    let some = draw.chance(20);
    Companions {
        cores: if some { draw.between(0, 1) as u32 } else { 0 },
        host: match some {
            true => HostResources {
                memory: Bytes::gib(draw.between(0, 8)),
                scratch: Bytes::gib(draw.between(0, 8)),
                read: Bytes::gib(draw.between(0, 2)),
                tasks: 1,
            },
            false => HostResources::NONE,
        },
    }
}

fn alternative(draw: &mut Draw) -> Alternative {
    let words = ["cpu", "gpu", "npu", "any", "fast", "slow", "npu-x"];
    let word: Name = (*draw.pick(&words)).into();
    let matches = match word.as_str() {
        "any" => Match::Any,
        "cpu" | "gpu" | "npu" => Match::Kind(word.clone()),
        _ => Match::Classes(vec![word.clone()]),
    };
    let saves = draw.chance(80);
    let checkpoint = saves.then(|| CheckpointSpec {
        dir: String::new(),
        every: None,
        notice: "SIGTERM".into(),
        grace: Millis::seconds(draw.between(1, 30)),
    });
    Alternative {
        selector: Selector {
            word,
            matches,
            memory_min: Bytes::ZERO,
            isolation: Isolation::Process,
            drivers: Drivers::Unknown,
        },
        count: draw.between(1, 8) as u32,
        launch: Arc::new(Launch { checkpoint, ..Launch::default() }),
    }
}

fn model(draw: &mut Draw, spec: &StageSpec) -> StageModel {
    let saves = spec.saves(0);
    let classes = ["cpu", "fast", "slow", "npu-x"];
    let model = StageModel {
        steps: draw.between(1, 200),
        step_ns: classes
            .map(|class| (class.into(), [(0, draw.between(10, 3_000) * 1_000_000)].into()))
            .into(),
        load: Millis(draw.between(0, 20_000)),
        save: saves.then(|| Millis(draw.between(0, 5_000))),
        checkpoint_every: draw.between(5, 100),
        publishes_after: draw.chance(50).then(|| Millis(draw.between(0, 30_000))),
        deaf: draw.chance(10),
        fails_at: draw.chance(10).then(|| (draw.between(1, 50), 1)),
        ..StageModel::default()
    };
    // One of the first two checkpoints of a third of them.
    let corrupt = model.steps.is_multiple_of(3);
    let corrupt_at = corrupt.then(|| model.checkpoint_every * (1 + model.steps % 2));
    StageModel { corrupt_at, ..model }
}
