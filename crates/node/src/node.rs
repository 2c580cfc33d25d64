//! The engine for this machine.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use het_core::{
    Action, Checkpoint, CheckpointSpec, DeviceId, Event, Failure, Generation, Launch, LeaseId,
    Millis, NodeId, Outcome, Phase, Placement, Plan, State, Time, Topology,
};
use het_engine::Engine;
use nix::sched::sched_getaffinity;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::Pid;
use thiserror::Error;

use crate::clock::Clock;
use crate::cores::{Cores, Picked};
use crate::exit::EXIT_CANNOT_RUN;
use crate::gang::{self, StopAsked};
use crate::inlet::{Inlet, Message, Port, Remains};
use crate::keeper::Exits;
use crate::leaders::Leaders;
use crate::listener::{Ear, Listener};
use crate::order::{Order, VisibleEnv, all_grants, record_path};
use crate::record::{self, Reaped, Record};
use crate::spawn::{Kin, Process};
use crate::sweep::sweep;
use crate::sys::pidfd_open;
use crate::wires::{Command, Wires};

/// Facts that wait to be taken; whoever reports one more waits.
const FACTS_MAX: usize = 16_384;
/// Commands that wait for one gang; further ones could only repeat them.
const COMMANDS_MAX: usize = 64;
/// How often another free port is tried when a live gang has the one that was found.
const PORT_TRIES_MAX: usize = 16;
/// How long a dropped engine waits for its gangs to be gone.
const DROP_LIMIT: Millis = Millis(5_000);

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
    /// For files of live leases, which mean nothing after a reboot; made if it is not there. No
    /// other engine may use it at the same time.
    pub run_dir: PathBuf,
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
    #[error("cannot read or remove `{path}`", path = path.display())]
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

/// Real processes on this machine. One thread supervises each gang.
///
/// Dropping the engine kills its gangs; [`Node::detach`] leaves them running.
#[derive(Debug)]
pub struct Node {
    config: Config,
    clock: Clock,
    generation: Generation,
    live: BTreeMap<LeaseId, Live>,
    cores: Cores,
    inbox: Receiver<Message>,
    outbox: SyncSender<Message>,
    /// Facts that no thread had to find out.
    ready: VecDeque<(Time, Event)>,
    leaders: Arc<Leaders>,
    /// None where progress files cannot be watched: they are read at the end then.
    listener: Option<Listener>,
    /// Of leases whose end was told but may not be durable yet.
    remains: Vec<Remains>,
    inlets: Weak<Port>,
    /// The latest time that anybody was told.
    told: Cell<Time>,
}

#[derive(Debug)]
struct Live {
    commands: SyncSender<Command>,
    waker: Arc<EventFd>,
    picked: Vec<Picked>,
    port: u16,
}

impl Live {
    fn command(&self, command: Command) {
        // A full queue holds the same already; a gone gang needs none.
        let _ = self.commands.try_send(command);
        let _ = self.waker.write(1);
    }
}

/// The parts of [`Action::Start`] that an engine acts on.
struct Start<'a> {
    lease: LeaseId,
    attempt: u32,
    placement: &'a Arc<Placement>,
    launch: &'a Arc<Launch>,
    resume: &'a Option<Checkpoint>,
}

impl Node {
    /// # Errors
    /// When the configuration does not fit the topology or this process.
    pub fn new(config: Config) -> Result<Self, NodeError> {
        check(&config)?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.run_dir);
        made.map_err(|source| NodeError::Record { path: config.run_dir.clone(), source })?;
        let (outbox, inbox) = sync_channel(FACTS_MAX);
        Ok(Self {
            cores: Cores::new(config.cores.clone()),
            clock: Clock::start(),
            generation: Generation(0),
            live: BTreeMap::new(),
            inbox,
            outbox,
            ready: VecDeque::new(),
            leaders: Arc::new(Leaders::new()),
            listener: Listener::start(&config.run_dir).ok(),
            remains: Vec::new(),
            inlets: Weak::new(),
            told: Cell::new(Time::ZERO),
            config,
        })
    }

    /// A handle through which others report facts.
    pub fn inlet(&mut self) -> Inlet {
        if let Some(port) = self.inlets.upgrade() {
            return Inlet(port);
        }
        let port = Arc::new(Port { clock: self.clock, outbox: self.outbox.clone() });
        self.inlets = Arc::downgrade(&port);
        Inlet(port)
    }

    /// Stops supervising without touching the processes; [`Node::reap`] finds them later.
    pub fn detach(mut self) {
        for live in std::mem::take(&mut self.live).into_values() {
            live.command(Command::Detach);
        }
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

    fn start(&mut self, start: Start<'_>) {
        let lease = start.lease;
        if self.live.contains_key(&lease) {
            return;
        }
        let ranks = &start.placement.ranks;
        if ranks.is_empty() || ranks.iter().any(|rank| rank.node != self.config.node) {
            let text = format!("lease {lease} has ranks that are not on this machine");
            return self.refuse(lease, text);
        }
        let waker = match EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK) {
            Ok(waker) => Arc::new(waker),
            Err(error) => return self.refuse(lease, format!("no supervisor: {error}")),
        };
        let port = match self.free_port() {
            Ok(port) => port,
            Err(error) => return self.refuse(lease, format!("no free port: {error}")),
        };
        let picked: Vec<Picked> =
            ranks.iter().map(|rank| self.cores.take(all_grants(rank))).collect();
        let order = self.order(&start, port, picked, 0);
        self.supervise(order, waker, gang::run);
    }

    fn order(&self, start: &Start<'_>, port: u16, picked: Vec<Picked>, since_ticks: u64) -> Order {
        Order {
            lease: start.lease,
            attempt: start.attempt,
            placement: Arc::clone(start.placement),
            launch: Arc::clone(start.launch),
            resume: start.resume.clone(),
            topology: Arc::clone(&self.config.topology),
            visible_env: self.config.visible_env,
            port,
            run_dir: self.config.run_dir.clone(),
            exits: self.config.exits.clone().map(|path| (Exits(path), since_ticks)),
            picked,
        }
    }

    /// Gives a gang its thread.
    fn supervise(
        &mut self,
        order: Order,
        waker: Arc<EventFd>,
        run: impl FnOnce(Order, Wires) + Send + 'static,
    ) {
        let (lease, port, picked) = (order.lease, order.port, order.picked.clone());
        let (commands, receiver) = sync_channel(COMMANDS_MAX);
        let ear = self.listener.as_ref().map(|listener| {
            let ear = Ear::new(Arc::clone(&waker));
            listener.enter(lease, ear.clone());
            ear
        });
        let wires = Wires {
            clock: self.clock,
            outbox: self.outbox.clone(),
            leaders: Arc::clone(&self.leaders),
            ear,
            commands: receiver,
            waker: Arc::clone(&waker),
        };
        let thread = thread::Builder::new().name(format!("lease-{lease}"));
        match thread.spawn(move || run(order, wires)) {
            Ok(_) => {
                self.live.insert(lease, Live { commands, waker, picked, port });
            }
            Err(error) => {
                picked.iter().for_each(|picked| self.cores.put_back(picked));
                self.refuse(lease, format!("no supervisor: {error}"));
            }
        }
    }

    /// Takes up all that runs according to a state which was read from the log: what a supervisor
    /// left that died, or was detached. Programs that run go on; how those ended that are gone is
    /// told as soon as it is known; what was planned but never begun begins now. Also makes plans
    /// of generations up to the state's old ones.
    pub fn adopt(&mut self, state: &State) {
        self.generation = state.generation();
        for (&lease, held) in state.leases() {
            let (_, spec, stage) = state.stage(held.stage);
            let start = Start {
                lease,
                attempt: held.attempt,
                placement: &held.placement,
                launch: &spec.alternatives[held.placement.alternative].launch,
                resume: &stage.checkpoint,
            };
            self.take_up(start, held.phase);
        }
    }

    fn take_up(&mut self, start: Start<'_>, phase: Phase) {
        let lease = start.lease;
        let asked = if phase.is_stopping() { StopAsked::Yes } else { StopAsked::No };
        let path = record_path(&self.config.run_dir, lease);
        if !path.exists() {
            return match phase {
                Phase::Starting => self.start(start),
                // It ran, so somebody removed its record: it may run still.
                Phase::Running { .. } | Phase::Stopping { .. } => self.lose(lease, &path, None),
            };
        }
        let noted = record::noted(&path);
        let world = start.placement.ranks.len();
        let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let record = record::Record::read(&path);
        let (Some(record), Ok(waker), true) = (&record, waker, noted.len() == world) else {
            return self.lose(lease, &path, record.as_ref());
        };
        let written = fs::metadata(&path).and_then(|metadata| metadata.modified());
        let since = written.unwrap_or(SystemTime::UNIX_EPOCH);
        let processes = noted.into_iter().map(|(rank, pid)| {
            // Opened first: the id cannot become another process's between the two.
            let pidfd = pidfd_open(pid).ok().filter(|_| record.is_rank(pid));
            Process { rank, pid, pidfd, kin: Kin::Orphan, exit: None, cpu: Millis(0) }
        });
        let processes: Vec<Process> = processes.collect();
        let picked = record.cores.iter().map(|cores| self.cores.take_again(cores)).collect();
        let order = self.order(&start, record.port, picked, record.since_ticks);
        let take_up = move |order, wires| gang::take_up(order, wires, processes, since, asked);
        self.supervise(order, Arc::new(waker), take_up);
        if asked == StopAsked::Yes
            && let Some(live) = self.live.get(&lease)
        {
            let spec = start.launch.checkpoint.as_ref();
            let grace = spec.map_or(CheckpointSpec::GRACE_DEFAULT, |spec| spec.grace);
            live.command(Command::Stop { reason: "restart", grace });
        }
    }

    /// A lease of which not every rank began, or of a boot that is over, or whose record is gone:
    /// what there is of it goes.
    fn lose(&mut self, lease: LeaseId, path: &Path, record: Option<&Record>) {
        let ranks = record::noted(path).into_values();
        let groups = ranks.filter(|&pid| record.is_some_and(|record| record.is_rank(pid)));
        sweep(&groups.collect(), &record::mark(path), None);
        let event = Event::StageEnded { lease, outcome: Outcome::Lost };
        self.ready.push_back((self.clock.now(), event));
        self.remains.push(Remains { record: path.to_owned(), children: Vec::new() });
    }

    /// Every start has an end, also one that never was.
    fn refuse(&mut self, lease: LeaseId, message: String) {
        let failure = Failure { rank: 0, exit_code: EXIT_CANNOT_RUN, message };
        let event = Event::StageEnded { lease, outcome: Outcome::Failed(failure) };
        self.ready.push_back((self.clock.now(), event));
    }

    fn free_port(&self) -> io::Result<u16> {
        let taken: BTreeSet<u16> = self.live.values().map(|live| live.port).collect();
        for _ in 0..PORT_TRIES_MAX {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            if !taken.contains(&port) {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// Passes a fact on; an end frees what the engine chose for the lease.
    fn deliver(&mut self, at: Time, event: Event) -> (Time, Event) {
        if let Event::StageEnded { lease, .. } = &event
            && let Some(live) = self.live.remove(lease)
        {
            live.picked.iter().for_each(|picked| self.cores.put_back(picked));
            self.listener.iter().for_each(|listener| listener.leave(*lease));
        }
        (self.tell(at), event)
    }

    /// Threads look at the clock before they queue: what overtook another must not go backwards.
    fn tell(&self, at: Time) -> Time {
        let at = at.max(self.told.get());
        self.told.set(at);
        at
    }

    fn can_anything_happen(&self) -> bool {
        !self.live.is_empty() || self.inlets.strong_count() > 0
    }

    fn receive(&self, until: Option<Time>) -> Option<Message> {
        if let Ok(message) = self.inbox.try_recv() {
            return Some(message);
        }
        match until {
            None if !self.can_anything_happen() => None,
            None => self.inbox.recv().ok(),
            Some(until) => {
                let left = until.since(self.clock.now());
                self.inbox.recv_timeout(Duration::from_millis(left.0)).ok()
            }
        }
    }
}

impl Engine for Node {
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
                    if let Some(live) = self.live.get(lease) {
                        live.command(Command::Stop { reason: cause.word(), grace: *grace });
                    }
                }
                // Nothing else on this machine could grab them.
                Action::Claim { .. } | Action::Unclaim { .. } => {}
            }
        }
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        if let Some((at, event)) = self.ready.pop_front() {
            return Some(self.deliver(at, event));
        }
        loop {
            match self.receive(until) {
                Some(Message::Fact(at, event)) => return Some(self.deliver(at, event)),
                Some(Message::End(at, event, remains)) => {
                    self.remains.push(remains);
                    return Some(self.deliver(at, event));
                }
                Some(Message::Wake) => return None,
                None if until.is_some_and(|until| self.clock.now() < until) => {}
                None => return None,
            }
        }
    }

    fn committed(&mut self) {
        for Remains { record, children } in self.remains.drain(..) {
            record::forget(&record);
            children.into_iter().for_each(|pid| self.leaders.collect(pid));
        }
    }

    fn now(&self) -> Time {
        self.tell(self.clock.now())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Who panics leaves its gangs to whoever comes after, as one that is killed does.
        let last = if thread::panicking() { Command::Detach } else { Command::Kill };
        for live in self.live.values() {
            live.command(last);
        }
        if thread::panicking() {
            return;
        }
        let deadline = self.clock.now() + DROP_LIMIT;
        while !self.live.is_empty() && self.next_event(Some(deadline)).is_some() {}
        // Ends that may not be durable keep their records. Whatever else is in the directory is
        // not this engine's.
        let _ = fs::remove_dir(&self.config.run_dir);
    }
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
