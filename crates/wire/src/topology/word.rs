//! Clusters from a word: `hgx-h100-8x64+rail`.

use std::collections::BTreeMap;

use thiserror::Error;

use super::fabric::{self, FABRICS, Fabric};
use super::graph::Graph;
use super::node::{self, Changes, Stand};
use super::template::{TEMPLATES, Template};
use super::{Cluster, template};
use crate::words::closest;

/// Nodes of a cluster: more than any that is known (a drawing or a plan of more is of no use).
pub const NODES_MAX: u32 = 16_384;

/// The fabric where none is named.
pub(crate) const FLAT: &str = "flat";

/// Why a word is no cluster.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClusterWordError {
    #[error("`{word}` is no node template")]
    Template { word: String },
    #[error("`{word}` is no fabric")]
    Fabric { word: String },
    #[error("`{word}` has no nodes")]
    NoNodes { word: String },
    #[error("`{word}` has more than {max} nodes", max = NODES_MAX)]
    TooManyNodes { word: String },
}

impl ClusterWordError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Template { word } => hint(word, TEMPLATES.iter().map(|it| it.name)),
            Self::Fabric { word } => hint(word, FABRICS.into_iter()),
            Self::NoNodes { word } => {
                format!("`{}x1` has one", word.trim_end_matches('0').trim_end_matches('x'))
            }
            Self::TooManyNodes { .. } => format!("name at most {NODES_MAX}"),
        }
    }
}

/// The nearest of some names, or all of them.
pub(crate) fn hint<'a>(word: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    match closest(word, names.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let listed: Vec<String> = names.map(|name| format!("`{name}`")).collect();
            format!("one of {}", listed.join(", "))
        }
    }
}

/// The cluster of `TEMPLATE[xN][+FABRIC]`; without a fabric the ports of
/// its cards end at a `flat` one.
///
/// # Errors
/// When a part of the word is unknown, or there are no nodes.
pub fn from_word(word: &str) -> Result<Cluster, ClusterWordError> {
    let (nodes, fabric) = match word.split_once('+') {
        Some((nodes, fabric)) => (nodes, Some(fabric)),
        None => (word, None),
    };
    let (template, count) = counted(nodes)?;
    let name = fabric.unwrap_or(FLAT);
    let shape =
        Fabric::named(name).ok_or_else(|| ClusterWordError::Fabric { word: name.to_owned() })?;
    let mut graph = Graph::new(BTreeMap::new());
    let place = Place { names: "node", pod: "pod0", rack: None };
    several(&mut graph, &template, count, place, &Changes::default());
    fabric::join(&mut graph, &shape);
    Ok(graph.finish(word))
}

/// What the nodes of a group have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'text> {
    /// Nodes are called `names-0` and so on.
    pub names: &'text str,
    pub pod: &'text str,
    /// `None`: one rack for each of a template of several nodes, else one for all of a pod.
    pub rack: Option<&'text str>,
}

/// Adds `count` of a template, numbered on from the nodes that bear the same name.
pub(crate) fn several(
    graph: &mut Graph,
    template: &Template,
    count: u32,
    place: Place<'_>,
    changes: &Changes,
) {
    let prefix = format!("{}-", place.names);
    let named = graph.topology.nodes.iter().filter(|node| node.name.as_str().starts_with(&prefix));
    let first = named.count() as u32;
    for unit in 0..count {
        let shared = format!("{prefix}rack{}", first / template.nodes + unit);
        let rack = match (place.rack, template.nodes) {
            (Some(rack), _) => rack,
            (None, 1) => place.pod,
            (None, _) => &shared,
        };
        for row in 0..template.nodes {
            let name = format!("{prefix}{}", first + unit * template.nodes + row);
            let stand = Stand { name: &name, rack, pod: place.pod, shared: &shared };
            node::build(graph, template, stand, changes);
        }
    }
}

/// `TEMPLATE[xN]`; names of templates may hold an `x` themselves.
fn counted(word: &str) -> Result<(Template, u32), ClusterWordError> {
    if let Some(template) = template::by_name(word) {
        return Ok((template, 1));
    }
    let unknown = |word: &str| ClusterWordError::Template { word: word.to_owned() };
    let (name, count) = word.rsplit_once('x').ok_or_else(|| unknown(word))?;
    let count: u32 = count.parse().map_err(|_| unknown(word))?;
    let template = template::by_name(name).ok_or_else(|| unknown(name))?;
    match count.checked_mul(template.nodes) {
        Some(0) => Err(ClusterWordError::NoNodes { word: word.to_owned() }),
        Some(1..=NODES_MAX) => Ok((template, count)),
        _ => Err(ClusterWordError::TooManyNodes { word: word.to_owned() }),
    }
}
