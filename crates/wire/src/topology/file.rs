//! Cluster files: node groups by template or spelled out, a fabric, figures of device classes.

mod build;
mod shape;

use std::sync::LazyLock;

use serde_json::Value;

use super::Cluster;
use crate::file::{Form, Problem, Problems, Tree};
use shape::ClusterFile;

static FORM: LazyLock<Form> =
    LazyLock::new(|| Form::of("cluster", schemars::schema_for!(ClusterFile), example_of));

fn example_of(field: &str) -> String {
    let example = match field {
        "apiVersion" => "`apiVersion: heterosis.dev/v1alpha1`",
        "kind" => "`kind: Cluster`",
        "metadata" | "name" => "`metadata: { name: lab }`",
        "count" => "`count: 4`",
        "speed" | "card_speed" => "`speed: 400G`",
        "bandwidth" => "`bandwidth: 25GB/s`",
        "memory" => "`memory: 64GiB`",
        "oversubscription" | "between_pods" => "`oversubscription: 2`",
        "fabric" => "`fabric: { template: rail, oversubscription: 2 }`",
        "classes" => "`classes: { ascend-910b: { bf16_tflops: 376 } }`",
        "devices" => "`devices: [{ name: gpu0, class: l40s }]`",
        "from" | "to" | "links" => "`links: [{ from: gpu0, to: cpu0, kind: pcie }]`",
        _ => "`nodes: [{ template: hgx-h100-8, count: 4 }]`",
    };
    format!("for example {example}")
}

/// JSON Schema (draft 2020-12) of a cluster file.
pub fn json_schema() -> Value {
    schemars::schema_for!(ClusterFile).to_value()
}

/// Parses a cluster file (YAML or JSON). `source` names it in messages.
///
/// # Errors
/// Everything that is wrong with the file, in the order of its lines.
pub fn parse(text: &str, source: &str) -> Result<Cluster, Problems> {
    let all = |problems: Vec<Problem>| Problems::new(text, source, problems);
    let (tree, file): (Tree, ClusterFile) = FORM.read(text).map_err(all)?;
    build::build(&file, &tree).map_err(all)
}
