//! Launching processes through the node engine, and in a plain loop.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use het_core::{
    Action, CheckpointSpec, Event, Generation, Grant, HostResources, JobId, Launch, LeaseId,
    LogRule, Millis, NodeId, Placement, Plan, Rank, Share, StageIndex, StageKey, StopCause,
};
use het_engine::Engine;
use het_node::{ControlGroups, Node};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::sys::wait::waitpid;

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

/// One block of launches. Processor time for each, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Of this process.
    own_us: f64,
    /// Of all its descendants: the programs, and the launcher and shims that start them.
    others_us: f64,
    rate: f64,
}

/// Blocks of all kinds in turn, so that a busy machine is busy for all.
pub(crate) fn launches(dir: &Path, run_dir: &Path, size: &Size) -> Result<Launched, BenchError> {
    let (mut plain, mut full, mut spawned) = (Vec::new(), Vec::new(), Vec::new());
    // An engine for each block: the processor time of its launcher and shims is known at its end.
    let launched = |name: &str, control_groups, logs, count| {
        let node = node(&run_dir.join(name), control_groups)?;
        Launcher { node, next: 1, generation: 0 }.block(dir, count, size.parallel, logs);
        // Shims that ended after their launcher came to this process.
        while waitpid(None, None).is_ok() {}
        Ok::<_, BenchError>(())
    };
    let mut idle = Vec::new();
    for _ in 0..size.blocks {
        let spawn = || {
            spawn_loop(size);
            Ok(())
        };
        spawned.push(timed(size.launches, spawn)?);
        let engine = |count| launched("bare", ControlGroups::Off, Logs::None, count);
        idle.push(timed(size.launches, || engine(0))?);
        plain.push(timed(size.launches, || engine(size.launches))?);
        let engine = |count| launched("grouped", ControlGroups::Auto, Logs::EachRank, count);
        full.push(timed(size.launches, || engine(size.launches))?);
    }
    let median = |blocks: &[Block], of: &dyn Fn(&Block) -> f64| {
        percentile(&blocks.iter().map(of).collect::<Vec<_>>(), 0.5)
    };
    let total_us = |block: &Block| block.own_us + block.others_us;
    // What is no launch: the programs, and the start and end of an engine.
    let others_us = median(&spawned, &|block| block.others_us) + median(&idle, &total_us);
    let launch_us = |block: &Block| total_us(block) - others_us;
    Ok(Launched {
        cpu_us: median(&plain, &launch_us),
        cpu_us_full: median(&full, &launch_us),
        rate: median(&plain, &|block| block.rate),
        spawn_rate: median(&spawned, &|block| block.rate),
        spawn_cpu_us: median(&spawned, &|block| block.own_us),
    })
}

fn timed(count: usize, run: impl FnOnce() -> Result<(), BenchError>) -> Result<Block, BenchError> {
    let cpu = || [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].map(cpu_us);
    let (began, [own, others]) = (Instant::now(), cpu());
    run()?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    let [own_after, others_after] = cpu();
    let each = |from: f64, to: f64| (to - from) / count as f64;
    Ok(Block { own_us: each(own, own_after), others_us: each(others, others_after), rate })
}

fn cpu_us(who: UsageWho) -> f64 {
    let Ok(used) = getrusage(who) else { return 0.0 };
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
            host: HostResources::NONE,
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

    fn block(&mut self, dir: &Path, count: usize, parallel: usize, logs: Logs) {
        let mut left = count;
        for _ in 0..parallel.min(left) {
            left -= 1;
            self.start_true(dir, logs);
        }
        for _ in 0..count {
            self.await_event(|event| matches!(event, Event::StageEnded { .. }));
            self.node.committed();
            if left > 0 {
                left -= 1;
                self.start_true(dir, logs);
            }
        }
        // What has ended is collected now.
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
