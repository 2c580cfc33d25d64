//! One user's leases, and the connection to the agent that has their gangs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use het_core::{Action, JobId, Launch, LeaseId, Millis, Name, Phase, StageIndex, StageKey, Time};
use het_node::{DeviceAccess, GangResources, LiveLease};

use crate::kept;
use crate::link::{Ear, Link, Purpose};
use crate::messages::{Adopted, Begin, ToAgent, record};
use crate::spawner::SpawnAgents;

/// After so many agents in a row that did not last, starts are given up.
const FAILURES_MAX: u32 = 5;
/// Pause before the next agent after the first that did not last, and the longest: an agent is its
/// user's to kill.
const PAUSE: Millis = Millis(100);
const PAUSE_MAX: Millis = Millis(60_000);
/// An agent that lived so long did last.
const LASTED: Millis = Millis(10_000);

/// How long an agent is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// After the grace of a stop, until what was to be stopped has ended.
    pub stop: Millis,
    /// With leases that nobody supervises.
    pub absence: Millis,
    /// Without any lease. Then all that runs for the user is ended, with what programs left behind.
    pub idle: Millis,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stop: Millis(30_000), absence: Millis(300_000), idle: Millis(60_000) }
    }
}

/// A lease that the engine reports on.
#[derive(Debug)]
pub(crate) struct Live {
    pub lease: LiveLease,
    /// None of one that was adopted, until its agent says what it has.
    pub resources: Option<GangResources>,
    /// Its start was reported.
    pub started: bool,
    /// An agent may have begun it.
    pub told: bool,
    /// When it is stopped by force, agent or not.
    stop_by: Option<Time>,
}

impl Live {
    pub(crate) fn new(lease: LiveLease, resources: Option<GangResources>) -> Self {
        Self { lease, resources, started: false, told: false, stop_by: None }
    }

    /// One that an agent of the server before may have.
    pub(crate) fn adopted(
        lease: LiveLease,
        resources: Option<GangResources>,
        now: Time,
        patience: Patience,
    ) -> Self {
        let is_stopping = matches!(lease.phase, Phase::Stopping { .. });
        let grace = lease.launch.checkpoint.as_ref().map_or(Millis::ZERO, |spec| spec.grace);
        let stop_by = is_stopping.then(|| now + grace + patience.stop);
        Self { told: true, stop_by, ..Self::new(lease, resources) }
    }
}

/// What is the same for the agents of all users.
#[derive(Debug)]
pub(crate) struct Shared {
    pub spawner: Arc<dyn SpawnAgents>,
    pub ear: Ear,
    /// Without the directory of the user.
    pub begin: Begin,
    /// Where users have their directories.
    pub users: PathBuf,
    pub patience: Patience,
}

#[derive(Debug, Default)]
pub(crate) struct UserAgent {
    pub live: BTreeMap<LeaseId, Live>,
    /// What stages begin before they have devices, by lease; what the agent is to be told yet.
    pub prepared: BTreeMap<LeaseId, Option<Action>>,
    link: Option<Link>,
    /// The agent has begun to listen.
    ready: bool,
    connection: u64,
    since: Time,
    failures: u32,
    /// None while there is an agent, or nothing to do for one.
    retry_at: Option<Time>,
    /// Files that this agent has.
    sent: BTreeSet<PathBuf>,
    /// What the user was last said to have of devices.
    access: Option<DeviceAccess>,
    /// Since when leases have had no agent that listens.
    absent_since: Option<Time>,
    /// Since when there has been an agent and no lease.
    idle_since: Option<Time>,
    /// All that runs for the user is being ended.
    clearing: bool,
    /// Not again before that.
    clear_after: Time,
}

/// What becomes of starts of which the agent may not have heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starts {
    /// The next agent is told of them.
    Kept,
    GivenUp,
}

impl UserAgent {
    /// When there is something to do without being told.
    pub(crate) fn due_at(&self, patience: Patience) -> Option<Time> {
        [self.retry_at, self.clear_at(patience)].into_iter().flatten().min()
    }

    /// When all that runs for the user is ended: what an agent should have stopped goes on, nobody
    /// has supervised it for too long, or it has no lease any more.
    fn clear_at(&self, patience: Patience) -> Option<Time> {
        if self.clearing {
            return None;
        }
        let stops = self.live.values().filter_map(|live| live.stop_by);
        let told = self.live.values().any(|live| live.told);
        let absence = self.absent_since.filter(|_| told).map(|since| since + patience.absence);
        let idle = self.idle_since.map(|since| since + patience.idle);
        Some(stops.chain(absence).chain(idle).min()?.max(self.clear_after))
    }

    /// Does what is due.
    pub(crate) fn do_due(&mut self, user: &Name, shared: &Shared, now: Time) {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if is_due(self.clear_at(shared.patience)) {
            self.clear(user, shared, now);
        } else if is_due(self.retry_at) {
            self.connect(user, shared, now);
        }
    }

    /// Asks for the end of all that runs for the user.
    fn clear(&mut self, user: &Name, shared: &Shared, now: Time) {
        self.connection += 1;
        (self.retry_at, self.ready, self.clearing) = (None, false, true);
        let (spawner, ear) = (Arc::clone(&shared.spawner), shared.ear.clone());
        self.link = Link::open(user, (self.connection, Purpose::Clearing), spawner, ear).ok();
        if self.link.is_none() {
            self.ended(now);
        }
    }

    /// Nothing runs for the user any more: the leases that nobody will report on. Others are for
    /// the next agent.
    pub(crate) fn cleared(&mut self, now: Time) -> Vec<LeaseId> {
        self.link = None;
        (self.clearing, self.failures, self.absent_since) = (false, 0, None);
        self.idle_since = None;
        let told = self.live.iter().filter(|(_, live)| live.told);
        let told: Vec<LeaseId> = told.map(|(&lease, _)| lease).collect();
        self.retry_at = (told.len() < self.live.len()).then_some(now);
        told
    }

    /// Asks for an agent. What it is sent waits for it.
    pub(crate) fn connect(&mut self, user: &Name, shared: &Shared, now: Time) {
        self.connection += 1;
        (self.since, self.retry_at, self.ready) = (now, None, false);
        self.absent_since.get_or_insert(now);
        self.sent.clear();
        let (spawner, ear) = (Arc::clone(&shared.spawner), shared.ear.clone());
        let opened = Link::open(user, (self.connection, Purpose::Agent), spawner, ear);
        let Ok(link) = opened else {
            self.ended(now);
            return;
        };
        self.link = Some(link);
        if let Some(access) = self.access.take() {
            self.set_access(access);
        }
        let dir = shared.users.join(user.as_str());
        let since_boot = het_node::since_boot().0;
        self.send(&ToAgent::Begin(Begin { dir, at: now.0, since_boot, ..shared.begin.clone() }));
        self.send_adopted(shared);
    }

    /// Tells the agent of everything that lives.
    pub(crate) fn send_adopted(&mut self, shared: &Shared) {
        let launches = self.live.values().map(|live| Arc::clone(&live.lease.launch));
        let launches: Vec<Arc<Launch>> = launches.collect();
        launches.iter().for_each(|launch| self.send_files(launch, shared));
        let adopted =
            self.live.values().map(|live| Adopted::new(&live.lease, live.resources.clone()));
        let adopted = ToAgent::Adopt(adopted.collect());
        self.send(&adopted);
    }

    /// Whether there is an agent, or one was asked for.
    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some() && !self.clearing
    }

    /// Lets the user open these device nodes, from before what is sent next.
    pub(crate) fn set_access(&mut self, access: DeviceAccess) {
        if self.access.as_ref() == Some(&access) {
            return;
        }
        if let Some(link) = self.link.as_ref().filter(|_| !self.clearing) {
            link.set_access(access.clone());
        }
        self.access = Some(access);
    }

    /// The agent listens: it does what it was sent so far.
    pub(crate) fn is_ready(&mut self) {
        self.ready = true;
        self.absent_since = None;
        self.live.values_mut().for_each(|live| live.told = true);
    }

    /// Whether something is of the present connection.
    pub(crate) fn hears(&self, connection: u64) -> bool {
        self.link.is_some() && self.connection == connection
    }

    pub(crate) fn send(&self, message: &ToAgent) {
        if let Some(link) = &self.link {
            link.send(message);
        }
    }

    /// Has a new lease started.
    pub(crate) fn start(&mut self, action: &Action, live: Live, shared: &Shared, now: Time) {
        let lease = live.lease.lease;
        let live = Live { told: self.ready, ..live };
        let resources = live.resources.clone().map(|resources| (lease.0, resources));
        self.live.insert(lease, live);
        self.prepared.remove(&lease);
        self.idle_since = None;
        if self.is_connected() {
            let launch = Arc::clone(&self.live[&lease].lease.launch);
            self.send_files(&launch, shared);
            self.act(action, resources.into_iter().collect());
        } else if self.retry_at.is_none() && !self.clearing {
            // Somebody new, or an agent that had nothing left to do.
            self.retry_at = Some(now);
        }
    }

    /// Has a stage begin without devices.
    pub(crate) fn prepare(&mut self, action: &Action, shared: &Shared, now: Time) {
        let Action::Prepare { lease, .. } = action else { return };
        self.prepared.insert(*lease, Some(action.clone()));
        self.idle_since = None;
        if self.ready && self.is_connected() {
            self.send_prepared(shared);
        } else if !self.is_connected() && self.retry_at.is_none() && !self.clearing {
            self.retry_at = Some(now);
        }
    }

    /// Tells the agent what it does not know of that stages begin without devices.
    pub(crate) fn send_prepared(&mut self, shared: &Shared) {
        let untold: Vec<Action> = self.prepared.values_mut().filter_map(Option::take).collect();
        for action in untold {
            if let Action::Prepare { launch, .. } = &action {
                self.send_files(launch, shared);
            }
            self.act(&action, Vec::new());
        }
    }

    /// Has what a stage began without devices given up.
    pub(crate) fn unprepare(&mut self, action: &Action, lease: LeaseId, now: Time) {
        match self.prepared.remove(&lease) {
            Some(None) => self.act(action, Vec::new()),
            Some(Some(_)) => {}
            None => return,
        }
        self.settle_idle(now);
    }

    /// What a stage began without devices has ended; whether there was any.
    pub(crate) fn preparation_ended(&mut self, lease: LeaseId, now: Time) -> bool {
        let known = self.prepared.remove(&lease).is_some();
        self.settle_idle(now);
        known
    }

    fn settle_idle(&mut self, now: Time) {
        let is_idle = self.live.is_empty() && self.prepared.is_empty();
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(now));
    }

    /// As [`Self::unprepare`], all of it.
    pub(crate) fn give_up_prepared(&mut self) {
        // The agent does not ask whose it is.
        let stage = StageKey { job: JobId(0), stage: StageIndex(0) };
        for lease in std::mem::take(&mut self.prepared).into_keys() {
            self.act(&Action::Unprepare { stage, lease }, Vec::new());
        }
    }

    /// Has a lease stopped. An agent that is away is told of it as of what is being stopped.
    pub(crate) fn stop(&mut self, action: &Action, patience: Patience, now: Time) {
        let Action::Stop { lease, cause, grace, .. } = action else { return };
        if let Some(live) = self.live.get_mut(lease) {
            live.lease.phase = Phase::Stopping { cause: *cause };
            live.stop_by = Some(now + *grace + patience.stop);
            self.act(action, Vec::new());
        }
    }

    /// A lease is over; what it had.
    pub(crate) fn end(&mut self, lease: LeaseId, now: Time) -> Option<Live> {
        let live = self.live.remove(&lease)?;
        self.idle_since = None;
        self.settle_idle(now);
        Some(live)
    }

    fn act(&self, action: &Action, resources: Vec<(u64, GangResources)>) {
        self.send(&ToAgent::Act { plan: record(vec![action.clone()]), resources });
    }

    /// Sends the kept files that a launch names and this agent does not have yet.
    fn send_files(&mut self, launch: &Launch, shared: &Shared) {
        for name in kept::named(launch, &shared.begin.kept) {
            // Without it the start fails, and says what is missing.
            if let Some(name_text) = name.to_str()
                && !self.sent.contains(name)
                && let Ok(text) = kept::read(&shared.begin.kept, name)
            {
                self.send(&ToAgent::Keep { name: name_text.to_owned(), text });
                self.sent.insert(name.to_owned());
            }
        }
    }

    /// The agent is gone. The next one is tried after a pause, if there is anything to do for it.
    pub(crate) fn ended(&mut self, now: Time) -> Starts {
        let was_agent = self.link.take().is_some() && !self.clearing;
        let lasted = was_agent && now.since(self.since) >= LASTED;
        self.failures = if lasted { 0 } else { self.failures + 1 };
        self.is_absent(now);
        let pause = Millis(PAUSE.0 << self.failures.min(16)).min(PAUSE_MAX);
        let is_wanted = !self.live.is_empty() || !self.prepared.is_empty();
        self.retry_at = is_wanted.then_some(now + pause);
        match self.failures > FAILURES_MAX {
            true => Starts::GivenUp,
            false => Starts::Kept,
        }
    }

    /// No agent is to run for this user; perhaps one is later.
    pub(crate) fn refused(&mut self, now: Time) {
        self.link = None;
        self.is_absent(now);
        self.retry_at = (!self.live.is_empty()).then_some(now + PAUSE_MAX);
    }

    fn is_absent(&mut self, now: Time) {
        if self.clearing {
            self.clear_after = now + PAUSE_MAX;
        }
        (self.ready, self.clearing) = (false, false);
        self.absent_since = match self.live.is_empty() {
            true => None,
            false => Some(self.absent_since.unwrap_or(now)),
        };
    }
}
