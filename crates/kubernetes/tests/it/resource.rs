//! The definition of `TrainingJob` on a real API server.

use het_wire::job::parse;
use het_wire::resource::{definition, spec_of};
use kube::Error;
use serde_json::{Value, json};

use crate::rig::{Cluster, unique};

const FILE: &str = "
apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: llama }
spec:
  priority: high
  stages:
    - { name: preprocess, kind: preprocess, run: python tokenize.py, container: example/train:1 }
    - name: train
      kind: train
      after: [preprocess]
      run: [torchrun, train.py]
      container: registry.example/train:1
      devices: h100:8 | a100:16
      elastic: { min: 2, max: 16 }
      checkpoint: 10m
      resume: --resume {checkpoint}
      env: { HF_HOME: /models }
";

fn job(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// The server's message where it refuses the job.
fn refusal(cluster: &Cluster, spec: &Value) -> String {
    match cluster.try_make("TrainingJob", Some("default"), &job(&unique("bad"), spec)) {
        Err(Error::Api(status)) => status.message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_file_is_taken_and_a_bad_one_refused_with_our_message() {
    let Some(cluster) = Cluster::find() else { return };
    cluster.define(&definition());
    let file = parse(FILE, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let spec = spec_of(&file).expect("it has images");
    let name = unique("good");
    let made = cluster.try_make("TrainingJob", Some("default"), &job(&name, &spec));
    // Nothing was pruned.
    assert_eq!(made.expect("it is a good job").data["spec"], spec);

    let with = |change: fn(&mut Value)| {
        let mut spec = spec.clone();
        change(&mut spec);
        refusal(&cluster, &spec)
    };
    let message = with(|spec| spec["stages"][1]["after"] = json!(["tokenise"]));
    assert!(message.contains("`after` names a stage that the job does not have"), "{message}");
    let message = with(|spec| spec["stages"][1]["elastic"] = json!({ "min": 8, "max": 2 }));
    assert!(message.contains("`elastic` needs numbers of devices"), "{message}");
    let message = with(|spec| spec["stages"][0]["name"] = json!("train"));
    assert!(message.contains("Duplicate value"), "{message}");
    let message = with(|spec| spec["priority"] = json!("top"));
    assert!(
        message.contains("supported values: \"urgent\", \"high\", \"normal\", \"low\""),
        "{message}"
    );
    let message = with(|spec| {
        spec["stages"][0].as_object_mut().expect("a stage").remove("container");
    });
    assert!(message.contains("a stage needs an image"), "{message}");

    let change = json!({ "spec": { "stages": [{ "name": "train", "run": ["other"] }] } });
    let changed = cluster.try_patch("TrainingJob", Some("default"), &name, &change);
    let Err(Error::Api(status)) = changed else { panic!("{changed:?}") };
    assert!(status.message.contains("the stages of a job cannot be changed"), "{status:?}");
    let change = json!({ "spec": { "time_limit": "6h" } });
    let changed = cluster.try_patch("TrainingJob", Some("default"), &name, &change);
    let Err(Error::Api(status)) = changed else { panic!("{changed:?}") };
    assert!(status.message.contains("`time_limit` of a job cannot be changed"), "{status:?}");
    let change = json!({ "spec": { "priority": "low" } });
    let changed = cluster.try_patch("TrainingJob", Some("default"), &name, &change);
    drop(changed.expect("the priority may be changed"));
    cluster.delete("TrainingJob", Some("default"), &name);
}
