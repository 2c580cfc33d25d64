//! What tenants hold, and what they may still have where quotas are set.
//!
//! - A tenant that stays within its quota has what is its own: it goes first, nobody of a higher
//!   priority elsewhere stops it, and what others borrowed of it comes back (`preemption`).
//! - What is left goes to whoever has least of it by weight (Ghodsi et al., NSDI 2011, "Dominant
//!   Resource Fairness"), at every level of the tree of tenants, inside a priority.
//! - Nobody goes beyond a limit.

use std::collections::BTreeMap;

use het_core::{Lease, Name, Placement, Preemptible, Quotas, Reason, Share, State, lineage};

/// Shares are compared in so many parts of a cluster.
const PARTS: u64 = 1_000_000_000;

/// What everybody holds, has claimed and is given in this round.
#[derive(Debug, Clone)]
pub(crate) struct Tenants<'a> {
    state: &'a State,
    quotas: &'a Quotas,
    /// By tenant and class.
    used: BTreeMap<Name, Vec<Share>>,
    /// The part of it that is held, less what is to be stopped.
    held: BTreeMap<Name, Vec<Share>>,
    /// In service, and neither held nor claimed nor given; by class.
    free: Vec<Share>,
    capacity: Vec<Share>,
    /// Classes of which somebody has a quota.
    shared_out: Vec<bool>,
}

/// Who goes first inside a priority: least is first. One row a level of the tree, the topmost
/// first, each the largest part of any class that is held there, by weight.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct FairShareRank(Vec<u64>);

impl<'a> Tenants<'a> {
    /// `None` where no quotas are set.
    pub fn of(state: &'a State) -> Option<Self> {
        let quotas = &**state.quotas();
        if quotas.is_empty() {
            return None;
        }
        let classes = &state.topology().classes;
        let is_shared_out = |id: &Name| {
            let mut all = quotas.tenants.keys();
            all.any(|tenant| quotas.of(tenant.as_str(), id.as_str()).entitled.is_some())
        };
        let mut tenants = Self {
            state,
            quotas,
            used: BTreeMap::new(),
            held: BTreeMap::new(),
            free: vec![Share::ZERO; classes.len()],
            capacity: vec![Share::ZERO; classes.len()],
            shared_out: classes.iter().map(|class| is_shared_out(&class.id)).collect(),
        };
        for device in &state.topology().devices {
            tenants.capacity[device.class] += device.capacity;
        }
        let owner = |key| &state.stage(key).0.spec.tenant;
        let (stopping, staying): (Vec<&Lease>, Vec<&Lease>) =
            state.leases().values().partition(|lease| lease.phase.is_stopping());
        staying.iter().for_each(|lease| tenants.take(owner(lease.stage), &lease.placement));
        tenants.held.clone_from(&tenants.used);
        stopping.iter().for_each(|lease| tenants.take(owner(lease.stage), &lease.placement));
        // What is held on devices that are down is no part of what is in service.
        tenants.free.fill(Share::ZERO);
        for id in state.topology().device_ids() {
            tenants.free[state.topology().device(id).class] += state.free().share(id);
        }
        for (&key, claim) in state.claims() {
            tenants.take(owner(key), &claim.placement);
        }
        Some(tenants)
    }

    pub fn take(&mut self, tenant: &Name, placement: &Placement) {
        for (class, share) in self.needs(placement) {
            self.free[class] = self.free[class].saturating_sub(share);
            self.rows(tenant, |used| used[class] += share);
        }
    }

    pub fn give_back(&mut self, tenant: &Name, placement: &Placement) {
        for (class, share) in self.needs(placement) {
            self.free[class] += share;
            self.rows(tenant, |used| used[class] -= share);
        }
    }

    /// These, once the leases are gone that stop already.
    pub fn once_stopped(&self) -> Self {
        let mut later = self.clone();
        for lease in self.state.leases().values().filter(|lease| lease.phase.is_stopping()) {
            later.give_back(&self.state.stage(lease.stage).0.spec.tenant, &lease.placement);
        }
        later
    }

    /// What a stop of one who holds a placement will free.
    pub fn will_free(&mut self, tenant: &Name, placement: &Placement) {
        for (class, share) in self.needs(placement) {
            for name in lineage(tenant.as_str()) {
                if let Some(held) = self.held.get_mut(name) {
                    held[class] -= share;
                }
            }
        }
    }

    fn rows(&mut self, tenant: &Name, mut change: impl FnMut(&mut Vec<Share>)) {
        let classes = self.free.len();
        for name in lineage(tenant.as_str()) {
            change(self.used.entry(name.into()).or_insert_with(|| vec![Share::ZERO; classes]));
        }
    }

    /// What a placement takes, by class.
    fn needs(&self, placement: &Placement) -> BTreeMap<usize, Share> {
        let mut needs = BTreeMap::new();
        for grant in placement.grants() {
            let class = self.state.topology().device(grant.device).class;
            *needs.entry(class).or_insert(Share::ZERO) += grant.share;
        }
        needs
    }

    fn used(&self, tenant: &str, class: usize) -> Share {
        self.used.get(tenant).map_or(Share::ZERO, |used| used[class])
    }

    fn class_id(&self, class: usize) -> &'a Name {
        &self.state.topology().classes[class].id
    }

    /// Why a tenant may not have a placement for a stage, whatever is free.
    pub fn refusal(
        &self,
        tenant: &Name,
        preemptible: Preemptible,
        placement: &Placement,
    ) -> Option<Reason> {
        let borrows = || self.may_not_borrow(tenant, preemptible, placement);
        self.over_limit(tenant, placement).or_else(borrows)
    }

    /// That a tenant, or one above it, would hold too much.
    pub fn over_limit(&self, tenant: &Name, placement: &Placement) -> Option<Reason> {
        self.needs(placement).into_iter().find_map(|(class, share)| {
            let id = self.class_id(class);
            lineage(tenant.as_str()).find_map(|name| {
                let limit = self.quotas.of(name, id.as_str()).limit?;
                (self.used(name, class) + share > limit).then(|| Reason::OverLimit {
                    tenant: name.into(),
                    class: id.clone(),
                    limit: limit.whole_units(),
                })
            })
        })
    }

    /// Why a tenant may not borrow a placement from those who could not take it back.
    pub fn kept_for_others(&self, tenant: &Name, placement: &Placement) -> Option<Reason> {
        if self.is_entitled(tenant, placement) {
            return None;
        }
        let short = |(class, share): (usize, Share)| {
            self.free[class] < share + self.unused_by_others(tenant, class)
        };
        let class = self.needs(placement).into_iter().find(|need| short(*need))?.0;
        Some(Reason::KeptForOthers { class: self.class_id(class).clone() })
    }

    /// Why a stage that nobody may stop may not have a placement: what its tenant borrowed could
    /// not be given back.
    fn may_not_borrow(
        &self,
        tenant: &Name,
        preemptible: Preemptible,
        placement: &Placement,
    ) -> Option<Reason> {
        let needs = self.needs(placement).into_iter();
        let mut needs = needs.filter(|_| preemptible == Preemptible::Never);
        let (class, _) = needs.find(|(class, share)| !self.owns(tenant, *class, *share))?;
        Some(Reason::MayNotBorrow { tenant: tenant.clone(), class: self.class_id(class).clone() })
    }

    /// What others are entitled to of a class and do not use, the quotas of parts inside those of
    /// the whole.
    fn unused_by_others(&self, tenant: &Name, class: usize) -> Share {
        let id = self.class_id(class).as_str();
        let is_ours = |name: &str| lineage(tenant.as_str()).any(|ours| ours == name);
        let others = self.quotas.tenants.keys().map(Name::as_str).filter(|name| !is_ours(name));
        let unused = others.filter_map(|name| {
            let own = self.quotas.of(name, id).entitled?;
            let inside = lineage(name).any(|above| {
                above != name && !is_ours(above) && self.quotas.of(above, id).entitled.is_some()
            });
            (!inside).then(|| own.saturating_sub(self.used(name, class)))
        });
        unused.sum()
    }

    /// Whoever's quota of a class a tenant draws on: its own, or the nearest above it.
    fn quota_for<'t>(&self, tenant: &'t str, class: usize) -> Option<(&'t str, Share)> {
        let id = self.class_id(class).as_str();
        lineage(tenant)
            .rev()
            .find_map(|name| self.quotas.of(name, id).entitled.map(|own| (name, own)))
    }

    /// Whether a tenant would have a placement without borrowing.
    pub fn is_entitled(&self, tenant: &Name, placement: &Placement) -> bool {
        self.needs(placement).into_iter().all(|(class, share)| self.owns(tenant, class, share))
    }

    /// Whether a tenant would have so much more of a class without borrowing.
    pub fn owns(&self, tenant: &Name, class: usize, share: Share) -> bool {
        !self.shared_out[class]
            || self
                .quota_for(tenant.as_str(), class)
                .is_some_and(|(name, own)| self.used(name, class) + share <= own)
    }

    /// Whether a tenant holds no more of a class than it owns, and still would if `newcomer` held
    /// so many units more.
    pub fn is_protected(&self, tenant: &Name, class: usize, newcomer: (&Name, u32)) -> bool {
        let (newcomer, units) = newcomer;
        let Some((name, own)) = self.quota_for(tenant.as_str(), class) else { return false };
        let same = lineage(newcomer.as_str()).any(|above| above == name);
        let more = if same { Share::units(units) } else { Share::ZERO };
        let held = self.held.get(name).map_or(Share::ZERO, |held| held[class]);
        held + more <= own
    }

    /// Whether anybody has a quota of a class.
    pub fn is_shared_out(&self, class: usize) -> bool {
        self.shared_out[class]
    }

    pub fn fair_share(&self, tenant: &Name) -> FairShareRank {
        let row = |name: &str| {
            let part = |(class, whole): (usize, &Share)| {
                let used = u64::from(self.used(name, class).0);
                used * PARTS / u64::from(whole.0.max(1))
            };
            let largest = self.capacity.iter().enumerate().map(part).max().unwrap_or_default();
            largest / u64::from(self.quotas.weight(name).max(1))
        };
        FairShareRank(lineage(tenant.as_str()).map(row).collect())
    }
}
