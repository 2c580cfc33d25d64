//! Pods that somebody else made and that name our scheduler.

use super::*;

/// A pod that asks a scheduler for so many devices of a class that has a node's name.
pub(super) fn pod(
    name: &str,
    (scheduler, node): (&str, &str),
    count: u32,
    command: &[&str],
) -> Value {
    let devices = json!({ "nvidia.com/gpu": count.to_string(), "cpu": "500m" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "schedulerName": scheduler, "restartPolicy": "Never",
            "nodeSelector": { "nvidia.com/gpu.product": format!("NVIDIA-{}", node.to_uppercase()) },
            "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
            "containers": [{
                "name": "main", "image": "i", "command": command,
                "resources": { "requests": devices, "limits": devices },
            }],
        },
    })
}

impl Cluster {
    pub(super) fn await_phase(&self, name: &str, phase: &str) {
        wait_for(&format!("`{name}` is {phase}"), || self.pod(name)["status"]["phase"] == *phase);
    }

    /// Reason and message of the condition that says whether a pod has a node.
    pub(super) fn why(&self, name: &str) -> (String, String) {
        let pod = self.pod(name);
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let condition = conditions.into_iter().find(|it| it["type"] == "PodScheduled");
        let condition = condition.unwrap_or_default();
        let word = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        (word("reason"), word("message"))
    }
}

fn state_of(served: &Served, name: &str) -> String {
    let found = jobs(served).into_iter().rev().find(|(_, job, _)| job == name);
    found.map(|(_, _, state)| state).unwrap_or_default()
}

#[test]
fn pods_of_others_get_nodes_and_are_told_why_they_wait() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("sixth");
    cluster.make_node(&node, 2);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));
    let [first, second, third] = ["a", "b", "c"].map(|it| unique(&format!("pod-{it}")));
    let ours = (node.as_str(), node.as_str());
    cluster.apply(&pod(&first, ours, 1, &["until-notice"]).to_string());
    cluster.apply(&pod(&second, ours, 1, &["until-notice"]).to_string());
    cluster.await_phase(&first, "Running");
    cluster.await_phase(&second, "Running");
    assert_eq!(cluster.pod(&first)["spec"]["nodeName"], *node);
    let of_it = format!("regarding.name={first},reason=Scheduled");
    wait_for("its event", || {
        let told = cluster.told(&["get", "events.events.k8s.io", "--field-selector", &of_it]);
        told.contains("Successfully assigned")
    });

    cluster.apply(&pod(&third, ours, 1, &["finish", "100ms"]).to_string());
    wait_for("why it waits", || cluster.why(&third).0 == "Unschedulable");
    assert_eq!(state_of(&served, &third), "queued");

    // The next server knows them by their uid.
    let server = server_process(&served);
    kill(server, Signal::SIGKILL).expect("it runs");
    let uid = cluster.pod(&first)["metadata"]["uid"].clone();
    cluster.told(&["delete", "pod", &second, "--wait=false"]);
    cluster.await_phase(&third, "Succeeded");
    wait_for("its end", || state_of(&served, &third) == "succeeded");
    wait_for("the end of the deleted", || state_of(&served, &second) == "cancelled");
    assert_eq!(state_of(&served, &first), "running");
    assert_eq!(cluster.pod(&first)["metadata"]["uid"], uid);

    // Whoever cancels the job deletes the pod.
    let rows = jobs(&served);
    let id = rows.iter().find(|(_, name, _)| *name == first).map(|(id, _, _)| id.to_string());
    assert_eq!(served.code(&["cancel", &id.expect("it has a job")]), Some(0));
    wait_for("its end", || cluster.pod(&first).is_null());
    cluster.told(&["delete", "node", &node]);
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_decided_again(&served, 3);
}

#[test]
fn pods_that_ask_for_what_is_not_considered_are_told_so() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("seventh");
    cluster.make_node(&node, 2);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));
    let [port, elsewhere] = ["port", "elsewhere"].map(unique);
    let mut asks = pod(&port, (&node, &node), 1, &["until-notice"]);
    asks["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 80 }]);
    cluster.apply(&asks.to_string());
    wait_for("why it waits", || cluster.why(&port).0 == "Waiting");
    assert!(cluster.why(&port).1.contains("a port of the host"), "{:?}", cluster.why(&port));

    // A node that comes later will do.
    let late = unique("eighth");
    cluster.apply(&pod(&elsewhere, (&node, &late), 1, &["until-notice"]).to_string());
    wait_for("why it waits", || cluster.why(&elsewhere).0 == "Unschedulable");
    assert!(cluster.why(&elsewhere).1.contains("labels"), "{:?}", cluster.why(&elsewhere));
    cluster.make_node(&late, 1);
    cluster.await_phase(&elsewhere, "Running");
    for name in [&port, &elsewhere] {
        cluster.told(&["delete", "pod", name, "--wait=false"]);
    }
    cluster.told(&["delete", "node", &node, &late]);
}

#[test]
fn a_table_says_what_a_resource_is_that_nobody_knows() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("tenth");
    let label = ("example.com/product", node.as_str());
    cluster.make_node_with(&node, &[("example.com/npu", 2)], label);
    let sandbox = Sandbox::new();
    let table = format!(
        "apiVersion: heterosis.dev/v1alpha1\nkind: DeviceTable\nresources:\n- resource: \
         example.com/npu\n  kind: npu\n  vendor: Example\n  driver: example\n  label: {{ name: \
         example.com/product, classes: {{ {node}: {node} }} }}\n"
    );
    let table = sandbox.write("table.yaml", &table).display().to_string();
    let manifests = ["kubernetes", "manifests", "--image", "i", "--device-table", &table];
    let manifests = String::from_utf8_lossy(&sandbox.run(&manifests).stdout).into_owned();
    assert!(manifests.contains("kind: ConfigMap") && manifests.contains(&node), "{manifests}");
    cluster.apply(&String::from_utf8_lossy(&sandbox.run(&["kubernetes", "manifests"]).stdout));
    begin_with(&cluster, &sandbox, &node, &["--device-table", &table]);
    let served = Served(sandbox);
    wait_for("the server", || served.code(&["ps"]) == Some(0));
    wait_for("the node", || served.told(&["devices"]).contains(&node));

    let name = unique("table");
    let mut asks = pod(&name, (&node, &node), 0, &["until-notice"]);
    let devices = json!({ "example.com/npu": "1" });
    let resources = json!({ "requests": devices, "limits": devices });
    asks["spec"]["containers"][0]["resources"] = resources;
    asks["spec"]["nodeSelector"] = json!({ "example.com/product": node });
    cluster.apply(&asks.to_string());
    cluster.await_phase(&name, "Running");
    cluster.told(&["delete", "pod", &name, "--wait=false"]);
    cluster.told(&["delete", "node", &node]);
}

#[test]
fn pods_that_name_one_resource_get_the_model_that_each_selects() {
    let Some(cluster) = Cluster::find() else { return };
    let [one, other] = ["eleventh", "twelfth"].map(unique);
    cluster.make_node(&one, 2);
    cluster.make_node(&other, 2);
    let served = served(&cluster, &one);
    wait_for("the nodes", || {
        let devices = served.told(&["devices"]);
        devices.contains(&one) && devices.contains(&other)
    });
    let names: Vec<String> = (0..4).map(|number| unique(&format!("model-{number}"))).collect();
    for (number, name) in names.iter().enumerate() {
        let node = if number % 2 == 0 { &one } else { &other };
        cluster.apply(&pod(name, (&one, node), 1, &["until-notice"]).to_string());
    }
    for (number, name) in names.iter().enumerate() {
        let node = if number % 2 == 0 { &one } else { &other };
        cluster.await_phase(name, "Running");
        assert_eq!(cluster.pod(name)["spec"]["nodeName"], **node);
    }

    // As many as a number has room for, and one more.
    let large = unique("large");
    let mut asks = pod(&large, (&one, &one), 1, &["until-notice"]);
    let devices = json!({ "nvidia.com/gpu": "4294967296" });
    let resources = json!({ "requests": devices, "limits": devices });
    asks["spec"]["containers"][0]["resources"] = resources;
    cluster.apply(&asks.to_string());
    wait_for("why it waits", || cluster.why(&large).0 == "Waiting");
    assert!(cluster.why(&large).1.contains("more than 4096"), "{:?}", cluster.why(&large));

    // A node keeps others away from its devices by a taint that is named after them.
    cluster.told(&["taint", "node", &one, "nvidia.com/gpu=:NoSchedule"]);
    let plain = unique("plain");
    let mut asks = pod(&plain, (&one, &one), 1, &["until-notice"]);
    asks["spec"]["tolerations"] = json!([]);
    asks["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } });
    cluster.apply(&asks.to_string());
    wait_for("why it waits", || cluster.why(&plain).1.contains("no taint"));
    for name in names.iter().chain([&large, &plain]) {
        cluster.told(&["delete", "pod", name, "--wait=false"]);
    }
    cluster.told(&["delete", "node", &one, &other]);
}

#[test]
fn pods_wait_for_memory_that_others_have() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("memory");
    cluster.make_node(&node, 2);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));
    let [theirs, ours] = ["theirs", "ours"].map(|it| unique(&format!("memory-{it}")));
    let with_memory = |name: &str, count: u32| {
        let mut pod = pod(name, (&node, &node), count, &["until-notice"]);
        let resources = &mut pod["spec"]["containers"][0]["resources"];
        resources["requests"]["memory"] = json!("40Gi");
        resources["limits"]["memory"] = json!("40Gi");
        pod
    };
    // Nobody asked a scheduler for it.
    let mut bound = with_memory(&theirs, 0);
    bound["spec"]["schedulerName"] = json!("somebody");
    bound["spec"]["nodeName"] = json!(node);
    cluster.apply(&bound.to_string());
    cluster.await_phase(&theirs, "Running");
    cluster.apply(&with_memory(&ours, 1).to_string());
    wait_for("why it waits", || !cluster.why(&ours).1.is_empty());
    assert_eq!(state_of(&served, &ours), "queued");
    cluster.told(&["delete", "pod", &theirs, "--wait=false"]);
    cluster.await_phase(&ours, "Running");
    cluster.told(&["delete", "pod", &ours, "--wait=false"]);
    cluster.told(&["delete", "node", &node]);
}
