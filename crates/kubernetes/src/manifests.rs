//! What a cluster is given so that a server can schedule it: the definition of jobs, an account
//! with as few rights as the server needs, and the server itself. No I/O.

use het_wire::resource::{GROUP, PLURAL, definition};
use serde_json::{Value, json};

/// Name of most objects, and of the label that all of them have.
const NAME: &str = "heterosis";
/// Where the server keeps its log.
const HOME: &str = "/var/lib/heterosis";
/// A user that is not root; nothing in the image belongs to it.
const USER: u32 = 65_532;

/// What may differ from cluster to cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOptions {
    /// Where the server runs.
    pub namespace: String,
    /// The image that it runs in, with `het` on its path; no server is among the objects without.
    pub image: Option<String>,
    /// The `schedulerName` of its pods.
    pub scheduler: String,
    /// Of the volume for its log.
    pub storage: String,
}

/// The objects, in an order in which they can be made.
pub fn manifests(options: &ManifestOptions) -> Vec<Value> {
    let ManifestOptions { namespace, .. } = options;
    let labels = json!({ "app.kubernetes.io/name": NAME });
    let mut objects = vec![
        definition(),
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {
                    "app.kubernetes.io/name": NAME,
                    "pod-security.kubernetes.io/enforce": "restricted",
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": NAME, "namespace": namespace, "labels": labels },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": NAME, "labels": labels }, "rules": rules(),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": NAME, "labels": labels },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME,
            },
            "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": namespace }],
        }),
    ];
    if let Some(image) = &options.image {
        objects.extend(server(options, image, &labels));
    }
    objects
}

/// What the server does, and nothing else: it reads nodes and pods, makes, binds and deletes pods
/// and their services, and tells jobs how they stand.
fn rules() -> Value {
    json!([
        { "apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"] },
        {
            "apiGroups": [""], "resources": ["pods"],
            "verbs": ["get", "list", "watch", "create", "delete"],
        },
        { "apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"] },
        { "apiGroups": [""], "resources": ["services"], "verbs": ["create", "delete"] },
        {
            "apiGroups": [GROUP], "resources": [PLURAL],
            "verbs": ["list", "watch", "create"],
        },
        { "apiGroups": [GROUP], "resources": [format!("{PLURAL}/status")], "verbs": ["patch"] },
    ])
}

/// One server: two of one `schedulerName` must not run at once, so the old one goes first.
fn server(options: &ManifestOptions, image: &str, labels: &Value) -> Vec<Value> {
    let metadata = json!({ "name": NAME, "namespace": options.namespace, "labels": labels });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOncePod"],
            "resources": { "requests": { "storage": options.storage } },
        },
    });
    let container = json!({
        "name": "server", "image": image,
        "command": ["het", "server", "--engine", "kubernetes",
            "--scheduler-name", options.scheduler],
        "env": [{ "name": "HET_HOME", "value": HOME }],
        "readinessProbe": {
            "exec": { "command": ["het", "server", "status"] }, "periodSeconds": 10,
        },
        "resources": {
            "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "memory": "1Gi" },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": [
            { "name": "home", "mountPath": HOME }, { "name": "tmp", "mountPath": "/tmp" },
        ],
    });
    let pod = json!({
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [container],
        "volumes": [
            { "name": "home", "persistentVolumeClaim": { "claimName": NAME } },
            { "name": "tmp", "emptyDir": {} },
        ],
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": 1, "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    });
    // Whoever asks it something does so inside of its pod: `kubectl exec`.
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
        "spec": { "podSelector": { "matchLabels": labels }, "policyTypes": ["Ingress"] },
    });
    vec![claim, deployment, policy]
}
