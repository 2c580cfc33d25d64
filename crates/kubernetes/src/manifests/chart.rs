//! The same objects as a Helm chart: what its values say is left open, and all else is as the
//! manifests have it.
//!
//! A chart is not written, it is found: the manifests are made for every combination of the
//! switches that decide which objects there are, with placeholders where a value belongs. What all
//! combinations have in common stands once, and what differs stands under the switch that it
//! differs by.

use std::collections::BTreeMap;

use het_wire::yaml;
use serde_json::{Value, json};

use super::{ManifestOptions, manifests};
use crate::names::{Binding, SCHEDULER};

/// A file of a chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartFile {
    /// Relative to the chart.
    pub path: String,
    pub text: String,
}

/// A value that decides which objects there are, and as what templates ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Switch {
    Several,
    SchedulingGates,
    JobsNamespaces,
    HandedOverNamespaces,
    DeviceTable,
}

const SWITCHES: [(Switch, &str); 5] = [
    (Switch::Several, "gt (int $.Values.replicas) 1"),
    (Switch::SchedulingGates, "$.Values.schedulingGates"),
    (Switch::JobsNamespaces, "$.Values.jobsNamespaces"),
    (Switch::HandedOverNamespaces, "$.Values.handedOverNamespaces"),
    (Switch::DeviceTable, "$.Values.deviceTable"),
];

/// Words of which none occurs in the manifests otherwise, and what stands in their place.
const PLACEHOLDERS: [(&str, &str); 6] = [
    ("namespace-of-the-release", "$.Release.Namespace"),
    ("scheduler-of-the-release", "$.Values.schedulerName"),
    (
        "image-of-the-release",
        "required \"say which image has `het`: --set image=…\" $.Values.image",
    ),
    ("storage-of-the-release", "$.Values.storage"),
    ("table-of-the-release", "$.Values.deviceTable"),
    (EACH, "."),
];
/// A namespace of jobs: objects that name it are made for each.
const EACH: &str = "namespace-of-jobs";
const REPLICAS: u32 = 424_242;

/// Which switches are on.
type Setting = BTreeMap<Switch, bool>;
/// Kind, namespace and name of an object.
type Key = (String, String, String);

/// The files of a chart of this version.
pub fn chart(version: &str) -> Vec<ChartFile> {
    let variants: Vec<(Setting, BTreeMap<Key, Value>)> = settings()
        .into_iter()
        .map(|setting| {
            let objects = manifests(&options(&setting)).into_iter().map(of_release);
            let keyed = objects.filter(|it| it["kind"] != "Namespace").map(|it| (key(&it), it));
            (setting, keyed.collect())
        })
        .collect();
    let mut keys: Vec<&Key> = variants.iter().flat_map(|(_, objects)| objects.keys()).collect();
    keys.sort();
    keys.dedup();
    let mut templates: BTreeMap<String, String> = BTreeMap::new();
    for key in keys {
        let of_key = variants.iter().map(|(setting, objects)| (setting, objects.get(key)));
        let text = template(&of_key.collect::<Vec<_>>(), &SWITCHES);
        let file = templates.entry(key.0.to_lowercase()).or_default();
        *file += &text;
    }
    let templates = templates
        .into_iter()
        .map(|(kind, text)| ChartFile { path: format!("templates/{kind}.yaml"), text });
    let about = [
        ("Chart.yaml", chart_yaml(version)),
        ("values.yaml", VALUES.to_owned()),
        ("values.schema.json", format!("{:#}\n", schema())),
        ("templates/NOTES.txt", NOTES.to_owned()),
    ];
    let about = about.map(|(path, text)| ChartFile { path: path.to_owned(), text });
    about.into_iter().chain(templates).collect()
}

fn settings() -> Vec<Setting> {
    let many = 1u32 << SWITCHES.len();
    let of = |number: u32| {
        let switches = SWITCHES.iter().enumerate();
        switches.map(|(at, (switch, _))| (*switch, number & (1 << at) != 0)).collect()
    };
    (0..many).map(of).collect()
}

/// With placeholders for what is no switch.
fn options(setting: &Setting) -> ManifestOptions {
    let [(namespace, _), (scheduler, _), (image, _), (storage, _), (table, _), _] = PLACEHOLDERS;
    let is_on = |switch| setting[&switch];
    ManifestOptions {
        namespace: namespace.to_owned(),
        image: Some(image.to_owned()),
        scheduler: scheduler.to_owned(),
        storage: storage.to_owned(),
        replicas: if is_on(Switch::Several) { REPLICAS } else { 1 },
        binding: match is_on(Switch::SchedulingGates) {
            true => Binding::KubeScheduler,
            false => Binding::Own,
        },
        jobs_namespaces: is_on(Switch::JobsNamespaces)
            .then(|| EACH.to_owned())
            .into_iter()
            .collect(),
        handed_over: is_on(Switch::HandedOverNamespaces),
        device_table: is_on(Switch::DeviceTable).then(|| table.to_owned()),
    }
}

/// Jobs are objects of these definitions: they outlive the release.
fn of_release(mut object: Value) -> Value {
    if object["kind"] == "CustomResourceDefinition" {
        object["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    }
    object
}

fn key(object: &Value) -> Key {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    (word(&object["kind"]), word(&metadata["namespace"]), word(&metadata["name"]))
}

/// An object as it is in these variants, under the switches that it differs by.
fn template(variants: &[(&Setting, Option<&Value>)], switches: &[(Switch, &str)]) -> String {
    let first = variants.first().and_then(|(_, object)| *object);
    if variants.iter().all(|(_, object)| *object == first) {
        return first.map(document).unwrap_or_default();
    }
    let Some(((switch, condition), rest)) = switches.split_first() else { return String::new() };
    let with = |is_on: bool| {
        let of = variants.iter().filter(|(setting, _)| setting[switch] == is_on).copied();
        template(&of.collect::<Vec<_>>(), rest)
    };
    match (with(true), with(false)) {
        (on, off) if on == off => on,
        (on, off) if off.is_empty() => format!("{{{{- if {condition} }}}}\n{on}{{{{- end }}}}\n"),
        (on, off) if on.is_empty() => {
            format!("{{{{- if not ({condition}) }}}}\n{off}{{{{- end }}}}\n")
        }
        (on, off) => {
            format!("{{{{- if {condition} }}}}\n{on}{{{{- else }}}}\n{off}{{{{- end }}}}\n")
        }
    }
}

fn document(object: &Value) -> String {
    let text = yaml::to_text(object);
    let mut filled = String::from("---\n");
    for line in text.trim_end().lines() {
        filled += &line_of(line);
        filled.push('\n');
    }
    match text.contains(EACH) {
        true => format!("{{{{- range $.Values.jobsNamespaces }}}}\n{filled}{{{{- end }}}}\n"),
        false => filled,
    }
}

/// A placeholder that is all of a scalar is quoted: a name may look like a number.
fn line_of(line: &str) -> String {
    let mut line = line.replace(&REPLICAS.to_string(), "{{ $.Values.replicas }}");
    for (word, value) in PLACEHOLDERS {
        if let Some(before) = line.strip_suffix(word)
            && (before.ends_with(": ") || before.ends_with("- "))
        {
            line = format!("{before}{{{{ {value} | quote }}}}");
        }
        line = line.replace(word, &format!("{{{{ {value} }}}}"));
    }
    line
}

fn chart_yaml(version: &str) -> String {
    yaml::to_text(&json!({
        "apiVersion": "v2", "name": SCHEDULER, "type": "application", "version": version,
        "appVersion": version, "kubeVersion": ">= 1.30.0-0",
        "description": "Schedules training and fine-tuning across unlike devices",
    }))
}

const VALUES: &str = "\
# An image with `het` on its path, which the server runs in.
image: \"\"
# The `schedulerName` of its pods.
schedulerName: heterosis
# How many servers: one leads, the others wait, and none has a volume then.
replicas: 1
# Size of the volume for the log of one server.
storage: 10Gi
# kube-scheduler gives pods their nodes, once this scheduler has chosen.
schedulingGates: false
# Namespaces of jobs whose ranks `het rank` supervises.
jobsNamespaces: []
# Namespaces with the label `heterosis.dev/scheduler` are handed over. Needs Kubernetes 1.36.
handedOverNamespaces: false
# The text of a device table: what resources of nodes are, before what vendors' plug-ins offer.
deviceTable: \"\"
";

const NOTES: &str = "\
Heterosis schedules what names `schedulerName: {{ .Values.schedulerName }}`, and TrainingJobs.

  kubectl -n {{ .Release.Namespace }} exec deploy/heterosis -- het ps
  kubectl explain trainingjob.spec

Uninstalling leaves jobs and their definitions alone.
";

/// What values are taken.
fn schema() -> Value {
    let name = json!({ "type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" });
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "image": { "type": "string" },
            "schedulerName": name,
            "replicas": { "type": "integer", "minimum": 1 },
            "storage": { "type": "string", "pattern": "^[0-9.]+[A-Za-z]*$" },
            "schedulingGates": { "type": "boolean" },
            "jobsNamespaces": { "type": "array", "items": name },
            "handedOverNamespaces": { "type": "boolean" },
            "deviceTable": { "type": "string" },
            // Of charts that this one is part of.
            "global": { "type": "object" },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_have_in_common_stands_once() {
        let files = chart("1.2.3");
        let file = |path: &str| {
            let found = files.iter().find(|file| file.path == path);
            &found.unwrap_or_else(|| panic!("{path} in {files:#?}")).text
        };
        let accounts = file("templates/serviceaccount.yaml");
        assert!(accounts.contains("{{- range $.Values.jobsNamespaces }}"), "{accounts}");
        assert!(
            file("templates/deployment.yaml").contains("{{- if gt (int $.Values.replicas) 1 }}")
        );
        let role = file("templates/clusterrole.yaml");
        assert!(role.contains("name: {{ $.Values.schedulerName | quote }}"), "{role}");
        assert!(!files.iter().any(|file| file.path.contains("/namespace.yaml")));
        assert!(files.iter().all(|file| !file.text.contains("-of-the-release")));
    }
}
