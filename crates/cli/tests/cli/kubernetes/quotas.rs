//! Quotas as an object of the cluster.

use super::*;

impl Cluster {
    fn quotas(&self, name: &str) -> Value {
        let output = self.kubectl(&["get", "quotas.heterosis.dev", name, "-o", "json"]).output();
        serde_json::from_slice(&output.expect("`kubectl` is there").stdout).unwrap_or_default()
    }

    /// Limits the tenant `default`, and waits until somebody has looked at that.
    fn limit(&self, name: &str, class: &str, limit: u32) -> Value {
        let object = json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "Quotas",
            "metadata": { "name": name },
            "tenants": { "default": { "limit": { class: limit } } },
        });
        self.apply(&object.to_string());
        wait_for("somebody looks at the quotas", || {
            let now = self.quotas(name);
            let seen = &now["status"]["observedGeneration"];
            !seen.is_null() && *seen == now["metadata"]["generation"]
        });
        self.quotas(name)["status"].take()
    }
}

fn limits(served: &Served) -> Vec<u64> {
    let rows = served.json(&["quotas"]);
    let rows = rows["items"].as_array().cloned().unwrap_or_default();
    rows.iter().filter_map(|row| row["limit"].as_u64()).collect()
}

#[test]
fn an_object_says_what_tenants_may_have() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("quotas-node");
    cluster.make_node(&node, 4);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));

    assert_eq!(cluster.limit(&node, &node, 1)["state"], "accepted");
    let names = ["one", "two"].map(unique);
    for name in &names {
        let devices = format!("{node}:1");
        served.submit_stage(name, "normal", &stage(&["until-notice"], &devices));
    }
    cluster.await_state(&names[0], "running");
    wait_for("the second waits for the limit", || {
        let reason = cluster.job(&names[1])["status"]["reason"].clone();
        reason.as_str().is_some_and(|text| text.contains("may hold no more than 1"))
    });
    assert_eq!(cluster.limit(&node, &node, 2)["state"], "accepted");
    cluster.await_state(&names[1], "running");

    // What the cluster does not have now may come: it is said, and holds nothing up.
    let status = cluster.limit(&node, "l4os", 7);
    assert_eq!(status["state"], "accepted");
    assert!(status["reason"].as_str().is_some_and(|text| text.contains("`l4os`")), "{status}");
    assert_eq!(limits(&served), [7]);
    let file = json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "Quotas", "tenants": {},
    });
    let file = served.write("quotas.yaml", &file.to_string());
    let set = served.run(&["quotas", "--set", &file.to_string_lossy()]);
    let told = String::from_utf8_lossy(&set.stderr).into_owned();
    assert!(!set.status.success() && told.contains("kubectl edit quotas"), "{told}");

    // The next server has no log to know them from.
    cluster.limit(&node, &node, 3);
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    let next = start(&cluster, Served(Sandbox::new()), &node);
    assert_eq!(limits(&next), [3], "it knew them before it decided anything");
    // Nobody watches while it is deleted.
    assert_eq!(next.code(&["server", "stop"]), Some(0));
    cluster.told(&["delete", "quotas.heterosis.dev", &node]);
    let next = start(&cluster, next, &node);
    wait_for("nobody is limited", || limits(&next).is_empty());
    for name in &names {
        cluster.told(&["delete", "trainingjob", name, "--wait=false"]);
    }
    cluster.told(&["delete", "node", &node]);
}
