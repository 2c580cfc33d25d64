//! What programs of a job write, while they write it, attempt after attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, pin_mut};
use het_core::JobId;
use het_wire::api::{FollowedLogs, LogPiece, LogsQuery};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Rank;
use super::pod::{Left, PodLogs};
use crate::jobs::Jobs;
use crate::names::{JOB, SCHEDULER_LABEL};

/// Pods that are followed at once.
const PODS_MAX: usize = 128;
/// Pieces that wait for a follower; who writes waits for room.
const PIECES_MAX: usize = 64;
/// How long pods may go on writing once their job has ended.
const LAST_MAX: Duration = Duration::from_secs(30);

/// That a job has ended.
type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The attempt of a stage that was seen last.
#[derive(Default)]
struct Attempt {
    number: u32,
    seen: BTreeSet<u32>,
    /// How many those are.
    ranks: Arc<AtomicU32>,
}

/// What one follower sees.
struct Following {
    api: Api<Pod>,
    ranks: Api<PartialObjectMeta<Pod>>,
    namespace: String,
    query: LogsQuery,
    to: Sender<FollowedLogs>,
    attempts: BTreeMap<String, Attempt>,
    /// Until a list is complete: its pods may be of earlier attempts.
    listed: Option<Vec<Rank>>,
    /// By name: pods that are followed, or were.
    begun: BTreeSet<String>,
    pods: JoinSet<Result<(), Left>>,
}

impl Jobs {
    /// What the pods of a job that lie in this namespace write, beginning with what they have
    /// written. It ends with [`FollowedLogs::End`] once the job has ended and all of it is told,
    /// and without where its follower takes nothing for a minute. Nothing goes on where nobody
    /// takes it any more.
    pub fn follow_logs(
        &self,
        job: JobId,
        namespace: &str,
        query: LogsQuery,
        ended: Ended,
    ) -> Receiver<FollowedLogs> {
        let (to, pieces) = channel(PIECES_MAX);
        let selector = format!("{JOB}={job},{SCHEDULER_LABEL}={}", self.scheduler());
        let following = Following {
            api: Api::namespaced(self.client(), namespace),
            ranks: Api::namespaced(self.client(), namespace),
            namespace: namespace.to_owned(),
            query,
            to,
            attempts: BTreeMap::new(),
            listed: Some(Vec::new()),
            begun: BTreeSet::new(),
            pods: JoinSet::new(),
        };
        drop(tokio::spawn(following.run(selector, ended)));
        pieces
    }
}

impl Following {
    async fn run(mut self, selector: String, mut ended: Ended) {
        let config = Config::default().labels(&selector);
        let seen = watcher(self.ranks.clone(), config).default_backoff();
        let to = self.to.clone();
        let left = to.closed();
        pin_mut!(seen, left);
        let mut over_at: Option<Instant> = None;
        loop {
            tokio::select! {
                () = &mut left => return,
                () = &mut ended, if over_at.is_none() => {
                    over_at = Some(Instant::now() + LAST_MAX);
                }
                () = sleep_until(over_at.unwrap_or_else(Instant::now)), if over_at.is_some() => {
                    break;
                }
                Some(told) = self.pods.join_next() => {
                    if !matches!(told, Ok(Ok(()))) {
                        return;
                    }
                }
                Some(event) = seen.next() => self.see(event),
            }
            if over_at.is_some() && self.listed.is_none() && self.pods.is_empty() {
                break;
            }
        }
        let _ = self.to.send(FollowedLogs::End).await;
    }

    fn see(&mut self, event: Result<Event<PartialObjectMeta<Pod>>, Error>) {
        match event {
            Ok(Event::Init) => self.listed = Some(Vec::new()),
            Ok(Event::InitApply(pod)) => {
                self.listed.get_or_insert_default().extend(Rank::of(pod.metadata));
            }
            Ok(Event::InitDone) => {
                let ranks = self.listed.take().unwrap_or_default();
                ranks.iter().for_each(|rank| self.note(rank));
                ranks.into_iter().for_each(|rank| self.begin(rank));
            }
            Ok(Event::Apply(pod)) => {
                if let Some(rank) = Rank::of(pod.metadata) {
                    self.note(&rank);
                    self.begin(rank);
                }
            }
            // Its log says so; and the stream begins anew by itself.
            Ok(Event::Delete(_)) | Err(_) => {}
        }
    }

    fn note(&mut self, rank: &Rank) {
        let attempt = self.attempts.entry(rank.stage.clone()).or_default();
        if rank.attempt > attempt.number {
            *attempt = Attempt { number: rank.attempt, ..Attempt::default() };
        }
        if rank.attempt == attempt.number && attempt.seen.insert(rank.rank) {
            attempt.ranks.store(attempt.seen.len() as u32, Ordering::Relaxed);
        }
    }

    fn begin(&mut self, rank: Rank) {
        let attempt = &self.attempts[&rank.stage];
        let is_wanted = rank.attempt == self.query.attempt.unwrap_or(attempt.number)
            && self.query.has(&rank.stage, rank.rank);
        if !is_wanted || !self.begun.insert(rank.pod.clone()) {
            return;
        }
        let piece = LogPiece {
            pod: format!("{}/{}", self.namespace, rank.pod),
            stage: rank.stage,
            attempt: rank.attempt,
            rank: rank.rank,
            ranks: 0,
            text: String::new(),
            ended: false,
            missing: None,
        };
        let ranks = Arc::clone(&attempt.ranks);
        let pod =
            PodLogs { api: self.api.clone(), name: rank.pod, piece, ranks, to: self.to.clone() };
        let is_full = self.pods.len() >= PODS_MAX;
        let tail = self.query.tail;
        self.pods.spawn(async move {
            match is_full {
                true => {
                    let why =
                        format!("{PODS_MAX} pods are followed already: name a stage or a rank");
                    pod.end(Some(why)).await
                }
                false => pod.follow(tail).await,
            }
        });
    }
}
