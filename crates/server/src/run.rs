//! One job under a service of its own: submitted or continued, run to its end or until its user
//! holds it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use het_agent::Agents;
use het_control::{Past, Retention};
use het_core::{Event, JobEnd, JobId, JobSpec, State, Time, Topology};
use het_host::{Home, HomeError, JobDir, Machine, MachineLock, missed_facts, newest_checkpoint};
use het_node::{Heartbeat, Node, NodeError, NodeSettings, RunMode, wall_time};
use het_service::report::report;
use het_service::{
    Carried, Handle, Observer, Replica, Scheduling, Service, ServiceError, Setup, carried,
};
use het_wire::report::RunReport;
use thiserror::Error;

use crate::assembly::{Assembled, Parts, StartError, assemble};
use crate::store::{EventStore, Recovered, StoreError};

/// Why a run cannot begin or go on.
#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("job {id} has succeeded, nothing is left to resume")]
    AlreadySucceeded { id: u64 },
    #[error("job {id} was never completely submitted")]
    NeverSubmitted { id: u64 },
}

/// A job with the store that it will run from.
#[derive(Debug)]
pub struct PreparedRun {
    job: JobId,
    dir: JobDir,
    store: EventStore,
    past: Past,
    /// What the first turn has to know.
    facts: Vec<Event>,
    resumes: Option<u64>,
}

impl PreparedRun {
    /// A new job. Nothing of it runs before it is durable.
    ///
    /// # Errors
    /// When its store cannot be made.
    pub fn submit(dir: JobDir, spec: JobSpec) -> Result<Self, RunError> {
        Self::new_job(dir, Arc::new(spec), Carried::default())
    }

    fn new_job(
        dir: JobDir,
        spec: Arc<JobSpec>,
        Carried { succeeded, checkpoints }: Carried,
    ) -> Result<Self, RunError> {
        let topology = Topology::default();
        let store = EventStore::create(&dir.store(), &topology)?;
        let job = JobId(dir.id);
        let past = Past::new(Arc::new(topology));
        let facts = vec![Event::JobSubmitted { job, spec, succeeded, checkpoints }];
        Ok(Self { job, dir, store, past, facts, resumes: None })
    }

    /// Continues the job of `dir`. A job that was held or whose supervisor died goes on as it is;
    /// one that ended is continued by a new job in the directory that `new_dir` makes, which keeps
    /// what succeeded and starts the rest from their newest complete checkpoints.
    ///
    /// # Errors
    /// When there is nothing to continue, or files cannot be used.
    pub fn resume(
        dir: JobDir,
        new_dir: impl FnOnce() -> Result<JobDir, HomeError>,
    ) -> Result<Self, RunError> {
        let mut store = EventStore::open(&dir.store())?;
        let Recovered { past, .. } = store.recover()?;
        let id = JobId(dir.id);
        let job = past.state.job(id).ok_or(RunError::NeverSubmitted { id: id.0 })?;
        Node::reap(&dir.run)?;
        match job.end {
            Some((_, JobEnd::Succeeded)) => Err(RunError::AlreadySucceeded { id: id.0 }),
            Some(_) => {
                let carried = carried(job, newest_checkpoint);
                let new = Self::new_job(new_dir()?, Arc::clone(&job.spec), carried)?;
                Ok(Self { resumes: Some(id.0), ..new })
            }
            None => {
                let facts = missed_facts(&past.state, id);
                Ok(Self { job: id, dir, store, past, facts, resumes: None })
            }
        }
    }

    /// Begins to run. `observe` sees every batch of facts with the state and the report after it.
    ///
    /// # Errors
    /// When the engine cannot be set up.
    pub fn start(
        self,
        machine: &Machine,
        scheduling: Scheduling,
        home: &Home,
        lock: MachineLock,
        observe: impl FnMut(&State, &[(Time, Event)], &RunReport) + Send + 'static,
    ) -> Result<Run, RunError> {
        let Self { job, dir, store, past, facts, resumes } = self;
        let Assembled { control, observer: repairs, .. } = assemble(Parts {
            machine,
            scheduling,
            home: home.clone(),
            run_dir: dir.run.clone(),
            store,
            reserve: None,
            retention: Retention::All,
            // Somebody looks on.
            heartbeat: Heartbeat::default(),
            quarantined: BTreeSet::new(),
            // The observer writes its report; two writers would take each other's drafts away.
            avoided: BTreeSet::from([job]),
            settings: NodeSettings::default(),
            mode: RunMode::Embedded,
            begins_at: past.state.now().max(wall_time()),
            past,
            facts,
        })?;
        let (observer, end) = observer(job, dir, resumes, observe);
        let setup = Setup { observers: vec![repairs, observer], ..Setup::default() };
        let service = Service::start(control, setup)?;
        Ok(Run { job, service, end, _lock: lock })
    }
}

/// A job that runs under a service of its own.
#[derive(Debug)]
pub struct Run {
    job: JobId,
    service: Service<Agents>,
    /// How it went, or why its report cannot be written; nothing where the service ended before.
    end: Receiver<Result<RunReport, RunError>>,
    /// Held until the run is over.
    _lock: MachineLock,
}

impl Run {
    pub fn job(&self) -> JobId {
        self.job
    }

    /// To hold or cancel the job from another thread.
    pub fn handle(&self) -> &Handle {
        &self.service.handle
    }

    /// Waits until the job has ended, or stands still because its user holds it.
    ///
    /// # Errors
    /// When the log or the report cannot be written; running processes are stopped then.
    pub fn wait(self) -> Result<RunReport, RunError> {
        let end = self.end.recv();
        self.service.handle.stop_soon();
        let (node, ended) = self.service.join();
        drop(node);
        ended?;
        end.expect("a service that ends without an error does so because the job has ended")
    }
}

/// Writes the report after every batch, and sends the last one.
fn observer(
    job: JobId,
    dir: JobDir,
    resumes: Option<u64>,
    mut observe: impl FnMut(&State, &[(Time, Event)], &RunReport) + Send + 'static,
) -> (Observer, Receiver<Result<RunReport, RunError>>) {
    let (sender, end) = channel();
    let observer = move |replica: &Replica, events: &[(Time, Event)]| {
        let state = replica.state();
        let Some(report) = report(state, job, replica.policy().name(), replica.now()) else {
            return;
        };
        let report = RunReport { resumes, ..report };
        let text = serde_json::to_string_pretty(&report).unwrap_or_default();
        if let Err(source) = dir.write_report(&text) {
            // Only the first end counts; whoever waits may have it already.
            let _ = sender.send(Err(RunError::Io { path: dir.report(), source }));
            return;
        }
        observe(state, events, &report);
        let job = &state.jobs()[&job];
        if job.end.is_some() || (job.held && state.leases().is_empty()) {
            let _ = sender.send(Ok(report));
        }
    };
    (Box::new(observer), end)
}
