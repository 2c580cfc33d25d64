//! What programs of jobs wrote, as far as the cluster still has it: it goes with their pods.

mod following;
mod pod;

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use het_core::JobId;
use het_wire::api::{LogsQuery, PodLog};
use k8s_openapi::api::core::v1::Pod;
use kube::Error;
use kube::api::{Api, ListParams, LogParams, ObjectMeta};

use crate::jobs::Jobs;
use crate::names::{ATTEMPT, JOB, RANK, SCHEDULER_LABEL, STAGE};

/// Most pods that are asked, and how many at once.
const PODS_MAX: usize = 256;
const AT_ONCE: usize = 16;
/// Of all pods together.
const BYTES_MAX: usize = 16 << 20;
/// Of each pod where nobody says how many.
const LINES: u32 = 10_000;

/// A pod of a job, as its labels have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    stage: String,
    attempt: u32,
    rank: u32,
    pod: String,
}

impl Rank {
    fn of(metadata: ObjectMeta) -> Option<Self> {
        let labels = metadata.labels?;
        let number = |name: &str| labels.get(name)?.parse().ok();
        Some(Self {
            stage: labels.get(STAGE)?.clone(),
            attempt: number(ATTEMPT)?,
            rank: number(RANK)?,
            pod: metadata.name?,
        })
    }
}

/// Those of a job's pods that are asked for, in order.
fn asked_for(query: &LogsQuery, mut pods: Vec<Rank>) -> Vec<Rank> {
    let mut last: BTreeMap<String, u32> = BTreeMap::new();
    for pod in &pods {
        let attempt = last.entry(pod.stage.clone()).or_default();
        *attempt = pod.attempt.max(*attempt);
    }
    pods.retain(|pod| {
        query.has(&pod.stage, pod.rank) && pod.attempt == query.attempt.unwrap_or(last[&pod.stage])
    });
    pods.sort();
    pods.truncate(PODS_MAX);
    pods
}

impl Jobs {
    /// What the pods of a job wrote that lie in this namespace. Labels are anybody's to set who may
    /// make pods there.
    ///
    /// # Errors
    /// When the server does not say which pods there are.
    pub async fn logs(
        &self,
        job: JobId,
        namespace: &str,
        query: &LogsQuery,
    ) -> Result<Vec<PodLog>, Error> {
        let api: Api<Pod> = Api::namespaced(self.client(), namespace);
        let selector = format!("{JOB}={job},{SCHEDULER_LABEL}={}", self.scheduler());
        let listed = api.list_metadata(&ListParams::default().labels(&selector)).await?;
        let ranks = listed.items.into_iter().filter_map(|pod| Rank::of(pod.metadata));
        let ranks = asked_for(query, ranks.collect());
        let parameters = LogParams {
            limit_bytes: i64::try_from(BYTES_MAX / ranks.len().max(1)).ok(),
            tail_lines: Some(query.tail.unwrap_or(LINES).into()),
            ..LogParams::default()
        };
        let (api, parameters) = (&api, &parameters);
        let logs = ranks.into_iter().map(|Rank { stage, attempt, rank, pod }| async move {
            let (text, missing) = match api.logs(&pod, parameters).await {
                Ok(text) => (text, None),
                Err(Error::Api(status)) => (String::new(), Some(status.message.clone())),
                Err(error) => (String::new(), Some(error.to_string())),
            };
            PodLog { pod: format!("{namespace}/{pod}"), stage, attempt, rank, text, missing }
        });
        Ok(stream::iter(logs).buffered(AT_ONCE).collect().await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(stage: &str, attempt: u32, rank: u32) -> Rank {
        Rank { stage: stage.to_owned(), attempt, rank, pod: format!("{stage}-{attempt}-{rank}") }
    }

    #[test]
    fn the_last_attempt_of_each_stage_is_shown_in_order() {
        let pods = [("train", 2, 1), ("train", 1, 0), ("load", 1, 0), ("train", 2, 0)];
        let pods = pods.map(|(stage, attempt, of)| rank(stage, attempt, of)).to_vec();
        let names = |query: LogsQuery| -> Vec<String> {
            asked_for(&query, pods.clone()).into_iter().map(|pod| pod.pod).collect()
        };
        assert_eq!(names(LogsQuery::default()), ["load-1-0", "train-2-0", "train-2-1"]);
        let first = LogsQuery { attempt: Some(1), ..LogsQuery::default() };
        assert_eq!(names(first), ["load-1-0", "train-1-0"]);
        let stage =
            LogsQuery { stage: Some("train".to_owned()), rank: Some(1), ..LogsQuery::default() };
        assert_eq!(names(stage), ["train-2-1"]);
    }
}
