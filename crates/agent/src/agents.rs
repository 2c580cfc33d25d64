//! The engine of a machine that several users share.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use het_core::{
    Action, Event, Failure, Launch, LeaseId, Millis, Name, Outcome, Phase, Plan, PreparationEnd,
    State, Time, Topology,
};
use het_engine::{Engine, GenerationFence, Waker};
use het_node::{EventSender, GangResources, LiveLease, Node, NodeSettings};
use het_wire::record::write_topology;

use crate::link::{Ear, Ended, Heard, What};
use crate::messages::{Begin, FromAgent, ToAgent};
use crate::spawner::SpawnAgents;
use crate::user::{Live, Patience, Shared, Starts, UserAgent};

/// Messages of all agents that may wait for the engine; agents wait for room.
const HEARD_MAX: usize = 1_024;
/// How long is waited at once where only an agent can end the wait.
const WAIT: Millis = Millis(3_600_000);

/// How jobs of other users run.
#[derive(Debug)]
pub struct Users {
    pub spawner: Arc<dyn SpawnAgents>,
    /// The machine as it was found.
    pub found: Arc<Topology>,
    /// Where users have their directories, each its own.
    pub dir: PathBuf,
    /// Where submissions are kept.
    pub kept: PathBuf,
    pub settings: NodeSettings,
    pub patience: Patience,
}

/// An engine that runs a job of nobody in particular itself, and has one of a user run by an agent
/// of that user. With users there are no jobs of nobody: a program would run as the server.
#[derive(Debug)]
pub struct Agents {
    own: Node,
    /// None where all jobs are the server's user's.
    shared: Option<Shared>,
    fence: GenerationFence,
    users: BTreeMap<Name, UserAgent>,
    heard: Receiver<Heard>,
    /// Facts that were not given to the caller yet.
    ready: VecDeque<Ready>,
    /// Leases of agents whose end was given to the caller but may not be durable yet.
    uncommitted: BTreeMap<Name, Vec<LeaseId>>,
    woken: Arc<Woken>,
    latest: Cell<Time>,
}

/// A fact, and which user's agent reported it.
#[derive(Debug)]
struct Ready {
    at: Time,
    event: Event,
    user: Option<Name>,
}

/// By whom a wait was ended.
#[derive(Debug, Default)]
struct Woken {
    /// Who waits is to look at something else.
    by_caller: AtomicBool,
    by_agent: AtomicBool,
}

impl Agents {
    pub fn new(own: Node, users: Option<Users>) -> Self {
        let (heard_sender, heard) = sync_channel(HEARD_MAX);
        let woken = Arc::<Woken>::default();
        let (wake, woken_too) = (own.silent_waker(), Arc::clone(&woken));
        let waker = Waker::new(move || {
            woken_too.by_agent.store(true, Ordering::SeqCst);
            wake.wake();
        });
        let shared = users.map(|users| Shared {
            spawner: users.spawner,
            ear: Ear { heard: heard_sender, waker },
            begin: Begin {
                found: write_topology(&users.found),
                rows: write_topology(&users.found),
                dir: PathBuf::new(),
                kept: users.kept,
                at: 0,
                since_boot: 0,
                settings: users.settings,
            },
            users: users.dir,
            patience: users.patience,
        });
        Self {
            own,
            shared,
            fence: GenerationFence::default(),
            users: BTreeMap::new(),
            heard,
            ready: VecDeque::new(),
            uncommitted: BTreeMap::new(),
            woken,
            latest: Cell::new(Time::ZERO),
        }
    }

    /// As [`Node::event_sender`].
    pub fn event_sender(&mut self) -> EventSender {
        self.own.event_sender()
    }

    /// As [`Node::detach`]; agents do the same when they see that nobody leads them.
    pub fn detach(self) {
        self.own.detach();
    }

    fn start(&mut self, action: &Action) {
        let Action::Start { lease, attempt, placement, launch, resume, .. } = action else {
            return;
        };
        let (Some(shared), Some(user)) = (&self.shared, &launch.user) else {
            return match (&self.shared, &launch.user) {
                (None, None) => self.own.carry_out(action, None),
                _ => self.refuse(*lease, whose(launch)),
            };
        };
        let resources = match self.own.choose(placement) {
            Ok(resources) => resources,
            Err(error) => return self.refuse(*lease, format!("no free port: {error}")),
        };
        let lease = LiveLease {
            lease: *lease,
            attempt: *attempt,
            phase: Phase::Starting,
            placement: Arc::clone(placement),
            launch: Arc::clone(launch),
            resume: resume.clone(),
        };
        let live = Live::new(lease, Some(resources));
        let now = self.own.now();
        let agent = self.users.entry(user.clone()).or_default();
        let before = agent.live.values().map(|live| &*live.lease.placement);
        agent.set_access(self.own.access_of(before.chain([&**placement])));
        agent.start(action, live, shared, now);
    }

    fn prepare(&mut self, action: &Action, lease: LeaseId, launch: &Launch) {
        let now = self.own.now();
        match (&self.shared, &launch.user) {
            (None, None) => self.own.carry_out(action, None),
            (Some(shared), Some(user)) => {
                self.users.entry(user.clone()).or_default().prepare(action, shared, now);
            }
            _ => {
                let end = PreparationEnd::Failed { reason: whose(launch) };
                self.give(Event::PreparationEnded { lease, end });
            }
        }
    }

    fn unprepare(&mut self, action: &Action, lease: LeaseId) {
        let now = self.own.now();
        match &self.shared {
            Some(_) => {
                self.users.values_mut().for_each(|agent| agent.unprepare(action, lease, now));
            }
            None => self.own.carry_out(action, None),
        }
    }

    fn stop(&mut self, action: &Action, lease: LeaseId) {
        let now = self.own.now();
        let user = self.users.values_mut().find(|user| user.live.contains_key(&lease));
        match (user, &self.shared) {
            (Some(user), Some(shared)) => user.stop(action, shared.patience, now),
            _ => self.own.carry_out(action, None),
        }
    }

    fn refuse(&mut self, lease: LeaseId, reason: String) {
        self.give(Event::StageEnded { lease, outcome: Outcome::Refused { reason } });
    }

    fn give(&mut self, event: Event) {
        self.ready.push_back(Ready { at: self.own.now(), event, user: None });
    }

    /// What agents said so far.
    fn hear(&mut self) {
        while let Ok(Heard { user, connection, what }) = self.heard.try_recv() {
            let is_current = self.users.get(&user).is_some_and(|agent| agent.hears(connection));
            match what {
                _ if !is_current => {}
                What::Said(message) => self.said(&user, message),
                What::Ended(ended) => self.agent_ended(&user, &ended),
            }
        }
    }

    fn said(&mut self, user: &Name, message: FromAgent) {
        match message {
            FromAgent::Ready => {
                let agent = self.users.entry(user.clone()).or_default();
                agent.is_ready();
                self.shared.iter().for_each(|shared| agent.send_prepared(shared));
            }
            FromAgent::Event(record) => {
                // What is no event tells of nothing.
                if let Ok((at, event)) = record.read() {
                    self.reported(user, at, event);
                }
            }
            FromAgent::Has { lease, resources } => self.has(user, LeaseId(lease), resources),
            // The link ends with it, and says so.
            FromAgent::Failed { .. } => {}
        }
    }

    /// An agent is believed about live leases of its user, as far as an engine may speak of them.
    fn reported(&mut self, user: &Name, at: Time, event: Event) {
        let lease = match &event {
            Event::StageStarted { lease }
            | Event::Progressed { lease, .. }
            | Event::Checkpointed { lease, .. }
            | Event::StagePublished { lease }
            | Event::PreparationEnded { lease, .. }
            | Event::StageEnded { lease, .. } => *lease,
            // A device is everybody's, and a user may fail its health check at will.
            _ => return,
        };
        let Some(agent) = self.users.get_mut(user) else { return };
        if let Event::PreparationEnded { lease, .. } = event {
            if agent.preparation_ended(lease, self.own.now()) {
                self.give(event);
            }
            return;
        }
        let Some(live) = agent.live.get_mut(&lease) else { return };
        match &event {
            // An agent that took up what its predecessor had says it again.
            Event::StageStarted { .. } if live.started => return,
            Event::StageStarted { .. } => {
                live.started = true;
                if live.lease.phase == Phase::Starting {
                    live.lease.phase = Phase::Running { since: at };
                }
            }
            Event::StageEnded { .. } => self.end(user, lease),
            _ => {}
        }
        let at = at.min(self.own.now());
        self.ready.push_back(Ready { at, event, user: Some(user.clone()) });
    }

    fn end(&mut self, user: &Name, lease: LeaseId) {
        let now = self.own.now();
        let Some(agent) = self.users.get_mut(user) else { return };
        let live = agent.end(lease, now);
        let left = agent.live.values().map(|live| &*live.lease.placement);
        agent.set_access(self.own.access_of(left));
        if let Some(resources) = live.and_then(|live| live.resources) {
            self.own.put_back(&resources);
        }
    }

    /// What a lease has that an agent took up, where the server did not choose it.
    fn has(&mut self, user: &Name, lease: LeaseId, resources: GangResources) {
        let live = self.users.get_mut(user).and_then(|agent| agent.live.get_mut(&lease));
        if let Some(live) = live
            && live.resources.is_none()
        {
            self.own.choose_again(&resources);
            live.resources = Some(resources);
        }
    }

    fn agent_ended(&mut self, user: &Name, ended: &Ended) {
        let now = self.own.now();
        let Some(agent) = self.users.get_mut(user) else { return };
        let lost = agent.prepared.extract_if(.., |_, untold| untold.is_none());
        for (lease, _) in lost {
            let event = Event::PreparationEnded { lease, end: PreparationEnd::Lost };
            self.ready.push_back(Ready { at: now, event, user: None });
        }
        let (starts, why) = match ended {
            Ended::Cleared => return self.cleared(user),
            Ended::Gone(why) => (agent.ended(now), format!("no agent of `{user}` runs: {why}")),
            Ended::Refused(why) => {
                agent.refused(now);
                (Starts::GivenUp, why.clone())
            }
        };
        if starts == Starts::Kept {
            return;
        }
        // Of others an agent may have begun something.
        let untold = agent.live.iter().filter(|(_, live)| !live.told);
        let untold: Vec<LeaseId> = untold.map(|(&lease, _)| lease).collect();
        for lease in untold {
            self.end(user, lease);
            self.refuse(lease, why.clone());
        }
    }

    /// Nothing runs for this user any more, and how it ended nobody saw.
    fn cleared(&mut self, user: &Name) {
        let now = self.own.now();
        let leases = self.users.get_mut(user).map(|agent| agent.cleared(now)).unwrap_or_default();
        for lease in leases {
            self.end(user, lease);
            let message = format!("all that ran for `{user}` was ended: its agent did not answer");
            let outcome = Outcome::Failed(Failure { message, ..Failure::unseen() });
            self.give(Event::StageEnded { lease, outcome });
        }
    }

    /// Starts agents for those who need one, and ends what agents do not.
    fn do_due(&mut self) {
        let (Some(shared), now) = (&self.shared, self.own.now()) else { return };
        self.users.iter_mut().for_each(|(user, agent)| agent.do_due(user, shared, now));
    }

    fn due_at(&self) -> Option<Time> {
        let patience = self.shared.as_ref()?.patience;
        self.users.values().filter_map(|agent| agent.due_at(patience)).min()
    }

    /// How long the own node may wait. It would not wait for what agents have to say.
    fn limit(&self, until: Option<Time>) -> Option<Time> {
        let agents = self.has_live().then(|| self.due_at().unwrap_or(self.own.now() + WAIT));
        [until, agents].into_iter().flatten().min()
    }

    fn rows(&mut self, topology: &Topology) {
        let Some(shared) = &mut self.shared else { return };
        shared.begin.rows = write_topology(topology);
        let rows = ToAgent::Rows(shared.begin.rows.clone());
        self.users.values().for_each(|agent| agent.send(&rows));
    }

    fn has_live(&self) -> bool {
        self.users.values().any(|agent| !agent.live.is_empty())
    }

    fn monotonic(&self, at: Time) -> Time {
        let at = at.max(self.latest.get());
        self.latest.set(at);
        at
    }
}

/// Why nobody may start it.
fn whose(launch: &Launch) -> String {
    match &launch.user {
        Some(user) => format!(
            "it is to run as `{user}`, and this server runs jobs as its own user only; \
             `sudo het server install` sets one up for several"
        ),
        None => "it names no user to run as; submit it again".to_owned(),
    }
}

impl Engine for Agents {
    fn adopt(&mut self, state: &State) {
        self.fence.adopt(state);
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for live in LiveLease::all(state) {
            match (&self.shared, live.launch.user.clone()) {
                (None, None) => own.push(live),
                (Some(_), Some(user)) => others.push((user, live)),
                _ if live.phase == Phase::Starting => {
                    self.refuse(live.lease, whose(&live.launch));
                }
                // What it became nobody can say any more.
                _ => self.give(Event::StageEnded {
                    lease: live.lease,
                    outcome: Outcome::Failed(Failure::unseen()),
                }),
            }
        }
        self.own.adopt_of(state, own);
        self.rows(state.topology());
        let now = self.own.now();
        let patience = self.shared.as_ref().map_or_else(Patience::default, |it| it.patience);
        let mut known: BTreeMap<LeaseId, Live> = BTreeMap::new();
        self.users.values_mut().for_each(|agent| known.append(&mut agent.live));
        for (user, lease) in others {
            let resources = match known.remove(&lease.lease) {
                Some(live) => live.resources,
                None if lease.phase == Phase::Starting => self.own.choose(&lease.placement).ok(),
                None => None,
            };
            let live = Live::adopted(lease, resources, now, patience);
            self.users.entry(user).or_default().live.insert(live.lease.lease, live);
        }
        for resources in known.into_values().filter_map(|live| live.resources) {
            self.own.put_back(&resources);
        }
        let Some(shared) = &self.shared else { return };
        for (user, agent) in &mut self.users {
            let live = agent.live.values().map(|live| &*live.lease.placement);
            agent.set_access(self.own.access_of(live));
            agent.give_up_prepared();
            match agent.is_connected() {
                true => agent.send_adopted(shared),
                false => agent.connect(user, shared, now),
            }
        }
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        self.own.topology_changed(topology);
        self.rows(topology);
    }

    fn submit(&mut self, plan: &Plan) {
        if !self.fence.admits(plan) {
            return;
        }
        for action in &plan.actions {
            match action {
                Action::Start { .. } => self.start(action),
                Action::Stop { lease, .. } => self.stop(action, *lease),
                Action::Prepare { lease, launch, .. } => self.prepare(action, *lease, launch),
                Action::Unprepare { lease, .. } => self.unprepare(action, *lease),
                Action::Claim { .. } | Action::Unclaim { .. } => {}
            }
        }
        self.do_due();
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        loop {
            self.hear();
            self.do_due();
            if let Some(Ready { at, event, user }) = self.ready.pop_front() {
                if let (Event::StageEnded { lease, .. }, Some(user)) = (&event, user) {
                    self.uncommitted.entry(user).or_default().push(*lease);
                }
                return Some((self.monotonic(at), event));
            }
            if let Some((at, event)) = self.own.next_event(self.limit(until)) {
                return Some((self.monotonic(at), event));
            }
            let is_over = match until {
                Some(until) => self.own.now() >= until,
                None => !self.has_live(),
            };
            let is_asked = self.woken.by_caller.swap(false, Ordering::SeqCst);
            let is_heard = self.woken.by_agent.swap(false, Ordering::SeqCst);
            let is_due = self.due_at().is_some_and(|at| at <= self.own.now());
            if is_asked || !(is_heard || is_due) || is_over {
                self.hear();
                if self.ready.is_empty() {
                    return None;
                }
            }
        }
    }

    fn committed(&mut self) {
        self.own.committed();
        for (user, leases) in std::mem::take(&mut self.uncommitted) {
            if let Some(agent) = self.users.get(&user) {
                agent.send(&ToAgent::Committed(leases.iter().map(|lease| lease.0).collect()));
            }
        }
    }

    fn waker(&mut self) -> Waker {
        let (wake, woken) = (self.own.waker(), Arc::clone(&self.woken));
        Waker::new(move || {
            woken.by_caller.store(true, Ordering::SeqCst);
            wake.wake();
        })
    }

    fn now(&self) -> Time {
        self.monotonic(self.own.now())
    }
}
