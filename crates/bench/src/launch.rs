//! Launching processes through the node engine, and in a plain loop.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use het_core::{
    Action, Bytes, CheckpointSpec, Event, Generation, Grant, JobId, Launch, LeaseId, LogRule,
    Millis, NodeId, Placement, Plan, Rank, Share, StageIndex, StageKey, StopCause,
};
use het_engine::Engine;
use het_node::{ControlGroups, Node};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::rank::{RANK_COMMAND, now_ns};
use crate::{BenchError, SOCKET, Size, io_at, node, percentile};

/// Ranks of a gang that is given notice.
const GANG: usize = 8;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Launched {
    pub(crate) cpu_us: f64,
    pub(crate) cpu_us_full: f64,
    pub(crate) rate: f64,
    pub(crate) spawn_rate: f64,
    pub(crate) spawn_cpu_us: f64,
}

/// One block of launches.
#[derive(Debug, Clone, Copy)]
struct Block {
    cpu_us: f64,
    rate: f64,
}

/// Blocks of all kinds in turn, so that a busy machine is busy for all.
pub(crate) fn launches(dir: &Path, run_dir: &Path, size: &Size) -> Result<Launched, BenchError> {
    let (mut plain, mut full, mut spawned) = (Vec::new(), Vec::new(), Vec::new());
    let launcher = |name: &str, control_groups| {
        let node = node(&run_dir.join(name), control_groups)?;
        Ok::<_, BenchError>(Launcher { node, next: 1, generation: 0 })
    };
    let mut bare = launcher("bare", ControlGroups::Off)?;
    let mut grouped = launcher("grouped", ControlGroups::Auto)?;
    for _ in 0..size.blocks {
        spawned.push(timed(size.launches, || spawn_loop(size)));
        plain.push(timed(size.launches, || bare.block(dir, size, Logs::None)));
        full.push(timed(size.launches, || grouped.block(dir, size, Logs::EachRank)));
    }
    let median = |blocks: &[Block], of: fn(&Block) -> f64| {
        percentile(&blocks.iter().map(of).collect::<Vec<_>>(), 0.5)
    };
    Ok(Launched {
        cpu_us: median(&plain, |block| block.cpu_us),
        cpu_us_full: median(&full, |block| block.cpu_us),
        rate: median(&plain, |block| block.rate),
        spawn_rate: median(&spawned, |block| block.rate),
        spawn_cpu_us: median(&spawned, |block| block.cpu_us),
    })
}

fn timed(count: usize, run: impl FnOnce()) -> Block {
    let (began, cpu) = (Instant::now(), own_cpu_us());
    run();
    let cpu_us = (own_cpu_us() - cpu) / count as f64;
    Block { cpu_us, rate: count as f64 / began.elapsed().as_secs_f64() }
}

/// Processor time of this process, without its children.
fn own_cpu_us() -> f64 {
    let Ok(used) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    (used.user_time().num_microseconds() + used.system_time().num_microseconds()) as f64
}

fn spawn_loop(size: &Size) {
    thread::scope(|scope| {
        for thread in 0..size.parallel {
            scope.spawn(move || {
                // As even as it goes, and all of them together.
                for _ in 0..(size.launches + thread) / size.parallel {
                    // What cannot be spawned is seen in the rate.
                    let _ = Command::new("/bin/true").status();
                }
            });
        }
    });
}

/// What becomes of what a rank writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logs {
    None,
    EachRank,
}

/// A node that is told what to start.
struct Launcher {
    node: Node,
    next: u64,
    generation: u64,
}

impl Launcher {
    fn submit(&mut self, actions: Vec<Action>) {
        self.generation += 1;
        let generation = Generation(self.generation);
        self.node.submit(&Plan { generation, actions, waits: Vec::new() });
    }

    fn start(&mut self, launch: Launch, ranks: usize) -> LeaseId {
        let lease = LeaseId(self.next);
        self.next += 1;
        let rank = Rank {
            node: NodeId(0),
            grants: vec![Grant { device: SOCKET, share: Share::units(1) }],
            companions: Vec::new(),
            memory: Bytes::ZERO,
        };
        self.submit(vec![Action::Start {
            lease,
            stage: StageKey { job: JobId(lease.0), stage: StageIndex(0) },
            attempt: 1,
            placement: Arc::new(Placement { alternative: 0, ranks: vec![rank; ranks] }),
            launch: Arc::new(launch),
            resume: None,
            reasons: Vec::new(),
        }]);
        lease
    }

    /// Waits for the next event of this kind.
    fn await_event(&mut self, wanted: impl Fn(&Event) -> bool) {
        while let Some((_, event)) = self.node.next_event(None) {
            if wanted(&event) {
                return;
            }
        }
    }

    fn block(&mut self, dir: &Path, size: &Size, logs: Logs) {
        let mut left = size.launches;
        for _ in 0..size.parallel.min(left) {
            left -= 1;
            self.start_true(dir, logs);
        }
        for _ in 0..size.launches {
            self.await_event(|event| matches!(event, Event::StageEnded { .. }));
            self.node.committed();
            if left > 0 {
                left -= 1;
                self.start_true(dir, logs);
            }
        }
        // What has ended is collected now: the other engine of this process would take it for what
        // its own programs left.
        let now = self.node.now();
        let _ = self.node.next_event(Some(now));
    }

    fn start_true(&mut self, dir: &Path, logs: Logs) {
        // Its directories are there already, as a submission leaves them.
        let launch = launch(dir, vec!["/bin/true".to_owned()]);
        let log = match logs {
            Logs::None => LogRule::Discard,
            Logs::EachRank => LogRule::EachRank,
        };
        self.start(Launch { log, ..launch }, 1);
    }
}

fn launch(workdir: &Path, argv: Vec<String>) -> Launch {
    Launch {
        job: "bench".into(),
        stage: "main".into(),
        cwd: "/".to_owned(),
        workdir: workdir.to_string_lossy().into_owned(),
        argv,
        ..Launch::default()
    }
}

/// Milliseconds from a stop to the signal in the last rank of a gang, 99th percentile.
pub(crate) fn notices(
    dir: &Path,
    run_dir: &Path,
    program: &Path,
    count: usize,
) -> Result<f64, BenchError> {
    let node = node(run_dir, ControlGroups::Auto)?;
    let mut engine = Launcher { node, next: 1, generation: 0 };
    let mut latest_ms = Vec::new();
    for number in 0..count {
        let workdir = dir.join(number.to_string());
        fs::create_dir_all(&workdir).map_err(io_at(&workdir))?;
        let path = program.to_string_lossy().into_owned();
        let note = workdir.join("rank-{rank}").to_string_lossy().into_owned();
        let argv = vec![path, RANK_COMMAND.to_owned(), note, "wait".to_owned()];
        let checkpoint = CheckpointSpec {
            dir: workdir.join("ckpt").to_string_lossy().into_owned(),
            every: None,
            notice: "SIGTERM".into(),
            grace: Millis::seconds(30),
        };
        let launch = Launch { checkpoint: Some(checkpoint), ..launch(&workdir, argv) };
        let lease = engine.start(launch, GANG);
        engine.await_event(|event| matches!(event, Event::StageStarted { .. }));
        let stamps = |rank: usize| -> Vec<u64> {
            let text = fs::read_to_string(workdir.join(format!("rank-{rank}")));
            text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
        };
        while (0..GANG).any(|rank| stamps(rank).is_empty()) {
            thread::yield_now();
        }
        let told_at = now_ns();
        let (cause, grace, cost) = (StopCause::User, Millis::seconds(30), None);
        engine.submit(vec![Action::Stop { lease, cause, grace, cost }]);
        engine.await_event(|event| matches!(event, Event::StageEnded { .. }));
        engine.node.committed();
        let heard = (0..GANG).filter_map(|rank| stamps(rank).get(1).copied());
        let latest = heard
            .max()
            .filter(|&at| at > told_at)
            .ok_or_else(|| BenchError::Nothing { what: "no rank heard its notice".to_owned() })?;
        latest_ms.push((latest - told_at) as f64 / 1e6);
    }
    Ok(percentile(&latest_ms, 0.99))
}
