//! Objects of others that ask for nodes: each is a job of one stage.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use het_core::{
    Alternative, Bytes, Companions, Drivers, Event, Job, JobChange, JobId, JobSpec, Launch, Match,
    Name, PlannedSpeeds, Preemptible, Priority, Quotas, RankRule, Selector, StageKind, StageSpec,
    StageState, StartConditions, State,
};
use het_kubernetes::{
    DeviceOption, Foreign, ForeignKind, PodDevices, Request, RequestNews, Unsuitable, Waits,
};
use het_service::report::resource_status;
use het_service::{Change, Unavailable};

use super::Intake;
use crate::cluster::WORKDIR;

/// The only stage of a job that is an object of somebody else.
const STAGE: &str = "pods";

/// The state of a job that ended so long ago that nothing else is known of it.
const FORGOTTEN: &str = "ended";

/// An object of somebody else that was taken in.
#[derive(Debug, Clone)]
pub(in crate::cluster) struct KnownForeign {
    /// `None` where nothing can be done for it now.
    pub job: Option<JobId>,
    /// What it asked for; nothing was heard of it yet where it is `None`.
    pub request: Option<Request>,
    /// The devices of a job that an earlier server took in, and what a rank of it is.
    pub shape: Option<(Vec<(Selector, u32)>, RankRule)>,
}

/// What follows from news.
#[derive(Default)]
struct Batch {
    submitted: Vec<Submitted>,
    /// Of objects that are gone.
    over: Vec<JobId>,
    /// By uid, those for which nothing would do now: where they have no nodes yet.
    withdrawn: Vec<(String, JobId)>,
    waits: Vec<(Foreign, Waits)>,
    /// By uid: what is known from then on.
    known: BTreeMap<String, Option<KnownForeign>>,
}

/// What became of those that were to be taken in.
#[derive(Default)]
struct Brought {
    /// By uid: those that go on with the job that they had.
    kept: Vec<(String, JobId)>,
    /// Workloads whose job has ended, and its state: they run once.
    ended: Vec<(Foreign, JobId, String)>,
    /// Jobs that nobody needs any more, or that never came about.
    unneeded: Vec<JobId>,
}

struct Submitted {
    job: JobId,
    spec: Arc<JobSpec>,
    of: Foreign,
    /// The job of the same object in whose place it comes.
    before: Option<JobId>,
    /// What that was submitted with.
    priority_before: Option<Priority>,
}

impl Intake {
    /// Takes in what changed about objects of others, by one turn of the loop.
    ///
    /// # Errors
    /// When the loop cannot be reached or its store not be written: it is to be tried again.
    pub(super) async fn take_foreign(&mut self, news: &[RequestNews]) -> Result<(), Unavailable> {
        let quotas = self.handle.query(|replica| replica.state().quotas().clone()).await?;
        let mut batch = Batch::default();
        for one in news {
            match one {
                RequestNews::Asks(request) => self.ask(request, &quotas, &mut batch),
                RequestNews::Gone { uid } => {
                    let job = self.known(uid, &batch).and_then(|known| known.job);
                    let job = batch.before(job);
                    batch.over.extend(job);
                    batch.known.insert(uid.clone(), None);
                }
            }
        }
        let waits = std::mem::take(&mut batch.waits);
        let mut known = std::mem::take(&mut batch.known);
        let Brought { kept, ended, .. } = self.bring(batch).await?;
        // What they ask for by now is heard again once their job has no devices any more.
        kept.iter().for_each(|(uid, _)| drop(known.remove(uid)));
        for (object, job, state) in ended {
            if let Some(known) = known.get_mut(&object.owner.uid).and_then(Option::as_mut) {
                known.job = Some(job);
            }
            // The note that says so was not written, or was removed.
            self.conditions.ended(object, state);
        }
        for (uid, known) in known {
            match known {
                Some(known) => drop(self.foreign.insert(uid, known)),
                None => {
                    self.conditions.forget(&uid);
                    self.foreign.remove(&uid);
                }
            }
        }
        waits.into_iter().for_each(|(object, why)| self.conditions.waits(object, why));
        Ok(())
    }

    fn known<'a>(&'a self, uid: &str, batch: &'a Batch) -> Option<&'a KnownForeign> {
        batch.known.get(uid).map_or_else(|| self.foreign.get(uid), Option::as_ref)
    }

    fn ask(&self, request: &Request, quotas: &Quotas, batch: &mut Batch) {
        let uid = &request.of.owner.uid;
        let known = self.known(uid, batch).cloned();
        let mut job = known.as_ref().and_then(|known| known.job);
        if !known.as_ref().is_some_and(|known| known.asks_for(request)) {
            // Other devices would do now: it begins anew as a job that says so.
            let before = batch.before(job);
            job = match &request.devices {
                Ok(devices) => {
                    let job = self.handle.new_job_id();
                    let spec = Arc::new(specify(request, devices, quotas));
                    let of = request.of.clone();
                    let asked = known.as_ref().and_then(|known| known.request.as_ref());
                    let asked = asked.map(|before| priority_of(before, quotas));
                    let one = Submitted { job, spec, of, before, priority_before: asked };
                    batch.submitted.push(one);
                    Some(job)
                }
                Err(why) => {
                    batch.withdrawn.extend(before.map(|job| (uid.clone(), job)));
                    batch.waits.push((request.of.clone(), told(why)));
                    None
                }
            };
        }
        let known = KnownForeign { job, request: Some(request.clone()), shape: None };
        batch.known.insert(uid.clone(), Some(known));
    }

    /// Has the loop take them in.
    ///
    /// # Errors
    /// When nothing came of it.
    async fn bring(&self, batch: Batch) -> Result<Brought, Unavailable> {
        let Batch { submitted, over, withdrawn, .. } = batch;
        for Submitted { job, of, .. } in &submitted {
            // Before it can be started.
            self.owners.insert_foreign(*job, of.clone());
        }
        let made: Vec<JobId> = submitted.iter().map(|it| it.job).collect();
        let replaced = submitted.iter().filter_map(|it| it.before);
        let withdrawn_jobs = withdrawn.iter().map(|(_, job)| *job);
        let ending: Vec<JobId> =
            over.iter().copied().chain(replaced).chain(withdrawn_jobs).collect();
        ending.iter().for_each(|job| self.owners.withdraw(*job));
        let change = move |state: &State| {
            let (mut events, mut brought) = (Vec::new(), Brought::default());
            let mut over = over;
            // What has its nodes already keeps them.
            for (uid, job) in withdrawn {
                match has_lease(state, job) {
                    true => brought.kept.push((uid, job)),
                    false => over.push(job),
                }
            }
            for one in submitted {
                match fate(state, &one) {
                    Fate::New => events.push(submission(one)),
                    Fate::InPlaceOf(before) => {
                        let inherited = inherited(before, &one);
                        over.extend(one.before);
                        events.push(submission(one));
                        events.extend(inherited);
                    }
                    Fate::Kept(before) => {
                        brought.kept.push((one.of.owner.uid, before));
                        brought.unneeded.push(one.job);
                    }
                    Fate::Ended(job, state) => {
                        brought.unneeded.push(one.job);
                        brought.ended.push((one.of, job, state));
                    }
                }
            }
            let is_live = |job: &JobId| state.job(*job).is_some_and(|job| job.end.is_none());
            let live = over.iter().copied().filter(is_live);
            events.extend(live.map(|job| Event::JobCancelled { job }));
            brought.unneeded.extend(over);
            Change { events, answer: brought }
        };
        match self.handle.change(change).await {
            Ok(brought) => {
                brought.kept.iter().for_each(|(_, job)| self.owners.keep(*job));
                brought.unneeded.iter().for_each(|job| self.owners.remove(*job));
                Ok(brought)
            }
            Err(error) => {
                made.into_iter().for_each(|job| self.owners.remove(job));
                ending.into_iter().for_each(|job| self.owners.keep(job));
                Err(error)
            }
        }
    }
}

/// What is to become of one that asks for something else.
enum Fate<'a> {
    New,
    InPlaceOf(&'a Job),
    /// Its job has nodes.
    Kept(JobId),
    /// A workload, whose job has ended.
    Ended(JobId, String),
}

fn fate<'a>(state: &'a State, one: &Submitted) -> Fate<'a> {
    let Some(id) = one.before else { return Fate::New };
    let job = state.job(id);
    let is_workload = matches!(one.of.kind, ForeignKind::Workload(_));
    match job {
        Some(job) if job.end.is_none() && has_lease(state, id) => Fate::Kept(id),
        Some(job) if job.end.is_none() => Fate::InPlaceOf(job),
        Some(job) if is_workload => Fate::Ended(id, resource_status(state, id, job).state),
        // It ended so long ago that nothing else is known of it.
        None if is_workload => Fate::Ended(id, FORGOTTEN.to_owned()),
        _ => Fate::New,
    }
}

fn submission(Submitted { job, spec, .. }: Submitted) -> Event {
    let (succeeded, checkpoints) = (Vec::new(), Vec::new());
    Event::JobSubmitted { job, spec, succeeded, checkpoints }
}

/// What people said of the job in whose place another comes.
fn inherited(before: &Job, one: &Submitted) -> Vec<Event> {
    let job = one.job;
    let priority = Some(before.spec.priority)
        .filter(|_| one.priority_before.is_some_and(|submitted| submitted != before.spec.priority));
    let change = JobChange { priority, ..JobChange::default() };
    let changed = priority.map(|_| Event::JobChanged { job, change });
    let held = before.held.then_some(Event::JobHeld { job });
    changed.into_iter().chain(held).collect()
}

impl KnownForeign {
    /// Whether its job asks for the same.
    fn asks_for(&self, request: &Request) -> bool {
        match (&self.request, &self.shape, &request.devices) {
            (Some(before), _, _) => before == request,
            (None, Some((alternatives, ranks)), Ok(devices)) => {
                let asked = devices.options.iter();
                let asked = asked.map(|option| (selector_of(option), count_of(option, request)));
                alternatives.iter().cloned().eq(asked) && *ranks == rank_rule(request, devices)
            }
            _ => false,
        }
    }
}

impl Batch {
    /// The job that the loop has of an object, where this is its latest: one of this batch never
    /// was.
    fn before(&mut self, job: Option<JobId>) -> Option<JobId> {
        match self.submitted.iter().position(|it| Some(it.job) == job) {
            Some(at) => self.submitted.remove(at).before,
            None => job,
        }
    }
}

fn has_lease(state: &State, job: JobId) -> bool {
    state.job(job).is_some_and(|job| {
        job.stages.iter().any(|stage| matches!(stage.state, StageState::Active { .. }))
    })
}

fn told(why: &Unsuitable) -> Waits {
    match why {
        Unsuitable::NoNode(message) => Waits { is_unschedulable: true, message: message.clone() },
        Unsuitable::Incomplete(why) => Waits { is_unschedulable: false, message: why.clone() },
        Unsuitable::NotSupported(what) => Waits {
            is_unschedulable: false,
            message: format!("this scheduler does not consider {what}"),
        },
    }
}

/// The job that an object is.
fn specify(request: &Request, devices: &PodDevices, quotas: &Quotas) -> JobSpec {
    let owner = &request.of.owner;
    let PodDevices { cores, host, .. } = *devices;
    let launch = Launch {
        job: owner.name.as_str().into(),
        stage: STAGE.into(),
        workdir: WORKDIR.to_owned(),
        ranks_max: request.ranks,
        ..Launch::default()
    };
    let launch = Arc::new(launch);
    let alternatives = devices.options.iter().map(|option| Alternative {
        selector: selector_of(option),
        count: count_of(option, request),
        launch: Arc::clone(&launch),
    });
    let stage = StageSpec {
        name: STAGE.into(),
        kind: StageKind::Custom,
        after: Vec::new(),
        follows: Vec::new(),
        alternatives: alternatives.collect(),
        companions: Companions { cores, host },
        within: request.within,
        ranks: rank_rule(request, devices),
        retries: 0,
        restarts: StageSpec::RESTARTS_DEFAULT,
        profile: request.profile.clone(),
        steps: None,
        preemptible: match request.preemptible {
            true => Preemptible::default(),
            false => Preemptible::Never,
        },
        planned: PlannedSpeeds::default(),
    };
    JobSpec {
        name: owner.name.as_str().into(),
        tenant: owner.namespace.as_str().into(),
        priority: priority_of(request, quotas),
        stages: vec![stage],
        time_limit: None,
        workdir: WORKDIR.to_owned(),
        commit: None,
        start: StartConditions::default(),
        key: Some(request.of.key().as_str().into()),
    }
}

fn priority_of(request: &Request, quotas: &Quotas) -> Priority {
    request.priority.min(quotas.priority_max(&request.of.owner.namespace))
}

/// Of all pods together.
fn count_of(option: &DeviceOption, request: &Request) -> u32 {
    option.count.saturating_mul(request.ranks)
}

/// A pod is a rank of a workload, or of a group.
fn rank_rule(request: &Request, devices: &PodDevices) -> RankRule {
    let count = devices.options.first().map_or(0, |option| option.count);
    match (request.of.kind, NonZeroU32::new(count)) {
        (ForeignKind::Workload(_) | ForeignKind::Group, Some(count)) => RankRule::PerUnits(count),
        _ => RankRule::PerNode,
    }
}

/// Two that accept other devices have other words: what is found out of one is remembered by it.
fn selector_of(option: &DeviceOption) -> Selector {
    let names: Vec<&str> = option.classes.iter().map(Name::as_str).collect();
    Selector {
        word: format!("{} ({})", option.resource, names.join(", ")).as_str().into(),
        matches: Match::Classes(option.classes.clone()),
        memory_min: Bytes::ZERO,
        // As it is read from the log, so that the next server knows it for what it was.
        isolation: Launch::default().isolation(),
        drivers: Drivers::Unknown,
    }
}
