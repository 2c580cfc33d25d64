//! Scheduling gates: this server chooses, and kube-scheduler gives pods their nodes.

use super::*;

impl Cluster {
    /// What the manifests for gates have beside the others: a policy for this scheduler, and a
    /// right more, which here is one of its own.
    fn allow_gates(&self, sandbox: &Sandbox, scheduler: &str) {
        let options = ["--scheduler-name", scheduler, "--scheduling-gates"];
        let all = sandbox.run(&[&["kubernetes", "manifests"], &options[..]].concat()).stdout;
        let all = String::from_utf8_lossy(&all).into_owned();
        let policies = all.split("---\n").filter(|it| it.contains("ValidatingAdmissionPolicy"));
        self.apply(&policies.collect::<Vec<_>>().join("---\n"));
        assert!(all.contains("removes-the-gate"), "the policy knows of gates");
        let rbac = "rbac.authorization.k8s.io";
        self.apply(
            &json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
                "metadata": { "name": "het-gates" },
                "rules": [
                    { "apiGroups": [""], "resources": ["pods"], "verbs": ["patch"] },
                    {
                        "apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"],
                        "verbs": ["create", "delete"],
                    },
                ],
            })
            .to_string(),
        );
        self.apply(
            &json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
                "metadata": { "name": "het-gates" },
                "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": "het-gates" },
                "subjects": [{
                    "kind": "ServiceAccount", "name": "heterosis", "namespace": "heterosis",
                }],
            })
            .to_string(),
        );
    }
}

fn gated(name: &str, scheduler: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": { "heterosis.dev/scheduler": scheduler },
        },
        "spec": {
            "schedulingGates": [{ "name": "heterosis.dev/placement" }],
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": "i", "command": ["until-notice"],
                "resources": {
                    "requests": { "nvidia.com/gpu": "2" }, "limits": { "nvidia.com/gpu": "2" },
                },
            }],
            "nodeSelector": {
                "nvidia.com/gpu.product": format!("NVIDIA-{}", scheduler.to_uppercase()),
            },
        },
    })
}

#[test]
fn kube_scheduler_binds_what_is_chosen_here() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("gates-node");
    cluster.make_node(&node, 2);
    cluster.told(&["label", "node", &node, &format!("kubernetes.io/hostname={node}")]);
    let first = served(&cluster, &node);
    assert_eq!(first.code(&["server", "stop"]), Some(0));
    cluster.allow_gates(&first, &node);
    begin_with(&cluster, &first, &node, &["--scheduling-gates"]);
    wait_for("the server", || first.code(&["ps"]) == Some(0));
    wait_for("the node", || first.told(&["devices"]).contains(&node));

    // A job's pods are made for their nodes, and bound by somebody else.
    let job = unique("gated-job");
    let devices = format!("{node}:2");
    let id = first.submit_stage(&job, "normal", &stage(&["until-notice"], &devices));
    cluster.await_state(&job, "running");
    let (name, _) = cluster.pods(&node, id).pop().expect("it has a pod");
    let pod = cluster.pod(&name);
    assert_eq!(pod["spec"]["schedulerName"], "default-scheduler");
    assert_eq!(pod["spec"]["nodeName"], node.as_str());

    // A pod of somebody else stays behind its gate until there is room.
    let other = unique("gated-pod");
    cluster.apply(&gated(&other, &node).to_string());
    wait_for("it is told why it waits", || {
        let conditions = cluster.pod(&other)["status"]["conditions"].take();
        let conditions = conditions.as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "heterosis.dev/Placed" && it["status"] == "False")
    });
    assert_eq!(
        cluster.pod(&other)["spec"]["schedulingGates"][0]["name"],
        "heterosis.dev/placement"
    );
    assert_eq!(first.code(&["cancel", &id.to_string()]), Some(0));
    wait_for("it gets the node", || cluster.pod(&other)["spec"]["nodeName"] == node.as_str());
    let pod = cluster.pod(&other);
    assert!(pod["spec"]["schedulingGates"].is_null());
    assert_eq!(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"], node.as_str());

    // A leader before this one removes no gate.
    let late = unique("gated-late");
    cluster.apply(&gated(&late, &node).to_string());
    let free = json!({
        "metadata": { "annotations": { "heterosis.dev/epoch": "0" } },
        "spec": { "schedulingGates": null },
    });
    let free = free.to_string();
    let patch = ["patch", "pod", &late, "--type", "merge", "--patch", &free];
    let output = cluster.kubectl(&patch).output().expect("`kubectl` is there");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("another server leads"), "{told}");
    for pod in [&other, &late] {
        cluster.told(&["delete", "pod", pod, "--wait=false"]);
    }
    cluster.told(&["delete", "node", &node]);
}

#[test]
fn a_gang_that_kube_scheduler_binds_is_a_group() {
    let Some(cluster) = Cluster::find() else { return };
    let class = unique("gated-gang");
    let nodes = ["a", "b"].map(|it| format!("{class}-{it}"));
    for node in &nodes {
        let label = format!("NVIDIA-{}", class.to_uppercase());
        cluster.make_node_with(node, &[("nvidia.com/gpu", 1)], ("nvidia.com/gpu.product", &label));
        cluster.told(&["label", "node", node, &format!("kubernetes.io/hostname={node}")]);
    }
    let first = served(&cluster, &class);
    assert_eq!(first.code(&["server", "stop"]), Some(0));
    cluster.allow_gates(&first, &class);
    begin_with(&cluster, &first, &class, &["--scheduling-gates"]);
    wait_for("the server", || first.code(&["ps"]) == Some(0));
    wait_for("the nodes", || nodes.iter().all(|node| first.told(&["devices"]).contains(node)));

    let job = unique("grouped-job");
    let id = first.submit_stage(&job, "normal", &stage(&["until-notice"], &format!("{class}:2")));
    cluster.await_state(&job, "running");
    let pods = cluster.pods(&class, id);
    assert_eq!(pods.len(), 2);
    let group = cluster.pod(&pods[0].0)["spec"]["schedulingGroup"]["podGroupName"].take();
    let group = group.as_str().expect("it is of a group").to_owned();
    let path = "jsonpath={.spec.schedulingPolicy.gang.minCount}";
    assert_eq!(cluster.told(&["get", "podgroup", &group, "-o", path]), "2");
    assert_eq!(first.code(&["cancel", &id.to_string()]), Some(0));
    wait_for("the group goes with its gang", || {
        let get = ["get", "podgroup", &group, "--ignore-not-found", "-o", "name"];
        cluster.told(&get).is_empty()
    });
    nodes.iter().for_each(|node| drop(cluster.told(&["delete", "node", node])));
}
