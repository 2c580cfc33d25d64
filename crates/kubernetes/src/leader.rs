//! Which of several servers decides: the holder of a `Lease` of the API server.
//!
//! A Lease elects and does not fence: a holder that stood still may wake up after another has taken
//! over. So whoever writes asks [`Leadership::left`] first, no request outlasts it, the successor
//! waits longer than that, and what is written names its epoch, by which the API server refuses it
//! once there is a later one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use het_core::Millis;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use thiserror::Error as ThisError;
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};

use crate::client::{CONFLICT, NOT_FOUND};

/// So long after it was last renewed nobody else takes it; the defaults of kube-scheduler.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// So long after its last renewal began the holder writes nothing any more.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(2);
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// A connection that says nothing for longer is given up.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// Highest that is believed where the Lease itself does not say it: a Lease can say twice as much,
/// so that as many can follow.
pub const EPOCH_MAX: u64 = 1 << 30;

/// What is led, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Election {
    /// Where the Lease lies.
    pub namespace: String,
    pub name: String,
    /// Never that of two processes at once. The same process, or the one after it, takes its own
    /// Lease without waiting.
    pub identity: String,
}

/// Whether somebody who does not lead goes on waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standby {
    Wait,
    GiveUp,
}

/// Why somebody does not lead.
#[derive(Debug, ThisError)]
pub enum ElectionError {
    #[error("the namespace `{namespace}` of the Lease is not there")]
    NoNamespace { namespace: String },
    #[error("the API server does not let this account have the Lease `{name}` in `{namespace}`")]
    Refused { namespace: String, name: String, source: Box<Error> },
    #[error("nobody waits for it any more")]
    GivenUp,
}

/// The right to decide, as long as it lasts; cheap to clone.
#[derive(Clone)]
pub struct Leadership(Arc<Term>);

struct Term {
    api: Api<Lease>,
    lease: Mutex<Lease>,
    /// Higher than that of every leader before.
    epoch: AtomicU64,
    /// Of the leader before; 0 where there was none.
    before: u64,
    /// Of the Lease.
    uid: String,
    since_boot: fn() -> Millis,
    /// Time since boot until which it holds without another renewal.
    until: StdMutex<Duration>,
    standing: watch::Sender<Standing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Leads,
    /// By its own will.
    Released,
    Lost,
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leadership(epoch {})", self.epoch())
    }
}

impl Leadership {
    /// From the request that took the Lease on.
    fn begin(
        (api, lease): (Api<Lease>, Lease),
        before: u64,
        (since_boot, began): (fn() -> Millis, Duration),
    ) -> Self {
        let term = Term {
            api,
            epoch: AtomicU64::new(epoch_of(&lease)),
            before,
            uid: lease.metadata.uid.clone().unwrap_or_default(),
            lease: Mutex::new(lease),
            since_boot,
            until: StdMutex::new(began + RENEW_DEADLINE),
            standing: watch::channel(Standing::Leads).0,
        };
        let leadership = Self(Arc::new(term));
        tokio::spawn(leadership.clone().keep());
        leadership
    }

    pub fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::SeqCst)
    }

    /// The epoch of the leader before; 0 where there was none.
    pub fn epoch_before(&self) -> u64 {
        self.0.before
    }

    /// Of its Lease.
    pub fn lease_uid(&self) -> &str {
        &self.0.uid
    }

    /// The answer to a request that takes no longer than this, nor than the lead lasts; `None`
    /// where it would.
    pub(crate) async fn within_term<T>(
        &self,
        longest: Duration,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        timeout(longest.min(self.left()?), request).await.ok()
    }

    /// How long it lasts at least; `None` once it has ended, which it then has for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.0.left().filter(|left| !left.is_zero());
        if left.is_none() {
            self.lose();
        }
        left
    }

    /// Somebody else leads, or may.
    pub fn is_lost(&self) -> bool {
        *self.0.standing.borrow() == Standing::Lost
    }

    pub(crate) fn lose(&self) {
        self.0.standing.send_if_modified(|standing| {
            let leads = *standing == Standing::Leads;
            *standing = if leads { Standing::Lost } else { *standing };
            leads
        });
    }

    /// Waits until it has ended; whether it was lost.
    pub(crate) async fn ended(&self) -> bool {
        let mut standing = self.0.standing.subscribe();
        let ended = standing.wait_for(|standing| *standing != Standing::Leads).await;
        ended.is_ok_and(|standing| *standing == Standing::Lost)
    }

    /// Whether the Lease says that this is the leader, whatever else says otherwise; it is lost
    /// where not.
    pub(crate) async fn is_confirmed(&self) -> Result<bool, Error> {
        let is_held = self.0.look().await?;
        if !is_held {
            self.lose();
        }
        Ok(is_held)
    }

    /// Goes on in an epoch after this one, too: somebody has led that its Lease knows nothing of.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub(crate) async fn raise_above(&self, epoch: u64) -> Result<(), Error> {
        self.0.epoch.fetch_max(epoch.saturating_add(1), Ordering::SeqCst);
        match timeout(REQUEST_MAX, self.0.renew()).await {
            Ok(renewed) => renewed,
            Err(_) => Err(Error::Service("it does not answer".into())),
        }
    }

    /// Gives it back, so that nobody has to wait.
    pub(crate) async fn release(&self) {
        self.0.standing.send_if_modified(|standing| {
            let leads = *standing == Standing::Leads;
            *standing = if leads { Standing::Released } else { *standing };
            leads
        });
        if self.is_lost() {
            return;
        }
        let mut lease = self.0.lease.lock().await;
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
        }
        // Whoever comes next waits it out where this is not heard.
        let _ = timeout(REQUEST_MAX, self.0.put(&mut lease)).await;
    }

    /// Renews it until it has ended.
    async fn keep(self) {
        while self.left().is_some() {
            sleep(RENEW_EVERY).await;
            let Some(left) = self.left() else { return };
            match timeout(REQUEST_MAX.min(left), self.0.renew()).await {
                Ok(Err(Error::Api(status))) if status.code == NOT_FOUND => return self.lose(),
                Ok(Err(Error::Api(status))) if status.code == CONFLICT => {
                    // Where there is no answer the next try may have one.
                    let _ = timeout(REQUEST_MAX.min(left), self.is_confirmed()).await;
                }
                // It lasts a while, and the next try may come through.
                Ok(Ok(()) | Err(_)) | Err(_) => {}
            }
        }
    }
}

impl Term {
    fn left(&self) -> Option<Duration> {
        let leads = *self.standing.borrow() == Standing::Leads;
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        leads.then(|| until.saturating_sub(boot_time(self.since_boot)))
    }

    async fn renew(&self) -> Result<(), Error> {
        let mut lease = self.lease.lock().await;
        let began = boot_time(self.since_boot);
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            spec.lease_transitions = Some(transitions(self.epoch.load(Ordering::SeqCst)));
        }
        self.put(&mut lease).await?;
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = began + RENEW_DEADLINE;
        Ok(())
    }

    async fn put(&self, lease: &mut Lease) -> Result<(), Error> {
        let name = lease.metadata.name.clone().unwrap_or_default();
        *lease = self.api.replace(&name, &PostParams::default(), lease).await?;
        Ok(())
    }

    /// Looks whether it is still held: the answer to an earlier renewal may have been lost.
    async fn look(&self) -> Result<bool, Error> {
        let mut lease = self.lease.lock().await;
        let name = lease.metadata.name.clone().unwrap_or_default();
        let now = self.api.get(&name).await?;
        let is_held =
            holder(&now) == holder(&lease) && epoch_of(&now) <= self.epoch.load(Ordering::SeqCst);
        *lease = now;
        Ok(is_held)
    }
}

pub(crate) async fn lead(
    client: Client,
    election: Election,
    since_boot: fn() -> Millis,
    mut standby: impl FnMut(&str) -> Standby,
) -> Result<Leadership, ElectionError> {
    let api: Api<Lease> = Api::namespaced(client, &election.namespace);
    let (mut seen, mut has_answered) = (None, false);
    loop {
        let began = boot_time(since_boot);
        let tried = timeout(REQUEST_MAX, try_to_lead(&api, &election, &mut seen, since_boot)).await;
        let holder = match tried {
            Ok(Ok(Tried::Leads { lease, before })) => {
                return Ok(Leadership::begin((api, *lease), before, (since_boot, began)));
            }
            Ok(Ok(Tried::Waits { holder })) => {
                has_answered = true;
                holder
            }
            // A server that has just begun refuses what it takes a moment later.
            Ok(Err(error)) if !has_answered => {
                refused(&election, error)?;
                String::new()
            }
            Ok(Err(_)) | Err(_) => String::new(),
        };
        if standby(&holder) == Standby::GiveUp {
            return Err(ElectionError::GivenUp);
        }
        sleep(RETRY_EVERY).await;
    }
}

/// # Errors
/// When it would be refused again.
fn refused(election: &Election, error: Error) -> Result<(), ElectionError> {
    let Election { namespace, name, .. } = election.clone();
    match &error {
        Error::Api(status) if status.code == NOT_FOUND => {
            Err(ElectionError::NoNamespace { namespace })
        }
        Error::Api(status) if matches!(status.code, 400..=403) => {
            Err(ElectionError::Refused { namespace, name, source: Box::new(error) })
        }
        _ => Ok(()),
    }
}

enum Tried {
    Leads { lease: Box<Lease>, before: u64 },
    Waits { holder: String },
}

/// A Lease as it was seen first: one that does not change for its duration is over, whatever the
/// clock of its holder says.
struct Seen {
    version: Option<String>,
    at: Duration,
}

async fn try_to_lead(
    api: &Api<Lease>,
    election: &Election,
    seen: &mut Option<Seen>,
    since_boot: fn() -> Millis,
) -> Result<Tried, Error> {
    let found = api.get_opt(&election.name).await?;
    // After the answer: it may have been renewed while that was under way.
    let now = boot_time(since_boot);
    let Some(mut lease) = found else {
        let lease = new_lease(election);
        return match api.create(&PostParams::default(), &lease).await {
            Ok(lease) => Ok(Tried::Leads { lease: Box::new(lease), before: 0 }),
            Err(error) => after_conflict(error, ""),
        };
    };
    let held_by = holder(&lease).to_owned();
    let version = lease.metadata.resource_version.clone();
    if seen.as_ref().is_none_or(|seen| seen.version != version) {
        *seen = Some(Seen { version, at: now });
    }
    let unchanged = seen.as_ref().map_or(Duration::ZERO, |seen| now.saturating_sub(seen.at));
    let is_free = held_by.is_empty() || held_by == election.identity;
    if !is_free && unchanged <= duration_of(&lease) {
        return Ok(Tried::Waits { holder: held_by });
    }
    let before = epoch_of(&lease);
    lease.spec = Some(spec_in(election, before + 1));
    match api.replace(&election.name, &PostParams::default(), &lease).await {
        Ok(lease) => Ok(Tried::Leads { lease: Box::new(lease), before }),
        Err(error) => after_conflict(error, &held_by),
    }
}

/// Somebody was faster.
fn after_conflict(error: Error, holder: &str) -> Result<Tried, Error> {
    match error {
        Error::Api(status) if status.code == CONFLICT => {
            Ok(Tried::Waits { holder: holder.to_owned() })
        }
        // Somebody deleted it meanwhile.
        Error::Api(status) if status.code == NOT_FOUND && !holder.is_empty() => {
            Ok(Tried::Waits { holder: holder.to_owned() })
        }
        error => Err(error),
    }
}

fn new_lease(election: &Election) -> Lease {
    let (name, namespace) = (Some(election.name.clone()), Some(election.namespace.clone()));
    Lease {
        metadata: ObjectMeta { name, namespace, ..ObjectMeta::default() },
        spec: Some(spec_in(election, 1)),
    }
}

fn spec_in(election: &Election, epoch: u64) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: Some(LEASE_DURATION.as_secs() as i32),
        lease_transitions: Some(transitions(epoch)),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..LeaseSpec::default()
    }
}

/// How often it has changed hands: the first epoch is 1.
fn transitions(epoch: u64) -> i32 {
    i32::try_from(epoch.saturating_sub(1)).unwrap_or(i32::MAX)
}

fn epoch_of(lease: &Lease) -> u64 {
    let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    u64::try_from(transitions.unwrap_or(0)).unwrap_or(0) + 1
}

fn holder(lease: &Lease) -> &str {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    holder.unwrap_or_default()
}

fn duration_of(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    seconds.and_then(|it| u64::try_from(it).ok()).map_or(LEASE_DURATION, Duration::from_secs)
}

fn boot_time(since_boot: fn() -> Millis) -> Duration {
    Duration::from_millis(since_boot().0)
}
