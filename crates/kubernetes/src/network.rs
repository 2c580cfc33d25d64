//! Which part of the network a node is in, by labels and by objects that say so. No I/O.
//!
//! Of all tiers two are used: the smallest part above a node, its rack, and the part around that,
//! its pod. HyperNodes of Volcano say whom they have as members; Topology objects of Kueue and KAI
//! say which labels of nodes to read, and without either the labels of those who measure networks,
//! and of clouds, are read.

use std::collections::{BTreeMap, BTreeSet};

use het_core::Name;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use regex_lite::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::names::HOSTNAME;
use crate::objects::NodeRow;

/// Labels with the name of the smallest part of the network that a node is in, most telling first.
/// Sources: Topograph 1.0 and before, AWS and Google documentation; Kueue's placeholder.
const RACK_LABELS: [&str; 5] = [
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-subblock",
    "cloud.provider.com/topology-rack",
];
/// The same of the part around it.
const POD_LABELS: [&str; 6] = [
    "fabric.topograph.run/tier-1",
    "network.topology.nvidia.com/spine",
    "topology.k8s.aws/network-node-layer-2",
    "cloud.google.com/gce-topology-block",
    "cloud.provider.com/topology-block",
    "topology.kubernetes.io/zone",
];
/// HyperNodes inside of each other; more are a circle.
const DEPTH_MAX: usize = 8;

/// A kind of object that says how nodes are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NetworkKind {
    HyperNode,
    KueueTopology,
    KaiTopology,
}

impl NetworkKind {
    pub const ALL: [Self; 3] = [Self::HyperNode, Self::KueueTopology, Self::KaiTopology];

    /// Group, version, kind and plural.
    fn words(self) -> [&'static str; 4] {
        match self {
            Self::HyperNode => ["topology.volcano.sh", "v1alpha1", "HyperNode", "hypernodes"],
            Self::KueueTopology => ["kueue.x-k8s.io", "v1beta2", "Topology", "topologies"],
            Self::KaiTopology => ["kai.scheduler", "v1alpha1", "Topology", "topologies"],
        }
    }

    pub fn resource(self) -> ApiResource {
        let [group, version, kind, plural] = self.words();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// Group and plural, for those who give rights.
    pub fn rights(self) -> (&'static str, &'static str) {
        let [group, _, _, plural] = self.words();
        (group, plural)
    }
}

/// All objects of a kind, by name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NetworkObjects {
    HyperNodes(BTreeMap<String, HyperNode>),
    /// Labels from the largest part to the smallest.
    Levels(NetworkKind, BTreeMap<String, Vec<String>>),
}

impl NetworkObjects {
    pub fn of(kind: NetworkKind, objects: &BTreeMap<String, DynamicObject>) -> Self {
        let specs = objects.iter().map(|(name, object)| (name.clone(), &object.data["spec"]));
        match kind {
            NetworkKind::HyperNode => {
                let read = specs.filter_map(|(name, spec)| Some((name, HyperNode::of(spec)?)));
                Self::HyperNodes(read.collect())
            }
            kind => Self::Levels(kind, specs.map(|(name, spec)| (name, levels(spec))).collect()),
        }
    }
}

/// A part of the network with nodes, or with smaller parts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HyperNode {
    /// The smaller, the nearer its members.
    tier: i64,
    members: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq)]
struct Member {
    of: MemberKind,
    which: Which,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberKind {
    Node,
    HyperNode,
}

#[derive(Debug, Clone, PartialEq)]
enum Which {
    Named(String),
    /// Its name is like this.
    Like(String),
    Labelled(BTreeMap<String, String>),
}

/// As its object has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Selector {
    exact_match: Option<Exact>,
    regex_match: Option<Pattern>,
    label_match: Option<Labels>,
}

#[derive(Deserialize)]
struct Exact {
    name: String,
}

#[derive(Deserialize)]
struct Pattern {
    pattern: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Labels {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Value>,
}

impl HyperNode {
    fn of(spec: &Value) -> Option<Self> {
        let members = spec["members"].as_array().into_iter().flatten().filter_map(Member::of);
        Some(Self { tier: spec["tier"].as_i64()?, members: members.collect() })
    }
}

impl Member {
    /// `None` of what is not understood: nobody is its member.
    fn of(value: &Value) -> Option<Self> {
        let of = match value["type"].as_str()? {
            "Node" => MemberKind::Node,
            "HyperNode" => MemberKind::HyperNode,
            _ => return None,
        };
        let which = match Selector::deserialize(&value["selector"]).ok()? {
            Selector { exact_match: Some(exact), .. } => Which::Named(exact.name),
            Selector { regex_match: Some(Pattern { pattern }), .. } => Which::Like(pattern),
            Selector { label_match: Some(labels), .. } if labels.match_expressions.is_empty() => {
                Which::Labelled(labels.match_labels)
            }
            _ => return None,
        };
        Some(Self { of, which })
    }
}

/// Labels of a Topology, but that of the node itself.
fn levels(spec: &Value) -> Vec<String> {
    let levels = spec["levels"].as_array().into_iter().flatten();
    let labels = levels.filter_map(|level| level["nodeLabel"].as_str());
    labels.filter(|label| *label != HOSTNAME).map(str::to_owned).collect()
}

/// What is known of how nodes are connected.
#[derive(Debug, Default)]
pub(crate) struct Network {
    hyper_nodes: Vec<Part>,
    /// By kind: labels from the largest part to the smallest, of one object each.
    levels: BTreeMap<NetworkKind, Vec<Vec<String>>>,
}

/// A HyperNode, with what finds its nodes.
#[derive(Debug)]
struct Part {
    name: Name,
    tier: i64,
    nodes: Vec<Rule>,
}

#[derive(Debug)]
enum Rule {
    Named(String),
    Like(Regex),
    Labelled(BTreeMap<String, String>),
}

impl Network {
    /// Takes over all objects of a kind.
    pub fn take(&mut self, objects: NetworkObjects) {
        match objects {
            NetworkObjects::HyperNodes(all) => {
                let parts = all.iter().map(|(name, of)| Part {
                    name: name.as_str().into(),
                    tier: of.tier,
                    nodes: rules(&all, name, DEPTH_MAX),
                });
                self.hyper_nodes = parts.collect();
                self.hyper_nodes
                    .sort_by(|one, other| (one.tier, &one.name).cmp(&(other.tier, &other.name)));
            }
            NetworkObjects::Levels(kind, all) => {
                self.levels.insert(kind, all.into_values().collect());
            }
        }
    }

    /// Rack and pod of a node: without anything that says so each is one of its own.
    pub fn around(&self, row: &NodeRow) -> (Name, Name) {
        let named = self.by_hyper_nodes(row).or_else(|| self.by_levels(row));
        let (rack, pod) = named.unwrap_or_else(|| by_labels(row));
        let rack = rack.unwrap_or_else(|| row.name.clone());
        (rack.clone(), pod.unwrap_or(rack))
    }

    /// Of those that have it the smallest two.
    fn by_hyper_nodes(&self, row: &NodeRow) -> Option<(Option<Name>, Option<Name>)> {
        let mut parts = self.hyper_nodes.iter().filter(|part| part.has(row));
        let first = parts.next()?;
        let around = parts.find(|part| part.tier > first.tier);
        Some((Some(first.name.clone()), around.map(|part| part.name.clone())))
    }

    /// Of the first topology whose labels the node has. The name of a part is unique in the part
    /// around it only.
    fn by_levels(&self, row: &NodeRow) -> Option<(Option<Name>, Option<Name>)> {
        let mut all = self.levels.values().flatten();
        all.find_map(|labels| {
            let values: Option<Vec<&str>> =
                labels.iter().map(|label| row.labels.get(label).map(String::as_str)).collect();
            let values = values.filter(|values| !values.is_empty())?;
            let whole =
                |parts: &[&str]| (!parts.is_empty()).then(|| parts.join("/").as_str().into());
            Some((whole(&values), whole(&values[..values.len() - 1])))
        })
    }
}

fn by_labels(row: &NodeRow) -> (Option<Name>, Option<Name>) {
    let label = |names: &[&str]| names.iter().find_map(|name| row.labels.get(*name));
    let name = |label: Option<&String>| label.map(|label| label.as_str().into());
    (name(label(&RACK_LABELS)), name(label(&POD_LABELS)))
}

impl Part {
    fn has(&self, row: &NodeRow) -> bool {
        self.nodes.iter().any(|rule| match rule {
            Rule::Named(name) => row.name == name.as_str(),
            Rule::Like(pattern) => pattern.is_match(row.name.as_str()),
            Rule::Labelled(labels) => {
                labels.iter().all(|(name, value)| row.labels.get(name) == Some(value))
            }
        })
    }
}

/// What finds the nodes of a HyperNode, those of its members among them.
fn rules(all: &BTreeMap<String, HyperNode>, name: &str, depth: usize) -> Vec<Rule> {
    let members = all.get(name).map(|it| it.members.as_slice()).unwrap_or_default();
    let mut inner: BTreeSet<&String> = BTreeSet::new();
    let mut rules = Vec::new();
    for Member { of, which } in members {
        let pattern = match which {
            Which::Like(pattern) => match Regex::new(pattern) {
                Ok(pattern) => Some(pattern),
                // Nobody is like what is no pattern.
                Err(_) => continue,
            },
            _ => None,
        };
        match (of, which, pattern) {
            (MemberKind::Node, Which::Named(name), _) => rules.push(Rule::Named(name.clone())),
            (MemberKind::Node, Which::Labelled(of), _) => rules.push(Rule::Labelled(of.clone())),
            (MemberKind::Node, _, Some(pattern)) => rules.push(Rule::Like(pattern)),
            (MemberKind::HyperNode, Which::Named(name), _) => {
                inner.extend(all.get_key_value(name).map(|(name, _)| name));
            }
            (MemberKind::HyperNode, _, Some(pattern)) => {
                inner.extend(all.keys().filter(|name| pattern.is_match(name)));
            }
            (_, _, None) => {}
        }
    }
    if depth > 0 {
        let inner = inner.into_iter().filter(|inner| *inner != name);
        rules.extend(inner.flat_map(|inner| self::rules(all, inner, depth - 1)));
    }
    rules
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, labels: &[(&str, &str)]) -> NodeRow {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        NodeRow {
            name: name.into(),
            allocatable: BTreeMap::new(),
            labels: labels.collect(),
            is_ready: true,
            is_cordoned: false,
            taints: Vec::new(),
        }
    }

    fn network(kind: NetworkKind, objects: &[(&str, Value)]) -> Network {
        let object = |spec: &Value| {
            let object = json!({ "metadata": { "name": "o" }, "spec": spec });
            serde_json::from_value(object).expect("it is one")
        };
        let objects = objects.iter().map(|(name, spec)| ((*name).to_owned(), object(spec)));
        let mut network = Network::default();
        network.take(NetworkObjects::of(kind, &objects.collect()));
        network
    }

    #[track_caller]
    fn check(network: &Network, node: &NodeRow, (rack, pod): (&str, &str)) {
        assert_eq!(network.around(node), (rack.into(), pod.into()), "{}", node.name);
    }

    #[test]
    fn hyper_nodes_have_nodes_and_each_other() {
        let member = |of: &str, selector: Value| json!({ "type": of, "selector": selector });
        let exact = |name: &str| json!({ "exactMatch": { "name": name } });
        let leaf = |members: Value| json!({ "tier": 1, "members": members });
        let network = network(
            NetworkKind::HyperNode,
            &[
                (
                    "spine",
                    json!({ "tier": 2, "members": [
                    member("HyperNode", json!({ "regexMatch": { "pattern": "^leaf-" } })),
                ] }),
                ),
                ("leaf-a", leaf(json!([member("Node", exact("n1")), member("Node", exact("n2"))]))),
                (
                    "leaf-b",
                    leaf(json!([
                        member("Node", json!({ "regexMatch": { "pattern": "^n[3-4]$" } })),
                        member("Node", json!({ "labelMatch": { "matchLabels": { "row": "b" } } })),
                        member("Node", json!({ "regexMatch": { "pattern": "(" } })),
                    ])),
                ),
                // In a circle with itself.
                ("lone", json!({ "tier": 3, "members": [member("HyperNode", exact("lone"))] })),
            ],
        );
        check(&network, &node("n1", &[]), ("leaf-a", "spine"));
        check(&network, &node("n4", &[]), ("leaf-b", "spine"));
        check(&network, &node("other", &[("row", "b")]), ("leaf-b", "spine"));
        check(&network, &node("n9", &[("fabric.topograph.run/tier-0", "l")]), ("l", "l"));
    }

    #[test]
    fn a_topology_says_which_labels_to_read() {
        let level = |label: &str| json!({ "nodeLabel": label });
        let levels = json!({ "levels": [level("block"), level("rack"), level(HOSTNAME)] });
        let network = network(NetworkKind::KueueTopology, &[("default", levels)]);
        check(&network, &node("n", &[("block", "b1"), ("rack", "r1")]), ("b1/r1", "b1"));
        check(&network, &node("m", &[("block", "b1")]), ("m", "m"));
        let spine =
            [("network.topology.nvidia.com/leaf", "x"), ("topology.kubernetes.io/zone", "z")];
        check(&network, &node("k", &spine), ("x", "z"));
    }
}
