//! The server itself, in a pod that keeps the `restricted` standard.

use serde_json::{Value, json};

use super::{ManifestOptions, NAME};
use crate::names::Binding;

/// Where the server keeps its log.
const HOME: &str = "/var/lib/heterosis";
/// Where files of its ConfigMap lie.
const CONFIGURATION: &str = "/etc/heterosis";
const TABLE: &str = "device-table.yaml";
/// A user that is not root; nothing in the image belongs to it.
const USER: u32 = 65_532;

/// One server with a volume for its log, or several of which each can go on without.
pub(super) fn objects(options: &ManifestOptions, image: &str, labels: &Value) -> Vec<Value> {
    let metadata = json!({ "name": NAME, "namespace": options.namespace, "labels": labels });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOncePod"],
            "resources": { "requests": { "storage": options.storage } },
        },
    });
    let is_alone = options.replicas <= 1;
    let home = match is_alone {
        true => json!({ "name": "home", "persistentVolumeClaim": { "claimName": NAME } }),
        false => json!({ "name": "home", "emptyDir": {} }),
    };
    let table = options.device_table.as_ref().map(|text| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": { TABLE: text },
        })
    });
    let mut mounts = vec![
        json!({ "name": "home", "mountPath": HOME }),
        json!({ "name": "tmp", "mountPath": "/tmp" }),
    ];
    let mut volumes = vec![home, json!({ "name": "tmp", "emptyDir": {} })];
    if table.is_some() {
        mounts.push(json!({ "name": "configuration", "mountPath": CONFIGURATION }));
        volumes.push(json!({ "name": "configuration", "configMap": { "name": NAME } }));
    }
    let mut container = json!({
        "name": "server", "image": image, "command": command(options, image),
        "env": [{ "name": "HET_HOME", "value": HOME }],
        "resources": {
            "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "memory": "1Gi" },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": mounts,
    });
    if is_alone {
        // Whoever waits to lead answers nobody, and is as ready as can be.
        let probe = json!({ "command": ["het", "server", "status"] });
        container["readinessProbe"] = json!({ "exec": probe, "periodSeconds": 10 });
    }
    let pod = json!({
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [container],
        "volumes": volumes,
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": options.replicas,
            // A volume is one pod's at a time.
            "strategy": { "type": if is_alone { "Recreate" } else { "RollingUpdate" } },
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    });
    // Whoever asks it something does so inside of its pod: `kubectl exec`.
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
        "spec": { "podSelector": { "matchLabels": labels }, "policyTypes": ["Ingress"] },
    });
    let before = table.into_iter().chain(is_alone.then_some(claim));
    before.chain([deployment, policy]).collect()
}

fn command(options: &ManifestOptions, image: &str) -> Vec<String> {
    let mut words = vec!["het", "server", "--engine", "kubernetes"];
    words.extend(["--scheduler-name", &options.scheduler]);
    words.extend(["--lease-namespace", &options.namespace]);
    if !options.jobs_namespaces.is_empty() {
        words.extend(["--rank-image", image]);
    }
    if options.binding == Binding::KubeScheduler {
        words.push("--scheduling-gates");
    }
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    if options.device_table.is_some() {
        words.extend(["--device-table".to_owned(), format!("{CONFIGURATION}/{TABLE}")]);
    }
    words
}
