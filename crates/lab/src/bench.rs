//! How long a round takes on a cluster with a long queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use het_core::{
    Alternative, Bytes, CheckpointSpec, Companions, Device, DeviceClass, Domain, Event, Isolation,
    JobId, JobSpec, Launch, Match, Millis, Name, Node, NodeId, Outcome, PlannedSpeeds, Priority,
    RankRule, Selector, Share, StageKind, StageSpec, State, Time, Topology,
};
use het_perf::Rates;
use het_policy::{Cache, Policy, View};
use het_scheduler::round;

use crate::{Cadence, Draw};

/// A cluster and the length of its queue.
#[derive(Debug, Clone)]
pub struct RoundBench {
    pub topology: Topology,
    /// Waiting jobs, kept at this number.
    pub jobs: u64,
    pub rounds: u32,
    pub seed: u64,
    /// Rounds at boundaries, in which equals share time; on every event where absent.
    pub cadence: Cadence,
}

/// Times of single rounds, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundTimes {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// A full cluster and its queue, ready for rounds.
struct Bench {
    state: State,
    cadence: Cadence,
    /// Classes of its accelerators, each as often as it has devices.
    classes: Vec<Name>,
    draw: Draw,
    now: Time,
    rates: Rates,
    cache: Cache,
}

/// Times rounds: each follows the end of one running job and the submit of another, so the queue
/// stays as long as it was.
pub fn bench_rounds(size: &RoundBench, policy: &'static dyn Policy) -> RoundTimes {
    let mut bench = Bench::new(size);
    while bench.state.waiting().count() < size.jobs as usize {
        for _ in bench.state.waiting().count()..size.jobs as usize {
            bench.submit();
        }
        bench.round(policy);
    }
    let mut times: Vec<Duration> = (0..size.rounds)
        .map(|_| {
            bench.end_one();
            bench.submit();
            bench.round(policy)
        })
        .collect();
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    RoundTimes { p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
}

impl Bench {
    fn new(size: &RoundBench) -> Self {
        let topology = &size.topology;
        let accelerators = topology.accelerators().map(|id| topology.class_of(id));
        Self {
            cadence: size.cadence,
            classes: accelerators.map(|class| class.id.clone()).collect(),
            state: State::new(Arc::new(topology.clone())),
            draw: Draw::new(size.seed, 0),
            now: Time(1),
            rates: Rates::default(),
            cache: Cache::default(),
        }
    }

    fn submit(&mut self) {
        let spec = job(&mut self.draw, &self.classes);
        let event = Event::JobSubmitted {
            job: self.state.next_job(),
            spec: Arc::new(spec),
            succeeded: Vec::new(),
            checkpoints: Vec::new(),
        };
        self.apply(&event);
    }

    fn apply(&mut self, event: &Event) {
        self.now = self.now + Millis(37);
        self.state.apply(self.now, event);
    }

    fn round(&mut self, policy: &dyn Policy) -> Duration {
        if let Cadence::Rounds(every) = self.cadence {
            self.now = self.now + every;
        }
        let Self { state, rates, now, cadence, .. } = self;
        let view = View { state, rates, now: *now, cadence: *cadence };
        let began = Instant::now();
        let round = round(&view, policy, &mut self.cache);
        let took = began.elapsed();
        assert!(round.findings.is_empty(), "the plan breaks a law: {:?}", round.findings);
        round.into_events().for_each(|event| self.apply(&event));
        took
    }

    fn end_one(&mut self) {
        let leases: Vec<_> = self.state.leases().keys().copied().collect();
        if !leases.is_empty() {
            let lease = *self.draw.pick(&leases);
            self.apply(&Event::StageEnded { lease, outcome: Outcome::Finished });
        }
        debug_assert!(self.state.next_job() > JobId(0), "jobs were submitted before");
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
            memory: Bytes::gib(512),
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

/// Gangs of 1 to 16, half with a second choice, all four priorities.
fn job(draw: &mut Draw, classes: &[Name]) -> JobSpec {
    let count = *draw.pick(&[1, 1, 1, 2, 4, 8, 8, 16]);
    let first = draw.pick(classes);
    let second = draw.pick(classes);
    let mut alternatives = vec![alternative(first, count)];
    if draw.chance(50) && second != first {
        alternatives.push(alternative(second, count * 2));
    }
    let stage = StageSpec {
        name: "train".into(),
        kind: StageKind::Train,
        after: Vec::new(),
        follows: Vec::new(),
        alternatives,
        companions: Companions { cores: 2, memory: Bytes::gib(8) },
        within: if draw.chance(80) { Domain::Any } else { Domain::Rack },
        ranks: RankRule::PerNode,
        retries: 0,
        profile: format!("p{}", draw.between(0, 9)).into(),
        steps: Some(draw.between(100, 10_000)),
        planned: PlannedSpeeds::default(),
    };
    JobSpec {
        name: "bench".into(),
        tenant: "team".into(),
        priority: *draw.pick(&Priority::ALL),
        stages: vec![stage],
        time_limit: None,
        workdir: String::new(),
        key: None,
    }
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
        },
        count,
        launch: Arc::new(Launch { checkpoint: Some(checkpoint), ..Launch::default() }),
    }
}
