//! Others that ask this scheduler for nodes: what they need, and which devices would do.
//! No I/O.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Bytes, Domain, HostResources, Name, Priority};
use tokio::sync::mpsc;

use crate::inventory::Inventory;
use crate::jobs::JobNews;
use crate::needs::{NodeRule, PodNeeds};
use crate::owners::Foreign;
use crate::quotas::QuotasNews;
use crate::resources::{Devices, counted};

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
    /// The resource that it names: `nvidia.com/gpu`.
    pub resource: Name,
    pub classes: Vec<Name>,
    pub count: u32,
    /// Beside devices of another kind.
    pub cores: u32,
    pub host: HostResources,
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
    by_rule: BTreeMap<(Name, NodeRule), Result<Vec<Name>, Unsuitable>>,
}

/// Rules whose answers are remembered.
const RULES_MAX: usize = 1_024;

impl Offers {
    /// Forgets what was found out of nodes that have changed since; whether they have.
    pub fn renew(&mut self, inventory: &Inventory) -> bool {
        let is_other = self.revision != inventory.revision();
        if is_other || self.by_rule.len() > RULES_MAX {
            self.by_rule.clear();
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
        let amount = |name: &str| requests.get(name).copied().unwrap_or_default();
        let of = |name: &str| Bytes(amount(name).div_ceil(1_000));
        let key = (resource.clone(), needs.nodes.clone());
        let known = self.by_rule.entry(key);
        let known = known.or_insert_with(|| classes(inventory, resource.as_str(), &needs.nodes));
        Ok(PodDevices {
            classes: known.clone()?,
            resource,
            count,
            cores,
            host: HostResources {
                memory: of("memory"),
                scratch: of("ephemeral-storage"),
                ..HostResources::default()
            },
        })
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
