//! The control loop's thread: what was requested since the last turn, the turn, and what is
//! published of it. All changes that came before a turn are acknowledged after it, by one sync of
//! the log.

mod outage;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use het_control::{ControlError, Controller, Past, Turn};
use het_core::JobId;
use het_engine::{Engine, Waker};
use het_wire::api::JobRow;
use thiserror::Error;
use tokio::sync::watch;

use crate::handle::{
    Acknowledge, Alive, Brought, Handle, Published, PublishedStorage, PublishedTopology, Request,
    Then,
};
use crate::redaction::{Redact, Viewer};
use crate::replica::{self, Batch, Observer, Publisher, Replica};
use crate::report::{report, row};
use crate::touched::Touched;
use crate::{Caller, JobTable, Role, Scheduling, Store};
use outage::Outage;

/// Requests that are run before a turn is taken.
const REQUESTS_MAX: usize = 1_024;

/// Why the service ended.
#[derive(Debug, Error)]
pub enum ServiceError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the service cannot have a thread")]
    Thread(#[source] std::io::Error),
}

/// What a service is given beside its controller.
#[derive(Default)]
pub struct Setup {
    /// The rows of ended jobs that have left the state.
    pub rows: Vec<JobRow>,
    /// Ended jobs whose rows stay.
    pub ended_max: usize,
    /// Job ids below this are taken.
    pub next_job: u64,
    /// See every committed batch.
    pub observers: Vec<Observer>,
}

/// A control loop on a thread of its own, and the way to it.
#[derive(Debug)]
pub struct Service<E> {
    pub handle: Handle,
    thread: JoinHandle<(E, Result<(), ServiceError>)>,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("next_job", &self.next_job).finish_non_exhaustive()
    }
}

impl<E: Engine + Send + 'static> Service<E> {
    /// Begins to decide. The controller has adopted what runs.
    ///
    /// # Errors
    /// When there can be no threads.
    pub fn start<S: Store>(
        mut control: Controller<E, S>,
        setup: Setup,
    ) -> Result<Self, ServiceError> {
        archive_ended(&mut control);
        let scheduling = Scheduling { policy: control.policy(), cadence: control.cadence() };
        let Past { state, rates } = control.past();
        let length = control.log().length();
        let jobs = Arc::new(JobTable::new(setup.rows, &state, length, setup.ended_max));
        let next_job = state.next_job().0.max(setup.next_job);
        let replica = Replica::new(Past { state, rates }, scheduling, length, control.now());
        let spawned = replica::spawn(replica, setup.observers);
        let (publisher, questions) = spawned.map_err(ServiceError::Thread)?;
        let waker = control.waker();
        let (topology, shown) = watch::channel(Arc::clone(control.state().topology()));
        let (storage, storage_shown) = watch::channel(None);
        let published = Published { topology: shown, storage: storage_shown };
        let (handle, requests, alive) =
            Handle::new(waker.clone(), questions, Arc::clone(&jobs), next_job, published);
        let touched = Touched::of(control.state());
        let mut control_loop = ControlLoop {
            control,
            requests,
            waker,
            jobs,
            publisher,
            topology,
            storage,
            touched,
            snapshot: None,
            outage: None,
            then: Then::GoOn,
            _alive: alive,
        };
        control_loop.look_at_store();
        let thread = thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(move || control_loop.run()).map_err(ServiceError::Thread)?;
        Ok(Self { handle, thread })
    }

    /// Waits for the loop's end; gives the engine, whose leases go on, and why the loop ended
    /// unless it was asked to.
    pub fn join(self) -> (E, Result<(), ServiceError>) {
        match self.thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// The service before may have died between the end of a job and its row or report.
fn archive_ended<E: Engine, S: Store>(control: &mut Controller<E, S>) {
    let state = control.state();
    let ended = state.jobs().iter().filter(|(_, job)| job.end.is_some());
    let rows: Vec<JobRow> = ended.map(|(&id, job)| row(state, id, job)).collect();
    for row in rows {
        let id = JobId(row.id);
        control.log_mut().keep_row(&row);
        if !control.log().is_archived(id) {
            archive(control, id);
        }
    }
}

fn archive<E: Engine, S: Store>(control: &mut Controller<E, S>, id: JobId) {
    let state = control.state();
    // Whoever may look at the job may read what is kept of it.
    let tenant_of = |id| state.job(id).map(|job| job.spec.tenant.to_string());
    let caller = Caller { role: Role::Viewer, tenant: tenant_of(id), user: None };
    let viewer = Viewer::new(&caller, &tenant_of);
    let report = report(state, id, control.policy().name(), state.now());
    if let Some(report) = report.and_then(|report| report.redacted(&viewer)) {
        control.log_mut().archive(&report);
    }
}

/// What the thread owns.
struct ControlLoop<E, S: Store> {
    control: Controller<E, S>,
    requests: Receiver<Request>,
    waker: Waker,
    jobs: Arc<JobTable>,
    publisher: Publisher,
    topology: PublishedTopology,
    storage: PublishedStorage,
    /// Whose lease it is, for events that name only the lease.
    touched: Touched,
    /// One that is being made.
    snapshot: Option<Receiver<S::Snapshot>>,
    outage: Option<Outage>,
    then: Then,
    _alive: Alive,
}

impl<E: Engine, S: Store> ControlLoop<E, S> {
    fn run(mut self) -> (E, Result<(), ServiceError>) {
        let mut ended = self.turn();
        while ended.is_ok() && self.then == Then::GoOn {
            ended = self.turn();
        }
        (self.control.into_engine(), ended)
    }

    fn turn(&mut self) -> Result<(), ServiceError> {
        if let Some(outage) = self.outage.take() {
            return self.wait_for_store(outage);
        }
        let acknowledgements = self.run_requests();
        let until = (!acknowledgements.is_empty()).then(|| self.control.now());
        let turn = match self.control.turn(until) {
            Err(ControlError::Log(error)) => {
                self.begin_outage(error)?;
                // Whoever wanted something changed finds out by the end of the channel.
                drop(acknowledgements);
                return Ok(());
            }
            turn => turn?,
        };
        self.publish(turn);
        acknowledgements.into_iter().for_each(|acknowledge| acknowledge());
        self.keep_snapshots();
        Ok(())
    }

    /// Runs what was requested since the last turn; its facts are part of the next.
    fn run_requests(&mut self) -> Vec<Acknowledge> {
        let mut acknowledgements = Vec::new();
        for _ in 0..REQUESTS_MAX {
            let Ok(request) = self.requests.try_recv() else { return acknowledgements };
            let pending = request(self.control.state());
            match pending.brought {
                Brought::Facts(events) => {
                    events.into_iter().for_each(|event| self.control.accept(event));
                }
                Brought::Changes(events) => {
                    events.into_iter().for_each(|event| self.control.request(event));
                }
            }
            if pending.then == Then::End {
                self.then = Then::End;
            }
            acknowledgements.push(pending.acknowledge);
        }
        // Some may be left: the next turn must not wait for another wake-up.
        self.waker.wake();
        acknowledgements
    }

    /// Brings table and replica up to date with what happened, and ended jobs to their archive.
    fn publish(&mut self, Turn { events, decisions, decided_in }: Turn) {
        let mut rows = Vec::new();
        for id in self.touched.by(&events) {
            let state = self.control.state();
            let Some(job) = state.job(id) else { continue };
            let (row, has_ended) = (Arc::new(row(state, id, job)), job.end.is_some());
            if has_ended && !self.jobs.has_ended(id) {
                archive(&mut self.control, id);
            }
            rows.push(row);
        }
        for row in rows.iter().filter(|row| row.ended_at.is_some()) {
            self.control.log_mut().keep_row(row);
        }
        let topology = self.control.state().topology();
        if !Arc::ptr_eq(&self.topology.borrow(), topology) {
            self.topology.send_replace(Arc::clone(topology));
        }
        let sequence = self.control.log().length();
        // Before the table: who sees a row there and then asks is answered by no older state.
        if !events.is_empty() {
            let now = self.control.now();
            let decided_in = (decisions > 0).then_some(decided_in);
            self.publisher.publish(Batch { events, decided_in, sequence, now });
        }
        let gone = self.jobs.put(rows, sequence);
        gone.into_iter().for_each(|id| self.control.log_mut().drop_row(id));
    }

    /// A snapshot costs the loop nothing: the replica copies its own state, a thread makes the
    /// snapshot of that, and the store writes it bit by bit with the batches to come.
    fn keep_snapshots(&mut self) {
        match self.snapshot.as_ref().map(Receiver::try_recv) {
            Some(Ok(snapshot)) => {
                self.control.log_mut().put_snapshot(snapshot);
                self.snapshot = None;
            }
            Some(Err(TryRecvError::Empty)) => {}
            Some(Err(TryRecvError::Disconnected)) => self.snapshot = None,
            None => self.snapshot = self.begin_snapshot(),
        }
    }

    fn begin_snapshot(&self) -> Option<Receiver<S::Snapshot>> {
        let make = self.control.log().due_snapshot()?;
        let (sender, made) = channel();
        self.publisher.look(move |past| {
            let past = past.clone();
            // The loop may have ended before it is made; without a thread it stays due.
            let make = move || drop(sender.send(make(past)));
            let _ = thread::Builder::new().name("snapshot".to_owned()).spawn(make);
        });
        Some(made)
    }
}
