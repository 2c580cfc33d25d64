//! How jobs stand, written to their objects: of each job the newest, one write at a time.
//!
//! Each write compares and swaps: it is made only where the status is still the one that this
//! server saw last. What a status says of a lease is what a successor goes by, so nothing is made
//! for a lease before a status names it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use het_core::LeaseId;
use het_wire::resource::{TrainingJobStatus, Written};
use jiff::Timestamp;
use kube::Error;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::sleep;

use crate::client::CONFLICT;
use crate::events;
use crate::jobs::Jobs;
use crate::leader::Leadership;
use crate::owners::JobOwner;

const INVALID: u16 = 422;
/// Writes under way at once.
const WRITES_MAX: usize = 32;
const EVENTS_MAX: usize = 4;
/// Between two tries of a status that the server could not take; doubled up to the longest.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A connection that says nothing for longer is given up.
const REQUEST_MAX: Duration = Duration::from_secs(10);
const OLD_DEFINITION: &str = "the cluster's definition of `TrainingJob` is of an earlier version: \
                              apply what `het kubernetes manifests` prints";
/// How often in a row a status may be found to be another than the one that was seen last.
const CONFLICTS_MAX: usize = 5;

/// Where statuses go that are to be written; cheap to clone.
#[derive(Debug, Clone)]
pub struct Statuses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    jobs: Jobs,
    leadership: Leadership,
    threads: Handle,
    permits: Semaphore,
    /// For events, which nobody waits for.
    events: Semaphore,
    /// Of the last write.
    revision: AtomicU64,
    /// By the uid of their object.
    entries: Mutex<BTreeMap<String, Entry>>,
    /// How many of them are written now.
    writing: watch::Sender<usize>,
}

/// What is known of the status of a job, and to be written.
#[derive(Debug, Default)]
struct Entry {
    newest: Option<(JobOwner, TrainingJobStatus)>,
    /// Somebody writes, and looks for the newest when that is done.
    is_writing: bool,
    /// By whom the status that is there was written.
    written: Option<Written>,
    /// The state that it says.
    state: String,
    /// The leases that it names.
    leases: BTreeSet<LeaseId>,
    /// Leases that a status named which the server did not take, and why.
    refused: Option<(BTreeSet<LeaseId>, String)>,
    waiting: Vec<(LeaseId, oneshot::Sender<Result<(), NotNamed>>)>,
}

/// Why nothing may be made for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotNamed {
    /// The object is not there any more.
    Gone,
    /// The server does not take the status: one sentence why.
    Refused(String),
}

/// What became of a write.
enum Outcome {
    Done(Written),
    /// The object is not there any more.
    Gone,
    /// The server would refuse it again.
    Refused(String),
    /// It is to be tried again.
    Failed,
    /// This server leads no more.
    Over,
}

impl Statuses {
    pub(crate) fn new(jobs: Jobs, leadership: Leadership, threads: Handle) -> Self {
        Self(Arc::new(Shared {
            jobs,
            leadership,
            threads,
            permits: Semaphore::new(WRITES_MAX),
            events: Semaphore::new(EVENTS_MAX),
            revision: AtomicU64::new(0),
            entries: Mutex::default(),
            writing: watch::channel(0).0,
        }))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the status that an object has.
    pub fn found(&self, owner: &JobOwner, status: &TrainingJobStatus) {
        let mut entries = self.entries();
        let entry = entries.entry(owner.uid.clone()).or_default();
        entry.written = status.written;
        entry.state.clone_from(&status.state);
        entry.leases = leases_of(status);
    }

    /// Has a status written, in place of those of the job that are not yet. Waits for nothing.
    pub fn write(&self, owner: JobOwner, status: TrainingJobStatus) {
        let uid = owner.uid.clone();
        let mut entries = self.entries();
        let entry = entries.entry(uid.clone()).or_default();
        entry.newest = Some((owner, status));
        if !entry.is_writing {
            entry.is_writing = true;
            self.0.writing.send_modify(|count| *count += 1);
            drop(self.0.threads.spawn(self.clone().write_all(uid)));
        }
    }

    /// The object is not there any more.
    pub fn forget(&self, uid: &str) {
        drop(self.entries().remove(uid));
    }

    /// Waits until nothing is to be written.
    pub(crate) async fn settled(&self) {
        let _ = self.0.writing.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Waits until the status of a job names a lease.
    ///
    /// # Errors
    /// Why it never will.
    pub(crate) async fn names(&self, uid: &str, lease: LeaseId) -> Result<(), NotNamed> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut entries = self.entries();
            let entry = entries.entry(uid.to_owned()).or_default();
            if entry.leases.contains(&lease) {
                return Ok(());
            }
            if let Some((_, why)) = entry.refused.as_ref().filter(|(of, _)| of.contains(&lease)) {
                return Err(NotNamed::Refused(why.clone()));
            }
            entry.waiting.push((lease, sender));
        }
        receiver.await.unwrap_or(Err(NotNamed::Gone))
    }

    async fn write_all(self, uid: String) {
        self.write_newest(&uid).await;
        self.0.writing.send_modify(|count| *count -= 1);
    }

    /// Writes what there is of a job until there is nothing more.
    async fn write_newest(&self, uid: &str) {
        let mut pause = PAUSE;
        while let Some((owner, status)) = self.next(uid) {
            let outcome = {
                let _permit = self.0.permits.acquire().await;
                self.try_write(&owner, &status).await
            };
            match outcome {
                Outcome::Done(written) => {
                    if self.done(uid, written, &status) {
                        let at = (self.0.jobs.scheduler(), Timestamp::now());
                        let event = events::event(&owner, &status, at);
                        drop(self.0.threads.spawn(self.clone().make_event(owner, event)));
                    }
                    pause = PAUSE;
                }
                Outcome::Gone | Outcome::Over => return self.forget(uid),
                Outcome::Refused(why) => self.refused(uid, &status, &why),
                Outcome::Failed => {
                    if let Some(entry) = self.entries().get_mut(uid) {
                        entry.newest.get_or_insert((owner, status));
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Nobody waits for an event, and it is made once or not at all.
    async fn make_event(self, owner: JobOwner, event: Value) {
        let _permit = self.0.events.acquire().await;
        let path = events::path(&owner.namespace);
        let _ = self.within_term(self.0.jobs.make(path, &event)).await;
    }

    fn next(&self, uid: &str) -> Option<(JobOwner, TrainingJobStatus)> {
        let mut entries = self.entries();
        let entry = entries.get_mut(uid)?;
        let next = entry.newest.take();
        entry.is_writing = next.is_some();
        next
    }

    /// Whether the job is in another state than before.
    fn done(&self, uid: &str, written: Written, status: &TrainingJobStatus) -> bool {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(uid) else { return false };
        entry.written = Some(written);
        entry.refused = None;
        let is_other = entry.state != status.state;
        entry.state.clone_from(&status.state);
        entry.leases = leases_of(status);
        for (lease, waiting) in std::mem::take(&mut entry.waiting) {
            match entry.leases.contains(&lease) {
                // It may have been stopped meanwhile.
                true => drop(waiting.send(Ok(()))),
                false => entry.waiting.push((lease, waiting)),
            }
        }
        is_other
    }

    /// Leases of a status that the server does not take never begin.
    fn refused(&self, uid: &str, status: &TrainingJobStatus, why: &str) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(uid) else { return };
        let leases = leases_of(status);
        for (lease, waiting) in std::mem::take(&mut entry.waiting) {
            match leases.contains(&lease) {
                true => drop(waiting.send(Err(NotNamed::Refused(why.to_owned())))),
                false => entry.waiting.push((lease, waiting)),
            }
        }
        entry.refused = Some((leases, why.to_owned()));
    }

    async fn try_write(&self, owner: &JobOwner, status: &TrainingJobStatus) -> Outcome {
        let epoch = self.0.leadership.epoch();
        let revision = self.0.revision.fetch_add(1, Ordering::SeqCst) + 1;
        let ours = Written { epoch, revision };
        let status = TrainingJobStatus { written: Some(ours), ..status.clone() };
        let known = self.entries().get(&owner.uid).and_then(|entry| entry.written);
        let mut guard = known.map(|written| test("/status/written", json!(written)));
        let mut before: Option<(Value, String)> = None;
        for _ in 0..CONFLICTS_MAX {
            if let Some(guard) = guard.take() {
                match self.within_term(self.swap(owner, guard.clone(), &status)).await {
                    Some(Ok(Some(written))) if written == ours => return Outcome::Done(ours),
                    // What it does not know it does not keep.
                    Some(Ok(_)) => return Outcome::Refused(OLD_DEFINITION.to_owned()),
                    // The object changed while it was patched.
                    Some(Err(Error::Api(status))) if status.code == CONFLICT => {}
                    // A test failed, or the status is not what the definition says.
                    Some(Err(Error::Api(status))) if status.code == INVALID => {
                        before = Some((guard, status.message.clone()));
                    }
                    Some(Err(error)) => return outcome_of(error),
                    None => return self.failed_or_over(),
                }
            }
            let found = match self.within_term(self.0.jobs.get(owner)).await {
                Some(Ok(found)) => found,
                Some(Err(error)) => return outcome_of(error),
                None => return self.failed_or_over(),
            };
            let Some((object, version)) = found else { return Outcome::Gone };
            let now = match object.status.written {
                // The answer to an earlier try was lost.
                Some(written) if written == ours => return Outcome::Done(ours),
                Some(written) if written.epoch > epoch => {
                    // Anybody may have written it who may write statuses.
                    match self.within_term(self.0.leadership.is_confirmed()).await {
                        Some(Ok(true)) => test("/status/written", json!(written)),
                        Some(Ok(false)) => return Outcome::Over,
                        Some(Err(_)) | None => return self.failed_or_over(),
                    }
                }
                Some(written) => test("/status/written", json!(written)),
                None => test("/metadata/resourceVersion", json!(version)),
            };
            // It was no conflict: the status itself is not what the definition says.
            if let Some((_, message)) = before.take_if(|(guard, _)| *guard == now) {
                return Outcome::Refused(format!("its status was refused: {message}"));
            }
            guard = Some(now);
        }
        Outcome::Failed
    }

    fn failed_or_over(&self) -> Outcome {
        match self.0.leadership.left() {
            Some(_) => Outcome::Failed,
            None => Outcome::Over,
        }
    }

    /// `None` where it took too long, or this server leads no more.
    async fn within_term<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        self.0.leadership.within_term(REQUEST_MAX, request).await
    }

    async fn swap(
        &self,
        owner: &JobOwner,
        guard: Value,
        status: &TrainingJobStatus,
    ) -> Result<Option<Written>, Error> {
        let change = json!([
            // Another object of the name may have taken its place.
            test("/metadata/uid", json!(owner.uid)),
            guard,
            { "op": "add", "path": "/status", "value": status },
        ]);
        let change = serde_json::from_value(change).expect("these are operations");
        let change: Patch<()> = Patch::Json(change);
        let api = self.0.jobs.within(&owner.namespace);
        let object = api.patch_status(&owner.name, &PatchParams::default(), &change).await?;
        Ok(serde_json::from_value(object.data["status"]["written"].clone()).ok())
    }
}

fn test(path: &str, value: Value) -> Value {
    json!({ "op": "test", "path": path, "value": value })
}

fn leases_of(status: &TrainingJobStatus) -> BTreeSet<LeaseId> {
    status.stages.iter().filter_map(|stage| stage.lease.map(LeaseId)).collect()
}

/// What becomes of a status where the server does not answer as it should.
fn outcome_of(error: Error) -> Outcome {
    match error {
        Error::Api(status) if status.code == 404 => Outcome::Gone,
        Error::Api(status)
            if matches!(status.code, 400..=403 | 405..=407 | 410..=421 | 423..=428)
                || is_too_large(&status.message) =>
        {
            Outcome::Refused(format!("its status was refused: {}", status.message))
        }
        _ => Outcome::Failed,
    }
}

/// The store behind the API server has a limit that it does not answer with a code of its own for.
fn is_too_large(message: &str) -> bool {
    message.contains("request is too large")
}
