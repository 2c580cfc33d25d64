//! Groups of pods that somebody else made: they start together or not at all.

use super::pods::pod;
use super::*;

fn group(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": { "name": name, "namespace": "default" }, "spec": spec,
    })
}

fn gang(name: &str, least: u32) -> Value {
    group(name, &json!({ "schedulingPolicy": { "gang": { "minCount": least } } }))
}

fn member(name: &str, group: &str, node: &str) -> Value {
    let mut pod = pod(name, (node, node), 1, &["until-notice"]);
    pod["spec"]["schedulingGroup"] = json!({ "podGroupName": group });
    pod
}

impl Cluster {
    /// Status and message of a condition of an object; empty where it has none.
    fn condition(&self, kind: &str, name: &str, of: &str) -> (String, String) {
        let output = self.kubectl(&["get", kind, name, "-o", "json"]).output();
        let object: Value =
            serde_json::from_slice(&output.expect("`kubectl` is there").stdout).unwrap_or_default();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|it| it["type"] == of).unwrap_or_default();
        let word = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (word("status"), word("message"))
    }

    fn await_condition(&self, group: &str, status: &str, words: &str) {
        wait_for(&format!("`{group}` is told {words:?}"), || {
            let (is, message) = self.condition("podgroup", group, "PodGroupInitiallyScheduled");
            is == status && message.contains(words)
        });
    }

    fn node_of(&self, pod: &str) -> String {
        self.pod(pod)["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
    }
}

fn states(served: &Served, name: &str) -> Vec<String> {
    let found = jobs(served).into_iter().filter(|(_, job, _)| job == name);
    found.map(|(_, _, state)| state).collect()
}

#[test]
fn pods_of_a_group_start_together_or_not_at_all() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("group-node");
    cluster.make_node(&node, 4);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));

    // None starts before all are there.
    let first = unique("first");
    let pods: Vec<String> = (0..4).map(|at| format!("{first}-{at}")).collect();
    cluster.apply(&gang(&first, 3).to_string());
    pods[..2].iter().for_each(|pod| cluster.apply(&member(pod, &first, &node).to_string()));
    cluster.await_condition(&first, "False", "of the 3 pods that start together");
    let (_, why) = cluster.condition("pod", &pods[0], "PodScheduled");
    assert!(why.contains(&first), "{why}");
    cluster.apply(&member(&pods[2], &first, &node).to_string());
    cluster.await_condition(&first, "True", "have their nodes");
    wait_for("they are one job", || states(&served, &first) == ["running"]);
    for pod in &pods[..3] {
        assert_eq!(cluster.node_of(pod), node, "{pod}");
    }

    // Half of another gang would fit, and gets nothing.
    let second = unique("second");
    let others: Vec<String> = (0..2).map(|at| format!("{second}-{at}")).collect();
    cluster.apply(&gang(&second, 2).to_string());
    others.iter().for_each(|pod| cluster.apply(&member(pod, &second, &node).to_string()));
    cluster.await_condition(&second, "False", "");
    wait_for("it waits as one", || states(&served, &second) == ["queued"]);
    assert!(others.iter().all(|pod| cluster.node_of(pod).is_empty()));

    // A pod beyond those that start together gets what there is.
    cluster.apply(&member(&pods[3], &first, &node).to_string());
    wait_for("the later pod", || cluster.node_of(&pods[3]) == node);

    // The next server knows them as what they were.
    kill(server_process(&served), Signal::SIGKILL).expect("it runs");
    cluster.told(&["delete", "pod", &pods[0], "--wait=false"]);
    cluster.told(&["delete", "pod", &pods[3], "--wait=false"]);
    wait_for("the slot of the deleted stays its group's", || cluster.pod(&pods[0]).is_null());
    cluster.apply(&member(&pods[0], &first, &node).to_string());
    wait_for("its place", || cluster.node_of(&pods[0]) == node);
    assert!(others.iter().all(|pod| cluster.node_of(pod).is_empty()));

    // With the first gang's end the second begins; whoever cancels it deletes its pods.
    let deleted: Vec<&str> = pods[..3].iter().map(String::as_str).collect();
    cluster.told(&[&["delete", "pod", "--wait=false"], &deleted[..]].concat());
    cluster.await_condition(&second, "True", "have their nodes");
    wait_for("it runs", || states(&served, &second) == ["running"]);
    let id = jobs(&served).into_iter().find(|(_, name, _)| *name == second).map(|(id, ..)| id);
    assert_eq!(served.code(&["cancel", &id.expect("it has a job").to_string()]), Some(0));
    wait_for("its pods go", || others.iter().all(|pod| cluster.pod(pod).is_null()));
    cluster.told(&["delete", "podgroup", &first, &second, "--wait=false"]);
    cluster.told(&["delete", "node", &node]);
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_decided_again(&served, 2);
}

#[test]
fn what_a_group_asks_for_that_is_not_considered_is_told() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("ungrouped-node");
    cluster.make_node(&node, 2);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));
    let [lone, basic, apart] = ["lone", "basic", "apart"].map(unique);

    // Nobody made its group.
    cluster.apply(&member(&lone, &unique("nobody"), &node).to_string());
    wait_for("why it waits", || {
        cluster.condition("pod", &lone, "PodScheduled").1.contains("there is no PodGroup")
    });
    // Each of these by itself.
    cluster.apply(&group(&basic, &json!({ "schedulingPolicy": { "basic": {} } })).to_string());
    cluster.apply(&member(&basic, &basic, &node).to_string());
    wait_for("its node", || cluster.node_of(&basic) == node);
    // A word that is no priority.
    let mut claims = gang(&apart, 1);
    claims["metadata"]["annotations"] = json!({ "heterosis.dev/priority": "soon" });
    cluster.apply(&claims.to_string());
    cluster.apply(&member(&apart, &apart, &node).to_string());
    cluster.await_condition(&apart, "False", "does not consider");
    for pod in [&lone, &basic, &apart] {
        cluster.told(&["delete", "pod", pod, "--wait=false"]);
    }
    cluster.told(&["delete", "podgroup", &basic, &apart, "--wait=false"]);
    cluster.told(&["delete", "node", &node]);
}
