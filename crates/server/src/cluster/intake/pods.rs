//! Pods of others that ask for a node: each is a job of one stage.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    Alternative, Bytes, Companions, Domain, Event, Isolation, JobId, JobSpec, Launch, Match, Name,
    PlannedSpeeds, Preemptible, Priority, Quotas, RankRule, Selector, StageKind, StageSpec,
    StageState, StartConditions, State,
};
use het_kubernetes::{JobOwner, PodDevices, PodNews, PodRequest, PodWaits, Unsuitable};
use het_service::{Change, Unavailable};

use super::Intake;
use crate::cluster::WORKDIR;

/// What the key of a job begins with that is a pod of somebody else; its uid follows.
const KEY: &str = "pod/";
const STAGE: &str = "pod";
/// The value of a priority class from which on a pod is urgent.
const URGENT_FROM: i64 = 1_000_000;

/// The uid of the pod of a job that was submitted under this key.
pub(in crate::cluster) fn pod_uid_of(key: &str) -> Option<&str> {
    key.strip_prefix(KEY)
}

/// A pod that was taken in.
#[derive(Debug, Clone)]
pub(in crate::cluster) struct KnownPod {
    /// `None` where nothing can be done for it now.
    pub job: Option<JobId>,
    /// What it asked for; nothing was heard of it yet where it is `None`.
    pub request: Option<PodRequest>,
    /// The devices of a job that an earlier server took in.
    pub selector: Option<(Selector, u32)>,
}

/// What follows from news of pods.
#[derive(Default)]
struct Batch {
    submitted: Vec<Submitted>,
    /// Of pods that are gone.
    over: Vec<JobId>,
    /// Of pods, by uid, for which nothing would do now: where they have no node yet.
    withdrawn: Vec<(String, JobId)>,
    waits: Vec<(JobOwner, PodWaits)>,
    /// By uid: what is known from then on.
    pods: BTreeMap<String, Option<KnownPod>>,
}

struct Submitted {
    job: JobId,
    spec: Arc<JobSpec>,
    pod: JobOwner,
    /// The job of the same pod in whose place it comes.
    before: Option<JobId>,
}

impl Intake {
    /// Takes in what changed about pods, by one turn of the loop.
    ///
    /// # Errors
    /// When the loop cannot be reached or its store not be written: it is to be tried again.
    pub(super) async fn take_pods(&mut self, news: &[PodNews]) -> Result<(), Unavailable> {
        let quotas = self.handle.query(|replica| replica.state().quotas().clone()).await?;
        let mut batch = Batch::default();
        for one in news {
            match one {
                PodNews::Asks(request) => self.ask(request, &quotas, &mut batch),
                PodNews::Gone { uid } => {
                    let job = self.known(uid, &batch).and_then(|known| known.job);
                    let job = batch.before(job);
                    batch.over.extend(job);
                    batch.pods.insert(uid.clone(), None);
                }
            }
        }
        let waits = std::mem::take(&mut batch.waits);
        let mut pods = std::mem::take(&mut batch.pods);
        for (uid, job) in self.bring(batch).await? {
            if let Some(known) = pods.get_mut(&uid).and_then(Option::as_mut) {
                known.job = Some(job);
            }
        }
        for (uid, known) in pods {
            match known {
                Some(known) => drop(self.pods.insert(uid, known)),
                None => {
                    self.conditions.forget(&uid);
                    self.pods.remove(&uid);
                }
            }
        }
        waits.into_iter().for_each(|(pod, why)| self.conditions.waits(pod, why));
        Ok(())
    }

    fn known<'a>(&'a self, uid: &str, batch: &'a Batch) -> Option<&'a KnownPod> {
        batch.pods.get(uid).map_or_else(|| self.pods.get(uid), Option::as_ref)
    }

    fn ask(&self, request: &PodRequest, quotas: &Quotas, batch: &mut Batch) {
        let uid = &request.pod.uid;
        let known = self.known(uid, batch).cloned();
        let mut job = known.as_ref().and_then(|known| known.job);
        if !known.is_some_and(|known| known.asks_for(request)) {
            // Other devices would do now: it begins anew as a job that says so.
            let before = batch.before(job);
            job = match &request.devices {
                Ok(devices) => {
                    let job = self.handle.new_job_id();
                    let spec = Arc::new(specify(request, devices, quotas));
                    batch.submitted.push(Submitted { job, spec, pod: request.pod.clone(), before });
                    Some(job)
                }
                Err(why) => {
                    batch.withdrawn.extend(before.map(|job| (uid.clone(), job)));
                    batch.waits.push((request.pod.clone(), told(why)));
                    None
                }
            };
        }
        let known = KnownPod { job, request: Some(request.clone()), selector: None };
        batch.pods.insert(uid.clone(), Some(known));
    }

    /// Has the loop take them in. By uid: pods that keep the job that they had.
    ///
    /// # Errors
    /// When nothing came of it.
    async fn bring(&self, batch: Batch) -> Result<Vec<(String, JobId)>, Unavailable> {
        let Batch { submitted, over, withdrawn, .. } = batch;
        for Submitted { job, pod, .. } in &submitted {
            // Before it can be started.
            self.owners.insert_pod(*job, pod.clone());
        }
        let made: Vec<JobId> = submitted.iter().map(|it| it.job).collect();
        let change = move |state: &State| {
            let (mut events, mut ended, mut kept) = (Vec::new(), over, Vec::new());
            let mut dropped = Vec::new();
            // What has its node already has it for good.
            for (uid, job) in withdrawn {
                match has_lease(state, job) {
                    true => kept.push((uid, job)),
                    false => ended.push(job),
                }
            }
            for Submitted { job, spec, pod, before } in submitted {
                if let Some(before) = before.filter(|before| has_lease(state, *before)) {
                    kept.push((pod.uid, before));
                    dropped.push(job);
                    continue;
                }
                ended.extend(before);
                let (succeeded, checkpoints) = (Vec::new(), Vec::new());
                events.push(Event::JobSubmitted { job, spec, succeeded, checkpoints });
            }
            let is_live = |job: &JobId| state.job(*job).is_some_and(|job| job.end.is_none());
            let live = ended.iter().copied().filter(is_live);
            events.extend(live.map(|job| Event::JobCancelled { job }));
            ended.extend(dropped);
            Change { events, answer: (ended, kept) }
        };
        match self.handle.change(change).await {
            Ok((ended, kept)) => {
                ended.into_iter().for_each(|job| self.owners.remove(job));
                Ok(kept)
            }
            Err(error) => {
                made.into_iter().for_each(|job| self.owners.remove(job));
                Err(error)
            }
        }
    }
}

impl KnownPod {
    /// Whether its job asks for the same.
    fn asks_for(&self, request: &PodRequest) -> bool {
        match (&self.request, &self.selector, &request.devices) {
            (Some(before), _, _) => before == request,
            (None, Some((selector, count)), Ok(devices)) => {
                *selector == selector_of(devices) && *count == devices.count
            }
            _ => false,
        }
    }
}

impl Batch {
    /// The job that the loop has of a pod, where this is its latest: one of this batch never was.
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

fn told(why: &Unsuitable) -> PodWaits {
    match why {
        Unsuitable::NoNode(message) => {
            PodWaits { is_unschedulable: true, message: message.clone() }
        }
        Unsuitable::NotSupported(what) => PodWaits {
            is_unschedulable: false,
            message: format!("this scheduler does not consider {what}"),
        },
    }
}

/// The job that a pod is.
fn specify(request: &PodRequest, devices: &PodDevices, quotas: &Quotas) -> JobSpec {
    let JobOwner { namespace, name, uid } = &request.pod;
    let PodDevices { count, cores, host, .. } = *devices;
    let launch = Launch {
        job: name.as_str().into(),
        stage: STAGE.into(),
        workdir: WORKDIR.to_owned(),
        ranks_max: 1,
        ..Launch::default()
    };
    let selector = selector_of(devices);
    let stage = StageSpec {
        name: STAGE.into(),
        kind: StageKind::Custom,
        after: Vec::new(),
        follows: Vec::new(),
        alternatives: vec![Alternative { selector, count, launch: Arc::new(launch) }],
        companions: Companions { cores, host },
        within: Domain::Node,
        ranks: RankRule::PerNode,
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
        name: name.as_str().into(),
        tenant: namespace.as_str().into(),
        priority: priority(request.priority).min(quotas.priority_max(namespace)),
        stages: vec![stage],
        time_limit: None,
        workdir: WORKDIR.to_owned(),
        commit: None,
        start: StartConditions::default(),
        key: Some(format!("{KEY}{uid}").as_str().into()),
    }
}

/// Two that accept other devices have other words: what is found out of one is remembered by it.
fn selector_of(devices: &PodDevices) -> Selector {
    let names: Vec<&str> = devices.classes.iter().map(Name::as_str).collect();
    Selector {
        word: format!("{} ({})", devices.resource, names.join(", ")).as_str().into(),
        matches: Match::Classes(devices.classes.clone()),
        memory_min: Bytes::ZERO,
        isolation: Isolation::Container,
    }
}

fn priority(value: i64) -> Priority {
    match value {
        ..0 => Priority::Low,
        0 => Priority::Normal,
        1..URGENT_FROM => Priority::High,
        _ => Priority::Urgent,
    }
}
