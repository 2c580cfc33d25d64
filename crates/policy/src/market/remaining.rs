//! What a planner of rounds still has to share out: units of each device class, and where tenants
//! have quotas, what each may still be given.
//!
//! Every class is divided among the tenants who want it: each gets what it is entitled to, as far
//! as it wants that, and what remains goes to all who want more by weight, at every level of the
//! tree of tenants. What is still free when everybody had a look goes to anybody, up to the limits.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{ClassQuota, Name, lineage};

use super::demand::{Demand, Demands, Offer};

/// Units by tenant and class.
type ByTenant = BTreeMap<Name, Vec<u32>>;

/// Whole units of each class that are still to be shared out.
#[derive(Debug, Clone)]
pub(crate) struct Remaining {
    units: Vec<u32>,
    parts: Option<Parts>,
}

/// By tenant, where they have quotas.
#[derive(Debug, Clone)]
struct Parts {
    given: ByTenant,
    /// The most that each may be given.
    most: ByTenant,
}

impl Remaining {
    /// What those leave who must be left where they are.
    pub fn of(demands: &Demands) -> Self {
        let mut remaining = Self::whole(demands);
        for demand in &demands.stages {
            if let Some(pinned) = demand.pinned() {
                remaining.take(demand, &demand.offers[pinned]);
            }
        }
        remaining
    }

    /// Everything, whoever has it now, up to the limits of tenants.
    pub fn whole(demands: &Demands) -> Self {
        let parts = (!demands.quotas.is_empty()).then(|| {
            let rows = |name: &str| {
                let limit = |class| limit(demands, name, class);
                (name.into(), (0..demands.capacity.len()).map(limit).collect())
            };
            let names = names(demands);
            let none = || vec![0; demands.capacity.len()];
            Parts {
                given: names.iter().map(|name| ((*name).into(), none())).collect(),
                most: names.iter().map(|name| rows(name)).collect(),
            }
        });
        Self { units: demands.capacity.clone(), parts }
    }

    /// Never more than so many of each class.
    pub fn only(&mut self, units: &[u32]) {
        self.units.copy_from_slice(units);
    }

    /// From now on no tenant is given more than its part.
    pub fn keep_to_parts(&mut self, demands: &Demands) {
        if let Some(own) = &mut self.parts {
            own.most = parts(demands);
        }
    }

    /// From now on every tenant may have as much as its limit allows.
    pub fn open_to_limits(&mut self, demands: &Demands) {
        if let Some(parts) = &mut self.parts {
            parts.most = Self::whole(demands).parts.map(|whole| whole.most).unwrap_or_default();
        }
    }

    /// Whether tenants have quotas.
    pub fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// By class: what is left for one tenant.
    pub fn units_for(&self, tenant: &Name) -> Vec<u32> {
        let mut units = self.units.clone();
        if let Some(parts) = &self.parts {
            for name in lineage(tenant.as_str()) {
                let rows = parts.most[name].iter().zip(&parts.given[name]);
                for (units, (most, given)) in units.iter_mut().zip(rows) {
                    *units = (*units).min(most.saturating_sub(*given));
                }
            }
        }
        units
    }

    pub fn fits(&self, demand: &Demand, offer: &Offer) -> bool {
        let within = |parts: &Parts| {
            lineage(demand.tenant.as_str()).all(|name| {
                let (most, given) = (parts.most[name][offer.class], parts.given[name][offer.class]);
                given + offer.units <= most
            })
        };
        self.units[offer.class] >= offer.units && self.parts.as_ref().is_none_or(within)
    }

    /// Units of a class.
    pub fn units(&self, class: usize) -> u32 {
        self.units[class]
    }

    /// Whether the tenant of a stage may have an offer once another one is given back.
    pub fn may_have(&self, demand: &Demand, given: Option<&Offer>, offer: &Offer) -> bool {
        let back = given.filter(|given| given.class == offer.class).map_or(0, |given| given.units);
        self.parts.as_ref().is_none_or(|parts| {
            lineage(demand.tenant.as_str()).all(|name| {
                let (most, given) = (parts.most[name][offer.class], parts.given[name][offer.class]);
                given + offer.units <= most + back
            })
        })
    }

    pub fn put_back(&mut self, demand: &Demand, offer: &Offer) {
        self.units[offer.class] += offer.units;
        if let Some(parts) = &mut self.parts {
            for name in lineage(demand.tenant.as_str()) {
                if let Some(given) = parts.given.get_mut(name) {
                    given[offer.class] -= offer.units;
                }
            }
        }
    }

    /// What is taken beyond what there is, because devices went down, is no debt.
    pub fn take(&mut self, demand: &Demand, offer: &Offer) {
        self.units[offer.class] = self.units[offer.class].saturating_sub(offer.units);
        if let Some(parts) = &mut self.parts {
            for name in lineage(demand.tenant.as_str()) {
                if let Some(given) = parts.given.get_mut(name) {
                    given[offer.class] += offer.units;
                }
            }
        }
    }
}

/// Everybody who wants something, and those above them.
fn names(demands: &Demands) -> BTreeSet<&str> {
    demands.stages.iter().flat_map(|demand| lineage(demand.tenant.as_str())).collect()
}

fn of_class(demands: &Demands, name: &str, class: usize) -> ClassQuota {
    demands.quotas.of(name, demands.classes[class].as_str())
}

fn limit(demands: &Demands, name: &str, class: usize) -> u32 {
    of_class(demands, name, class).limit.map_or(u32::MAX, |limit| limit.whole_units())
}

/// The part of each tenant.
fn parts(demands: &Demands) -> ByTenant {
    let names = names(demands);
    let mut parts: ByTenant =
        names.iter().map(|name| ((*name).into(), vec![0; demands.capacity.len()])).collect();
    for (class, &units) in demands.capacity.iter().enumerate() {
        let mut wanted: BTreeMap<&str, u32> = BTreeMap::new();
        for demand in &demands.stages {
            let here = demand.offers.iter().filter(|offer| offer.class == class);
            let most = here.map(|offer| offer.units).max().unwrap_or(0);
            for name in lineage(demand.tenant.as_str()) {
                *wanted.entry(name).or_default() += most;
            }
        }
        for (name, wanted) in &mut wanted {
            *wanted = (*wanted).min(limit(demands, name, class));
        }
        let level = Level { demands, class, wanted: &wanted };
        level.divide(None, units, &mut parts);
    }
    parts
}

/// Tenants with a common parent, as one class is divided among them.
struct Level<'a> {
    demands: &'a Demands,
    class: usize,
    wanted: &'a BTreeMap<&'a str, u32>,
}

impl Level<'_> {
    fn divide(&self, parent: Option<&str>, units: u32, parts: &mut ByTenant) {
        let is_child = |name: &&str| match name.rsplit_once('/') {
            Some((above, _)) => Some(above) == parent,
            None => parent.is_none(),
        };
        let children: Vec<&str> = self.wanted.keys().copied().filter(is_child).collect();
        let wanted: Vec<u32> = children.iter().map(|name| self.wanted[name]).collect();
        let own: Vec<u32> = children.iter().map(|name| self.entitled(name)).collect();
        let mut part: Vec<u32> =
            own.iter().zip(&wanted).map(|(own, want)| *own.min(want)).collect();
        let mut rest = units.saturating_sub(part.iter().sum());
        // Unit by unit to whoever has least of it by weight: exact, and classes are small.
        while rest > 0 {
            let weight = |row: usize| u64::from(self.demands.quotas.weight(children[row]).max(1));
            let hungry = (0..children.len()).filter(|&row| part[row] < wanted[row]);
            let least = |&row: &usize| u64::from(part[row] + 1) * SCALE / weight(row);
            let Some(next) = hungry.min_by_key(least) else { break };
            part[next] += 1;
            rest -= 1;
        }
        for (name, part) in children.into_iter().zip(part) {
            if let Some(row) = parts.get_mut(name) {
                row[self.class] = part;
            }
            self.divide(Some(name), part, parts);
        }
    }

    /// What a tenant may call its own: its quota, or those of its parts.
    fn entitled(&self, name: &str) -> u32 {
        match of_class(self.demands, name, self.class).entitled {
            Some(own) => own.whole_units(),
            None => {
                let inside =
                    |other: &&&str| other.rsplit_once('/').is_some_and(|(above, _)| above == name);
                self.wanted.keys().filter(inside).map(|other| self.entitled(other)).sum()
            }
        }
    }
}

/// Keeps integer division by a weight exact enough.
const SCALE: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use het_core::{Quota, Quotas, Share};

    use super::*;

    /// One unit of one class for each letter's tenant, as often as it is named.
    fn demands(units: u32, wants: &[(&str, u32)], quotas: &[(&str, u32, Option<u32>)]) -> Demands {
        let stage = |(row, tenant): (usize, &str)| Demand::example(row as u64 + 1, tenant, &[1.0]);
        let each = wants.iter().flat_map(|(name, times)| (0..*times).map(move |_| *name));
        let quota = |&(name, weight, own): &(&str, u32, Option<u32>)| {
            let of = ClassQuota { entitled: own.map(Share::units), limit: None };
            (name.into(), Quota { classes: [("gpu".into(), of)].into(), ..Quota::new(weight) })
        };
        Demands {
            present: 0,
            stages: each.enumerate().map(stage).collect(),
            spanning: Vec::new(),
            capacity: vec![units],
            classes: vec!["gpu".into()],
            quotas: Arc::new(Quotas {
                tenants: quotas.iter().map(quota).collect(),
                ..Quotas::default()
            }),
        }
    }

    fn check(demands: &Demands, expected: &[(&str, u32)]) {
        let found: Vec<(String, u32)> =
            parts(demands).into_iter().map(|(name, row)| (name.to_string(), row[0])).collect();
        let expected: Vec<(String, u32)> =
            expected.iter().map(|(name, units)| ((*name).to_owned(), *units)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_quota_comes_first_and_the_rest_goes_by_weight() {
        let wants = [("a", 10), ("b", 10), ("c", 10)];
        let quotas = [("a", 1, Some(4)), ("b", 3, None)];
        check(&demands(12, &wants, &quotas), &[("a", 4), ("b", 6), ("c", 2)]);
    }

    #[test]
    fn what_nobody_entitled_wants_is_lent() {
        let quotas = [("a", 1, Some(8)), ("b", 1, None)];
        check(&demands(8, &[("a", 2), ("b", 10)], &quotas), &[("a", 2), ("b", 6)]);
    }

    #[test]
    fn parts_of_a_tenant_share_what_it_gets() {
        let wants = [("lab/cv", 10), ("lab/nlp", 10), ("shop", 10)];
        let quotas = [("lab", 1, Some(6)), ("lab/nlp", 1, Some(4))];
        let expected = [("lab", 6), ("lab/cv", 2), ("lab/nlp", 4), ("shop", 2)];
        check(&demands(8, &wants, &quotas), &expected);
    }
}
