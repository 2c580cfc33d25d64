//! Workloads that somebody else made and that are handed over suspended; their controllers are the
//! real ones.

use super::*;

/// Pods of a workload, each with so many devices of the class that is called so.
fn template(server: &str, class: &str, devices: u32, command: &[&str]) -> Value {
    let mut resources = json!({ "cpu": "500m" });
    if devices > 0 {
        resources["nvidia.com/gpu"] = json!(devices.to_string());
    }
    // Of those without devices any node will do.
    let selector = (devices > 0).then(|| json!({ "nvidia.com/gpu.product": product(class) }));
    json!({
        "spec": {
            "schedulerName": server, "restartPolicy": "Never", "nodeSelector": selector,
            "containers": [{
                "name": "pytorch", "image": "i", "command": command,
                "resources": { "requests": resources, "limits": resources },
            }],
        },
    })
}

fn product(class: &str) -> String {
    format!("NVIDIA-{}", class.to_uppercase())
}

fn job(name: &str, (pods, template): (u32, Value), annotations: Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": name, "namespace": "default", "annotations": annotations },
        "spec": {
            "suspend": true, "parallelism": pods, "completions": pods,
            "completionMode": "Indexed", "backoffLimit": 0, "template": template,
        },
    })
}

impl Cluster {
    fn workload(&self, resource: &str, name: &str) -> Value {
        let output = self.kubectl(&["get", resource, name, "-o", "json"]).output();
        serde_json::from_slice(&output.expect("`kubectl` is there").stdout).unwrap_or_default()
    }

    fn knows(&self, resource: &str) -> bool {
        let output = self.kubectl(&["get", "customresourcedefinition", resource]).output();
        output.expect("`kubectl` is there").status.success()
    }

    /// Nodes of the pods of a workload that run, in order.
    fn nodes_of_running(&self, label: &str, name: &str) -> Vec<String> {
        self.nodes_of_selected(&format!("{label}={name}"))
    }

    fn nodes_of_selected(&self, selector: &str) -> Vec<String> {
        let path = "{range .items[?(@.status.phase==\"Running\")]}{.spec.nodeName}{\"\\n\"}{end}";
        let format = format!("jsonpath={path}");
        let told = self.told(&["get", "pods", "--selector", selector, "-o", &format]);
        let mut nodes: Vec<String> = told.lines().map(str::to_owned).collect();
        nodes.sort();
        nodes
    }

    /// Pods of a workload, whatever they are like.
    fn count_of(&self, label: &str, name: &str) -> usize {
        let selector = format!("{label}={name}");
        let told = self.told(&["get", "pods", "--selector", &selector, "-o", "name"]);
        told.lines().count()
    }

    /// Two nodes, each with two devices of one class.
    fn make_pair(&self, class: &str) -> [String; 2] {
        let nodes = ["x", "y"].map(|it| format!("{class}-{it}"));
        for node in &nodes {
            let label = ("nvidia.com/gpu.product", product(class));
            self.make_node_with(node, &[("nvidia.com/gpu", 2)], (label.0, &label.1));
        }
        nodes
    }
}

/// A server with a pair of nodes of a class that is called as it is.
fn with_pair(cluster: &Cluster, prefix: &str) -> (String, [String; 2], Served) {
    let class = unique(prefix);
    let nodes = cluster.make_pair(&class);
    let served = served(cluster, &class);
    wait_for("the nodes", || {
        let devices = served.told(&["devices"]);
        nodes.iter().all(|node| devices.contains(node))
    });
    (class, nodes, served)
}

fn await_job(served: &Served, name: &str, state: &str) {
    wait_for(&format!("`{name}` is {state}"), || {
        let rows = jobs(served);
        rows.iter().rev().find(|(_, job, _)| job == name).is_some_and(|(_, _, it)| it == state)
    });
}

fn id_of(served: &Served, name: &str) -> String {
    let rows = jobs(served);
    let row = rows.iter().rev().find(|(_, job, _)| job == name);
    row.map(|(id, ..)| id.to_string()).expect("it has a job")
}

/// An urgent job of others that wants the whole pair for a second.
fn make_urgent(cluster: &Cluster, class: &str) -> String {
    let name = format!("{class}-urgent");
    let pods = (2, template(class, class, 2, &["finish", "1s"]));
    let urgently = json!({ "heterosis.dev/priority": "urgent" });
    cluster.apply(&job(&name, pods, urgently).to_string());
    name
}

const OF_JOB: &str = "batch.kubernetes.io/job-name";
const OF_JOB_SET: &str = "jobset.sigs.k8s.io/jobset-name";
const JOB_SETS: &str = "jobsets.jobset.x-k8s.io";

#[test]
fn a_job_of_others_starts_whole_or_not_at_all_and_is_suspended_for_an_urgent_one() {
    let Some(cluster) = Cluster::find() else { return };
    let (class, nodes, served) = with_pair(&cluster, "workload-job");

    let [long, large, urgent] = ["long", "large", "urgent"].map(|it| unique(&format!("w-{it}")));
    let pods =
        |count, devices, command: &[&str]| (count, template(&class, &class, devices, command));
    cluster.apply(&job(&long, pods(2, 2, &["until-notice"]), json!({})).to_string());
    wait_for("its pods", || cluster.nodes_of_running(OF_JOB, &long) == nodes);
    await_job(&served, &long, "running");

    // Two of three would have a place.
    cluster.apply(&job(&large, pods(3, 2, &["until-notice"]), json!({})).to_string());
    let of_it = format!("regarding.name={large},reason=FailedScheduling");
    wait_for("why it waits", || {
        let events = ["get", "events.events.k8s.io", "--field-selector", &of_it, "-o", "name"];
        !cluster.told(&events).is_empty()
    });
    assert_eq!(cluster.count_of(OF_JOB, &large), 0);

    // The next server goes on with what runs.
    kill(server_process(&served), Signal::SIGKILL).expect("it runs");
    wait_for("the next server", || served.code(&["ps"]) == Some(0));
    await_job(&served, &long, "running");

    let urgently = json!({ "heterosis.dev/priority": "urgent" });
    cluster.apply(&job(&urgent, pods(2, 2, &["finish", "1s"]), urgently).to_string());
    wait_for("the first is suspended", || {
        cluster.workload("job", &long)["spec"]["suspend"] == true
    });
    await_job(&served, &urgent, "succeeded");
    wait_for("it goes on", || cluster.nodes_of_running(OF_JOB, &long) == nodes);
    await_job(&served, &long, "running");
    // A stop is none of its failures.
    assert!(cluster.workload("job", &long)["status"]["failed"].as_u64().unwrap_or_default() == 0);

    assert_eq!(served.code(&["cancel", &id_of(&served, &long)]), Some(0));
    wait_for("its end", || cluster.count_of(OF_JOB, &long) == 0);
    await_job(&served, &long, "cancelled");
    wait_for("the note of its end", || {
        let job = cluster.workload("job", &long);
        job["metadata"]["annotations"]["heterosis.dev/ended"] == "cancelled"
    });
    // No server takes it in again.
    kill(server_process(&served), Signal::SIGKILL).expect("it runs");
    wait_for("the next server", || served.code(&["ps"]) == Some(0));
    cluster.told(&["delete", "job", &large, &urgent, "--wait=false"]);
    await_job(&served, &large, "cancelled");
    await_job(&served, &long, "cancelled");
    cluster.told(&["delete", "job", &long, "--wait=false"]);
    cluster.told(&["delete", "node", &nodes[0], &nodes[1]]);
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_decided_again(&served, 3);
}

#[test]
fn a_job_of_others_leaves_a_lost_node() {
    let Some(cluster) = Cluster::find() else { return };
    let (class, nodes, served) = with_pair(&cluster, "workload-lost");
    let name = unique("w-lost");
    let mut object = job(&name, (2, template(&class, &class, 2, &["until-notice"])), json!({}));
    object["spec"]["backoffLimit"] = json!(6);
    cluster.apply(&object.to_string());
    wait_for("its pods", || cluster.nodes_of_running(OF_JOB, &name) == nodes);

    let spare = format!("{class}-z");
    let product = product(&class);
    cluster.make_node_with(&spare, &[("nvidia.com/gpu", 2)], ("nvidia.com/gpu.product", &product));
    wait_for("the node", || served.told(&["devices"]).contains(&spare));
    cluster.told(&["annotate", "node", &nodes[1], "heterosis.dev/ready=false"]);
    let ready = ["get", "node", &nodes[1], "-o"];
    let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    wait_for("it is lost", || cluster.told(&[&ready[..], &[path]].concat()) == "False");
    // As Kubernetes does after five minutes.
    let on_it = format!("spec.nodeName={}", nodes[1]);
    let selector = format!("{OF_JOB}={name}");
    let delete = ["delete", "pod", "--field-selector", &on_it, "--selector", &selector, "--force"];
    cluster.told(&delete);
    let expected = [nodes[0].clone(), spare.clone()];
    wait_for("it goes on", || cluster.nodes_of_running(OF_JOB, &name) == expected);
    cluster.told(&["delete", "job", &name, "--wait=false"]);
    cluster.told(&["delete", "node", &nodes[0], &nodes[1], &spare]);
}

#[test]
fn a_job_set_of_others_starts_with_all_its_workers_and_its_driver_beside_them() {
    let Some(cluster) = Cluster::find() else { return };
    if !cluster.knows(JOB_SETS) {
        return eprintln!("SKIPPED: the controller of `JobSet` was not built");
    }
    let (class, nodes, served) = with_pair(&cluster, "workload-set");
    let name = unique("w-set");
    let replicated = |name: &str, replicas: u32, devices: u32| {
        let template = template(&class, &class, devices, &["finish", "1s"]);
        json!({
            "name": name, "replicas": replicas,
            "template": { "spec": {
                "parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template,
            } },
        })
    };
    let set = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "suspend": true,
            "replicatedJobs": [replicated("driver", 1, 0), replicated("worker", 2, 2)],
        },
    });
    cluster.apply(&set.to_string());
    await_job(&served, &name, "succeeded");
    let conditions = cluster.workload("jobset", &name)["status"]["conditions"].take();
    let conditions = conditions.as_array().cloned().unwrap_or_default();
    assert!(conditions.iter().any(|it| it["type"] == "Completed" && it["status"] == "True"));
    cluster.told(&["delete", "jobset", &name, "--wait=false"]);
    cluster.told(&["delete", "node", &nodes[0], &nodes[1]]);
}

#[test]
fn a_pytorch_job_that_its_owner_suspends_is_held() {
    let Some(cluster) = Cluster::find() else { return };
    if !cluster.knows("pytorchjobs.kubeflow.org") {
        return eprintln!("SKIPPED: the controller of `PyTorchJob` was not built");
    }
    const OF_PYTORCH_JOB: &str = "training.kubeflow.org/job-name";
    let (class, nodes, served) = with_pair(&cluster, "workload-torch");
    let name = unique("w-torch");
    let role = json!({
        "replicas": 1, "restartPolicy": "Never",
        "template": template(&class, &class, 2, &["until-notice"]),
    });
    let object = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "runPolicy": { "suspend": true },
            "pytorchReplicaSpecs": { "Master": role, "Worker": role },
        },
    });
    cluster.apply(&object.to_string());
    wait_for("its pods", || cluster.nodes_of_running(OF_PYTORCH_JOB, &name) == nodes);

    let suspend = "{\"spec\":{\"runPolicy\":{\"suspend\":true}}}";
    cluster.told(&["patch", "pytorchjob", &name, "--type", "merge", "--patch", suspend]);
    await_job(&served, &name, "held");
    wait_for("its pods are gone", || cluster.count_of(OF_PYTORCH_JOB, &name) == 0);
    assert_eq!(served.code(&["release", &id_of(&served, &name)]), Some(0));
    wait_for("its pods", || cluster.nodes_of_running(OF_PYTORCH_JOB, &name) == nodes);

    cluster.told(&["delete", "pytorchjob", &name, "--wait=false"]);
    await_job(&served, &name, "cancelled");
    cluster.told(&["delete", "node", &nodes[0], &nodes[1]]);
}

#[test]
fn a_train_job_of_others_is_suspended_for_an_urgent_one() {
    let Some(cluster) = Cluster::find() else { return };
    if !cluster.knows("trainjobs.trainer.kubeflow.org") || !cluster.knows(JOB_SETS) {
        return eprintln!("SKIPPED: the controller of `TrainJob` was not built");
    }
    let (class, nodes, served) = with_pair(&cluster, "workload-train");
    let step = json!({ "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" });
    let mut pods = template(&class, &class, 2, &["until-notice"]);
    pods["spec"]["containers"][0]["name"] = json!("node");
    let of_step = json!({ "metadata": { "labels": step }, "spec": { "template": pods } });
    let runtime = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime",
        "metadata": { "name": class },
        "spec": {
            "mlPolicy": { "numNodes": 2, "torch": { "numProcPerNode": 1 } },
            "template": { "spec": {
                "replicatedJobs": [{ "name": "node", "template": of_step }],
            } },
        },
    });
    cluster.apply(&runtime.to_string());
    let name = unique("w-train");
    let object = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "suspend": true,
            "runtimeRef": { "name": class, "kind": "ClusterTrainingRuntime" },
        },
    });
    cluster.apply(&object.to_string());
    wait_for("its pods", || cluster.nodes_of_running(OF_JOB_SET, &name) == nodes);
    await_job(&served, &name, "running");

    // Its set is suspended by its controller; the object that people made says so itself.
    let urgent = make_urgent(&cluster, &class);
    wait_for("it is suspended", || cluster.workload("trainjob", &name)["spec"]["suspend"] == true);
    await_job(&served, &urgent, "succeeded");
    wait_for("it goes on", || cluster.nodes_of_running(OF_JOB_SET, &name) == nodes);
    await_job(&served, &name, "running");
    cluster.told(&["delete", "trainjob", &name, "--wait=false"]);
    await_job(&served, &name, "cancelled");
    cluster.told(&["delete", "job", &urgent, "--wait=false"]);
    cluster.told(&["delete", "clustertrainingruntime", &class, "--wait=false"]);
    cluster.told(&["delete", "node", &nodes[0], &nodes[1]]);
}

#[test]
fn a_ray_cluster_of_others_is_suspended_for_an_urgent_job() {
    let Some(cluster) = Cluster::find() else { return };
    if !cluster.knows("rayclusters.ray.io") {
        return eprintln!("SKIPPED: the controller of `RayCluster` was not built");
    }
    let (class, nodes, served) = with_pair(&cluster, "workload-ray");
    let group = |devices: u32| {
        let mut pods = template(&class, &class, devices, &[]);
        // Ray makes them anew itself, and says how they begin.
        pods["spec"].as_object_mut().expect("it is one").remove("restartPolicy");
        pods
    };
    let name = unique("w-ray");
    let object = json!({
        "apiVersion": "ray.io/v1", "kind": "RayCluster",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "suspend": true, "rayVersion": "2.46.0",
            "headGroupSpec": { "rayStartParams": {}, "template": group(0) },
            "workerGroupSpecs": [{
                "groupName": "workers", "replicas": 2, "minReplicas": 2, "maxReplicas": 2,
                "rayStartParams": {}, "template": group(2),
            }],
        },
    });
    cluster.apply(&object.to_string());
    // The head stands wherever there is a core.
    let selector = format!("ray.io/cluster={name},ray.io/node-type=worker");
    let workers = || cluster.nodes_of_selected(&selector);
    wait_for("its workers", || workers() == nodes);
    await_job(&served, &name, "running");

    let urgent = make_urgent(&cluster, &class);
    wait_for("its suspension", || cluster.workload("raycluster", &name)["spec"]["suspend"] == true);
    await_job(&served, &urgent, "succeeded");
    wait_for("it goes on", || workers() == nodes);
    cluster.told(&["delete", "raycluster", &name, "--wait=false"]);
    await_job(&served, &name, "cancelled");
    cluster.told(&["delete", "job", &urgent, "--wait=false"]);
    cluster.told(&["delete", "node", &nodes[0], &nodes[1]]);
}

#[test]
fn a_topology_object_says_what_a_rack_is() {
    let Some(cluster) = Cluster::find() else { return };
    if !cluster.knows("topologies.kueue.x-k8s.io") {
        return eprintln!("SKIPPED: the cluster does not know Kueue's `Topology`");
    }
    let (class, nodes, served) = with_pair(&cluster, "topology");
    let label = format!("test.example/{class}");
    cluster.told(&["label", "node", &nodes[0], &nodes[1], &format!("{label}=r1")]);
    let name = unique("w-rack");
    let pods = (2, template(&class, &class, 2, &["until-notice"]));
    let within = json!({ "heterosis.dev/topology": "rack" });
    cluster.apply(&job(&name, pods, within).to_string());
    wait_for("why it waits", || {
        let told = served.told(&["explain", &name]);
        told.contains("rack")
    });
    assert_eq!(cluster.count_of(OF_JOB, &name), 0, "each node is a rack of its own");
    let levels = [json!({ "nodeLabel": label }), json!({ "nodeLabel": "kubernetes.io/hostname" })];
    let topology = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology",
        "metadata": { "name": class }, "spec": { "levels": levels },
    });
    cluster.apply(&topology.to_string());
    wait_for("its pods", || cluster.nodes_of_running(OF_JOB, &name) == nodes);
    cluster.told(&["delete", "topologies.kueue.x-k8s.io", &class]);
    cluster.told(&["delete", "job", &name, "--wait=false"]);
    cluster.told(&["delete", "node", &nodes[0], &nodes[1]]);
}
