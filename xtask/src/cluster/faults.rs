//! Faults on a real control plane, drawn from seeds: leaders are killed and stand still, the API
//! server and etcd are killed and start again, nodes and pods vanish. Whatever happens, every job
//! ends as if nothing had, and the API server's audit log shows no device and no stage twice.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::audit::{self, Found};
use super::control_plane::ControlPlane;
use super::processes;

const SCHEDULER: &str = "faults";
const NODES: u32 = 4;
const GPUS: u64 = 8;
/// A server that stands still for so long has lost its Lease when it goes on.
const STANDSTILL: Duration = Duration::from_secs(18);
const SETTLE_LIMIT: Duration = Duration::from_secs(240);
const EVERY: Duration = Duration::from_millis(250);

/// Plays a run for each seed on a cluster whose files are in `dir`.
///
/// # Errors
/// When a job does not end as it should, or the audit log shows that a law was broken.
pub fn play(cluster: &ControlPlane, dir: &Path, seeds: Range<u64>) -> Result<()> {
    let het = built(dir)?;
    cluster.make_nodes(NODES)?;
    define(cluster, &het)?;
    let kubeconfig = account(cluster, dir)?;
    let (mut pods, mut bound, mut writes) = (0, 0, 0);
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        let began = Instant::now();
        let home = dir.join(format!("run-{seed}"));
        let mut run = Run {
            cluster,
            het: &het,
            kubeconfig: &kubeconfig,
            home,
            seed,
            draw: Draw(seed),
            done: Vec::new(),
        };
        let audited = fs::metadata(cluster.audit_log()).map_or(0, |file| file.len());
        let settled = run.play();
        let found = audit::check(&text_from(&cluster.audit_log(), audited)?, GPUS);
        let Found { broken, .. } = &found;
        println!(
            "seed {seed}: {} pods, {} bound, {} more of which the log knows nothing, {} writes, \
             {} s: {}",
            found.pods,
            found.bound,
            found.unknown,
            found.writes,
            began.elapsed().as_secs(),
            run.done.join(", ")
        );
        settled.with_context(|| format!("seed {seed}: {}", run.done.join(", ")))?;
        if !broken.is_empty() {
            bail!("seed {seed} broke laws:\n  {}", broken.join("\n  "));
        }
        (pods, bound, writes) = (pods + found.pods, bound + found.bound, writes + found.writes);
    }
    println!("{runs} runs: {pods} pods, {bound} bound, {writes} writes, no law was broken");
    Ok(())
}

/// A copy of `het`, as tests use it: somebody may build another meanwhile.
fn built(dir: &Path) -> Result<PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--workspace", "--bin", "het"]).current_dir(crate::root());
    let status = build.status().context("cargo does not start")?;
    if !status.success() {
        bail!("`het` cannot be built");
    }
    let copy = dir.join("het");
    fs::copy(crate::target().join("debug/het"), &copy).context("`het` cannot be copied")?;
    Ok(copy)
}

fn define(cluster: &ControlPlane, het: &Path) -> Result<()> {
    let manifests = Command::new(het)
        .args(["kubernetes", "manifests", "--scheduler-name", SCHEDULER])
        .output()
        .context("`het` does not start")?;
    apply(cluster, &manifests.stdout)?;
    let mut wait = cluster.kubectl();
    wait.args(["wait", "--for=condition=Established", "crd/trainingjobs.heterosis.dev"]);
    wait.stdout(Stdio::null()).status().context("`kubectl` does not start")?;
    Ok(())
}

/// Tries until the API server takes it.
fn apply(cluster: &ControlPlane, objects: &[u8]) -> Result<()> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        let mut apply = cluster.kubectl();
        apply.args(["apply", "-f", "-"]).stdin(Stdio::piped());
        let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        apply.stdin.take().context("it is piped")?.write_all(objects)?;
        let output = apply.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("objects are refused: {}", String::from_utf8_lossy(&output.stderr));
        }
        sleep(EVERY);
    }
}

/// A kubeconfig with the rights that the manifests give the server.
fn account(cluster: &ControlPlane, dir: &Path) -> Result<PathBuf> {
    let mut token = cluster.kubectl();
    token.args(["create", "token", "heterosis", "--namespace", "heterosis", "--duration", "24h"]);
    let token = token.output().context("`kubectl` does not start")?;
    let mut config: Value = serde_json::from_str(&fs::read_to_string(cluster.kubeconfig())?)?;
    let token = String::from_utf8_lossy(&token.stdout).trim().to_owned();
    config["users"][0]["user"] = json!({ "token": token });
    let path = dir.join("account.kubeconfig");
    fs::write(&path, config.to_string())?;
    Ok(path)
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
    het: &'a Path,
    kubeconfig: &'a Path,
    home: PathBuf,
    seed: u64,
    draw: Draw,
    /// What was done, for people.
    done: Vec<String>,
}

/// A server below its keeper.
struct Server(Child);

impl Server {
    /// The keeper, which would start another, and those below it.
    fn processes(&self) -> Vec<String> {
        let keeper = self.0.id().to_string();
        let path = format!("/proc/{keeper}/task/{keeper}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        [keeper].into_iter().chain(children.split_whitespace().map(str::to_owned)).collect()
    }

    fn signal(&self, name: &str) -> Result<()> {
        self.processes().iter().try_for_each(|id| processes::signal(name, id))
    }

    /// Kills the server; its keeper starts the next.
    fn kill_server(&self) -> Result<()> {
        self.processes().iter().skip(1).try_for_each(|id| processes::signal("KILL", id))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that stands still would not hear of it.
        let _ = self.signal("CONT");
        let _ = self.signal("KILL");
        let _ = self.0.wait();
    }
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
        let objects: Vec<Value> = objects.into_iter().chain(pods.collect::<Vec<_>>()).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        apply(self.cluster, list.to_string().as_bytes())?;
        for _ in 0..self.draw.between(2, 4) {
            sleep(Duration::from_millis(self.draw.between(0, 900)));
            self.act(&mut servers)?;
        }
        let settled = self.settle(jobs as usize);
        drop(servers);
        self.clear()?;
        settled
    }

    fn server(&self, name: &str) -> Result<Server> {
        let home = self.home.join(name);
        fs::create_dir_all(&home)?;
        let log = File::options().create(true).append(true).open(home.join("log"))?;
        let child = Command::new(self.het)
            .args(["server", "--engine", "kubernetes", "--scheduler-name", SCHEDULER])
            .arg("--kubeconfig")
            .arg(self.kubeconfig)
            .env("HET_HOME", &home)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("`het` does not start")?;
        Ok(Server(child))
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
                self.told(&["delete", "node", &node, "--ignore-not-found"]);
                sleep(Duration::from_millis(self.draw.between(0, 2_000)));
                self.cluster.make_node(number)?;
                format!("`{node}` vanished and came back")
            }
            _ => {
                let pods = self.told(&["get", "pods", "-o", "name"]);
                let pods: Vec<&str> = pods.lines().collect();
                match pods.len() {
                    0 => "there was no pod to delete".to_owned(),
                    count => {
                        let pod = pods[self.draw.between(0, count as u64 - 1) as usize];
                        self.told(&["delete", pod, "--wait=false", "--ignore-not-found"]);
                        format!("`{pod}` was deleted")
                    }
                }
            }
        };
        self.done.push(what);
        Ok(())
    }

    /// What `kubectl` prints; nothing where the API server does not answer.
    fn told(&self, arguments: &[&str]) -> String {
        let output = self.cluster.kubectl().args(arguments).output();
        output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default()
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

    fn job(&mut self, number: u64) -> Value {
        let devices = self.draw.between(1, 12);
        let time = format!("{}ms", self.draw.between(300, 3_000));
        json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {
                "name": format!("faults-{}-{number}", self.seed), "namespace": "default",
                "labels": { "heterosis.dev/scheduler": SCHEDULER },
            },
            "spec": { "stages": [{
                "name": "train", "kind": "train", "run": ["finish", time], "ranks": "device",
                "devices": format!("h100-sxm5-80:{devices}"), "container": { "image": "faults" },
            }] },
        })
    }

    /// Waits until all jobs have succeeded.
    fn settle(&self, jobs: usize) -> Result<()> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        let path = "jsonpath={range .items[*]}{.metadata.name} {.status.state}{\"\\n\"}{end}";
        loop {
            let told = self.told(&["get", "trainingjobs", "-o", path]);
            let succeeded = told.lines().filter(|line| line.ends_with(" succeeded")).count();
            if succeeded == jobs {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("jobs do not end:\n{told}");
            }
            sleep(EVERY);
        }
    }

    fn clear(&self) -> Result<()> {
        self.told(&["delete", "trainingjobs,pods", "--all", "--wait=false"]);
        let deadline = Instant::now() + SETTLE_LIMIT;
        while !self.told(&["get", "pods,trainingjobs", "-o", "name"]).is_empty() {
            if Instant::now() > deadline {
                bail!("pods of jobs that are gone stay: {}", self.told(&["get", "pods"]));
            }
            sleep(EVERY);
        }
        Ok(())
    }
}
