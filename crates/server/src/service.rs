//! Many jobs under one control loop, on a thread of its own.
//!
//! ```text
//! API thread ──ask──▶ queue ──▶ loop: hear all · turn · publish · acknowledge
//!      ▲                                        │
//!      └──────────── board, changes ◀───────────┘
//! ```
//!
//! What others ask of the loop are functions that it runs between two turns ([`Desk`]). All that
//! asked for changes before a turn are acknowledged after it by one sync of the log.

mod board;
mod desk;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use het_control::{ControlError, Controller, Past, Retention};
use het_core::{DeviceId, Event, JobId, LeaseId, Plan, State, Time, Topology};
use het_node::{Config, ControlGroups, Inlet, Node, NodeError};
use thiserror::Error;

use crate::Scheduling;
use crate::inventory::Inventory;
use crate::lookout::{self, Repairs, Watch};
use crate::report::{report, row};
use crate::{Draft, EventStore, Home, HomeError, Keeping, Machine, Recovered, StoreError};
pub use board::{Board, Wanted, Which};
use desk::{Ack, Alive, Ask};
pub use desk::{Asked, Desk, NotHeard};

/// Ended jobs that stay in the state; of older ones the last line and the report are kept.
const ENDED_KEPT: usize = 1_000;

/// What is heard before a turn is taken.
const ASKS_MAX: usize = 1_024;

/// How often a store that is in use is tried again, and how long after.
const OPEN_TRIES: usize = 100;
const OPEN_PAUSE: Duration = Duration::from_millis(5);

/// Why the service cannot begin or go on.
#[derive(Debug, Error)]
pub enum ServiceError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the control loop cannot have a thread")]
    Thread(#[source] std::io::Error),
}

/// A control loop and the way to it.
#[derive(Debug)]
pub struct Service {
    pub desk: Desk,
    /// Every device that the store knows, also those that are gone.
    pub topology: Arc<Topology>,
    /// Devices that the store knows and the machine has no longer.
    pub gone: BTreeSet<DeviceId>,
    /// What changed about the machine since the service before, a sentence each.
    pub news: Vec<String>,
    /// Snapshots that were damaged; older ones and the events stood in for them.
    pub refused: Vec<StoreError>,
    thread: JoinHandle<Result<(), ServiceError>>,
}

/// The loop's own side.
struct Floor {
    control: Controller<Node, EventStore>,
    asks: Receiver<Ask>,
    bell: Inlet,
    board: Arc<Board>,
    home: Home,
    /// Whose lease it is, for events that name only the lease.
    leases: BTreeMap<LeaseId, JobId>,
    repairs: Repairs,
    /// Which devices are gone, where that is other than the store says.
    gone: Option<BTreeSet<DeviceId>>,
    /// A snapshot that is being made.
    drafted: Option<Receiver<Draft>>,
    leaving: Option<Leaving>,
    _alive: Alive,
}

/// What becomes of running jobs when the service ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// They go on and are taken up again by the next service.
    JobsGoOn,
}

impl Service {
    /// Opens or creates the store of `home`, takes up what ran, and begins to decide. Where there
    /// is a health check, every rank passes it before its program begins.
    ///
    /// The machine may have changed: new devices are taken in, those that are gone are out of
    /// service until a start that finds them.
    ///
    /// # Errors
    /// When the store or the engine cannot be used.
    pub fn start(
        machine: &Machine,
        scheduling: Scheduling,
        home: Home,
        health_check: Option<PathBuf>,
        keeping: Keeping,
    ) -> Result<Self, ServiceError> {
        let Scheduling { policy, cadence } = scheduling;
        let path = home.store();
        let store = match path.exists() {
            true => open_patiently(&path)?,
            false => EventStore::create(&path, &machine.topology)?,
        };
        let mut store = store.with_keeping(keeping);
        let (known, gone_before) = (store.reader().topology()?, store.reader().gone()?);
        let Inventory { topology, rows, gone, news } = Inventory::of(&known, &machine.topology);
        if topology != known {
            store.extend_topology(&topology)?;
        }
        let Recovered { past: Past { state, rates }, refused } = store.recover()?;
        for (&id, job) in state.jobs().iter().filter(|(_, job)| job.end.is_some()) {
            // The server before may have died between an end and its line or report.
            store.keep_row(&row(&state, id, job))?;
            if !home.job(id.0).report().exists() {
                archive(&home, &state, id, policy.name());
            }
        }
        let discovery = machine.discovery.in_rows(&topology, &rows);
        let mut node = Node::new(Config {
            topology: Arc::clone(state.topology()),
            node: het_core::NodeId(0),
            cores: discovery.cores.clone(),
            visible_env: het_devices::visible_devices,
            container_access: het_devices::container_access,
            run_dir: home.run_dir("server"),
            control_groups: ControlGroups::Auto,
            health_check,
            exits: Some(home.exits()),
        })?;
        let bell = node.inlet();
        let last = home.jobs()?.last().map_or(0, |job| job.id);
        let next_job = state.next_job().0.max(last + 1);
        let board = Board::of(store.reader().rows()?, &state, store.length(), keeping.jobs);
        let board = Arc::new(board);
        let leases = state.leases().iter().map(|(&id, lease)| (id, lease.stage.job)).collect();
        node.adopt(&state);
        let Watch { first, repairs } = lookout::watch(
            &machine.system,
            &discovery,
            &state,
            home.run_dir("server"),
            node.inlet(),
        );
        let moved = came_and_went(&state, &gone_before, &gone);
        let topology = Arc::clone(state.topology());
        let mut control = Controller::new(state, rates, policy, node, store)
            .with_cadence(cadence)
            .with_retention(Retention::Newest(ENDED_KEPT.min(keeping.jobs)));
        moved.into_iter().chain(first).for_each(|event| control.accept(event));
        let (desk, asks, alive) = Desk::new(bell.clone(), Arc::clone(&board), next_job);
        let floor = Floor {
            control,
            asks,
            bell,
            board,
            home,
            leases,
            repairs,
            gone: (gone != gone_before).then(|| gone.clone()),
            drafted: None,
            leaving: None,
            _alive: alive,
        };
        let thread = thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(move || floor.run()).map_err(ServiceError::Thread)?;
        Ok(Self { desk, topology, gone, news, refused, thread })
    }

    /// Waits for the loop's end.
    ///
    /// # Errors
    /// Why it ended, unless it was asked to.
    pub fn join(self) -> Result<(), ServiceError> {
        match self.thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Devices that are gone go out of service; those that were out of service for that and are back
/// return to it.
fn came_and_went(
    state: &State,
    gone_before: &BTreeSet<DeviceId>,
    gone: &BTreeSet<DeviceId>,
) -> Vec<Event> {
    let fails = gone.iter().filter(|id| !state.has_failed(**id));
    let fails = fails.map(|&device| Event::DeviceFailed { device });
    let returns = gone_before.difference(gone).filter(|id| state.has_failed(**id));
    fails.chain(returns.map(|&device| Event::DeviceRepaired { device })).collect()
}

impl Floor {
    /// However it ends, what runs goes on: the next service takes it up.
    fn run(mut self) -> Result<(), ServiceError> {
        let mut ended = self.turn().and_then(|()| self.note_gone());
        while ended.is_ok() && self.leaving.is_none() {
            ended = self.turn();
        }
        self.control.into_engine().detach();
        ended
    }

    /// After the turn that takes devices out of service for it or brings them back: a death in
    /// between has the next service do the same again.
    fn note_gone(&mut self) -> Result<(), ServiceError> {
        match self.gone.take() {
            Some(gone) => Ok(self.control.log_mut().put_gone(&gone)?),
            None => Ok(()),
        }
    }

    fn turn(&mut self) -> Result<(), ServiceError> {
        let acks = self.hear();
        let until = (!acks.is_empty()).then(|| self.control.now());
        let turn = self.control.turn(until)?;
        self.publish(&turn.events)?;
        acks.into_iter().for_each(|ack| ack());
        self.keep_snapshots();
        Ok(())
    }

    /// All that a snapshot costs the loop is a copy of the state: a thread beside it makes it, and
    /// the store writes it bit by bit with the batches to come.
    fn keep_snapshots(&mut self) {
        match self.drafted.as_ref().map(Receiver::try_recv) {
            Some(Ok(draft)) => {
                self.control.log_mut().put_snapshot(draft);
                self.drafted = None;
            }
            Some(Err(TryRecvError::Empty)) => {}
            Some(Err(TryRecvError::Disconnected)) => self.drafted = None,
            None if self.control.log().snapshot_is_due() => self.drafted = self.draft(),
            None => {}
        }
    }

    /// Without a thread for it the snapshot stays due.
    fn draft(&self) -> Option<Receiver<Draft>> {
        let (mark, past) = (self.control.log().mark(), self.control.past());
        let (sender, drafted) = channel();
        let thread = thread::Builder::new().name("snapshot".to_owned());
        // The loop may have ended before it is done.
        let make = move || {
            drop(sender.send(Draft::new(mark, past)));
            het_node::give_memory_back();
        };
        let made = thread.spawn(make);
        made.is_ok().then_some(drafted)
    }

    /// Runs what was asked since the last turn; what brings facts is acknowledged after the next.
    fn hear(&mut self) -> Vec<Ack> {
        let mut acks = Vec::new();
        for _ in 0..ASKS_MAX {
            let Ok(ask) = self.asks.try_recv() else { return acks };
            let asked = ask(&self.control);
            asked.events.into_iter().for_each(|event| self.control.accept(event));
            self.leaving = self.leaving.or(asked.leaving);
            acks.push(asked.ack);
        }
        // Some may be left: the next turn must not wait for another ring.
        self.bell.wake();
        acks
    }

    /// Brings the board up to date with what happened, and ended jobs to their archive.
    fn publish(&mut self, events: &[(Time, Event)]) -> Result<(), ServiceError> {
        events.iter().for_each(|(_, event)| self.repairs.tell(event));
        let touched = touched(&mut self.leases, events);
        let state = self.control.state();
        let policy = self.control.policy().name();
        let mut rows = Vec::new();
        for id in touched {
            let Some(job) = state.job(id) else { continue };
            let row = Arc::new(row(state, id, job));
            if job.end.is_some() && !self.board.has_ended(id) {
                archive(&self.home, state, id, policy);
            }
            rows.push(row);
        }
        for row in rows.iter().filter(|row| row.ended_at.is_some()) {
            self.control.log_mut().keep_row(row)?;
        }
        let gone = self.board.put(rows, self.control.log().length());
        gone.into_iter().for_each(|id| self.control.log_mut().drop_row(id));
        Ok(())
    }
}

/// Writes the report of an ended job to its directory. Without it `het describe` has less to tell;
/// the log has everything.
fn archive(home: &Home, state: &State, id: JobId, policy: &str) {
    let Some(report) = report(state, id, policy, state.now()) else { return };
    let dir = home.job(id.0);
    let text = serde_json::to_string_pretty(&report).unwrap_or_default();
    let _ = fs::create_dir_all(&dir.path).and_then(|()| dir.write_report(&text));
}

/// A process that a killed server was about to start may hold the store's lock a moment longer.
fn open_patiently(path: &Path) -> Result<EventStore, StoreError> {
    for _ in 0..OPEN_TRIES {
        match EventStore::open(path) {
            Err(StoreError::InUse) => thread::sleep(OPEN_PAUSE),
            opened => return opened,
        }
    }
    EventStore::open(path)
}

/// The jobs that events are about.
fn touched(leases: &mut BTreeMap<LeaseId, JobId>, events: &[(Time, Event)]) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for (_, event) in events {
        match event {
            Event::JobSubmitted { job, .. }
            | Event::JobHeld { job }
            | Event::JobReleased { job }
            | Event::JobChanged { job, .. }
            | Event::JobCancelled { job } => jobs.push(*job),
            Event::PlanCommitted { plan } => {
                jobs.extend(of_plan(plan).map(|(job, _)| job));
                leases.extend(of_plan(plan).filter_map(|(job, lease)| Some((lease?, job))));
                jobs.extend(plan.actions.iter().filter_map(|action| match action {
                    het_core::Action::Stop { lease, .. } => leases.get(lease).copied(),
                    _ => None,
                }));
            }
            Event::StageStarted { lease }
            | Event::Progressed { lease, .. }
            | Event::Checkpointed { lease, .. }
            | Event::StagePublished { lease } => jobs.extend(leases.get(lease)),
            Event::StageEnded { lease, .. } => jobs.extend(leases.remove(lease)),
            _ => {}
        }
    }
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// Jobs that a plan names itself, and the leases it gives them.
fn of_plan(plan: &Plan) -> impl Iterator<Item = (JobId, Option<LeaseId>)> + '_ {
    use het_core::Action::{Claim, Start, Stop, Unclaim};
    let acted = plan.actions.iter().filter_map(|action| match action {
        Start { stage, lease, .. } => Some((stage.job, Some(*lease))),
        Claim { stage, .. } | Unclaim { stage } => Some((stage.job, None)),
        Stop { .. } => None,
    });
    acted.chain(plan.waits.iter().map(|(key, _)| (key.job, None)))
}
