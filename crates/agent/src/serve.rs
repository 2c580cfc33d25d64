//! The agent: a process of one user that supervises this user's gangs, as a server tells it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::{fs, thread};

use het_core::{Action, LeaseId, Time, Topology};
use het_engine::Engine;
use het_node::{
    Config, ContainerAccess, ControlGroups, EventSender, GangResources, Heartbeat, Node, NodeError,
    RunMode, VisibleEnv, since_boot,
};
use het_wire::record::{Record, read_topology};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use thiserror::Error;

use crate::kept::{keep, moved, remove_others};
use crate::messages::{Adopted, Begin, FromAgent, ToAgent, actions, leases, read, write};

/// What is in the directory of a user.
const RUN: &str = "run";
const KEPT: &str = "kept";
const JOBS: &str = "jobs";
const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Why an agent ended before its server did.
#[derive(Debug, Error)]
pub enum AgentError {
    #[error("the server cannot be heard")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("the server says what this program does not know")]
    Unknown,
}

/// What programs are given that the node does not know of itself.
#[derive(Debug, Clone, Copy)]
pub struct Programs {
    pub visible_env: VisibleEnv,
    pub container_access: ContainerAccess,
}

/// Serves until the server is gone. What runs then goes on: the next agent takes it up.
///
/// # Errors
/// When it cannot begin, or the server says what it does not understand.
pub fn serve(server: UnixStream, programs: Programs) -> Result<(), AgentError> {
    let served = serve_node(&server, programs);
    if let Err(error) = &served {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let why = format!("{error}{}", cause.unwrap_or_default());
        // Where the server is gone, nobody needs to know.
        let _ = write(&server, &FromAgent::Failed { why });
    }
    served
}

fn serve_node(server: &UnixStream, programs: Programs) -> Result<(), AgentError> {
    let mut reading = BufReader::new(server.try_clone()?);
    let begin = match read(&mut reading, u64::MAX)? {
        Some(ToAgent::Begin(begin)) => begin,
        Some(_) => return Err(AgentError::Unknown),
        None => return Ok(()),
    };
    // The agent before ends when it sees that its server is gone, and until then it may act.
    let _lock = lock(&begin.dir)?;
    clear_the_way(&begin.dir)?;
    let mut node = Node::new(config(&begin, programs)?)?;
    node.topology_changed(&topology(&begin.rows)?);
    write(server, &FromAgent::Ready)?;
    let orders = hear(reading, node.event_sender())?;
    let mut agent = Agent { node, own: begin.dir.join(KEPT), kept: begin.kept };
    let served = agent.serve(&orders, server);
    // However it ended: what runs is not this process's to end.
    agent.node.detach();
    served
}

/// What the server says; `None` at the end.
type Orders = Receiver<io::Result<Option<ToAgent>>>;

/// Hears the server on a thread of its own, which wakes the node.
fn hear(mut reading: BufReader<UnixStream>, node: EventSender) -> io::Result<Orders> {
    let (sender, orders) = channel();
    let run = move || {
        loop {
            let order = read(&mut reading, u64::MAX);
            let is_last = !matches!(order, Ok(Some(_)));
            if sender.send(order).is_err() {
                return;
            }
            node.wake();
            if is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("server".to_owned()).spawn(run)?;
    Ok(orders)
}

/// One agent of a user at a time. The directory is the lock: the user cannot put another there.
fn lock(dir: &Path) -> io::Result<File> {
    let lock = File::from(open(dir, DIRECTORY, Mode::empty())?);
    lock.lock()?;
    Ok(lock)
}

/// Removes what the user has put where there are to be directories.
fn clear_the_way(dir: &Path) -> io::Result<()> {
    for name in [RUN, KEPT, JOBS] {
        let path = dir.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn topology(record: &het_wire::record::TopologyRecord) -> Result<Arc<Topology>, AgentError> {
    read_topology(record).map(Arc::new).map_err(|_| AgentError::Unknown)
}

fn config(begin: &Begin, programs: Programs) -> Result<Config, AgentError> {
    let passed = since_boot().0.saturating_sub(begin.since_boot);
    Ok(Config {
        found: topology(&begin.found)?,
        // Which cores a gang gets is for the server to say.
        cores: BTreeMap::new(),
        visible_env: programs.visible_env,
        container_access: programs.container_access,
        // Only root may keep a user from devices.
        device_nodes: BTreeMap::new(),
        run_dir: begin.dir.join(RUN),
        begins_at: Time(begin.at + passed),
        control_groups: ControlGroups::Auto,
        settings: begin.settings.clone(),
        mode: RunMode::Service,
        device_holds: None,
        heartbeat: Heartbeat::default(),
        quarantined: BTreeSet::new(),
    })
}

struct Agent {
    node: Node,
    /// Where the server has what submissions left, and where this user has it.
    kept: PathBuf,
    own: PathBuf,
}

impl Agent {
    /// Until the server is gone.
    fn serve(&mut self, orders: &Orders, server: &UnixStream) -> Result<(), AgentError> {
        loop {
            for order in orders.try_iter() {
                match order? {
                    Some(order) => self.obey(order, server)?,
                    None => return Ok(()),
                }
            }
            if let Some((at, event)) = self.node.next_event(None) {
                write(server, &FromAgent::Event(Record::new(at, &event).into()))?;
            }
        }
    }

    fn obey(&mut self, order: ToAgent, server: &UnixStream) -> Result<(), AgentError> {
        match order {
            ToAgent::Begin(_) => return Err(AgentError::Unknown),
            ToAgent::Rows(rows) => self.node.topology_changed(&topology(&rows)?),
            // Without it the start fails, and says what is missing.
            ToAgent::Keep { name, text } => drop(keep(&self.own, &name, &text)),
            ToAgent::Adopt(adopted) => self.adopt(&adopted, server)?,
            ToAgent::Act { plan, resources } => self.act(&plan, resources)?,
            ToAgent::Committed(ended) => self.node.committed_of(&leases(&ended).collect()),
        }
        Ok(())
    }

    fn adopt(&mut self, adopted: &[Adopted], server: &UnixStream) -> Result<(), AgentError> {
        let live: Option<Vec<_>> = adopted
            .iter()
            .map(|one| {
                let mut live = one.live()?;
                live.launch = moved(&live.launch, &self.kept, &self.own);
                Some((live, one.resources.clone()))
            })
            .collect();
        let live = live.ok_or(AgentError::Unknown)?;
        remove_others(&self.own, live.iter().map(|(live, _)| &*live.launch));
        let leases: Vec<LeaseId> = live.iter().map(|(live, _)| live.lease).collect();
        self.node.adopt_leases(live.into_iter());
        for lease in leases {
            if let Some(resources) = self.node.resources_of(lease) {
                write(server, &FromAgent::Has { lease: lease.0, resources })?;
            }
        }
        Ok(())
    }

    fn act(
        &mut self,
        plan: &Record,
        resources: Vec<(u64, GangResources)>,
    ) -> Result<(), AgentError> {
        let resources: BTreeMap<u64, GangResources> = resources.into_iter().collect();
        for mut action in actions(plan).ok_or(AgentError::Unknown)? {
            let mut given = None;
            if let Action::Start { lease, launch, .. } | Action::Prepare { lease, launch, .. } =
                &mut action
            {
                *launch = moved(launch, &self.kept, &self.own);
                given = resources.get(&lease.0);
            }
            self.node.carry_out(&action, given);
        }
        Ok(())
    }
}
