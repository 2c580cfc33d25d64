//! Names and labels of the objects that are made here. A name says which rank of which attempt a
//! pod is, so that making it twice makes it once.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{Generation, LeaseId, StageKey};
use het_wire::record::NUMBER_MAX;
use jiff::Timestamp;
use serde_json::{Value, json};

/// Whom a pod asks to choose its node, where nobody names another.
pub const SCHEDULER: &str = "heterosis";
/// The service account of pods in which a rank is supervised.
pub(crate) const RANK_ACCOUNT: &str = "heterosis-rank";
/// Where the server and its Lease are, where nobody names another namespace.
pub const NAMESPACE: &str = "heterosis";

const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "heterosis");
/// The `schedulerName` of the server whose pod or job it is: two may share a cluster.
pub(crate) const SCHEDULER_LABEL: &str = "heterosis.dev/scheduler";
pub(crate) const JOB: &str = "heterosis.dev/job";
pub(crate) const STAGE: &str = "heterosis.dev/stage";
pub(crate) const ATTEMPT: &str = "heterosis.dev/attempt";
const LEASE: &str = "heterosis.dev/lease";
pub(crate) const RANK: &str = "heterosis.dev/rank";
const GENERATION: &str = "heterosis.dev/generation";
/// A line of JSON that says how far the pod's program is, as one of `HET_PROGRESS`.
pub(crate) const PROGRESS: &str = "heterosis.dev/progress";
/// The label of a node by which pods select it.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
/// The scheduling gate behind which a pod waits until its node was chosen.
pub(crate) const GATE: &str = "heterosis.dev/placement";
/// Of a pod of somebody else, `true` where it may be stopped for others.
pub(crate) const PREEMPTIBLE: &str = "heterosis.dev/preemptible";
/// Of what somebody else made: one of the four words, in place of its priority class.
pub(crate) const PRIORITY: &str = "heterosis.dev/priority";
/// Of a workload of somebody else: which part of the network is to hold all of its pods.
pub(crate) const TOPOLOGY: &str = "heterosis.dev/topology";
/// Of a workload of somebody else: how its job ended here, so that nobody takes it in again.
pub(crate) const ENDED: &str = "heterosis.dev/ended";
/// The node for which the gate of a pod was removed.
pub(crate) const NODE: &str = "heterosis.dev/node";
/// Of a workload of somebody else: the epoch and the time of what a leader changed of it last. The
/// API server refuses what one before the newest changes.
pub(crate) const WRITE: &str = "heterosis.dev/write";
/// Of the leader that made it: the API server refuses what one before the newest makes.
pub(crate) const EPOCH: &str = "heterosis.dev/epoch";

/// What a leader says when it changes a workload: no two changes say the same.
pub(crate) fn write_of(epoch: u64) -> String {
    format!("{epoch}-{}", Timestamp::now().as_nanosecond())
}

/// Longest label of a host name (RFC 1123).
const NAME_MAX: usize = 63;
/// Longest name of a stage that is taken into the name of a pod.
const STAGE_MAX: usize = 16;

/// Who gives pods their nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Binding {
    /// This scheduler: pods name it.
    #[default]
    Own,
    /// kube-scheduler, once this scheduler has chosen: until then a scheduling gate keeps pods of
    /// others back, and pods of jobs are not made.
    KubeScheduler,
}

/// The scheduler as pods know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scheduler {
    pub name: Arc<str>,
    pub binding: Binding,
}

/// The name of an object in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

/// Which attempt of which stage a gang is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub scheduler: &'a str,
    pub job: &'a str,
    pub stage_name: &'a str,
    pub stage: StageKey,
    pub attempt: u32,
    pub lease: LeaseId,
    pub generation: Generation,
    pub epoch: u64,
}

/// What the labels of a pod say of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankLabels {
    pub lease: LeaseId,
    pub rank: u32,
}

impl Attempt<'_> {
    /// Of the gang's service: `smollm-7-train-1`.
    pub fn gang_name(&self) -> String {
        self.name_with_room(0)
    }

    /// Of a rank's pod: `smollm-7-train-1-0`.
    pub fn pod_name(&self, rank: u32) -> String {
        let rank = format!("-{rank}");
        format!("{}{rank}", self.name_with_room(rank.len()))
    }

    /// Of the job's own directory: `smollm-7`.
    pub fn job_name(&self) -> String {
        format!("{}-{}", as_label(self.job, NAME_MAX - 21), self.stage.job)
    }

    fn name_with_room(&self, room: usize) -> String {
        let stage = match is_label(self.stage_name) && self.stage_name.len() <= STAGE_MAX {
            true => self.stage_name.to_owned(),
            false => format!("s{}", self.stage.stage.0),
        };
        let rest = format!("-{}-{stage}-{}", self.stage.job, self.attempt);
        let job = as_label(self.job, NAME_MAX - rest.len() - room);
        format!("{job}{rest}")
    }

    /// What all objects of the gang have.
    pub fn gang_labels(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            (MANAGED_BY.0, MANAGED_BY.1.to_owned()),
            (SCHEDULER_LABEL, self.scheduler.to_owned()),
            (JOB, self.stage.job.to_string()),
            (STAGE, as_label(self.stage_name, NAME_MAX)),
            (ATTEMPT, self.attempt.to_string()),
            (LEASE, self.lease.to_string()),
        ])
    }

    pub fn rank_labels(&self, rank: u32) -> BTreeMap<&'static str, String> {
        let mut labels = self.gang_labels();
        labels.insert(RANK, rank.to_string());
        labels
    }

    pub fn annotations(&self) -> Value {
        json!({ GENERATION: self.generation.to_string(), EPOCH: self.epoch.to_string() })
    }
}

/// Whether an object with these labels is for a scheduler: for the usual one where none says.
pub(crate) fn is_for(labels: Option<&BTreeMap<String, String>>, scheduler: &str) -> bool {
    labels.and_then(|labels| labels.get(SCHEDULER_LABEL)).map_or(SCHEDULER, String::as_str)
        == scheduler
}

/// The rank that a pod with these labels is, where `scheduler` started it.
pub(crate) fn rank_of(labels: &BTreeMap<String, String>, scheduler: &str) -> Option<RankLabels> {
    if labels.get(SCHEDULER_LABEL)? != scheduler {
        return None;
    }
    let number: u64 = labels.get(LEASE)?.parse().ok()?;
    // Anybody may set a label, and leases that follow have higher numbers.
    let lease = (number <= NUMBER_MAX).then_some(LeaseId(number))?;
    Some(RankLabels { lease, rank: labels.get(RANK)?.parse().ok()? })
}

fn is_label(text: &str) -> bool {
    as_label(text, NAME_MAX) == text
}

/// The text as part of a host name: lower case, digits and hyphens, beginning with a letter.
fn as_label(text: &str, length_max: usize) -> String {
    let allowed = |letter: char| match letter.to_ascii_lowercase() {
        letter if letter.is_ascii_alphanumeric() => letter,
        _ => '-',
    };
    let text: String = text.chars().map(allowed).collect();
    let text = text.trim_start_matches(|letter: char| !letter.is_ascii_lowercase());
    let text = text[..text.len().min(length_max)].trim_end_matches('-');
    if text.is_empty() { "job".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use het_core::{JobId, StageIndex};

    use super::*;

    #[track_caller]
    fn check(job: &str, stage_name: &str, expected: &str) {
        let attempt = Attempt {
            scheduler: SCHEDULER,
            job,
            stage_name,
            stage: StageKey { job: JobId(7), stage: StageIndex(2) },
            attempt: 1,
            lease: LeaseId(9),
            generation: Generation(3),
            epoch: 1,
        };
        let name = attempt.pod_name(12);
        assert_eq!(name, expected);
        assert!(name.len() <= NAME_MAX, "{name}");
    }

    #[test]
    fn a_name_says_job_stage_attempt_and_rank() {
        check("smollm-lora", "train", "smollm-lora-7-train-1-12");
    }

    #[test]
    fn a_name_is_one_of_a_host_whatever_the_job_is_called() {
        check("Ein Modell_2", "Train 1", "ein-modell-2-7-s2-1-12");
        check("7-训练", "train", "job-7-train-1-12");
        check(&"long".repeat(40), &"stage".repeat(9), &format!("{}-7-s2-1-12", name_start()));
    }

    fn name_start() -> String {
        "long".repeat(40)[..NAME_MAX - "-7-s2-1-12".len()].to_owned()
    }

    #[test]
    fn labels_say_whose_rank_a_pod_is() {
        let labels = |scheduler: &str| {
            let pairs = [(SCHEDULER_LABEL, scheduler), (LEASE, "9"), (RANK, "3")];
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        };
        let expected = RankLabels { lease: LeaseId(9), rank: 3 };
        assert_eq!(rank_of(&labels("heterosis"), SCHEDULER), Some(expected));
        assert_eq!(rank_of(&labels("another"), SCHEDULER), None);
        assert_eq!(rank_of(&BTreeMap::new(), SCHEDULER), None);
    }
}
