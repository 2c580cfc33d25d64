//! The engine for this machine.

mod adoption;
mod remote;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use het_core::{
    Action, Checkpoint, Event, Failure, HostResources, Index, Launch, LeaseId, Millis, NodeId,
    Outcome, Phase, Placement, Plan, PreparationEnd, State, Time, Topology,
};
use het_engine::{Engine, GenerationFence, Waker};
use het_files::is_directory;

use crate::cgroup::{CgroupPool, ControlGroups, DeviceNodes};
use crate::checkpoint::{ChangedDirectories, DirectoryWatch};
use crate::clock::Clock;
use crate::config::Config;
use crate::context::{Cleanup, Context, OomKills, QueuedEvent};
use crate::error::NodeError;
use crate::event_channel::{Channel, EventReceiver, EventSender};
use crate::gang::{Gang, GangStatus};
use crate::heartbeat::{LoopTask, Task};
use crate::inputs::{Copies, LocalInputs, Reading};
use crate::launch::{self, Devices, GangSpec, all_grants, outcome_of_start};
use crate::poller::{Poller, Source, Trigger};
use crate::process::{Environments, Launcher, Orphans, procfs};
use crate::progress::{Changed, ProgressWatch};
use crate::recovery::{self, Reaped, RecordFiles, refuse_later_records, remove_blank_files};
use crate::remover::Remover;
use crate::resources::{AssignedCores, Cores, GangResources, Ports};
use crate::run_dir::{lease_path, progress_dir};

const NULL: &str = "/dev/null";
/// Most ranks of a gang.
const RANKS_MAX: usize = u16::MAX as usize;
/// How long a dropped engine waits for its gangs to end.
const DROP_LIMIT: Millis = Millis(5_000);

/// How long a process takes to note its id, a few system calls, on the busiest machine.
const NOTE_LIMIT: Duration = Duration::from_millis(500);

/// Real processes on this machine. All work is done in [`Engine::submit`] and
/// [`Engine::next_event`], by their caller: nothing happens in between.
///
/// Dropping the engine kills its gangs; [`Node::detach`] leaves them running.
#[derive(Debug)]
pub struct Node {
    config: Config,
    fence: GenerationFence,
    /// What ids in plans mean.
    topology: Arc<Topology>,
    /// Which node this machine is there, if it has joined.
    node: Option<NodeId>,
    /// Boxed, because gangs are inserted and removed among others.
    gangs: BTreeMap<LeaseId, Box<Gang>>,
    cores: Cores,
    ports: Ports,
    /// What is brought near for those who are prepared.
    reading: BTreeMap<LeaseId, Reading>,
    copies: Copies,
    context: Context,
    receiver: EventReceiver,
    /// Of leases whose end was returned but may not be durable yet.
    uncommitted: Vec<(LeaseId, Cleanup)>,
    senders: Weak<Channel>,
    /// The latest time that was given to the caller.
    latest: Cell<Time>,
}

/// A lease that lives according to the log, with all that its gang is started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLease {
    pub lease: LeaseId,
    pub attempt: u32,
    pub phase: Phase,
    pub placement: Arc<Placement>,
    pub launch: Arc<Launch>,
    pub resume: Option<Checkpoint>,
}

/// The parts of [`Action::Start`] that an engine acts on.
struct Start<'a> {
    lease: LeaseId,
    attempt: u32,
    placement: &'a Arc<Placement>,
    launch: &'a Arc<Launch>,
    resume: &'a Option<Checkpoint>,
    local_inputs: LocalInputs,
}

impl Node {
    /// # Errors
    /// When the configuration does not fit the topology or this process.
    pub fn new(config: Config) -> Result<Self, NodeError> {
        config.check()?;
        let progress = progress_dir(&config.run_dir);
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&progress);
        created.map_err(|source| NodeError::Record { path: progress.clone(), source })?;
        refuse_later_records(&config.run_dir)?;
        remove_blank_files(&config.run_dir);
        let null = OpenOptions::new().read(true).write(true).open(NULL);
        let null = null.map_err(|source| NodeError::Record { path: NULL.into(), source })?.into();
        let poller = Poller::new().map_err(NodeError::Poller)?;
        let receiver = EventReceiver::new().map_err(NodeError::Poller)?;
        let added = poller.add(&receiver, Source::Channel, Trigger::Level);
        added.map_err(NodeError::Poller)?;
        let progress_watch = watch_progress(&poller, &progress);
        let directory_watch = DirectoryWatch::new().ok();
        let directory_watch = directory_watch
            .filter(|watch| poller.add(watch, Source::Directories, Trigger::OneShot).is_ok());
        let context = Context {
            clock: Clock::start(config.begins_at),
            poller,
            orphans: Orphans::new(),
            lost_shims: 0,
            null,
            environments: Environments::default(),
            progress_watch,
            directory_watch,
            oom_kills: OomKills::default(),
            cgroups: cgroup_pool(&config),
            run_dir: config.run_dir.clone(),
            remover: Remover::new(&config.run_dir),
            // After the cgroups: a service may move itself to make room for them.
            launcher: Launcher::start(&config.run_dir)
                .map_err(|source| NodeError::Record { path: config.run_dir.clone(), source })?,
            device_holds: config.device_holds.clone(),
            cleanups: Vec::new(),
            record_files: RecordFiles::new(&config.run_dir),
            events: VecDeque::new(),
        };
        let mut node = Self {
            cores: Cores::default(),
            ports: Ports::default(),
            reading: BTreeMap::new(),
            copies: Copies::new(&config.settings.input_copies, &config.run_dir),
            fence: GenerationFence::default(),
            topology: Arc::default(),
            node: None,
            gangs: BTreeMap::new(),
            context,
            receiver,
            uncommitted: Vec::new(),
            senders: Weak::new(),
            latest: Cell::new(Time::ZERO),
            config,
        };
        let found = Arc::clone(&node.config.found);
        node.topology_changed(&found);
        Ok(node)
    }

    /// A handle through which others send events.
    pub fn event_sender(&mut self) -> EventSender {
        if let Some(channel) = self.senders.upgrade() {
            return EventSender(channel);
        }
        let channel = Arc::new(self.receiver.channel(self.context.clock));
        self.senders = Arc::downgrade(&channel);
        EventSender(channel)
    }

    /// Stops supervising without touching processes that have devices; the others are killed.
    /// [`Node::reap`] and [`Engine::adopt`] find the processes later by the ids that they note when
    /// they start.
    pub fn detach(mut self) {
        for gang in self.gangs.values_mut().filter(|gang| gang.awaits_devices()) {
            gang.give_up(&self.context);
        }
        self.abandon();
    }

    /// As if this process died: nothing is touched.
    pub fn abandon(mut self) {
        self.gangs.clear();
    }

    /// Kills what an engine that died left running, by its run directory, and removes its files. To
    /// be called before the job is started again, never beside an engine that runs it.
    ///
    /// # Errors
    /// When another running process supervises a lease there, or something cannot be killed or
    /// removed.
    pub fn reap(run_dir: &Path) -> Result<Vec<Reaped>, NodeError> {
        recovery::reap(run_dir)
    }

    /// With these resources, or with those that it chooses.
    fn start(&mut self, start: Start<'_>, given: Option<&GangResources>) {
        let lease = start.lease;
        if let Some(gang) = self.gangs.get(&lease) {
            if gang.awaits_devices() {
                self.grant(&start, given);
            }
            return;
        }
        let ranks = &start.placement.ranks;
        let elsewhere = ranks.iter().any(|rank| Some(rank.node) != self.node);
        if ranks.is_empty() || ranks.len() > RANKS_MAX || elsewhere {
            let count = ranks.len();
            let text = format!("lease {lease} has {count} ranks, or some not on this machine");
            return self.refuse(lease, text);
        }
        if let Err(error) = self.restore_run_dir() {
            let dir = self.config.run_dir.display();
            return self.refuse(lease, format!("`{dir}` cannot be made again: {error}"));
        }
        let resources = match given {
            Some(given) => Ok((given.port, given.assigned())),
            None => self.choose_resources(start.placement),
        };
        let (port, cores): (u16, Vec<AssignedCores>) = match resources {
            Ok((_, cores)) if cores.len() != ranks.len() => {
                return self.refuse(lease, "not every rank was given cores".to_owned());
            }
            Ok(resources) => resources,
            Err(error) => return self.refuse(lease, format!("no free port: {error}")),
        };
        let spec = self.spec(&start, Devices::Granted, port, cores.clone());
        match Gang::start(spec, &mut self.context) {
            Ok(gang) => self.insert(lease, gang),
            Err(failure) => {
                self.free(&cores, port);
                self.fail(lease, failure);
            }
        }
    }

    /// Lets a gang go on that was started before it had devices.
    fn grant(&mut self, start: &Start<'_>, given: Option<&GangResources>) {
        let cores = match given {
            Some(given) => given.assigned(),
            None => self.take_cores(start.placement),
        };
        let spec = self.spec(start, Devices::Granted, 0, cores);
        if let Some(gang) = self.gangs.get_mut(&start.lease) {
            gang.grant(spec, &mut self.context);
        }
        self.advance(start.lease);
    }

    /// Begins with what a stage can do before it has devices. What cannot be begun is reported as
    /// ended: the stage starts without it.
    fn prepare(&mut self, start: &Start<'_>) {
        let Start { lease, launch, .. } = *start;
        let reading = Reading::begin(launch, &mut self.context.environments, &self.copies);
        self.reading.extend(reading.map(|reading| (lease, reading)));
        if launch.warm
            && let Err(reason) = self.start_warm(start)
        {
            let end = PreparationEnd::Failed { reason };
            self.context.emit(Event::PreparationEnded { lease, end });
        }
    }

    /// Starts the programs of a gang before it has devices.
    ///
    /// # Errors
    /// Why they are not started early.
    fn start_warm(&mut self, start: &Start<'_>) -> Result<(), String> {
        if let Some(why) = self.hindrance(start) {
            return Err(why.to_owned());
        }
        self.clean_up();
        self.restore_run_dir().map_err(|error| error.to_string())?;
        let port = self.ports.take(self.context.clock.now()).map_err(|error| error.to_string())?;
        let cores = vec![AssignedCores::default(); start.placement.ranks.len()];
        let spec = self.spec(start, Devices::Awaited, port, cores);
        match Gang::start(spec, &mut self.context) {
            Ok(gang) => self.insert(start.lease, gang),
            Err(failure) => {
                self.ports.put_back(port);
                return Err(failure.message);
            }
        }
        Ok(())
    }

    /// Why a program is not started before it has devices: it would look for them before it waits,
    /// or they are to be checked first.
    fn hindrance(&self, start: &Start<'_>) -> Option<&'static str> {
        let ranks = &start.placement.ranks;
        let memory: u64 = ranks.iter().map(|rank| rank.host.memory.0).sum();
        if ranks.is_empty() || ranks.iter().any(|rank| Some(rank.node) != self.node) {
            Some("its ranks are not all on this machine")
        } else if launch::counts_devices(&start.launch.argv) {
            Some("its launcher counts devices first")
        } else if start.launch.container.is_some() {
            Some("it runs in a container")
        } else if self.config.settings.health_check.is_some() {
            Some("its devices are checked first")
        } else if procfs::memory_available().is_some_and(|available| available < memory) {
            Some("the machine has too little memory at present")
        } else {
            None
        }
    }

    fn give_up(&mut self, lease: LeaseId) {
        self.reading.remove(&lease);
        if let Some(gang) = self.gangs.get_mut(&lease).filter(|gang| gang.awaits_devices()) {
            gang.give_up(&self.context);
            self.advance(lease);
        }
    }

    fn choose_resources(&mut self, placement: &Placement) -> io::Result<(u16, Vec<AssignedCores>)> {
        let port = self.ports.take(self.context.clock.now())?;
        Ok((port, self.take_cores(placement)))
    }

    /// By rank.
    fn take_cores(&mut self, placement: &Placement) -> Vec<AssignedCores> {
        placement.ranks.iter().map(|rank| self.cores.take(all_grants(rank))).collect()
    }

    /// Makes the directory for files of live leases again where somebody removed it, with what
    /// watches it.
    fn restore_run_dir(&mut self) -> io::Result<()> {
        let progress = progress_dir(&self.config.run_dir);
        if is_directory(&progress) {
            return Ok(());
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&progress)?;
        let context = &mut self.context;
        context.record_files = RecordFiles::new(&self.config.run_dir);
        context.poller.remove(context.progress_watch.take());
        context.progress_watch = watch_progress(&context.poller, &progress);
        Ok(())
    }

    fn spec(
        &self,
        start: &Start<'_>,
        devices: Devices,
        port: u16,
        cores: Vec<AssignedCores>,
    ) -> GangSpec {
        GangSpec {
            devices,
            lease: start.lease,
            attempt: start.attempt,
            placement: Arc::clone(start.placement),
            launch: Arc::clone(start.launch),
            resume: start.resume.clone(),
            topology: Arc::clone(&self.topology),
            visible_env: self.config.visible_env,
            container_access: self.config.container_access,
            port,
            lease_dir: lease_path(&self.config.run_dir, start.lease),
            health_check: self.config.settings.health_check.clone(),
            mode: self.config.mode,
            cores,
            local_inputs: start.local_inputs.clone(),
        }
    }

    /// Not the fault of its program.
    fn refuse(&mut self, lease: LeaseId, reason: String) {
        self.context.emit(Event::StageEnded { lease, outcome: Outcome::Refused { reason } });
    }

    /// Carries out one action of a plan: a start with the resources that were chosen for it, or
    /// with its own.
    pub fn carry_out(&mut self, action: &Action, given: Option<&GangResources>) {
        match action {
            Action::Start { lease, attempt, placement, launch, resume, .. } => {
                let (lease, attempt, _task) = (*lease, *attempt, self.begin(*lease));
                let reading = self.reading.remove(&lease);
                let local_inputs = reading.map(|reading| reading.local()).unwrap_or_default();
                let start = Start { lease, attempt, placement, launch, resume, local_inputs };
                self.start(start, given);
            }
            Action::Stop { lease, cause, grace, .. } => {
                let _task = self.begin(*lease);
                if let Some(gang) = self.gangs.get_mut(lease) {
                    gang.stop(cause.word(), *grace, self.context.clock.now());
                }
            }
            Action::Prepare { lease, attempt, placement, launch, resume, .. } => {
                let (lease, attempt, _task) = (*lease, *attempt, self.begin(*lease));
                let local_inputs = LocalInputs::default();
                self.prepare(&Start { lease, attempt, placement, launch, resume, local_inputs });
            }
            Action::Unprepare { lease, .. } => {
                let _task = self.begin(*lease);
                self.give_up(*lease);
            }
            // Nothing else on this machine could take them.
            Action::Claim { .. } | Action::Unclaim { .. } => {}
        }
    }

    /// Files of this lease may be touched until the guard is dropped.
    fn begin(&self, lease: LeaseId) -> Task {
        self.config.heartbeat.begin(LoopTask::Lease(lease))
    }

    /// Every start has an end, also one that failed at once.
    fn fail(&mut self, lease: LeaseId, failure: Failure) {
        self.context.emit(Event::StageEnded { lease, outcome: outcome_of_start(failure) });
    }

    /// Events are stamped where they are found. The times that the caller sees do not decrease.
    fn monotonic(&self, at: Time) -> Time {
        let at = at.max(self.latest.get());
        self.latest.set(at);
        at
    }

    fn can_anything_happen(&self) -> bool {
        !self.gangs.is_empty() || self.senders.strong_count() > 0
    }

    /// When something is to be done, if nothing happens before.
    fn deadline(&self) -> Option<Time> {
        let progress = self.context.progress_watch.as_ref();
        let directories = self.context.directory_watch.as_ref();
        let paused_until = [
            progress.and_then(|watch| watch.paused_until),
            directories.and_then(|watch| watch.paused_until),
        ];
        let paused_until = paused_until.into_iter().flatten();
        self.gangs.values().filter_map(|gang| gang.deadline()).chain(paused_until).min()
    }

    /// Waits until something happens or is due, and handles it.
    fn poll_once(&mut self, until: Option<Time>) -> Wakeup {
        // Whatever waited for the devices of ended gangs has been started by now.
        self.clean_up();
        let wake = [until, self.deadline()].into_iter().flatten().min();
        let limit = wake.map(|at| at.since(self.context.clock.now()));
        let idle = self.config.heartbeat.begin(LoopTask::Idle);
        let ready = self.context.poller.wait(limit);
        drop(idle);
        let mut touched = BTreeSet::new();
        let mut wakeup = Wakeup::Internal;
        for source in ready {
            match source {
                Source::Channel => {
                    wakeup = Wakeup::Requested;
                    let events = self.receiver.drain();
                    let events = events.map(|(at, event)| QueuedEvent { at, event, cleanup: None });
                    self.context.events.extend(events);
                }
                Source::Progress => touched.extend(self.read_progress_changes()),
                Source::Directories => touched.extend(self.read_directory_changes()),
                Source::Shim(lease)
                | Source::Rank(lease, _)
                | Source::Other(lease, _)
                | Source::Checkpoints(lease)
                | Source::Output(lease) => {
                    touched.insert(lease);
                    let _task = self.begin(lease);
                    if let Some(gang) = self.gangs.get_mut(&lease) {
                        gang.on_ready(source, &mut self.context);
                    }
                }
            }
        }
        self.resume_watches();
        let now = self.context.clock.now();
        let due = |gang: &Gang| gang.deadline().is_some_and(|at| at <= now);
        touched.extend(self.gangs.iter().filter(|(_, gang)| due(gang)).map(|(&lease, _)| lease));
        touched.into_iter().for_each(|lease| self.advance(lease));
        wakeup
    }

    /// Also advances the gang: nothing may ever happen to one that has lost all its processes.
    fn insert(&mut self, lease: LeaseId, gang: Gang) {
        self.gangs.insert(lease, Box::new(gang));
        self.advance(lease);
    }

    /// At its end, frees what the engine chose for the lease.
    fn advance(&mut self, lease: LeaseId) {
        let _task = self.begin(lease);
        let Some(gang) = self.gangs.get_mut(&lease) else { return };
        if gang.advance(&mut self.context) == GangStatus::Ended
            && let Some(gang) = self.gangs.remove(&lease)
        {
            self.free(gang.cores(), gang.port());
        }
    }

    fn free(&mut self, cores: &[AssignedCores], port: u16) {
        cores.iter().for_each(|cores| self.cores.put_back(cores));
        self.ports.put_back(port);
    }

    /// Removes what is left of leases whose end is durable.
    fn clean_up(&mut self) {
        if !self.context.clean_up() || !self.context.may_have_orphans() {
            return;
        }
        let ranks = self.gangs.values_mut().flat_map(|gang| gang.noted_ranks());
        self.context.orphans.collect(&ranks.collect());
    }

    fn read_progress_changes(&mut self) -> Vec<LeaseId> {
        let now = self.context.clock.now();
        let Some(watch) = &mut self.context.progress_watch else { return Vec::new() };
        let leases = match watch.changed(now) {
            Changed::Of(leases) => leases,
            Changed::Any => self.gangs.keys().copied().collect(),
        };
        for lease in &leases {
            let _task = self.begin(*lease);
            if let Some(gang) = self.gangs.get_mut(lease) {
                gang.on_ready(Source::Progress, &mut self.context);
            }
        }
        leases
    }

    fn read_directory_changes(&mut self) -> Vec<LeaseId> {
        let now = self.context.clock.now();
        let Some(watch) = &mut self.context.directory_watch else { return Vec::new() };
        match watch.read(now) {
            ChangedDirectories::Of(changed) => {
                for (lease, directories) in &changed {
                    if let Some(gang) = self.gangs.get_mut(lease) {
                        gang.directories_changed(Some(directories));
                    }
                }
                changed.into_keys().collect()
            }
            ChangedDirectories::Any => {
                self.gangs.values_mut().for_each(|gang| gang.directories_changed(None));
                self.gangs.keys().copied().collect()
            }
        }
    }

    fn resume_watches(&mut self) {
        let now = self.context.clock.now();
        if let Some(watch) = &mut self.context.directory_watch
            && watch.paused_until.take_if(|at| *at <= now).is_some()
        {
            self.context.poller.rearm(&*watch, Source::Directories);
        }
        if let Some(watch) = &mut self.context.progress_watch
            && watch.paused_until.take_if(|at| *at <= now).is_some()
        {
            self.context.poller.rearm(&*watch, Source::Progress);
        }
    }
}

impl LiveLease {
    /// Every lease of a state.
    pub fn all(state: &State) -> Vec<Self> {
        let leases = state.leases().iter().map(|(&lease, held)| {
            let (_, spec, stage) = state.stage(held.stage);
            Self {
                lease,
                attempt: held.attempt,
                phase: held.phase,
                placement: Arc::clone(&held.placement),
                launch: Arc::clone(&spec.alternatives[held.placement.alternative].launch),
                resume: stage.checkpoint.clone(),
            }
        });
        leases.collect()
    }

    fn start(&self) -> Start<'_> {
        let Self { lease, attempt, placement, launch, resume, .. } = self;
        let (lease, attempt, local_inputs) = (*lease, *attempt, LocalInputs::default());
        Start { lease, attempt, placement, launch, resume, local_inputs }
    }
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wakeup {
    /// An [`EventSender`] asked for it.
    Requested,
    /// Something happened to a gang, or is due.
    Internal,
}

impl Engine for Node {
    fn adopt(&mut self, state: &State) {
        let leases = LiveLease::all(state);
        self.adopt_of(state, leases);
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        self.topology = Arc::clone(topology);
        // Only rows are asked for: what is held makes no difference to them.
        let held = vec![HostResources::NONE; topology.nodes.len()];
        let as_known = (&Index::of(topology), held.as_slice());
        let known = topology.joined_by(&self.config.found, &BTreeSet::new(), as_known);
        self.node = known.nodes.first().copied().filter(|id| id.index() < topology.nodes.len());
        for (found, cores) in &self.config.cores {
            let socket = known.devices[found.index()];
            if socket.index() < topology.devices.len() {
                self.cores.add(socket, cores);
            }
        }
    }

    fn submit(&mut self, plan: &Plan) {
        if self.fence.admits(plan) {
            plan.actions.iter().for_each(|action| self.carry_out(action, None));
        }
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        loop {
            if let Some(QueuedEvent { at, event, cleanup }) = self.context.events.pop_front() {
                if let (Some(cleanup), Event::StageEnded { lease, .. }) = (cleanup, &event) {
                    self.uncommitted.push((*lease, cleanup));
                }
                return Some((self.monotonic(at), event));
            }
            // Where nothing can happen any more, something may have happened before.
            let is_over = until.is_none() && !self.can_anything_happen();
            let until = if is_over { Some(self.context.clock.now()) } else { until };
            let wakeup = self.poll_once(until);
            let over = until.is_some_and(|until| self.context.clock.now() >= until);
            if self.context.events.is_empty() && (wakeup == Wakeup::Requested || over) {
                return None;
            }
        }
    }

    fn waker(&mut self) -> Waker {
        let event_sender = self.event_sender();
        Waker::new(move || event_sender.wake())
    }

    fn committed(&mut self) {
        self.context.cleanups.extend(self.uncommitted.drain(..).map(|(_, cleanup)| cleanup));
    }

    fn now(&self) -> Time {
        self.monotonic(self.context.clock.now())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A panic leaves the gangs to the next supervisor, as a crash does.
        if thread::panicking() {
            return;
        }
        self.gangs.values_mut().for_each(|gang| gang.kill(&self.context));
        let deadline = self.context.clock.now() + DROP_LIMIT;
        while !self.gangs.is_empty() && self.context.clock.now() < deadline {
            // Nobody receives these events.
            let _ = self.next_event(Some(deadline));
        }
        self.clean_up();
        self.context.launcher.close();
        self.context.record_files.remove();
        // The directory stays if it has records of ends that may not be durable, of gangs that were
        // detached, or any files that are not this engine's.
        let progress = progress_dir(&self.config.run_dir);
        if is_alone(&progress) {
            let _ = fs::remove_dir(progress);
            let _ = fs::remove_dir(&self.config.run_dir);
        }
    }
}

/// Nothing else is in its directory.
fn is_alone(path: &Path) -> bool {
    let entries = path.parent().and_then(|dir| fs::read_dir(dir).ok());
    entries.is_some_and(|entries| entries.flatten().all(|entry| entry.path() == path))
}

fn watch_progress(poller: &Poller, dir: &Path) -> Option<ProgressWatch> {
    let watch = ProgressWatch::start(dir).ok()?;
    poller.add(&watch, Source::Progress, Trigger::OneShot).ok()?;
    Some(watch)
}

fn cgroup_pool(config: &Config) -> CgroupPool {
    match config.control_groups {
        ControlGroups::Auto => {
            CgroupPool::new(&config.run_dir, config.mode, DeviceNodes::read(&config.device_nodes))
        }
        ControlGroups::Off => CgroupPool::default(),
    }
}
