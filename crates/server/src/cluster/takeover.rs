//! Where a leader's log comes from: the one in its home, where nobody led in between, and a new one
//! that begins with what the objects of jobs say where somebody did.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::{fs, io};

use het_control::{Log, Past};
use het_core::{AdoptedJobs, Event, Job, JobId, LeaseId, Name, Time, Topology};
use het_files::{Links, replace_private};
use het_host::{Home, HomeError};
use het_kubernetes::{EPOCH_MAX, JobObject, JobOwner, Kubernetes, Leadership};
use het_wire::record::{HandedOver, JobHandover};

use super::intake::uid_of;
use crate::assembly::{StartError, begin_store, has_store, of_store, open_or_create};
use crate::store::{EventStore, Opened, Recovered, StoreError, unused_beside};

/// Longest uid and number.
const CLAIM_BYTES_MAX: u64 = 256;

/// What jobs are taken over from.
pub(super) struct Takeover {
    pub store: EventStore,
    pub past: Past,
    /// Snapshots that were damaged.
    pub refused: Vec<StoreError>,
    /// A sentence each.
    pub news: Vec<String>,
    /// What objects say, where the log is new.
    objects: Option<Vec<Left>>,
}

/// What an object says of its job.
struct Left {
    owner: JobOwner,
    handover: JobHandover,
}

impl Takeover {
    /// Opens the log in a home, or begins a new one where another server led since.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub fn open(
        home: &Home,
        leadership: &Leadership,
        objects: &[JobObject],
    ) -> Result<Self, StartError> {
        let ours = Claimed::of(home)?;
        let mut is_current =
            ours == Claimed::before(leadership) && newest_epoch(objects) <= ours.epoch;
        let (left, mut news) = read(objects);
        if !is_current {
            news.push(set_aside(home)?);
        }
        let mut opened = open_or_create(home)?;
        if is_current && is_behind(&opened, &left) {
            is_current = false;
            drop(opened);
            news.push(set_aside(home)?);
            opened = open_or_create(home)?;
        }
        if is_current {
            // Whatever fails from here on, nobody else leads in between.
            claim_epoch(home, leadership)?;
        }
        let Opened { store, recovered, taken_over, mended } = opened;
        news.extend(of_store(taken_over, mended.as_ref()));
        let Recovered { past, refused } = recovered;
        Ok(Self { store, past, refused, news, objects: (!is_current).then_some(left) })
    }

    /// Whether what runs is known from objects alone.
    pub fn is_new(&self) -> bool {
        self.objects.is_some()
    }

    /// Whether a lease is on a device that its node does not have now.
    pub fn lacks_devices(&self, engine: &Kubernetes) -> bool {
        let objects = self.objects.as_deref().unwrap_or_default();
        let named = objects.iter().flat_map(|left| left.handover.nodes()).collect();
        let nodes = engine.known_nodes(&named);
        let is_there = |name: Name| nodes.nodes.iter().any(|node| node.name == name);
        objects.iter().any(|Left { handover, .. }| {
            let read = handover.read(&nodes).map_or(0, |over| over.leases.len());
            read < handover.lease_count() && handover.nodes().all(is_there)
        })
    }

    /// Takes jobs into a new log, with the nodes that the engine knows. Nothing where the log goes
    /// on.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn adopt(&mut self, engine: &Kubernetes, at: Time) -> Result<(), StartError> {
        let Some(objects) = self.objects.take() else { return Ok(()) };
        let named = objects.iter().flat_map(|left| left.handover.nodes()).collect();
        let nodes = Arc::new(engine.known_nodes(&named));
        self.append(at, Event::NodesJoined { nodes })?;
        let (mut adopted, unread) = adopted(&objects, self.past.state.topology());
        adopted.next_lease = engine.next_lease();
        let leases: usize = objects.iter().map(|left| left.handover.lease_count()).sum();
        let adopted = adopted.held_by(&self.past.state, at);
        let (jobs, kept) = (adopted.jobs.len(), adopted.leases.len());
        self.news.extend(unread);
        if jobs > 0 {
            self.news.push(format!(
                "{jobs} jobs go on as their objects say, with {kept} of {leases} leases; quotas, \
                 drained devices, measured speeds and what policies remember are not known any \
                 more"
            ));
        }
        self.append(at, Event::JobsAdopted { adopted: Arc::new(adopted) })
    }

    fn append(&mut self, at: Time, event: Event) -> Result<(), StartError> {
        self.store.append(&[(at, event.clone())]).map_err(StartError::Log)?;
        self.past.apply(at, &event);
        Ok(())
    }
}

/// Of which leader a log is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Claimed {
    /// Of the Lease: one that is made anew begins with the first epoch again.
    lease: String,
    /// 0 where it is of none.
    epoch: u64,
}

impl Claimed {
    /// # Errors
    /// When the home says something that cannot be read now: its log may be the leader's.
    fn of(home: &Home) -> Result<Self, StartError> {
        let path = home.epoch();
        let text = match het_files::read(&path, Links::Refused, CLAIM_BYTES_MAX) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(HomeError::Io { path, source }.into()),
        };
        let Some((lease, epoch)) = text.trim().split_once(' ') else { return Ok(Self::default()) };
        Ok(Self { lease: lease.to_owned(), epoch: epoch.parse().unwrap_or(0) })
    }

    fn before(leadership: &Leadership) -> Self {
        match leadership.epoch_before() {
            0 => Self::default(),
            epoch => Self { lease: leadership.lease_uid().to_owned(), epoch },
        }
    }
}

/// From now on the log in this home is the leader's.
///
/// # Errors
/// When it cannot be written down.
pub(super) fn claim_epoch(home: &Home, leadership: &Leadership) -> Result<(), StartError> {
    let path = home.epoch();
    let text = format!("{} {}", leadership.lease_uid(), leadership.epoch());
    let written = replace_private(&path, text.as_bytes());
    Ok(written.map_err(|source| HomeError::Io { path, source })?)
}

/// Whether objects name what the log does not know, which is otherwise written first: it is an
/// older copy of the leader's.
fn is_behind(opened: &Opened, left: &[Left]) -> bool {
    let state = &opened.recovered.past.state;
    left.iter().any(|Left { handover, .. }| {
        handover.id() >= state.next_job()
            || handover.newest_lease().is_some_and(|lease| lease >= state.next_lease())
    })
}

/// The last epoch in which anything was written about a job.
pub(super) fn newest_epoch(objects: &[JobObject]) -> u64 {
    let written = objects.iter().filter_map(|object| object.status.written);
    let epochs = written.map(|written| written.epoch);
    epochs.filter(|epoch| *epoch <= EPOCH_MAX).max().unwrap_or(0)
}

/// What there is to say about it.
fn set_aside(home: &Home) -> Result<String, StartError> {
    if !has_store(home)? {
        begin_store(home)?;
        return Ok("another server led before: a new log begins with what it left".to_owned());
    }
    let (path, aside) = (home.store(), unused_beside(&home.store(), "earlier"));
    fs::rename(&path, &aside).map_err(|source| HomeError::Io { path, source })?;
    begin_store(home)?;
    Ok(format!(
        "another server led since: a new log begins with what it left, and the one from before \
         lies beside it as `{}`",
        aside.display()
    ))
}

/// What objects say of their jobs, and which say nothing that can be read.
fn read(objects: &[JobObject]) -> (Vec<Left>, Vec<String>) {
    let (mut read, mut unread) = (Vec::new(), Vec::new());
    for object in objects.iter().filter(|object| !object.status.handover.is_empty()) {
        let owner = object.owner.clone();
        match JobHandover::from_json(&object.status.handover) {
            Ok(handover) => read.push(Left { owner, handover }),
            Err(error) => unread.push(begins_anew(&owner, &error.to_string())),
        }
    }
    (read, unread)
}

fn begins_anew(JobOwner { namespace, name, .. }: &JobOwner, why: &str) -> String {
    format!("`{namespace}/{name}` begins anew: {why}")
}

/// The jobs of objects. One that is not its object's, or has the number of another, begins anew:
/// anybody may have written it who may write statuses.
fn adopted(objects: &[Left], topology: &Topology) -> (AdoptedJobs, Vec<String>) {
    let (mut adopted, mut unread) = (AdoptedJobs::default(), Vec::new());
    let mut numbers: BTreeMap<JobId, usize> = BTreeMap::new();
    let mut leases_of: BTreeMap<LeaseId, usize> = BTreeMap::new();
    let mut jobs = Vec::new();
    for Left { owner, handover } in objects {
        match handover.read(topology) {
            Ok(over) if is_of(owner, &over.job) && is_whole(&over.job) => {
                *numbers.entry(over.id).or_default() += 1;
                over.leases.keys().for_each(|id| *leases_of.entry(*id).or_default() += 1);
                jobs.push((owner, over));
            }
            Ok(_) => unread.push(begins_anew(owner, "what its status says is not of this job")),
            Err(error) => unread.push(begins_anew(owner, &error.to_string())),
        }
    }
    for (owner, HandedOver { id, job, leases }) in jobs {
        if numbers[&id] > 1 || leases.keys().any(|lease| leases_of[lease] > 1) {
            unread.push(begins_anew(owner, "another object has its number, or one of its leases"));
            continue;
        }
        adopted.jobs.insert(id, Arc::new(job));
        adopted.leases.extend(leases);
    }
    (adopted, unread)
}

fn is_of(owner: &JobOwner, job: &Job) -> bool {
    let key = job.spec.key.as_ref();
    key.and_then(|key| uid_of(key.as_str())) == Some(&owner.uid)
        && job.spec.tenant.as_str() == owner.namespace
}

/// Whether what it says of stages fits to what it asks for.
fn is_whole(job: &Job) -> bool {
    let stages = job.spec.stages.len();
    let is_there = |spec: &het_core::StageSpec| {
        let others = spec.after.iter().chain(&spec.follows);
        !spec.alternatives.is_empty() && others.into_iter().all(|other| other.index() < stages)
    };
    stages > 0 && job.stages.len() == stages && job.spec.stages.iter().all(is_there)
}

#[cfg(test)]
mod tests;
