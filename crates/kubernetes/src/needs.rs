//! What a pod says of the node that it wants. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Name, Priority};

/// What a pod says of the node that it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodNeeds {
    pub profile: Name,
    pub priority: Priority,
    pub preemptible: bool,
    pub nodes: NodeRule,
    /// What it asks for that nobody does here: one sentence.
    pub not_supported: Option<String>,
}

/// The value of a priority class from which on a pod is urgent.
const URGENT_FROM: i64 = 1_000_000;

/// How urgent a pod is by the value of its priority class.
pub(crate) fn priority(value: i64) -> Priority {
    match value {
        ..0 => Priority::Low,
        0 => Priority::Normal,
        1..URGENT_FROM => Priority::High,
        _ => Priority::Urgent,
    }
}

/// Which nodes will do, by their labels and taints.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeRule {
    pub labels: BTreeMap<String, String>,
    /// One of them holds; any node will do where there is none.
    pub terms: Vec<Vec<Requirement>>,
    pub tolerates: Tolerated,
}

/// The keys of taints that a pod tolerates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tolerated {
    All,
    Keys(BTreeSet<String>),
}

impl Default for Tolerated {
    fn default() -> Self {
        Self::Keys(BTreeSet::new())
    }
}

/// A condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

impl NodeRule {
    /// Longest rule that is considered, in words.
    pub const WORDS_MAX: usize = 512;

    /// Conditions and their values: whoever looks at nodes looks at each of them.
    pub fn words(&self) -> usize {
        let of_terms = self.terms.iter().flatten().map(|one| 1 + one.values.len());
        self.labels.len() + self.terms.len() + of_terms.sum::<usize>()
    }

    /// Whether a node with these labels will do, and with taints of these keys.
    pub fn accepts(&self, labels: &BTreeMap<String, String>, taints: &[String]) -> bool {
        let are_tolerated = match &self.tolerates {
            Tolerated::All => true,
            Tolerated::Keys(keys) => taints.iter().all(|key| keys.contains(key)),
        };
        are_tolerated && self.has_labels(labels)
    }

    fn has_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        // A term without conditions accepts no node.
        let holds = |term: &Vec<Requirement>| {
            !term.is_empty() && term.iter().all(|one| one.accepts(labels))
        };
        self.labels.iter().all(has) && (self.terms.is_empty() || self.terms.iter().any(holds))
    }
}

impl Requirement {
    fn accepts(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let number = |text: &String| text.parse::<i64>().ok();
        let both = || value.and_then(number).zip(self.values.first().and_then(number));
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => both().is_some_and(|(value, limit)| value > limit),
            Operator::Lt => both().is_some_and(|(value, limit)| value < limit),
        }
    }
}
