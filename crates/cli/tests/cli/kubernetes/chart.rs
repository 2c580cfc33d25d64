//! The Helm chart, rendered by Helm itself and compared with the manifests.

use std::collections::BTreeMap;

use super::*;

/// Of the cluster that it is for: Helm built from its sources takes it for an old one.
const KUBERNETES: (&str, &str) = ("--kube-version", "1.37.2");

/// Objects by what they are and are called.
fn objects(documents: &str) -> BTreeMap<String, Value> {
    let values = documents.split("---\n").filter(|text| !text.trim().is_empty());
    let values = values.map(|text| -> Value {
        serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    });
    let named = values.filter(|it| !it.is_null() && it["kind"] != "Namespace").map(|mut object| {
        if object["kind"] == "CustomResourceDefinition" {
            let annotations = object["metadata"].as_object_mut().expect("it has some");
            annotations.remove("annotations");
        }
        let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
        (format!("{kind} {name} {}", object["metadata"]["namespace"]), object)
    });
    named.collect()
}

/// The manifests with these options are what the chart renders with these values.
#[track_caller]
fn check(helm: &Path, sandbox: &Sandbox, options: &[&str], values: &Value) {
    let chart = sandbox.path().join("chart").display().to_string();
    let values = sandbox.write("values.yaml", &values.to_string()).display().to_string();
    let of_release = ["--namespace", "ml", "--values", &values];
    let arguments =
        [&["template", "r", &chart, KUBERNETES.0, KUBERNETES.1], &of_release[..]].concat();
    let rendered = Command::new(helm).args(arguments).output().expect("`helm` is there");
    let error = String::from_utf8_lossy(&rendered.stderr);
    assert!(rendered.status.success(), "{values}: {error}");
    let always = ["kubernetes", "manifests", "--image", "i:1", "--namespace", "ml"];
    let manifests = sandbox.run(&[&always[..], options].concat());
    assert!(manifests.status.success(), "{}", String::from_utf8_lossy(&manifests.stderr));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (rendered, manifests) =
        (objects(&text(&rendered.stdout)), objects(&text(&manifests.stdout)));
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&rendered), names(&manifests), "{options:?}");
    for (name, object) in &manifests {
        assert_eq!(&rendered[name], object, "{options:?} {name}");
    }
}

#[test]
fn the_chart_renders_what_the_manifests_are() {
    let Some(cluster) = Cluster::find() else { return };
    let helm = cluster.dir.join("helm");
    if !helm.exists() {
        return eprintln!("SKIPPED: `helm` is not built; `cargo xtask cluster build` helps");
    }
    let sandbox = Sandbox::new();
    let chart = sandbox.path().join("chart").display().to_string();
    assert!(sandbox.run(&["kubernetes", "chart", &chart]).status.success());
    assert!(!sandbox.run(&["kubernetes", "chart", &chart]).status.success(), "it is there");
    let lint = Command::new(&helm).args(["lint", "--strict", &chart, "--set", "image=i"]).output();
    let lint = lint.expect("`helm` is there");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));

    check(&helm, &sandbox, &[], &json!({ "image": "i:1" }));
    let several = ["--replicas", "3", "--scheduler-name", "second", "--scheduling-gates"];
    let values = json!({
        "image": "i:1", "replicas": 3, "schedulerName": "second", "schedulingGates": true,
    });
    check(&helm, &sandbox, &several, &values);
    let table = "apiVersion: heterosis.dev/v1alpha1\nkind: DeviceTable\nresources: []\n";
    let path = sandbox.write("table.yaml", table).display().to_string();
    let all = [
        "--jobs-namespace",
        "a",
        "--jobs-namespace",
        "123",
        "--device-table",
        &path,
        "--storage",
        "1Ti",
        "--handed-over-namespaces",
    ];
    let values = json!({
        "image": "i:1", "jobsNamespaces": ["a", "123"], "deviceTable": table, "storage": "1Ti",
        "handedOverNamespaces": true,
    });
    check(&helm, &sandbox, &all, &values);

    let refused = |options: &[&str]| {
        let arguments = [&["template", "r", &chart, KUBERNETES.0, KUBERNETES.1], options].concat();
        let output = Command::new(&helm).args(arguments).output().expect("`helm` is there");
        assert!(!output.status.success(), "{options:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = refused(&[]);
    assert!(error.contains("--set image="), "{error}");
    let error = refused(&["--set", "image=i,replica=2"]);
    assert!(error.contains("replica"), "{error}");
}
