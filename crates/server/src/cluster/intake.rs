//! Jobs that people make in a cluster, on their way to the loop.

mod foreign;
mod quotas;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use het_core::{Event, Job, JobChange, JobId, JobSpec, Priority, StartConditions, State};
use het_host::Home;
use het_kubernetes::{
    ForeignConditions, JobNews, JobObject, JobOwner, JobOwners, News, QuotasApi, QuotasNews,
    QuotasObject, RequestNews, Statuses,
};
use het_planner::models;
use het_service::report::stamp;
use het_service::{CallError, Caller, Change, Code, Handle, Role, Unavailable, calls};
use het_wire::job::{Context, PriorityFile, TrainingJob, Volumes, begin, parse_after, scratch};
use het_wire::resource::{self, Condition, TrainingJobStatus};
use jiff::Zoned;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep_until};

use super::WORKDIR;
use super::jobs::ClusterJobs;
use crate::planning::plan;
pub(super) use foreign::KnownForeign;
pub(super) use quotas::at_start as quotas_at_start;

/// What the key of a job begins with that has an object; its uid follows.
const KEY: &str = "trainingjob/";
/// Between two tries of what the loop could not take.
const PAUSE: Duration = Duration::from_secs(1);
/// Jobs and objects of others that are taken in by one turn of the loop.
const JOBS_AT_ONCE: usize = 256;
const REQUESTS_AT_ONCE: usize = 1_024;
/// The state of a job that cannot be taken in.
const REFUSED: &str = "refused";

/// The uid of the object of a job that was submitted under this key.
pub(super) fn uid_of(key: &str) -> Option<&str> {
    key.strip_prefix(KEY)
}

/// A job that was taken in.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub id: JobId,
    /// As its object had it last; nothing was seen of it yet where it is `None`.
    pub priority: Option<Priority>,
}

/// What was heard and not taken in.
#[derive(Default)]
struct Waiting {
    /// The newest.
    quotas: Option<QuotasNews>,
    jobs: Vec<JobNews>,
    requests: Vec<RequestNews>,
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
    pub conditions: ForeignConditions,
    /// Objects of others that were taken in, by uid.
    pub foreign: BTreeMap<String, KnownForeign>,
    pub quotas: QuotasApi,
    /// The object of which the cluster does not have all.
    pub quotas_object: Option<Box<QuotasObject>>,
}

impl Intake {
    /// Until nothing comes any more. A server that takes nothing in is none, so with this the
    /// service ends.
    pub fn run(mut self, news: News) {
        let _stop = StopAtEnd(self.handle.clone());
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime without I/O needs nothing of the system");
        runtime.block_on(self.follow(news));
    }

    async fn follow(&mut self, News { mut jobs, mut requests, mut quotas }: News) {
        let mut topologies = self.handle.topologies();
        let mut waiting = Waiting::default();
        let mut again_at: Option<Instant> = None;
        let (mut of_jobs, mut of_others) = (Vec::new(), Vec::new());
        loop {
            tokio::select! {
                count = jobs.recv_many(&mut of_jobs, JOBS_AT_ONCE) => match count {
                    0 => return,
                    _ => waiting.jobs.append(&mut of_jobs),
                },
                count = requests.recv_many(&mut of_others, REQUESTS_AT_ONCE) => match count {
                    0 => return,
                    _ => waiting.requests.append(&mut of_others),
                },
                Some(news) = quotas.recv() => waiting.quotas = Some(news),
                // Words that were none may be devices now.
                Ok(()) = topologies.changed() => {
                    let incomplete = self.quotas_object.take().map(QuotasNews::Is);
                    waiting.quotas = waiting.quotas.take().or(incomplete);
                    let refused = std::mem::take(&mut self.refused).into_values();
                    waiting.jobs.extend(refused.map(|object| JobNews::Is(Box::new(object))));
                }
                () = sleep_until(again_at.unwrap_or_else(Instant::now)), if again_at.is_some() => {
                    again_at = None;
                }
            };
            // What is newer waits behind what the loop could not take.
            if again_at.is_none() && self.take_all(&mut waiting).await.is_err() {
                again_at = Some(Instant::now() + PAUSE);
            }
        }
    }

    /// # Errors
    /// When the loop cannot be reached or its store not be written: what was not taken in waits.
    async fn take_all(&mut self, waiting: &mut Waiting) -> Result<(), Unavailable> {
        if let Some(quotas) = &waiting.quotas {
            self.take_quotas(quotas).await?;
            waiting.quotas = None;
        }
        let jobs = std::mem::take(&mut waiting.jobs);
        waiting.jobs = self.take_jobs(jobs).await;
        while waiting.jobs.is_empty() && !waiting.requests.is_empty() {
            let count = waiting.requests.len().min(REQUESTS_AT_ONCE);
            self.take_foreign(&waiting.requests[..count]).await?;
            waiting.requests.drain(..count);
        }
        if waiting.jobs.is_empty() { Ok(()) } else { Err(Unavailable::Busy) }
    }

    /// Takes in what changed about jobs; what is to be tried again, in that order. Jobs that come
    /// one after the other are submitted together.
    async fn take_jobs(&mut self, news: Vec<JobNews>) -> Vec<JobNews> {
        let mut new: Vec<(JobNews, NewJob)> = Vec::new();
        let mut rest = news.into_iter();
        while let Some(one) = rest.next() {
            let is_known = new.iter().any(|(other, _)| uid_in(other) == uid_in(&one));
            let is_full = new.len() >= JOBS_AT_ONCE;
            let mut left = match is_known || is_full || waits_for_others(&one) {
                true => self.submit(std::mem::take(&mut new)).await,
                false => Vec::new(),
            };
            if left.is_empty() {
                match self.take(one.clone()).await {
                    Ok(None) => continue,
                    Ok(Some(job)) => {
                        new.push((one, job));
                        continue;
                    }
                    Err(_) => left = self.submit(std::mem::take(&mut new)).await,
                }
            }
            left.push(one);
            left.extend(rest);
            return left;
        }
        self.submit(new).await
    }

    /// The job to submit, where that follows.
    ///
    /// # Errors
    /// When the loop cannot be reached or its store not be written: it is to be tried again.
    async fn take(&mut self, news: JobNews) -> Result<Option<NewJob>, Unavailable> {
        match news {
            JobNews::Is(object) => match self.known.get(&object.owner.uid).cloned() {
                // Who deletes an object waits for what it owns; nothing of it starts again.
                Some(Known { id, .. }) if object.is_deleting => self.cancel(id).await?,
                Some(known) => self.renew(known, *object).await?,
                // It ended so long ago that nothing else is known of it.
                None if is_over(&object.status.state) || object.is_deleting => {}
                None => return self.take_in(*object).await,
            },
            JobNews::Gone { uid } => {
                self.refused.remove(&uid);
                self.statuses.forget(&uid);
                if let Some(Known { id, .. }) = self.known.get(&uid) {
                    let id = *id;
                    self.cancel(id).await?;
                    self.owners.remove(id);
                    self.known.remove(&uid);
                }
            }
        }
        Ok(None)
    }

    /// Takes over what changed about the object of a job.
    async fn renew(&mut self, known: Known, object: JobObject) -> Result<(), Unavailable> {
        let uid = object.owner.uid.clone();
        self.owners.insert(known.id, object.owner);
        let priority: Option<PriorityFile> =
            serde_json::from_value(object.spec["priority"].clone()).ok();
        let priority: Priority = priority.unwrap_or_default().into();
        if known.priority == Some(priority) {
            return Ok(());
        }
        let job = known.id;
        let change = move |state: &State| {
            let is_other = |job: &&Arc<Job>| job.end.is_none() && job.spec.priority != priority;
            let differs = state.jobs().get(&job).filter(is_other).is_some();
            let change = JobChange { priority: Some(priority), ..JobChange::default() };
            let events = differs.then_some(Event::JobChanged { job, change });
            Change { events: events.into_iter().collect(), answer: () }
        };
        // Of an earlier server's job the object says nothing new: somebody may have set another
        // priority by `het set`.
        if known.priority.is_some() {
            let tenant = self.owners.get(job).map(|owner| owner.namespace).unwrap_or_default();
            let caller = maker_in(&tenant);
            match calls::check_priority(&self.handle, &caller, &tenant, priority).await {
                Ok(()) => self.handle.change(change).await?,
                // The job stays what it is.
                Err(error) if error.code == Code::NotAllowed => {}
                Err(_) => return Err(Unavailable::Busy),
            }
        }
        self.known.insert(uid, Known { priority: Some(priority), ..known });
        Ok(())
    }

    async fn cancel(&self, job: JobId) -> Result<(), Unavailable> {
        let change = move |state: &State| {
            let is_live = state.job(job).is_some_and(|job| job.end.is_none());
            let events = is_live.then_some(Event::JobCancelled { job });
            Change { events: events.into_iter().collect(), answer: () }
        };
        self.handle.change(change).await
    }

    async fn take_in(&mut self, object: JobObject) -> Result<Option<NewJob>, Unavailable> {
        let (id, uid) = (self.handle.new_job_id(), object.owner.uid.clone());
        let spec = match self.specify(&object, id).await {
            Ok(spec) => Arc::new(spec),
            Err(NotTaken::Later(error)) => return Err(error),
            Err(NotTaken::Refused(reason)) => {
                self.refuse(&object, &reason);
                self.jobs.taken_in(&uid, Err(reason));
                self.refused.insert(uid, object);
                return Ok(None);
            }
        };
        self.statuses.found(&object.owner, &object.status);
        Ok(Some(NewJob { id, owner: object.owner, spec }))
    }

    /// Submits jobs; what is to be tried again.
    async fn submit(&mut self, new: Vec<(JobNews, NewJob)>) -> Vec<JobNews> {
        if new.is_empty() {
            return Vec::new();
        }
        let mut events = Vec::new();
        for (_, NewJob { id, owner, spec }) in &new {
            // Before it can be started.
            self.owners.insert(*id, owner.clone());
            let (job, spec) = (*id, Arc::clone(spec));
            let (succeeded, checkpoints) = (Vec::new(), Vec::new());
            events.push(Event::JobSubmitted { job, spec, succeeded, checkpoints });
        }
        let change = move |_: &State| Change { events, answer: () };
        if self.handle.change(change).await.is_err() {
            new.iter().for_each(|(_, job)| self.owners.remove(job.id));
            return new.into_iter().map(|(news, _)| news).collect();
        }
        for (_, NewJob { id, owner, spec }) in new {
            self.jobs.taken_in(&owner.uid, Ok(id));
            self.known.insert(owner.uid, Known { id, priority: Some(spec.priority) });
        }
        Vec::new()
    }

    /// # Errors
    /// Why it cannot be taken in.
    async fn specify(&self, object: &JobObject, id: JobId) -> Result<JobSpec, NotTaken> {
        let owner = &object.owner;
        let (topology, env) = (self.handle.topology(), BTreeMap::new());
        let name = (owner.namespace.as_str(), owner.name.as_str());
        let job = resource::read(name, &object.spec, &topology.classes)
            .map_err(|problems| NotTaken::Refused(problems.to_string()))?;
        let asked = job.file.spec.stages.iter().filter_map(scratch).max();
        let (caller, tenant) = (maker(owner), owner.namespace.as_str());
        let of_tenant = calls::scratch_max(&self.handle, &caller, tenant, asked).await?;
        let mut context = Context::new(&topology.classes, models(), &env);
        context.workdir = WORKDIR;
        context.job = id;
        context.volumes = Volumes::Claims;
        context.tasks = 1;
        context.scratch = of_tenant;
        let mut spec =
            job.resolve(&context).map_err(|problems| NotTaken::Refused(problems.to_string()))?;
        calls::check_priority(&self.handle, &caller, tenant, spec.priority).await?;
        let calibrations = self.home.calibrations();
        // Gangs that lack memory are told when they wait.
        let _ = plan(&job.file, &topology, &calibrations, &mut spec);
        spec.start = self.start_conditions(&job, &caller)?;
        spec.key = Some(format!("{KEY}{}", owner.uid).as_str().into());
        Ok(spec)
    }

    fn start_conditions(
        &self,
        job: &TrainingJob,
        caller: &Caller,
    ) -> Result<StartConditions, NotTaken> {
        let spec = &job.file.spec;
        let begin = spec.begin.as_deref().and_then(|text| begin(text, &Zoned::now()));
        let mut start = StartConditions { begin, ..StartConditions::default() };
        // The file was checked: what does not parse is not there.
        if let Some(after) = spec.after.as_ref().and_then(|it| parse_after(&it.text()).ok()) {
            let tenant = job.file.metadata.tenant.as_deref().unwrap_or_default();
            let waiting = calls::Waiting { name: &job.file.metadata.name, tenant, index: None };
            let waits = calls::waits(&self.handle, caller, &after, waiting)?;
            start.begin = begin.max(waits.not_before);
            start.dependencies = waits.dependencies;
        }
        Ok(start)
    }

    fn refuse(&self, object: &JobObject, reason: &str) {
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
        self.statuses.write(object.owner.clone(), status);
    }
}

/// Ends the service, however its thread does.
struct StopAtEnd(Handle);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.stop_soon();
    }
}

/// A job that is to be submitted.
struct NewJob {
    id: JobId,
    owner: JobOwner,
    spec: Arc<JobSpec>,
}

/// The uid of the object that news are about.
fn uid_in(news: &JobNews) -> &str {
    match news {
        JobNews::Is(object) => &object.owner.uid,
        JobNews::Gone { uid } => uid,
    }
}

/// Whether it names other jobs, which have to be submitted by then.
fn waits_for_others(news: &JobNews) -> bool {
    matches!(news, JobNews::Is(object) if !object.spec["after"].is_null())
}

/// Why a job is not taken in.
enum NotTaken {
    /// For people.
    Refused(String),
    Later(Unavailable),
}

impl From<CallError> for NotTaken {
    fn from(error: CallError) -> Self {
        match error.code {
            Code::Busy | Code::InsufficientStorage => Self::Later(Unavailable::Busy),
            _ => Self::Refused(error.message),
        }
    }
}

/// Whoever made an object: the cluster has let them, and quotas hold for them.
fn maker(owner: &JobOwner) -> Caller {
    maker_in(&owner.namespace)
}

fn maker_in(namespace: &str) -> Caller {
    Caller { role: Role::User, tenant: Some(namespace.to_owned()), user: None }
}

/// Whether a job in this state has ended, as far as its object says.
fn is_over(state: &str) -> bool {
    matches!(state, "succeeded" | "failed" | "cancelled")
}
