//! Others that ask this scheduler for nodes: what they need, and which devices would do.
//! No I/O.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Domain, HostResources, Name, Priority};
use tokio::sync::mpsc;

use crate::dra::{AskOption, ClaimAsk, Dra, NoRule, claimed};
use crate::inventory::Inventory;
use crate::jobs::JobNews;
use crate::needs::{NodeRule, PodNeeds};
use crate::owners::Foreign;
use crate::quotas::QuotasNews;
use crate::resources::{CPU, Devices, counted, host_of};

/// What only more or other nodes can change, and what nothing can.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unsuitable {
    /// No node offers what it asks for.
    NoNode(String),
    /// This scheduler does not do what it asks for.
    NotSupported(String),
    /// What is to be there before it is not there yet: one sentence.
    Incomplete(String),
}

/// What somebody else made that asks this scheduler for nodes: a pod, or a workload, which has
/// several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub of: Foreign,
    /// The name that pods of one controller have in common.
    pub profile: Name,
    pub priority: Priority,
    /// Its owner lets it be stopped for others.
    pub preemptible: bool,
    /// Pods that start together.
    pub ranks: u32,
    pub within: Domain,
    /// Of each.
    pub devices: Result<PodDevices, Unsuitable>,
}

/// The devices of one node that would do for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDevices {
    /// One of these; who asks would rather have the first.
    pub options: Vec<DeviceOption>,
    /// Beside devices of another kind.
    pub cores: u32,
    pub host: HostResources,
}

/// So many devices of one of these classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOption {
    /// The resource, or the device class, that a pod names: `nvidia.com/gpu`.
    pub resource: Name,
    pub classes: Vec<Name>,
    pub count: u32,
}

/// What changed about objects of others that ask for nodes.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestNews {
    Asks(Box<Request>),
    Gone { uid: String },
}

/// What changes about jobs, about others that ask for nodes, and about quotas, beginning with all
/// that there are.
#[derive(Debug)]
pub struct News {
    pub jobs: mpsc::Receiver<JobNews>,
    pub requests: mpsc::UnboundedReceiver<RequestNews>,
    pub quotas: mpsc::Receiver<QuotasNews>,
}

/// Which classes of devices will do for whom, as the nodes are now.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// Of the nodes.
    revision: u64,
    by_rule: BTreeMap<(Asked, NodeRule), Result<Vec<Name>, Unsuitable>>,
    /// By class, the names under which its devices are asked for.
    names: BTreeMap<Name, BTreeSet<Name>>,
}

/// How devices are asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Resource(Name),
    Claim(AskOption),
}

/// Rules whose answers are remembered.
const RULES_MAX: usize = 1_024;

impl Offers {
    /// Forgets what was found out of nodes that have changed since; whether they have.
    pub fn renew(&mut self, inventory: &Inventory) -> bool {
        let is_other = self.revision != inventory.revision();
        if is_other || self.by_rule.len() > RULES_MAX {
            self.by_rule.clear();
            self.names = inventory.resources_by_class();
        }
        self.revision = inventory.revision();
        is_other
    }

    /// The devices that would do for a pod that requests so much, in thousandths.
    ///
    /// # Errors
    /// When nothing would.
    pub fn devices(
        &mut self,
        inventory: &Inventory,
        needs: &PodNeeds,
        requests: &BTreeMap<String, u64>,
    ) -> Result<PodDevices, Unsuitable> {
        if let Some(reason) = &needs.not_supported {
            return Err(Unsuitable::NotSupported(reason.clone()));
        }
        let (Devices { resource, count }, cores) =
            counted(requests).map_err(Unsuitable::NotSupported)?;
        let key = (Asked::Resource(resource.clone()), needs.nodes.clone());
        let known = self.by_rule.entry(key);
        let known = known.or_insert_with(|| {
            let classes = classes(inventory, resource.as_str(), &needs.nodes)?;
            let is_it = |name: &Name| *name == resource;
            named_alike(&self.names, &classes, is_it).map(|()| classes)
        });
        let options = vec![DeviceOption { classes: known.clone()?, resource, count }];
        Ok(PodDevices { options, cores, host: host_of(requests) })
    }

    /// The same of a pod with a claim.
    ///
    /// # Errors
    /// When nothing would.
    pub fn claimed(
        &mut self,
        (inventory, dra): (&Inventory, &Dra),
        (needs, ask): (&PodNeeds, &ClaimAsk),
        requests: &BTreeMap<String, u64>,
    ) -> Result<PodDevices, Unsuitable> {
        if let Some(reason) = &needs.not_supported {
            return Err(Unsuitable::NotSupported(reason.clone()));
        }
        let (beside, _) = counted(requests).map_err(Unsuitable::NotSupported)?;
        if beside.resource != *CPU {
            let what = format!("a resource claim beside `{}`", beside.resource);
            return Err(Unsuitable::NotSupported(what));
        }
        let (mut options, mut none) = (Vec::new(), None);
        for option in &ask.options {
            let key = (Asked::Claim(option.clone()), needs.nodes.clone());
            let known = self.by_rule.entry(key);
            let known = known.or_insert_with(|| {
                let classes = claimable_classes((inventory, dra), option, &needs.nodes)?;
                let is_it = |name: &Name| claimed(name.as_str()).is_some();
                named_alike(&self.names, &classes, is_it).map(|()| classes)
            });
            match known.clone() {
                Ok(classes) => options.push(DeviceOption {
                    resource: option.class.as_str().into(),
                    classes,
                    count: option.count,
                }),
                // Where there are none of these, there may be others.
                Err(why @ Unsuitable::NoNode(_)) => drop(none.get_or_insert(why)),
                Err(why) => return Err(why),
            }
        }
        match none {
            Some(why) if options.is_empty() => Err(why),
            _ => {
                let cores = requests.get(CPU).map_or(0, |amount| amount.div_ceil(1_000)) as u32;
                Ok(PodDevices { options, cores, host: host_of(requests) })
            }
        }
    }
}

/// # Errors
/// When devices of a class are asked for by another name somewhere: who got one of those would not
/// get it by the name that is used here.
fn named_alike(
    names: &BTreeMap<Name, BTreeSet<Name>>,
    classes: &[Name],
    is_it: impl Fn(&Name) -> bool,
) -> Result<(), Unsuitable> {
    for class in classes {
        let others = names.get(class).into_iter().flatten();
        if let Some(other) = others.into_iter().find(|name| !is_it(name)) {
            return Err(Unsuitable::NotSupported(format!(
                "devices of class `{class}` under this name, while nodes offer others as `{other}`"
            )));
        }
    }
    Ok(())
}

/// Kinds of devices that a claim may tell apart: it cannot have some of a class and not others.
const KINDS_MAX: usize = 1_024;

/// The classes of devices that an option of a claim is for, on nodes that the rule accepts.
fn claimable_classes(
    (inventory, dra): (&Inventory, &Dra),
    option: &AskOption,
    rule: &NodeRule,
) -> Result<Vec<Name>, Unsuitable> {
    let selectors = dra.rule(option).map_err(|why| match why {
        NoRule::NoClass(why) => Unsuitable::NoNode(why),
        NoRule::NotSupported(what) => Unsuitable::NotSupported(what),
    })?;
    let (mut accepted, mut passed_over) = (BTreeSet::new(), BTreeSet::new());
    let (mut kinds, mut why_not) = (BTreeMap::new(), None);
    let class = &option.class;
    for name in dra.nodes() {
        let Some(node) = inventory.node(name) else { continue };
        let is_node = rule.accepts(&node.labels, &node.taints);
        for device in dra.of_node(name) {
            let known = kinds.entry(selectors.kind(&device.row));
            let accepts = known.or_insert_with(|| selectors.accepts(&device.row)).clone();
            let of_class = match accepts {
                Ok(true) if is_node => &mut accepted,
                Ok(_) => &mut passed_over,
                Err(why) => {
                    why_not.get_or_insert(why);
                    &mut passed_over
                }
            };
            of_class.insert(device.known.class.id.clone());
        }
        if kinds.len() > KINDS_MAX {
            let what = format!("a claim on devices of `{class}` that tells each from the others");
            return Err(Unsuitable::NotSupported(what));
        }
    }
    if let Some(both) = accepted.intersection(&passed_over).next() {
        return Err(Unsuitable::NotSupported(format!(
            "a claim on devices of `{class}` that accepts some with `{both}` and not others"
        )));
    }
    match (accepted.is_empty(), why_not) {
        (true, None) => Err(Unsuitable::NoNode(format!(
            "no node that will do has devices of `{class}` as its resource claim asks for"
        ))),
        (true, Some(why)) => Err(Unsuitable::NoNode(format!(
            "no node that will do has devices of `{class}` as its resource claim asks for: {why}"
        ))),
        (false, _) => Ok(accepted.into_iter().collect()),
    }
}

/// The classes of a resource whose nodes the rule accepts.
fn classes(
    inventory: &Inventory,
    resource: &str,
    rule: &NodeRule,
) -> Result<Vec<Name>, Unsuitable> {
    let (mut accepted, mut passed_over) = (BTreeSet::new(), BTreeSet::new());
    for (node, class) in inventory.offering(resource) {
        match rule.accepts(&node.labels, &node.taints) {
            true => accepted.insert(class),
            false => passed_over.insert(class),
        };
    }
    if let Some(class) = accepted.intersection(&passed_over).next() {
        return Err(Unsuitable::NotSupported(format!(
            "a node selector, affinity or toleration that accepts some nodes with `{class}` and \
             not others"
        )));
    }
    match accepted.is_empty() {
        true if passed_over.is_empty() => {
            Err(Unsuitable::NoNode(format!("no node offers `{resource}`")))
        }
        true => Err(Unsuitable::NoNode(format!(
            "no node with `{resource}` has the labels that it asks for and no taint that it does \
             not tolerate"
        ))),
        false => Ok(accepted.into_iter().collect()),
    }
}
