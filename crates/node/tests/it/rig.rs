//! A real engine in a temporary directory, and `/bin/sh` programs for it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use het_core::{
    Action, Bytes, Checkpoint, CheckpointSpec, Device, DeviceClass, DeviceId, Event, Failure,
    Generation, Grant, HostResources, JobId, Launch, LeaseId, Millis, Name, NodeId, Outcome, Phase,
    Placement, Plan, Progress, Rank, Share, StageIndex, StageKey, StopCause, Time, Topology,
};
use het_engine::Engine;
use het_node::{Config, ControlGroups, Heartbeat, LiveLease, Node, NodeSettings, wall_time};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

pub const LEASE: LeaseId = LeaseId(1);
pub const CPU: DeviceId = DeviceId(0);
pub const GPU: DeviceId = DeviceId(1);
/// Longest wait for anything: far more than a test needs on a busy machine.
pub const PATIENCE: Millis = Millis(20_000);
const CPU_UNITS: u32 = 8;

pub struct Rig {
    pub node: Node,
    pub dir: tempfile::TempDir,
    generation: u64,
}

/// Everything that was reported, until the end.
#[derive(Debug)]
pub struct Story {
    pub outcome: Outcome,
    pub progress: Progress,
    pub reports: usize,
    pub checkpoints: Vec<Checkpoint>,
    pub started: usize,
}

impl Story {
    #[track_caller]
    pub fn failure(&self) -> &Failure {
        match &self.outcome {
            Outcome::Failed(failure) => failure,
            other => panic!("expected a failure, got {other:?}"),
        }
    }
}

fn class(id: &str, kind: &str) -> DeviceClass {
    DeviceClass {
        id: id.into(),
        kind: kind.into(),
        vendor: "acme".into(),
        title: id.into(),
        peak_gflops: None,
        software: false,
    }
}

fn device(class: usize, name: &str, drivers: &[&str], units: u32) -> Device {
    Device {
        node: NodeId(0),
        name: name.into(),
        class,
        drivers: drivers.iter().map(|&driver| driver.into()).collect(),
        capacity: Share::units(units),
        memory: Bytes::ZERO,
        visible_id: name.trim_start_matches(char::is_alphabetic).into(),
    }
}

fn visible(driver: &str, ids: &[&str]) -> Vec<(Cow<'static, str>, String)> {
    match driver {
        "cuda" => vec![
            ("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".to_owned()),
            ("CUDA_VISIBLE_DEVICES".into(), ids.join(",")),
        ],
        "cpu" => {
            let hidden = ["ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
            hidden.map(|name| (name.into(), String::new())).to_vec()
        }
        "cann" => vec![("ASCEND_RT_VISIBLE_DEVICES".into(), ids.join(","))],
        _ => Vec::new(),
    }
}

/// Cores that this process may use.
pub fn allowed_cores() -> Vec<u32> {
    let set = sched_getaffinity(Pid::from_raw(0)).expect("affinity can be read");
    (0..CpuSet::count() as u32).filter(|&core| set.is_set(core as usize) == Ok(true)).collect()
}

/// One node: a socket, two GPUs, an NPU.
pub fn config(cores: BTreeMap<DeviceId, Vec<u32>>, run_dir: &Path) -> Config {
    let topology = Topology {
        classes: vec![class("epyc", "cpu"), class("h100", "gpu"), class("910b", "npu")],
        nodes: vec![het_core::Node {
            name: "here".into(),
            host: HostResources::with_memory(Bytes::gib(64)),
            rack: "r".into(),
            pod: "p".into(),
        }],
        devices: vec![
            device(0, "cpu0", &["cpu"], CPU_UNITS),
            device(1, "cuda0", &["cuda", "vulkan"], 1),
            device(1, "cuda1", &["cuda", "vulkan"], 1),
            device(2, "npu0", &["cann"], 1),
        ],
        links: Vec::new(),
    };
    Config {
        found: Arc::new(topology),
        cores,
        visible_env: visible,
        container_access: |_, _, _| Ok(Vec::new()),
        device_nodes: BTreeMap::new(),
        run_dir: run_dir.to_owned(),
        begins_at: wall_time(),
        control_groups: ControlGroups::Auto,
        settings: NodeSettings::default(),
        mode: het_node::RunMode::Embedded,
        device_holds: None,
        heartbeat: Heartbeat::default(),
        quarantined: BTreeSet::new(),
    }
}

pub fn launch(workdir: &Path, script: &str) -> Launch {
    let path = |path: PathBuf| path.to_string_lossy().into_owned();
    Launch {
        job: "demo".into(),
        stage: "train".into(),
        cwd: path(workdir.to_owned()),
        workdir: path(workdir.to_owned()),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        checkpoint: Some(CheckpointSpec {
            dir: path(workdir.join("ckpt")),
            every: None,
            notice: "SIGTERM".into(),
            grace: Millis(10_000),
        }),
        ..Launch::default()
    }
}

pub fn grant(device: DeviceId, units: u32) -> Grant {
    Grant { device, share: Share::units(units) }
}

pub fn rank(grants: &[Grant], companions: &[Grant]) -> Rank {
    let (grants, companions) = (grants.to_vec(), companions.to_vec());
    Rank { node: NodeId(0), grants, companions, host: HostResources::NONE }
}

impl Rig {
    pub fn new() -> Self {
        Self::with_cores(BTreeMap::new())
    }

    pub fn with_cores(cores: BTreeMap<DeviceId, Vec<u32>>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let run_dir = dir.path().join("run");
        Self::with(dir, config(cores, &run_dir))
    }

    pub fn with_run_dir(run_dir: &Path) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        Self::with(dir, config(BTreeMap::new(), run_dir))
    }

    pub fn with_device_nodes(device_nodes: BTreeMap<Name, Vec<PathBuf>>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let config = config(BTreeMap::new(), &dir.path().join("run"));
        Self::with(dir, Config { device_nodes, ..config })
    }

    fn with(dir: tempfile::TempDir, config: Config) -> Self {
        Self { node: Node::new(config).expect("the rig fits"), dir, generation: 0 }
    }

    pub fn launch(&self, script: &str) -> Launch {
        launch(self.dir.path(), script)
    }

    /// Starts `ranks` ranks of one core each.
    pub fn start(&mut self, script: &str, ranks: usize) {
        let launch = self.launch(script);
        self.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[]); ranks], None);
    }

    pub fn start_with(
        &mut self,
        lease: LeaseId,
        launch: Launch,
        ranks: Vec<Rank>,
        resume: Option<Checkpoint>,
    ) {
        self.submit(Action::Start {
            lease,
            stage: StageKey { job: JobId(1), stage: StageIndex(0) },
            attempt: 3,
            placement: Arc::new(Placement { alternative: 0, ranks }),
            launch: Arc::new(launch),
            resume,
            reasons: Vec::new(),
        });
    }

    pub fn stop(&mut self, grace: Millis) {
        let cause = StopCause::User;
        self.submit(Action::Stop { lease: LEASE, cause, grace, cost: None });
    }

    pub fn submit(&mut self, action: Action) {
        self.generation += 1;
        let generation = Generation(self.generation);
        self.node.submit(&Plan { generation, actions: vec![action], waits: Vec::new() });
    }

    #[track_caller]
    pub fn next(&mut self) -> (Time, Event) {
        let until = self.node.now() + PATIENCE;
        self.node.next_event(Some(until)).expect("something happens in time")
    }

    /// A lease that lives according to the log, of which no process is known to have begun.
    pub fn live_lease(&self, launch: Launch, ranks: Vec<Rank>) -> LiveLease {
        LiveLease {
            lease: LEASE,
            attempt: 3,
            phase: Phase::Starting,
            placement: Arc::new(Placement { alternative: 0, ranks }),
            launch: Arc::new(launch),
            resume: None,
        }
    }

    /// Waits until something is so of which nothing is reported, and nothing else is.
    #[track_caller]
    pub fn quiet_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let give_up = self.node.now() + PATIENCE;
        while !is_so(self) {
            assert!(self.node.now() < give_up, "{what}");
            let until = self.node.now() + Millis(10);
            let event = self.node.next_event(Some(until));
            assert_eq!(event, None, "nothing is reported until {what}");
        }
    }

    /// Waits until the program has written a file.
    #[track_caller]
    pub fn await_file(&mut self, name: &str) {
        self.quiet_until(name, |rig| rig.path(name).exists());
    }

    /// Waits until the program reports this step: where it is in its script.
    #[track_caller]
    pub fn await_step(&mut self, expected: u64) -> Progress {
        loop {
            match self.next().1 {
                Event::Progressed { progress, .. } if progress.step == Some(expected) => {
                    return progress;
                }
                Event::StageEnded { outcome, .. } => panic!("it ended before: {outcome:?}"),
                _ => {}
            }
        }
    }

    /// Reads everything up to the end of the lease.
    #[track_caller]
    pub fn story(&mut self) -> Story {
        let mut story = Story {
            outcome: Outcome::Lost,
            progress: Progress::default(),
            reports: 0,
            checkpoints: Vec::new(),
            started: 0,
        };
        loop {
            match self.next().1 {
                Event::StageStarted { .. } => story.started += 1,
                Event::Progressed { progress, .. } => {
                    story.reports += 1;
                    story.progress.merge(&progress);
                }
                Event::Checkpointed { checkpoint, .. } => story.checkpoints.push(checkpoint),
                Event::StageEnded { outcome, .. } => {
                    story.outcome = outcome;
                    self.node.committed();
                    return story;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    #[track_caller]
    pub fn run(&mut self, script: &str, ranks: usize) -> Story {
        self.start(script, ranks);
        self.story()
    }

    pub fn into_parts(self) -> (tempfile::TempDir, Node) {
        (self.dir, self.node)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        let text = fs::read_to_string(self.path(name));
        text.unwrap_or_else(|error| panic!("`{name}` is there: {error}"))
    }

    #[track_caller]
    pub fn log(&self, rank: u32) -> String {
        self.read(&format!("logs/train/attempt-3/rank-{rank}.log"))
    }
}

/// Whether a process runs; a zombie does not.
pub fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}
