//! The laws of the design, checked from the event stream alone.
//!
//! The oracle rebuilds who holds what from events in its own maps and its own words. It shares no
//! code with `State::apply`, the policies or the scheduler's check, so a mistake there does not
//! hide itself here.

mod adoption;
mod eligibility;
mod nodes;
mod preparations;
mod recovery;
mod work_conserving;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use eligibility::Course;
use het_core::{
    Action, Checkpoint, DeviceId, Domain, Event, Failure, FailureCause, HostResources, JobId,
    JobSpec, LeaseId, Millis, NodeId, Outcome, Placement, Plan, Preemptible, Quotas, RankRule,
    Reason, StageIndex, StageKey, StageState, State, StopCause, Time, Topology,
};
use nodes::amounts;
use recovery::{Trail, Verdict};

/// Which laws to hold a policy to: strict orders are not work conserving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// Laws 1–6, 8, 11–13.
    EveryPolicy,
    /// Also 7, 9 and 10.
    Ours,
}

/// Preemptions that one stage may suffer.
const PREEMPTIONS_MAX: u32 = 3;

/// Hangs on a device after which it is suspected.
const HANGS_SUSPECTED: u32 = 2;

/// Follows the events of one run and collects what breaks a law.
#[derive(Debug)]
pub struct Oracle {
    topology: Arc<Topology>,
    strictness: Strictness,
    /// So long nobody may be suspended for an equal.
    quantum: Millis,
    now: Time,
    generation: u64,
    leases_seen: u64,
    jobs: BTreeMap<JobId, Shadow>,
    holds: BTreeMap<LeaseId, Hold>,
    claims: BTreeMap<StageKey, Arc<Placement>>,
    prepared: BTreeMap<StageKey, LeaseId>,
    lost_nodes: BTreeSet<NodeId>,
    suspected_nodes: BTreeSet<NodeId>,
    failed_devices: BTreeSet<DeviceId>,
    drained_devices: BTreeSet<DeviceId>,
    /// Programs that hung on a device.
    hangs: BTreeMap<DeviceId, u32>,
    occupied_devices: BTreeSet<DeviceId>,
    removed_nodes: BTreeSet<NodeId>,
    absent_devices: BTreeSet<DeviceId>,
    /// Units in 1/10,000 that others use, by node and class.
    taken: BTreeMap<(NodeId, usize), u64>,
    /// What they use of nodes beside devices.
    host_taken: BTreeMap<NodeId, HostResources>,
    /// Nodes that join: where they stand is the state's to say.
    joining: Option<Arc<Topology>>,
    courses: BTreeMap<JobId, Course>,
    /// Leases that people want stopped for somebody, whatever it costs.
    asked_to_yield: BTreeSet<LeaseId>,
    /// By tenant and class id: what it is entitled to, and its limit.
    quotas: BTreeMap<(String, String), (Option<u64>, Option<u64>)>,
    /// Share-milliseconds by device.
    charged: Vec<u64>,
    idle_before: BTreeSet<StageKey>,
    violations: Vec<String>,
}

#[derive(Debug)]
struct Shadow {
    spec: Arc<JobSpec>,
    held: bool,
    eligible: bool,
    ending: bool,
    stages: Vec<ShadowStage>,
}

#[derive(Debug, Clone, Default)]
struct ShadowStage {
    status: Status,
    attempts: u32,
    preemptions: u32,
    failures: u32,
    refusals: u32,
    trail: Trail,
    published: bool,
    reasons: Vec<Reason>,
    charged: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Status {
    #[default]
    Idle,
    Active(LeaseId),
    Succeeded,
    Failed,
    Cancelled,
}

#[derive(Debug)]
struct Hold {
    stage: StageKey,
    placement: Arc<Placement>,
    since: Time,
    stopping: Option<StopCause>,
}

impl Oracle {
    pub fn new(topology: Arc<Topology>, strictness: Strictness) -> Self {
        Self {
            charged: vec![0; topology.devices.len()],
            topology,
            strictness,
            quantum: Millis::ZERO,
            now: Time::ZERO,
            generation: 0,
            leases_seen: 0,
            jobs: BTreeMap::new(),
            holds: BTreeMap::new(),
            claims: BTreeMap::new(),
            prepared: BTreeMap::new(),
            lost_nodes: BTreeSet::new(),
            suspected_nodes: BTreeSet::new(),
            failed_devices: BTreeSet::new(),
            drained_devices: BTreeSet::new(),
            hangs: BTreeMap::new(),
            occupied_devices: BTreeSet::new(),
            removed_nodes: BTreeSet::new(),
            absent_devices: BTreeSet::new(),
            taken: BTreeMap::new(),
            host_taken: BTreeMap::new(),
            joining: None,
            courses: BTreeMap::new(),
            asked_to_yield: BTreeSet::new(),
            quotas: BTreeMap::new(),
            idle_before: BTreeSet::new(),
            violations: Vec::new(),
        }
    }

    /// Also holds that nobody is suspended for an equal within so long of its start.
    #[must_use]
    pub fn with_quantum(self, quantum: Millis) -> Self {
        Self { quantum, ..self }
    }

    /// Everything found so far.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn blame(&mut self, law: u8, what: impl std::fmt::Display) {
        self.violations.push(format!("law {law} at {} ms: {what}", self.now.0));
    }

    /// Takes in the next event of the log.
    pub fn see(&mut self, at: Time, event: &Event) {
        if at < self.now {
            self.blame(12, "time went backwards");
        }
        self.now = self.now.max(at);
        match event {
            Event::JobSubmitted { job, spec, succeeded, checkpoints } => {
                self.submitted(*job, spec, succeeded, checkpoints);
            }
            Event::JobsAdopted { adopted } => self.adopted(adopted),
            Event::JobHeld { job } => self.with_job(*job, |job| job.held = true),
            Event::JobReleased { job } => self.with_job(*job, |job| {
                job.held = false;
                job.stages.iter_mut().for_each(|stage| stage.trail.released());
            }),
            Event::JobEligible { job } => self.eligible(*job),
            Event::DependencyFailed { job } => self.dependency_failed(*job),
            Event::JobCancelled { job } => {
                self.with_job(*job, Shadow::end_what_is_idle);
                self.follow_course(*job);
            }
            Event::JobRetired { job } => self.retired(*job),
            Event::JobChanged { job, change } => self.with_job(*job, |job| {
                let spec = Arc::make_mut(&mut job.spec);
                spec.priority = change.priority.unwrap_or(spec.priority);
            }),
            Event::StageYields { lease, .. } => drop(self.asked_to_yield.insert(*lease)),
            Event::QuotasSet { quotas } => self.quotas(quotas),
            Event::PlanCommitted { plan } => self.plan(plan),
            Event::StageStarted { lease } => {
                if let Some(key) = self.holds.get(lease).map(|hold| hold.stage)
                    && let Some(stage) = self.stage_mut(key)
                {
                    stage.refusals = 0;
                }
            }
            Event::Progressed { lease, progress } => {
                if let (Some(hold), Some(step)) = (self.holds.get(lease), progress.step)
                    && let Some(stage) = self.stage_mut(hold.stage)
                {
                    stage.trail.reported(step);
                }
            }
            Event::CheckpointRejected { stage, checkpoint } => self.rejected(*stage, checkpoint),
            Event::RetryDue { stage } => self.retry_due(*stage),
            Event::PolicyRemembered { .. } | Event::ChangeRequested { .. } => {}
            Event::PreparationEnded { lease, end } => self.preparation_ended(*lease, end),
            Event::StagePublished { lease } => self.published(*lease),
            Event::Checkpointed { lease, checkpoint } => self.checkpointed(*lease, checkpoint),
            Event::StageEnded { lease, outcome } => self.ended(*lease, outcome),
            Event::NodesJoined { .. }
            | Event::NodeRemoved { .. }
            | Event::CapacityTaken { .. }
            | Event::HostTaken { .. }
            | Event::NodeLost { .. }
            | Event::NodeReturned { .. }
            | Event::NodeSuspected { .. }
            | Event::NodeCleared { .. }
            | Event::DeviceFailed { .. }
            | Event::DeviceRepaired { .. }
            | Event::DeviceDrained { .. }
            | Event::DeviceUndrained { .. }
            | Event::DeviceOccupied { .. }
            | Event::DeviceVacated { .. } => self.service(event),
            // How fast devices are is no law.
            Event::DeviceDegraded { .. } | Event::DeviceRestored { .. } => {}
        }
        self.forget_dead_claims();
        // Who could not start meanwhile waits anew.
        let jobs = &self.jobs;
        let may_start = |key: &StageKey| jobs.get(&key.job).is_some_and(|job| job.may_start(*key));
        self.idle_before.retain(may_start);
    }

    fn submitted(
        &mut self,
        job: JobId,
        spec: &Arc<JobSpec>,
        succeeded: &[StageIndex],
        checkpoints: &[(StageIndex, Checkpoint)],
    ) {
        let mut stages = vec![ShadowStage::default(); spec.stages.len()];
        succeeded.iter().for_each(|i| stages[i.index()].status = Status::Succeeded);
        for (index, checkpoint) in checkpoints {
            stages[index.index()].trail.completed(checkpoint);
        }
        let (spec, eligible) = (Arc::clone(spec), spec.start.is_empty());
        let shadow = Shadow { spec, held: false, eligible, ending: false, stages };
        if self.jobs.insert(job, shadow).is_some() {
            self.blame(3, format!("job {job} was accepted twice"));
        }
        self.follow_course(job);
    }

    fn with_job(&mut self, id: JobId, change: impl FnOnce(&mut Shadow)) {
        if let Some(job) = self.jobs.get_mut(&id) {
            change(job);
        }
    }

    /// Nothing of a job that can still change may be forgotten.
    fn retired(&mut self, id: JobId) {
        let lives = |stage: &ShadowStage| matches!(stage.status, Status::Idle | Status::Active(_));
        match self.jobs.remove(&id) {
            Some(job) if !job.stages.iter().any(lives) => {}
            Some(_) => self.blame(3, format!("job {id} was forgotten before it had ended")),
            None => self.blame(3, format!("job {id} was forgotten, but was never there")),
        }
    }

    fn forget_dead_claims(&mut self) {
        let moving = |hold: &&Hold| hold.stopping.is_some_and(StopCause::moves);
        let moving = self.holds.values().filter(moving).map(|hold| hold.stage);
        let alive: BTreeSet<StageKey> = self.waiting().chain(moving).collect();
        self.claims.retain(|key, _| alive.contains(key));
    }

    /// Stages that could start as far as their job goes.
    fn waiting(&self) -> impl Iterator<Item = StageKey> + '_ {
        self.jobs.iter().flat_map(|(&id, job)| {
            let keys = job.spec.stage_indices().map(move |stage| StageKey { job: id, stage });
            keys.filter(|key| job.may_start(*key))
        })
    }

    fn plan(&mut self, plan: &Plan) {
        if plan.generation.0 <= self.generation {
            self.blame(5, format!("generation {} is not new", plan.generation));
        }
        self.generation = plan.generation.0;
        for action in &plan.actions {
            match action {
                Action::Start { lease, stage, attempt, placement, resume, .. } => {
                    self.start(*lease, *stage, *attempt, placement, resume.as_ref());
                }
                Action::Stop { .. } => self.stop(action),
                Action::Claim { stage, placement, .. } => {
                    self.whole_request(*stage, placement);
                    self.claims.insert(*stage, Arc::clone(placement));
                    self.no_device_claimed_twice();
                }
                Action::Prepare { lease, stage, .. } => self.prepare(*lease, *stage),
                Action::Unprepare { stage, lease } => self.unprepare(*lease, *stage),
                Action::Unclaim { stage } => {
                    self.claims.remove(stage);
                    // What a plan gives up the next round can hand out, no round before.
                    self.idle_before.clear();
                }
            }
        }
        for (key, reasons) in &plan.waits {
            if reasons.is_empty() {
                self.blame(9, format!("stage {key} waits without a reason"));
            }
            if let Some(stage) = self.stage_mut(*key) {
                stage.reasons.clone_from(reasons);
            }
        }
    }

    fn stage_mut(&mut self, key: StageKey) -> Option<&mut ShadowStage> {
        self.jobs.get_mut(&key.job)?.stages.get_mut(key.stage.index())
    }

    fn start(
        &mut self,
        lease: LeaseId,
        key: StageKey,
        attempt: u32,
        placement: &Arc<Placement>,
        resume: Option<&Checkpoint>,
    ) {
        // It goes on with what was begun for it, or is new.
        if self.prepared.remove(&key) != Some(lease) {
            self.draw(lease);
        }
        if !self.jobs.get(&key.job).is_some_and(|job| job.may_start(key)) {
            self.blame(4, format!("stage {key} was started but may not start"));
        }
        self.whole_request(key, placement);
        self.claims.remove(&key);
        let Some(stage) = self.stage_mut(key) else { return };
        let (attempts, newest) = (stage.attempts, stage.trail.saved.last().cloned());
        stage.trail.begins();
        stage.attempts = attempt;
        stage.status = Status::Active(lease);
        stage.reasons.clear();
        if attempt <= attempts {
            self.blame(4, format!("attempt {attempt} of {key} does not grow"));
        }
        if resume != newest.as_ref() {
            self.blame(8, format!("{key} resumes from {resume:?}, newest is {newest:?}"));
        }
        let placement = Arc::clone(placement);
        let hold =
            Hold { stage: key, placement: placement.clone(), since: self.now, stopping: None };
        self.holds.insert(lease, hold);
        self.follow_course(key.job);
        self.nothing_taken_is_promised(key, &placement);
        self.nothing_promised_twice(key);
        self.nobody_over_limit(key);
        self.lends_nothing_for_good(key, &placement);
    }

    fn quotas(&mut self, quotas: &Quotas) {
        self.quotas.clear();
        for (tenant, quota) in &quotas.tenants {
            for (class, of) in &quota.classes {
                let key = (tenant.to_string(), class.to_string());
                let units = |share: Option<het_core::Share>| share.map(|share| u64::from(share.0));
                self.quotas.insert(key, (units(of.entitled), units(of.limit)));
            }
        }
    }

    /// What the jobs of a tenant, and of its parts, hold of a class.
    fn held_by(&self, tenant: &str, class: &str) -> u64 {
        let of_tenant = |hold: &&Hold| {
            let owner = self.jobs.get(&hold.stage.job).map(|job| job.spec.tenant.to_string());
            owner.is_some_and(|owner| owner == tenant || owner.starts_with(&format!("{tenant}/")))
        };
        let grants = self.holds.values().filter(of_tenant).flat_map(|hold| hold.placement.grants());
        let of_class = grants.filter(|grant| self.topology.class_of(grant.device).id == *class);
        of_class.map(|grant| u64::from(grant.share.0)).sum()
    }

    /// Law 6, first half, after a start.
    fn nobody_over_limit(&mut self, newest: StageKey) {
        let Some(job) = self.jobs.get(&newest.job) else { return };
        let owner = job.spec.tenant.to_string();
        let over: Vec<String> = self
            .quotas
            .iter()
            .filter(|((tenant, _), _)| owner == *tenant || owner.starts_with(&format!("{tenant}/")))
            .filter(|((tenant, class), (_, limit))| {
                limit.is_some_and(|limit| self.held_by(tenant, class) > limit)
            })
            .map(|((tenant, class), _)| format!("{tenant} holds too much of {class}"))
            .collect();
        over.into_iter().for_each(|what| self.blame(6, what));
    }

    /// Law 6, second half: only what is borrowed goes back, and only to whoever has a quota of it.
    fn reclaimed(&mut self, lease: LeaseId, preemptor: StageKey) {
        let owner = |key: StageKey| {
            self.jobs.get(&key.job).map(|job| job.spec.tenant.to_string()).unwrap_or_default()
        };
        let Some(hold) = self.holds.get(&lease) else { return };
        let (theirs, ours) = (owner(hold.stage), owner(preemptor));
        let just = hold.placement.grants().any(|grant| {
            let class = self.topology.class_of(grant.device).id.to_string();
            let wanted = self.nearest_quota(&ours, &class).is_some();
            let borrowed = self.nearest_quota(&theirs, &class).is_none_or(|(name, own)| {
                let inside = ours == name || ours.starts_with(&format!("{name}/"));
                inside || self.held_by(&name, &class) > own
            });
            wanted && borrowed
        });
        if !just {
            self.blame(6, format!("lease {lease} is reclaimed but borrows nothing"));
        }
    }

    /// Whose quota of a class an owner draws on, and how much that is. The longest name with one is
    /// the nearest.
    fn nearest_quota(&self, owner: &str, class: &str) -> Option<(String, u64)> {
        let covers = |name: &str| owner == name || owner.starts_with(&format!("{name}/"));
        let rows = self.quotas.iter().filter(|((name, id), _)| id == class && covers(name));
        let rows = rows.filter_map(|((name, _), (own, _))| Some((name.clone(), (*own)?)));
        rows.max_by_key(|(name, _)| name.len())
    }

    /// Law 1, over everything that is held now, with claims of others on top where they fit.
    fn nothing_promised_twice(&mut self, newest: StageKey) {
        let mut shares = vec![0_u64; self.topology.devices.len()];
        let mut host = vec![[0_u64; 4]; self.topology.nodes.len()];
        let held = self.holds.values().map(|hold| &hold.placement);
        for rank in held.flat_map(|placement| &placement.ranks) {
            for grant in rank.grants.iter().chain(&rank.companions) {
                shares[grant.device.index()] += u64::from(grant.share.0);
            }
            let sums = host[rank.node.index()].iter_mut();
            sums.zip(amounts(rank.host)).for_each(|(sum, amount)| *sum += amount);
        }
        for (index, &share) in shares.iter().enumerate() {
            let capacity = u64::from(self.topology.devices[index].capacity.0);
            if share > capacity {
                self.blame(1, format!("device {index} is promised {share} of {capacity}"));
            }
        }
        for (index, sums) in host.iter().enumerate() {
            let all = amounts(self.topology.nodes[index].host);
            if sums.iter().zip(all).any(|(sum, all)| *sum > all) {
                self.blame(1, format!("what node {index} has is promised twice"));
            }
        }
        self.no_claim_grabbed(newest, &shares);
    }

    /// A start may not take what somebody else claimed.
    fn no_claim_grabbed(&mut self, newest: StageKey, shares: &[u64]) {
        let Some(hold) = self.holds.values().find(|hold| hold.stage == newest) else { return };
        let devices: BTreeSet<DeviceId> = hold.placement.grants().map(|g| g.device).collect();
        let mut grabbed = Vec::new();
        for device in devices {
            let claims = self.claims.values().flat_map(|placement| placement.grants());
            let claimed: u64 =
                claims.filter(|g| g.device == device).map(|g| u64::from(g.share.0)).sum();
            let capacity = u64::from(self.topology.device(device).capacity.0);
            if claimed > 0 && shares[device.index()] + claimed > capacity {
                grabbed.push(device);
            }
        }
        for device in grabbed {
            self.blame(2, format!("{newest} grabs device {device}, which is claimed"));
        }
    }

    fn no_device_claimed_twice(&mut self) {
        let mut claimed: BTreeMap<DeviceId, u64> = BTreeMap::new();
        for grant in self.claims.values().flat_map(|placement| placement.grants()) {
            *claimed.entry(grant.device).or_default() += u64::from(grant.share.0);
        }
        for (device, share) in claimed {
            if share > u64::from(self.topology.device(device).capacity.0) {
                self.blame(2, format!("device {device} is claimed twice"));
            }
        }
    }

    /// Law 2: all ranks with all their devices, on devices that are up, inside the domain.
    fn whole_request(&mut self, key: StageKey, placement: &Placement) {
        let Some(job) = self.jobs.get(&key.job) else { return };
        let spec = job.spec.stage(key.stage).clone();
        let Some(alternative) = spec.alternatives.get(placement.alternative) else {
            return self.blame(2, format!("{key} has no such alternative"));
        };
        let share: u64 = placement.devices().map(|grant| u64::from(grant.share.0)).sum();
        if share != u64::from(alternative.count) * 10_000 {
            self.blame(2, format!("{key} gets {share} instead of {} units", alternative.count));
        }
        for rank in &placement.ranks {
            let cores: u64 = rank.companions.iter().map(|grant| u64::from(grant.share.0)).sum();
            if cores != u64::from(spec.companions.cores) * 10_000
                || rank.host != spec.companions.host
            {
                self.blame(2, format!("a rank of {key} lacks its companions"));
            }
            let units: u64 = rank.grants.iter().map(|grant| u64::from(grant.share.0)).sum();
            if let RankRule::PerUnits(each) = spec.ranks
                && units != u64::from(each.get()) * 10_000
            {
                self.blame(2, format!("a rank of {key} gets {units} instead of {each} units"));
            }
            for grant in rank.grants.iter().chain(&rank.companions) {
                let node = self.topology.device(grant.device).node;
                if node != rank.node {
                    self.blame(2, format!("a rank of {key} holds a device of another node"));
                }
                if self.is_down(grant.device) {
                    self.blame(2, format!("{key} is given device {}, which is down", grant.device));
                }
            }
        }
        let nodes = placement.ranks.iter().map(|rank| self.topology.node(rank.node));
        let domains: BTreeSet<_> = match spec.within {
            Domain::Any => BTreeSet::new(),
            Domain::Node => nodes.map(|node| node.name.clone()).collect(),
            Domain::Rack => nodes.map(|node| node.rack.clone()).collect(),
            Domain::Pod => nodes.map(|node| node.pod.clone()).collect(),
        };
        if domains.len() > 1 {
            self.blame(2, format!("{key} leaves its domain"));
        }
    }

    fn stop(&mut self, action: &Action) {
        let Action::Stop { lease, cause, cost, .. } = action else { return };
        let Some(hold) = self.holds.get_mut(lease) else {
            return self.blame(5, format!("lease {lease} is stopped but does not run"));
        };
        let twice = hold.stopping.replace(*cause).is_some();
        let (victim, since) = (hold.stage, hold.since);
        if twice {
            self.blame(7, format!("{victim} is stopped twice"));
        }
        let pays = cost.is_some_and(|cost| cost.gain > cost.cost);
        let cause = match *cause {
            // A part of it is preempted, or goes back whatever that costs.
            StopCause::Shrink { preemptor } if pays && self.is_above(preemptor, victim) => {
                StopCause::Priority { preemptor }
            }
            StopCause::Shrink { preemptor } => StopCause::Reclaim { preemptor },
            other => other,
        };
        self.left_alone(victim, since, cause);
        if let StopCause::Reclaim { preemptor } = cause {
            self.reclaimed(*lease, preemptor);
        }
        if cause == StopCause::Quantum && self.now.since(since) < self.quantum {
            self.blame(7, format!("{victim} is suspended for an equal within its quantum"));
        }
        let StopCause::Priority { preemptor } = cause else { return };
        if self.strictness == Strictness::EveryPolicy {
            return;
        }
        if !self.is_above(preemptor, victim) {
            self.blame(7, format!("{victim} is preempted for {preemptor}, which is not above it"));
        }
        match cost {
            Some(cost) if cost.gain > cost.cost => {}
            Some(_) if self.asked_to_yield.contains(lease) => {}
            _ => self.blame(7, format!("the preemption of {victim} does not pay or is not priced")),
        }
        if self.stage_mut(victim).is_some_and(|stage| stage.preemptions >= PREEMPTIONS_MAX) {
            self.blame(7, format!("{victim} is preempted too often"));
        }
        // The first room is none any more where a device of it went out of service, or others use
        // some that nobody can name.
        let lost = |device| self.is_down(device) || self.is_used_by_others(device);
        let stands = |claim: &Arc<Placement>| !claim.grants().any(|grant| lost(grant.device));
        let has_room = self.claims.get(&preemptor).is_some_and(stands);
        let again = self.holds.iter().any(|(other, hold)| {
            let same = hold.stopping.and_then(StopCause::preemptor) == Some(preemptor);
            other != lease && same && has_room
        });
        if again {
            self.blame(7, format!("a second look preempts again for {preemptor}"));
        }
    }

    fn is_above(&self, one: StageKey, other: StageKey) -> bool {
        let priority = |key: StageKey| self.jobs.get(&key.job).map(|job| job.spec.priority);
        priority(one) > priority(other)
    }

    /// Law 7: nobody is stopped for others that is not preemptible, or before its time. What was
    /// borrowed goes back at any time.
    fn left_alone(&mut self, victim: StageKey, since: Time, cause: StopCause) {
        let Some(job) = self.jobs.get(&victim.job) else { return };
        let ran = self.now.since(since);
        let just = match (job.spec.stage(victim.stage).preemptible, cause) {
            (
                Preemptible::Never,
                StopCause::Priority { .. }
                | StopCause::Reclaim { .. }
                | StopCause::Quantum
                | StopCause::Migration,
            ) => false,
            (
                Preemptible::After(span),
                StopCause::Priority { .. } | StopCause::Quantum | StopCause::Migration,
            ) => ran >= span,
            _ => true,
        };
        if !just {
            self.blame(7, format!("{victim} is stopped for others after {} ms", ran.0));
        }
    }

    /// Law 6: what cannot be taken back is not lent. All that is not preemptible and draws on one
    /// quota stays within it.
    fn lends_nothing_for_good(&mut self, newest: StageKey, placement: &Placement) {
        let Some(owner) = self.owner_for_good(newest) else { return };
        let borrowed = placement.grants().any(|grant| {
            let class = self.topology.class_of(grant.device).id.to_string();
            let shared =
                self.quotas.iter().any(|((_, id), (own, _))| *id == class && own.is_some());
            let Some((name, own)) = self.nearest_quota(&owner, &class) else { return shared };
            let draws_on_it = |hold: &&Hold| {
                let theirs = self.owner_for_good(hold.stage);
                let theirs = theirs.and_then(|owner| self.nearest_quota(&owner, &class));
                theirs.is_some_and(|(other, _)| other == name)
            };
            let grants = self.holds.values().filter(draws_on_it);
            let grants = grants.flat_map(|hold| hold.placement.grants());
            let of_class = grants.filter(|grant| self.topology.class_of(grant.device).id == *class);
            of_class.map(|grant| u64::from(grant.share.0)).sum::<u64>() > own
        });
        if borrowed {
            self.blame(6, format!("{newest} is not preemptible and borrows"));
        }
    }

    /// Whose stage it is, if it is not preemptible.
    fn owner_for_good(&self, key: StageKey) -> Option<String> {
        let job = self.jobs.get(&key.job)?;
        let never = job.spec.stage(key.stage).preemptible == Preemptible::Never;
        never.then(|| job.spec.tenant.to_string())
    }

    fn checkpointed(&mut self, lease: LeaseId, checkpoint: &Checkpoint) {
        let Some(key) = self.holds.get(&lease).map(|hold| hold.stage) else { return };
        if let Some(stage) = self.stage_mut(key) {
            stage.trail.completed(checkpoint);
        }
    }

    fn published(&mut self, lease: LeaseId) {
        let Some(key) = self.holds.get(&lease).map(|hold| hold.stage) else { return };
        if let Some(stage) = self.stage_mut(key) {
            stage.published = true;
        }
    }

    fn ended(&mut self, lease: LeaseId, outcome: &Outcome) {
        let Some(hold) = self.holds.remove(&lease) else { return };
        let span = self.now.0 - hold.since.0;
        let mut total = 0;
        for grant in hold.placement.grants() {
            self.charged[grant.device.index()] += u64::from(grant.share.0) * span;
            total += u64::from(grant.share.0) * span;
        }
        if matches!(outcome, Outcome::Failed(failure) if failure.cause == FailureCause::Stalled) {
            let devices: BTreeSet<DeviceId> =
                hold.placement.devices().map(|grant| grant.device).collect();
            devices.into_iter().for_each(|device| *self.hangs.entry(device).or_default() += 1);
        }
        let key = hold.stage;
        let now = self.now;
        let outcome = &self.by_evidence(&hold.placement, outcome);
        let Some(job) = self.jobs.get_mut(&key.job) else { return };
        let spec = job.spec.stage(key.stage);
        let allowed = (spec.retries, spec.restarts);
        let ending = job.ending;
        let stage = &mut job.stages[key.stage.index()];
        stage.charged += total;
        stage.status = match (outcome, hold.stopping) {
            (Outcome::Finished, _) => Status::Succeeded,
            (_, Some(StopCause::TimeLimit)) => Status::Failed,
            _ if ending => Status::Cancelled,
            (Outcome::Failed(failure), None) => match stage.fails(failure, allowed, now) {
                Verdict::Again => Status::Idle,
                Verdict::Over => Status::Failed,
                Verdict::GivenUp => {
                    job.held = true;
                    Status::Idle
                }
            },
            (Outcome::Refused { .. }, None) => {
                stage.refused(now);
                Status::Idle
            }
            _ => Status::Idle,
        };
        let preempted = matches!(hold.stopping, Some(StopCause::Priority { .. }));
        if preempted && stage.status == Status::Idle && *outcome != Outcome::Lost {
            stage.preemptions += 1;
        }
        if stage.status == Status::Failed {
            job.end_what_is_idle();
        }
        self.follow_course(key.job);
    }

    /// A program fails of its device where that is down, whatever it says itself.
    fn by_evidence(&self, placement: &Placement, outcome: &Outcome) -> Outcome {
        let failed = placement.grants().any(|grant| self.failed_devices.contains(&grant.device))
            || placement.ranks.iter().any(|rank| self.lost_nodes.contains(&rank.node));
        match outcome {
            Outcome::Failed(failure) if failure.cause == FailureCause::Program && failed => {
                Outcome::Failed(Failure { cause: FailureCause::Device, ..failure.clone() })
            }
            other => other.clone(),
        }
    }

    /// Compares with the real state: laws 3, 4, 11 and 13. Call after every event.
    pub fn compare(&mut self, state: &State) {
        self.take_in_nodes(state);
        for device in self.topology.clone().device_ids() {
            let ours: u64 = self
                .holds
                .values()
                .flat_map(|hold| hold.placement.grants())
                .filter(|grant| grant.device == device)
                .map(|grant| u64::from(grant.share.0))
                .sum();
            if ours != u64::from(state.held(device).0) {
                self.blame(13, format!("the state holds device {device} otherwise"));
            }
            if self.charged[device.index()] != state.device_charged(device).0 {
                self.blame(11, format!("device {device} is charged otherwise than it was held"));
            }
        }
        let mut wrong = Vec::new();
        for (id, shadow) in &self.jobs {
            let Some(job) = state.job(*id) else {
                wrong.push((3, format!("job {id} is lost")));
                continue;
            };
            for (index, ours) in shadow.stages.iter().enumerate() {
                let theirs = &job.stages[index];
                if !ours.status.agrees(&theirs.state) {
                    wrong.push((4, format!("{id}.{index} is {:?}, not {ours:?}", theirs.state)));
                }
                if ours.charged != theirs.charged.0 {
                    wrong.push((11, format!("{id}.{index} is charged otherwise than it held")));
                }
            }
        }
        wrong.into_iter().for_each(|(law, what)| self.blame(law, what));
    }

    /// Law 10, at the end of a finite scenario with all nodes back: everything has ended.
    pub fn all_ended(&mut self) {
        let open: Vec<String> = self
            .jobs
            .iter()
            .flat_map(|(id, job)| job.stages.iter().map(move |stage| (id, stage)))
            .filter(|(_, stage)| matches!(stage.status, Status::Idle | Status::Active(_)))
            .map(|(id, stage)| format!("job {id} never ended: {:?}", stage.reasons))
            .collect();
        open.into_iter().for_each(|what| self.blame(10, what));
    }
}

impl Status {
    fn agrees(self, state: &StageState) -> bool {
        match state {
            StageState::Queued { .. } | StageState::Stopped { .. } => self == Self::Idle,
            StageState::Active { lease } => self == Self::Active(*lease),
            StageState::Succeeded => self == Self::Succeeded,
            StageState::Failed(_) => self == Self::Failed,
            StageState::Cancelled => self == Self::Cancelled,
        }
    }
}

impl Shadow {
    fn may_start(&self, key: StageKey) -> bool {
        let stage = &self.stages[key.stage.index()];
        let spec = self.spec.stage(key.stage);
        let of = |dep: &StageIndex| &self.stages[dep.index()];
        let streams = |dep: &ShadowStage| match dep.status {
            Status::Active(_) => dep.published,
            status => status == Status::Succeeded,
        };
        stage.status == Status::Idle
            && stage.trail.is_ready()
            && !self.held
            && self.eligible
            && !self.ending
            && spec.after.iter().all(|dep| of(dep).status == Status::Succeeded)
            && spec.follows.iter().all(|dep| streams(of(dep)))
    }

    fn end_what_is_idle(&mut self) {
        if self.ending || self.stages.iter().all(|stage| stage.is_over()) {
            return;
        }
        self.ending = true;
        for stage in self.stages.iter_mut().filter(|stage| stage.status == Status::Idle) {
            stage.status = Status::Cancelled;
        }
    }
}

impl ShadowStage {
    fn is_over(&self) -> bool {
        matches!(self.status, Status::Succeeded | Status::Failed | Status::Cancelled)
    }
}
