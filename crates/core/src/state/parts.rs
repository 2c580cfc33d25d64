//! A state taken apart for whoever stores it, and put together again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;

use super::{
    Booked, Claim, Degraded, Job, Lease, Preparation, Slowness, StageState, State, Suspicion,
    Ticket,
};
use crate::{
    DeviceId, Generation, HostResources, JobId, LeaseId, Name, NodeId, Occupant, Placement,
    PolicyMemory, Quotas, Share, ShareMillis, StageKey, Time, Topology,
};

/// Everything of a state that does not follow from the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateParts {
    pub topology: Arc<Topology>,
    pub now: Time,
    pub generation: Generation,
    pub next_job: JobId,
    pub next_lease: LeaseId,
    pub jobs: BTreeMap<JobId, Arc<Job>>,
    pub leases: BTreeMap<LeaseId, Lease>,
    pub claims: BTreeMap<StageKey, Claim>,
    pub preparations: BTreeMap<StageKey, Preparation>,
    pub waiting: BTreeMap<StageKey, Ticket>,
    pub next_ticket: Ticket,
    pub departures: u64,
    pub last_checkpoint: Option<Time>,
    pub yielding: BTreeMap<LeaseId, StageKey>,
    pub quotas: Arc<Quotas>,
    pub policy_memory: Option<Arc<PolicyMemory>>,
    /// By tenant, and by device class.
    pub used: BTreeMap<Name, Vec<Share>>,
    /// By node.
    pub lost: Vec<bool>,
    pub suspected: Vec<bool>,
    /// By device.
    pub failed: Vec<bool>,
    pub drained: BTreeSet<DeviceId>,
    pub suspicions: BTreeMap<DeviceId, Suspicion>,
    pub slow_devices: BTreeMap<DeviceId, Slowness>,
    pub degraded: BTreeMap<DeviceId, Degraded>,
    pub occupied: BTreeMap<DeviceId, Occupant>,
    pub removed: BTreeSet<NodeId>,
    pub absent: BTreeSet<DeviceId>,
    /// What others use, by node and row of class, and of which devices it is counted off.
    pub taken: BTreeMap<(NodeId, usize), Share>,
    pub taken_of: BTreeMap<DeviceId, Share>,
    pub host_taken: BTreeMap<NodeId, HostResources>,
    /// By device.
    pub charged: Vec<ShareMillis>,
    pub busy: Vec<ShareMillis>,
    pub useful: Vec<ShareMillis>,
}

impl StateParts {
    /// The same with rows for everything in the topology, which may have got more behind those
    /// that there were: to them nothing has happened yet.
    #[must_use]
    pub fn filled_up(mut self) -> Self {
        let (classes, nodes) = (self.topology.classes.len(), self.topology.nodes.len());
        let devices = self.topology.devices.len();
        self.used.values_mut().for_each(|used| reach(used, classes));
        [&mut self.lost, &mut self.suspected].into_iter().for_each(|flags| reach(flags, nodes));
        reach(&mut self.failed, devices);
        let spans = [&mut self.charged, &mut self.busy, &mut self.useful];
        spans.into_iter().for_each(|spans| reach(spans, devices));
        self
    }
}

pub(super) fn reach<T: Clone + Default>(values: &mut Vec<T>, length: usize) {
    values.resize(values.len().max(length), T::default());
}

/// Why parts are those of no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PartsError {
    #[error("it has not one entry for each {of} of its topology")]
    Count { of: &'static str },
    #[error("{what} is named that is not there")]
    Dangling { what: &'static str },
    #[error("two stages have one ticket")]
    Tickets,
    #[error("a device, or what a node has beside, is promised twice")]
    PromisedTwice,
}

impl State {
    pub fn into_parts(self) -> StateParts {
        StateParts {
            topology: self.topology,
            now: self.now,
            generation: self.generation,
            next_job: self.next_job,
            next_lease: self.next_lease,
            jobs: self.jobs,
            leases: self.leases,
            claims: self.claims,
            preparations: self.preparations,
            waiting: self.waiting,
            next_ticket: self.next_ticket,
            departures: self.departures,
            last_checkpoint: self.last_checkpoint,
            yielding: self.yielding,
            quotas: self.quotas,
            policy_memory: self.policy_memory,
            used: self.used,
            lost: self.lost,
            suspected: self.suspected,
            failed: self.failed,
            drained: self.drained,
            suspicions: self.suspicions,
            slow_devices: self.slow_devices,
            degraded: self.degraded,
            occupied: self.occupied,
            removed: self.removed,
            absent: self.absent,
            taken: self.taken,
            taken_of: self.taken_of,
            host_taken: self.host_taken,
            charged: self.charged,
            busy: self.busy,
            useful: self.useful,
        }
    }

    /// The state that these are the parts of.
    ///
    /// # Errors
    /// When they do not fit together.
    pub fn from_parts(parts: StateParts) -> Result<Self, PartsError> {
        check(&parts.topology, &parts)?;
        let mut state = Self::new(Arc::clone(&parts.topology));
        state.now = parts.now;
        state.generation = parts.generation;
        state.next_job = parts.next_job;
        state.next_lease = parts.next_lease;
        state.jobs = parts.jobs;
        state.leases = parts.leases;
        state.claims = parts.claims;
        state.preparations = parts.preparations;
        state.tickets = parts.waiting.iter().map(|(&key, &ticket)| (ticket, key)).collect();
        state.waiting = parts.waiting;
        state.next_ticket = parts.next_ticket;
        state.departures = parts.departures;
        state.last_checkpoint = parts.last_checkpoint;
        state.yielding = parts.yielding;
        state.quotas = parts.quotas;
        state.policy_memory = parts.policy_memory;
        state.used = parts.used;
        state.lost = parts.lost;
        state.suspected = parts.suspected;
        state.failed = parts.failed;
        state.drained = parts.drained;
        state.suspicions = parts.suspicions;
        state.slow_devices = parts.slow_devices;
        state.degraded = parts.degraded;
        state.occupied = parts.occupied;
        state.removed = parts.removed;
        state.absent = parts.absent;
        state.taken = parts.taken;
        state.taken_of = parts.taken_of;
        state.host_taken = parts.host_taken;
        state.charged = parts.charged;
        state.busy = parts.busy;
        state.useful = parts.useful;
        state.derive();
        Ok(state)
    }

    /// What follows from the rest.
    fn derive(&mut self) {
        self.count_service();
        self.derive_from_jobs();
        let waiting = self.waiting.keys().copied();
        self.preparable = waiting.filter(|key| self.stage(*key).1.is_preparable()).collect();
    }

    /// What follows from jobs and leases, of which nothing was counted yet.
    pub(super) fn derive_from_jobs(&mut self) {
        let alive = self.jobs.iter().filter(|(_, job)| job.end.is_none());
        for (&id, job) in alive {
            if job.is_unwanted() {
                self.unwanted.insert(id);
            }
            if job.spec.time_limit.is_some() {
                self.limited.insert(id);
            }
        }
        self.derive_eligibility();
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        ids.into_iter().for_each(|id| self.settle_recovery(id));
        let row = |(&id, it): (&LeaseId, &Lease)| (id, it.stage.job, Arc::clone(&it.placement));
        let leases: Vec<_> = self.leases.iter().map(row).collect();
        for (id, job, placement) in leases {
            self.hold(&placement);
            self.list_lease(self.jobs[&job].priority(), id, Booked::Taken);
        }
    }
}

fn check(topology: &Topology, parts: &StateParts) -> Result<(), PartsError> {
    let (nodes, devices) = (topology.nodes.len(), topology.devices.len());
    let classes = topology.classes.len();
    let by_class = parts.used.values().map(Vec::len);
    let by_device = [parts.charged.len(), parts.busy.len(), parts.useful.len(), parts.failed.len()];
    counted("class", classes, by_class)?;
    counted("node", nodes, [parts.lost.len(), parts.suspected.len()])?;
    counted("device", devices, by_device)?;
    let slow = parts.slow_devices.keys().chain(parts.degraded.keys());
    let suspects = parts.suspicions.keys().chain(slow);
    let named = parts.drained.iter().chain(parts.occupied.keys()).chain(suspects);
    let mut named = named.chain(&parts.absent).chain(parts.taken_of.keys());
    there("a device", named.all(|id| id.index() < devices))?;
    let mut taken = parts.taken.keys();
    let mut of_nodes = parts.removed.iter().chain(parts.host_taken.keys());
    there("a node", of_nodes.all(|id| id.index() < nodes))?;
    there("a class", taken.all(|(node, class)| node.index() < nodes && *class < classes))?;
    there("a stage", names_stages(parts))?;
    there("a lease", names_leases(parts))?;
    let tickets: BTreeSet<Ticket> = parts.waiting.values().copied().collect();
    if tickets.len() != parts.waiting.len() {
        return Err(PartsError::Tickets);
    }
    let held = parts.leases.values().map(|lease| &lease.placement);
    let claimed = parts.claims.values().map(|claim| &claim.placement);
    let prepared = parts.preparations.values().map(|preparation| &preparation.placement);
    let ran = parts.jobs.values().flat_map(|job| &job.stages);
    let ran = ran.filter_map(|stage| stage.placement.as_ref());
    let mut placements = held.clone().chain(claimed).chain(prepared).chain(ran);
    there("a device", placements.all(|placement| is_in(topology, placement)))?;
    held_once(topology, held)
}

fn counted(
    of: &'static str,
    count: usize,
    lengths: impl IntoIterator<Item = usize>,
) -> Result<(), PartsError> {
    match lengths.into_iter().all(|length| length == count) {
        true => Ok(()),
        false => Err(PartsError::Count { of }),
    }
}

fn there(what: &'static str, is_there: bool) -> Result<(), PartsError> {
    is_there.then_some(()).ok_or(PartsError::Dangling { what })
}

fn names_stages(parts: &StateParts) -> bool {
    let is_there = |key: &StageKey| {
        parts.jobs.get(&key.job).is_some_and(|job| key.stage.index() < job.stages.len())
    };
    let whole = |job: &Arc<Job>| job.stages.len() == job.spec.stages.len();
    let leased = parts.leases.values().map(|lease| &lease.stage);
    let wanted = parts.claims.keys().chain(parts.preparations.keys());
    let wanted = wanted.chain(parts.waiting.keys()).chain(parts.yielding.values());
    parts.jobs.values().all(whole) && leased.chain(wanted).all(is_there)
}

fn names_leases(parts: &StateParts) -> bool {
    let stages = parts.jobs.values().flat_map(|job| &job.stages);
    let mut active = stages.filter_map(|stage| match stage.state {
        StageState::Active { lease } => Some(lease),
        _ => None,
    });
    active.all(|lease| parts.leases.contains_key(&lease))
        && parts.yielding.keys().all(|lease| parts.leases.contains_key(lease))
}

fn is_in(topology: &Topology, placement: &Placement) -> bool {
    placement.grants().all(|grant| grant.device.index() < topology.devices.len())
        && placement.ranks.iter().all(|rank| rank.node.index() < topology.nodes.len())
}

fn held_once<'a>(
    topology: &Topology,
    placements: impl Iterator<Item = &'a Arc<Placement>>,
) -> Result<(), PartsError> {
    let mut shares = vec![0_u64; topology.devices.len()];
    let mut host = vec![HostResources::NONE; topology.nodes.len()];
    for placement in placements {
        for grant in placement.grants() {
            shares[grant.device.index()] += u64::from(grant.share.0);
        }
        for rank in &placement.ranks {
            let held = &mut host[rank.node.index()];
            *held = held.plus(rank.host);
        }
    }
    let share_fits = |(held, device): (&u64, &crate::Device)| *held <= u64::from(device.capacity.0);
    let host_fits = |(held, node): (&HostResources, &crate::Node)| held.fits(node.host);
    let fits = shares.iter().zip(&topology.devices).all(share_fits)
        && host.iter().zip(&topology.nodes).all(host_fits);
    fits.then_some(()).ok_or(PartsError::PromisedTwice)
}
