//! Files that declare devices which discovery cannot see: an accelerator without a driver that we
//! know, or pretended ones for a trial.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use het_core::{Bytes, Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::catalogue::{self, Sheet};
use crate::file::{ApiVersion, Form, Problem, Problems, Tree};
use crate::quantity;

/// Devices of one node beside those that it finds by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DevicesFile {
    #[serde(rename = "apiVersion")]
    pub api_version: ApiVersion,
    pub kind: DevicesKind,
    pub devices: Vec<DeviceFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DevicesKind {
    Devices,
}

/// Devices of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceFile {
    /// `gpu`, `npu` or another word for what it is: job files ask for it by this.
    #[schemars(regex(pattern = "^[a-z][a-z-]{0,30}$"))]
    pub kind: String,
    /// Its model: job files ask for it by this, and speeds are measured by it.
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9.-]{0,62}$"))]
    pub class: String,
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub count: u32,
    /// Of each: `32GiB`. What the catalogue says of the class where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The environment variable that tells a program which of them it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[A-Z][A-Z0-9_]{0,62}$"))]
    pub variable: Option<String>,
    /// What that variable calls each of them; `0`, `1` and so on where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    /// The word for its driver in job files; its class where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z][a-z0-9-]{0,30}$"))]
    pub driver: Option<String>,
    /// Its name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// It is not there: for trying how jobs would be scheduled if it were.
    #[serde(default)]
    pub pretended: bool,
}

fn one() -> u32 {
    1
}

/// Devices of one class that a file declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredDevices {
    pub kind: Name,
    pub class: Name,
    /// For people.
    pub model: String,
    pub vendor: String,
    pub driver: Name,
    /// Of each; zero where it is not known.
    pub memory: Bytes,
    /// Tells a program which of them it has.
    pub variable: Option<String>,
    /// What the variable calls each of them, in order; no two are the same.
    pub ids: Vec<String>,
    pub pretended: bool,
}

static FORM: LazyLock<Form> =
    LazyLock::new(|| Form::of("devices", schemars::schema_for!(DevicesFile), example_of));

fn example_of(field: &str) -> String {
    let example = match field {
        "apiVersion" => "`apiVersion: heterosis.dev/v1alpha1`",
        "kind" => "`kind: Devices` in the first lines, `kind: npu` for a device",
        "class" => "`class: ascend-910b3`",
        "count" => "`count: 8`",
        "memory" => "`memory: 32GiB`",
        "variable" => "`variable: PHOTON_VISIBLE_DEVICES`",
        "ids" => "`ids: [\"0\", \"1\"]`",
        "driver" => "`driver: photon`",
        "pretended" => "`pretended: true`",
        _ => "`devices: [{ kind: npu, class: ascend-910b3, count: 8, pretended: true }]`",
    };
    format!("for example {example}")
}

/// JSON Schema (draft 2020-12) of such a file.
pub fn json_schema() -> Value {
    schemars::schema_for!(DevicesFile).to_value()
}

/// Parses a file of declared devices. `source` names it in messages.
///
/// # Errors
/// Everything that is wrong with the file, in the order of its lines.
pub fn parse(text: &str, source: &str) -> Result<Vec<DeclaredDevices>, Problems> {
    let all = |problems: Vec<Problem>| Problems::new(text, source, problems);
    let (tree, file): (Tree, DevicesFile) = FORM.read(text).map_err(all)?;
    let mut problems = Vec::new();
    let mut declared = Vec::new();
    for (row, device) in file.devices.iter().enumerate() {
        let place = |field: &str| tree.at(&format!("/devices/{row}{field}"));
        match read(device) {
            Ok(devices) => declared.push(devices),
            Err((field, message, hint)) => {
                problems.push(place(field).problem(message, hint.to_owned()));
            }
        }
    }
    if problems.is_empty() { Ok(declared) } else { Err(all(problems)) }
}

/// A field, what is wrong with it, and what to do.
type Fault = (&'static str, String, &'static str);

fn read(device: &DeviceFile) -> Result<DeclaredDevices, Fault> {
    if device.kind == "cpu" {
        let message = "processors cannot be declared".to_owned();
        return Err(("/kind", message, "discovery finds every processor of the machine"));
    }
    let sheet = catalogue::sheet(&device.class);
    if device.variable.is_none() && !device.pretended {
        let message = format!("nothing tells a program which `{}` it has", device.class);
        return Err(("", message, "add `variable: NAME_OF_THE_VARIABLE`, or `pretended: true`"));
    }
    Ok(DeclaredDevices {
        kind: device.kind.as_str().into(),
        class: device.class.as_str().into(),
        model: model(device, sheet),
        vendor: sheet.map_or_else(String::new, |sheet| sheet.vendor.clone()),
        driver: device.driver.as_deref().unwrap_or(&device.class).into(),
        memory: memory(device)?,
        variable: device.variable.clone(),
        ids: ids(device)?,
        pretended: device.pretended,
    })
}

fn model(device: &DeviceFile, sheet: Option<&Sheet>) -> String {
    let known = sheet.map_or_else(|| device.class.clone(), |sheet| sheet.title.clone());
    device.model.clone().unwrap_or(known)
}

fn memory(device: &DeviceFile) -> Result<Bytes, Fault> {
    match &device.memory {
        Some(text) => quantity::size(text).ok_or_else(|| {
            ("/memory", format!("`{text}` is no size"), "write a number and a unit, as in `32GiB`")
        }),
        None => Ok(catalogue::memory(&device.class).unwrap_or(Bytes::ZERO)),
    }
}

fn ids(device: &DeviceFile) -> Result<Vec<String>, Fault> {
    let Some(ids) = &device.ids else {
        return Ok((0..device.count).map(|number| number.to_string()).collect());
    };
    if ids.len() != device.count as usize {
        let message = format!("{} ids for {} devices", ids.len(), device.count);
        return Err(("/ids", message, "name each device once, or leave `ids` away"));
    }
    let is_plain = |id: &&String| {
        !id.is_empty()
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    if let Some(odd) = ids.iter().find(|id| !is_plain(id)) {
        let message = format!("`{odd}` is no id of a device");
        return Err(("/ids", message, "use letters, digits, and `-`, `_`, `.`, `:`"));
    }
    if ids.iter().collect::<BTreeSet<_>>().len() != ids.len() {
        let message = "two devices have the same id".to_owned();
        return Err(("/ids", message, "name each device once"));
    }
    Ok(ids.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: heterosis.dev/v1alpha1\nkind: Devices\ndevices:\n";

    fn told(rows: &str) -> String {
        let problems = parse(&format!("{HEAD}{rows}"), "devices.yaml").expect_err("it is wrong");
        problems.to_string()
    }

    #[test]
    fn a_card_without_a_driver_that_we_know() {
        let rows = "- { kind: npu, class: photon-p1, count: 2, memory: 32GiB, \
                    variable: PHOTON_VISIBLE_DEVICES, ids: [a, b] }\n";
        let declared = parse(&format!("{HEAD}{rows}"), "devices.yaml").expect("it is right");
        let [photon] = declared.as_slice() else { panic!("one class: {declared:?}") };
        assert_eq!((photon.driver.as_str(), photon.model.as_str()), ("photon-p1", "photon-p1"));
        assert_eq!((photon.memory, photon.pretended), (Bytes::gib(32), false));
        assert_eq!(photon.ids, ["a", "b"]);
    }

    #[test]
    fn the_catalogue_knows_memory_and_name_of_a_pretended_one() {
        let rows = "- { kind: gpu, class: h100-sxm5-80, count: 8, pretended: true }\n";
        let declared = parse(&format!("{HEAD}{rows}"), "devices.yaml").expect("it is right");
        assert_eq!(declared[0].ids.len(), 8);
        assert!(declared[0].memory >= Bytes::gib(74), "{:?}", declared[0].memory);
        assert!(declared[0].model.contains("H100"), "{}", declared[0].model);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let nothing = told("- { kind: npu, class: photon-p1 }\n");
        assert!(nothing.contains("devices.yaml:4") && nothing.contains("variable"), "{nothing}");
        let all = "- { kind: cpu, class: x, pretended: true }\n\
                   - { kind: npu, class: x, memory: lots, pretended: true }\n\
                   - { kind: npu, class: x, ids: [a], count: 2, pretended: true }\n\
                   - { kind: npu, class: x, ids: [a, a], count: 2, pretended: true }\n\
                   - { kind: npu, class: x, ids: ['a,b'], pretended: true }\n";
        let all = told(all);
        for part in ["processors", "no size", "1 ids for 2", "the same id", "`a,b`"] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert!(told("- { kind: NPU 1, class: x, pretended: true }\n").contains("kind"));
    }
}
