//! Devices that drivers of dynamic resource allocation offer, and claims on them.

use super::*;

/// The node with so many devices of a product that has its name, and a class that selects them.
fn make_devices(cluster: &Cluster, node: &str, count: u32) {
    cluster.make_node_with(node, &[], ("kubernetes.io/hostname", node));
    let product = json!({ "string": format!("NVIDIA {}", node.to_uppercase()) });
    let device = |at: u32| {
        json!({ "name": format!("gpu-{at}"), "attributes": {
        "type": { "string": "gpu" }, "productName": product,
    } })
    };
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": { "name": node },
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node,
            "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
            "devices": (0..count).map(device).collect::<Vec<_>>(),
        },
    });
    let name = product["string"].as_str().unwrap_or_default();
    let of_node = format!(
        "device.driver == 'gpu.nvidia.com' && \
         device.attributes['gpu.nvidia.com'].productName == '{name}'"
    );
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": { "name": node },
        "spec": { "selectors": [{ "cel": { "expression": of_node } }] },
    });
    cluster.apply(&slice.to_string());
    cluster.apply(&class.to_string());
}

fn remove_devices(cluster: &Cluster, node: &str) {
    for kind in ["resourceslice", "deviceclass", "node"] {
        cluster.told(&["delete", kind, node, "--wait=false"]);
    }
}

/// A pod with a claim that its controller makes after a template.
fn pod_with_claim(cluster: &Cluster, name: &str, scheduler: &str, requests: &Value) {
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "spec": { "devices": { "requests": requests } } },
    });
    cluster.apply(&template.to_string());
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "schedulerName": scheduler, "restartPolicy": "Never",
            "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": name }],
            "containers": [{
                "name": "main", "image": "i", "command": ["until-notice"],
                "resources": { "claims": [{ "name": "gpu" }] },
            }],
        },
    });
    cluster.apply(&pod.to_string());
}

impl Cluster {
    /// What was allocated for the claims of a pod, by request and device.
    fn allocated(&self, pod: &str) -> Vec<(String, String)> {
        let word =
            |result: &Value, field: &str| result[field].as_str().unwrap_or_default().to_owned();
        let results = self.allocation_results(pod).into_iter();
        results.map(|result| (word(&result, "request"), word(&result, "device"))).collect()
    }

    fn allocation_results(&self, pod: &str) -> Vec<Value> {
        let pod = self.pod(pod);
        let uid = pod["metadata"]["uid"].clone();
        let told = self.told(&["get", "resourceclaims", "-o", "json"]);
        let claims: Value = serde_json::from_str(&told).expect("it is JSON");
        let claims = claims["items"].as_array().cloned().unwrap_or_default().into_iter();
        let is_its = |claim: &Value| claim["status"]["reservedFor"][0]["uid"] == uid;
        let of_pod = claims.filter(|claim| !uid.is_null() && is_its(claim)).flat_map(|claim| {
            let results = claim["status"]["allocation"]["devices"]["results"].clone();
            results.as_array().cloned().unwrap_or_default()
        });
        of_pod.collect()
    }
}

#[test]
fn devices_that_are_claimed_are_allocated_once() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("claimed");
    make_devices(&cluster, &node, 2);
    let served = served(&cluster, &node);
    wait_for("the devices", || served.told(&["devices"]).contains(&node));

    // A job of ours has a claim of its own.
    let own = unique("claims-own");
    served.submit_stage(&own, "normal", &stage(&["until-notice"], &format!("{node}:1")));
    cluster.await_state(&own, "running");
    let id = jobs(&served).into_iter().find(|(_, name, _)| *name == own).map(|(id, ..)| id);
    let pods = cluster.pods(&node, id.expect("it has a job"));
    let allocated = cluster.allocated(&pods[0].0);
    assert_eq!(allocated, [("devices-0".to_owned(), "gpu-0".to_owned())]);

    // What nobody has yet makes no difference to what there is.
    let [first, second, odd] = ["first", "second", "odd"].map(|it| unique(&format!("claim-{it}")));
    let toleration = json!({ "key": "example.com/hot", "operator": "Exists" });
    let options = json!([{ "name": "gpu", "firstAvailable": [
        { "name": "newer", "deviceClassName": "nobody-has-it" },
        { "name": "older", "deviceClassName": node, "tolerations": [toleration] },
    ] }]);
    pod_with_claim(&cluster, &first, &node, &options);
    cluster.await_phase(&first, "Running");
    assert_eq!(cluster.allocated(&first), [("gpu/older".to_owned(), "gpu-1".to_owned())]);
    // Else a taint that it tolerates would have it evicted.
    let tolerations = &cluster.allocation_results(&first)[0]["tolerations"];
    assert_eq!(*tolerations, json!([toleration]));

    let one = |mode: &str| {
        let exactly = json!({ "deviceClassName": node, "allocationMode": mode });
        json!([{ "name": "gpu", "exactly": exactly }])
    };
    pod_with_claim(&cluster, &odd, &node, &one("All"));
    wait_for("why it waits", || cluster.why(&odd).1.contains("all devices of a node"));
    cluster.told(&["delete", "pod", &odd, "--wait=false"]);

    // A leader that comes later knows what is allocated, and a device goes from hand to hand.
    pod_with_claim(&cluster, &second, &node, &one("ExactCount"));
    wait_for("why it waits", || cluster.why(&second).0 == "Unschedulable");
    kill(server_process(&served), Signal::SIGKILL).expect("it runs");
    cluster.told(&["delete", "pod", &first, "--wait=false"]);
    cluster.await_phase(&second, "Running");
    assert_eq!(cluster.allocated(&second), [("gpu".to_owned(), "gpu-1".to_owned())]);
    assert_eq!(cluster.allocated(&pods[0].0), allocated, "it goes on");

    cluster.told(&["delete", "pod", &second, "--wait=false"]);
    remove_devices(&cluster, &node);
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_decided_again(&served, 3);
}

#[test]
fn what_others_have_allocated_is_taken() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("taken");
    make_devices(&cluster, &node, 2);
    let claim = unique("of-others");
    let object = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": claim, "namespace": "default" },
        "spec": { "devices": { "requests": [
            { "name": "gpu", "exactly": { "deviceClassName": node } },
        ] } },
    });
    cluster.apply(&object.to_string());
    let result = json!({
        "request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0",
    });
    let status = json!({ "status": { "allocation": { "devices": { "results": [result] } } } });
    let patch =
        ["patch", "resourceclaim", &claim, "--subresource=status", "--type=merge", "--patch"];
    cluster.told(&[&patch[..], &[&status.to_string()]].concat());

    let served = served(&cluster, &node);
    wait_for("the devices", || served.told(&["devices"]).contains(&node));
    let [both, one] = ["both", "one"].map(|it| unique(&format!("takes-{it}")));
    served.submit_stage(&both, "normal", &stage(&["until-notice"], &format!("{node}:2")));
    served.submit_stage(&one, "low", &stage(&["until-notice"], &format!("{node}:1")));
    cluster.await_state(&one, "running");
    let id = jobs(&served).into_iter().find(|(_, name, _)| *name == one).map(|(id, ..)| id);
    let pods = cluster.pods(&node, id.expect("it has a job"));
    let allocated = cluster.allocated(&pods[0].0);
    assert_eq!(allocated, [("devices-0".to_owned(), "gpu-1".to_owned())]);
    assert_eq!(cluster.job(&both)["status"]["state"], "queued");

    cluster.told(&["delete", "resourceclaim", &claim, "--wait=false"]);
    let id = jobs(&served).into_iter().find(|(_, name, _)| *name == one).map(|(id, ..)| id);
    assert_eq!(served.code(&["cancel", &id.expect("it has a job").to_string()]), Some(0));
    cluster.await_state(&both, "running");
    remove_devices(&cluster, &node);
}
