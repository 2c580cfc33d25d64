//! A service over a cluster: its engine, an event store, and the jobs that people make there.

mod intake;
mod jobs;
mod reporting;
mod takeover;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use het_control::Controller;
use het_core::{Event, JobId, Millis, State};
use het_host::{Home, LatestLoad, Reserve, StartTime};
use het_kubernetes::{
    Binding, Cluster, Foreign, ForeignKind, JobObject, JobOwner, JobOwners, Kubernetes,
    KubernetesConfig, Leadership, Nodes, Patience, Statuses,
};
use het_node::{Heartbeat, boot_id, since_boot};
use het_service::{Scheduling, Service, ServiceError, Setup};
use het_wire::api::JobRow;
use het_wire::device_table::ResourceRow;
use nix::unistd::gethostname;
use sha2::{Digest, Sha256};

use crate::archive::Archive;
use crate::assembly::{StartError, first_turn, start_time_of};
use crate::served::Served;
use crate::store::{Keeping, StoreError, StoreReader};
use intake::{Intake, Known, KnownForeign, quotas_at_start};
use jobs::ClusterJobs;
use reporting::{catch_up, write_statuses};
use takeover::Takeover;

/// The job's own directory in its pods.
const WORKDIR: &str = "/work";

/// How a service over a cluster is to run.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The `schedulerName` of its pods.
    pub scheduler: String,
    pub binding: Binding,
    /// An image with `het` on its path, which supervises the ranks in their pods.
    pub supervisor: Option<String>,
    /// What resources of nodes are that no vendor's plug-in is known to offer, or otherwise.
    pub resources: Vec<ResourceRow>,
    pub scheduling: Scheduling,
    pub keeping: Keeping,
}

/// How long a start waits for the lists of nodes and pods: 5,000 and 50,000 take seconds.
const LISTS_MAX: Millis = Millis::seconds(60);
/// How often, and with which pause, a new log waits for devices that leases name.
const LACK_LOOKS: usize = 60;
const LACK_PAUSE: Millis = Millis::seconds(1);
/// How long an end waits for statuses that are not written yet.
const STATUSES_MAX: Duration = Duration::from_secs(5);

/// A service for the jobs of a cluster.
#[derive(Debug)]
pub struct ClusterService {
    service: Service<Kubernetes>,
    cluster: Cluster,
    leadership: Leadership,
    jobs: ClusterJobs,
    statuses: Statuses,
    /// Ends with the service.
    intake: JoinHandle<()>,
    log: StoreReader,
    /// What there is to say about the cluster and the store, a sentence each.
    pub news: Vec<String>,
    /// Snapshots that were damaged; older ones and the events stood in for them.
    pub refused: Vec<StoreError>,
}

impl ClusterService {
    /// Goes on from the log in `home`, or from what the leader before left in the cluster; takes up
    /// what runs there, and begins to decide. It ends by itself when the lead is lost.
    ///
    /// # Errors
    /// When the store or the API server cannot be used.
    pub fn start(
        home: Home,
        (cluster, leadership): (Cluster, Leadership),
        options: ClusterOptions,
    ) -> Result<Self, StartError> {
        let ClusterOptions { scheduling, keeping, .. } = options.clone();
        let began = since_boot();
        let objects = cluster.list_jobs(&options.scheduler)?;
        let quotas_object = cluster.quotas(&options.scheduler)?;
        let led = (cluster.clone(), leadership.clone());
        let (takeover, engine) = take_over(&home, led, options, &objects)?;
        let mut engine = engine;
        let Takeover { store, past, refused, mut news, .. } = takeover;
        let store = store.with_keeping(keeping);
        let (log, rows): (StoreReader, Vec<JobRow>) = (store.reader(), store.reader().rows()?);
        let (owners, statuses) = (engine.owners(), engine.statuses());
        let conditions = engine.conditions();
        let known = known_jobs(&past.state, &rows, &objects, &owners);
        let foreign = known_foreign(&past.state, &owners);
        let quotas = engine.quotas();
        let jobs = ClusterJobs::new(engine.jobs(), quotas.name(), cluster.watches().clone());
        let changes = engine.watch_jobs();
        let archive = Archive {
            events: store,
            reserve: Some(Reserve::at(home.reserve())),
            home: home.clone(),
            heartbeat: Heartbeat::default(),
            avoided: BTreeSet::new(),
        };
        let Scheduling { policy, cadence } = scheduling;
        let deleted = deleted_jobs(&past.state, &owners);
        jobs.keep_quotas(quotas_object.is_some());
        let first = quotas_at_start(&home, quotas_object.as_ref(), past.state.topology());
        let mut control = Controller::new(past.state, past.rates, policy, engine, archive)
            .with_cadence(cadence)
            .with_retention(keeping.retention());
        objects.iter().for_each(|object| statuses.found(&object.owner, &object.status));
        control.adopt();
        deleted.into_iter().for_each(|job| control.accept(Event::JobCancelled { job }));
        // Before anything is decided: what is held once stays.
        let first = first.filter(|quotas| *quotas != **control.state().quotas());
        first.into_iter().for_each(|quotas| {
            control.accept(Event::QuotasSet { quotas: Arc::new(quotas) });
        });
        let last_job = rows.last().map_or(0, |row| row.id);
        let setup = |observer| Setup {
            rows,
            ended_max: keeping.jobs,
            next_job: last_job + 1,
            observers: vec![observer],
        };
        first_turn(&mut control)?;
        let took = Millis(since_boot().0.saturating_sub(began.0));
        news.push(format!("it decides since {} ms after it leads", took.0));
        catch_up(control.state(), &objects, (&owners, &statuses), leadership.epoch());
        let says = (statuses.clone(), conditions.clone());
        let observer = write_statuses(control.state(), owners.clone(), says);
        let service = Service::start(control, setup(observer))?;
        let handle = service.handle.clone();
        cluster.on_loss(&leadership, move || handle.stop_soon());
        let intake = Intake {
            handle: service.handle.clone(),
            home,
            owners,
            statuses: statuses.clone(),
            jobs: jobs.clone(),
            known,
            refused: BTreeMap::new(),
            conditions,
            foreign,
            quotas,
            quotas_object: None,
        };
        let thread = thread::Builder::new().name("intake".to_owned());
        let intake = thread.spawn(move || intake.run(changes)).map_err(StartError::Thread)?;
        Ok(Self { service, cluster, leadership, jobs, statuses, intake, log, news, refused })
    }

    /// What its interface shows.
    pub fn served(&self) -> Served {
        Served {
            handle: self.service.handle.clone(),
            log: self.log.clone(),
            load: LatestLoad::default(),
            members: None,
            cluster: Some(Arc::new(self.jobs.clone())),
        }
    }

    /// Waits for the loop's end. However it ends, what runs goes on, and whoever waits to lead may.
    ///
    /// # Errors
    /// Why it ended, unless it was asked to or lost the lead.
    pub fn join(self) -> Result<ClusterEnd, ServiceError> {
        let Self { service, cluster, leadership, intake, statuses, .. } = self;
        let (engine, ended) = service.join();
        // What was promised to callers is what the next leader finds.
        cluster.settle(&statuses, STATUSES_MAX);
        cluster.release(&leadership);
        drop((engine, cluster));
        // Its threads are gone, so nobody sends it anything any more. Where it failed the process
        // does, too: its keeper starts the next one.
        if let Err(panic) = intake.join() {
            std::panic::resume_unwind(panic);
        }
        match leadership.is_lost() {
            true => Ok(ClusterEnd::LeadLost),
            false => ended.map(|()| ClusterEnd::Asked),
        }
    }
}

/// The log that is gone on from, and an engine that knows what there is in the cluster.
fn take_over(
    home: &Home,
    (cluster, leadership): (Cluster, Leadership),
    options: ClusterOptions,
    objects: &[JobObject],
) -> Result<(Takeover, Kubernetes), StartError> {
    let mut takeover = Takeover::open(home, &leadership, objects)?;
    let newest = takeover::newest_epoch(objects);
    if newest >= leadership.epoch() {
        let raised = cluster.raise_above(&leadership, newest);
        raised.map_err(|error| StartError::Epoch(Box::new(error)))?;
    }
    let StartTime { time, news } = start_time_of(home, &takeover.past.state);
    takeover.news.extend(news);
    let mut engine = Kubernetes::new(KubernetesConfig {
        cluster: cluster.clone(),
        scheduler: options.scheduler,
        leadership: leadership.clone(),
        namespace: None,
        binding: options.binding,
        supervisor: options.supervisor,
        nodes: Nodes::Watched,
        resources: options.resources,
        begins_at: time,
        patience: Patience::default(),
    });
    let mut are_listed = engine.await_lists(LISTS_MAX);
    if takeover.is_new() {
        // Whoever does not know a node or a pod would take its leases for lost.
        while !are_listed {
            leads(&leadership)?;
            are_listed = engine.await_lists(LISTS_MAX);
        }
        // A device plugin that begins anew offers nothing for a moment.
        for _ in 0..LACK_LOOKS {
            if !takeover.lacks_devices(&engine) {
                break;
            }
            leads(&leadership)?;
            engine.hear_for(LACK_PAUSE);
        }
    }
    takeover.adopt(&engine, time)?;
    takeover::claim_epoch(home, &leadership)?;
    takeover.news.extend(of_cluster(&cluster, &engine, are_listed));
    Ok((takeover, engine))
}

fn leads(leadership: &Leadership) -> Result<(), StartError> {
    match leadership.is_lost() {
        true => Err(StartError::LeadLost),
        false => Ok(()),
    }
}

/// As whom the server of a home leads: one at a time has it, and the next of the same machine and
/// boot has the same.
pub fn leader_identity(home: &Home) -> String {
    let host = gethostname().unwrap_or_default();
    let place = home.root().canonicalize().unwrap_or_else(|_| home.root().to_owned());
    let mut digest = Sha256::new();
    digest.update(boot_id());
    digest.update(place.as_os_str().as_bytes());
    // Another container may have a home of that path.
    let lock = home.lock_file().metadata().map_or((0, 0), |file| (file.dev(), file.ino()));
    digest.update(lock.0.to_le_bytes());
    digest.update(lock.1.to_le_bytes());
    let digest = digest.finalize();
    let digits = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
    format!("{}_{}", host.to_string_lossy(), digits.collect::<String>())
}

/// Why a service over a cluster ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterEnd {
    Asked,
    /// Another server leads, or may.
    LeadLost,
}

/// What there is to say about a cluster, a sentence each.
fn of_cluster(cluster: &Cluster, engine: &Kubernetes, are_listed: bool) -> Vec<String> {
    let server = cluster.connection();
    let name = format!("the cluster is {} ({})", server.server, server.version);
    let unknown = engine.not_understood().into_iter().map(|(resource, nodes)| {
        format!("nobody knows what `{resource}` of {nodes} nodes is: it is not offered")
    });
    let silent = (!are_listed)
        .then(|| "nodes and pods are not listed yet: may the account do so?".to_owned());
    [name].into_iter().chain(unknown).chain(silent).collect()
}

/// The jobs of a state and of rows by the uid of their object. Objects that are there own what is
/// made for them.
fn known_jobs(
    state: &State,
    rows: &[JobRow],
    objects: &[JobObject],
    owners: &JobOwners,
) -> BTreeMap<String, Known> {
    let of_state = state.jobs().iter().filter_map(|(id, job)| Some((*id, job.spec.key.as_ref()?)));
    let of_state = of_state.map(|(id, key)| (id, key.to_string()));
    let of_rows = rows.iter().filter_map(|row| Some((JobId(row.id), row.key.clone()?)));
    let mut known = BTreeMap::new();
    for (id, key) in of_rows.chain(of_state) {
        if let Some(uid) = intake::uid_of(&key) {
            known.insert(uid.to_owned(), Known { id, priority: None });
        }
    }
    for object in objects {
        if let Some(known) = known.get(&object.owner.uid) {
            owners.insert(known.id, object.owner.clone());
        }
    }
    known
}

/// Live jobs whose object was deleted while nobody watched.
fn deleted_jobs(state: &State, owners: &JobOwners) -> Vec<JobId> {
    let live = state.jobs().iter().filter(|(_, job)| job.end.is_none());
    let is_owned = |id: JobId| owners.get(id).is_some() || owners.foreign(id).is_some();
    live.map(|(id, _)| *id).filter(|id| !is_owned(*id)).collect()
}

/// Live jobs that are objects of others, by uid.
fn known_foreign(state: &State, owners: &JobOwners) -> BTreeMap<String, KnownForeign> {
    let mut known = BTreeMap::new();
    for (id, job) in state.jobs().iter().filter(|(_, job)| job.end.is_none()) {
        let key = job.spec.key.as_ref().map(|key| key.as_str());
        let Some((kind, uid)) = key.and_then(ForeignKind::of_key) else { continue };
        let (namespace, name) = (job.spec.tenant.to_string(), job.spec.name.to_string());
        let owner = JobOwner { namespace, name, uid: uid.to_owned() };
        owners.insert_foreign(*id, Foreign { kind, owner });
        let stage = job.spec.stages.first();
        let shape = stage.map(|stage| {
            let of = stage.alternatives.iter().map(|of| (of.selector.clone(), of.count));
            (of.collect(), stage.ranks)
        });
        known.insert(uid.to_owned(), KnownForeign { job: Some(*id), request: None, shape });
    }
    known
}
