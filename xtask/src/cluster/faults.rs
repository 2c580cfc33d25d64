//! Faults on a real control plane, drawn from seeds: leaders are killed and stand still, the API
//! server and etcd are killed and start again, nodes and pods vanish. Whatever happens, every job
//! ends as if nothing had, and the API server's audit log shows no device and no stage twice.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::audit::{self, Found};
use super::control_plane::ControlPlane;
use super::installation::{self, Installed, Server};

const SCHEDULER: &str = "faults";
const NODES: u32 = 4;
const GPUS: u64 = 8;
/// Of each node, which pods claim: of another model.
const CLAIMABLE: u64 = 2;
/// A server that stands still for so long has lost its Lease when it goes on.
const STANDSTILL: Duration = Duration::from_secs(18);
const SETTLE_LIMIT: Duration = Duration::from_secs(240);
const EVERY: Duration = Duration::from_millis(250);

/// Plays a run for each seed on a cluster whose files are in `dir`.
///
/// # Errors
/// When a job does not end as it should, or the audit log shows that a law was broken.
pub fn play(cluster: &ControlPlane, dir: &Path, seeds: Range<u64>) -> Result<()> {
    let installed = Installed::into(cluster, installation::built(dir)?, SCHEDULER, &[])?;
    cluster.make_nodes(NODES)?;
    installation::apply(cluster, claimable().to_string().as_bytes())?;
    let (mut pods, mut bound, mut allocations, mut writes) = (0, 0, 0, 0);
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        let began = Instant::now();
        let home = dir.join(format!("run-{seed}"));
        let mut run =
            Run { cluster, installed: &installed, home, seed, draw: Draw(seed), done: Vec::new() };
        let audited = fs::metadata(cluster.audit_log()).map_or(0, |file| file.len());
        let settled = run.play();
        let found = audit::check(&text_from(&cluster.audit_log(), audited)?, GPUS);
        let Found { broken, .. } = &found;
        println!(
            "seed {seed}: {} pods, {} bound, {} more of which the log knows nothing, {} devices \
             allocated, {} writes, {} s: {}",
            found.pods,
            found.bound,
            found.unknown,
            found.allocations,
            found.writes,
            began.elapsed().as_secs(),
            run.done.join(", ")
        );
        settled.with_context(|| format!("seed {seed}: {}", run.done.join(", ")))?;
        if !broken.is_empty() {
            bail!("seed {seed} broke laws:\n  {}", broken.join("\n  "));
        }
        (pods, bound, writes) = (pods + found.pods, bound + found.bound, writes + found.writes);
        allocations += found.allocations;
    }
    println!(
        "{runs} runs: {pods} pods, {bound} bound, {allocations} devices allocated, {writes} \
         writes, no law was broken"
    );
    Ok(())
}

fn text_from(path: &Path, offset: u64) -> Result<String> {
    let mut file = File::open(path).context("there is no audit log")?;
    if file.metadata()?.len() < offset {
        bail!("the audit log was begun anew: what was before is not in it");
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Seeded draws (SplitMix64, Steele et al. 2014).
struct Draw(u64);

impl Draw {
    /// Uniform in `low..=high`, but for a bias far below what would be seen here.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        low + (mixed ^ (mixed >> 31)) % (high - low + 1)
    }
}

struct Run<'a> {
    cluster: &'a ControlPlane,
    installed: &'a Installed,
    home: PathBuf,
    seed: u64,
    draw: Draw,
    /// What was done, for people.
    done: Vec<String>,
}

impl Run<'_> {
    fn play(&mut self) -> Result<()> {
        let mut servers = vec![self.server("a")?];
        if self.draw.between(0, 1) == 0 {
            self.done.push("a second server stands by".to_owned());
            servers.push(self.server("b")?);
        }
        let jobs = self.draw.between(5, 9);
        let objects: Vec<Value> = (0..jobs).map(|number| self.job(number)).collect();
        let pods = (0..self.draw.between(1, 4)).map(|number| self.pod(number));
        let mut objects: Vec<Value> = objects.into_iter().chain(pods.collect::<Vec<_>>()).collect();
        let workloads = self.draw.between(1, 3);
        objects.extend((0..workloads).map(|number| self.workload(number)));
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        installation::apply(self.cluster, list.to_string().as_bytes())?;
        for _ in 0..self.draw.between(2, 4) {
            sleep(Duration::from_millis(self.draw.between(0, 900)));
            self.act(&mut servers)?;
        }
        let settled = self.settle(jobs as usize, workloads as usize);
        drop(servers);
        self.clear()?;
        settled
    }

    fn server(&self, name: &str) -> Result<Server> {
        self.installed.server(&self.home.join(name), &[])
    }

    fn act(&mut self, servers: &mut Vec<Server>) -> Result<()> {
        let which = self.draw.between(0, servers.len() as u64 - 1) as usize;
        let number = self.draw.between(0, u64::from(NODES) - 1) as u32;
        let node = format!("kwok-{number}");
        let what = match self.draw.between(0, 9) {
            0..=2 => {
                servers[which].kill_server()?;
                format!("server {which} was killed")
            }
            3 => {
                // Without its log: it takes over from what the cluster says.
                let name = format!("{}", self.done.len());
                servers.remove(which);
                servers.push(self.server(&name)?);
                format!("server {which} and its home are gone, another begins")
            }
            4 | 5 => {
                servers[which].signal("STOP")?;
                sleep(STANDSTILL);
                servers[which].signal("CONT")?;
                format!("server {which} stood still")
            }
            6 => {
                self.cluster.restart_api_server()?;
                self.cluster.restart_kwok()?;
                "the API server was killed".to_owned()
            }
            7 => {
                self.cluster.restart_etcd()?;
                self.cluster.restart_kwok()?;
                "etcd was killed".to_owned()
            }
            8 => {
                self.cluster.told(&["delete", "node", &node, "--ignore-not-found"]);
                sleep(Duration::from_millis(self.draw.between(0, 2_000)));
                self.cluster.make_node(number)?;
                format!("`{node}` vanished and came back")
            }
            _ => {
                let pods = self.cluster.told(&["get", "pods", "-o", "name"]);
                let pods: Vec<&str> = pods.lines().collect();
                match pods.len() {
                    0 => "there was no pod to delete".to_owned(),
                    count => {
                        let pod = pods[self.draw.between(0, count as u64 - 1) as usize];
                        self.cluster.told(&["delete", pod, "--wait=false", "--ignore-not-found"]);
                        format!("`{pod}` was deleted")
                    }
                }
            }
        };
        self.done.push(what);
        Ok(())
    }

    /// A pod of somebody else. Where it is lost nobody makes it again.
    fn pod(&mut self, number: u64) -> Value {
        let devices = json!({ "nvidia.com/gpu": self.draw.between(1, 4).to_string() });
        let time = format!("{}ms", self.draw.between(300, 3_000));
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("other-{}-{number}", self.seed), "namespace": "default" },
            "spec": {
                "schedulerName": SCHEDULER, "restartPolicy": "Never",
                "containers": [{
                    "name": "main", "image": "faults", "command": ["finish", time],
                    "resources": { "requests": devices, "limits": devices },
                }],
            },
        })
    }

    /// A workload of somebody else, whose controller makes pods anew that are lost.
    fn workload(&mut self, number: u64) -> Value {
        let devices = json!({ "nvidia.com/gpu": self.draw.between(1, 3).to_string() });
        let pods = self.draw.between(1, 5);
        let time = format!("{}ms", self.draw.between(300, 3_000));
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": format!("work-{}-{number}", self.seed), "namespace": "default" },
            "spec": {
                "suspend": true, "completions": pods, "parallelism": pods, "backoffLimit": 100,
                "template": { "spec": {
                    "schedulerName": SCHEDULER, "restartPolicy": "Never",
                    "containers": [{
                        "name": "main", "image": "faults", "command": ["finish", time],
                        "resources": { "requests": devices, "limits": devices },
                    }],
                } },
            },
        })
    }

    fn job(&mut self, number: u64) -> Value {
        let devices = match self.draw.between(0, 2) {
            0 => format!("mi300x:{}", self.draw.between(1, 3)),
            _ => format!("h100-sxm5-80:{}", self.draw.between(1, 12)),
        };
        let time = format!("{}ms", self.draw.between(300, 3_000));
        json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {
                "name": format!("faults-{}-{number}", self.seed), "namespace": "default",
                "labels": { "heterosis.dev/scheduler": SCHEDULER },
            },
            "spec": { "stages": [{
                "name": "train", "kind": "train", "run": ["finish", time], "ranks": "device",
                "devices": devices, "container": { "image": "faults" },
            }] },
        })
    }

    /// Waits until all jobs have succeeded, and workloads of others.
    fn settle(&self, jobs: usize, workloads: usize) -> Result<()> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        let path = "jsonpath={range .items[*]}{.metadata.name} {.status.state}{\"\\n\"}{end}";
        loop {
            let told = self.cluster.told(&["get", "trainingjobs", "-o", path]);
            let succeeded = told.lines().filter(|line| line.ends_with(" succeeded")).count();
            let path =
                "jsonpath={range .items[*]}{.metadata.name} {.status.conditions}{\"\\n\"}{end}";
            let others = self.cluster.told(&["get", "jobs.batch", "-o", path]);
            let complete = |line: &&str| line.contains(r#""status":"True","type":"Complete""#);
            if succeeded == jobs && others.lines().filter(complete).count() == workloads {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("jobs do not end:\n{told}\n{others}");
            }
            sleep(EVERY);
        }
    }

    fn clear(&self) -> Result<()> {
        const KINDS: &str = "trainingjobs,jobs.batch,pods,resourceclaims";
        self.cluster.told(&["delete", KINDS, "--all", "--wait=false"]);
        let deadline = Instant::now() + SETTLE_LIMIT;
        while !self.cluster.told(&["get", KINDS, "-o", "name"]).is_empty() {
            if Instant::now() > deadline {
                bail!("pods of jobs that are gone stay: {}", self.cluster.told(&["get", "pods"]));
            }
            sleep(EVERY);
        }
        Ok(())
    }
}

/// What a driver of dynamic resource allocation offers on each node, and their class.
fn claimable() -> Value {
    let device = |at: u64| {
        let product = json!({ "string": "AMD Instinct MI300X" });
        json!({ "name": format!("gpu-{at}"), "attributes": { "productName": product } })
    };
    let slices = (0..NODES).map(|number| {
        let node = format!("kwok-{number}");
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": { "name": node },
            "spec": {
                "driver": "gpu.amd.com", "nodeName": node,
                "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
                "devices": (0..CLAIMABLE).map(device).collect::<Vec<_>>(),
            },
        })
    });
    let selector = json!({ "cel": { "expression": "device.driver == 'gpu.amd.com'" } });
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": { "name": "gpu.amd.com" }, "spec": { "selectors": [selector] },
    });
    let items: Vec<Value> = slices.chain([class]).collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}
