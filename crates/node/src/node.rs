//! The engine for this machine.

mod adoption;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use het_core::{
    Action, Checkpoint, DeviceId, Event, Failure, Generation, Launch, LeaseId, Millis, NodeId,
    Outcome, Placement, Plan, State, Time, Topology,
};
use het_engine::{Engine, Waker};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;
use thiserror::Error;

use crate::cgroup::{ControlGroups, Hierarchy, HostRole};
use crate::clock::Clock;
use crate::context::{Fact, MemoryKills, Remains, Site};
use crate::event_channel::{EventSender, Inbox, Port};
use crate::gang::verdict::EXIT_CANNOT_RUN;
use crate::gang::{Gang, Life};
use crate::launch::container::ContainerAccess;
use crate::launch::spec::{Order, VisibleEnv, all_grants, lease_path, progress_dir};
use crate::poller::{Poller, Source, Until};
use crate::process::ranks::Leaders;
use crate::process::sys::Spawner;
use crate::progress::watch::{Changed, Listener};
use crate::recovery::record::{self, Reaped};
use crate::recovery::record_file::Spares;
use crate::recovery::restarter::Exits;
use crate::resources::cores::{Cores, Picked};
use crate::resources::ports::Ports;

const NULL: &str = "/dev/null";
/// Most ranks of a gang.
const RANKS_MAX: usize = u16::MAX as usize;
/// How long a dropped engine waits for its gangs to be gone.
const DROP_LIMIT: Millis = Millis(5_000);

/// How long it takes a process to note who it is: a few system calls, on the busiest machine.
pub(crate) const STARTUP_LIMIT: Duration = Duration::from_millis(500);

/// What the engine has to know about its machine.
#[derive(Debug, Clone)]
pub struct Config {
    pub topology: Arc<Topology>,
    /// Which node of the topology this machine is.
    pub node: NodeId,
    /// Core ids of each CPU socket, in the order they are to be handed out. Processes on a socket
    /// without an entry are not pinned.
    pub cores: BTreeMap<DeviceId, Vec<u32>>,
    pub visible_env: VisibleEnv,
    pub container_access: ContainerAccess,
    /// For files of live leases, which mean nothing after a reboot; made if it is not there. No
    /// other engine may use it at the same time.
    pub run_dir: PathBuf,
    /// Whether ranks get control groups.
    pub control_groups: ControlGroups,
    /// A program that every rank runs before its own, with the same devices: where it fails, or
    /// takes longer than a minute, the devices have failed.
    pub health_check: Option<PathBuf>,
    /// Where a keeper writes how processes ended whose supervisor had died; see [`crate::keep`].
    pub exits: Option<PathBuf>,
}

/// Why the engine cannot work here.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error("node {node} is not in the topology")]
    NoSuchNode { node: NodeId },
    #[error("device {device} is no CPU socket of node {node} but was given core ids")]
    NotASocket { device: DeviceId, node: NodeId },
    #[error(
        "core {core} of device {device} may not be used by this process, \
         hint: look at `taskset -p $$` or the container's cpuset"
    )]
    ForbiddenCore { device: DeviceId, core: u32 },
    #[error("core {core} was given twice")]
    DuplicateCore { core: u32 },
    #[error("cannot ask for this process's CPU affinity")]
    Affinity(#[source] nix::Error),
    #[error("what processes do cannot be waited for")]
    Poller(#[source] nix::Error),
    #[error("cannot use `{path}`", path = path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error(
        "lease {lease} in `{run_dir}` is still supervised by process {pid}, \
         hint: stop that one first",
        run_dir = run_dir.display()
    )]
    Supervised { run_dir: PathBuf, lease: LeaseId, pid: i32 },
    #[error("processes {pids:?} of lease {lease} cannot be killed")]
    Unkillable { lease: LeaseId, pids: Vec<i32> },
}

/// Real processes on this machine. All that is done for them is done in [`Engine::submit`] and
/// [`Engine::next_event`], by whoever calls these: nothing moves while nobody does.
///
/// Dropping the engine kills its gangs; [`Node::detach`] leaves them running.
#[derive(Debug)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) generation: Generation,
    /// Apart, since gangs come and go between others.
    pub(crate) gangs: BTreeMap<LeaseId, Box<Gang>>,
    pub(crate) cores: Cores,
    pub(crate) ports: Ports,
    pub(crate) site: Site,
    inbox: Inbox,
    /// Of leases whose end was told but may not be durable yet.
    remains: Vec<Remains>,
    senders: Weak<Port>,
    /// The latest time that anybody was told.
    told: Cell<Time>,
}

/// The parts of [`Action::Start`] that an engine acts on.
pub(crate) struct Start<'a> {
    pub(crate) lease: LeaseId,
    pub(crate) attempt: u32,
    pub(crate) placement: &'a Arc<Placement>,
    pub(crate) launch: &'a Arc<Launch>,
    pub(crate) resume: &'a Option<Checkpoint>,
}

impl Node {
    /// # Errors
    /// When the configuration does not fit the topology or this process.
    pub fn new(config: Config) -> Result<Self, NodeError> {
        check(&config)?;
        let progress = progress_dir(&config.run_dir);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&progress);
        made.map_err(|source| NodeError::Record { path: progress.clone(), source })?;
        record::remove_blanks(&config.run_dir);
        let null = OpenOptions::new().read(true).write(true).open(NULL);
        let null = null.map_err(|source| NodeError::Record { path: NULL.into(), source })?.into();
        let poller = Poller::new().map_err(NodeError::Poller)?;
        let inbox = Inbox::new().map_err(NodeError::Poller)?;
        let listen = poller.listen(&inbox, Source::Inbox, Until::Closed);
        listen.map_err(NodeError::Poller)?;
        let listener = Listener::start(&progress).ok();
        let listener = listener
            .filter(|listener| poller.listen(listener, Source::Progress, Until::Heard).is_ok());
        let hierarchy = match config.control_groups {
            ControlGroups::Auto => {
                let kept = config.exits.is_some();
                Hierarchy::of(
                    &config.run_dir,
                    if kept { HostRole::Service } else { HostRole::Guest },
                )
            }
            ControlGroups::Off => Hierarchy::default(),
        };
        let site = Site {
            clock: Clock::start(),
            poller,
            leaders: Leaders::new(),
            null,
            spawner: Spawner::default(),
            listener,
            memory_kills: MemoryKills::default(),
            hierarchy,
            durable: Vec::new(),
            spares: Spares::new(&config.run_dir),
            facts: VecDeque::new(),
        };
        Ok(Self {
            cores: Cores::new(config.cores.clone()),
            ports: Ports::default(),
            generation: Generation(0),
            gangs: BTreeMap::new(),
            site,
            inbox,
            remains: Vec::new(),
            senders: Weak::new(),
            told: Cell::new(Time::ZERO),
            config,
        })
    }

    /// A handle through which others report facts.
    pub fn event_sender(&mut self) -> EventSender {
        if let Some(port) = self.senders.upgrade() {
            return EventSender(port);
        }
        let port = Arc::new(self.inbox.port(self.site.clock));
        self.senders = Arc::downgrade(&port);
        EventSender(port)
    }

    /// Stops supervising without touching the processes; [`Node::reap`] finds them later, by what
    /// they note in their first moment.
    pub fn detach(mut self) {
        self.site.spawner.wait(STARTUP_LIMIT);
        self.gangs.clear();
    }

    /// Kills what an engine that died left running, by its run directory, and forgets it. To be
    /// called before the job is started again, never beside an engine that runs it.
    ///
    /// # Errors
    /// When another live process supervises a lease there, or something cannot be killed or
    /// removed.
    pub fn reap(run_dir: &Path) -> Result<Vec<Reaped>, NodeError> {
        record::reap(run_dir)
    }

    pub(crate) fn start(&mut self, start: Start<'_>) {
        let lease = start.lease;
        if self.gangs.contains_key(&lease) {
            return;
        }
        let ranks = &start.placement.ranks;
        let elsewhere = ranks.iter().any(|rank| rank.node != self.config.node);
        if ranks.is_empty() || ranks.len() > RANKS_MAX || elsewhere {
            let count = ranks.len();
            let text = format!("lease {lease} has {count} ranks, or some not on this machine");
            return self.refuse(lease, text);
        }
        let port = match self.ports.take(self.site.clock.now()) {
            Ok(port) => port,
            Err(error) => return self.refuse(lease, format!("no free port: {error}")),
        };
        let picked: Vec<Picked> =
            ranks.iter().map(|rank| self.cores.take(all_grants(rank))).collect();
        let order = self.order(&start, port, picked.clone(), 0);
        match Gang::start(order, &mut self.site) {
            Ok(gang) => self.keep(lease, gang),
            Err(failure) => {
                self.free(&picked, port);
                self.fail(lease, failure);
            }
        }
    }

    pub(crate) fn order(
        &self,
        start: &Start<'_>,
        port: u16,
        picked: Vec<Picked>,
        since_ticks: u64,
    ) -> Order {
        Order {
            lease: start.lease,
            attempt: start.attempt,
            placement: Arc::clone(start.placement),
            launch: Arc::clone(start.launch),
            resume: start.resume.clone(),
            topology: Arc::clone(&self.config.topology),
            visible_env: self.config.visible_env,
            container_access: self.config.container_access,
            port,
            lease_dir: lease_path(&self.config.run_dir, start.lease),
            health_check: self.config.health_check.clone(),
            exits: self.config.exits.clone().map(|path| (Exits(path), since_ticks)),
            picked,
        }
    }

    fn refuse(&mut self, lease: LeaseId, message: String) {
        self.fail(lease, Failure { rank: 0, exit_code: EXIT_CANNOT_RUN, message });
    }

    /// Every start has an end, also one that never was.
    fn fail(&mut self, lease: LeaseId, failure: Failure) {
        self.site.tell(Event::StageEnded { lease, outcome: Outcome::Failed(failure) });
    }

    /// Facts are stamped where they are found: what overtook another must not go backwards.
    fn tell(&self, at: Time) -> Time {
        let at = at.max(self.told.get());
        self.told.set(at);
        at
    }

    fn can_anything_happen(&self) -> bool {
        !self.gangs.is_empty() || self.senders.strong_count() > 0
    }

    /// When something is to be done, if nothing happens before.
    fn deadline(&self) -> Option<Time> {
        let deaf_until = self.site.listener.as_ref().and_then(|listener| listener.deaf_until);
        self.gangs.values().filter_map(|gang| gang.deadline()).chain(deaf_until).min()
    }

    /// Waits until something happens or is due, and sees to it.
    fn look(&mut self, until: Option<Time>) -> Heard {
        // What was waiting for their devices has been started by now.
        self.site.forget();
        let wake = [until, self.deadline()].into_iter().flatten().min();
        let limit = wake.map(|at| at.since(self.site.clock.now()));
        let ready = self.site.poller.wait(limit);
        let mut touched = BTreeSet::new();
        let mut heard = Heard::Nothing;
        for source in ready {
            match source {
                Source::Inbox => {
                    heard = Heard::WakeFd;
                    let facts = self.inbox.empty();
                    let facts = facts.map(|(at, event)| Fact { at, event, remains: None });
                    self.site.facts.extend(facts);
                }
                Source::Progress => touched.extend(self.hear_of_progress()),
                Source::Rank(lease, _)
                | Source::Other(lease, _)
                | Source::Saves(lease)
                | Source::Output(lease) => {
                    touched.insert(lease);
                    if let Some(gang) = self.gangs.get_mut(&lease) {
                        gang.found(source, &mut self.site);
                    }
                }
            }
        }
        self.listen_to_progress();
        let now = self.site.clock.now();
        let due = |gang: &Gang| gang.deadline().is_some_and(|at| at <= now);
        touched.extend(self.gangs.iter().filter(|(_, gang)| due(gang)).map(|(&lease, _)| lease));
        touched.into_iter().for_each(|lease| self.go_on(lease));
        heard
    }

    /// Nothing may happen any more to one that has lost all its processes already.
    pub(crate) fn keep(&mut self, lease: LeaseId, gang: Gang) {
        self.gangs.insert(lease, Box::new(gang));
        self.go_on(lease);
    }

    /// An end frees what the engine chose for the lease.
    fn go_on(&mut self, lease: LeaseId) {
        let Some(gang) = self.gangs.get_mut(&lease) else { return };
        if gang.go_on(&mut self.site) == Life::Over
            && let Some(gang) = self.gangs.remove(&lease)
        {
            self.free(gang.picked(), gang.port());
        }
    }

    fn free(&mut self, picked: &[Picked], port: u16) {
        picked.iter().for_each(|picked| self.cores.put_back(picked));
        self.ports.put_back(port);
    }

    fn hear_of_progress(&mut self) -> Vec<LeaseId> {
        let now = self.site.clock.now();
        let Some(listener) = &mut self.site.listener else { return Vec::new() };
        let leases = match listener.changed(now) {
            Changed::Of(leases) => leases,
            Changed::Any => self.gangs.keys().copied().collect(),
        };
        for lease in &leases {
            if let Some(gang) = self.gangs.get_mut(lease) {
                gang.found(Source::Progress, &mut self.site);
            }
        }
        leases
    }

    fn listen_to_progress(&mut self) {
        let now = self.site.clock.now();
        if let Some(listener) = &mut self.site.listener
            && listener.deaf_until.take_if(|at| *at <= now).is_some()
        {
            self.site.poller.listen_again(&*listener, Source::Progress);
        }
    }
}

/// Whether somebody asked for attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    WakeFd,
    Nothing,
}

impl Engine for Node {
    fn adopt(&mut self, state: &State) {
        self.take_up_all(state);
    }

    fn submit(&mut self, plan: &Plan) {
        if plan.generation <= self.generation {
            return;
        }
        self.generation = plan.generation;
        for action in &plan.actions {
            match action {
                Action::Start { lease, attempt, placement, launch, resume, .. } => {
                    let (lease, attempt) = (*lease, *attempt);
                    self.start(Start { lease, attempt, placement, launch, resume });
                }
                Action::Stop { lease, cause, grace, .. } => {
                    if let Some(gang) = self.gangs.get_mut(lease) {
                        gang.stop(cause.word(), *grace, self.site.clock.now());
                    }
                }
                // Nothing else on this machine could grab them.
                Action::Claim { .. } | Action::Unclaim { .. } => {}
            }
        }
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        loop {
            if let Some(Fact { at, event, remains }) = self.site.facts.pop_front() {
                self.remains.extend(remains);
                return Some((self.tell(at), event));
            }
            // Where nothing can happen any more, something may have happened before.
            let is_over = until.is_none() && !self.can_anything_happen();
            let until = if is_over { Some(self.site.clock.now()) } else { until };
            let heard = self.look(until);
            let over = until.is_some_and(|until| self.site.clock.now() >= until);
            if self.site.facts.is_empty() && (heard == Heard::WakeFd || over) {
                return None;
            }
        }
    }

    fn waker(&mut self) -> Waker {
        let event_sender = self.event_sender();
        Waker::new(move || event_sender.wake())
    }

    fn committed(&mut self) {
        self.site.durable.append(&mut self.remains);
    }

    fn now(&self) -> Time {
        self.tell(self.site.clock.now())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Who panics leaves its gangs to whoever comes after, as one that is killed does.
        if thread::panicking() {
            return;
        }
        self.gangs.values_mut().for_each(|gang| gang.kill());
        let deadline = self.site.clock.now() + DROP_LIMIT;
        while !self.gangs.is_empty() && self.site.clock.now() < deadline {
            // What it says, nobody hears any more.
            let _ = self.next_event(Some(deadline));
        }
        self.site.forget();
        self.site.spares.remove();
        // Ends that may not be durable keep their records, and gangs that were left to whoever
        // comes next report here. Whatever else is in the directory is not this engine's.
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

fn check(config: &Config) -> Result<(), NodeError> {
    let (topology, node) = (&config.topology, config.node);
    if node.index() >= topology.nodes.len() {
        return Err(NodeError::NoSuchNode { node });
    }
    let allowed = sched_getaffinity(Pid::from_raw(0)).map_err(NodeError::Affinity)?;
    let sockets: BTreeSet<DeviceId> = topology.sockets(node).collect();
    let mut seen = BTreeSet::new();
    for (&device, cores) in &config.cores {
        if !sockets.contains(&device) {
            return Err(NodeError::NotASocket { device, node });
        }
        for &core in cores {
            if !allowed.is_set(core as usize).unwrap_or(false) {
                return Err(NodeError::ForbiddenCore { device, core });
            }
            if !seen.insert(core) {
                return Err(NodeError::DuplicateCore { core });
            }
        }
    }
    Ok(())
}
