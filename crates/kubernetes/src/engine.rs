//! The engine: plans become pods, what becomes of pods becomes events.

mod adoption;
mod beginnings;
mod claims;
mod clock;
mod groups;
mod listing;
mod nodes;
mod requests;
mod workloads;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use het_core::{
    Action, CheckpointSpec, Event, Generation, Lease, LeaseId, Millis, Name, Outcome, Phase, Plan,
    State, StopCause, Time, Topology,
};
use het_engine::{Engine, GenerationFence, Waker};
use het_wire::device_table::ResourceRow;
use tokio::sync::mpsc::{self, Receiver, unbounded_channel};
use tokio::time::timeout;

use crate::channel::{Message, Sender, channel};
use crate::cluster::Cluster;
use crate::conditions::ForeignConditions;
use crate::device_table::DeviceTable;
use crate::dra::DraKind;
use crate::gang::{Fact, Gang};
use crate::informers;
use crate::inventory::Inventory;
use crate::jobs::{self, Jobs};
use crate::leader::Leadership;
use crate::names::{Binding, ObjectKey, RankLabels, Scheduler};
use crate::network::NetworkKind;
use crate::objects::PodRow;
use crate::owners::{JobOwner, JobOwners};
use crate::pods;
use crate::quotas::QuotasApi;
use crate::reports::Reports;
use crate::requests::News;
use crate::statuses::Statuses;
use crate::workload_kinds::WorkloadKind;
use crate::writer::{Right, Wanted, Writer};
use claims::Claims;
use clock::Clock;
use groups::Groups;
use listing::Listing;
use requests::{PodJob, Requests};
use workloads::Workloads;

/// Between two reports of progress of a gang.
const REPORT_EVERY: Millis = Millis::seconds(1);
/// Of the ranks of a gang that lost one.
const BROKEN_GRACE: Millis = Millis::seconds(5);

/// What an engine is made of.
#[derive(Debug)]
pub struct KubernetesConfig {
    pub cluster: Cluster,
    /// The `schedulerName` of its pods.
    pub scheduler: String,
    pub binding: Binding,
    /// Of that scheduler: nothing is written without.
    pub leadership: Leadership,
    /// Where pods of jobs are made that have no object; they are refused where it is `None`.
    pub namespace: Option<String>,
    /// An image with `het` on its path, which supervises the ranks in their pods.
    pub supervisor: Option<String>,
    pub nodes: Nodes,
    /// What resources of nodes are, before what vendors' plug-ins offer.
    pub resources: Vec<ResourceRow>,
    /// Not before the state's.
    pub begins_at: Time,
    pub patience: Patience,
}

/// How long pods that have nodes may take to run. Then their gang holds devices no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Their kubelet says that it fails: an image that cannot be pulled, a secret that is missing.
    pub in_trouble: Millis,
    /// It says nothing: large images, volumes that are attached.
    pub silent: Millis,
}

impl Default for Patience {
    fn default() -> Self {
        Self { in_trouble: Millis::seconds(5 * 60), silent: Millis::seconds(60 * 60) }
    }
}

/// Who says which nodes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// The API server: the engine reports them.
    Watched,
    /// Whoever reports them to the engine.
    Reported,
}

/// An engine over the API server of a cluster.
pub struct Kubernetes {
    cluster: Cluster,
    leadership: Leadership,
    statuses: Statuses,
    conditions: ForeignConditions,
    writer: Writer,
    sender: Sender,
    receiver: Receiver<Message>,
    scheduler: Scheduler,
    namespace: Option<String>,
    supervisor: Option<String>,
    owners: JobOwners,
    clock: Clock,
    fence: GenerationFence,
    topology: Arc<Topology>,
    removed: BTreeSet<Name>,
    leases: BTreeMap<LeaseId, Live>,
    patience: Patience,
    /// When to look whether a gang has begun.
    looks: BTreeSet<(Time, LeaseId)>,
    pods: BTreeMap<ObjectKey, (PodRow, Whose)>,
    pod_list: Listing<ObjectKey>,
    /// Where the engine reports nodes.
    inventory: Option<Inventory>,
    node_list: Listing<Name>,
    requests: Requests,
    workloads: Workloads,
    claims: Claims,
    groups: Groups,
    adoption: Adoption,
    /// Plans that came before the leases of the state were taken up.
    postponed: Vec<Plan>,
    ready: VecDeque<Event>,
}

/// A lease whose end was not reported.
#[derive(Debug)]
struct Live {
    gang: Gang,
    wanted: Wanted,
    /// By rank: its pod's name, and uid once it was made.
    pods: Vec<(ObjectKey, Option<String>)>,
    /// Uids of pods that are gone.
    gone: BTreeSet<String>,
    /// All pods were listed while its own were being made: of one that had come and gone by then
    /// nobody hears.
    was_listed: bool,
    /// By which its ranks find each other.
    service: Option<ObjectKey>,
    /// The job that its only pod is, which somebody else made.
    of_pod: Option<PodJob>,
    /// Somebody asked for its end.
    stop: Option<Stop>,
    /// When it got its nodes, and since when a rank of it is in trouble.
    bound_at: Option<Time>,
    in_trouble: Option<Time>,
    reports: Reports,
}

impl Live {
    /// One whose pods are being made.
    fn new(pods: Vec<(ObjectKey, Option<String>)>, service: Option<ObjectKey>) -> Self {
        Self {
            gang: Gang::new(pods.len()),
            wanted: Wanted::default(),
            pods,
            gone: BTreeSet::new(),
            was_listed: false,
            service,
            of_pod: None,
            stop: None,
            bound_at: None,
            in_trouble: None,
            reports: Reports::default(),
        }
    }
}

/// That a gang is to end, why, and within which time.
#[derive(Debug, Clone, Copy)]
struct Stop {
    cause: StopCause,
    grace: Millis,
}

impl Stop {
    /// Of a lease of a state.
    fn of(lease: &Lease, grace: Millis) -> Option<Self> {
        match lease.phase {
            Phase::Stopping { cause } => Some(Self { cause, grace }),
            Phase::Starting | Phase::Running { .. } => None,
        }
    }
}

/// Where a gang is made, and for whom.
struct Place {
    namespace: String,
    service: Option<ObjectKey>,
    /// The uid of the job's object.
    job: Option<String>,
}

impl Place {
    fn of(gang: &pods::Gang<'_>) -> Self {
        Self {
            namespace: gang.namespace.to_owned(),
            service: gang.service_key(),
            job: gang.owner.map(|owner| owner.uid.clone()),
        }
    }
}

/// Who started a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// It is a rank of a live lease, or was.
    Ours,
    Others,
}

/// Whether the leases of a state were taken up.
enum Adoption {
    /// Nobody asked.
    None,
    /// The list of pods is not complete.
    Awaited(Box<State>),
    Done,
}

impl fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kubernetes({:?})", self.cluster)
    }
}

/// Follows pods; nodes and what else decisions rest on, where this server looks after nodes; and
/// claims on devices, where it allocates them.
fn follow(
    cluster: &Cluster,
    (scheduler, sender): (&Scheduler, &Sender),
    (looks_after_nodes, allocates): (bool, bool),
) {
    let source = informers::Source {
        client: cluster.connection().client.clone(),
        watches: cluster.watches().clone(),
    };
    cluster.spawn(informers::pods(source.clone(), scheduler.clone(), sender.clone()));
    if allocates {
        for kind in DraKind::ALL {
            let (source, scheduler) = (source.clone(), scheduler.clone());
            cluster.spawn(informers::dra(source, kind, scheduler, sender.clone()));
        }
    }
    if looks_after_nodes {
        cluster.spawn(informers::nodes(source.clone(), sender.clone()));
        cluster.spawn(informers::priority_classes(source.clone(), sender.clone()));
        for kind in NetworkKind::ALL {
            cluster.spawn(informers::network(source.clone(), kind, sender.clone()));
        }
        cluster.spawn(informers::groups(source.clone(), sender.clone()));
        for kind in WorkloadKind::all() {
            let watched = (source.clone(), kind, scheduler.clone(), sender.clone());
            cluster.spawn(informers::workloads(watched));
        }
    }
}

impl Kubernetes {
    pub fn new(config: KubernetesConfig) -> Self {
        let KubernetesConfig { cluster, leadership, namespace, .. } = config;
        let scheduler = Scheduler { name: config.scheduler.into(), binding: config.binding };
        let KubernetesConfig { supervisor, nodes, resources, begins_at, patience, .. } = config;
        let (sender, receiver) = channel();
        let table = DeviceTable::new(resources);
        let allocates = nodes == Nodes::Watched && scheduler.binding == Binding::Own;
        let claims = Claims::new(table.clone(), allocates);
        let inventory = (nodes == Nodes::Watched).then(|| Inventory::new(table));
        follow(&cluster, (&scheduler, &sender), (inventory.is_some(), allocates));
        let (jobs, threads) = (cluster.jobs(&scheduler.name), cluster.handle().clone());
        let statuses = Statuses::new(jobs.clone(), leadership.clone(), threads.clone());
        let conditions =
            ForeignConditions::new(jobs, scheduler.binding, leadership.clone(), threads);
        let says = (leadership.clone(), statuses.clone(), conditions.clone());
        Self {
            writer: Writer::new(
                cluster.connection().plain.clone(),
                scheduler.clone(),
                sender.clone(),
                says,
                claims.book(),
            ),
            clock: Clock::start(begins_at, cluster.since_boot()),
            cluster,
            leadership,
            statuses,
            conditions,
            sender,
            receiver,
            scheduler,
            namespace,
            supervisor,
            owners: JobOwners::default(),
            fence: GenerationFence::default(),
            topology: Arc::default(),
            removed: BTreeSet::new(),
            leases: BTreeMap::new(),
            patience,
            looks: BTreeSet::new(),
            pods: BTreeMap::new(),
            pod_list: Listing::Never,
            inventory,
            node_list: Listing::Never,
            requests: Requests::default(),
            workloads: Workloads::default(),
            claims,
            groups: Groups::default(),
            adoption: Adoption::None,
            postponed: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// Which object each job is of.
    pub fn owners(&self) -> JobOwners {
        self.owners.clone()
    }

    /// The API of jobs, for those who have threads of their own to wait.
    pub fn jobs(&self) -> Jobs {
        self.cluster.jobs(&self.scheduler.name)
    }

    /// The API of the quotas of its scheduler.
    pub fn quotas(&self) -> QuotasApi {
        let client = self.cluster.connection().client.clone();
        let threads = self.cluster.handle().clone();
        QuotasApi::new(client, &self.scheduler.name, self.leadership.clone(), threads)
    }

    /// What changes about jobs, waiting pods and quotas from now on, beginning with all that there
    /// are.
    pub fn watch_jobs(&mut self) -> News {
        let (sender, jobs) = jobs::news();
        self.cluster.spawn(self.jobs().watch(self.cluster.watches().clone(), sender));
        let (sender, quotas) = mpsc::channel(1);
        self.cluster.spawn(self.quotas().watch(self.cluster.watches().clone(), sender));
        let (sender, requests) = unbounded_channel();
        self.requests.follow(sender);
        self.tell_requests();
        News { jobs, requests, quotas }
    }

    /// Where statuses of jobs go. Gangs of jobs with an object wait for the one that names them.
    pub fn statuses(&self) -> Statuses {
        self.statuses.clone()
    }

    /// Where objects of others are told how they stand.
    pub fn conditions(&self) -> ForeignConditions {
        self.conditions.clone()
    }

    /// Hears until it is known which nodes and pods there are, or for so long; whether it is.
    pub fn await_lists(&mut self, limit: Millis) -> bool {
        let until = self.clock.now() + limit;
        while !self.are_listed()
            && let Some(message) = self.receive(Some(until))
        {
            self.take(message);
        }
        self.are_listed()
    }

    /// It is known which nodes and pods there are.
    fn are_listed(&self) -> bool {
        let are_listed =
            matches!((&self.pod_list, &self.node_list), (Listing::Done, Listing::Done));
        are_listed && self.claims.are_listed()
    }

    /// The number after the highest that labels of its pods name, live or not.
    pub fn next_lease(&self) -> LeaseId {
        let leases = self.pods.values().filter_map(|(row, _)| row.lease());
        LeaseId(leases.max().map_or(1, |last| last.0 + 1))
    }

    /// Takes in what comes for so long.
    pub fn hear_for(&mut self, limit: Millis) {
        let until = self.clock.now() + limit;
        while let Some(message) = self.receive(Some(until)) {
            self.take(message);
            self.tell_groups();
        }
    }

    /// The way for facts that others find.
    pub fn event_sender(&self) -> EventSender {
        EventSender(self.sender.clone())
    }

    /// The next message before then.
    fn receive(&mut self, until: Option<Time>) -> Option<Message> {
        let wait = until.map(|until| Duration::from_millis(until.since(self.clock.now()).0));
        let receiver = &mut self.receiver;
        self.cluster.block_on(async {
            match wait {
                Some(wait) => timeout(wait, receiver.recv()).await.ok().flatten(),
                None => receiver.recv().await,
            }
        })
    }

    fn carry_out_all(&mut self, plan: &Plan) {
        plan.actions.iter().for_each(|action| self.carry_out(action, plan.generation));
    }

    fn carry_out(&mut self, action: &Action, generation: Generation) {
        match action {
            Action::Start { lease, stage, placement, .. }
                if let Some(object) = self.owners.foreign(stage.job) =>
            {
                self.start_foreign(*lease, (stage.job, &object), placement);
            }
            Action::Start { lease, stage, attempt, placement, launch, resume, .. } => {
                let owner = self.owners.get(stage.job);
                let gang = pods::Gang {
                    scheduler: &self.scheduler,
                    namespace: self.namespace_of(owner.as_ref()),
                    owner: owner.as_ref(),
                    topology: &Arc::clone(&self.topology),
                    dra: self.claims.dra(),
                    generation,
                    epoch: self.leadership.epoch(),
                    lease: *lease,
                    stage: *stage,
                    attempt: *attempt,
                    placement,
                    launch,
                    resume: resume.as_ref(),
                    supervisor: self.supervisor.as_deref(),
                    groups: self.groups.of_gangs(self.scheduler.binding),
                };
                let objects = self.prepared(&gang);
                let place = Place::of(&gang);
                self.start(*lease, place, objects);
            }
            Action::Stop { lease, cause, grace, .. } => {
                self.stop(*lease, Stop { cause: *cause, grace: *grace });
            }
            // Nothing is begun before a rank has its devices.
            Action::Claim { .. }
            | Action::Unclaim { .. }
            | Action::Prepare { .. }
            | Action::Unprepare { .. } => {}
        }
    }

    /// Where the pods of a job lie; nowhere where its object is gone.
    fn namespace_of<'a>(&'a self, owner: Option<&'a JobOwner>) -> &'a str {
        let default = self.namespace.as_deref().unwrap_or_default();
        owner.map_or(default, |owner| &owner.namespace)
    }

    /// # Errors
    /// Why it cannot be started.
    fn prepared(&self, gang: &pods::Gang<'_>) -> Result<pods::Objects, String> {
        if gang.namespace.is_empty() {
            return Err("the job's object is not there any more".to_owned());
        }
        let nodes = gang.placement.ranks.iter().map(|rank| &gang.topology.node(rank.node).name);
        match nodes.into_iter().find(|name| self.removed.contains(*name)) {
            Some(name) => Err(format!("node `{name}` is not there any more")),
            None => gang.objects(),
        }
    }

    fn start(
        &mut self,
        lease: LeaseId,
        Place { namespace, service, job }: Place,
        objects: Result<pods::Objects, String>,
    ) {
        let objects = match objects {
            Ok(objects) => objects,
            Err(reason) => {
                let outcome = Outcome::Refused { reason };
                return self.ready.push_back(Event::StageEnded { lease, outcome });
            }
        };
        let key =
            |pod: &pods::Pod| ObjectKey { namespace: namespace.clone(), name: pod.name.clone() };
        let pods: Vec<_> = objects.pods.iter().map(|pod| (key(pod), None)).collect();
        let live = Live::new(pods, service);
        let wanted = live.wanted.clone();
        self.leases.insert(lease, live);
        self.cluster.spawn(self.writer.clone().begin(
            Right { lease, wanted, job },
            namespace,
            objects,
        ));
    }

    fn stop(&mut self, lease: LeaseId, stop: Stop) {
        if self.stop_workload(lease, stop.cause) || self.stop_group(lease, stop.cause) {
            return;
        }
        let Some(live) = self.leases.get_mut(&lease).filter(|live| live.stop.is_none()) else {
            return;
        };
        live.gang.stop();
        live.wanted.no_more();
        live.stop = Some(stop);
        self.delete(lease, stop.grace);
        self.emit(lease);
    }

    /// Deletes what was made of a gang. A pod of somebody else has a grace of its own, and goes
    /// for others only as far as its disruption budgets allow.
    fn delete(&self, lease: LeaseId, grace: Millis) {
        let Some(live) = self.leases.get(&lease) else { return };
        let made = live.pods.iter().filter_map(|(key, uid)| Some((key.clone(), uid.clone()?)));
        let made: Vec<(ObjectKey, String)> = made.collect();
        if made.is_empty() {
            return;
        }
        let is_owners_wish = live.stop.is_some_and(|stop| stop.cause == StopCause::User);
        let writer = self.writer.clone();
        match &live.of_pod {
            None => self.cluster.spawn(writer.delete(made, Some(grace))),
            Some(_) if is_owners_wish => self.cluster.spawn(writer.delete(made, None)),
            Some(of_pod) => self.cluster.spawn(writer.evict(of_pod.pod.clone())),
        }
    }

    /// Reports what follows from what was seen of a gang.
    fn emit(&mut self, lease: LeaseId) {
        while let Some(live) = self.leases.get_mut(&lease) {
            match live.gang.next() {
                None => return,
                Some(Fact::Started) => self.ready.push_back(Event::StageStarted { lease }),
                Some(Fact::Broken) if live.stop.is_some() => {}
                Some(Fact::Broken) => self.delete(lease, BROKEN_GRACE),
                Some(Fact::Ended(outcome)) => {
                    let said = live.gang.has_started().then(|| live.reports.take(lease));
                    self.ready.extend(said.into_iter().flatten());
                    self.end(lease, outcome);
                }
            }
        }
    }

    fn end(&mut self, lease: LeaseId, outcome: Outcome) {
        let live = self.leases.remove(&lease);
        if let Some(of_pod) = live.as_ref().and_then(|live| live.of_pod.as_ref()) {
            return self.end_pod(lease, of_pod, outcome);
        }
        let pods = live.iter().flat_map(|live| &live.pods);
        let rows: Vec<PodRow> =
            pods.filter_map(|(key, _)| self.pods.get(key)).map(|(row, _)| row.clone()).collect();
        rows.iter().for_each(|row| self.count_claims_of(row));
        if let Some(service) = live.and_then(|live| live.service) {
            // It has the same name.
            if let Some(version) = self.groups.of_gangs(self.scheduler.binding) {
                self.cluster.spawn(self.writer.clone().delete_group(service.clone(), version));
            }
            self.cluster.spawn(self.writer.clone().delete_service(service));
        }
        self.ready.push_back(Event::StageEnded { lease, outcome });
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Wake => {}
            Message::Fact(event) => self.pass_on(*event),
            Message::PodsBegin => self.pod_list = Listing::UnderWay(BTreeSet::new()),
            Message::PodsEnd => self.listed(),
            Message::Pod(row) => self.see(*row),
            Message::PodGone { key, uid } => self.see_gone(&key, &uid),
            Message::NodesBegin => self.node_list = Listing::UnderWay(BTreeSet::new()),
            Message::NodesEnd => self.nodes_listed(),
            Message::Node(row) => self.see_node(*row),
            Message::NodeGone(name) => self.see_node_gone(&name),
            Message::Dra(news) => self.see_dra(news),
            Message::WorkloadsBegin(kind) => self.workloads_begin(kind),
            Message::WorkloadsEnd(kind) => self.workloads_listed(kind),
            Message::Workload(row) => self.see_workload(*row),
            Message::WorkloadGone { name, uid } => self.see_workload_gone(&name, &uid),
            Message::GroupsServed(version) => self.groups_served(version),
            Message::GroupsUnknown(why) => self.groups_unknown(why),
            Message::GroupsBegin => self.groups_begin(),
            Message::GroupsEnd => self.groups_listed(),
            Message::Group(row) => self.see_group(*row),
            Message::GroupGone { key, uid } => self.see_group_gone(&key, &uid),
            Message::Network(objects) => {
                if let Some(inventory) = &mut self.inventory {
                    inventory.see_network(*objects);
                }
            }
            Message::PriorityClasses(values) => self.see_priority_classes(values),
            Message::NotUnsuspended { lease, reason } => self.not_unsuspended(lease, reason),
            Message::Suspended { lease, version } => self.suspended(lease, version),
            Message::NotPlaced { lease, uid, reason } => {
                self.not_placed(lease, &uid, reason.clone());
                self.group_pod_not_placed(lease, &uid, reason);
            }
            Message::Looked { lease, rank, row } => self.looked(lease, rank, row),
            Message::Begun { lease, made, refused } => self.begun(lease, made, refused),
        }
        self.report_nodes();
        self.tell_requests();
        self.tell_absent_workloads();
    }

    /// A fact that somebody else found.
    fn pass_on(&mut self, event: Event) {
        match &event {
            Event::NodeRemoved { name } => {
                self.removed.insert(name.clone());
            }
            Event::NodesJoined { nodes } => {
                self.removed.retain(|name| nodes.nodes.iter().all(|node| node.name != *name));
            }
            _ => {}
        }
        self.ready.push_back(event);
    }

    fn see(&mut self, row: PodRow) {
        self.pod_list.name(row.key.clone());
        // Another of the same name has taken its place.
        if let Some(before) = self.pods.get(&row.key).filter(|(before, _)| before.uid != row.uid) {
            let uid = before.0.uid.clone();
            self.see_gone(&row.key, &uid);
        }
        match self.own_rank(&row) {
            Some(rank) => {
                self.keep(row.clone(), Whose::Ours);
                self.see_rank(rank, &row);
            }
            None if self.see_workload_pod(&row) => {}
            None if self.see_group_pod(&row) => {}
            None => {
                self.delete_if_orphaned(&row);
                self.see_request(&row);
                self.keep(row, Whose::Others);
            }
        }
    }

    /// The rank that a pod is of a live lease. A label alone is anybody's to set: it has the name
    /// of that rank's pod, and its uid where that is known.
    fn own_rank(&self, row: &PodRow) -> Option<RankLabels> {
        let given = self.requests.lease(&row.uid).map(|lease| RankLabels { lease, rank: 0 });
        let rank = given.or(row.rank)?;
        let live = self.leases.get(&rank.lease)?;
        let (key, uid) = live.pods.get(rank.rank as usize)?;
        let is_it = *key == row.key
            && match uid {
                Some(uid) => *uid == row.uid,
                // Once the gang has begun, a rank without a pod never gets one.
                None => live.gang.is_beginning(),
            };
        is_it.then_some(rank)
    }

    fn see_rank(&mut self, rank: RankLabels, row: &PodRow) {
        if let Some(live) = self.leases.get_mut(&rank.lease) {
            live.pods[rank.rank as usize].1.get_or_insert_with(|| row.uid.clone());
            live.gang.see(rank.rank, row);
            live.reports.read(rank.rank, row);
            self.await_beginning(rank.lease);
            self.emit(rank.lease);
            self.report(rank.lease);
        }
    }

    /// Passes on what the ranks of a gang that runs say of their progress: not too often, since
    /// whoever may change a pod may say it as often as they like.
    fn report(&mut self, lease: LeaseId) {
        let now = self.now();
        let Some(live) = self.leases.get_mut(&lease).filter(|live| live.gang.has_started()) else {
            return;
        };
        if live.reports.is_empty() {
            return;
        }
        if now < live.reports.next {
            self.looks.insert((live.reports.next, lease));
            return;
        }
        live.reports.next = now + REPORT_EVERY;
        self.ready.extend(live.reports.take(lease));
        let hung = live.reports.take_hung().filter(|_| live.of_pod.is_none());
        if let Some((rank, silent)) = hung {
            live.gang.hung(rank, silent);
            self.emit(lease);
        }
    }

    /// Remembers a pod. What those of others take is capacity that is taken.
    fn keep(&mut self, row: PodRow, whose: Whose) {
        let takes = |row: &PodRow, whose| whose == Whose::Others && !row.phase.has_ended();
        let before = self.pods.insert(row.key.clone(), (row.clone(), whose));
        let before = before.filter(|(row, whose)| takes(row, *whose)).map(|(row, _)| row);
        let after = Some(&row).filter(|row| takes(row, whose));
        self.count_others(before.as_ref(), after);
        self.count_claims_of(&row);
    }

    fn count_others(&mut self, before: Option<&PodRow>, after: Option<&PodRow>) {
        let Some(inventory) = &mut self.inventory else { return };
        let node = after.or(before).and_then(|row| row.node.as_ref());
        // A pod gets its node once and for all.
        if let Some(node) = node {
            let before = before.filter(|row| row.node.is_some());
            let [before, after] = [before, after].map(|row| row.map(|row| &row.requests));
            inventory.others_change(node, before, after);
        }
    }

    /// A pod with our labels of a lease that ended, or that nobody knows: then nothing may be left
    /// of it.
    fn delete_if_orphaned(&self, row: &PodRow) {
        // While a gang begins, nobody knows yet which pod of a name is its rank's.
        let has_begun =
            |lease| self.leases.get(&lease).is_none_or(|live| !live.gang.is_beginning());
        let is_orphaned = row.lease().is_some_and(has_begun) && self.own_rank(row).is_none();
        let is_live = !row.phase.has_ended() && !row.is_deleting;
        if is_orphaned && is_live && matches!(self.adoption, Adoption::Done) {
            let pods = vec![(row.key.clone(), row.uid.clone())];
            let grace = Some(CheckpointSpec::GRACE_DEFAULT);
            self.cluster.spawn(self.writer.clone().delete(pods, grace));
        }
    }

    fn see_gone(&mut self, key: &ObjectKey, uid: &str) {
        let is_it = self.pods.get(key).is_some_and(|(row, _)| row.uid == uid);
        let Some((row, whose)) = is_it.then(|| self.pods.remove(key)).flatten() else { return };
        if whose == Whose::Others && !row.phase.has_ended() {
            self.count_others(Some(&row), None);
        }
        self.count_claims_of(&row);
        if let Some(rank) = self.own_rank(&row)
            && let Some(live) = self.leases.get_mut(&rank.lease)
        {
            if live.gang.is_beginning() {
                live.gone.extend(live.pods[rank.rank as usize].1.take());
            }
            live.gang.see_gone(rank.rank);
            self.emit(rank.lease);
        }
        self.see_workload_pod_gone(&row);
        self.see_group_pod_gone(&row);
        self.requests.over(uid);
    }

    /// The list of all pods is complete: those that it did not name are gone, and those that were
    /// made and never seen are asked for.
    fn listed(&mut self) {
        if let Some(named) = self.pod_list.end() {
            let absent = self.pods.values().filter(|(row, _)| !named.contains(&row.key));
            let absent: Vec<_> =
                absent.map(|(row, _)| (row.key.clone(), row.uid.clone())).collect();
            absent.iter().for_each(|(key, uid)| self.see_gone(key, uid));
        }
        self.leases.values_mut().for_each(|live| live.was_listed |= live.gang.is_beginning());
        self.leases.keys().for_each(|lease| self.look_for_unheard(*lease));
        self.adopt_leases();
    }
}

impl Engine for Kubernetes {
    fn adopt(&mut self, state: &State) {
        self.fence.adopt(state);
        self.topology = Arc::clone(state.topology());
        self.removed = removed(state);
        self.ready.clear();
        self.leases.clear();
        self.requests.forget_leases();
        self.workloads.forget_leases();
        self.groups.forget_leases();
        self.looks.clear();
        self.postponed.clear();
        self.inventory.iter_mut().for_each(|inventory| inventory.adopt(state));
        self.adoption = Adoption::Awaited(Box::new(state.clone()));
        self.adopt_leases();
        self.report_nodes();
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        self.topology = Arc::clone(topology);
        self.inventory.iter_mut().for_each(|inventory| inventory.topology_changed(topology));
        self.report_nodes();
    }

    fn submit(&mut self, plan: &Plan) {
        match (self.fence.admits(plan), &self.adoption) {
            (false, _) => {}
            (true, Adoption::Awaited(_)) => self.postponed.push(plan.clone()),
            (true, _) => self.carry_out_all(plan),
        }
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        loop {
            self.look_at_beginnings();
            self.tell_groups();
            if let Some(event) = self.ready.pop_front() {
                return Some((self.now(), event));
            }
            let look = self.looks.first().map(|(at, _)| *at);
            let is_sooner = look.is_some_and(|look| until.is_none_or(|until| look < until));
            match self.receive(if is_sooner { look } else { until }) {
                None if is_sooner => {}
                Some(Message::Wake) | None => return None,
                Some(message) => self.take(message),
            }
        }
    }

    fn waker(&mut self) -> Waker {
        let sender = self.sender.clone();
        Waker::new(move || sender.wake())
    }

    fn now(&self) -> Time {
        self.clock.now()
    }
}

fn removed(state: &State) -> BTreeSet<Name> {
    let topology = state.topology();
    let removed = topology.node_ids().filter(|id| state.is_removed(*id));
    removed.map(|id| topology.node(id).name.clone()).collect()
}

/// How facts that others find reach the engine; cheap to clone.
#[derive(Debug, Clone)]
pub struct EventSender(Sender);

impl EventSender {
    pub fn send(&self, event: Event) {
        self.0.send_blocking(Message::Fact(Box::new(event)));
    }
}
