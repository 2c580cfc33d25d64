//! One run: a small world and what is done to it, drawn from a seed, over an engine that is given
//! up and built anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use het_core::{
    Action, Event, Generation, JobId, LeaseId, Millis, Name, Outcome, Phase, Plan, StageIndex,
    StageKey, State, Time,
};
use het_engine::Engine;
use het_kubernetes::{
    Binding, Cluster, Election, JobOwner, Kubernetes, KubernetesConfig, Nodes, Patience, Standby,
    Statuses,
};
use het_wire::resource::{StageStatus, TrainingJobStatus};
use kube::Client;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::draw::Draw;
use super::faults::{Faults, Profile, Tally};
use super::kubelet::Programs;
use super::server::{Inner, NAMESPACE, SCHEDULER, Server, Write};
use super::store::{Key, Kind};
use super::{pods, scene};

/// Where jobs lie that have an object.
const TEAM: &str = "team";
/// Only whoever hangs takes longer.
const PATIENCE_MS: u64 = 60_000;
/// Nothing waits for longer before it tries again.
const STANDSTILL_MS: u64 = 12_000;
/// What a failure tells of what was done, and of what was written.
const TOLD: usize = 200;

/// Where clients have their own threads.
static THREADS: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("threads can be had"));

fn since_boot() -> Millis {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Millis(BEGAN.elapsed().as_millis() as u64)
}

/// What was heard of a lease.
#[derive(Debug, Default)]
pub struct Heard {
    /// By which leaders' engines.
    pub started: Vec<u64>,
    pub ended: Vec<Outcome>,
}

pub struct Run {
    seed: u64,
    draw: Draw,
    profile: Profile,
    server: Server,
    engine: Kubernetes,
    statuses: Statuses,
    /// Of earlier leaders: they hear nothing any more, and what they were about goes on.
    zombies: Vec<Kubernetes>,
    leaders: u64,
    state: State,
    last: Time,
    owners: BTreeMap<JobId, JobOwner>,
    /// Nodes of which the engine was told something that it has not reported yet.
    untold: BTreeSet<Name>,
    heard: BTreeMap<LeaseId, Heard>,
    broken: Vec<String>,
    done: Vec<String>,
}

/// # Errors
/// Which laws were broken, or what never came about.
pub fn play(seed: u64) -> Result<Tally, String> {
    let mut run = Run::new(seed);
    let actions = run.draw.between(20, 60);
    for _ in 0..actions {
        run.act();
    }
    let ended = run.settle().and_then(|()| run.end());
    let mut broken = run.broken_laws();
    match ended {
        Ok(()) => broken.extend(run.ends_missed()),
        Err(what) => broken.push(what),
    }
    match broken.is_empty() {
        true => Ok(run.server.lock().take_tally()),
        false => Err(run.told(&broken.join("\n  "))),
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut draw = Draw::of(seed, "run");
        let profile = Profile::of(seed);
        let faults = Faults::of(seed, profile.clone());
        let server = Server::new(faults, Programs::of(seed));
        let state = State::new(Arc::new(scene::topology(draw.between(2, 4))));
        for node in &state.topology().nodes {
            let key = Key::new(Kind::Node, "", node.name.as_str());
            server.lock().store.create(key, json!({ "metadata": {} }));
        }
        let engine = lead(&server, &profile, 1, state.now());
        let mut run = Self {
            seed,
            draw,
            profile,
            statuses: engine.statuses(),
            server,
            engine,
            zombies: Vec::new(),
            leaders: 1,
            last: state.now(),
            state,
            owners: BTreeMap::new(),
            untold: BTreeSet::new(),
            heard: BTreeMap::new(),
            broken: Vec::new(),
            done: Vec::new(),
        };
        run.engine.adopt(&run.state);
        run
    }

    fn note(&mut self, what: String) {
        self.done.push(what);
    }

    /// Something happens, and time goes on for a while.
    fn act(&mut self) {
        match self.draw.between(0, 99) {
            0..=44 => self.plan(),
            45..=52 => self.harm_a_pod(),
            53..=57 => self.change_a_node(),
            58..=61 if self.leaders <= self.profile.crashes => self.crash(),
            62..=64 => self.delete_a_job(),
            65..=69 => self.server.lock().deliver_late(),
            _ => {}
        }
        for _ in 0..self.draw.between(0, 4) {
            self.pass();
        }
    }

    /// Kubelets take a turn, and what the engine has to say is heard.
    fn pass(&mut self) {
        self.server.lock().turn();
        self.tell_nodes();
        let until = self.engine.now() + Millis(self.draw.between(0, 3));
        while let Some((at, event)) = self.engine.next_event(Some(until)) {
            self.take(at, &event);
        }
    }

    /// Some stages start, and some stop.
    fn plan(&mut self) {
        let actions = self.drawn_actions();
        let plan = self.commit(actions);
        self.engine.submit(&plan);
        self.tell_jobs(&plan);
    }

    fn drawn_actions(&mut self) -> Vec<Action> {
        let mut actions = self.stops_of_ended_jobs();
        if actions.is_empty() && self.draw.chance(40) {
            let runs = self.state.leases().iter().filter(|(_, lease)| !lease.phase.is_stopping());
            let runs: Vec<LeaseId> = runs.map(|(lease, _)| *lease).collect();
            let grace = Millis(self.draw.between(0, 2_000));
            actions.extend(self.draw.pick(&runs).map(|lease| scene::stop(lease, grace)));
        }
        if self.draw.chance(70) || actions.is_empty() {
            let stage = self.waiting_stage();
            let lease = self.state.next_lease();
            actions.extend(scene::start(&self.state, stage, lease, &mut self.draw));
        }
        actions
    }

    fn stops_of_ended_jobs(&self) -> Vec<Action> {
        let unwanted = self.state.leases_to_end();
        unwanted.map(|(lease, _)| scene::stop(lease, Millis(1_000))).collect()
    }

    /// A stage that may start; of a new job where none waits.
    fn waiting_stage(&mut self) -> StageKey {
        let waiting: Vec<StageKey> = self.state.waiting().collect();
        match self.draw.pick(&waiting) {
            Some(key) => key,
            None => self.submit_a_job(),
        }
    }

    fn submit_a_job(&mut self) -> StageKey {
        let job = self.state.next_job();
        let event = scene::submitted(job, &mut self.draw);
        let now = self.engine.now();
        self.state.apply(now, &event);
        if self.profile.has_objects {
            let key = Key::new(Kind::Job, TEAM, &format!("job-{job}"));
            let object = json!({ "metadata": {}, "spec": {} });
            let made = self.server.lock().store.create(key.clone(), object);
            let uid = pods::uid_of(&made).to_owned();
            let owner = JobOwner { namespace: key.namespace, name: key.name, uid };
            self.engine.owners().insert(job, owner.clone());
            self.owners.insert(job, owner);
        }
        StageKey { job, stage: StageIndex(0) }
    }

    fn commit(&mut self, actions: Vec<Action>) -> Plan {
        for action in &actions {
            match action {
                Action::Start { lease, stage, placement, launch, .. } => {
                    self.heard.insert(*lease, Heard::default());
                    let nodes: Vec<u32> = placement.ranks.iter().map(|it| it.node.0).collect();
                    let program = launch.argv.join(" ");
                    self.note(format!("start {lease} of {stage} on {nodes:?}: {program}"));
                }
                Action::Stop { lease, .. } => self.note(format!("stop {lease}")),
                _ => {}
            }
        }
        let generation = Generation(self.state.generation().0 + 1);
        let plan = Plan { generation, actions, waits: Vec::new() };
        let now = self.engine.now();
        self.state.apply(now, &Event::PlanCommitted { plan: Arc::new(plan.clone()) });
        plan
    }

    /// Has the statuses of jobs written of which a plan says something.
    fn tell_jobs(&self, plan: &Plan) {
        for action in &plan.actions {
            match action {
                Action::Start { stage, .. } => self.tell_job(stage.job),
                Action::Stop { lease, .. } => self.tell_job(self.state.leases()[lease].stage.job),
                _ => {}
            }
        }
    }

    fn tell_job(&self, job: JobId) {
        let (Some(owner), Some(found)) = (self.owners.get(&job), self.state.job(job)) else {
            return;
        };
        let of_job = self.state.leases().iter().find(|(_, lease)| lease.stage.job == job);
        let stage = StageStatus {
            name: "train".to_owned(),
            state: found.state(self.state.leases()).word().to_owned(),
            attempts: found.stages[0].attempts,
            lease: of_job.map(|(lease, _)| lease.0),
            ..StageStatus::default()
        };
        let status = TrainingJobStatus {
            id: Some(job.0),
            state: stage.state.clone(),
            stages: vec![stage],
            ..TrainingJobStatus::default()
        };
        self.statuses.write(owner.clone(), status);
    }

    /// Somebody deletes a pod, or its node gives it up.
    fn harm_a_pod(&mut self) {
        let mut inner = self.server.lock();
        let all = inner.store.of_kind(Kind::Pod).map(|(key, _)| key);
        let all: Vec<&Key> = all.collect();
        let Some(key) = self.draw.pick(&all).cloned() else { return };
        let pod = inner.store.get(&key).cloned().expect("it was picked just now");
        let what = if pods::phase_of(&pod) == "Running" && self.draw.chance(50) {
            inner.evict(&key);
            "evicted"
        } else {
            inner.remove_within(&key, self.draw.between(0, 1));
            "deleted by somebody"
        };
        inner.faults.count(what);
        drop(inner);
        self.note(format!("{} is {what}", key.name));
    }

    /// A user deletes the object of a job: it is cancelled, and what was made for it goes with it.
    fn delete_a_job(&mut self) {
        let jobs: Vec<JobId> = self.owners.keys().copied().collect();
        let Some(job) = self.draw.pick(&jobs) else { return };
        let Some(owner) = self.owners.remove(&job) else { return };
        let mut inner = self.server.lock();
        inner.store.remove(&Key::new(Kind::Job, &owner.namespace, &owner.name));
        inner.faults.count("objects of jobs deleted");
        drop(inner);
        self.statuses.forget(&owner.uid);
        let now = self.engine.now();
        self.state.apply(now, &Event::JobCancelled { job });
        self.engine.owners().remove(job);
        self.note(format!("the object of job {job} is deleted"));
    }

    /// A node goes away, or comes back.
    fn change_a_node(&mut self) {
        let topology = Arc::clone(self.state.topology());
        let names: Vec<&Name> = topology.nodes.iter().map(|node| &node.name).collect();
        let Some(name) = self.draw.pick(&names) else { return };
        let key = Key::new(Kind::Node, "", name.as_str());
        let mut inner = self.server.lock();
        let what = match inner.store.get(&key) {
            Some(_) => {
                inner.store.remove(&key);
                "is not there any more"
            }
            None => {
                inner.store.create(key, json!({ "metadata": {} }));
                "is there again"
            }
        };
        inner.faults.count("changes of nodes");
        drop(inner);
        self.note(format!("{name} {what}"));
    }

    /// Has the engine report nodes that come and go.
    fn tell_nodes(&mut self) {
        let topology = self.state.topology();
        for id in topology.node_ids() {
            let name = &topology.node(id).name;
            let key = Key::new(Kind::Node, "", name.as_str());
            let is_there = self.server.lock().store.get(&key).is_some();
            if is_there != self.state.is_removed(id) || !self.untold.insert(name.clone()) {
                continue;
            }
            self.engine.event_sender().send(match is_there {
                true => Event::NodesJoined { nodes: Arc::new(scene::alone(name.as_str())) },
                false => Event::NodeRemoved { name: name.clone() },
            });
        }
    }

    fn take(&mut self, at: Time, event: &Event) {
        if at < self.last {
            self.broken.push("time went backwards".to_owned());
        }
        self.last = at;
        let job = self.judge(event);
        self.state.apply(at, event);
        match event {
            Event::NodesJoined { nodes } => {
                self.untold.retain(|name| nodes.nodes.iter().all(|node| node.name != *name));
            }
            Event::NodeRemoved { name } => self.untold.retain(|untold| untold != name),
            _ => {}
        }
        if matches!(event, Event::NodesJoined { .. } | Event::NodeRemoved { .. }) {
            self.engine.topology_changed(self.state.topology());
        }
        self.engine.committed();
        job.into_iter().for_each(|job| self.tell_job(job));
    }

    /// Looks whether a fact may be told; the job that it is about.
    fn judge(&mut self, event: &Event) -> Option<JobId> {
        let (Event::StageStarted { lease: id } | Event::StageEnded { lease: id, .. }) = event
        else {
            return None;
        };
        self.note(format!("heard: {event:?}"));
        let Some(lease) = self.state.leases().get(id) else {
            self.broken.push(format!("{event:?}, and the state knows no such lease"));
            return None;
        };
        let heard = self.heard.entry(*id).or_default();
        match event {
            Event::StageEnded { outcome, .. } => {
                heard.ended.push(outcome.clone());
                let live = self.server.lock().live_on_nodes(*id);
                if !live.is_empty() && !self.profile.stale_lists {
                    self.broken.push(format!("lease {id} has ended, and {live:?} may run"));
                }
            }
            _ => {
                let again = heard.started.contains(&self.leaders);
                heard.started.push(self.leaders);
                if again || matches!(lease.phase, Phase::Running { .. }) {
                    self.broken.push(format!("lease {id} has started twice"));
                }
            }
        }
        Some(lease.stage.job)
    }

    /// The leader is gone, at whatever it was about; the next one goes on from what was committed.
    fn crash(&mut self) {
        if self.draw.chance(30) {
            let until = self.engine.now() + Millis(2);
            let unheard = self.engine.next_event(Some(until));
            self.note(format!("not committed: {unheard:?}"));
        }
        if self.draw.chance(30) {
            let actions = self.drawn_actions();
            self.commit(actions);
            self.note("which was not submitted".to_owned());
        }
        self.leaders += 1;
        let is_zombie = self.draw.chance(40);
        self.note(format!("leader {} leads, the one before goes on: {is_zombie}", self.leaders));
        let begins_at = self.engine.now().max(self.state.now());
        let next = lead(&self.server, &self.profile, self.leaders, begins_at);
        let before = std::mem::replace(&mut self.engine, next);
        match is_zombie {
            true => self.zombies.push(before),
            false => drop(before),
        }
        self.take_over();
    }

    fn take_over(&mut self) {
        self.server.lock().faults.count("changes of the leader");
        self.untold.clear();
        self.statuses = self.engine.statuses();
        let jobs = self.server.lock().jobs();
        for (job, owner) in &self.owners {
            self.engine.owners().insert(*job, owner.clone());
            let status = jobs.get(&owner.uid).cloned().unwrap_or_default();
            self.statuses.found(owner, &status);
        }
        self.engine.adopt(&self.state);
        self.owners.keys().for_each(|job| self.tell_job(*job));
        if self.draw.chance(70) {
            self.server.lock().deliver_late();
        }
    }

    /// Nothing goes wrong any more: every gang becomes whole, or nothing is left of it.
    fn settle(&mut self) -> Result<(), String> {
        self.note("nothing goes wrong any more".to_owned());
        self.server.lock().faults.calm();
        let actions = self.stops_of_ended_jobs();
        let plan = self.commit(actions);
        self.engine.submit(&plan);
        self.until("not every gang is whole or gone", |run| {
            let leases = run.state.leases();
            let runs = leases.values().all(|lease| matches!(lease.phase, Phase::Running { .. }));
            runs && run.strays_on_nodes() == 0 && run.gangs_are_whole()
        })
    }

    fn gangs_are_whole(&self) -> bool {
        let inner = self.server.lock();
        let is_whole = |(id, ranks): (LeaseId, usize)| inner.on_nodes(id).len() == ranks;
        let leases = self.state.leases().iter();
        leases.map(|(id, lease)| (*id, lease.placement.ranks.len())).all(is_whole)
    }

    /// All that still runs is stopped: nothing is left.
    fn end(&mut self) -> Result<(), String> {
        self.note("all is stopped".to_owned());
        let actions = self.state.leases().keys().map(|id| scene::stop(*id, Millis(1_000)));
        let plan = self.commit(actions.collect());
        self.engine.submit(&plan);
        self.until("something still runs", |run| {
            run.state.leases().is_empty() && run.strays_on_nodes() == 0
        })?;
        self.until("something is left", |run| {
            let inner = run.server.lock();
            let is_left = inner.store.of_kind(Kind::Service).next().is_some();
            inner.strays(&run.state).is_empty() && !(is_left && run.keeps_services_tidy())
        })
    }

    fn strays_on_nodes(&self) -> usize {
        let inner = self.server.lock();
        let strays = inner.strays(&self.state).into_iter();
        strays
            .filter(|key| inner.store.get(key).is_some_and(|it| pods::is_live_on_node(it)))
            .count()
    }

    /// A service that was made or not deleted because its leader went away stays until its job
    /// goes.
    fn keeps_services_tidy(&self) -> bool {
        self.leaders == 1 && self.profile.late == 0
    }

    fn until(&mut self, otherwise: &str, is_true: fn(&Self) -> bool) -> Result<(), String> {
        let began = since_boot().0;
        let (mut changes, mut changed) = (0, began);
        while !is_true(self) {
            let now = since_boot().0;
            if now > began + PATIENCE_MS || now > changed + STANDSTILL_MS {
                return Err(format!("{otherwise}: {}", self.outstanding()));
            }
            self.server.lock().deliver_late();
            self.pass();
            let so_far = self.done.len() as u64 + self.server.lock().store.changes();
            if so_far != changes {
                (changes, changed) = (so_far, since_boot().0);
            }
        }
        Ok(())
    }

    fn outstanding(&self) -> String {
        let leases = self.state.leases().iter();
        let leases: Vec<String> =
            leases.map(|(id, lease)| format!("lease {id} {:?}", lease.phase)).collect();
        let inner = self.server.lock();
        let left = inner.store.of_kind(Kind::Pod).filter(|(_, pod)| !pods::has_ended(pod));
        let left = left.map(|(key, pod)| {
            let (phase, node) = (pods::phase_of(pod), pods::node_of(pod));
            let (lease, uid) = (pods::lease_of(pod), pods::uid_of(pod));
            let deleting = pods::is_deleting(pod);
            let name = &key.name;
            format!("{name} {uid} lease {lease:?} {phase} on {node:?}, deleting: {deleting}")
        });
        let services = inner.store.keys(Kind::Service);
        let services: Vec<&str> = services.iter().map(|key| key.name.as_str()).collect();
        let left = left.collect::<Vec<_>>().join("\n  ");
        format!("{leases:?}, services {services:?}\n  {left}")
    }

    fn broken_laws(&self) -> Vec<String> {
        let inner = self.server.lock();
        let breaches = inner.writes.iter().filter_map(Write::breach);
        self.broken.iter().chain(&inner.broken).cloned().chain(breaches).collect()
    }

    /// Leases that have not ended once.
    fn ends_missed(&self) -> Vec<String> {
        let missed = self.heard.iter().filter(|(_, heard)| heard.ended.len() != 1);
        let told = missed.map(|(id, it)| format!("lease {id} has ended {} times", it.ended.len()));
        told.collect()
    }

    fn told(&self, what: &str) -> String {
        let inner = self.server.lock();
        let writes = inner.writes.iter().filter(|write| write.key.kind != Kind::Lease);
        let writes: Vec<String> = writes.map(Write::told).collect();
        let writes = &writes[writes.len().saturating_sub(TOLD)..];
        let done = self.done.join("\n  ");
        let (seed, profile) = (self.seed, &self.profile);
        format!(
            "seed {seed}: {what}\n{profile:?}\ndone:\n  {done}\nwritten:\n  {}\nreplay: \
             HET_SEED={seed} cargo test -p het-kubernetes --test it loopback",
            writes.join("\n  ")
        )
    }
}

/// The engine of the next leader, who has waited long enough.
fn lead(server: &Server, profile: &Profile, leader: u64, begins_at: Time) -> Kubernetes {
    server.lock().expire_lease();
    let client = {
        let _entered = THREADS.enter();
        Client::new(server.clone(), NAMESPACE)
    };
    let threads = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let threads = Arc::new(threads.expect("threads can be had"));
    let namespace = (!profile.has_objects).then(|| NAMESPACE.to_owned());
    let identity = format!("server {leader}");
    engine(Cluster::over(client, threads, since_boot), identity, namespace, begins_at)
}

/// An engine that binds pods itself, and is told of nodes.
pub fn engine(
    cluster: Cluster,
    identity: String,
    namespace: Option<String>,
    begins_at: Time,
) -> Kubernetes {
    let election =
        Election { namespace: NAMESPACE.to_owned(), name: SCHEDULER.to_owned(), identity };
    let leadership = cluster.lead(election, |_| Standby::Wait).expect("nobody else leads");
    Kubernetes::new(KubernetesConfig {
        cluster,
        scheduler: SCHEDULER.to_owned(),
        leadership,
        binding: Binding::Own,
        supervisor: None,
        resources: Vec::new(),
        namespace,
        nodes: Nodes::Reported,
        begins_at,
        patience: Patience::default(),
    })
}

impl Inner {
    /// Statuses of jobs, by the uid of their object.
    fn jobs(&self) -> BTreeMap<String, TrainingJobStatus> {
        let jobs = self.store.of_kind(Kind::Job).map(|(_, job)| {
            let status = serde_json::from_value(job["status"].clone()).unwrap_or_default();
            (pods::uid_of(job).to_owned(), status)
        });
        jobs.collect()
    }

    /// Pods of a lease that have a node.
    fn on_nodes(&self, lease: LeaseId) -> Vec<&str> {
        let all = self.store.of_kind(Kind::Pod);
        let of_lease = all.filter(|(_, pod)| pods::lease_of(pod) == Some(lease.0));
        of_lease.filter_map(|(key, pod)| pods::node_of(pod).map(|_| key.name.as_str())).collect()
    }

    /// Pods of a lease whose programs run, or may.
    fn live_on_nodes(&self, lease: LeaseId) -> Vec<String> {
        let all = self.store.of_kind(Kind::Pod);
        let live = all
            .filter(|(_, pod)| pods::lease_of(pod) == Some(lease.0) && pods::is_live_on_node(pod));
        live.map(|(key, _)| key.name.clone()).collect()
    }

    /// Pods that have not ended, of leases that have or that nobody knows.
    fn strays(&self, state: &State) -> Vec<&Key> {
        let is_live = |lease: u64| state.leases().contains_key(&LeaseId(lease));
        let all = self.store.of_kind(Kind::Pod).filter(|(_, pod)| !pods::has_ended(pod));
        all.filter(|(_, pod)| !pods::lease_of(pod).is_some_and(is_live))
            .map(|(key, _)| key)
            .collect()
    }
}
