//! The cluster of the tests.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Instant;

use het_core::{Container, Millis};
use het_kubernetes::{Access, Election, Leadership, Standby};
use het_wire::resource::{GROUP, VERSION};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, Config, Error};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A cluster, as its administrator sees it.
pub struct Cluster {
    pub kubeconfig: PathBuf,
    client: Client,
    runtime: Runtime,
}

impl Cluster {
    /// `None`, loudly, where none runs.
    #[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
    pub fn find() -> Option<Self> {
        let kubeconfig = match std::env::var_os("HET_TEST_KUBECONFIG") {
            Some(path) => PathBuf::from(path),
            None => target().join("kubernetes/admin.kubeconfig"),
        };
        if !kubeconfig.exists() {
            eprintln!("SKIPPED: no cluster runs; `cargo xtask cluster up` starts one");
            return None;
        }
        let runtime = Runtime::new().expect("threads can be had");
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(&kubeconfig).expect("it is a kubeconfig");
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(file, &options).await;
            Client::try_from(config.expect("it has a context")).expect("it has a server")
        });
        Some(Self { kubeconfig, client, runtime })
    }

    /// A way to it, and the lead of a scheduler there. Whoever comes next takes it at once, as the
    /// server of a home that was killed does.
    pub fn led(&self, scheduler: &str) -> (het_kubernetes::Cluster, Leadership) {
        let access = Access { kubeconfig: Some(self.kubeconfig.clone()), context: None };
        let way = het_kubernetes::Cluster::connect(access, since_boot);
        let way = way.expect("the cluster answers");
        let election = Election {
            namespace: "default".to_owned(),
            name: scheduler.to_owned(),
            identity: "the tests".to_owned(),
        };
        let leadership = way.lead(election, |_| Standby::Wait).expect("nobody else leads");
        (way, leadership)
    }

    /// Makes an object of a kind that is named here; one that is there stays as it is.
    pub fn make(&self, kind: &str, namespace: Option<&str>, object: &Value) {
        match self.try_make(kind, namespace, object) {
            Err(Error::Api(status)) if status.code == 409 => {}
            made => drop(made.expect("the server takes it")),
        }
    }

    pub fn try_make(
        &self,
        kind: &str,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<DynamicObject, Error> {
        let object = serde_json::from_value(object.clone()).expect("it is an object");
        let parameters = PostParams::default();
        self.runtime.block_on(self.api(kind, namespace).create(&parameters, &object))
    }

    /// Makes a kind known, and waits until it is.
    pub fn define(&self, definition: &Value) {
        self.make("CustomResourceDefinition", None, definition);
        let name = definition["metadata"]["name"].as_str().expect("it has a name");
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let known = await_condition(api, name, conditions::is_crd_established());
        self.runtime.block_on(known).expect("the server takes it");
    }

    /// Ready for pods: those of a namespace without its service account are refused.
    pub fn make_namespace(&self, name: &str) {
        let metadata = json!({ "name": name });
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
        self.make("Namespace", None, &object);
        let api = self.api("ServiceAccount", Some(name));
        let is_there = |account: Option<&DynamicObject>| account.is_some();
        let there = await_condition(api, "default", is_there);
        self.runtime.block_on(there).expect("the controller manager makes it");
    }

    /// A node that kwok plays.
    pub fn make_node(&self, name: &str, has: &Value, labels: &Value) {
        self.make(
            "Node",
            None,
            &json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {
                    "name": name, "labels": labels,
                    "annotations": { "kwok.x-k8s.io/node": "fake" },
                },
                "status": { "capacity": has, "allocatable": has },
            }),
        );
    }

    pub fn delete(&self, kind: &str, namespace: Option<&str>, name: &str) {
        let api = self.api(kind, namespace);
        let deleted = self.runtime.block_on(api.delete(name, &DeleteParams::default()));
        deleted.expect("it is there");
    }

    pub fn patch(&self, kind: &str, name: &str, change: &Value) {
        self.try_patch(kind, None, name, change).expect("it is there");
    }

    pub fn try_patch(
        &self,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        change: &Value,
    ) -> Result<DynamicObject, Error> {
        let api = self.api(kind, namespace);
        let (parameters, change) = (PatchParams::default(), Patch::Merge(change));
        self.runtime.block_on(api.patch(name, &parameters, &change))
    }

    fn api(&self, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = match kind {
            "TrainingJob" => (GROUP, VERSION),
            "CustomResourceDefinition" => ("apiextensions.k8s.io", "v1"),
            "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
                ("admissionregistration.k8s.io", "v1")
            }
            _ => ("", "v1"),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match namespace {
            None => Api::all_with(self.client.clone(), &resource),
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }
}

fn since_boot() -> Millis {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Millis(BEGAN.elapsed().as_millis() as u64)
}

/// An image of which nobody knows anything.
pub fn container() -> Container {
    Container {
        image: "registry.example/none".to_owned(),
        runtime: None,
        mounts: Vec::new(),
        volumes: Vec::new(),
    }
}

/// A name that no other run of the tests has.
pub fn unique(prefix: &str) -> String {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("the clock is set");
    format!("{prefix}-{}", since.as_nanos() / 1_000 % 1_000_000_000_000)
}

fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}
