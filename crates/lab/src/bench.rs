//! How long a decision takes on a full cluster with a long queue.

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::sync::Arc;
use std::time::{Duration, Instant};

use het_control::Controller;
use het_core::{
    Alternative, Bytes, CheckpointSpec, Companions, Device, DeviceClass, Domain, Drivers, Event,
    HostResources, Isolation, JobId, JobSpec, Launch, Match, Millis, Name, Node, NodeId,
    PlannedSpeeds, Preemptible, Priority, RankRule, Selector, Share, StageIndex, StageKey,
    StageKind, StageSpec, StartConditions, State, Time, Topology,
};
use het_perf::Rates;
use het_policy::Policy;
use het_sim::{Sim, StageModel};

use crate::{Cadence, Draw};

/// Decisions before this time fill the cluster and are not timed.
const WARM_AFTER: Time = Time(60_000);

/// Device-seconds of a job on the fastest class: ten minutes to ten hours.
const WORK_S: (u64, u64) = (600, 36_000);

/// Programs save, and report their progress, this often.
const CHECKPOINT_S: u64 = 600;

/// A cluster and the length of its queue.
#[derive(Debug, Clone)]
pub struct RoundBench {
    pub topology: Topology,
    /// Waiting jobs; about as many come as end.
    pub jobs: u64,
    /// Decisions to time.
    pub rounds: u32,
    pub seed: u64,
    /// Rounds at boundaries, in which equals share time; on every event where absent.
    pub cadence: Cadence,
}

/// Times of single decisions, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundTimes {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// Times the decisions of the control loop, from the facts to the committed plan, each as its part
/// of the turn in which it was made: jobs come and end, programs start, save, report progress and
/// are suspended, and quanta pass. Nothing is declared about speeds; they are learned on the way.
pub fn bench_rounds(size: &RoundBench, policy: &'static dyn Policy) -> RoundTimes {
    let Load { submits, models } = Load::draw(size);
    let topology = Arc::new(size.topology.clone());
    let engine = Sim::new(Arc::clone(&topology), models, submits, []);
    let mut control = Controller::new(State::new(topology), Rates::default(), policy, engine, ())
        .with_cadence(size.cadence);
    let mut times: Vec<Duration> = Vec::new();
    while times.len() < size.rounds as usize {
        let began = Instant::now();
        let turn = control.turn(None).expect("no plan breaks a law, and this log never fails");
        let took = began.elapsed();
        if turn.decisions > 0 && control.now() > WARM_AFTER {
            // A decision is followed by another until nothing more is to be done.
            times.extend(repeat_n(took / turn.decisions as u32, turn.decisions));
        }
        let is_over = turn.events.is_empty() && control.wake_at().is_none();
        if is_over {
            break;
        }
    }
    times.sort_unstable();
    let last = times.len().saturating_sub(1) as f64;
    let at = |part: f64| times.get((last * part) as usize).map_or(0.0, |t| t.as_secs_f64() * 1e3);
    RoundTimes { p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
}

/// Jobs, as they come and as they are.
struct Load {
    submits: Vec<(Time, Event)>,
    models: BTreeMap<StageKey, Arc<StageModel>>,
}

impl Load {
    /// Enough to fill the cluster and the queue at once, and then as many as should end.
    fn draw(size: &RoundBench) -> Self {
        let topology = &size.topology;
        let mut draw = Draw::new(size.seed, 0);
        let all = topology.accelerators().map(|id| topology.class_of(id));
        let classes: Vec<DeviceClass> = all.cloned().collect();
        let peak = |class: &DeviceClass| class.peak_gflops.unwrap_or(1) as f64;
        let fastest = classes.iter().map(peak).fold(1.0, f64::max);
        let speed = classes.iter().map(peak).sum::<f64>() / fastest;
        let mean_work_s = (WORK_S.0 + WORK_S.1) as f64 / 2.0;
        let mut load = Self { submits: Vec::new(), models: BTreeMap::new() };
        let (mut at_s, mut units) = (0.0, 0);
        // Of what is timed some is no arrival.
        let come = size.jobs + u64::from(size.rounds);
        let mut waiting = 0;
        while waiting < come {
            let (spec, model) = job(&mut draw, &classes, fastest);
            if units < classes.len() as u32 {
                units += spec.stages[0].alternatives[0].count;
            } else {
                waiting += 1;
                at_s +=
                    if waiting > size.jobs { draw.exponential(mean_work_s / speed) } else { 0.0 };
            }
            let job = JobId(load.submits.len() as u64 + 1);
            load.models.insert(StageKey { job, stage: StageIndex(0) }, Arc::new(model));
            let (spec, succeeded, checkpoints) = (Arc::new(spec), Vec::new(), Vec::new());
            let event = Event::JobSubmitted { job, spec, succeeded, checkpoints };
            load.submits.push((Time((at_s * 1e3) as u64), event));
        }
        load
    }
}

/// Nodes with devices of a fast and of a slow class in turn, and a socket of 64 cores.
pub fn mixed_cluster(nodes: u32, devices_per_node: u32) -> Topology {
    let class = |id: &str, kind: &str, peak_gflops| DeviceClass {
        id: id.into(),
        kind: kind.into(),
        vendor: "bench".into(),
        title: id.into(),
        peak_gflops: Some(peak_gflops),
        software: false,
    };
    let classes =
        vec![class("cpu", "cpu", 100), class("fast", "gpu", 900), class("slow", "gpu", 300)];
    let mut topology = Topology { classes, ..Topology::default() };
    for row in 0..nodes {
        topology.nodes.push(Node {
            name: format!("n{row}").into(),
            host: HostResources::with_memory(Bytes::gib(512)),
            rack: format!("r{}", row / 8).into(),
            pod: format!("p{}", row / 32).into(),
        });
        for index in 0..devices_per_node {
            topology.devices.push(Device {
                node: NodeId(row),
                name: format!("gpu{index}").into(),
                class: 1 + (row % 2) as usize,
                drivers: vec!["cuda".into()],
                capacity: Share::WHOLE,
                memory: Bytes::gib(80),
                visible_id: index.to_string().into(),
            });
        }
        topology.devices.push(Device {
            node: NodeId(row),
            name: "cpu0".into(),
            class: 0,
            drivers: vec!["cpu".into()],
            capacity: Share::units(64),
            memory: Bytes::ZERO,
            visible_id: "0".into(),
        });
    }
    topology
}

/// A gang of 1 to 16, half of them with a second choice, of any priority; and how it really runs.
fn job(draw: &mut Draw, classes: &[DeviceClass], fastest: f64) -> (JobSpec, StageModel) {
    let count = *draw.pick(&[1, 1, 1, 2, 4, 8, 8, 16]);
    let first = draw.pick(classes);
    let second = draw.pick(classes);
    let mut shapes = vec![(first, count)];
    if draw.chance(50) && second.id != first.id {
        shapes.push((second, count * 2));
    }
    let steps = draw.between(WORK_S.0, WORK_S.1);
    let mut model = StageModel {
        steps,
        load: Millis::seconds(10),
        save: Some(Millis::seconds(2)),
        checkpoint_every: CHECKPOINT_S,
        ..StageModel::default()
    };
    for &(class, count) in &shapes {
        let speed = f64::from(count) * class.peak_gflops.unwrap_or(1) as f64 / fastest;
        model.step_ns.entry(class.id.clone()).or_default().insert(count, (1e9 / speed) as u64);
    }
    let stage = StageSpec {
        name: "train".into(),
        kind: StageKind::Train,
        after: Vec::new(),
        follows: Vec::new(),
        alternatives: shapes.iter().map(|(class, count)| alternative(&class.id, *count)).collect(),
        companions: Companions {
            cores: 2,
            host: HostResources { memory: Bytes::gib(8), ..HostResources::NONE },
        },
        within: if draw.chance(80) { Domain::Any } else { Domain::Rack },
        ranks: RankRule::PerNode,
        retries: 0,
        restarts: StageSpec::RESTARTS_DEFAULT,
        profile: format!("p{}", draw.between(0, 9)).into(),
        steps: Some(steps),
        preemptible: Preemptible::default(),
        planned: PlannedSpeeds::default(),
    };
    let spec = JobSpec {
        name: "bench".into(),
        tenant: "team".into(),
        priority: *draw.pick(&Priority::ALL),
        stages: vec![stage],
        time_limit: None,
        workdir: String::new(),
        commit: None,
        start: StartConditions::default(),
        key: None,
    };
    (spec, model)
}

fn alternative(word: &Name, count: u32) -> Alternative {
    let checkpoint = CheckpointSpec {
        dir: String::new(),
        every: None,
        notice: "SIGTERM".into(),
        grace: CheckpointSpec::GRACE_DEFAULT,
    };
    let matches = Match::Classes(vec![word.clone()]);
    Alternative {
        selector: Selector {
            word: word.clone(),
            matches,
            memory_min: Bytes::ZERO,
            isolation: Isolation::Process,
            drivers: Drivers::Unknown,
        },
        count,
        launch: Arc::new(Launch { checkpoint: Some(checkpoint), ..Launch::default() }),
    }
}
