//! Namespaces that are handed over, and budgets of those who stand in somebody's way.

use super::pods::pod;
use super::*;

/// What the manifests for handed-over namespaces have beside the others, for this scheduler.
fn hand_over(cluster: &Cluster, sandbox: &Sandbox, scheduler: &str) {
    let options = ["--scheduler-name", scheduler, "--handed-over-namespaces"];
    let all = sandbox.run(&[&["kubernetes", "manifests"], &options[..]].concat()).stdout;
    let all = String::from_utf8_lossy(&all).into_owned();
    let policies = all.split("---\n").filter(|it| it.contains("kind: MutatingAdmissionPolicy"));
    cluster.apply(&policies.collect::<Vec<_>>().join("---\n"));
}

#[test]
fn what_is_made_in_a_namespace_that_is_handed_over_waits_for_this_scheduler() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("handed");
    cluster.make_node(&node, 2);
    let served = served(&cluster, &node);
    hand_over(&cluster, &served, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));
    let namespace = unique("handed-over");
    let made = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": namespace, "labels": { "heterosis.dev/scheduler": node } },
    });
    cluster.apply(&made.to_string());
    let told = |arguments: &[&str]| cluster.told(&[&["-n", &namespace], arguments].concat());
    wait_for("its account", || !told(&["get", "serviceaccounts", "-o", "name"]).is_empty());

    let resources = json!({ "nvidia.com/gpu": "1", "cpu": "500m" });
    let spec = json!({
        "restartPolicy": "Never",
        "nodeSelector": { "nvidia.com/gpu.product": format!("NVIDIA-{}", node.to_uppercase()) },
        "containers": [{
            "name": "main", "image": "i", "command": ["until-notice"],
            "resources": { "requests": resources, "limits": resources },
        }],
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": "gang", "namespace": namespace },
        "spec": { "parallelism": 2, "completions": 2, "template": { "spec": spec } },
    });
    // The policy is heard of a while after it was made.
    wait_for("the policy", || {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": { "name": "first", "namespace": namespace },
        });
        cluster.apply(&pod.to_string());
        let is_ours =
            told(&["get", "pod", "first", "-o", "jsonpath={.spec.schedulerName}"]) == node;
        told(&["delete", "pod", "first", "--grace-period=0", "--force"]);
        is_ours
    });
    cluster.apply(&job.to_string());
    let field = |path: &str| told(&["get", "job", "gang", "-o", &format!("jsonpath={{{path}}}")]);
    assert_eq!(field(".spec.template.spec.schedulerName"), node);
    wait_for("its pods", || field(".status.ready") == "2");
    assert_eq!(field(".spec.suspend"), "false");
    let rows = jobs(&served);
    assert!(rows.iter().any(|(_, name, _)| name == "gang"), "it is one job: {rows:?}");
    cluster.told(&["delete", "namespace", &namespace, "--wait=false"]);
    cluster.told(&["delete", "node", &node]);
}

#[test]
fn a_pod_that_makes_room_goes_when_its_disruption_budget_allows_it() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("budget");
    cluster.make_node(&node, 1);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));
    let [low, urgent] = ["low", "urgent"].map(|it| unique(&format!("budget-{it}")));
    let mut first = pod(&low, (&node, &node), 1, &["until-notice"]);
    first["metadata"]["labels"] = json!({ "app": low });
    first["metadata"]["annotations"] = json!({ "heterosis.dev/preemptible": "true" });
    cluster.apply(&first.to_string());
    wait_for("it runs", || cluster.pod(&low)["status"]["phase"] == "Running");
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": low, "namespace": "default" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": low } } },
    });
    cluster.apply(&budget.to_string());
    let expected = ["get", "poddisruptionbudget", &low, "-o", "jsonpath={.status.expectedPods}"];
    wait_for("its controller", || cluster.told(&expected) == "1");

    let mut second = pod(&urgent, (&node, &node), 1, &["until-notice"]);
    second["metadata"]["annotations"] = json!({ "heterosis.dev/priority": "urgent" });
    cluster.apply(&second.to_string());
    let of_it = format!("regarding.name={low},reason=EvictionBlocked");
    wait_for("why it does not go", || {
        let told = cluster.told(&["get", "events.events.k8s.io", "--field-selector", &of_it]);
        told.contains("disruption budget")
    });
    assert!(cluster.pod(&low)["metadata"]["deletionTimestamp"].is_null());
    cluster.told(&["delete", "poddisruptionbudget", &low]);
    wait_for("its end", || cluster.pod(&low).is_null());
    wait_for("it runs", || cluster.pod(&urgent)["status"]["phase"] == "Running");
    cluster.told(&["delete", "pod", &urgent, "--wait=false"]);
    cluster.told(&["delete", "node", &node]);
}
