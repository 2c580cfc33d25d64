//! The types of a cluster file.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::file::ApiVersion;

/// What a cluster consists of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    #[serde(rename = "apiVersion")]
    pub api_version: ApiVersion,
    pub kind: ClusterKind,
    pub metadata: Metadata,
    /// Figures of device classes that differ from the catalogue's, or that it lacks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, ClassFile>,
    pub nodes: Vec<GroupFile>,
    /// How the network cards of the nodes are joined; without it and without
    /// `links` their ports end at a `flat` one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricFile>,
    /// Switches outside of nodes, for `links`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<String>,
    /// Links between nodes, beside those of the fabric: `node-0/nic0` to `leaf0`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterKind {
    Cluster,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    pub name: String,
}

/// Dense peaks of a whole device (of a CPU: a socket). What is not said is the catalogue's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassFile {
    /// A class of the catalogue that it takes all else from; needed for a class of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// `cpu`, `gpu`, `npu` or any other word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp32_tflops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tf32_tflops: Option<f64>,
    /// At bf16 or fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_tflops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_tops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8_tflops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// GB/s of its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gbps: Option<f64>,
    /// Thermal design power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// `NVLink4 18x`, `HCCS full mesh 7x56`, …: its first word says what a link carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_link: Option<String>,
    /// GB/s to its peers, both directions and all links together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_gbps: Option<f64>,
    /// `PCIe5 x16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_link: Option<String>,
    /// Where the figures are from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Nodes that are alike: of a `template`, or with their `devices` and `links` spelled out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default = "one")]
    pub count: u32,
    /// Its nodes are called `NAME-0` and so on; `node` where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Disk space that stages may take up, for example `4TiB`; nobody counts it where nothing is
    /// said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<String>,
    /// What its disk reads, for example `6GB/s`; the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
    /// Another class on the template's board, for example `a800-sxm4-80`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// Of the template's compute cards, for example `100G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card_speed: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceFile>,
    /// Switches and cards of the node; one called `nicN` is a card of the fabric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkFile>,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceFile {
    /// Unique on its node: `gpu0`.
    pub name: String,
    /// A class of the catalogue or of `classes`.
    pub class: String,
    /// Of a CPU socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkFile {
    /// A device or switch; `node` is the node's memory.
    pub from: String,
    pub to: String,
    /// `pcie`, `nvlink`, `hccs`, `memory`, `leaf`, `spine` or any other word.
    pub kind: String,
    /// In one direction, of all `count` together: `25GB/s`, or `400G` of a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    #[serde(default = "one")]
    pub count: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricFile {
    /// `spine-leaf`, `rail`, `dual-plane` or `flat`.
    pub template: String,
    /// Of a leaf's ports, for example `400G`; as fast as the cards where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<String>,
    /// Bandwidth of a leaf to its nodes over that to its spines, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oversubscription: Option<f64>,
    /// Bandwidth of a pod's leaves to its spines over that to other pods, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_pods: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_per_leaf: Option<u32>,
    /// Of a pod and plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spines: Option<u32>,
    /// Pods of node groups that differ.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<String, PodFile>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PodFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oversubscription: Option<f64>,
}
