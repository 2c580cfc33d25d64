//! The one composition root: this machine's engine, a store and the service, tied together.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use het_agent::{Agents, Members, Patience, Users};
use het_control::{Controller, LogError, Past, Retention};
use het_core::{Event, JobId, LeaseId, State, Time, Topology};
use het_engine::Engine;
use het_host::inventory::{news, under_known_name};
use het_host::{
    Activity, Home, HomeError, LatestLoad, Machine, Monitor, OwnProcesses, Reserve, StartTime,
    monitor, remove_unused, start_time,
};
#[cfg(feature = "kubernetes")]
use het_kubernetes::{ApiError, ClusterError};
use het_node::{Config, ControlGroups, Heartbeat, Node, NodeError, NodeSettings, RunMode};
use het_service::{Handle, Observer, Scheduling, Service, ServiceError, Setup, Store};
use het_wire::api::JobRow;
use thiserror::Error;

use crate::archive::Archive;
use crate::restore::{RestoreError, part_from_original};
use crate::served::Served;
use crate::stalls::Stalls;
use crate::store::{
    EventStore, Keeping, Mended, Opened, Recovered, StoreError, StoreReader, open_mending,
};
use crate::watchdog;

/// How often a store that is in use is tried again, and how long after.
const OPEN_TRIES: usize = 100;
const OPEN_PAUSE: Duration = Duration::from_millis(5);

/// Why a service on this machine cannot begin or go on.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[cfg(feature = "kubernetes")]
    #[error("the Lease cannot be renewed in a later epoch")]
    Epoch(#[source] Box<ApiError>),
    #[error("another server may lead now")]
    LeadLost,
    #[error(transparent)]
    Log(LogError),
    #[error(
        "the event store `{}` is missing, but {jobs} of its jobs left directories, job {newest} \
         last",
        path.display()
    )]
    StoreMissing { path: PathBuf, jobs: usize, newest: u64 },
    #[error("the server stood still {count} times within an hour, at no job's files")]
    StandsStill { count: usize },
    #[error("the server cannot have a thread")]
    Thread(#[source] io::Error),
}

/// How a service is to run.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    pub scheduling: Scheduling,
    pub settings: NodeSettings,
    pub keeping: Keeping,
    /// How long its control loop may stand still before the process is killed, for its parent to
    /// start it again; for ever, where nobody would.
    pub stall_limit: Option<Duration>,
}

impl ServiceOptions {
    /// With nothing asked of it.
    pub fn new(scheduling: Scheduling) -> Self {
        let (settings, keeping) = (NodeSettings::default(), Keeping::default());
        Self { scheduling, settings, keeping, stall_limit: None }
    }
}

/// What the parts of a service are made from.
pub(crate) struct Parts<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) scheduling: Scheduling,
    pub(crate) home: Home,
    /// For files of live leases.
    pub(crate) run_dir: PathBuf,
    pub(crate) store: EventStore,
    pub(crate) past: Past,
    /// Room on the disk for how things end.
    pub(crate) reserve: Option<Reserve>,
    pub(crate) retention: Retention,
    pub(crate) heartbeat: Heartbeat,
    /// What is not touched, because it made a server stand still.
    pub(crate) quarantined: BTreeSet<LeaseId>,
    pub(crate) avoided: BTreeSet<JobId>,
    pub(crate) settings: NodeSettings,
    pub(crate) mode: RunMode,
    /// Not before the state's.
    pub(crate) begins_at: Time,
    /// Facts of the first turn.
    pub(crate) facts: Vec<Event>,
}

/// A controller over this machine that has adopted what runs, and what belongs to it.
pub(crate) struct Assembled {
    pub(crate) control: Controller<Agents, Archive>,
    pub(crate) observer: Observer,
    pub(crate) load: LatestLoad,
}

pub(crate) fn assemble(parts: Parts<'_>) -> Result<Assembled, StartError> {
    let Parts { machine, scheduling, past: Past { state, rates }, .. } = parts;
    let found = Arc::new(under_known_name(state.topology(), &machine.topology));
    let node = Node::new(Config {
        found: Arc::clone(&found),
        cores: machine.discovery.cores.clone(),
        visible_env: het_devices::visible_devices,
        container_access: het_devices::container_access,
        device_nodes: machine.discovery.device_nodes(),
        run_dir: parts.run_dir.clone(),
        begins_at: parts.begins_at,
        control_groups: ControlGroups::Auto,
        settings: parts.settings.clone(),
        mode: parts.mode,
        device_holds: machine.device_holds.clone(),
        heartbeat: parts.heartbeat.clone(),
        quarantined: parts.quarantined,
    })?;
    let users = machine.users.as_ref().map(|users| Users {
        spawner: Arc::clone(&users.spawner),
        found: Arc::clone(&found),
        dir: parts.home.users(),
        kept: parts.home.kept(),
        settings: parts.settings,
        patience: Patience::default(),
    });
    let mut engine = Agents::new(node, users);
    let event_sender = engine.event_sender();
    // What the monitor finds is reported of the machine as it joins in the first turn.
    let rows = state.joined_by(&found).devices;
    let mut joined = state.clone();
    joined.apply(state.now(), &Event::NodesJoined { nodes: found });
    let discovery = machine.discovery.in_rows(joined.topology(), &rows);
    let reserved = machine.reserved.iter().map(|(id, by)| (rows[id.index()], by.clone())).collect();
    let supervisor = machine.users.as_ref().map(|_| std::os::unix::process::parent_id());
    let Monitor { first, repairs, load } = monitor(
        &machine.system,
        &discovery,
        (&joined, reserved),
        OwnProcesses { run_dir: parts.run_dir, supervisor },
        event_sender.clone(),
    );
    first.into_iter().for_each(|event| event_sender.send(event));
    let log = Archive {
        events: parts.store,
        home: parts.home,
        reserve: parts.reserve,
        heartbeat: parts.heartbeat,
        avoided: parts.avoided,
    };
    let Scheduling { policy, cadence } = scheduling;
    let mut control = Controller::new(state, rates, policy, engine, log)
        .with_cadence(cadence)
        .with_retention(parts.retention);
    control.adopt();
    parts.facts.into_iter().for_each(|event| control.accept(event));
    let observer: Observer =
        Box::new(move |_, batch| batch.iter().for_each(|(_, event)| repairs.observe(event)));
    Ok(Assembled { control, observer, load })
}

/// A service for many jobs on this machine.
#[derive(Debug)]
pub struct MachineService {
    service: Service<Agents>,
    /// As whom jobs run, where that is not the server.
    pub members: Option<Members>,
    log: StoreReader,
    load: LatestLoad,
    /// What changed about the machine since the service before, a sentence each.
    pub news: Vec<String>,
    /// Snapshots that were damaged; older ones and the events stood in for them.
    pub refused: Vec<StoreError>,
}

impl MachineService {
    /// Opens or creates the store of `home`, takes up what ran, and begins to decide.
    ///
    /// The machine may have changed: new devices are taken in, those that are gone are out of
    /// service until a start that finds them.
    ///
    /// # Errors
    /// When the store or the engine cannot be used.
    pub fn start(
        machine: &Machine,
        home: Home,
        ServiceOptions { scheduling, settings, keeping, stall_limit }: ServiceOptions,
    ) -> Result<Self, StartError> {
        let Opened { store, recovered, taken_over, mended } = open_or_create(&home)?;
        let mut store = store.with_keeping(keeping);
        let log = store.reader();
        let Recovered { mut past, refused } = recovered;
        let of_copy = part_from_original(&home, &mut store, &mut past)?;
        // What cannot be read now is looked at by the next server.
        let jobs = past.state.jobs().values().map(|job| &**job);
        let _ = remove_unused(&home.kept(), jobs, Duration::ZERO);
        let found = under_known_name(past.state.topology(), &machine.topology);
        let StartTime { time: begins_at, news: of_clock } = start_time_of(&home, &past.state);
        let mut news: Vec<String> = of_clock.into_iter().chain(news(&past.state, &found)).collect();
        news.extend(of_store(taken_over, mended.as_ref()));
        news.extend(of_copy);
        let stalls = Stalls::of(&home, &past.state);
        if let Some(count) = stalls.too_many {
            return Err(StartError::StandsStill { count });
        }
        news.extend(stalls.news);
        let heartbeat = Heartbeat::default();
        if let Some(limit) = stall_limit {
            let started = watchdog::start(heartbeat.clone(), limit, home.stalls());
            started.map_err(StartError::Thread)?;
        }
        let gone = log.gone()?;
        let setup_rows: Vec<JobRow> = log.rows()?;
        let last_job = home.jobs()?.last().map_or(0, |job| job.id);
        let Assembled { mut control, observer, load } = assemble(Parts {
            machine,
            scheduling,
            run_dir: home.run_dir("server"),
            store,
            reserve: Some(Reserve::at(home.reserve())),
            retention: keeping.retention(),
            heartbeat,
            quarantined: stalls.quarantined,
            avoided: stalls.avoided,
            settings,
            mode: RunMode::Service,
            begins_at,
            facts: gone.iter().map(|&device| Event::DeviceRepaired { device }).collect(),
            past,
            home,
        })?;
        first_turn(&mut control)?;
        if !gone.is_empty() {
            // After the turn that says by events who is gone: after a death in between the next
            // start does the same again.
            control.log_mut().events.forget_gone()?;
        }
        let setup = Setup {
            rows: setup_rows,
            ended_max: keeping.jobs,
            next_job: last_job + 1,
            observers: vec![observer],
        };
        let service = Service::start(control, setup)?;
        let members = machine.users.as_ref().map(|users| users.members.clone());
        Ok(Self { service, members, log, load, news, refused })
    }

    /// What its interface shows.
    pub fn served(&self) -> Served {
        Served {
            handle: self.service.handle.clone(),
            log: self.log.clone(),
            load: self.load.clone(),
            members: self.members.clone(),
            cluster: None,
        }
    }

    pub fn handle(&self) -> &Handle {
        &self.service.handle
    }

    /// Waits for the loop's end. However it ends, what runs goes on: the next service takes it up.
    ///
    /// # Errors
    /// Why it ended, unless it was asked to.
    pub fn join(self) -> Result<(), ServiceError> {
        let (engine, ended) = self.service.join();
        engine.detach();
        ended
    }
}

/// So that whoever asks first sees the machine, or the cluster, as it is now.
pub(crate) fn first_turn<E: Engine>(
    control: &mut Controller<E, Archive>,
) -> Result<(), StartError> {
    if control.log_mut().mend().is_err() {
        // For this turn; the service finds out the same, and says so.
        control.log_mut().release_reserve();
    }
    let now = control.now();
    control.turn(Some(now)).map_err(ServiceError::Control)?;
    Ok(())
}

pub(crate) fn start_time_of(home: &Home, state: &State) -> StartTime {
    let is_live = state.jobs().values().any(|job| job.end.is_none());
    let activity = if is_live { Activity::Live } else { Activity::Idle };
    start_time(&home.clock(), state.now(), activity)
}

/// Makes an empty event store in a home that has none, whatever jobs left files there: nothing is
/// known of them any more. A store that is there stays as it is.
///
/// # Errors
/// When it cannot be looked for or made.
pub fn begin_store(home: &Home) -> Result<(), StartError> {
    if !has_store(home)? {
        create(home)?;
    }
    Ok(())
}

/// Makes the store. A copy that is left of another one has nothing to do with it.
fn create(home: &Home) -> Result<EventStore, StartError> {
    let path = home.store_copy();
    het_files::remove_tree(&path).map_err(|source| HomeError::Io { path, source })?;
    Ok(EventStore::create(&home.store(), &Topology::default())?)
}

/// What was damaged about the store and what became of it, a sentence each.
pub(crate) fn of_store(taken_over: u64, mended: Option<&Mended>) -> Vec<String> {
    let mut news = Vec::new();
    if taken_over > 0 {
        news.push(format!("{taken_over} events were restored from the second copy of the log"));
    }
    if let Some(Mended { aside, lost }) = mended {
        news.push(format!(
            "the event store was damaged and was made anew from what is sound in it and in its \
             copy; it lies beside it as `{}`",
            aside.display()
        ));
        news.extend(lost.iter().map(ToString::to_string));
    }
    news
}

pub(crate) fn has_store(home: &Home) -> Result<bool, HomeError> {
    let path = home.store();
    path.try_exists().map_err(|source| HomeError::Io { path, source })
}

/// Opens the store, or makes the first one of a new home. Beside jobs a store that is missing is
/// lost, and an empty one in its place would hide that.
pub(crate) fn open_or_create(home: &Home) -> Result<Opened, StartError> {
    let path = home.store();
    let jobs: Vec<u64> = home.server_jobs()?.iter().map(|job| job.id).collect();
    if !has_store(home)? {
        if let Some(&newest) = jobs.last() {
            return Err(StartError::StoreMissing { path, jobs: jobs.len(), newest });
        }
        drop(create(home)?);
    }
    let open = || open_mending(&path, &home.store_copy(), &jobs);
    // A process that a killed server was about to start may hold the store's lock a moment longer.
    for _ in 0..OPEN_TRIES {
        match open() {
            Err(StoreError::InUse) => thread::sleep(OPEN_PAUSE),
            opened => return Ok(opened?),
        }
    }
    Ok(open()?)
}
