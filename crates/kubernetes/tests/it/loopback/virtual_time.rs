//! The engine in virtual time: it decides as the simulator does.
//!
//! Everything runs on one thread whose clock stands still while there is something to do: the
//! engine, its writers and watches, and the API server. The kubelets are played by a second
//! simulator. It is given a gang once the pods of all its ranks stand on the nodes that the plan
//! names, and what it says of the gang is what a kubelet, or the program, writes to the pods.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use het_control::{Controller, MemoryLog};
use het_core::{
    Action, Checkpoint, Event, Failure, Generation, LeaseId, Millis, Outcome, Plan, Progress,
    State, StopCause, Time, Topology,
};
use het_engine::Engine;
use het_kubernetes::{Cluster, Kubernetes};
use het_lab::{Scenario, random_changing_scenario};
use het_policy::{Policy, by_name};
use het_sim::{Fault, Sim};
use het_wire::progress::to_line;
use kube::Client;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::faults::{Faults, Profile};
use super::kubelet::{Programs, ended};
use super::run::engine;
use super::server::{NAMESPACE, Server};
use super::store::{Key, Kind};
use super::{number, pods};
use crate::rig::container;

/// Seeds for each policy.
const SEEDS: u64 = 30;
/// Those that act most unlike each other: nothing is ever stopped, little is, all may be.
const POLICIES: [&str; 3] = ["fifo", "hybrid", "adaptive"];
/// From a request to what the engine hears of it tasks follow each other some twenty times.
const TASKS_IN_A_ROW: usize = 100;
/// Events before a difference that are shown.
const TOLD: usize = 30;
/// After this a scenario is taken for endless.
const END: Time = Time(86_400_000);

thread_local! {
    /// When virtual time began on this thread.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Of the runtime that this thread has entered.
fn since_began() -> Millis {
    let began = BEGAN.get().expect("the clock of this thread was started");
    Millis(began.elapsed().as_millis() as u64)
}

/// What becomes of pods.
struct Kubelets {
    server: Server,
    /// What happens to gangs, and everything that is not of the API server's doing.
    world: Sim,
    generation: Generation,
    /// Starts that were planned, whose pods do not have their nodes yet.
    planned: BTreeMap<LeaseId, Action>,
    /// Leases whose programs run, or load.
    live: BTreeSet<LeaseId>,
    stopping: BTreeSet<LeaseId>,
    /// What ranks have said of themselves and not written down yet.
    unwritten: BTreeMap<LeaseId, Progress>,
}

impl Kubelets {
    fn of(scenario: &Scenario, server: Server) -> Self {
        let topology = Arc::new(scenario.topology.clone());
        let faults = scenario.faults.iter().cloned();
        Self {
            server,
            world: Sim::new(topology, scenario.models.clone(), scenario.said(), faults),
            generation: Generation(0),
            planned: BTreeMap::new(),
            live: BTreeSet::new(),
            stopping: BTreeSet::new(),
            unwritten: BTreeMap::new(),
        }
    }

    /// Takes up gangs that have their nodes, and what of them is being deleted; whether there were.
    fn take_up(&mut self, topology: &Topology) -> bool {
        let mut actions = self.deletions();
        let complete: Vec<LeaseId> = self
            .planned
            .iter()
            .filter(|(id, it)| self.is_bound(**id, it, topology))
            .map(|(id, _)| *id)
            .collect();
        self.live.extend(&complete);
        actions.extend(complete.iter().filter_map(|lease| self.planned.remove(lease)));
        let is_any = !actions.is_empty();
        self.generation = Generation(self.generation.0 + u64::from(is_any));
        self.world.submit(&Plan { generation: self.generation, actions, waits: Vec::new() });
        is_any
    }

    /// Stops of gangs of which a pod is being deleted.
    fn deletions(&mut self) -> Vec<Action> {
        let inner = self.server.lock();
        let deleted = inner.store.of_kind(Kind::Pod).filter(|(_, pod)| pods::is_deleting(pod));
        let deleted = deleted.filter_map(|(_, pod)| {
            let grace = pod.pointer("/metadata/deletionGracePeriodSeconds")?.as_u64()?;
            Some((LeaseId(pods::lease_of(pod)?), Millis::seconds(grace)))
        });
        let deleted: BTreeMap<LeaseId, Millis> = deleted.collect();
        let news = deleted.into_iter().filter(|(lease, _)| self.live.contains(lease));
        let news: Vec<_> = news.filter(|(lease, _)| self.stopping.insert(*lease)).collect();
        let cause = StopCause::User;
        news.into_iter()
            .map(|(lease, grace)| Action::Stop { lease, cause, grace, cost: None })
            .collect()
    }

    /// Whether each rank of a start has a pod on its node, with what it was given.
    fn is_bound(&self, lease: LeaseId, start: &Action, topology: &Topology) -> bool {
        let Action::Start { placement, .. } = start else { return false };
        let inner = self.server.lock();
        let of_lease = inner.store.of_kind(Kind::Pod);
        let of_lease = of_lease.filter(|(_, pod)| pods::lease_of(pod) == Some(lease.0));
        let bound: BTreeMap<u64, (&str, u64)> = of_lease
            .filter_map(|(_, pod)| {
                Some((pods::rank_of(pod)?, (pods::node_of(pod)?, pods::units_of(pod))))
            })
            .collect();
        if bound.len() < placement.ranks.len() {
            return false;
        }
        for (rank, given) in placement.ranks.iter().enumerate() {
            let grants = given.grants.iter().chain(&given.companions);
            let units: u32 = grants.map(|grant| grant.share.whole_units()).sum();
            let told = bound.get(&(rank as u64));
            let planned = (topology.node(given.node).name.as_str(), u64::from(units));
            assert_eq!(told, Some(&planned), "rank {rank} of lease {lease}");
        }
        true
    }

    /// The next thing that happens until then, as far as pods show it; a fact that they do not
    /// show is given back.
    fn play(&mut self, until: Time) -> Option<Option<Event>> {
        let (_, event) = self.world.next_event(Some(until))?;
        match event {
            Event::StageStarted { lease } => self.set_status(lease, &json!({ "phase": "Running" })),
            Event::Progressed { lease, progress } => {
                self.unwritten.entry(lease).or_default().merge(&progress);
            }
            Event::Checkpointed { lease, checkpoint } => {
                let progress = self.unwritten.remove(&lease).unwrap_or_default();
                self.annotate(lease, &to_line(&progress, Some(&checkpoint), None));
            }
            Event::StageEnded { lease, outcome } => self.end(lease, &outcome),
            fact => return Some(Some(fact)),
        }
        Some(None)
    }

    fn pods_of(&self, lease: LeaseId) -> Vec<Key> {
        let inner = self.server.lock();
        let all = inner.store.of_kind(Kind::Pod);
        let of_lease = all.filter(|(_, pod)| pods::lease_of(pod) == Some(lease.0));
        of_lease.map(|(key, _)| key.clone()).collect()
    }

    fn set_status(&self, lease: LeaseId, status: &serde_json::Value) {
        for key in self.pods_of(lease) {
            self.server.lock().store.update(&key, |pod| pod["status"] = status.clone());
        }
    }

    /// The first rank says how far its gang is.
    fn annotate(&self, lease: LeaseId, line: &str) {
        if let Some(first) = self.pods_of(lease).first() {
            self.server.lock().store.update(first, |pod| {
                pod["metadata"]["annotations"]["heterosis.dev/progress"] = json!(line);
            });
        }
    }

    fn end(&mut self, lease: LeaseId, outcome: &Outcome) {
        self.live.remove(&lease);
        self.stopping.remove(&lease);
        if let Some(progress) = self.unwritten.remove(&lease) {
            self.annotate(lease, &to_line(&progress, None, None));
        }
        match outcome {
            Outcome::Finished => return self.set_status(lease, &ended(0)),
            Outcome::Failed(Failure { exit_code, .. }) => {
                let status = ended(u64::from(exit_code.unsigned_abs()));
                if let Some(first) = self.pods_of(lease).first() {
                    self.server.lock().store.update(first, |pod| pod["status"] = status);
                }
            }
            Outcome::Stopped | Outcome::Lost | Outcome::Refused { .. } => {}
        }
        let keys = self.pods_of(lease);
        let mut inner = self.server.lock();
        let left = keys
            .into_iter()
            .filter(|key| inner.store.get(key).is_some_and(|pod| !pods::has_ended(pod)));
        let left: Vec<Key> = left.collect();
        left.iter().for_each(|key| drop(inner.store.remove(key)));
    }
}

/// The engine, and what there is around it.
struct Played {
    runtime: Arc<Runtime>,
    engine: Kubernetes,
    kubelets: Kubelets,
    topology: Arc<Topology>,
}

impl Played {
    fn begin(scenario: &Scenario, runtime: Arc<Runtime>) -> Self {
        BEGAN.set(Some(Instant::now()));
        let mut faults = Faults::of(0, Profile::of(0));
        faults.calm();
        let server = Server::new(faults, Programs::of(0));
        let engine = lead(&server, &runtime);
        let topology = Arc::new(scenario.topology.clone());
        let kubelets = Kubelets::of(scenario, server);
        let mut played = Self { runtime, engine, kubelets, topology };
        played.engine.adopt(&State::new(Arc::clone(&played.topology)));
        played
    }

    /// Lets everything go on that can without time going on.
    fn settle(&self) {
        self.runtime.block_on(async {
            for _ in 0..TASKS_IN_A_ROW {
                yield_now().await;
            }
        });
    }
}

impl Engine for Played {
    fn adopt(&mut self, state: &State) {
        self.engine.adopt(state);
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        self.topology = Arc::clone(topology);
        self.kubelets.world.topology_changed(topology);
        self.engine.topology_changed(topology);
    }

    fn submit(&mut self, plan: &Plan) {
        for action in &plan.actions {
            if let Some(lease) = started_by(action) {
                self.kubelets.planned.insert(lease, action.clone());
            }
        }
        self.engine.submit(plan);
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        loop {
            self.settle();
            let now = self.engine.now();
            if let Some(found) = self.engine.next_event(Some(now)) {
                return Some(found);
            }
            match self.kubelets.play(now) {
                Some(fact) => {
                    fact.into_iter().for_each(|fact| self.engine.event_sender().send(fact));
                    continue;
                }
                None if self.kubelets.take_up(&self.topology) => continue,
                None => {}
            }
            let next = [until, self.kubelets.world.next_time()].into_iter().flatten().min()?;
            if next <= now {
                return None;
            }
            if let Some(found) = self.engine.next_event(Some(next)) {
                return Some(found);
            }
        }
    }

    fn committed(&mut self) {
        self.engine.committed();
    }

    fn now(&self) -> Time {
        self.engine.now()
    }
}

/// The simulator, with what is different about pods. A gang that is stopped in the instant of its
/// start never gets its nodes. One that saves the same step again is not heard to. Of one that
/// loses its node while it stops nobody can say that it would not have stopped.
struct Simulated {
    sim: Sim,
    /// Plans of this instant.
    plans: Vec<Plan>,
    /// The newest that was heard of.
    checkpoints: BTreeMap<LeaseId, Checkpoint>,
    stopping: BTreeSet<LeaseId>,
}

impl Simulated {
    fn carry_out(&mut self) {
        let mut plans = std::mem::take(&mut self.plans);
        let actions = || plans.iter().flat_map(|plan| &plan.actions);
        let stopped: BTreeSet<LeaseId> = actions().filter_map(stopped_by).collect();
        let started = actions().filter_map(started_by);
        self.stopping.extend(&stopped);
        let never: BTreeSet<LeaseId> = started.filter(|it| stopped.contains(it)).collect();
        let is_never = |lease: Option<LeaseId>| lease.is_some_and(|lease| never.contains(&lease));
        for plan in &mut plans {
            plan.actions.retain(|it| !is_never(stopped_by(it)) && !is_never(started_by(it)));
            self.sim.submit(plan);
        }
        for lease in never {
            self.sim.report(Event::StageEnded { lease, outcome: Outcome::Stopped });
        }
    }
}

fn started_by(action: &Action) -> Option<LeaseId> {
    match action {
        Action::Start { lease, .. } => Some(*lease),
        _ => None,
    }
}

fn stopped_by(action: &Action) -> Option<LeaseId> {
    match action {
        Action::Stop { lease, .. } => Some(*lease),
        _ => None,
    }
}

impl Engine for Simulated {
    fn adopt(&mut self, state: &State) {
        self.sim.adopt(state);
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        self.sim.topology_changed(topology);
    }

    fn submit(&mut self, plan: &Plan) {
        self.plans.push(plan.clone());
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        self.carry_out();
        loop {
            let (at, mut event) = self.sim.next_event(until)?;
            let is_news = match &mut event {
                Event::StageEnded { lease, outcome: outcome @ Outcome::Lost } => {
                    if self.stopping.remove(lease) {
                        *outcome = Outcome::Stopped;
                    }
                    true
                }
                Event::Checkpointed { lease, checkpoint } => {
                    let before = self.checkpoints.insert(*lease, checkpoint.clone());
                    before.as_ref() != Some(&*checkpoint)
                }
                _ => true,
            };
            if is_news {
                return Some((at, event));
            }
        }
    }

    fn committed(&mut self) {
        self.sim.committed();
    }

    fn now(&self) -> Time {
        self.sim.now()
    }
}

fn lead(server: &Server, runtime: &Arc<Runtime>) -> Kubernetes {
    let client = Client::new(server.clone(), NAMESPACE);
    let cluster = Cluster::over(client, Arc::clone(runtime), since_began);
    engine(cluster, "the only one".to_owned(), Some(NAMESPACE.to_owned()), Time::ZERO)
}

/// The same world with images for its programs and resources for its devices, without what no pod
/// can show: streams between stages, and programs that hang.
fn on_kubernetes(mut scenario: Scenario) -> Scenario {
    name_resources(&mut scenario.topology);
    let is_seen = |fault: &Fault| !matches!(fault, Fault::Hung { .. } | Fault::Corrupted { .. });
    scenario.faults.retain(|(_, fault)| is_seen(fault));
    for (_, fault) in &mut scenario.faults {
        if let Fault::Reported(Event::NodesJoined { nodes }) = fault {
            name_resources(Arc::make_mut(nodes));
        }
    }
    for (_, spec) in &mut scenario.jobs {
        for stage in &mut Arc::make_mut(spec).stages {
            for alternative in &mut stage.alternatives {
                Arc::make_mut(&mut alternative.launch).container = Some(container());
            }
        }
    }
    for model in scenario.models.values_mut().map(Arc::make_mut) {
        model.publishes_after = None;
        // A rank that says more than once a second how far it is is heard a second later.
        model.checkpoint_every = 100;
    }
    scenario
}

fn name_resources(topology: &mut Topology) {
    for device in &mut topology.devices {
        let class = &topology.classes[device.class].id;
        if *class != "cpu" {
            device.name = format!("test.dev/{class}/{}", device.name).as_str().into();
        }
    }
}

/// What came of a scenario.
struct Decided {
    plans: Vec<(Time, Plan)>,
    /// Plans among it.
    log: Vec<(Time, Event)>,
}

impl Decided {
    /// When each lease has ended, and how in one word: what is said of it differs.
    fn ends(&self) -> BTreeSet<(Time, LeaseId, &'static str)> {
        let ends = self.log.iter().filter_map(|(at, event)| match event {
            Event::StageEnded { lease, outcome } => {
                let word = match outcome {
                    Outcome::Finished => "finished",
                    Outcome::Stopped => "stopped",
                    Outcome::Failed(_) => "failed",
                    Outcome::Lost => "lost",
                    Outcome::Refused { .. } => "refused",
                };
                Some((*at, *lease, word))
            }
            _ => None,
        });
        ends.collect()
    }
}

/// Plays a scenario to its end.
fn decided<E: Engine>(scenario: &Scenario, policy: &'static dyn Policy, engine: E) -> Decided {
    let state = State::new(Arc::new(scenario.topology.clone()));
    let rates = scenario.rates.clone();
    let control = Controller::new(state, rates, policy, engine, MemoryLog::default());
    let mut control = control.with_cadence(scenario.cadence).with_retention(scenario.retention);
    loop {
        let is_last = control.wake_at().is_none();
        let turn = control.turn(None).expect("no law is broken");
        assert!(control.now() < END, "the scenario does not end");
        if is_last && turn.events.is_empty() {
            break;
        }
    }
    let log = control.log().0.clone();
    let plans = log.iter().filter_map(|(at, event)| match event {
        Event::PlanCommitted { plan } => Some((*at, Plan::clone(plan))),
        _ => None,
    });
    Decided { plans: plans.collect(), log }
}

fn check(seed: u64, policy: &str) -> Result<usize, String> {
    let scenario = on_kubernetes(random_changing_scenario(seed));
    let policy = by_name(policy).expect("it is a policy");
    let topology = Arc::new(scenario.topology.clone());
    let faults = scenario.faults.iter().cloned();
    let sim = Sim::new(topology, scenario.models.clone(), scenario.said(), faults);
    let simulated = Simulated {
        sim,
        plans: Vec::new(),
        checkpoints: BTreeMap::new(),
        stopping: BTreeSet::new(),
    };
    let simulated = decided(&scenario, policy, simulated);
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = Arc::new(runtime.expect("a runtime can be had"));
    let _entered = runtime.enter();
    let played = Played::begin(&scenario, Arc::clone(&runtime));
    let played = decided(&scenario, policy, played);
    let (plans, expected) = (&played.plans, &simulated.plans);
    if plans == expected && played.ends() == simulated.ends() {
        return Ok(plans.len());
    }
    let first = plans.iter().zip(expected).take_while(|(plan, same)| plan == same).count();
    let at = |plans: &[(Time, Plan)]| plans.get(first).map_or(END, |(at, _)| *at);
    let until = at(plans).max(at(expected));
    let told = |log: &[(Time, Event)]| {
        let events = log.iter().filter(|(at, _)| *at <= until);
        let lines: Vec<String> = events.map(|(at, event)| format!("{at:?} {event:?}")).collect();
        lines[lines.len().saturating_sub(TOLD)..].join("\n  ")
    };
    Err(format!(
        "seed {seed}, {}: plan {first} is another\nsimulated:\n  {}\non Kubernetes:\n  {}",
        policy.name(),
        told(&simulated.log),
        told(&played.log),
    ))
}

#[test]
fn it_decides_as_the_simulator_does() {
    let seeds = match number("HET_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("HET_SEEDS").unwrap_or(SEEDS),
    };
    let (mut plans, mut wrong) = (0, Vec::new());
    for seed in seeds {
        for policy in POLICIES {
            match check(seed, policy) {
                Ok(0) => wrong.push(format!("seed {seed}, {policy}: nothing is decided")),
                Ok(same) => plans += same,
                Err(why) => wrong.push(why),
            }
        }
    }
    let first = wrong.first().map_or("", String::as_str);
    assert!(wrong.is_empty(), "{} differ, {plans} plans do not\n{first}", wrong.len());
}
