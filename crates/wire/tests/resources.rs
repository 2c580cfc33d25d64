//! Job files as resources of Kubernetes, and back.

use std::collections::BTreeMap;

use het_core::JobSpec;
use het_wire::job::{Context, TrainingJob, parse};
use het_wire::resource::{NotAResource, definition, read, spec_of};
use het_wire::topology::from_word;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

fn resolved(job: &TrainingJob) -> JobSpec {
    let cluster = from_word("epyc-h100x8-910b").expect("the word is known").topology;
    let env = BTreeMap::new();
    let context = Context::new(&cluster.classes, &["llama3-8b"], &env);
    job.resolve(&context).unwrap_or_else(|problems| panic!("{problems}"))
}

fn file(spec: &str) -> String {
    format!(
        "apiVersion: heterosis.dev/v1alpha1\nkind: TrainingJob\n\
         metadata: {{ name: llama, tenant: lab }}\nspec: {spec}"
    )
}

/// Ways to write one field.
fn field(name: &'static str, values: &'static [&'static str]) -> impl Strategy<Value = String> {
    let one = select(values).prop_map(move |value| format!("{name}: {value}"));
    prop_oneof![Just(String::new()), one]
}

/// Fields that only mean something together.
const TOGETHER: [&str; 7] = [
    "",
    "devices: 'h100:4:24GiB | cpu:2'",
    "devices: 'h100:1', alternatives: [{ devices: '910b:1', run: python npu.py, container: c:1 }]",
    "devices: 'h100:4', drivers: [cuda], alternatives: [{ devices: '910b:1', drivers: [cann] }]",
    "checkpoint: { dir: '{workdir}/c' }, resume: [--resume, '{checkpoint}']",
    "devices: 'h100:8', elastic: { min: 1, max: 8 }, checkpoint: 10m, \
     resume: '--resume {checkpoint}'",
    "devices: 'h100:8', elastic: { min: 2, max: 8, batch: keep }, resume: '--from {checkpoint}', \
     checkpoint: { every: 60s, grace: 5s }",
];

fn stage() -> impl Strategy<Value = String> {
    let fields = (
        select(&["'python train.py --lr {param.lr}'", "[python, train.py]"][..]),
        select(&["docker.io/library/debian:12", "{ image: a/b:1 }"][..]),
        select(&TOGETHER[..]).prop_map(str::to_owned),
        field("logs", &["ranks"]),
        field("with", &["{ cores: 4, memory: 8GiB }"]),
        field("topology", &["{ within: node }"]),
    );
    fields.prop_map(|(run, image, together, logs, with, within)| {
        let fields = [together, logs, with, within].into_iter().filter(|it| !it.is_empty());
        let fields: String = fields.map(|field| format!(", {field}")).collect();
        format!("{{ name: train, kind: train, run: {run}, container: {image}{fields} }}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_resource_is_the_job_of_its_file(
        stage in stage(),
        after in field("after", &["'41,prepare:any'", "['41', '42:ok']"]),
        priority in field("priority", &["high"]),
    ) {
        let fields = [after, priority].into_iter().filter(|field| !field.is_empty());
        let fields: String = fields.map(|field| format!("{field}, ")).collect();
        let text = file(&format!("{{ {fields}params: {{ lr: 0.1 }}, stages: [{stage}] }}"));
        let job = parse(&text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
        let spec = spec_of(&job).expect("it has an image");
        let back = read(("lab", "llama"), &spec, &[]);
        let back = back.unwrap_or_else(|problems| panic!("{problems}"));
        prop_assert_eq!(resolved(&back), resolved(&job));
        prop_assert_eq!(spec_of(&back).expect("it has one still"), spec.clone());
        check_schema(&definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &spec);
    }
}

/// Every field of the specification is one of the schema, and of its type.
#[track_caller]
fn check_schema(schema: &Value, spec: &Value) {
    let validator = jsonschema::validator_for(&strict(&schema["properties"]["spec"]));
    let validator = validator.expect("it is a schema");
    let errors: Vec<String> = validator.iter_errors(spec).map(|it| it.to_string()).collect();
    assert_eq!(errors, [""; 0], "{spec}");
}

/// The server refuses unknown fields by itself.
fn strict(schema: &Value) -> Value {
    let mut strict = match schema {
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), strict(value))).collect()
        }
        Value::Array(items) => return items.iter().map(strict).collect(),
        other => return other.clone(),
    };
    let fields: &mut serde_json::Map<String, Value> = &mut strict;
    if fields.get("properties").is_some_and(|it| it.is_object()) && fields.contains_key("type") {
        fields.insert("additionalProperties".to_owned(), json!(false));
    }
    Value::Object(strict)
}

#[track_caller]
fn check_refused(stage: &str, expected: &NotAResource) {
    let text = file(&format!("{{ stages: [{stage}] }}"));
    let job = parse(&text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(spec_of(&job).as_ref(), Err(expected));
}

#[test]
fn what_pods_have_no_part_in_is_refused() {
    let stage = "train".to_owned();
    let no_image = NotAResource::NoImage { stage: stage.clone() };
    check_refused("{ name: train, run: [a] }", &no_image);
    let some = "{ name: train, run: [a], devices: 'gpu:1', \
                alternatives: [{ devices: 'cpu:1', container: c }] }";
    check_refused(some, &no_image);
    let of_machine =
        |field: &str| NotAResource::OfAMachine { stage: stage.clone(), field: field.to_owned() };
    check_refused("{ name: train, run: [a], container: c, stdin: in.txt }", &of_machine("stdin"));
    let mounts = "{ name: train, run: [a], container: { image: c, mounts: [/data] } }";
    check_refused(mounts, &of_machine("container.mounts"));
    let logs = "{ name: train, run: [a], container: c, logs: { stdout: out.txt } }";
    check_refused(logs, &of_machine("logs"));
}

/// What the API server asks of a structural schema.
#[test]
fn the_schema_is_structural() {
    fn check(schema: &Value, path: &str) {
        for word in ["$ref", "anyOf", "oneOf", "allOf", "const", "$defs"] {
            assert!(schema.get(word).is_none(), "{path} has `{word}`");
        }
        assert!(schema["type"].is_string(), "{path} has no type: {schema}");
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            check(field, &format!("{path}.{name}"));
        }
        for one in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get(one) {
                check(inner, &format!("{path}.{one}"));
            }
        }
    }
    check(&definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "trainingjob");
}
