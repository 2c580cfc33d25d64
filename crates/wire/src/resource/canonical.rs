//! A job file as the specification of a resource, and back.

use het_core::DeviceClass;
use serde_json::{Value, json};
use thiserror::Error;

use super::{GROUP, KIND, VERSION};
use crate::file::Problems;
use crate::job::{self, TrainingJob};

/// Fields that are about files of the machine on which a job is submitted.
pub(super) const OF_A_MACHINE: [&str; 2] = ["stdin", "logs"];
/// The same of an image.
pub(super) const IMAGE_OF_A_MACHINE: [&str; 2] = ["runtime", "mounts"];

/// Why a job file cannot be a resource.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotAResource {
    #[error("stage `{stage}` names no image, and pods run nothing else")]
    NoImage { stage: String },
    #[error("`{field}` of stage `{stage}` is about files of one machine")]
    OfAMachine { stage: String, field: String },
}

impl NotAResource {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoImage { .. } => "write for example `container: registry.example/train:1`",
            Self::OfAMachine { .. } => "leave it out: `kubectl logs` has what pods write",
        }
    }
}

/// The specification of the resource that a job file is, with its parameters filled in.
///
/// # Errors
/// What pods have no part in.
pub fn spec_of(job: &TrainingJob) -> Result<Value, NotAResource> {
    let mut spec = serde_json::to_value(&job.file.spec).expect("shapes always become JSON");
    let fields = spec.as_object_mut().expect("it is an object");
    fields.remove("params");
    if let Some(Value::String(text)) = fields.get("after") {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let parts = json!(parts);
        fields.insert("after".to_owned(), parts);
    }
    for stage in fields["stages"].as_array_mut().into_iter().flatten() {
        canonical_stage(stage)?;
    }
    Ok(spec)
}

fn canonical_stage(stage: &mut Value) -> Result<(), NotAResource> {
    let name = stage["name"].as_str().unwrap_or_default().to_owned();
    let fields = stage.as_object_mut().expect("stages are objects");
    // What pods write is kept by the cluster in either case.
    if fields.get("logs").is_some_and(Value::is_string) {
        fields.remove("logs");
    }
    if let Some(field) = OF_A_MACHINE.iter().find(|field| fields.contains_key(**field)) {
        return Err(NotAResource::OfAMachine { stage: name, field: (*field).to_owned() });
    }
    canonical_words(fields, &name)?;
    if let Some(Value::String(line)) = fields.get("resume") {
        let words = json!(line.split_whitespace().collect::<Vec<_>>());
        fields.insert("resume".to_owned(), words);
    }
    if let Some(Value::String(every)) = fields.get("checkpoint") {
        let full = json!({ "every": every });
        fields.insert("checkpoint".to_owned(), full);
    }
    if let Some(elastic) = fields.get_mut("elastic").and_then(Value::as_object_mut)
        && elastic.get("batch").is_some_and(Value::is_string)
    {
        // The only word says what is done without one.
        elastic.remove("batch");
    }
    let has_image = fields.contains_key("container");
    let alternatives = fields.get_mut("alternatives").and_then(Value::as_array_mut);
    let mut all_have = alternatives.as_ref().is_some_and(|rows| !rows.is_empty());
    for alternative in alternatives.into_iter().flatten() {
        let fields = alternative.as_object_mut().expect("alternatives are objects");
        canonical_words(fields, &name)?;
        all_have &= fields.contains_key("container");
    }
    // Devices of its own have the stage's image.
    if !has_image && (!all_have || fields.contains_key("devices")) {
        return Err(NotAResource::NoImage { stage: name });
    }
    Ok(())
}

/// What a stage and its alternatives have in common.
fn canonical_words(
    fields: &mut serde_json::Map<String, Value>,
    stage: &str,
) -> Result<(), NotAResource> {
    if let Some(Value::String(line)) = fields.get("run") {
        let words = json!(["/bin/sh", "-c", line]);
        fields.insert("run".to_owned(), words);
    }
    match fields.get("container") {
        Some(Value::String(image)) => {
            let full = json!({ "image": image });
            fields.insert("container".to_owned(), full);
            Ok(())
        }
        Some(Value::Object(image)) => {
            let of_machine = IMAGE_OF_A_MACHINE.iter().find(|field| image.contains_key(**field));
            match of_machine {
                Some(field) => Err(NotAResource::OfAMachine {
                    stage: stage.to_owned(),
                    field: format!("container.{field}"),
                }),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// The job of a resource, whose tenant is its namespace, for a cluster with these classes of
/// devices beside those of the catalogue.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read(
    (namespace, name): (&str, &str),
    spec: &Value,
    classes: &[DeviceClass],
) -> Result<TrainingJob, Problems> {
    let file = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": { "name": name, "tenant": namespace },
        "spec": spec,
    });
    let text = serde_json::to_string_pretty(&file).expect("JSON becomes text");
    job::parse_with(&text, &format!("trainingjob {namespace}/{name}"), &[], classes)
}
