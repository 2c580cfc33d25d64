//! Groups of pods (`PodGroup` of `scheduling.k8s.io`): what one says of its pods, and which of them
//! start together. No I/O.

use het_core::{Domain, Priority};
use kube::api::DynamicObject;
use serde_json::Value;

use crate::group_api::{KIND, SCHEDULED};
use crate::names::{self, ObjectKey};
use crate::needs::PodNeeds;
use crate::objects::PodRow;
use crate::requests::Unsuitable;

/// Most pods that start together.
const RANKS_MAX: u64 = 4_096;

/// What is kept of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupRow {
    pub key: ObjectKey,
    pub uid: String,
    policy: Policy,
    /// Labels of nodes that all of its pods are to have the same value of.
    pub levels: Vec<String>,
    /// Its pods may be stopped together only.
    pub is_stopped_whole: bool,
    /// Its owner lets it be stopped for others.
    preemptible: bool,
    /// The value of its priority class.
    priority: Option<i64>,
    /// One of the four words, in place of that.
    word: Option<Priority>,
    /// Its pods that start together were given nodes once.
    pub is_scheduled: bool,
    /// What it asks for that nobody does here: one phrase.
    refused: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// Each pod by itself.
    Basic,
    /// So many pods start together.
    Gang(u32),
}

/// How the pods of a group ask for nodes that have none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asks<'a> {
    /// Each by itself.
    Alone,
    /// None of them does, and each is told why.
    Not(Unsuitable),
    /// Those that start together, or why they do not yet.
    Together(Result<Vec<&'a PodRow>, Unsuitable>),
}

impl GroupRow {
    /// `None` of an object without a name.
    pub fn of(object: DynamicObject) -> Option<Self> {
        let DynamicObject { metadata, data, .. } = object;
        let namespace = metadata.namespace.unwrap_or_default();
        let (spec, status) = (&data["spec"], &data["status"]);
        let annotations = metadata.annotations.unwrap_or_default();
        let (gang, basic) = (&spec["schedulingPolicy"]["gang"], &spec["schedulingPolicy"]["basic"]);
        let least = gang["minCount"].as_u64().unwrap_or(1).max(1);
        let levels = spec["schedulingConstraints"]["topology"].as_array().into_iter().flatten();
        let mode = &spec["disruptionMode"];
        let said = annotations.get(names::PRIORITY);
        let word = said.and_then(|said| Priority::ALL.into_iter().find(|it| it.word() == said));
        let is_set = |value: &Value| !value.is_null();
        let refused = [
            (!is_set(gang) && !is_set(basic), "its scheduling policy"),
            (least > RANKS_MAX, "a group of more than 4096 pods that start together"),
            (is_set(&spec["resourceClaims"]), "resource claims of a group of pods"),
            (is_set(&spec["parentCompositePodGroupName"]), "a group of groups of pods"),
            (said.is_some() && word.is_none(), "a word that is no priority (`low` to `urgent`)"),
        ];
        let refused = refused.into_iter().find_map(|(is_refused, what)| is_refused.then_some(what));
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut conditions = conditions.filter(|it| it["type"] == SCHEDULED);
        Some(Self {
            key: ObjectKey { namespace, name: metadata.name? },
            uid: metadata.uid.unwrap_or_default(),
            policy: match gang.is_null() {
                true => Policy::Basic,
                false => Policy::Gang(least.min(RANKS_MAX) as u32),
            },
            levels: levels.filter_map(|it| it["key"].as_str().map(str::to_owned)).collect(),
            // `v1beta1`, and a word in `v1alpha2`.
            is_stopped_whole: is_set(&mode["all"]) || mode.as_str() == Some(KIND),
            preemptible: annotations.get(names::PREEMPTIBLE).is_some_and(|value| value == "true"),
            priority: spec["priority"].as_i64(),
            word,
            is_scheduled: conditions.any(|it| it["status"] == "True"),
            refused: refused.map(str::to_owned),
        })
    }

    /// How its pods ask that wait for nodes, beside so many that have nodes or have succeeded.
    /// `has_places` says that those that start together were given places.
    pub fn asks<'a>(&self, waiting: &[&'a PodRow], placed: usize, has_places: bool) -> Asks<'a> {
        let not_supported = |what: &str| Unsuitable::NotSupported(what.to_owned());
        let refused = self.refused.as_deref().map(not_supported);
        let least = match self.policy {
            Policy::Basic => 0,
            Policy::Gang(least) => (least as usize).saturating_sub(placed),
        };
        if least == 0 || has_places {
            let is_kept_together = !self.levels.is_empty();
            let beyond = is_kept_together.then(|| {
                not_supported(
                    "a topology constraint for pods of a group that do not start together: those \
                     of the policy `basic`, and those beyond `minCount`",
                )
            });
            return refused.or(beyond).map_or(Asks::Alone, Asks::Not);
        }
        if let Some(why) = refused {
            return Asks::Together(Err(why));
        }
        if waiting.len() < least {
            let there = waiting.len();
            let why = format!("{there} of the {least} pods that start together are there");
            return Asks::Together(Err(Unsuitable::Incomplete(why)));
        }
        let rules = |row: &&PodRow| row.needs.as_ref().map(|needs| needs.nodes.clone());
        let is_like = |one: &&PodRow, other: &&PodRow| {
            one.requests == other.requests && rules(one) == rules(other)
        };
        match waiting.iter().all(|row| is_like(row, &waiting[0])) {
            true => Asks::Together(Ok(waiting[..least].to_vec())),
            false => Asks::Together(Err(not_supported(
                "a group whose pods ask for different devices or nodes",
            ))),
        }
    }

    /// How urgent its pods are: as the group says, or as they say themselves.
    pub fn priority(&self, pod: &PodNeeds) -> Priority {
        // Where nobody names a class the API server writes 0.
        let of_class = self.priority.filter(|value| *value != 0).map(crate::needs::priority);
        self.word.or(of_class).unwrap_or(pod.priority)
    }

    /// Whether those that start together may be stopped for others.
    pub fn is_preemptible(&self, gang: &[&PodRow]) -> bool {
        let says_so = |row: &&PodRow| row.needs.as_ref().is_some_and(|needs| needs.preemptible);
        self.preemptible || gang.iter().all(says_so)
    }

    /// The same of a pod that asks by itself.
    pub fn is_pod_preemptible(&self, needs: &PodNeeds) -> bool {
        !self.is_stopped_whole && (self.preemptible || needs.preemptible)
    }
}

/// The smallest of the parts of the network that labels name.
///
/// # Errors
/// The label that names none.
pub(crate) fn within(
    levels: &[String],
    level: impl Fn(&str) -> Option<Domain>,
) -> Result<Domain, &str> {
    levels.iter().try_fold(Domain::Any, |within, key| {
        let domain = level(key).ok_or(key.as_str())?;
        Ok(within.min(domain))
    })
}

#[cfg(test)]
mod tests;
