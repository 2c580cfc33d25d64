//! `het rank` as the pods of a job start it. kwok says that they run; what would run in the pod
//! runs here, with the pod's environment and a token that is bound to it.

use super::*;

/// A kubeconfig of a rank: what its pod would find mounted.
fn of_pod(cluster: &Cluster, sandbox: &Sandbox, pod: &str) -> PathBuf {
    let bound = ["--bound-object-kind", "Pod", "--bound-object-name", pod];
    let token = cluster.told(&[&["create", "token", "heterosis-rank"], &bound[..]].concat());
    let text = fs::read_to_string(cluster.dir.join("admin.kubeconfig")).expect("it is there");
    let mut config: Value = serde_json::from_str(&text).expect("it is JSON");
    config["users"][0]["user"] = json!({ "token": token });
    sandbox.write(&format!("{pod}.kubeconfig"), &config.to_string())
}

/// The program of a pod's rank, with the variables that its kubelet would give it.
fn rank(served: &Served, cluster: &Cluster, pod: &str, root: &str) -> Command {
    let object = cluster.pod(pod);
    let container = &object["spec"]["containers"][0];
    let words: Vec<String> =
        serde_json::from_value(container["command"].clone()).expect("they are words");
    // As the kubelet does.
    let words: Vec<String> = words.iter().map(|word| word.replace("$$", "$")).collect();
    let kubeconfig = of_pod(cluster, served, pod);
    let at = words.iter().position(|word| word == "--").expect("the program follows");
    let dir = format!("{root}/rank");
    let mut rank = served.het(&["rank", "--dir", &dir, "--kubeconfig"]);
    rank.arg(kubeconfig).args(&words[at..]);
    for variable in container["env"].as_array().expect("it has some") {
        let name = variable["name"].as_str().expect("it has a name");
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.name") => pod.to_owned(),
            Some(_) => "default".to_owned(),
            None => variable["value"].as_str().unwrap_or_default().to_owned(),
        };
        rank.env(name, value);
    }
    rank
}

/// Of another pod nobody lets a rank speak, nor of anything but its progress.
fn forbids_the_rest(served: &Served, cluster: &Cluster, pod: &str) {
    let other = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": unique("other"), "namespace": "default" },
        "spec": { "containers": [{ "name": "main", "image": "i" }] },
    });
    cluster.apply(&other.to_string());
    let metadata = json!({ "name": "rank-reader", "namespace": "default" });
    let rbac = "rbac.authorization.k8s.io";
    // `kubectl` reads what it patches.
    for object in [
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": metadata,
            "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": rbac, "kind": "Role", "name": "rank-reader" },
            "subjects": [
                { "kind": "ServiceAccount", "name": "heterosis-rank", "namespace": "default" },
            ],
        }),
    ] {
        cluster.apply(&object.to_string());
    }
    let kubeconfig = of_pod(cluster, served, pod).display().to_string();
    let as_rank = |pod: &str, annotation: &str| {
        let mut kubectl = Command::new(cluster.dir.join("kubectl"));
        let patch = json!({ "metadata": { "annotations": { annotation: "{\"step\":11}" } } });
        let patch = patch.to_string();
        kubectl.args(["--kubeconfig", &kubeconfig, "patch", "pod", pod, "--patch", &patch]);
        let output = kubectl.output().expect("`kubectl` is there");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_taken, why) = as_rank(&unique("other"), "heterosis.dev/progress");
    assert!(!is_taken && why.contains("its own pod alone"), "{why}");
    let (is_taken, why) = as_rank(pod, "heterosis.dev/epoch");
    assert!(!is_taken && why.contains("alone"), "{why}");
    assert!(as_rank(pod, "heterosis.dev/progress").0, "its own it may change");
    cluster.told(&["delete", "pod", &unique("other"), "--wait=false"]);
}

/// A server that has ranks supervised, and a directory that lasts as long.
fn supervising(cluster: &Cluster, node: &str) -> (Served, String) {
    let sandbox = Sandbox::new();
    let manifests = ["kubernetes", "manifests", "--jobs-namespace", "default"];
    cluster.apply(&String::from_utf8_lossy(&sandbox.run(&manifests).stdout));
    let root = sandbox.write("made", "").parent().map(|dir| dir.display().to_string());
    let root = root.expect("it lies in a directory");
    begin_with(cluster, &sandbox, node, &["--rank-image", "registry.example/het:1"]);
    let served = Served(sandbox);
    wait_for("the server", || served.code(&["ps"]) == Some(0));
    wait_for("the node", || served.told(&["devices"]).contains(node));
    (served, root)
}

#[test]
fn a_rank_tells_of_its_progress_and_is_given_notice() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("ninth");
    cluster.make_node(&node, 2);
    let (served, root) = supervising(&cluster, &node);

    // It saves at step 10 and waits for the notice, of which it tells, and ends as it was asked to.
    let program = format!(
        "echo '{{\"step\":10,\"total\":40,\"loss\":2.5}}' >> $HET_PROGRESS; \
         mkdir -p {root}/saved/checkpoint-10; echo x > {root}/saved/checkpoint-10/model; \
         echo '{{\"checkpoint\":{{\"step\":10,\"path\":\"{root}/saved/checkpoint-10\"}}}}' \
         >> $HET_PROGRESS; \
         trap 'echo \"{{\\\"message\\\":\\\"told\\\"}}\" >> $HET_PROGRESS; \
         grep -q grace_ms $HET_NOTICE && exit 75' TERM; while [ -d {root} ]; do sleep 0.1; done"
    );
    let name = unique("reports");
    let mut train = stage(&["sh", "-c", &program], &format!("{node}:1"));
    train["checkpoint"] = json!({ "dir": format!("{root}/saved"), "grace": "5s" });
    let id = served.submit_stage(&name, "normal", &train);
    cluster.await_state(&name, "running");
    let (pod, _) = cluster.pods(&node, id).pop().expect("it has one");
    let spec = cluster.pod(&pod)["spec"].take();
    assert_eq!(spec["initContainers"][0]["image"], "registry.example/het:1");
    assert_eq!(spec["serviceAccountName"], "heterosis-rank");

    let mut running = rank(&served, &cluster, &pod, &root);
    let mut running = running.spawn().expect("it can be started");
    wait_for("its progress", || cluster.job(&name)["status"]["progress"] == "10/40");
    let saved = format!("{root}/saved/checkpoint-10");
    wait_for("its checkpoint", || {
        cluster.job(&name)["status"]["stages"][0]["checkpoint"] == *saved
    });

    forbids_the_rest(&served, &cluster, &pod);
    let supervisor = Pid::from_raw(running.id() as i32);
    kill(supervisor, Signal::SIGTERM).expect("it runs");
    assert_eq!(running.wait().expect("it ends").code(), Some(75), "the program's own code");

    // The next attempt goes on from what was saved.
    cluster.told(&["delete", "pod", &pod, "--wait=false"]);
    wait_for("the next attempt", || {
        cluster.pods(&node, id).pop().is_some_and(|(next, _)| next != pod)
    });
    let (next, _) = cluster.pods(&node, id).pop().expect("it has one");
    let environment = cluster.pod(&next)["spec"]["containers"][0]["env"].take();
    let resumed = environment.as_array().expect("it has some").iter();
    let resumed = resumed.clone().find(|variable| variable["name"] == "HET_RESUME_FROM");
    assert_eq!(resumed.map(|variable| &variable["value"]), Some(&json!(saved)));
    assert_eq!(served.code(&["cancel", &id.to_string()]), Some(0));
    cluster.told(&["delete", "node", &node]);
}

#[test]
fn a_rank_that_hangs_is_started_again() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("hangs");
    cluster.make_node(&node, 1);
    let (served, root) = supervising(&cluster, &node);
    let program = format!(
        "echo '{{\"step\":3,\"total\":40}}' >> $HET_PROGRESS; \
         while [ -d {root} ]; do sleep 0.1; done"
    );
    let name = unique("hung");
    let mut train = stage(&["sh", "-c", &program], &format!("{node}:1"));
    train["stall"] = json!("2s");
    let id = served.submit_stage(&name, "normal", &train);
    cluster.await_state(&name, "running");
    let (pod, _) = cluster.pods(&node, id).pop().expect("it has one");
    let mut running = rank(&served, &cluster, &pod, &root).spawn().expect("it can be started");
    wait_for("the next attempt", || {
        cluster.pods(&node, id).pop().is_some_and(|(next, _)| next != pod)
    });
    let told = served.told(&["describe", &id.to_string()]);
    // Its program runs on, so nothing else can have ended it.
    assert!(told.contains("came back from 1 fault"), "{told}");
    let supervisor = Pid::from_raw(running.id() as i32);
    kill(supervisor, Signal::SIGTERM).expect("it runs");
    running.wait().expect("it ends");
    assert_eq!(served.code(&["cancel", &id.to_string()]), Some(0));
    cluster.told(&["delete", "node", &node]);
}
