//! The last look at a plan before it is committed: would it break a law?

use std::collections::{BTreeMap, BTreeSet};

use het_core::{
    Action, Checkpoint, DeviceId, Domain, Finding, HostResources, Lease, LeaseId, Name, NodeId,
    Placement, Plan, Preemptible, Share, StageKey, StageSpec, State, StopCause, StopCost, Time,
    lineage,
};

/// Every law that the plan would break at `now`, in the order of its actions.
pub fn check(state: &State, plan: &Plan, now: Time) -> Vec<Finding> {
    if plan.actions.is_empty() {
        return Vec::new();
    }
    let mut checker = Checker::new(state, now);
    for action in &plan.actions {
        match action {
            Action::Start { lease, stage, placement, resume, .. } => {
                checker.start(*lease, *stage, placement);
                checker.newest(*stage, resume.as_ref());
            }
            Action::Stop { lease, cause, cost, .. } => checker.stop(*lease, *cause, *cost),
            Action::Claim { stage, placement, .. } => checker.claim(*stage, placement),
            Action::Unclaim { stage } => {
                checker.claims.remove(stage);
            }
            Action::Prepare { lease, stage, placement, resume, .. } => {
                checker.prepare(*lease, *stage, placement);
                checker.newest(*stage, resume.as_ref());
            }
            Action::Unprepare { stage, .. } => {
                checker.prepared.remove(stage);
            }
        }
    }
    checker.findings
}

struct Checker<'a> {
    state: &'a State,
    now: Time,
    held: Vec<Share>,
    host_free: Vec<HostResources>,
    claims: BTreeMap<StageKey, Placement>,
    /// What is begun for whom, as far as the plan has not given it up.
    prepared: BTreeMap<StageKey, LeaseId>,
    started: BTreeSet<StageKey>,
    /// Stopped to go on elsewhere.
    leaving: BTreeSet<StageKey>,
    /// What the starts of this plan add, by tenant and class.
    added: BTreeMap<Name, BTreeMap<usize, Share>>,
    next_lease: LeaseId,
    findings: Vec<Finding>,
}

impl<'a> Checker<'a> {
    fn new(state: &'a State, now: Time) -> Self {
        let topology = state.topology();
        let claims = state.claims().iter().map(|(key, claim)| (*key, (*claim.placement).clone()));
        Self {
            state,
            now,
            held: state.held_shares().to_vec(),
            host_free: topology.node_ids().map(|id| state.host_free(id)).collect(),
            claims: claims.collect(),
            prepared: state.preparations().map(|(key, it)| (key, it.lease)).collect(),
            started: BTreeSet::new(),
            leaving: BTreeSet::new(),
            added: BTreeMap::new(),
            next_lease: state.next_lease(),
            findings: Vec::new(),
        }
    }

    fn start(&mut self, lease: LeaseId, key: StageKey, placement: &Placement) {
        if self.prepared.remove(&key) != Some(lease) {
            self.draw(lease);
        } else if !self.goes_on(key, placement) {
            self.findings.push(Finding::StaleLease { lease });
        }
        if !self.state.is_waiting(key) || !self.started.insert(key) {
            self.findings.push(Finding::NotReady { stage: key });
            return;
        }
        self.shape(key, placement);
        self.limits(key, placement);
        self.claims.remove(&key);
        let reserved = self.reserved(placement);
        for grant in placement.grants() {
            self.held[grant.device.index()] += grant.share;
            let capacity = self.room(grant.device);
            let promised = self.held[grant.device.index()]
                + reserved.get(&grant.device).copied().unwrap_or_default();
            if promised > capacity {
                let finding = Finding::DeviceOverbooked { device: grant.device, stage: key };
                self.findings.push(finding);
            }
        }
        for rank in &placement.ranks {
            let free = &mut self.host_free[rank.node.index()];
            if !rank.host.fits(*free) {
                self.findings.push(Finding::HostOverbooked { node: rank.node, stage: key });
            }
            *free = free.minus(rank.host);
        }
    }

    /// A lease that nobody has had.
    fn draw(&mut self, lease: LeaseId) {
        if lease != self.next_lease {
            self.findings.push(Finding::StaleLease { lease });
        }
        self.next_lease = LeaseId(lease.0 + 1);
    }

    /// Whether a start at a placement can go on with what is begun for its stage.
    fn goes_on(&self, key: StageKey, placement: &Placement) -> bool {
        let (_, spec, stage) = self.state.stage(key);
        let preparation = self.state.preparation(key);
        preparation.is_some_and(|it| it.serves(spec, placement, stage.checkpoint.as_ref()))
    }

    fn newest(&mut self, key: StageKey, resume: Option<&Checkpoint>) {
        if self.state.stage(key).2.checkpoint.as_ref() != resume {
            self.findings.push(Finding::WrongCheckpoint { stage: key });
        }
    }

    /// One that waits, on one node. It is given nothing.
    fn prepare(&mut self, lease: LeaseId, key: StageKey, placement: &Placement) {
        self.draw(lease);
        let waits = self.state.is_waiting(key) && !self.started.contains(&key);
        if !waits || self.prepared.insert(key, lease).is_some() {
            self.findings.push(Finding::NotReady { stage: key });
        }
        let node = placement.ranks.first().map(|rank| rank.node);
        let is_on_one = placement.ranks.iter().all(|rank| Some(rank.node) == node);
        if node.is_none() || !is_on_one {
            self.findings.push(Finding::GangIncomplete { stage: key });
        }
    }

    /// What may be promised of a device: of one that is down, which is a finding of its own, all.
    fn room(&self, device: DeviceId) -> Share {
        match self.state.sound_share(device) {
            Share::ZERO => self.state.topology().device(device).capacity,
            share => share,
        }
    }

    /// Nobody in the line of tenants above the job goes beyond a limit.
    fn limits(&mut self, key: StageKey, placement: &Placement) {
        let (quotas, topology) = (self.state.quotas(), self.state.topology());
        if quotas.is_empty() {
            return;
        }
        for name in lineage(self.state.stage(key).0.spec.tenant.as_str()) {
            let added = self.added.entry(name.into()).or_default();
            for grant in placement.grants() {
                *added.entry(topology.device(grant.device).class).or_default() += grant.share;
            }
            let exceeds = |(&class, &more): (&usize, &Share)| {
                let held = self.state.used(name).map_or(Share::ZERO, |used| used[class]);
                let limit = quotas.of(name, topology.classes[class].id.as_str()).limit;
                limit.is_some_and(|limit| held + more > limit)
            };
            if added.iter().any(exceeds) {
                self.findings.push(Finding::LimitExceeded { tenant: name.into(), stage: key });
            }
        }
    }

    /// What claims of others keep on the devices of a placement. A claim on a device whose holder
    /// still runs reserves what comes free, so only claims that fit beside the holders count.
    fn reserved(&self, placement: &Placement) -> BTreeMap<DeviceId, Share> {
        let devices: BTreeSet<DeviceId> = placement.grants().map(|grant| grant.device).collect();
        let mut reserved: BTreeMap<DeviceId, Share> = BTreeMap::new();
        for grant in self.claims.values().flat_map(Placement::grants) {
            if devices.contains(&grant.device) {
                *reserved.entry(grant.device).or_default() += grant.share;
            }
        }
        reserved
    }

    fn claim(&mut self, key: StageKey, placement: &Placement) {
        let leaves = self.leaving.contains(&key) || self.state.is_moving(key);
        if !(self.state.is_waiting(key) || leaves) || self.started.contains(&key) {
            self.findings.push(Finding::NotReady { stage: key });
            return;
        }
        self.shape(key, placement);
        self.claims.insert(key, placement.clone());
        for (device, share) in self.reserved(placement) {
            if share > self.state.topology().device(device).capacity {
                self.findings.push(Finding::DeviceOverbooked { device, stage: key });
            }
        }
    }

    /// The whole request on devices that it accepts and that are up, inside its domain.
    fn shape(&mut self, key: StageKey, placement: &Placement) {
        let (_, spec, _) = self.state.stage(key);
        let Some(alternative) = spec.alternatives.get(placement.alternative) else {
            self.findings.push(Finding::GangIncomplete { stage: key });
            return;
        };
        let whole = |rank: &het_core::Rank| {
            let cores: u32 = rank.companions.iter().map(|grant| grant.share.whole_units()).sum();
            cores == spec.companions.cores && rank.host == spec.companions.host
        };
        if placement.units() != alternative.count || !placement.ranks.iter().all(whole) {
            self.findings.push(Finding::GangIncomplete { stage: key });
        }
        for grant in placement.devices() {
            if !alternative.selector.accepts(self.state.topology(), grant.device) {
                self.findings.push(Finding::WrongDevice { device: grant.device, stage: key });
            }
            if !self.state.is_up(grant.device) && !self.state.is_only_suspected(grant.device) {
                self.findings.push(Finding::DeviceDown { device: grant.device, stage: key });
            }
        }
        if domains(self.state, spec, placement) > 1 {
            self.findings.push(Finding::DomainLeft { stage: key });
        }
    }

    /// Whether a lease holds a class beyond the quota that it draws on, or without any while others
    /// have some, or one that the preemptor draws on too.
    fn borrows(&self, lease: &Lease, preemptor: StageKey) -> bool {
        let (quotas, topology) = (self.state.quotas(), self.state.topology());
        let tenant = |key: StageKey| self.state.stage(key).0.spec.tenant.clone();
        let (theirs, ours) = (tenant(lease.stage), tenant(preemptor));
        lease.placement.grants().any(|grant| {
            let class = topology.device(grant.device).class;
            let entitled =
                |name: &str| quotas.of(name, topology.classes[class].id.as_str()).entitled;
            let drawn_on = |tenant: &Name| {
                let mut line = lineage(tenant.as_str()).rev();
                line.find_map(|name| entitled(name).map(|own| (Name::from(name), own)))
            };
            let own = drawn_on(&ours);
            match drawn_on(&theirs) {
                None => own.is_some(),
                Some((name, share)) => {
                    let common = lineage(ours.as_str()).any(|above| *above == *name.as_str());
                    let used = self.state.used(name.as_str());
                    common || used.is_some_and(|used| used[class] > share)
                }
            }
        })
    }

    fn stop(&mut self, id: LeaseId, cause: StopCause, cost: Option<StopCost>) {
        let Some(lease) = self.state.leases().get(&id) else {
            self.findings.push(Finding::NothingToStop { lease: id });
            return;
        };
        if lease.phase.is_stopping() {
            self.findings.push(Finding::NothingToStop { lease: id });
        }
        if cause.moves() {
            self.leaving.insert(lease.stage);
        }
        let (_, spec, _) = self.state.stage(lease.stage);
        let cause = match cause {
            // A part of it is preempted, or goes back.
            StopCause::Shrink { preemptor } if self.preempts(id, lease, preemptor, cost) => {
                StopCause::Priority { preemptor }
            }
            StopCause::Shrink { preemptor } => StopCause::Reclaim { preemptor },
            other => other,
        };
        let is_for_others = match cause {
            StopCause::Priority { .. } | StopCause::Quantum | StopCause::Migration => true,
            // What was borrowed goes back at any time, and who never borrows has nothing to give.
            StopCause::Reclaim { .. } => spec.preemptible == Preemptible::Never,
            _ => false,
        };
        if is_for_others && !spec.preemptible.allows(lease.since, self.now) {
            self.findings.push(Finding::NotPreemptible { lease: id });
        }
        match cause {
            StopCause::Reclaim { preemptor } if !self.borrows(lease, preemptor) => {
                self.findings.push(Finding::UnjustReclaim { lease: id });
            }
            StopCause::Priority { preemptor } if !self.preempts(id, lease, preemptor, cost) => {
                self.findings.push(Finding::UnjustPreemption { lease: id });
            }
            _ => {}
        }
    }

    /// Whether a stop is a preemption that pays or was asked for.
    fn preempts(
        &self,
        id: LeaseId,
        lease: &Lease,
        preemptor: StageKey,
        cost: Option<StopCost>,
    ) -> bool {
        let asked = self.state.yielding().any(|row| row == (id, preemptor));
        let accounted = cost.is_some_and(|cost| asked || cost.gain > cost.cost);
        let theirs = self.state.stage(lease.stage).0.priority();
        accounted && self.state.stage(preemptor).0.priority() > theirs
    }
}

/// Distinct domains of the requested kind that a placement touches.
fn domains(state: &State, spec: &StageSpec, placement: &Placement) -> usize {
    let topology = state.topology();
    let name = |node: NodeId| -> Name {
        match spec.within {
            Domain::Node => node.to_string().into(),
            Domain::Rack => topology.node(node).rack.clone(),
            Domain::Pod => topology.node(node).pod.clone(),
            Domain::Any => Name::default(),
        }
    };
    placement.ranks.iter().map(|rank| name(rank.node)).collect::<BTreeSet<_>>().len()
}
