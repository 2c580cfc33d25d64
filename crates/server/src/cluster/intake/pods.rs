//! Pods of others that ask for a node: each is a job of one stage.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    Alternative, Companions, Domain, Event, Isolation, JobId, JobSpec, Launch, Match,
    PlannedSpeeds, Preemptible, Priority, Quotas, RankRule, Selector, StageKind, StageSpec,
    StartConditions, State,
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
}

/// What follows from news of pods.
#[derive(Default)]
struct Batch {
    submitted: Vec<(JobId, JobSpec, JobOwner)>,
    over: Vec<JobId>,
    waits: Vec<(JobOwner, PodWaits)>,
    /// By uid: what is known from then on.
    pods: BTreeMap<String, Option<KnownPod>>,
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
                    batch.over.extend(self.known(uid, &batch).and_then(|known| known.job));
                    batch.pods.insert(uid.clone(), None);
                }
            }
        }
        let Batch { submitted, over, waits, pods } = batch;
        self.bring(submitted, over).await?;
        for (uid, known) in pods {
            match known {
                Some(known) => drop(self.pods.insert(uid, known)),
                None => drop(self.pods.remove(&uid)),
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
        let known = self.known(uid, batch);
        let mut job = known.and_then(|known| known.job);
        let before = known.and_then(|known| known.request.as_ref());
        // Of an earlier server's job nothing is known but that it is there.
        let is_same = before.map_or(job.is_some(), |before| before == request);
        if !is_same {
            // Other devices would do now: it begins anew as a job that says so.
            batch.over.extend(job);
            job = match &request.devices {
                Ok(devices) => {
                    let id = self.handle.new_job_id();
                    let spec = specify(request, devices, quotas);
                    batch.submitted.push((id, spec, request.pod.clone()));
                    Some(id)
                }
                Err(why) => {
                    batch.waits.push((request.pod.clone(), told(why)));
                    None
                }
            };
        }
        let known = KnownPod { job, request: Some(request.clone()) };
        batch.pods.insert(uid.clone(), Some(known));
    }

    /// # Errors
    /// When nothing came of it.
    async fn bring(
        &self,
        submitted: Vec<(JobId, JobSpec, JobOwner)>,
        over: Vec<JobId>,
    ) -> Result<(), Unavailable> {
        let mut events = Vec::new();
        let mut ids = Vec::new();
        for (job, spec, pod) in submitted {
            // Before it can be started.
            self.owners.insert_pod(job, pod);
            ids.push(job);
            let (spec, succeeded, checkpoints) = (Arc::new(spec), Vec::new(), Vec::new());
            events.push(Event::JobSubmitted { job, spec, succeeded, checkpoints });
        }
        let ending = over.clone();
        let change = move |state: &State| {
            let is_live = |job: &JobId| state.job(*job).is_some_and(|job| job.end.is_none());
            let live = ending.into_iter().filter(is_live);
            events.extend(live.map(|job| Event::JobCancelled { job }));
            Change { events, answer: () }
        };
        match self.handle.change(change).await {
            Ok(()) => over.into_iter().for_each(|job| self.owners.remove(job)),
            Err(error) => {
                ids.into_iter().for_each(|job| self.owners.remove(job));
                return Err(error);
            }
        }
        Ok(())
    }
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
    let PodDevices { resource, classes, count, cores, host } = devices.clone();
    let launch = Launch {
        job: name.as_str().into(),
        stage: STAGE.into(),
        workdir: WORKDIR.to_owned(),
        ranks_max: 1,
        ..Launch::default()
    };
    let selector = Selector {
        word: resource,
        matches: Match::Classes(classes),
        memory_min: Default::default(),
        isolation: Isolation::Container,
    };
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

fn priority(value: i64) -> Priority {
    match value {
        ..0 => Priority::Low,
        0 => Priority::Normal,
        1..URGENT_FROM => Priority::High,
        _ => Priority::Urgent,
    }
}
