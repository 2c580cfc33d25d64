//! The JSON Schema of job files in either form.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::shape::{JobFile, ShortJob, is_long};
use crate::file::{Form, Problem, Tree};

/// JSON Schema (draft 2020-12) of a job file in either form.
pub fn json_schema() -> Value {
    let long = schemars::schema_for!(JobFile).to_value();
    let short = schemars::schema_for!(ShortJob).to_value();
    let mut definitions = Map::new();
    let parts = [long, short].map(|mut schema| {
        if let Some(Value::Object(defs)) = schema.get_mut("$defs").map(Value::take) {
            definitions.extend(defs);
        }
        if let Some(object) = schema.as_object_mut() {
            object.remove("$defs");
            object.remove("$schema");
        }
        schema
    });
    serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Heterosis training job",
        "anyOf": parts,
        "$defs": definitions,
    })
}

static LONG: LazyLock<Form> =
    LazyLock::new(|| Form::of("job", schemars::schema_for!(JobFile), example_of));
static SHORT: LazyLock<Form> =
    LazyLock::new(|| Form::of("job", schemars::schema_for!(ShortJob), example_of));

/// Everything in the tree that the schema does not allow.
pub(crate) fn problems(tree: &Tree) -> Vec<Problem> {
    if is_long(tree) { LONG.problems(tree) } else { SHORT.problems(tree) }
}

fn example_of(field: &str) -> String {
    let example = match field {
        "run" => "`run: [python, train.py]`, every word a text",
        "devices" => "`devices: \"gpu:1 | cpu:2\"`",
        "name" => "`name: llama-lora`",
        "apiVersion" => "`apiVersion: heterosis.dev/v1alpha1`",
        "kind" => "`kind: TrainingJob`",
        "metadata" => "`metadata: { name: llama-lora }`",
        "stages" => "`stages: [{ name: train, run: [python, train.py], devices: \"gpu:1\" }]`",
        "checkpoint" => "`checkpoint: { every: 10m }`",
        "retries" => "`retries: 3`",
        "restarts" => "`restarts: 5`",
        "stall" => "`stall: 30m`",
        "preemptible" => "`preemptible: false`",
        "min_runtime" => "`min_runtime: 10m`",
        "trains" => "`trains: { model: llama3-8b, batch: 256 }`",
        "after" => "`after: [preprocess]`",
        "elastic" => "`elastic: { min: 1, max: 8 }`",
        "batch" => "`batch: keep` or `batch: { min: 64, max: 512 }`",
        _ => return "see `het schema job`".to_owned(),
    };
    format!("for example {example}")
}
