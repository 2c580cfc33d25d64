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

pub(crate) use book::DeviceBook;
pub(crate) use objects::{
    AskOption, Attribute, ClaimAsk, ClaimObject, ClaimRow, ClassObject, ClassRow, DeviceId,
    DeviceRow, SliceObject, SliceRow, claims, classes, slices,
};

/// Kinds of objects that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DraKind {
    Slices,
    Classes,
    Claims,
}

impl DraKind {
    pub const ALL: [Self; 3] = [Self::Slices, Self::Classes, Self::Claims];
}

/// What changed about them.
#[derive(Debug)]
pub(crate) enum DraNews {
    /// A list of all of a kind begins: those that it does not name are gone.
    Begin(DraKind),
    End(DraKind),
    Slice(SliceRow),
    Class(String, ClassRow),
    Claim(ClaimRow),
    SliceGone(Name),
    ClassGone(String),
    ClaimGone(ObjectKey),
}

/// A device of a node, and the resource that it is a slot of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claimable {
    pub row: DeviceRow,
    pub resource: Name,
    pub known: Known,
}

/// All that is known of them.
#[derive(Debug, Default)]
pub(crate) struct Dra {
    table: DeviceTable,
    slices: BTreeMap<Name, SliceRow>,
    classes: BTreeMap<String, ClassRow>,
    claims: BTreeMap<ObjectKey, ClaimRow>,
    /// By driver and pool: names of its slices.
    pools: BTreeMap<PoolName, BTreeSet<Name>>,
    /// By node and pool.
    nodes: BTreeMap<Name, BTreeMap<PoolName, Vec<Claimable>>>,
    places: BTreeMap<DeviceId, Place>,
    /// By driver: devices that no table lists.
    not_understood: BTreeMap<PoolName, usize>,
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

    /// Takes over a slice; the nodes whose devices may be others by now.
    pub fn see_slice(&mut self, row: SliceRow) -> BTreeSet<Name> {
        let pool = (row.driver.clone(), row.pool.clone());
        let mut nodes = BTreeSet::new();
        if let Some(before) = self.slices.get(&row.name) {
            let other = (before.driver.clone(), before.pool.clone());
            if other != pool {
                nodes = self.see_slice_gone(&row.name.clone());
            }
        }
        self.pools.entry(pool.clone()).or_default().insert(row.name.clone());
        self.slices.insert(row.name.clone(), row);
        nodes.append(&mut self.renew(&pool));
        nodes
    }

    pub fn see_slice_gone(&mut self, name: &Name) -> BTreeSet<Name> {
        let Some(row) = self.slices.remove(name) else { return BTreeSet::new() };
        let pool = (row.driver, row.pool);
        if let Some(slices) = self.pools.get_mut(&pool) {
            slices.remove(name);
        }
        self.renew(&pool)
    }

    pub fn see_class(&mut self, name: String, row: ClassRow) {
        self.classes.insert(name, row);
    }

    pub fn see_class_gone(&mut self, name: &str) {
        self.classes.remove(name);
    }

    /// Takes over a claim; what it was before.
    pub fn see_claim(&mut self, row: ClaimRow) -> Option<ClaimRow> {
        self.claims.insert(row.key.clone(), row)
    }

    pub fn see_claim_gone(&mut self, key: &ObjectKey) -> Option<ClaimRow> {
        self.claims.remove(key)
    }

    pub fn claim(&self, key: &ObjectKey) -> Option<&ClaimRow> {
        self.claims.get(key)
    }

    pub fn allocated_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.claims.iter().filter(|(_, row)| !row.allocated.is_empty()).map(|(key, _)| key)
    }

    pub fn claim_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.claims.keys()
    }

    pub fn slice_names(&self) -> impl Iterator<Item = &Name> {
        self.slices.keys()
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

    /// Where a device is that is offered.
    pub fn place(&self, device: &DeviceId) -> Option<&Place> {
        self.places.get(device)
    }

    /// Drivers of whose devices nobody knows what they are, and how many pools have such.
    pub fn not_understood(&self) -> BTreeMap<String, usize> {
        let mut drivers: BTreeMap<String, usize> = BTreeMap::new();
        for (driver, _) in self.not_understood.keys() {
            *drivers.entry(driver.to_string()).or_default() += 1;
        }
        drivers
    }

    /// Looks again at what a pool offers, and where. Of one that its driver is just about to
    /// describe anew nothing is offered.
    fn renew(&mut self, pool: &PoolName) -> BTreeSet<Name> {
        let mut changed = BTreeSet::new();
        self.nodes.retain(|node, pools| {
            if pools.remove(pool).is_some() {
                changed.insert(node.clone());
            }
            !pools.is_empty()
        });
        self.places.retain(|device, _| (&device.driver, &device.pool) != (&pool.0, &pool.1));
        self.not_understood.remove(pool);
        let Some(names) = self.pools.get(pool).filter(|names| !names.is_empty()) else {
            self.pools.remove(pool);
            return changed;
        };
        let rows: Vec<&SliceRow> = names.iter().filter_map(|name| self.slices.get(name)).collect();
        let newest = rows.iter().map(|row| row.generation).max();
        let rows = rows.into_iter().filter(|row| Some(row.generation) == newest);
        let rows: Vec<&SliceRow> = rows.collect();
        if rows.iter().any(|row| row.slices != rows.len() as i64) {
            return changed;
        }
        let mut devices: BTreeMap<Name, Vec<Claimable>> = BTreeMap::new();
        let mut unknown = 0;
        for row in rows {
            let Some(node) = &row.node else { continue };
            for device in &row.devices {
                let Some(known) = known(&self.table, device) else {
                    unknown += 1;
                    continue;
                };
                let resource: Name = format!("{}:{}", row.driver, known.class.id).as_str().into();
                let place = Place { node: node.clone(), resource: resource.clone() };
                self.places.insert(device.id.clone(), place);
                let claimable = Claimable { row: device.clone(), resource, known };
                devices.entry(node.clone()).or_default().push(claimable);
            }
        }
        if unknown > 0 {
            self.not_understood.insert(pool.clone(), unknown);
        }
        for (node, devices) in devices {
            changed.insert(node.clone());
            self.nodes.entry(node).or_default().insert(pool.clone(), devices);
        }
        changed
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

    /// The name of a class that is for all devices of a resource of a node.
    pub fn class_for(&self, node: &Name, resource: &str) -> Option<&str> {
        let of_resource = || self.of_node(node).filter(|device| device.resource == *resource);
        let accepts = |name: &&String| {
            let (class, selectors) = ((*name).clone(), Vec::new());
            let rule = self.rule(&AskOption { name: None, class, selectors, count: 1 }).ok();
            rule.is_some_and(|rule| {
                of_resource().all(|device| rule.accepts(&device.row) == Ok(true))
            })
        };
        of_resource().next()?;
        // Of a class without selectors any device is.
        let selects = self.classes.iter().filter(|(_, class)| !class.selectors.is_empty());
        selects.map(|(name, _)| name).find(accepts).map(String::as_str)
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
