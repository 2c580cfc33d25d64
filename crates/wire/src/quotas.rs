//! Quota files: what tenants are entitled to and limited to, by device class.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use het_core::{
    Bytes, ClassQuota, DeviceClass, Match, Name, Priority, Quota, Quotas, Share, Topology, lineage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::{ApiVersion, Form, Problem, Problems, Tree};
use crate::job::PriorityFile;
use crate::{quantity, words};

/// What tenants may have of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotasFile {
    #[serde(rename = "apiVersion")]
    pub api_version: ApiVersion,
    pub kind: QuotasKind,
    /// Only an object of Kubernetes needs a name: that of its scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<QuotasMetadata>,
    /// By name. `lab/nlp` is a part of `lab`; whoever is not named has weight 1 and no quota.
    pub tenants: BTreeMap<String, QuotaFile>,
    /// The highest priority that jobs may ask for, where neither their tenant's own row nor that
    /// of a tenant above it says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_max: Option<PriorityFile>,
    /// The disk space that a rank may take up by its output, checkpoints and logs, in the same way:
    /// `200GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_max: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotasMetadata {
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QuotasKind {
    Quotas,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaFile {
    /// Share of what nobody is entitled to, or does not use, beside the weights of others.
    #[serde(default = "weight_default")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub weight: u32,
    /// Devices by class that come back to it whenever it wants them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quota: BTreeMap<String, u32>,
    /// Devices by class that it never holds more of.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limit: BTreeMap<String, u32>,
    /// The highest priority that its jobs may ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_max: Option<PriorityFile>,
    /// The disk space that a rank of its jobs may take up: `200GiB`. More is refused, and jobs that
    /// ask for none get this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_max: Option<String>,
}

fn weight_default() -> u32 {
    1
}

static FORM: LazyLock<Form> =
    LazyLock::new(|| Form::of("quotas", schemars::schema_for!(QuotasFile), example_of));

fn example_of(field: &str) -> String {
    let example = match field {
        "apiVersion" => "`apiVersion: heterosis.dev/v1alpha1`",
        "kind" => "`kind: Quotas`",
        "metadata" | "name" => "`metadata: { name: heterosis }`",
        "weight" => "`weight: 2`",
        "quota" => "`quota: { h100: 8 }`",
        "limit" => "`limit: { h100: 16 }`",
        "priority_max" => "`priority_max: high`",
        "scratch_max" => "`scratch_max: 200GiB`",
        _ => "`tenants: { research: { weight: 2, quota: { h100: 8 } } }`",
    };
    format!("for example {example}")
}

/// JSON Schema (draft 2020-12) of a quota file.
pub fn json_schema() -> Value {
    schemars::schema_for!(QuotasFile).to_value()
}

/// Parses a quota file for a cluster. `source` names it in messages.
///
/// # Errors
/// Everything that is wrong with the file, in the order of its lines.
pub fn parse(text: &str, source: &str, topology: &Topology) -> Result<Quotas, Problems> {
    let Found { quotas, mut problems, of_cluster } = read(text, source, topology)?;
    problems.extend(of_cluster);
    if problems.is_empty() { Ok(quotas) } else { Err(Problems::new(text, source, problems)) }
}

/// The same for a cluster of which some nodes may be away: a class that no node has, and more than
/// there is, are warnings then.
///
/// # Errors
/// Everything else that is wrong with the file, in the order of its lines.
pub fn parse_for_now(
    text: &str,
    source: &str,
    topology: &Topology,
) -> Result<(Quotas, Option<Problems>), Problems> {
    let Found { quotas, problems, of_cluster } = read(text, source, topology)?;
    let told = |problems: Vec<Problem>| Problems::new(text, source, problems);
    if !problems.is_empty() {
        return Err(told(problems));
    }
    Ok((quotas, (!of_cluster.is_empty()).then(|| told(of_cluster))))
}

/// What a file says, and what is wrong with that.
struct Found {
    quotas: Quotas,
    problems: Vec<Problem>,
    /// What the cluster does not have now.
    of_cluster: Vec<Problem>,
}

/// # Errors
/// Where it is no quota file.
fn read(text: &str, source: &str, topology: &Topology) -> Result<Found, Problems> {
    let all = |problems: Vec<Problem>| Problems::new(text, source, problems);
    let (tree, file): (Tree, QuotasFile) = FORM.read(text).map_err(all)?;
    let (problems, of_cluster) = (Vec::new(), Vec::new());
    let mut reader = Reader { topology, tree: &tree, problems, of_cluster };
    let quotas = reader.quotas(&file);
    reader.sums(&quotas);
    let Reader { problems, of_cluster, .. } = reader;
    Ok(Found { quotas, problems, of_cluster })
}

struct Reader<'a> {
    topology: &'a Topology,
    tree: &'a Tree,
    problems: Vec<Problem>,
    /// What the cluster does not have now.
    of_cluster: Vec<Problem>,
}

impl Reader<'_> {
    fn quotas(&mut self, file: &QuotasFile) -> Quotas {
        let mut tenants = BTreeMap::new();
        for (name, quota) in &file.tenants {
            let place = self.tree.at(&pointer(&["tenants", name]));
            if name.split('/').any(str::is_empty) {
                let hint = "write `lab`, or `lab/nlp` for a part of `lab`";
                let message = format!("`{name}` is no name of a tenant");
                self.problems.push(place.problem(message, hint.to_owned()));
            }
            let mut classes: BTreeMap<Name, ClassQuota> = BTreeMap::new();
            for (class, units) in self.units(name, "quota", &quota.quota) {
                classes.entry(class).or_default().entitled = Some(units);
            }
            for (class, units) in self.units(name, "limit", &quota.limit) {
                classes.entry(class).or_default().limit = Some(units);
            }
            for (class, of_class) in &classes {
                if of_class.limit.is_some_and(|limit| of_class.entitled > Some(limit)) {
                    let message = format!("`{name}` has a quota of `{class}` above its limit");
                    let hint = "raise the limit or lower the quota".to_owned();
                    self.problems.push(place.problem(message, hint));
                }
            }
            let at = pointer(&["tenants", name, "priority_max"]);
            let priority_max = self.priority_max(quota.priority_max, &at);
            let at = pointer(&["tenants", name, "scratch_max"]);
            let scratch_max = self.scratch_max(quota.scratch_max.as_deref(), &at);
            let quota = Quota { weight: quota.weight, classes, priority_max, scratch_max };
            tenants.insert(name.as_str().into(), quota);
        }
        let priority_max = self.priority_max(file.priority_max, "/priority_max");
        let scratch_max = self.scratch_max(file.scratch_max.as_deref(), "/scratch_max");
        Quotas { tenants, priority_max, scratch_max }
    }

    fn scratch_max(&mut self, text: Option<&str>, at: &str) -> Option<Bytes> {
        let text = text?;
        let size = quantity::size(text).filter(|size| *size > Bytes::ZERO);
        if size.is_none() {
            let hint = "write for example `200GiB`".to_owned();
            let message = format!("`{text}` is no disk space");
            self.problems.push(self.tree.at(at).problem(message, hint));
        }
        size
    }

    fn priority_max(&mut self, word: Option<PriorityFile>, at: &str) -> Option<Priority> {
        let priority = word.map(Priority::from);
        if priority.is_some_and(|priority| priority < Priority::Normal) {
            let message = "`low` is less than jobs have that ask for nothing".to_owned();
            let hint = "write `normal`, `high` or `urgent`".to_owned();
            self.problems.push(self.tree.at(at).problem(message, hint));
        }
        priority
    }

    /// Whole units by class of this cluster.
    fn units(
        &mut self,
        tenant: &str,
        field: &str,
        rows: &BTreeMap<String, u32>,
    ) -> Vec<(Name, Share)> {
        let mut found = Vec::new();
        for (word, &units) in rows {
            match class(word, &self.topology.classes) {
                Ok(class) => found.push((class, Share::units(units))),
                Err(hint) => {
                    let place = self.tree.at(&pointer(&["tenants", tenant, field, word]));
                    let message = format!("`{word}` is no device class of this cluster");
                    self.of_cluster.push(place.problem(message, hint));
                    found.push((word.as_str().into(), Share::units(units)));
                }
            }
        }
        found
    }

    /// What several tenants are entitled to together has to be there: in the cluster, and in the
    /// quota of the tenant that they are parts of.
    fn sums(&mut self, quotas: &Quotas) {
        let capacity = self.topology.units_by_class();
        for (class, &units) in self.topology.classes.iter().zip(&capacity) {
            let mut promised: BTreeMap<&str, Share> = BTreeMap::new();
            for name in quotas.tenants.keys() {
                let Some(own) = quotas.of(name.as_str(), class.id.as_str()).entitled else {
                    continue;
                };
                let has_quota = |above: &&str| {
                    *above != name.as_str()
                        && quotas.of(above, class.id.as_str()).entitled.is_some()
                };
                let above = lineage(name.as_str()).rev().find(has_quota).unwrap_or_default();
                *promised.entry(above).or_default() += own;
            }
            for (above, sum) in promised {
                let there = match above {
                    "" => Share::units(units),
                    above => quotas.of(above, class.id.as_str()).entitled.unwrap_or_default(),
                };
                if sum > there {
                    let whose = if above.is_empty() { "the cluster" } else { above };
                    let message = format!(
                        "quotas of {} `{}` are given away, but {whose} has {}",
                        sum.whole_units(),
                        class.id,
                        there.whole_units()
                    );
                    let place = self.tree.at("/tenants");
                    self.of_cluster.push(place.problem(message, "lower some of them".to_owned()));
                }
            }
        }
    }
}

fn pointer(steps: &[&str]) -> String {
    let escaped = steps.iter().map(|step| step.replace('~', "~0").replace('/', "~1"));
    escaped.map(|step| format!("/{step}")).collect()
}

/// The one class of the cluster that a word stands for, or a hint.
fn class(word: &str, classes: &[DeviceClass]) -> Result<Name, String> {
    if let Some(exact) = classes.iter().find(|class| class.id == *word) {
        return Ok(exact.id.clone());
    }
    let resolved = words::alternatives(word, classes);
    let named = resolved.iter().flatten().flat_map(|(selector, _)| match &selector.matches {
        Match::Classes(ids) => ids.clone(),
        _ => Vec::new(),
    });
    let here: Vec<Name> = named.filter(|id| classes.iter().any(|class| class.id == *id)).collect();
    match here.as_slice() {
        [only] => Ok(only.clone()),
        _ => {
            let ids: Vec<String> = classes.iter().map(|class| format!("`{}`", class.id)).collect();
            Err(format!("name one of {}", ids.join(", ")))
        }
    }
}
