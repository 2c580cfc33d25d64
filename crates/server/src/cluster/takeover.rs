//! Where a leader's log comes from: the one in its home, where nobody led in between, and a new one
//! that begins with what the objects of jobs say where somebody did.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::{fs, io};

use het_control::{Log, Past};
use het_core::{AdoptedJobs, Event, Job, Time, Topology};
use het_files::{Links, replace_private};
use het_host::{Home, HomeError};
use het_kubernetes::{JobObject, Kubernetes, Leadership};
use het_wire::record::{HandedOver, JobHandover};

use super::intake::uid_of;
use crate::assembly::{StartError, begin_store, has_store, of_store, open_or_create};
use crate::store::{EventStore, Opened, Recovered, StoreError, unused_beside};

/// Longest number.
const EPOCH_BYTES_MAX: u64 = 32;

/// What jobs are taken over from.
pub(super) struct Takeover {
    pub store: EventStore,
    pub past: Past,
    /// Snapshots that were damaged.
    pub refused: Vec<StoreError>,
    /// A sentence each.
    pub news: Vec<String>,
    /// What objects say, where the log is new.
    objects: Option<Vec<(String, JobHandover)>>,
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
        let ours = epoch_of(home)?;
        let newest = newest_epoch(objects);
        let is_current = ours == leadership.epoch_before() && newest <= ours;
        let mut news = Vec::new();
        if !is_current {
            news.push(set_aside(home)?);
        }
        let Opened { store, recovered, taken_over, mended } = open_or_create(home)?;
        news.extend(of_store(taken_over, mended.as_ref()));
        let Recovered { past, refused } = recovered;
        let objects = (!is_current).then(|| {
            let (read, unread) = read(objects);
            news.extend(unread);
            read
        });
        Ok(Self { store, past, refused, news, objects })
    }

    /// When the newest is that jobs say of themselves.
    pub fn latest(&self) -> Time {
        let leases = self.objects.iter().flatten().map(|(_, object)| object.latest());
        leases.max().unwrap_or(Time::ZERO).max(self.past.state.now())
    }

    /// Takes jobs into a new log, with the nodes that the engine knows. Nothing where the log goes
    /// on.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn adopt(&mut self, engine: &Kubernetes, at: Time) -> Result<(), StartError> {
        let Some(objects) = self.objects.take() else { return Ok(()) };
        let named = objects.iter().flat_map(|(_, object)| object.nodes()).collect();
        let nodes = Arc::new(engine.known_nodes(&named));
        self.append(at, Event::NodesJoined { nodes })?;
        let (mut adopted, unread) = adopted(&objects, self.past.state.topology());
        adopted.next_lease = engine.next_lease();
        let leases: usize = objects.iter().map(|(_, object)| object.lease_count()).sum();
        let adopted = adopted.held_by(&self.past.state, at);
        let (jobs, kept) = (adopted.jobs.len(), adopted.leases.len());
        self.news.extend(unread);
        if jobs == 0 {
            return Ok(());
        }
        self.news.push(format!(
            "{jobs} jobs go on as their objects say, with {kept} of {leases} leases; quotas, \
             drained devices, measured speeds and what policies remember are not known any more"
        ));
        self.append(at, Event::JobsAdopted { adopted: Arc::new(adopted) })
    }

    fn append(&mut self, at: Time, event: Event) -> Result<(), StartError> {
        self.store.append(&[(at, event.clone())]).map_err(StartError::Log)?;
        self.past.apply(at, &event);
        Ok(())
    }
}

/// From now on the log in this home is the leader's.
///
/// # Errors
/// When it cannot be written down.
pub(super) fn claim_epoch(home: &Home, epoch: u64) -> Result<(), StartError> {
    let path = home.epoch();
    let written = replace_private(&path, epoch.to_string().as_bytes());
    Ok(written.map_err(|source| HomeError::Io { path, source })?)
}

/// 0 in a home that never was a leader's.
///
/// # Errors
/// When it says something that cannot be read now: its log may be the leader's.
fn epoch_of(home: &Home) -> Result<u64, StartError> {
    let path = home.epoch();
    match het_files::read(&path, Links::Refused, EPOCH_BYTES_MAX) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().parse().unwrap_or(0)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(HomeError::Io { path, source }.into()),
    }
}

/// The last epoch in which anything was written about a job.
pub(super) fn newest_epoch(objects: &[JobObject]) -> u64 {
    let written = objects.iter().filter_map(|object| object.status.written);
    written.map(|written| written.epoch).max().unwrap_or(0)
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

/// What objects say of their jobs, with their uid; and which say nothing that can be read.
fn read(objects: &[JobObject]) -> (Vec<(String, JobHandover)>, Vec<String>) {
    let (mut read, mut unread) = (Vec::new(), Vec::new());
    for object in objects.iter().filter(|object| !object.status.handover.is_empty()) {
        match JobHandover::from_json(&object.status.handover) {
            Ok(handover) => read.push((object.owner.uid.clone(), handover)),
            Err(error) => unread.push(begins_anew(&object.owner.uid, &error)),
        }
    }
    (read, unread)
}

fn begins_anew(uid: &str, why: &dyn std::error::Error) -> String {
    format!("the job with the uid {uid} begins anew: {why}")
}

/// The jobs of objects. One that is not what its object's uid says, or has the number of another,
/// begins anew.
fn adopted(objects: &[(String, JobHandover)], topology: &Topology) -> (AdoptedJobs, Vec<String>) {
    let (mut adopted, mut unread) = (AdoptedJobs::default(), Vec::new());
    let mut seen = BTreeSet::new();
    for (uid, handover) in objects {
        match handover.read(topology) {
            Ok(HandedOver { id, job, leases }) => {
                let key = job.spec.key.as_ref();
                let is_its_own = key.and_then(|key| uid_of(key.as_str())) == Some(uid);
                if is_its_own && is_whole(&job) && seen.insert(id) {
                    adopted.jobs.insert(id, Arc::new(job));
                    for (id, lease) in leases {
                        adopted.leases.entry(id).or_insert(lease);
                    }
                }
            }
            Err(error) => unread.push(begins_anew(uid, &error)),
        }
    }
    (adopted, unread)
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
