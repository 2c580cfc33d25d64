//! A service over a cluster: its engine, an event store, and the jobs that people make there.

mod intake;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use het_control::Controller;
use het_core::{Millis, State};
use het_host::{Home, LatestLoad, Reserve, StartTime};
use het_kubernetes::{
    Access, JobObject, JobOwners, Kubernetes, KubernetesConfig, Nodes, SCHEDULER, Statuses,
};
use het_node::Heartbeat;
use het_service::report::resource_status;
use het_service::{Handle, Observer, Scheduling, Service, ServiceError, Setup, Store, Touched};
use het_wire::api::JobRow;

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

impl ClusterOptions {
    pub fn new(access: Access, scheduling: Scheduling) -> Self {
        let (scheduler, keeping) = (SCHEDULER.to_owned(), Keeping::default());
        Self { access, scheduler, scheduling, keeping }
    }
}

/// How long a start waits for the lists of nodes and pods: 5,000 and 50,000 take seconds.
const LISTS_MAX: Millis = Millis::seconds(60);
/// Where pods lie whose jobs have no object: there are none.
const NO_NAMESPACE: &str = "default";

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
            namespace: NO_NAMESPACE.to_owned(),
            nodes: Nodes::Watched,
            begins_at,
        })?;
        let news = of_clock.into_iter().chain(of_store(taken_over, mended.as_ref()));
        engine.await_lists(LISTS_MAX);
        let server = engine.connection();
        let news = news.chain([format!("the cluster is {} ({})", server.server, server.version)]);
        let unknown = engine.not_understood().into_iter().map(|(resource, nodes)| {
            format!("nobody knows what `{resource}` of {nodes} nodes is: it is not offered")
        });
        let news: Vec<String> = news.chain(unknown).collect();
        let (owners, statuses) = (engine.owners(), engine.statuses());
        let known = known_jobs(&past.state, &engine.list_jobs()?, (&owners, &statuses));
        let (jobs, changes) = (ClusterJobs::new(engine.jobs()), engine.watch_jobs());
        let archive = Archive {
            events: store,
            reserve: Some(Reserve::at(home.reserve())),
            home: home.clone(),
            heartbeat: Heartbeat::default(),
            avoided: BTreeSet::new(),
        };
        let Scheduling { policy, cadence } = scheduling;
        let state = past.state;
        let observer = write_statuses(&state, owners.clone(), statuses.clone());
        let last_job = rows.last().map_or(0, |row| row.id);
        let mut control = Controller::new(state, past.rates, policy, engine, archive)
            .with_cadence(cadence)
            .with_retention(keeping.retention());
        control.adopt();
        if control.log_mut().mend().is_err() {
            // For the first turn; the service finds out the same, and says so.
            control.log_mut().release_reserve();
        }
        // Whoever asks first sees the cluster as it is now.
        let now = control.now();
        control.turn(Some(now)).map_err(ServiceError::Control)?;
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

    pub fn handle(&self) -> &Handle {
        &self.service.handle
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

/// The jobs of a state by the uid of their object. Objects that are there own what is made for
/// them, and are told what the server before had no time to tell.
fn known_jobs(
    state: &State,
    objects: &[JobObject],
    (owners, statuses): (&JobOwners, &Statuses),
) -> BTreeMap<String, Known> {
    let by_uid: BTreeMap<&str, &JobObject> =
        objects.iter().map(|object| (object.owner.uid.as_str(), object)).collect();
    let mut known = BTreeMap::new();
    for (id, job) in state.jobs() {
        let Some(uid) = job.spec.key.as_ref().and_then(|key| intake::uid_of(key)) else { continue };
        if let Some(object) = by_uid.get(uid) {
            owners.insert(*id, object.owner.clone());
            let status = resource_status(state, *id, job);
            if object.status != status {
                statuses.write(object.owner.clone(), status);
            }
        }
        known.insert(uid.to_owned(), Known { id: *id, priority: None });
    }
    known
}

/// Tells objects how their jobs stand, whenever that changes.
fn write_statuses(state: &State, owners: JobOwners, statuses: Statuses) -> Observer {
    let mut touched = Touched::of(state);
    let mut told = BTreeMap::new();
    Box::new(move |replica, events| {
        let state = replica.state();
        for id in touched.by(events) {
            let Some((owner, job)) = owners.get(id).zip(state.job(id)) else { continue };
            let status = Arc::new(resource_status(state, id, job));
            if told.get(&id) != Some(&status) {
                statuses.write(owner, (*status).clone());
                told.insert(id, status);
            }
            if job.end.is_some() {
                told.remove(&id);
            }
        }
    })
}
