//! `het bench node`: what the local tier costs, beside what the system itself costs, in one run.
//! `het bench fidelity`: how far a simulation is from the same jobs on real processes.
//! `het bench kubernetes`: what a cluster's pods cost, beside kube-scheduler.
//!
//! Knows: how launches, hops, notices, a server's answers and whole runs are timed.
//! Must never know: how any of them is done.

mod fidelity;
mod hop;
mod http;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod launch;
mod rank;
mod server;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use het_core::{Bytes, Device, DeviceClass, DeviceId, HostResources, NodeId, Share, Topology};
pub use het_node::launcher_main;
use het_node::{
    Config, ControlGroups, Heartbeat, Node, NodeError, NodeSettings, RunMode, wall_time,
};
use het_server::StoreError;
use serde::Serialize;
use thiserror::Error;

pub use fidelity::{Fidelity, FidelityOptions, TRAINER_COMMAND, bench_fidelity, trainer_main};
#[cfg(feature = "kubernetes")]
pub use kubernetes::{KubernetesBench, KubernetesFigures, bench_kubernetes};
pub use rank::{RANK_COMMAND, rank_main};

/// Units of the one CPU socket that the launches share; nothing is pinned.
const UNITS: u32 = 64;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Size {
    /// Launches of each block, and blocks of each kind in turn.
    pub launches: usize,
    pub blocks: usize,
    /// Processes at a time.
    pub parallel: usize,
    pub hops: usize,
    pub notices: usize,
    pub gaps: usize,
    /// Jobs that wait while reads are timed, and jobs that end before memory is looked at.
    pub jobs_waiting: usize,
    pub jobs_ended: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            launches: 1_000,
            blocks: 5,
            parallel: 8,
            hops: 2_000,
            notices: 40,
            gaps: 200,
            jobs_waiting: 10_000,
            jobs_ended: 100_000,
        }
    }
}

/// What was measured. Medians over blocks, percentiles over all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeFigures {
    /// Processor time for each `true` that is launched, of the agent, its launcher and the shim,
    /// without the program's own: without a log file a rank, and with.
    pub launch_cpu_us: f64,
    pub launch_cpu_us_full: f64,
    pub launch_rate_per_s: f64,
    /// Of a loop around `posix_spawn` and `waitpid`, with as many threads.
    pub spawn_rate_per_s: f64,
    pub spawn_cpu_us: f64,
    /// From the end of a stage to the start of the one that waits for it, decided and logged, on
    /// an engine that starts nothing.
    pub hop_p50_ms: f64,
    pub hop_p99_ms: f64,
    /// The same without the log's sync.
    pub hop_in_memory_p50_ms: f64,
    pub durable_submits_per_s: f64,
    /// Any read with that many jobs waiting.
    pub read_p99_ms_10k_jobs: f64,
    /// Resident memory of the server after that many ended jobs.
    pub rss_mib_100k_jobs: f64,
    /// From a stop to the signal in every rank of a gang of eight.
    pub notice_p99_ms: f64,
    /// From the end of a program on a device to the start of the next one on it.
    pub idle_gap_p50_ms: f64,
    pub idle_gap_p99_ms: f64,
    pub recovery_s_10k_jobs: f64,
}

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the server that is measured said {what}")]
    Server { what: String },
    #[error("a measurement came to nothing: {what}")]
    Nothing { what: String },
}

/// Measures everything in two directories that are empty now; live leases have their files in
/// `run_dir`. `program` is this program, which knows [`RANK_COMMAND`] and `server`; `say` is told
/// what is being done.
///
/// # Errors
/// When something cannot be set up or does not answer.
pub fn bench_node(
    dir: &Path,
    run_dir: &Path,
    program: &Path,
    size: &Size,
    mut say: impl FnMut(&str),
) -> Result<NodeFigures, BenchError> {
    say("launching `true`, and spawning it in a loop");
    let launched = launch::launches(&dir.join("launch"), run_dir, size)?;
    say("hopping from stage to stage");
    let hops = hop::hops(&dir.join("hop"), size.hops)?;
    say("giving notice to gangs");
    let notice_p99_ms = launch::notices(&dir.join("notice"), run_dir, program, size.notices)?;
    say("submitting to a server, and reading from it");
    let server = server::bench_server(&dir.join("home"), program, size, &mut say)?;
    Ok(NodeFigures {
        launch_cpu_us: launched.cpu_us,
        launch_cpu_us_full: launched.cpu_us_full,
        launch_rate_per_s: launched.rate,
        spawn_rate_per_s: launched.spawn_rate,
        spawn_cpu_us: launched.spawn_cpu_us,
        hop_p50_ms: percentile(&hops.durable_ms, 0.5),
        hop_p99_ms: percentile(&hops.durable_ms, 0.99),
        hop_in_memory_p50_ms: percentile(&hops.in_memory_ms, 0.5),
        durable_submits_per_s: server.submits_per_s,
        read_p99_ms_10k_jobs: percentile(&server.reads_ms, 0.99),
        rss_mib_100k_jobs: server.rss_mib,
        notice_p99_ms,
        idle_gap_p50_ms: percentile(&server.gaps_ms, 0.5),
        idle_gap_p99_ms: percentile(&server.gaps_ms, 0.99),
        recovery_s_10k_jobs: server.recovery_s,
    })
}

/// The value below which a part of all values lies; nearest rank.
fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// One node with one socket.
fn topology() -> Topology {
    Topology {
        classes: vec![DeviceClass {
            id: "cpu".into(),
            kind: "cpu".into(),
            vendor: "".into(),
            title: "".into(),
            peak_gflops: None,
            software: false,
        }],
        nodes: vec![het_core::Node {
            name: "here".into(),
            host: HostResources::with_memory(Bytes::gib(1_024)),
            rack: "".into(),
            pod: "".into(),
        }],
        devices: vec![Device {
            node: NodeId(0),
            name: "cpu0".into(),
            class: 0,
            drivers: vec!["cpu".into()],
            capacity: Share::units(UNITS),
            memory: Bytes::ZERO,
            visible_id: "0".into(),
        }],
        links: Vec::new(),
    }
}

const SOCKET: DeviceId = DeviceId(0);

fn node(run_dir: &Path, control_groups: ControlGroups) -> Result<Node, NodeError> {
    Node::new(Config {
        found: Arc::new(topology()),
        cores: Default::default(),
        visible_env: het_devices::visible_devices,
        container_access: het_devices::container_access,
        device_nodes: Default::default(),
        run_dir: run_dir.to_owned(),
        begins_at: wall_time(),
        control_groups,
        settings: NodeSettings::default(),
        mode: RunMode::Embedded,
        device_holds: None,
        heartbeat: Heartbeat::default(),
        quarantined: BTreeSet::new(),
    })
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> BenchError + '_ {
    |source| BenchError::Io { path: path.to_owned(), source }
}
