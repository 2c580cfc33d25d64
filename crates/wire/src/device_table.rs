//! Files that say what the extended resources of a cluster's nodes are, where no table of ours
//! lists them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use het_core::{Bytes, Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::{ApiVersion, Form, Problem, Problems, Tree};
use crate::quantity;

/// Resources that nodes offer by the device plug-ins of vendors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceTableFile {
    #[serde(rename = "apiVersion")]
    pub api_version: ApiVersion,
    pub kind: DeviceTableKind,
    /// They come before those that are known anyway.
    pub resources: Vec<ResourceFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeviceTableKind {
    DeviceTable,
}

/// The devices of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceFile {
    /// Its name, or with a `*` at the end how it begins.
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9.-]{0,252}/[A-Za-z0-9._-]{1,63}[*]?$"))]
    pub resource: String,
    /// `gpu`, `npu` or another word for what it is: job files ask for it by this.
    #[schemars(regex(pattern = "^[a-z][a-z-]{0,30}$"))]
    pub kind: String,
    #[schemars(length(min = 1, max = 63))]
    pub vendor: String,
    /// The word for its driver in job files.
    #[schemars(regex(pattern = "^[a-z][a-z0-9-]{0,30}$"))]
    pub driver: String,
    /// The model of all its devices, by which job files ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9.-]{0,62}$"))]
    pub class: Option<String>,
    /// In place of `class`: a label of nodes that tells the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelFile>,
    /// Of each device: `64GiB`. What the catalogue says of the class where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

/// A label of nodes, and which model each of its values stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelFile {
    #[schemars(length(min = 1, max = 317))]
    pub name: String,
    /// Values that are not here name a model of their own.
    #[serde(default)]
    pub classes: BTreeMap<String, String>,
}

/// What the devices of a resource are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRow {
    /// Its name, or with a `*` at the end how it begins.
    pub resource: String,
    pub kind: Name,
    pub vendor: String,
    pub driver: Name,
    pub class: ClassOf,
    pub memory: Option<Bytes>,
}

/// How the class of a device is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassOf {
    Is(String),
    /// By the value of a label.
    Label {
        name: String,
        classes: BTreeMap<String, String>,
    },
}

static FORM: LazyLock<Form> =
    LazyLock::new(|| Form::of("device table", schemars::schema_for!(DeviceTableFile), example_of));

fn example_of(field: &str) -> String {
    let example = match field {
        "apiVersion" => "`apiVersion: heterosis.dev/v1alpha1`",
        "kind" => "`kind: DeviceTable` in the first lines, `kind: npu` for a resource",
        "resource" => "`resource: example.com/npu`",
        "vendor" => "`vendor: Example`",
        "driver" => "`driver: example`",
        "class" => "`class: example-npu-1`",
        "label" => "`label: { name: example.com/product, classes: { NPU-1: example-npu-1 } }`",
        "memory" => "`memory: 64GiB`",
        _ => {
            "`resources: [{ resource: example.com/npu, kind: npu, vendor: Example, driver: \
             example, class: example-npu-1 }]`"
        }
    };
    format!("for example {example}")
}

/// JSON Schema (draft 2020-12) of such a file.
pub fn json_schema() -> Value {
    schemars::schema_for!(DeviceTableFile).to_value()
}

/// Parses a table of resources. `source` names it in messages.
///
/// # Errors
/// Everything that is wrong with the file, in the order of its lines.
pub fn parse(text: &str, source: &str) -> Result<Vec<ResourceRow>, Problems> {
    let all = |problems: Vec<Problem>| Problems::new(text, source, problems);
    let (tree, file): (Tree, DeviceTableFile) = FORM.read(text).map_err(all)?;
    let mut problems = Vec::new();
    let mut rows = Vec::new();
    for (row, resource) in file.resources.iter().enumerate() {
        match read(resource) {
            Ok(resource) => rows.push(resource),
            Err((field, message, hint)) => {
                let place = tree.at(&format!("/resources/{row}{field}"));
                problems.push(place.problem(message, hint.to_owned()));
            }
        }
    }
    if problems.is_empty() { Ok(rows) } else { Err(all(problems)) }
}

/// As the schema has it of `class`.
fn is_class(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= 63
        && text.bytes().next().is_some_and(is_letter)
        && text.bytes().all(|byte| is_letter(byte) || matches!(byte, b'-' | b'.'))
}

/// A field, what is wrong with it, and what to do.
type Fault = (&'static str, String, &'static str);

fn read(file: &ResourceFile) -> Result<ResourceRow, Fault> {
    let class = match (&file.class, &file.label) {
        (Some(class), None) => ClassOf::Is(class.clone()),
        (None, Some(LabelFile { name, classes })) => {
            if let Some(class) = classes.values().find(|class| !is_class(class)) {
                let message = format!("`{class}` is no name of a model");
                return Err(("/label", message, "use small letters, digits, `-` and `.`"));
            }
            ClassOf::Label { name: name.clone(), classes: classes.clone() }
        }
        (None, None) => {
            let message = format!("nothing says what model `{}` is", file.resource);
            return Err(("", message, "add `class:`, or `label:` where nodes say it"));
        }
        (Some(_), Some(_)) => {
            let message = "the model is said twice".to_owned();
            return Err(("/label", message, "leave `class` or `label` away"));
        }
    };
    let memory = file.memory.as_deref().map(|text| {
        quantity::size(text).ok_or_else(|| {
            ("/memory", format!("`{text}` is no size"), "write a number and a unit, as in `32GiB`")
        })
    });
    Ok(ResourceRow {
        resource: file.resource.clone(),
        kind: file.kind.as_str().into(),
        vendor: file.vendor.clone(),
        driver: file.driver.as_str().into(),
        class,
        memory: memory.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: heterosis.dev/v1alpha1\nkind: DeviceTable\nresources:\n";
    const ROW: &str = "- { resource: example.com/npu, kind: npu, vendor: Example, driver: example";

    #[test]
    fn a_row_says_what_a_resource_is() {
        let text = format!("{HEAD}{ROW}, class: example-1, memory: 64GiB }}\n");
        let rows = parse(&text, "table.yaml").expect("it is right");
        assert_eq!(rows[0].class, ClassOf::Is("example-1".to_owned()));
        assert_eq!(rows[0].memory, Some(Bytes::gib(64)));
    }

    #[track_caller]
    fn check(rest: &str, expected: &str) {
        let problems = parse(&format!("{HEAD}{ROW}{rest} }}\n"), "table.yaml").expect_err("wrong");
        assert!(problems.to_string().contains(expected), "{problems}");
    }

    #[test]
    fn what_is_wrong_is_told() {
        check("", "nothing says what model");
        check(", class: a, label: { name: b }", "said twice");
        check(", label: { name: b, classes: { X: \"A B\" } }", "`A B` is no name");
        check(", class: a, memory: much", "`much` is no size");
        check(", class: a, colour: red", "colour");
    }
}
