//! Nodes: what is heard of them, and what is told.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Name, Topology};

use super::Kubernetes;
use crate::inventory::Inventory;
use crate::objects::NodeRow;

impl Kubernetes {
    /// The nodes on which something may start, and those that are named, with their devices.
    pub fn known_nodes(&self, named: &BTreeSet<Name>) -> Topology {
        self.inventory.as_ref().map(|inventory| inventory.known(named)).unwrap_or_default()
    }

    /// Extended resources that nobody knows and that are not offered, and how many nodes have them.
    pub fn not_understood(&self) -> BTreeMap<String, usize> {
        let mut nodes = self.inventory.as_ref().map(Inventory::not_understood).unwrap_or_default();
        nodes.append(&mut self.claims.dra().not_understood());
        nodes
    }

    /// Reports what changed about nodes, once it is known which there are and what others take.
    pub(super) fn report_nodes(&mut self) {
        let is_known = self.are_listed();
        if let Some(inventory) = self.inventory.as_mut().filter(|_| is_known) {
            self.ready.extend(inventory.news(&self.topology));
        }
    }

    pub(super) fn see_node(&mut self, row: NodeRow) {
        self.removed.remove(&row.name);
        self.node_list.name(row.name.clone());
        self.inventory.iter_mut().for_each(|inventory| inventory.see(row.clone()));
    }

    pub(super) fn see_node_gone(&mut self, name: &Name) {
        self.removed.insert(name.clone());
        self.inventory.iter_mut().for_each(|inventory| inventory.see_gone(name));
    }

    pub(super) fn nodes_listed(&mut self) {
        let (Some(named), Some(inventory)) = (self.node_list.end(), &self.inventory) else {
            return;
        };
        let absent: Vec<Name> =
            inventory.names().filter(|it| !named.contains(*it)).cloned().collect();
        absent.iter().for_each(|name| self.see_node_gone(name));
    }
}
