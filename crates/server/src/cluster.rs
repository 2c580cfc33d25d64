//! A service over a cluster: its engine, an event store, and the jobs that people make there.

mod intake;

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, JoinHandle};

use het_control::Controller;
use het_core::{Event, JobId, Millis, State};
use het_host::{Home, LatestLoad, Reserve, StartTime};
use het_kubernetes::{Access, JobObject, JobOwners, Kubernetes, KubernetesConfig, Nodes, Statuses};
use het_node::Heartbeat;
use het_service::report::resource_status;
use het_service::{Observer, Scheduling, Service, ServiceError, Setup, Store, Touched};
use het_wire::api::JobRow;
use het_wire::resource::TrainingJobStatus;

use crate::archive::Archive;
use crate::assembly::{StartError, of_store, open_or_create, start_time_of};
use crate::cluster_jobs::ClusterJobs;
use crate::served::Served;
use crate::store::{Keeping, Opened, Recovered, StoreError, StoreReader};
pub use intake::WORKDIR;
use intake::{Intake, Known};

/// How a service over a cluster is to run.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    pub access: Access,
    /// The `schedulerName` of its pods.
    pub scheduler: String,
    pub scheduling: Scheduling,
    pub keeping: Keeping,
}

/// How long a start waits for the lists of nodes and pods: 5,000 and 50,000 take seconds.
const LISTS_MAX: Millis = Millis::seconds(60);
/// A service for the jobs of a cluster.
#[derive(Debug)]
pub struct ClusterService {
    service: Service<Kubernetes>,
    jobs: ClusterJobs,
    /// Ends with the service.
    intake: JoinHandle<()>,
    log: StoreReader,
    /// What there is to say about the cluster and the store, a sentence each.
    pub news: Vec<String>,
    /// Snapshots that were damaged; older ones and the events stood in for them.
    pub refused: Vec<StoreError>,
}

impl ClusterService {
    /// Opens or creates the store of `home`, takes up what runs in the cluster, and begins to
    /// decide.
    ///
    /// # Errors
    /// When the store or the API server cannot be used.
    pub fn start(home: Home, options: ClusterOptions) -> Result<Self, StartError> {
        let ClusterOptions { access, scheduler, scheduling, keeping } = options;
        let Opened { store, recovered, taken_over, mended } = open_or_create(&home)?;
        let store = store.with_keeping(keeping);
        let (log, rows): (StoreReader, Vec<JobRow>) = (store.reader(), store.reader().rows()?);
        let Recovered { past, refused } = recovered;
        let StartTime { time: begins_at, news: of_clock } = start_time_of(&home, &past.state);
        let mut engine = Kubernetes::connect(KubernetesConfig {
            access,
            scheduler,
            namespace: None,
            nodes: Nodes::Watched,
            begins_at,
        })?;
        let news = of_clock.into_iter().chain(of_store(taken_over, mended.as_ref()));
        let are_listed = engine.await_lists(LISTS_MAX);
        let server = engine.connection();
        let news = news.chain([format!("the cluster is {} ({})", server.server, server.version)]);
        let unknown = engine.not_understood().into_iter().map(|(resource, nodes)| {
            format!("nobody knows what `{resource}` of {nodes} nodes is: it is not offered")
        });
        let silent = (!are_listed)
            .then(|| "nodes and pods are not listed yet: may the account do so?".to_owned());
        let news: Vec<String> = news.chain(unknown).chain(silent).collect();
        let (owners, statuses) = (engine.owners(), engine.statuses());
        let objects = engine.list_jobs()?;
        let known = known_jobs(&past.state, &rows, &objects, &owners);
        let (jobs, changes) = (ClusterJobs::new(engine.jobs()), engine.watch_jobs());
        let archive = Archive {
            events: store,
            reserve: Some(Reserve::at(home.reserve())),
            home: home.clone(),
            heartbeat: Heartbeat::default(),
            avoided: BTreeSet::new(),
        };
        let Scheduling { policy, cadence } = scheduling;
        let last_job = rows.last().map_or(0, |row| row.id);
        let deleted = deleted_jobs(&past.state, &owners);
        let mut control = Controller::new(past.state, past.rates, policy, engine, archive)
            .with_cadence(cadence)
            .with_retention(keeping.retention());
        control.adopt();
        deleted.into_iter().for_each(|job| control.accept(Event::JobCancelled { job }));
        if control.log_mut().mend().is_err() {
            // For the first turn; the service finds out the same, and says so.
            control.log_mut().release_reserve();
        }
        // Whoever asks first sees the cluster as it is now.
        let now = control.now();
        control.turn(Some(now)).map_err(ServiceError::Control)?;
        catch_up(control.state(), &objects, &owners, &statuses);
        let observer = write_statuses(control.state(), owners.clone(), statuses.clone());
        let setup = Setup {
            rows,
            ended_max: keeping.jobs,
            next_job: last_job + 1,
            observers: vec![observer],
        };
        let service = Service::start(control, setup)?;
        let intake = Intake {
            handle: service.handle.clone(),
            home,
            owners,
            statuses,
            jobs: jobs.clone(),
            known,
            refused: BTreeMap::new(),
        };
        let thread = thread::Builder::new().name("intake".to_owned());
        let intake = thread.spawn(move || intake.run(changes)).map_err(StartError::Thread)?;
        Ok(Self { service, jobs, intake, log, news, refused })
    }

    /// What its interface shows.
    pub fn served(&self) -> Served {
        Served {
            handle: self.service.handle.clone(),
            log: self.log.clone(),
            load: LatestLoad::default(),
            members: None,
            cluster: Some(self.jobs.clone()),
        }
    }

    /// Waits for the loop's end. However it ends, what runs goes on.
    ///
    /// # Errors
    /// Why it ended, unless it was asked to.
    pub fn join(self) -> Result<(), ServiceError> {
        let (engine, ended) = self.service.join();
        drop(engine);
        // Nobody sends it anything any more.
        let _ = self.intake.join();
        ended
    }
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
    live.map(|(id, _)| *id).filter(|id| owners.get(*id).is_none()).collect()
}

/// Tells objects what the server before had no time to tell.
fn catch_up(state: &State, objects: &[JobObject], owners: &JobOwners, statuses: &Statuses) {
    let told: BTreeMap<&str, &TrainingJobStatus> =
        objects.iter().map(|object| (object.owner.uid.as_str(), &object.status)).collect();
    for (id, job) in state.jobs() {
        let Some(owner) = owners.get(*id) else { continue };
        let status = resource_status(state, *id, job);
        if told.get(owner.uid.as_str()) != Some(&&status) {
            statuses.write(owner, status);
        }
    }
}

/// Tells objects how their jobs stand, whenever that changes.
fn write_statuses(state: &State, owners: JobOwners, statuses: Statuses) -> Observer {
    let mut touched = Touched::of(state);
    let mut told = BTreeMap::new();
    Box::new(move |replica, events| {
        let state = replica.state();
        for id in touched.by(events) {
            let Some((owner, job)) = owners.get(id).zip(state.job(id)) else { continue };
            let status = resource_status(state, id, job);
            if told.get(&id) != Some(&status) {
                statuses.write(owner, status.clone());
                told.insert(id, status);
            }
            if job.end.is_some() {
                told.remove(&id);
            }
        }
    })
}
