//! Jobs that people make in a cluster, on their way to the loop.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{Event, Job, JobChange, JobId, JobSpec, Name, Priority, StartConditions, State};
use het_host::Home;
use het_kubernetes::{JobNews, JobObject, JobOwners, Statuses};
use het_planner::models;
use het_service::report::stamp;
use het_service::{Caller, Change, Handle, Unavailable, calls};
use het_wire::api::Begin;
use het_wire::job::{Context, PriorityFile, TrainingJob, begin, parse_after};
use het_wire::resource::{self, Condition, TrainingJobStatus};
use jiff::Zoned;
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::cluster_jobs::ClusterJobs;
use crate::planning::plan;

/// What the key of a job begins with that has an object; its uid follows.
const KEY: &str = "trainingjob/";
/// The job's own directory in its pods.
pub const WORKDIR: &str = "/work";
/// The state of a job that cannot be taken in.
const REFUSED: &str = "refused";

/// The uid of the object of a job that was submitted under this key.
pub(super) fn uid_of(key: &Name) -> Option<&str> {
    key.as_str().strip_prefix(KEY)
}

/// A job that was taken in.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub id: JobId,
    /// As its object had it last; nothing was seen of it yet where it is `None`.
    pub priority: Option<Priority>,
}

/// Takes jobs in, one after the other.
pub(super) struct Intake {
    pub handle: Handle,
    pub home: Home,
    pub owners: JobOwners,
    pub statuses: Statuses,
    pub jobs: ClusterJobs,
    /// By the uid of their object.
    pub known: BTreeMap<String, Known>,
    /// Objects whose jobs could not be taken in, by their uid.
    pub refused: BTreeMap<String, JobObject>,
}

impl Intake {
    /// Until nothing comes any more.
    pub fn run(mut self, changes: mpsc::Receiver<JobNews>) {
        let runtime = Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime without drivers needs nothing of the system");
        runtime.block_on(self.follow(changes));
    }

    async fn follow(&mut self, mut changes: mpsc::Receiver<JobNews>) {
        loop {
            let handle = self.handle.clone();
            tokio::select! {
                news = changes.recv() => match news {
                    Some(news) => self.take(news).await,
                    None => return,
                },
                // Words that were none may be devices now.
                () = handle.topology_changed() => {
                    for object in std::mem::take(&mut self.refused).into_values() {
                        self.take_in(object).await;
                    }
                }
            }
        }
    }

    async fn take(&mut self, news: JobNews) {
        match news {
            JobNews::Is(object) => match self.known.get(&object.owner.uid) {
                Some(known) => self.renew(known.clone(), *object).await,
                // It ended so long ago that nothing else is known of it.
                None if is_over(&object.status.state) || object.is_deleting => {}
                None => self.take_in(*object).await,
            },
            JobNews::Gone { uid } => {
                self.refused.remove(&uid);
                if let Some(Known { id, .. }) = self.known.remove(&uid) {
                    self.owners.remove(id);
                    // Where the loop is gone, the next one sees that the object is.
                    let _ = self.cancel(id).await;
                }
            }
        }
    }

    /// Takes over what changed about the object of a job.
    async fn renew(&mut self, known: Known, object: JobObject) {
        let uid = object.owner.uid.clone();
        self.owners.insert(known.id, object.owner);
        let priority: Option<PriorityFile> =
            serde_json::from_value(object.spec["priority"].clone()).ok();
        let priority: Priority = priority.unwrap_or_default().into();
        if known.priority == Some(priority) {
            return;
        }
        let job = known.id;
        let change = move |state: &State| {
            let is_other = |job: &&Arc<Job>| job.end.is_none() && job.spec.priority != priority;
            let differs = state.jobs().get(&job).filter(is_other).is_some();
            let change = JobChange { priority: Some(priority), ..JobChange::default() };
            let events = differs.then_some(Event::JobChanged { job, change });
            Change { events: events.into_iter().collect(), answer: () }
        };
        // Where the loop is gone, the next one compares them again.
        if self.handle.change(change).await.is_ok() {
            self.known.insert(uid, Known { priority: Some(priority), ..known });
        }
    }

    async fn cancel(&self, job: JobId) -> Result<(), Unavailable> {
        let change = move |state: &State| {
            let is_live = state.job(job).is_some_and(|job| job.end.is_none());
            let events = is_live.then_some(Event::JobCancelled { job });
            Change { events: events.into_iter().collect(), answer: () }
        };
        self.handle.change(change).await
    }

    async fn take_in(&mut self, object: JobObject) {
        let id = self.handle.new_job_id();
        let taken_in = match self.specify(&object, id) {
            Ok(spec) => {
                let known = Known { id, priority: Some(spec.priority) };
                self.known.insert(object.owner.uid.clone(), known);
                self.owners.insert(id, object.owner.clone());
                let spec = Arc::new(spec);
                let submitted = calls::submit(&self.handle, id, spec, Begin::Queued).await;
                submitted.map(|()| id).map_err(|error| error.to_string())
            }
            Err(reason) => Err(reason),
        };
        if let Err(reason) = &taken_in {
            self.known.remove(&object.owner.uid);
            self.owners.remove(id);
            self.refuse(&object, reason).await;
        }
        self.jobs.tell(&object.owner.uid, taken_in.clone());
        if taken_in.is_err() {
            self.refused.insert(object.owner.uid.clone(), object);
        }
    }

    /// # Errors
    /// Why it cannot be taken in, for people.
    fn specify(&self, object: &JobObject, id: JobId) -> Result<JobSpec, String> {
        let owner = &object.owner;
        let (topology, env) = (self.handle.topology(), BTreeMap::new());
        let name = (owner.namespace.as_str(), owner.name.as_str());
        let job = resource::read(name, &object.spec, &topology.classes)
            .map_err(|problems| problems.to_string())?;
        let mut context = Context::new(&topology.classes, models(), &env);
        context.workdir = WORKDIR;
        context.job = id;
        let mut spec = job.resolve(&context).map_err(|problems| problems.to_string())?;
        let calibrations = self.home.calibrations();
        // Gangs that lack memory are told when they wait.
        let _ = plan(&job.file, &topology, &calibrations, &mut spec);
        spec.start = self.start_conditions(&job)?;
        spec.key = Some(format!("{KEY}{}", owner.uid).as_str().into());
        Ok(spec)
    }

    fn start_conditions(&self, job: &TrainingJob) -> Result<StartConditions, String> {
        let spec = &job.file.spec;
        let begin = spec.begin.as_deref().and_then(|text| begin(text, &Zoned::now()));
        let mut start = StartConditions { begin, ..StartConditions::default() };
        // The file was checked: what does not parse is not there.
        if let Some(after) = spec.after.as_ref().and_then(|it| parse_after(&it.text()).ok()) {
            let tenant = job.file.metadata.tenant.as_deref().unwrap_or_default();
            let waiting = calls::Waiting { name: &job.file.metadata.name, tenant, index: None };
            let waits = calls::waits(&self.handle, &Caller::OWNER, &after, waiting);
            let waits = waits.map_err(|error| error.to_string())?;
            start.begin = begin.max(waits.not_before);
            start.dependencies = waits.dependencies;
        }
        Ok(start)
    }

    async fn refuse(&self, object: &JobObject, reason: &str) {
        let first = reason.lines().next().unwrap_or_default().to_owned();
        let is_told = object.status.state == REFUSED && object.status.reason == first;
        if is_told {
            return;
        }
        let condition = Condition {
            r#type: "Accepted".to_owned(),
            status: "False".to_owned(),
            reason: "Invalid".to_owned(),
            message: reason.to_owned(),
            last_transition_time: stamp(het_node::wall_time()),
        };
        let (state, conditions) = (REFUSED.to_owned(), vec![condition]);
        let status =
            TrainingJobStatus { state, reason: first, conditions, ..TrainingJobStatus::default() };
        self.statuses.send(object.owner.clone(), status).await;
    }
}

/// Whether a job in this state has ended, as far as its object says.
fn is_over(state: &str) -> bool {
    matches!(state, "succeeded" | "failed" | "cancelled")
}
