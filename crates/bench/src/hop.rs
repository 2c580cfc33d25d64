//! From the end of a stage to the start of the one that waits for it, on an engine that starts
//! nothing: what deciding and logging cost.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use het_control::{Controller, Log, MemoryLog, Retention};
use het_core::{
    Action, Alternative, Bytes, Companions, Domain, Drivers, Event, Isolation, JobId, JobSpec,
    Launch, Match, PlannedSpeeds, Preemptible, Priority, RankRule, Selector, StageIndex, StageKind,
    StageSpec, StartConditions, State,
};
use het_engine::Fake;
use het_perf::Rates;
use het_policy::by_name;

use crate::{BenchError, io_at, topology};
use het_server::EventStore;

/// Stages of one job, each after the one before it.
const CHAIN: u16 = 50;

pub(crate) struct Hops {
    pub(crate) durable_ms: Vec<f64>,
    pub(crate) in_memory_ms: Vec<f64>,
}

pub(crate) fn hops(dir: &Path, count: usize) -> Result<Hops, BenchError> {
    fs::create_dir_all(dir).map_err(io_at(dir))?;
    let store = EventStore::create(&dir.join("events.redb"), &topology())?;
    Ok(Hops { durable_ms: chain(store, count)?, in_memory_ms: chain(MemoryLog::default(), count)? })
}

fn chain<L: Log>(log: L, count: usize) -> Result<Vec<f64>, BenchError> {
    let policy = by_name("adaptive").expect("the table has it");
    let state = State::new(Arc::new(topology()));
    let mut control = Controller::new(state, Rates::default(), policy, Fake::default(), log)
        .with_retention(Retention::Newest(10));
    let mut hops = Vec::new();
    let mut job = 0;
    let mut since: Option<Instant> = None;
    while hops.len() < count {
        if control.state().jobs().values().all(|job| job.end.is_some()) {
            job += 1;
            control.accept(Event::JobSubmitted {
                job: JobId(job),
                spec: Arc::new(spec()),
                succeeded: Vec::new(),
                checkpoints: Vec::new(),
            });
            // The first stage of a job waits for nobody.
            since = None;
        }
        let turn =
            control.turn(None).map_err(|error| BenchError::Nothing { what: error.to_string() })?;
        let starts = turn.events.iter().any(|(_, event)| match event {
            Event::PlanCommitted { plan } => {
                plan.actions.iter().any(|action| matches!(action, Action::Start { .. }))
            }
            _ => false,
        });
        if starts {
            hops.extend(since.map(|since| since.elapsed().as_secs_f64() * 1e3));
            since = Some(Instant::now());
        }
    }
    Ok(hops)
}

fn spec() -> JobSpec {
    JobSpec {
        name: "chain".into(),
        tenant: "bench".into(),
        priority: Priority::Normal,
        stages: (0..CHAIN).map(stage).collect(),
        time_limit: None,
        workdir: "/tmp".to_owned(),
        commit: None,
        start: StartConditions::default(),
        key: None,
    }
}

fn stage(index: u16) -> StageSpec {
    let selector = Selector {
        word: "cpu".into(),
        matches: Match::Kind("cpu".into()),
        memory_min: Bytes::ZERO,
        isolation: Isolation::Process,
        drivers: Drivers::Unknown,
    };
    StageSpec {
        name: format!("s{index}").as_str().into(),
        kind: StageKind::Custom,
        after: index.checked_sub(1).map(StageIndex).into_iter().collect(),
        follows: Vec::new(),
        alternatives: vec![Alternative { selector, count: 1, launch: Arc::new(Launch::default()) }],
        companions: Companions::default(),
        within: Domain::Any,
        ranks: RankRule::PerNode,
        retries: 0,
        restarts: StageSpec::RESTARTS_DEFAULT,
        profile: "bench".into(),
        steps: None,
        preemptible: Preemptible::default(),
        planned: PlannedSpeeds::default(),
    }
}
