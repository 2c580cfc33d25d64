//! `het server --engine kubernetes` against a real API server, with the rights of its own account;
//! kwok plays the kubelets. `cargo xtask cluster up` starts one, and without it these are skipped.

mod chart;
mod claims;
mod gates;
mod groups;
mod handed_over;
mod pods;
mod quotas;
mod ranks;
mod workloads;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::commands::wait_for;
use crate::operated::assert_decided_again;
use crate::support::{Sandbox, Served};

/// A cluster, as its administrator sees it.
struct Cluster {
    dir: PathBuf,
}

impl Cluster {
    #[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
    fn find() -> Option<Self> {
        let target = Path::new(env!("CARGO_BIN_EXE_het")).parent()?.parent()?;
        let dir = target.join("kubernetes");
        if !dir.join("admin.kubeconfig").exists() {
            eprintln!("SKIPPED: no cluster runs; `cargo xtask cluster up` starts one");
            return None;
        }
        Some(Self { dir })
    }

    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut kubectl = Command::new(self.dir.join("kubectl"));
        kubectl.arg("--kubeconfig").arg(self.dir.join("admin.kubeconfig")).args(arguments);
        kubectl
    }

    #[track_caller]
    fn told(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments).output().expect("`kubectl` is there");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[track_caller]
    fn apply(&self, objects: &str) {
        let mut apply = self.kubectl(&["apply", "-f", "-"]);
        let mut apply = apply.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let apply = apply.as_mut().expect("`kubectl` is there");
        let mut input = apply.stdin.take().expect("it is piped");
        input.write_all(objects.as_bytes()).expect("it reads");
        drop(input);
        assert!(apply.wait().expect("it ends").success(), "{objects}");
    }

    /// A node with so many devices of a class that has its name, which no other node has.
    fn make_node(&self, name: &str, count: u32) {
        let product = format!("NVIDIA-{}", name.to_uppercase());
        let label = ("nvidia.com/gpu.product", product.as_str());
        self.make_node_with(name, &[("nvidia.com/gpu", count)], label);
    }

    /// A node with extended resources, and a label that says what they are.
    fn make_node_with(&self, name: &str, resources: &[(&str, u32)], label: (&str, &str)) {
        let mut has = json!({ "cpu": "16", "memory": "64Gi", "pods": "50" });
        for (resource, count) in resources {
            has[resource] = json!(count.to_string());
        }
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "labels": { label.0: label.1 },
                "annotations": { "kwok.x-k8s.io/node": "fake" },
            },
            "status": { "capacity": has, "allocatable": has },
        });
        self.apply(&node.to_string());
    }

    /// The nodes of a running job's ranks.
    fn nodes_of(&self, name: &str) -> Vec<String> {
        let nodes = self.job(name)["status"]["stages"][0]["nodes"].take();
        serde_json::from_value(nodes).unwrap_or_default()
    }

    /// A kubeconfig with the rights of the account of the manifests.
    fn account(&self, sandbox: &Sandbox) -> PathBuf {
        let token = self.told(&["create", "token", "heterosis", "--namespace", "heterosis"]);
        let text = fs::read_to_string(self.dir.join("admin.kubeconfig")).expect("it is there");
        let mut config: Value = serde_json::from_str(&text).expect("it is JSON");
        config["users"][0]["user"] = json!({ "token": token });
        sandbox.write("kubeconfig", &config.to_string())
    }

    fn job(&self, name: &str) -> Value {
        let output = self.kubectl(&["get", "trainingjob", name, "-o", "json"]).output();
        serde_json::from_slice(&output.expect("`kubectl` is there").stdout).unwrap_or_default()
    }

    fn pod(&self, name: &str) -> Value {
        let output = self.kubectl(&["get", "pod", name, "-o", "json"]).output();
        serde_json::from_slice(&output.expect("`kubectl` is there").stdout).unwrap_or_default()
    }

    fn await_state(&self, name: &str, state: &str) {
        wait_for(&format!("`{name}` is {state}"), || self.job(name)["status"]["state"] == *state);
    }

    /// Name and uid of each pod of a server's job that has not ended.
    fn pods(&self, scheduler: &str, job: u64) -> Vec<(String, String)> {
        let selector = format!("heterosis.dev/job={job},heterosis.dev/scheduler={scheduler}");
        let path =
            "{range .items[*]}{.metadata.name} {.metadata.uid} {.status.phase}{\"\\n\"}{end}";
        let format = format!("jsonpath={path}");
        let told = self.told(&["get", "pods", "--selector", &selector, "-o", &format]);
        let rows = told.lines().filter_map(|line| {
            let [name, uid, phase] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
            (phase == "Running").then(|| (name.to_owned(), uid.to_owned()))
        });
        rows.collect()
    }
}

/// A name that no other run has.
fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", std::process::id())
}

/// The object of a job, for a server of this name.
fn training_job(name: &str, scheduler: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": { "heterosis.dev/scheduler": scheduler },
        },
        "spec": spec,
    })
}

fn stage(run: &[&str], devices: &str) -> Value {
    json!({
        "name": "train", "kind": "train", "run": run, "devices": devices,
        "container": "registry.example/train:1", "checkpoint": { "every": "10m", "grace": "1s" },
    })
}

/// A cluster with our definition and account, and a server of its own scheduler name.
fn served(cluster: &Cluster, name: &str) -> Served {
    let sandbox = Sandbox::new();
    // Two at once would both make what is not there yet.
    static APPLY: Mutex<()> = Mutex::new(());
    let alone = APPLY.lock();
    let manifests = sandbox.run(&["kubernetes", "manifests"]).stdout;
    cluster.apply(&String::from_utf8_lossy(&manifests));
    drop(alone);
    start(cluster, Served(sandbox), name)
}

/// A server in a sandbox that may have had one before.
fn start(cluster: &Cluster, served: Served, name: &str) -> Served {
    begin(cluster, &served, name);
    wait_for("the server", || served.code(&["ps"]) == Some(0));
    served
}

/// Starts a server that may have to wait until it leads.
fn begin(cluster: &Cluster, sandbox: &Sandbox, name: &str) {
    begin_with(cluster, sandbox, name, &[]);
}

fn begin_with(cluster: &Cluster, sandbox: &Sandbox, name: &str, options: &[&str]) {
    let kubeconfig = cluster.account(sandbox);
    let kubeconfig = kubeconfig.to_string_lossy();
    let engine = ["server", "--engine", "kubernetes", "--kubeconfig", &kubeconfig];
    let mut server = sandbox.het(&[&engine[..], &["--scheduler-name", name], options].concat());
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    drop(server.expect("the server can be started"));
}

fn server_process(served: &Served) -> Pid {
    let pid = served.json(&["server", "status"])["pid"].as_i64();
    Pid::from_raw(pid.expect("a process") as i32)
}

fn keeper_of(process: Pid) -> Pid {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it is there");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    Pid::from_raw(parent.and_then(|it| it.trim().parse().ok()).expect("it has a parent"))
}

fn jobs(served: &Served) -> Vec<(u64, String, String)> {
    let rows = served.json(&["ps", "--all"]);
    let rows = rows["items"].as_array().expect("it lists them").iter().map(|row| {
        let word = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
        (row["id"].as_u64().unwrap_or_default(), word("name"), word("state"))
    });
    rows.collect()
}

#[test]
fn jobs_become_pods_and_their_objects_say_how_they_stand() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("first");
    cluster.make_node(&node, 4);
    let devices = |count: u32| format!("{node}:{count}");
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));

    let name = unique("gang");
    let id = served.submit_stage(&name, "normal", &stage(&["finish", "200ms"], &devices(2)));
    assert_eq!(served.code(&["wait", &id.to_string()]), Some(0));
    cluster.await_state(&name, "succeeded");
    let job = cluster.job(&name);
    assert_eq!(job["status"]["conditions"][1]["type"], "Complete", "{job:#}");

    let of_it = format!("regarding.name={name}");
    wait_for("its events", || {
        let told = cluster.told(&["get", "events.events.k8s.io", "--field-selector", &of_it]);
        ["Running", "Succeeded"].iter().all(|word| told.contains(word))
    });

    let failing = unique("failing");
    let id =
        served.submit_stage(&failing, "normal", &stage(&["fail", "0", "50ms", "7"], &devices(1)));
    assert_eq!(served.code(&["wait", &id.to_string()]), Some(7), "the program's own code");
    cluster.await_state(&failing, "failed");

    // What a person makes is the same as what `het submit` does.
    let applied = unique("applied");
    let spec = json!({ "stages": [{
        "name": "train", "run": ["finish", "50ms"], "devices": devices(1),
        "container": { "image": "i" },
    }] });
    cluster.apply(&training_job(&applied, &node, &spec).to_string());
    cluster.await_state(&applied, "succeeded");

    let wrong = unique("wrong");
    let mut spec = spec;
    spec["stages"][0]["devices"] = json!("l4os:1");
    cluster.apply(&training_job(&wrong, &node, &spec).to_string());
    cluster.await_state(&wrong, "refused");
    let condition = cluster.job(&wrong)["status"]["conditions"][0].clone();
    let message = condition["message"].as_str().expect("it says why");
    assert!(message.contains("`l4os`") && message.contains("did you mean"), "{message}");
    cluster.told(&["delete", "node", &node]);
}

#[test]
fn a_preempted_job_waits_and_what_runs_outlives_the_server() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("second");
    cluster.make_node(&node, 2);
    let devices = format!("{node}:2");
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));

    let low = unique("low");
    let id = served.submit_stage(&low, "low", &stage(&["until-notice"], &devices));
    cluster.await_state(&low, "running");
    assert_eq!(cluster.job(&low)["status"]["devices"], format!("2 × {node}"));
    let before = cluster.pods(&node, id);
    assert_eq!(before.len(), 1, "{before:?}");

    let server = server_process(&served);
    kill(server, Signal::SIGKILL).expect("it runs");
    // Its keeper starts the next one.
    wait_for("the next server", || {
        let status = served.run(&["server", "status", "-o", "json"]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        status["pid"].as_i64().is_some_and(|pid| pid != i64::from(server.as_raw()))
    });
    assert_eq!(cluster.pods(&node, id), before, "it is the same pod");

    let urgent = unique("urgent");
    let second = served.submit_stage(&urgent, "urgent", &stage(&["until-notice"], &devices));
    cluster.await_state(&low, "preempted");
    cluster.await_state(&urgent, "running");
    let reason = cluster.job(&low)["status"]["reason"].clone();
    assert!(reason.as_str().is_some_and(|text| text.contains(&node)), "{reason}");
    assert_eq!(served.code(&["cancel", &second.to_string()]), Some(0));
    cluster.await_state(&low, "running");
    let after = cluster.pods(&node, id);
    assert!(after.len() == 1 && after != before, "{after:?}");

    // Whoever deletes the object ends its job.
    cluster.told(&["delete", "trainingjob", &low, "--wait=false"]);
    assert_eq!(served.code(&["wait", &id.to_string()]), Some(130), "it is cancelled");
    wait_for("the end of its pod", || cluster.pods(&node, id).is_empty());
    cluster.told(&["delete", "node", &node]);
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_decided_again(&served, 5);
}

#[test]
fn what_happens_while_no_server_runs_is_taken_up() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("third");
    cluster.make_node(&node, 2);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));
    let one = format!("{node}:1");
    let (ends, deleted) = (unique("ends"), unique("deleted"));
    let first = served.submit_stage(&ends, "normal", &stage(&["finish", "1s"], &one));
    let second = served.submit_stage(&deleted, "normal", &stage(&["until-notice"], &one));
    cluster.await_state(&deleted, "running");
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    cluster.told(&["delete", "trainingjob", &deleted, "--wait=false"]);
    wait_for("the end of its pod", || cluster.pods(&node, first).is_empty());

    let served = start(&cluster, served, &node);
    cluster.await_state(&ends, "succeeded");
    assert_eq!(served.code(&["wait", &second.to_string()]), Some(130), "it is cancelled");
    wait_for("the end of the other's", || cluster.pods(&node, second).is_empty());
    cluster.told(&["delete", "node", &node]);
}

#[test]
fn a_server_that_has_nothing_goes_on_from_what_the_cluster_says() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("fourth");
    cluster.make_node(&node, 2);
    let served = served(&cluster, &node);
    wait_for("the node", || served.told(&["devices"]).contains(&node));
    let (runs, waits) = (unique("runs"), unique("waits"));
    let (two, one) = (format!("{node}:2"), format!("{node}:1"));
    let first = served.submit_stage(&runs, "normal", &stage(&["until-notice"], &two));
    cluster.await_state(&runs, "running");
    let second = served.submit_stage(&waits, "normal", &stage(&["until-notice"], &one));
    cluster.await_state(&waits, "queued");
    let (pods, before) = (cluster.pods(&node, first), jobs(&served));
    assert_eq!(served.code(&["server", "stop"]), Some(0));

    // Its home is another one: nothing is left but what lies in the cluster.
    let next = start(&cluster, Served(Sandbox::new()), &node);
    assert_eq!(jobs(&next), before);
    assert_eq!(cluster.pods(&node, first), pods, "it is the same pod");
    assert_eq!(next.code(&["cancel", &first.to_string()]), Some(0));
    cluster.await_state(&waits, "running");
    assert_eq!(next.code(&["cancel", &second.to_string()]), Some(0));
    cluster.await_state(&waits, "cancelled");

    // The one before knows from the Lease that its log is old.
    assert_eq!(next.code(&["server", "stop"]), Some(0));
    let served = start(&cluster, served, &node);
    let ended = jobs(&served).into_iter().map(|(_, _, state)| state);
    assert_eq!(ended.collect::<Vec<_>>(), ["cancelled", "cancelled"]);
    cluster.told(&["delete", "node", &node]);
}

#[test]
fn a_leader_that_stands_still_is_followed_by_another_and_stands_down() {
    let Some(cluster) = Cluster::find() else { return };
    let node = unique("fifth");
    cluster.make_node(&node, 2);
    let one = format!("{node}:1");
    let leader = served(&cluster, &node);
    wait_for("the node", || leader.told(&["devices"]).contains(&node));
    let (before, after) = (unique("before"), unique("after"));
    let first = leader.submit_stage(&before, "normal", &stage(&["until-notice"], &one));
    cluster.await_state(&before, "running");
    let pods = cluster.pods(&node, first);
    let process = server_process(&leader);

    let follower = Served(Sandbox::new());
    begin(&cluster, &follower, &node);
    // Its keeper would let it go on.
    let both = [keeper_of(process), process];
    both.iter().for_each(|process| kill(*process, Signal::SIGSTOP).expect("it runs"));
    wait_for("the next leader", || follower.code(&["ps"]) == Some(0));
    let second = follower.submit_stage(&after, "normal", &stage(&["until-notice"], &one));
    cluster.await_state(&after, "running");
    assert!(second > first);
    assert_eq!(cluster.pods(&node, first), pods, "it is the same pod");

    both.iter().for_each(|process| kill(*process, Signal::SIGCONT).expect("it is there"));
    wait_for("the end of its lead", || leader.code(&["ps"]) != Some(0));
    let seen = jobs(&follower);
    assert_eq!(follower.code(&["server", "stop"]), Some(0));
    wait_for("its second lead", || leader.code(&["ps"]) == Some(0));
    assert_eq!(jobs(&leader), seen);
    assert_eq!(cluster.pods(&node, first), pods, "it is the same pod");
    cluster.told(&["delete", "node", &node]);
}

/// Chips whose resource has one name beside each other, as a scheduler that knows one kind of NPU
/// cannot have them; cards of two vendors in one node; what others left of nodes.
#[test]
fn unlike_devices_of_one_cluster_are_told_apart() {
    let Some(cluster) = Cluster::find() else { return };
    // A run that failed may have left its nodes, which have the same devices.
    let left = cluster.told(&["get", "nodes", "-o", "name"]);
    left.lines().filter(|node| node.starts_with("node/unlike-")).for_each(|node| {
        cluster.told(&["delete", node]);
    });
    let name = unique("unlike");
    let [b3, b4, six, two, cards, a100, v100] =
        ["b3", "b4", "six", "two", "cards", "a100", "v100"].map(|it| format!("{name}-{it}"));
    let chip = "node.kubernetes.io/npu.chip.name";
    let product = "nvidia.com/gpu.product";
    cluster.make_node_with(&b3, &[("huawei.com/Ascend910", 8)], (chip, "910B3"));
    cluster.make_node_with(&b4, &[("huawei.com/Ascend910", 8)], (chip, "910B4"));
    cluster.make_node_with(&six, &[("huawei.com/Ascend910", 6)], (chip, "910C"));
    cluster.make_node_with(&two, &[("huawei.com/Ascend910", 2)], (chip, "910C"));
    let beside = [("nvidia.com/gpu", 2), ("huawei.com/Ascend310P", 4)];
    cluster.make_node_with(&cards, &beside, (product, "Tesla-T4"));
    cluster.make_node_with(&a100, &[("nvidia.com/gpu", 2)], (product, "NVIDIA-A100-SXM4-80GB"));
    cluster.make_node_with(&v100, &[("nvidia.com/gpu", 8)], (product, "Tesla-V100-SXM2-32GB"));
    let served = served(&cluster, &name);
    wait_for("the nodes", || {
        let devices = served.told(&["devices"]);
        [&b3, &b4, &six, &two, &cards, &a100, &v100].iter().all(|node| devices.contains(*node))
    });

    let check = |job: &str, devices: &str, nodes: &[&String], has: &str| {
        let job = unique(job);
        served.submit_stage(&job, "normal", &stage(&["until-notice"], devices));
        cluster.await_state(&job, "running");
        let mut found = cluster.nodes_of(&job);
        found.sort();
        assert_eq!(found.iter().collect::<Vec<_>>(), nodes, "{devices}");
        assert_eq!(cluster.job(&job)["status"]["devices"], has);
    };
    check("b3", "ascend-910b:8", &[&b3], "8 × ascend-910b");
    check("b4", "ascend-910b4:8", &[&b4], "8 × ascend-910b4");
    check("six-and-two", "ascend-910c:8", &[&six, &two], "8 × ascend-910c");
    check("inference", "ascend-310p:4", &[&cards], "4 × ascend-310p");
    check("beside", "t4:2", &[&cards], "2 × t4");
    let fallback = "a100-sxm4-80:2 | v100-sxm2-32:4";
    check("first", fallback, &[&a100], "2 × a100-sxm4-80");
    check("second", fallback, &[&v100], "4 × v100-sxm2-32");

    // A limit on one model of GPU is none on another.
    let quotas = json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "Quotas",
        "priority_max": "high",
        "tenants": { "default": { "limit": { "v100-sxm2-32": 4 } } },
    });
    let quotas = served.write("quotas.yaml", &quotas.to_string());
    assert_eq!(served.code(&["quotas", "--set", &quotas.to_string_lossy()]), Some(0));
    let third = unique("third");
    served.submit_stage(&third, "normal", &stage(&["until-notice"], "v100-sxm2-32:4"));
    // Nor may anybody have what quotas keep from `het submit`.
    let urgent = unique("hasty");
    let spec = json!({ "priority": "urgent", "stages": [{
        "name": "train", "run": ["until-notice"], "devices": "t4:1", "container": { "image": "i" },
    }] });
    cluster.apply(&training_job(&urgent, &name, &spec).to_string());
    cluster.await_state(&urgent, "refused");
    let reason = cluster.job(&urgent)["status"]["reason"].clone();
    assert_eq!(reason, "jobs of `default` have priority `high` at most");

    wait_for("why it waits", || {
        cluster.job(&third)["status"]["reason"]
            == "`default` may hold no more than 4 of `v100-sxm2-32`"
    });
    [b3, b4, six, two, cards, a100, v100].iter().for_each(|node| {
        cluster.told(&["delete", "node", node, "--wait=false"]);
    });
}

/// The namespace of the manifests enforces `restricted`, so the server's pod is there only if it
/// keeps that standard.
#[test]
fn a_server_in_the_cluster_keeps_the_restricted_standard() {
    let Some(cluster) = Cluster::find() else { return };
    let name = unique("installed");
    let sandbox = Sandbox::new();
    let of_it = ["--namespace", &name, "--scheduler-name", &name, "--image", "example/het:1"];
    let manifests = sandbox.run(&[&["kubernetes", "manifests"], &of_it[..]].concat()).stdout;
    let manifests = String::from_utf8_lossy(&manifests);
    // Objects of the whole cluster are those of the other tests, too.
    let own = manifests.split("---\n").filter(|object| {
        object.contains(&format!("namespace: {name}")) || object.contains(&format!("name: {name}"))
    });
    cluster.apply(&own.collect::<Vec<_>>().join("---\n"));
    let pods = ["get", "pods", "--namespace", &name, "-o", "jsonpath={.items[*].metadata.name}"];
    wait_for("the server's pod", || cluster.told(&pods).starts_with("heterosis-"));

    // Nobody but its account says how jobs stand.
    let job = unique("told");
    let spec = json!({ "stages": [{
        "name": "train", "run": ["true"], "devices": "cpu:1", "container": { "image": "i" },
    }] });
    cluster.apply(&training_job(&job, &name, &spec).to_string());
    let lie = r#"{"status":{"state":"succeeded"}}"#;
    let patch = ["patch", "trainingjob", &job, "--subresource=status", "--type=merge", "-p", lie];
    wait_for("the policy", || {
        let patched = cluster.kubectl(&patch).output().expect("`kubectl` is there");
        String::from_utf8_lossy(&patched.stderr).contains("the scheduler alone says")
    });
    // Nor where a pod was placed.
    let forged = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": unique("forged"), "namespace": "default",
            "labels": { "heterosis.dev/scheduler": name },
            "annotations": { "heterosis.dev/epoch": "9", "heterosis.dev/node": "kwok-0" },
        },
        "spec": { "containers": [{ "name": "main", "image": "i" }] },
    });
    let forged = sandbox.write("forged.json", &forged.to_string());
    let forge = ["apply", "-f", &forged.to_string_lossy()];
    wait_for("the policy", || {
        let made = cluster.kubectl(&forge).output().expect("`kubectl` is there");
        let told = String::from_utf8_lossy(&made.stderr);
        told.contains("the scheduler alone says where it placed a pod")
    });
    let text = cluster.told(&["explain", "trainingjob.spec.stages.checkpoint"]);
    assert!(text.contains("every") && text.contains("grace"), "{text}");
    cluster.told(&["delete", "trainingjob", &job, "--wait=false"]);
    for kind in ["validatingadmissionpolicy", "validatingadmissionpolicybinding"] {
        for word in ["epoch", "status", "suspension", "claims", "placement"] {
            cluster.told(&["delete", kind, &format!("{name}.{word}.heterosis.dev")]);
        }
    }
    cluster.told(&["delete", "namespace", &name, "--wait=false"]);
}

#[test]
fn what_is_about_this_machine_is_refused() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&["server", "--engine", "kubernetes", "--devices", "cuda0"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("`--devices` is about this machine"), "{error}");
    let output = sandbox.run(&["server", "--engine", "kubernetes", "--kubeconfig", "missing"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("the kubeconfig `missing` cannot be used"), "{error}");
}
