//! What tenants are entitled to.

use std::collections::BTreeMap;

use crate::{Bytes, Name, Priority, Share};

/// Quotas by tenant. A tenant called `lab/nlp` is a part of `lab`: what it holds, `lab` holds too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quotas {
    pub tenants: BTreeMap<Name, Quota>,
    /// The highest priority that jobs of those may ask for who are not told otherwise.
    pub priority_max: Option<Priority>,
    /// The disk space that a rank of theirs may take up.
    pub scratch_max: Option<Bytes>,
}

/// What one tenant may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Of what nobody is entitled to, or does not use: twice the weight, twice the share.
    pub weight: u32,
    /// By device class id.
    pub classes: BTreeMap<Name, ClassQuota>,
    /// The highest priority that its jobs may ask for, and those of the tenants below it.
    pub priority_max: Option<Priority>,
    /// The disk space that a rank of those jobs may take up.
    pub scratch_max: Option<Bytes>,
}

/// What one tenant may have of one device class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassQuota {
    /// Its own whenever it wants it: what others borrow of it comes back.
    pub entitled: Option<Share>,
    /// Never more than this.
    pub limit: Option<Share>,
}

impl Quota {
    /// Without anything of its own.
    pub fn new(weight: u32) -> Self {
        Self { weight, classes: BTreeMap::new(), priority_max: None, scratch_max: None }
    }
}

impl Quotas {
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// What a tenant itself was given of a class, not what those above it were.
    pub fn of(&self, tenant: &str, class: &str) -> ClassQuota {
        let quota = self.tenants.get(tenant).and_then(|quota| quota.classes.get(class));
        quota.copied().unwrap_or_default()
    }

    /// The highest priority that a job of a tenant may ask for: its own, or that of the nearest
    /// above it that has one.
    pub fn priority_max(&self, tenant: &str) -> Priority {
        let own = |quota: &Quota| quota.priority_max;
        self.nearest(tenant, own).or(self.priority_max).unwrap_or(Priority::Urgent)
    }

    /// The disk space that a rank of a tenant's jobs may take up, found alike.
    pub fn scratch_max(&self, tenant: &str) -> Option<Bytes> {
        self.nearest(tenant, |quota| quota.scratch_max).or(self.scratch_max)
    }

    /// What the tenant itself was told, or the nearest above it that was told something.
    fn nearest<T>(&self, tenant: &str, told: impl Fn(&Quota) -> Option<T>) -> Option<T> {
        lineage(tenant).rev().find_map(|name| told(self.tenants.get(name)?))
    }

    pub fn weight(&self, tenant: &str) -> u32 {
        self.tenants.get(tenant).map_or(1, |quota| quota.weight)
    }
}

/// A tenant and those above it, the topmost first: `lab`, then `lab/nlp`.
pub fn lineage(tenant: &str) -> impl DoubleEndedIterator<Item = &str> {
    let above = tenant.match_indices('/').map(|(at, _)| &tenant[..at]);
    above.chain(std::iter::once(tenant))
}
