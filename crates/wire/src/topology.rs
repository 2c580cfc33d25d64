//! Clusters as graphs: node templates with their real links, fabrics that join them, and cluster
//! files that use both or spell everything out.
//!
//! A vertex that holds no devices is named `node/part3` or `pod/part3`: the letters of its last
//! part say what it is, see [`Role`].

mod cards;
mod fabric;
mod file;
mod graph;
mod node;
mod rates;
mod reach;
mod template;
mod word;

use std::collections::BTreeMap;

use het_core::Topology;

use crate::catalogue::{self, Sheet};

pub use cards::{Card, DeviceCard, device_cards};
pub use fabric::{FABRICS, Fabric, PodShape, Wiring};
pub use file::{json_schema, parse};
pub use het_core::Distance;
pub use het_core::Role;
pub use reach::{Reach, reaches};
pub use template::{TEMPLATES, Template};
pub use word::{ClusterWordError, NODES_MAX, from_word};

/// A cluster with what its owner says of its device classes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cluster {
    pub name: String,
    pub topology: Topology,
    /// Sheets that differ from the catalogue's, by class id.
    pub own: BTreeMap<String, Sheet>,
}

impl Cluster {
    /// The figures of a class: the owner's, else the catalogue's.
    pub fn sheet(&self, class: &str) -> Option<&Sheet> {
        self.own.get(class).or_else(|| catalogue::sheet(class))
    }
}
