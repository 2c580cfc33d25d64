//! Dynamic resource allocation: which devices drivers offer, which classes and claims there are,
//! and which devices of a node a claim may have. No I/O.
//!
//! Devices of one class on one node are slots, as those of an extended resource are, of a resource
//! `DRIVER:CLASS` (`gpu.nvidia.com:a100-sxm4-80`). Which of them a claim gets is chosen when it is
//! allocated ([`book`]).

mod book;
mod expression;
mod objects;
mod selector;

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, Name};

use crate::device_table::{DeviceTable, Known};
use crate::names::ObjectKey;
use selector::Selector;

pub(crate) use book::{Choice, DeviceBook, UnderWay, Wish};
pub(crate) use objects::{
    AskOption, Attribute, ClaimAsk, ClaimObject, ClaimRow, ClassObject, ClassRow, DeviceId,
    DeviceRow, SliceObject, SliceRow, TaintRule, TaintRuleObject, claims, classes, option_name,
    slices, taint_rules,
};

/// Kinds of objects that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DraKind {
    Slices,
    Classes,
    Claims,
    TaintRules,
}

impl DraKind {
    pub const ALL: [Self; 4] = [Self::Slices, Self::Classes, Self::Claims, Self::TaintRules];
}

/// What changed about them.
#[derive(Debug)]
pub(crate) enum DraNews {
    /// A list of all of a kind begins: those that it does not name are gone.
    Begin(DraKind),
    End(DraKind),
    /// Nobody may list them, or the API server does not know them.
    None(DraKind),
    Slice(SliceRow),
    Class(String, ClassRow),
    Claim(ClaimRow),
    /// `None` of a rule that keeps nobody away.
    TaintRule(String, Option<TaintRule>),
    SliceGone(Name),
    ClassGone(String),
    ClaimGone(ObjectKey),
}

/// A device of a node, and the resource that it is a slot of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claimable {
    pub row: DeviceRow,
    pub resource: Name,
    /// Its slot among those of the resource.
    pub slot: Name,
    pub known: Known,
}

/// All that is known of them.
#[derive(Debug, Default)]
pub(crate) struct Dra {
    table: DeviceTable,
    slices: BTreeMap<Name, SliceRow>,
    classes: BTreeMap<String, ClassRow>,
    claims: BTreeMap<ObjectKey, ClaimRow>,
    taint_rules: BTreeMap<String, TaintRule>,
    pools: BTreeMap<PoolName, Pool>,
    /// By node and pool.
    nodes: BTreeMap<Name, BTreeMap<PoolName, Vec<Claimable>>>,
    places: BTreeMap<DeviceId, Place>,
    /// By pool, the claims that have devices of it.
    takers: BTreeMap<PoolName, BTreeSet<ObjectKey>>,
}

/// What is known of a pool of devices.
#[derive(Debug, Default)]
struct Pool {
    /// Names of its slices.
    slices: BTreeSet<Name>,
    /// Whose devices are offered now.
    nodes: BTreeSet<Name>,
    devices: Vec<DeviceId>,
    /// It has devices that no table lists.
    is_not_understood: bool,
}

/// What changed with a pool.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolChange {
    /// Whose devices may be others by now.
    pub nodes: BTreeSet<Name>,
    /// Which have devices of it.
    pub claims: BTreeSet<ObjectKey>,
}

type PoolName = (Name, Name);

/// Where a device is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub node: Name,
    pub resource: Name,
}

/// The driver and the class of a resource that is claimed and not requested.
pub(crate) fn claimed(resource: &str) -> Option<(&str, &str)> {
    resource.split_once(':')
}

impl Dra {
    pub fn new(table: DeviceTable) -> Self {
        Self { table, ..Self::default() }
    }

    /// Takes over a slice.
    pub fn see_slice(&mut self, row: SliceRow) -> PoolChange {
        if self.slices.get(&row.name) == Some(&row) {
            return PoolChange::default();
        }
        let pool = (row.driver.clone(), row.pool.clone());
        let is_of_another =
            |before: &SliceRow| (&before.driver, &before.pool) != (&pool.0, &pool.1);
        let mut change = match self.slices.get(&row.name).is_some_and(is_of_another) {
            true => self.see_slice_gone(&row.name),
            false => PoolChange::default(),
        };
        self.pools.entry(pool.clone()).or_default().slices.insert(row.name.clone());
        self.slices.insert(row.name.clone(), row);
        change.add(self.renew(&pool));
        change
    }

    pub fn see_slice_gone(&mut self, name: &Name) -> PoolChange {
        let Some(row) = self.slices.remove(name) else { return PoolChange::default() };
        let pool = (row.driver, row.pool);
        if let Some(known) = self.pools.get_mut(&pool) {
            known.slices.remove(name);
        }
        self.renew(&pool)
    }

    /// Takes over which devices an administrator keeps from all.
    pub fn see_taint_rule(&mut self, name: String, rule: Option<TaintRule>) -> PoolChange {
        let before = match &rule {
            Some(rule) => self.taint_rules.insert(name, rule.clone()),
            None => self.taint_rules.remove(&name),
        };
        if before == rule {
            return PoolChange::default();
        }
        let mut change = PoolChange::default();
        let pools: Vec<PoolName> = self.pools.keys().cloned().collect();
        pools.iter().for_each(|pool| change.add(self.renew(pool)));
        change
    }

    pub fn see_class(&mut self, name: String, row: ClassRow) {
        self.classes.insert(name, row);
    }

    pub fn see_class_gone(&mut self, name: &str) {
        self.classes.remove(name);
    }

    /// Takes over a claim; what it was before.
    pub fn see_claim(&mut self, row: ClaimRow) -> Option<ClaimRow> {
        let before = self.see_claim_gone(&row.key);
        for device in &row.allocated {
            let pool = (device.driver.clone(), device.pool.clone());
            self.takers.entry(pool).or_default().insert(row.key.clone());
        }
        self.claims.insert(row.key.clone(), row);
        before
    }

    pub fn see_claim_gone(&mut self, key: &ObjectKey) -> Option<ClaimRow> {
        let before = self.claims.remove(key)?;
        for device in &before.allocated {
            let pool = (device.driver.clone(), device.pool.clone());
            if let Some(takers) = self.takers.get_mut(&pool) {
                takers.remove(key);
                if takers.is_empty() {
                    self.takers.remove(&pool);
                }
            }
        }
        Some(before)
    }

    pub fn claim(&self, key: &ObjectKey) -> Option<&ClaimRow> {
        self.claims.get(key)
    }

    pub fn claim_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.claims.keys()
    }

    pub fn slice_names(&self) -> impl Iterator<Item = &Name> {
        self.slices.keys()
    }

    pub fn taint_rule_names(&self) -> impl Iterator<Item = &String> {
        self.taint_rules.keys()
    }

    pub fn class_names(&self) -> impl Iterator<Item = &String> {
        self.classes.keys()
    }

    pub fn class(&self, name: &str) -> Option<&ClassRow> {
        self.classes.get(name)
    }

    /// The devices of a node.
    pub fn of_node(&self, node: &Name) -> impl Iterator<Item = &Claimable> {
        self.nodes.get(node).into_iter().flat_map(BTreeMap::values).flatten()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Name> {
        self.nodes.keys()
    }

    /// So many devices of a resource of a node, rather those that have these slots.
    pub fn wish(&self, place: Place, slots: &[Name]) -> Wish {
        let is_one =
            |device: &&Claimable| device.resource == place.resource && slots.contains(&device.slot);
        let devices = self.of_node(&place.node).filter(is_one);
        let rather = devices.map(|device| device.row.id.clone()).collect();
        Wish { place, count: slots.len() as u32, rather }
    }

    /// Where a device is that is offered.
    pub fn place(&self, device: &DeviceId) -> Option<&Place> {
        self.places.get(device)
    }

    /// Drivers of whose devices nobody knows what they are, and how many pools have such.
    pub fn not_understood(&self) -> BTreeMap<String, usize> {
        let mut drivers: BTreeMap<String, usize> = BTreeMap::new();
        for ((driver, _), _) in self.pools.iter().filter(|(_, pool)| pool.is_not_understood) {
            *drivers.entry(driver.to_string()).or_default() += 1;
        }
        drivers
    }

    /// Looks again at what a pool offers, and where. Of one that its driver is just about to
    /// describe anew nothing is offered.
    fn renew(&mut self, name: &PoolName) -> PoolChange {
        let mut change = PoolChange::default();
        let Some(pool) = self.pools.get_mut(name) else { return change };
        change.claims = self.takers.get(name).cloned().unwrap_or_default();
        change.nodes = std::mem::take(&mut pool.nodes);
        for node in &change.nodes {
            if let Some(pools) = self.nodes.get_mut(node) {
                pools.remove(name);
                if pools.is_empty() {
                    self.nodes.remove(node);
                }
            }
        }
        pool.devices.drain(..).for_each(|device| drop(self.places.remove(&device)));
        pool.is_not_understood = false;
        if pool.slices.is_empty() {
            self.pools.remove(name);
            return change;
        }
        let rows: Vec<&SliceRow> =
            pool.slices.iter().filter_map(|slice| self.slices.get(slice)).collect();
        let newest = rows.iter().map(|row| row.generation).max();
        let rows = rows.into_iter().filter(|row| Some(row.generation) == newest);
        let rows: Vec<&SliceRow> = rows.collect();
        if rows.iter().any(|row| row.slices != rows.len() as i64) {
            return change;
        }
        let mut devices: BTreeMap<Name, Vec<Claimable>> = BTreeMap::new();
        for (node, row) in rows.iter().flat_map(|row| of_node(row)) {
            if self.taint_rules.values().any(|rule| rule.is_of(&row.id)) {
                continue;
            }
            let Some(known) = known(&self.table, row) else {
                pool.is_not_understood = true;
                continue;
            };
            let claimable = Claimable::of(row.clone(), node, known);
            let place = Place { node: node.clone(), resource: claimable.resource.clone() };
            self.places.insert(row.id.clone(), place);
            pool.devices.push(row.id.clone());
            devices.entry(node.clone()).or_default().push(claimable);
        }
        for (node, devices) in devices {
            pool.nodes.insert(node.clone());
            change.nodes.insert(node.clone());
            self.nodes.entry(node).or_default().insert(name.clone(), devices);
        }
        change
    }

    /// What says which devices will do for an option.
    ///
    /// # Errors
    /// When its class is not there, or a selector is not understood.
    pub fn rule(&self, option: &AskOption) -> Result<DeviceRule, NoRule> {
        let class = self.classes.get(&option.class).ok_or_else(|| {
            NoRule::NoClass(format!("there is no DeviceClass `{}`", option.class))
        })?;
        let selectors = class.selectors.iter().chain(&option.selectors);
        let selectors: Result<Vec<_>, _> = selectors.map(|text| Selector::new(text)).collect();
        Ok(DeviceRule(selectors.map_err(NoRule::NotSupported)?))
    }

    /// The first option of a claim that such devices of a node will do for.
    pub fn option_for<'a>(
        &self,
        ask: &'a ClaimAsk,
        (node, resource, count): (&Name, &str, u32),
    ) -> Option<&'a AskOption> {
        let of_resource = || self.of_node(node).filter(|device| device.resource == *resource);
        ask.options.iter().filter(|option| option.count == count).find(|option| {
            let rule = self.rule(option).ok();
            rule.is_some_and(|rule| {
                let mut devices = of_resource().peekable();
                devices.peek().is_some()
                    && devices.all(|device| rule.accepts(&device.row) == Ok(true))
            })
        })
    }

    /// The name of a class that is for all devices of a resource of a node: the one that is called
    /// as their driver, else one that tells drivers nothing.
    pub fn class_for(&self, node: &Name, resource: &str) -> Option<&str> {
        let of_resource = || self.of_node(node).filter(|device| device.resource == *resource);
        let accepts = |name: &str| {
            let (class, selectors) = (name.to_owned(), Vec::new());
            let rule = self.rule(&AskOption { name: None, class, selectors, count: 1 }).ok();
            rule.is_some_and(|rule| {
                of_resource().all(|device| rule.accepts(&device.row) == Ok(true))
            })
        };
        of_resource().next()?;
        let (driver, _) = claimed(resource)?;
        // Of a class without selectors any device is.
        let selects = self.classes.iter().filter(|(_, class)| !class.selectors.is_empty());
        let names = selects.filter(|(name, _)| accepts(name.as_str()));
        let rank = |(name, class): &(&String, &ClassRow)| {
            (name.as_str() != driver, !class.config.is_empty(), (*name).clone())
        };
        names.min_by_key(rank).map(|(name, _)| name.as_str())
    }
}

/// The devices of a slice, where one node has them.
fn of_node(slice: &SliceRow) -> impl Iterator<Item = (&Name, &DeviceRow)> {
    let node = slice.node.as_ref();
    slice.devices.iter().filter_map(move |device| Some((node?, device)))
}

impl PoolChange {
    fn add(&mut self, mut other: Self) {
        self.nodes.append(&mut other.nodes);
        self.claims.append(&mut other.claims);
    }
}

impl Claimable {
    fn of(row: DeviceRow, node: &Name, known: Known) -> Self {
        let DeviceId { driver, pool, device } = &row.id;
        let slot = match pool == node {
            true => device.clone(),
            false => format!("{}.{device}", pool.as_str().replace('/', ".")).as_str().into(),
        };
        let resource = format!("{driver}:{}", known.class.id).as_str().into();
        Self { row, resource, slot, known }
    }
}

/// What a device is, by what its driver says of it.
fn known(table: &DeviceTable, device: &DeviceRow) -> Option<Known> {
    let attributes = device.attributes.iter().filter_map(|(name, value)| match value {
        Attribute::Text(text) => Some((name.clone(), text.clone())),
        Attribute::Number(_) | Attribute::Flag(_) => None,
    });
    let known = table.claimable(device.id.driver.as_str(), &attributes.collect())?;
    let stated = device.capacity.get("memory").map(|amount| Bytes(amount / 1_000));
    Some(Known { memory: stated.unwrap_or(known.memory), ..known })
}

/// Why nobody knows which devices would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoRule {
    NoClass(String),
    /// One phrase.
    NotSupported(String),
}

/// Which devices will do.
#[derive(Debug)]
pub(crate) struct DeviceRule(Vec<Selector>);

impl DeviceRule {
    /// What it reads of a device: those of which it reads the same are alike to it.
    pub fn kind(&self, device: &DeviceRow) -> Vec<String> {
        self.0.iter().map(|selector| selector.kind(device)).collect()
    }

    /// # Errors
    /// When a selector does not say so of this device.
    pub fn accepts(&self, device: &DeviceRow) -> Result<bool, String> {
        for selector in &self.0 {
            if !selector.accepts(device)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
