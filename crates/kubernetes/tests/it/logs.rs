//! What pods write is followed over connections that break, and from one attempt to the next.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use het_core::{JobId, Millis};
use het_kubernetes::Cluster;
use het_wire::api::{FollowedLogs, LogsQuery};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::loopback::body::{Answer, Lines, stream};

const NAMESPACE: &str = "research";

/// What is answered when the log of a pod is asked for.
enum Log {
    /// Its container has not begun.
    Waits,
    /// These lines; then the connection breaks, or all is told.
    Written(&'static str, Break),
}

#[derive(PartialEq)]
enum Break {
    Yes,
    No,
}

/// An API server that knows the pods of one job and what they write.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    watchers: Vec<Lines>,
    logs: BTreeMap<String, Vec<Log>>,
    phases: BTreeMap<String, &'static str>,
    /// What was asked of logs.
    asked: Vec<String>,
}

fn pod(attempt: u32, rank: u32) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": format!("train-{attempt}-{rank}"), "namespace": NAMESPACE,
            "uid": format!("{attempt}-{rank}"), "resourceVersion": "1",
            "labels": {
                "heterosis.dev/stage": "train", "heterosis.dev/attempt": attempt.to_string(),
                "heterosis.dev/rank": rank.to_string(),
            },
        },
    })
}

fn whole(code: u16, body: &Value) -> Response<Answer> {
    let answer = Answer::Whole(Some(body.to_string().into()));
    Response::builder().status(code).body(answer).expect("it is an answer")
}

impl Inner {
    fn answer(&mut self, path: &str, query: &str) -> Response<Answer> {
        let rest = path.rsplit_once("/pods").map(|(_, rest)| rest.trim_matches('/'));
        let words: Vec<&str> = rest.unwrap_or_default().split('/').collect();
        match words.as_slice() {
            [""] if query.contains("watch=true") => {
                let (lines, answer) = stream();
                self.watchers.push(lines);
                Response::new(answer)
            }
            [""] => whole(
                200,
                &json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                    "metadata": { "resourceVersion": "1" }, "items": [pod(1, 0), pod(1, 1)],
                }),
            ),
            [name, "log"] => {
                self.asked.push(format!("{name}?{query}"));
                self.log(name)
            }
            [name, ..] => {
                let phase = self.phases.get(*name).copied().unwrap_or("Running");
                whole(
                    200,
                    &json!({
                        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
                        "status": { "phase": phase },
                    }),
                )
            }
            [] => unreachable!("a split has a part"),
        }
    }

    fn log(&mut self, name: &str) -> Response<Answer> {
        let next = self.logs.get_mut(name).filter(|left| !left.is_empty());
        match next.map(|left| left.remove(0)) {
            Some(Log::Written(text, then)) => {
                let (lines, answer) = stream();
                lines.write(text.to_owned());
                if then == Break::Yes {
                    lines.fail();
                } else {
                    self.phases.insert(name.to_owned(), "Succeeded");
                }
                Response::new(answer)
            }
            Some(Log::Waits) | None => {
                let message = "container \"stage\" is waiting to start: ContainerCreating";
                whole(
                    400,
                    &json!({
                        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 400,
                        "reason": "BadRequest", "message": message,
                    }),
                )
            }
        }
    }
}

impl Service<Request<Body>> for Fake {
    type Response = Response<Answer>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<Answer>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let uri = request.uri();
        let mut inner = self.0.lock().expect("nobody panics with it");
        let answer = inner.answer(uri.path(), uri.query().unwrap_or_default());
        Box::pin(async move { Ok(answer) })
    }
}

/// In words: who writes what, and who has ended.
fn told(piece: FollowedLogs) -> String {
    match piece {
        FollowedLogs::End => "end".to_owned(),
        FollowedLogs::Piece(piece) if piece.ended => format!("{} ended", piece.pod),
        FollowedLogs::Piece(piece) => {
            format!("{}/{} {}", piece.rank, piece.ranks, piece.text.trim_end())
        }
    }
}

#[test]
fn logs_are_followed_over_broken_connections_and_attempts() {
    let threads = Builder::new_current_thread().enable_all().start_paused(true).build();
    let threads = Arc::new(threads.expect("a runtime can be had"));
    let fake = Fake::default();
    {
        let mut inner = fake.0.lock().expect("nobody panics with it");
        let broken = Log::Written("2026-11-29T10:00:01Z one\n", Break::Yes);
        let rest = "2026-11-29T10:00:01Z one\n2026-11-29T10:00:02Z two\n";
        let first = vec![Log::Waits, broken, Log::Written(rest, Break::No)];
        inner.logs.insert("train-1-0".to_owned(), first);
        let second = Log::Written("2026-11-29T10:00:03Z three\n", Break::No);
        inner.logs.insert("train-2-0".to_owned(), vec![second]);
    }
    let over = Arc::clone(&threads);
    let pieces = threads.block_on(async {
        let client = Client::new(fake.clone(), NAMESPACE);
        let jobs = Cluster::over(client, over, || Millis(0)).jobs("heterosis");
        let (ends, ended) = oneshot::channel::<()>();
        let query = LogsQuery { rank: Some(0), ..LogsQuery::default() };
        let ended = Box::pin(async { drop(ended.await) });
        let mut followed = jobs.follow_logs(JobId(7), NAMESPACE, query, ended);
        let mut pieces = Vec::new();
        let mut ends = Some(ends);
        while let Some(piece) = followed.recv().await {
            pieces.push(told(piece));
            match pieces.len() {
                3 => {
                    let inner = fake.0.lock().expect("nobody panics with it");
                    let added = json!({ "type": "ADDED", "object": pod(2, 0) });
                    for to in &inner.watchers {
                        let _ = to.write(format!("{added}\n"));
                    }
                }
                4 => drop(ends.take()),
                _ => {}
            }
        }
        pieces
    });
    let expected = [
        "0/2 one",
        "0/2 two",
        "research/train-1-0 ended",
        "0/1 three",
        "research/train-2-0 ended",
        "end",
    ];
    assert_eq!(pieces, expected);
    let inner = fake.0.lock().expect("nobody panics with it");
    let again = inner.asked.iter().filter(|asked| asked.contains("sinceTime=2026-11-29T10"));
    assert_eq!(again.count(), 1, "{:?}", inner.asked);
}
