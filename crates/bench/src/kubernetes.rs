//! `het bench kubernetes`: the server and kube-scheduler on the same API server, node objects and
//! pods.
//!
//! No kubelet runs: what is timed is how pods get their nodes. Nodes are plain objects that say
//! that they are ready.

mod api;
mod schedulers;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use het_server::{Binding, ManifestOptions, manifests};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::{Value, json};

use crate::http::Http;
use crate::server::{Server, memory_mib};
use crate::{BenchError, percentile};
use api::{Api, await_that};
use schedulers::{OURS, Programs, Running, Who};

const NAMESPACE: &str = "default";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const JOBS: &str = "/apis/heterosis.dev/v1alpha1/namespaces/default/trainingjobs";
/// Whatever this made.
const LABEL: &str = "heterosis.dev/bench";
const GPUS: u32 = 8;
/// What the nodes' label is understood as.
const CLASS: &str = "h100-sxm5-80";
const GANG: u32 = 512;
/// Pods on each node while memory is looked at.
const PODS_A_NODE: usize = 10;
/// Pods that run while the server is killed.
const RECOVERED: usize = 10_000;
const LIMIT: Duration = Duration::from_secs(600);
const EVERY: Duration = Duration::from_millis(100);

/// What is measured.
#[derive(Debug, Clone)]
pub struct KubernetesBench {
    /// Of a cluster without nodes.
    pub kubeconfig: PathBuf,
    pub kube_scheduler: PathBuf,
    pub nodes: Vec<u32>,
    /// Of one GPU each.
    pub pods: usize,
    /// Of each of the two, one after the other.
    pub runs: usize,
}

/// What was measured on so many nodes: medians over runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KubernetesFigures {
    pub nodes: u32,
    pub pods: usize,
    /// From the start of the scheduler's process until the last pod has its node, and the event
    /// that says so.
    pub pods_per_s: f64,
    pub kube_scheduler_pods_per_s: f64,
    /// Processor time of the scheduler, its start included.
    pub cpu_us_per_bind: f64,
    pub kube_scheduler_cpu_us_per_bind: f64,
    /// A gang of 512 pods of one GPU inside of one part of the network: all decisions while it
    /// begins, and from its creation to the last pod's node.
    pub gang512_decision_ms: f64,
    pub gang512_bound_s: f64,
    /// As many `TrainingJob`s of one GPU as there are pods: from the first creation until the last
    /// object is there, and until the last pod has its node.
    pub training_jobs_created_s: f64,
    pub training_jobs_bound_s: f64,
    /// From the creation of a job that can never run to the sentence that says so.
    pub unschedulable_s: f64,
    /// The server's peak, with ten pods a node in the cluster, of which up to 10,000 are its own.
    pub rss_mib: f64,
    /// From the death of a server with up to 10,000 pods to the next one's first answer.
    pub recovery_s: f64,
}

/// What two schedulers did, run by run.
#[derive(Default)]
struct Rates {
    pods_per_s: Vec<f64>,
    cpu_us: Vec<f64>,
}

/// Measures on clusters of each size, in directories below `dir`, which is empty. `program` is
/// this program; `say` is told what is being done.
///
/// # Errors
/// When the cluster has nodes or pods already, or something cannot be set up or does not come
/// about.
pub fn bench_kubernetes(
    (dir, program): (&Path, &Path),
    options: &KubernetesBench,
    mut say: impl FnMut(&str),
) -> Result<Vec<KubernetesFigures>, BenchError> {
    let api = Api::connect(&options.kubeconfig)?;
    // What is there at the end is deleted.
    for (what, path) in [("nodes", NODES), ("pods", PODS)] {
        if !api.names(path, ("", ""), Some(1))?.is_empty() {
            let what = format!("the cluster has {what}: this needs one of its own");
            return Err(BenchError::Nothing { what });
        }
    }
    define(&api)?;
    let programs = Programs {
        het: program,
        kube_scheduler: &options.kube_scheduler,
        kubeconfig: &options.kubeconfig,
    };
    let mut figures = Vec::new();
    for &nodes in &options.nodes {
        let bench = Bench { api: &api, programs: &programs, dir, nodes, options };
        say(&format!("{nodes} nodes"));
        let measured = bench.nodes().and_then(|()| bench.measure(&mut say));
        let cleared = bench.clear();
        figures.push(measured?);
        cleared?;
    }
    Ok(figures)
}

/// Makes known what a job is.
fn define(api: &Api) -> Result<(), BenchError> {
    let options = ManifestOptions {
        binding: Binding::Own,
        namespace: "heterosis".to_owned(),
        image: None,
        scheduler: OURS.to_owned(),
        storage: String::new(),
        replicas: 1,
        jobs_namespaces: Vec::new(),
        handed_over: false,
        device_table: None,
    };
    let is_it = |object: &Value| object["kind"] == "CustomResourceDefinition";
    let definition = manifests(&options).into_iter().filter(is_it).collect();
    api.make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)?;
    let namespace = json!({ "metadata": { "name": "heterosis" } });
    api.make("/api/v1/namespaces", vec![namespace])?;
    // Where no controller manager runs nobody else makes it, and no pod may be made without.
    let account = json!({ "metadata": { "name": "default" } });
    api.make("/api/v1/namespaces/default/serviceaccounts", vec![account])?;
    await_that("jobs are known", (EVERY, LIMIT), || Ok(api.names(JOBS, ("", ""), None).is_ok()))
}

/// A cluster of one size.
struct Bench<'a> {
    api: &'a Api,
    programs: &'a Programs<'a>,
    dir: &'a Path,
    nodes: u32,
    options: &'a KubernetesBench,
}

impl Bench<'_> {
    fn measure(&self, say: &mut impl FnMut(&str)) -> Result<KubernetesFigures, BenchError> {
        let (mut ours, mut theirs) = (Rates::default(), Rates::default());
        let pods = self.options.pods.min((self.nodes * GPUS) as usize);
        for run in 0..self.options.runs {
            for who in [Who::Het, Who::KubeScheduler] {
                let (rate, cpu_us) = self.bind(who, run, pods)?;
                say(&format!("{who:?}: {rate:.0} pods/s, {cpu_us:.0} µs a pod"));
                let rates = if who == Who::Het { &mut ours } else { &mut theirs };
                rates.pods_per_s.push(rate);
                rates.cpu_us.push(cpu_us);
            }
        }
        let server = self.programs.het(&self.home("server"))?;
        say("a gang, and a job that can never run");
        let (gang512_decision_ms, gang512_bound_s) = self.gang(&server)?;
        let unschedulable_s = self.unschedulable()?;
        say(&format!("{pods} TrainingJobs"));
        let (training_jobs_created_s, training_jobs_bound_s) = self.training_jobs(pods)?;
        say("killing the server");
        let recovery_s = self.recovery(&server)?;
        say("filling the cluster");
        let rss_mib = self.memory(&server)?;
        let median = |values: &[f64]| percentile(values, 0.5);
        Ok(KubernetesFigures {
            nodes: self.nodes,
            pods,
            pods_per_s: median(&ours.pods_per_s),
            kube_scheduler_pods_per_s: median(&theirs.pods_per_s),
            cpu_us_per_bind: median(&ours.cpu_us),
            kube_scheduler_cpu_us_per_bind: median(&theirs.cpu_us),
            gang512_decision_ms,
            gang512_bound_s,
            training_jobs_created_s,
            training_jobs_bound_s,
            unschedulable_s,
            rss_mib,
            recovery_s,
        })
    }

    fn home(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{}-{name}", self.nodes))
    }

    fn nodes(&self) -> Result<(), BenchError> {
        let names: Vec<String> = (0..self.nodes).map(|number| format!("bench-{number}")).collect();
        let numbered = names.iter().zip(0..);
        self.api.make(NODES, numbered.map(|(name, number)| node(name, number)).collect())?;
        // A new node has a taint until somebody has seen that it is ready.
        self.api.merge(NODES, names, &json!({ "spec": { "taints": null } }))
    }

    /// Pods a second, and the scheduler's processor time a pod in µs.
    fn bind(&self, who: Who, run: usize, count: usize) -> Result<(f64, f64), BenchError> {
        self.api.make(PODS, (0..count).map(|_| pod(who.scheduler(), None)).collect())?;
        let home = self.home(&format!("run-{run}"));
        let began = Instant::now();
        let running = self.programs.start(who, &home)?;
        self.await_bound(LABEL)?;
        // Each pod costs both of them two writes.
        await_that("all pods have their event", (EVERY, LIMIT), || {
            Ok(self.api.count(EVENTS)? >= count)
        })?;
        let rate = count as f64 / began.elapsed().as_secs_f64();
        let cpu_us = running.cpu_s()? * 1e6 / count as f64;
        if let Running::Het(server) = &running {
            // What was bound is deleted behind its back.
            stop(server)?;
        }
        drop(running);
        self.delete_pods()?;
        self.api.delete(EVENTS, self.api.names(EVENTS, ("", ""), None)?)?;
        Ok((rate, cpu_us))
    }

    /// Of the pods that a selector of labels chooses.
    fn await_bound(&self, labels: &str) -> Result<(), BenchError> {
        await_that("all pods have nodes", (EVERY, LIMIT), || {
            let waiting = self.api.names(PODS, (labels, "spec.nodeName="), Some(1))?;
            Ok(waiting.is_empty())
        })
    }

    fn delete_pods(&self) -> Result<(), BenchError> {
        let names = self.api.names(PODS, ("", ""), None)?;
        self.api.delete(PODS, names)
    }

    /// How long decisions took while a gang begins, in ms, and until it has its nodes, in s.
    fn gang(&self, server: &Server) -> Result<(f64, f64), BenchError> {
        let before = decision_s(server)?;
        let began = Instant::now();
        self.api.make(JOBS, vec![job("gang", GANG, "pod")])?;
        let last = format!("heterosis.dev/rank={}", GANG - 1);
        await_that("the gang has its pods", (EVERY, LIMIT), || {
            Ok(!self.api.names(PODS, (&last, ""), None)?.is_empty())
        })?;
        self.await_bound("")?;
        let bound_s = began.elapsed().as_secs_f64();
        let decision_ms = (decision_s(server)? - before) * 1e3;
        self.api.delete(JOBS, vec!["gang".to_owned()])?;
        self.delete_pods()?;
        Ok((decision_ms, bound_s))
    }

    /// How long it takes to create so many jobs of one device, and until all have nodes, in s.
    fn training_jobs(&self, count: usize) -> Result<(f64, f64), BenchError> {
        let jobs = (0..count).map(|number| job(&format!("one-{number}"), 1, "any"));
        let jobs = jobs.collect();
        let began = Instant::now();
        self.api.make(JOBS, jobs)?;
        let created_s = began.elapsed().as_secs_f64();
        await_that("all jobs have pods", (EVERY, LIMIT), || Ok(self.api.count(PODS)? >= count))?;
        self.await_bound("")?;
        let bound_s = began.elapsed().as_secs_f64();
        self.api.delete(JOBS, self.api.names(JOBS, ("", ""), None)?)?;
        self.delete_pods()?;
        Ok((created_s, bound_s))
    }

    fn unschedulable(&self) -> Result<f64, BenchError> {
        let began = Instant::now();
        self.api.make(JOBS, vec![job("never", self.nodes * GPUS + 1, "any")])?;
        let often = Duration::from_millis(5);
        await_that("it is told why it waits", (often, LIMIT), || {
            let job = self.api.get(JOBS, "never")?;
            Ok(job["status"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()))
        })?;
        let took = began.elapsed().as_secs_f64();
        self.api.delete(JOBS, vec!["never".to_owned()])?;
        Ok(took)
    }

    fn recovery(&self, server: &Server) -> Result<f64, BenchError> {
        let count = RECOVERED.min((self.nodes * GPUS) as usize);
        self.api.make(PODS, (0..count).map(|_| pod(OURS, None)).collect())?;
        self.await_bound(LABEL)?;
        let pid = server.answering(0)?;
        let killed = kill(Pid::from_raw(pid), Signal::SIGKILL);
        killed.map_err(|errno| BenchError::Server { what: errno.to_string() })?;
        let began = Instant::now();
        server.answering(pid)?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Fills the nodes with pods of others, until the server has taken them in.
    fn memory(&self, server: &Server) -> Result<f64, BenchError> {
        let there = self.api.names(PODS, (LABEL, ""), None)?.len();
        let more = (self.nodes as usize * PODS_A_NODE).saturating_sub(there);
        let on = |number: usize| format!("bench-{}", number % self.nodes as usize);
        self.api.make(PODS, (0..more).map(|number| pod("another", Some(on(number)))).collect())?;
        let pid = server.answering(0)?;
        let mut before = 0.0;
        await_that("the server has seen all pods", (Duration::from_secs(2), LIMIT), || {
            let now = events(server)?;
            let is_quiet = now == before;
            before = now;
            Ok(is_quiet)
        })?;
        memory_mib(pid, "VmHWM:")
    }

    fn clear(&self) -> Result<(), BenchError> {
        self.delete_pods()?;
        self.api.delete(NODES, self.api.names(NODES, (LABEL, ""), None)?)
    }
}

/// Ends a server; what runs goes on.
fn stop(server: &Server) -> Result<(), BenchError> {
    let mut http = Http::connect(&server.socket)?;
    http.ask("POST", "/api/v1/server/stop", "").map(drop)?;
    thread::sleep(EVERY);
    Ok(())
}

/// A figure of `/metrics`.
fn metric(server: &Server, name: &str) -> Result<f64, BenchError> {
    let text = Http::connect(&server.socket)?.ask("GET", "/metrics", "")?;
    let text = String::from_utf8_lossy(&text);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.ok_or_else(|| BenchError::Server { what: format!("nothing of `{name}`") })
}

fn decision_s(server: &Server) -> Result<f64, BenchError> {
    metric(server, "het_decision_seconds_total ")
}

fn events(server: &Server) -> Result<f64, BenchError> {
    metric(server, "het_log_events_total ")
}

fn node(name: &str, number: u32) -> Value {
    let has = json!({
        "cpu": "96", "memory": "1Ti", "pods": "110", "ephemeral-storage": "4Ti",
        "nvidia.com/gpu": GPUS.to_string(),
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                LABEL: "node",
                "kubernetes.io/hostname": name,
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.memory": "81559",
                "topology.kubernetes.io/zone": format!("zone-{}", number / 256),
                "fabric.topograph.run/tier-0": format!("leaf-{}", number / 32),
            },
        },
        "status": {
            "capacity": has, "allocatable": has,
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Bench" }],
        },
    })
}

/// A pod of one GPU for a scheduler; one core where its node is chosen already.
fn pod(scheduler: &str, node: Option<String>) -> Value {
    let resources = match node {
        None => json!({ "cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1" }),
        Some(_) => json!({ "cpu": "1", "memory": "1Gi" }),
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "bench-", "namespace": NAMESPACE, "labels": { LABEL: "pod" },
        },
        "spec": {
            "schedulerName": scheduler, "nodeName": node, "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "bench",
                "resources": { "requests": resources, "limits": resources },
            }],
        },
    })
}

fn job(name: &str, devices: u32, within: &str) -> Value {
    json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": { "heterosis.dev/scheduler": OURS },
        },
        "spec": { "stages": [{
            "name": "train", "kind": "train", "run": ["train"], "ranks": "device",
            "devices": format!("{CLASS}:{devices}"), "within": within,
            "container": { "image": "bench" },
        }] },
    })
}
