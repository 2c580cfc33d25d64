//! Two nodes that run pods for real: a gang that stands on both, is stopped for an urgent job, and
//! loses a node, ends with the weights that one machine comes to.
//!
//! All of it runs in network, mount and process namespaces of its own: nothing of it is reached
//! from outside, and nothing of it is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::binaries::{Binaries, Set};
use super::chart;
use super::control_plane::ControlPlane;
use super::image::{BUSYBOX, CATATONIT, Image, PAUSE};
use super::installation::{self, Installed};
use super::processes;
use super::real_node::{self, DNS, RealNode};

const SCHEDULER: &str = "real";
/// `het`, the program of the gang, and a shell.
pub const PROGRAMS: &str = "heterosis.test/programs:1";
/// What a program of a pod writes.
const SAID: &str = "as urgent as can be\n";
/// Services, as the API server has them, and nodes.
const ADDRESSES: [&str; 4] = ["10.0.0.1/32", "10.0.0.10/32", "10.10.0.1/32", "10.10.0.2/32"];
const LIMIT: Duration = Duration::from_secs(180);
const EXAMPLE_LIMIT: Duration = Duration::from_secs(1_800);
/// Of each node of the gang, for the rest of the machine: a gang of two needs both nodes then.
const CORES_KEPT: u32 = 1;
const STEPS: u64 = 800;
const PAUSE_MS: u64 = 100;

/// What a run needs that this machine does not have.
pub fn missing() -> Option<&'static str> {
    real_node::missing()
}

/// Plays it in namespaces of its own; with a directory that has `het-train`, the example of the
/// repository instead.
///
/// # Errors
/// When something cannot be started, or does not come about.
pub fn play(example: Option<&Path>) -> Result<()> {
    Binaries::build(&[Set::ControlPlane, Set::RealNodes])?;
    super::emptied()?;
    let mut inside = Command::new("unshare");
    inside.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    inside.arg(std::env::current_exe()?).args(["cluster", INSIDE]).args(example);
    let status = inside.status().context("`unshare` does not start")?;
    RealNode::forget_all();
    if !status.success() {
        bail!("it did not come about; logs are in `{}`", super::dir().display());
    }
    super::down()
}

/// The word by which [`play`] finds itself again.
pub const INSIDE: &str = "real-inside";

/// The run itself.
///
/// # Errors
/// As [`play`].
pub fn play_inside(example: Option<&Path>) -> Result<()> {
    cover_directories()?;
    make_network()?;
    let dir = super::dir();
    let binaries = Binaries::build(&[Set::ControlPlane, Set::RealNodes])?;
    let cluster = ControlPlane::start_for_real_nodes(&binaries, &dir)?;
    start_dns(&cluster, &binaries)?;
    share_a_directory(&cluster, &dir)?;
    let het = installation::built(&dir)?;
    match example {
        None => play_gang(&cluster, &binaries, het),
        Some(programs) => play_example(&cluster, &binaries, het, programs),
    }
}

fn install(cluster: &ControlPlane, het: PathBuf) -> Result<Installed> {
    Installed::into(cluster, het, SCHEDULER, &["--jobs-namespace", "default"])
}

fn play_gang(cluster: &ControlPlane, binaries: &Binaries, het: PathBuf) -> Result<()> {
    let (dir, program) = (cluster.dir(), built_program()?);
    let images = images(dir, &[&het, &program, Path::new(BUSYBOX)])?;
    let began = Instant::now();
    let node = |number| RealNode::start(cluster, binaries, number, CORES_KEPT, &images);
    let nodes = [node(1)?, node(2)?];
    println!("two nodes are ready after {} s", began.elapsed().as_secs());
    match chart::missing(binaries) {
        None => chart::play(cluster, &het)?,
        Some(what) => println!("SKIPPED: the chart, for {what} is missing"),
    }
    let installed = install(cluster, het)?;
    let home = dir.join("home");
    let _server = installed.server(&home, &["--rank-image", PROGRAMS])?;
    let run = Run { cluster, binaries, nodes: &nodes, began: Instant::now() };
    run.play()?;
    let logs = asked(&installed, &home, &["logs", "urgent"])?;
    if logs.stdout != SAID.as_bytes() {
        bail!("`het logs` shows something else: {logs:?}");
    }
    println!("`het logs` shows what a pod wrote");
    let expected = expected(dir, &program)?;
    let weights = fs::read_to_string(dir.join("shared/result/weights"))?;
    if weights != expected {
        bail!("the weights are others than those of one machine:\n{weights}\n{expected}");
    }
    println!("the weights are those of one machine");
    Ok(())
}

/// The example on one node, with the model that an earlier run has downloaded: pods reach nothing.
fn play_example(
    cluster: &ControlPlane,
    binaries: &Binaries,
    het: PathBuf,
    programs: &Path,
) -> Result<()> {
    let dir = cluster.dir();
    let train = programs.join("het-train");
    let images = images(dir, &[&het, &train, Path::new(BUSYBOX)])?;
    let installed = install(cluster, het)?;
    let models = dir.join("shared/cache/heterosis");
    fs::create_dir_all(&models)?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(super::binaries::user_cache()?.join("heterosis/models")).arg(&models);
    if !copy.status().context("`cp` does not start")?.success() {
        bail!("the model was never downloaded: run `cargo xtask example` first");
    }
    let nodes = [RealNode::start(cluster, binaries, 1, 0, &images)?];
    let home = dir.join("home");
    let _server = installed.server(&home, &["--rank-image", PROGRAMS])?;
    let job = dir.join("example.yaml");
    fs::write(&job, example_in_pods()?)?;
    let run = Run { cluster, binaries, nodes: &nodes, began: Instant::now() };
    let het = |words: &[&str]| asked(&installed, &home, words);
    run.until("the server answers", || het(&["ps"]).is_ok_and(|output| output.status.success()))?;
    let submitted = het(&["submit", &job.display().to_string()])?;
    if !submitted.status.success() {
        bail!("the example is refused: {}", String::from_utf8_lossy(&submitted.stderr));
    }
    let name = "finetune-example";
    let path = "{range .status.stages[*]}{.name} {.state}, {end}";
    let mut stages = String::new();
    let deadline = Instant::now() + EXAMPLE_LIMIT;
    while !matches!(run.state(name).as_str(), "succeeded" | "failed" | "cancelled") {
        if Instant::now() > deadline {
            bail!("the example does not end: {stages}");
        }
        let now =
            run.cluster.told(&["get", "trainingjob", name, "-o", &format!("jsonpath={path}")]);
        if now != stages {
            run.tell(&now);
            stages = now;
        }
        sleep(Duration::from_secs(1));
    }
    run.tell(&run.state(name));
    let results = dir.join("shared/finetune-example-1/validate-after/result.json");
    println!("{}", fs::read_to_string(results).unwrap_or_default());
    if run.state(name) != "succeeded" {
        bail!("the example has {}", run.state(name));
    }
    Ok(())
}

/// What `het` says to the server of a home.
fn asked(installed: &Installed, home: &Path, words: &[&str]) -> Result<Output> {
    let output = Command::new(&installed.het).args(words).env("HET_HOME", home).output();
    output.context("`het` does not start")
}

/// The example's job file, each stage of it in a container with a directory that all stages see.
fn example_in_pods() -> Result<String> {
    let text = fs::read_to_string(crate::root().join("examples/finetune.yaml"))?;
    let mut lines = Vec::new();
    for line in text.lines() {
        lines.push(line.to_owned());
        if line.trim_start().starts_with("devices:") {
            let indent = &line[..line.len() - line.trim_start().len()];
            let volumes = "[\"shared:/work\", \"shared:/shared\"]";
            lines.push(format!("{indent}container: {{ image: {PROGRAMS}, volumes: {volumes} }}"));
            lines.push(format!("{indent}env: {{ XDG_CACHE_HOME: /shared/cache }}"));
        }
    }
    Ok(lines.join("\n"))
}

/// What kubelets and containerd write where every node has it, nobody sees outside.
fn cover_directories() -> Result<()> {
    for dir in ["/run", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers"] {
        fs::create_dir_all(dir)?;
        let mut mount = Command::new("mount");
        let status = mount.args(["-t", "tmpfs", "tmpfs", dir]).status();
        if !status.context("`mount` does not start")?.success() {
            bail!("`{dir}` cannot be covered");
        }
    }
    Ok(())
}

fn make_network() -> Result<()> {
    let ip = |words: &[&str]| -> Result<()> {
        let status = Command::new("ip").args(words).status().context("`ip` does not start")?;
        if status.success() { Ok(()) } else { bail!("`ip {}` failed", words.join(" ")) }
    };
    ip(&["link", "set", "lo", "up"])?;
    ADDRESSES.iter().try_for_each(|address| ip(&["address", "add", address, "dev", "lo"]))
}

fn start_dns(cluster: &ControlPlane, binaries: &Binaries) -> Result<()> {
    let (domain, address) = DNS;
    let kubeconfig = cluster.kubeconfig();
    let of_cluster =
        format!("kubernetes {domain} {{\n    kubeconfig {}\n  }}", kubeconfig.display());
    let config = format!(".:53 {{\n  bind {address}\n  errors\n  {of_cluster}\n}}\n");
    let path = cluster.dir().join("Corefile");
    fs::write(&path, config)?;
    let flags = ["-conf".to_owned(), path.display().to_string()];
    processes::start(cluster.dir(), &binaries.path("coredns"), &flags)
}

fn built_program() -> Result<PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "xtask", "--example", "data_parallel"]);
    let status = build.current_dir(crate::root()).status().context("cargo does not start")?;
    if !status.success() {
        bail!("the program of the gang cannot be built");
    }
    Ok(crate::target().join("debug/examples/data_parallel"))
}

fn images(dir: &Path, programs: &[&Path]) -> Result<Vec<PathBuf>> {
    let pause = Image {
        name: PAUSE,
        programs: &[Path::new(CATATONIT)],
        command: &["/bin/catatonit", "-P"],
    };
    let programs = Image { name: PROGRAMS, programs, command: &[] };
    Ok(vec![pause.archive(dir)?, programs.archive(dir)?])
}

/// A volume that both nodes see.
fn share_a_directory(cluster: &ControlPlane, dir: &Path) -> Result<()> {
    let shared = dir.join("shared");
    fs::create_dir_all(&shared)?;
    let size = json!({ "storage": "1Gi" });
    let volume = installation::volume("shared", &shared, "ReadWriteMany");
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "shared", "namespace": "default" },
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "shared",
            "resources": { "requests": size },
        },
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [volume, claim] });
    installation::apply(cluster, list.to_string().as_bytes())
}

/// What the program comes to on this machine alone.
fn expected(dir: &Path, program: &Path) -> Result<String> {
    let output = dir.join("alone");
    let mut alone = Command::new(program);
    let status = alone.args([&STEPS.to_string(), "0"]).arg(&output).status()?;
    if !status.success() {
        bail!("the program does not run here");
    }
    Ok(fs::read_to_string(output.join("weights"))?)
}

struct Run<'a> {
    cluster: &'a ControlPlane,
    binaries: &'a Binaries,
    nodes: &'a [RealNode],
    began: Instant,
}

impl Run<'_> {
    fn play(&self) -> Result<()> {
        self.make("gang", "normal", "cpu:2 | cpu:1", &program())?;
        self.until("the gang has saved", || self.saved("gang") > 0)?;
        let nodes = self.nodes_of("gang");
        if nodes.len() != 2 {
            bail!("the gang stands on {nodes:?}");
        }
        self.tell("a gang stands on both nodes and has saved a checkpoint");

        self.make(
            "urgent",
            "urgent",
            "cpu:1",
            &json!(["sh", "-c", format!("echo {}; sleep 5", SAID.trim())]),
        )?;
        self.until("the urgent job has run", || self.state("urgent") == "succeeded")?;
        let before = self.saved("gang");
        self.tell(&format!("an urgent job has run; the gang had saved step {before}"));
        self.until("the gang goes on", || self.saved("gang") > before)?;
        self.tell(&format!("the gang goes on, attempt {}", self.attempts("gang")));

        self.lose_a_kubelet()?;
        self.lose_a_node()?;
        self.until("the gang has ended", || self.state("gang") == "succeeded")?;
        self.tell(&format!("the gang has succeeded, attempt {}", self.attempts("gang")));
        Ok(())
    }

    /// A kubelet that is killed and starts again finds its pods as they were.
    fn lose_a_kubelet(&self) -> Result<()> {
        let (attempts, before) = (self.attempts("gang"), self.saved("gang"));
        self.nodes[0].kill_kubelet(self.binaries)?;
        self.until("the gang goes on without a kubelet", || {
            self.checkpoint_of_files() > before + 20
        })?;
        self.nodes[0].start_kubelet(self.binaries)?;
        self.until("the gang is seen again", || self.saved("gang") > before)?;
        if self.attempts("gang") != attempts {
            bail!("the gang began anew because a kubelet did");
        }
        self.tell("a kubelet was killed and began again; the gang went on");
        Ok(())
    }

    /// A node without power is lost once somebody says so, as Kubernetes has it.
    fn lose_a_node(&self) -> Result<()> {
        let attempts = self.attempts("gang");
        let last = self.nodes_of("gang").pop().context("the gang stands somewhere")?;
        let node = self.nodes.iter().find(|node| node.name == last);
        node.context("the gang stands on a node")?.power_off()?;
        let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
        self.cluster.told(&["taint", "node", &last, taint]);
        self.until("the gang begins elsewhere", || {
            self.attempts("gang") > attempts && self.state("gang") == "running"
        })?;
        let nodes = self.nodes_of("gang");
        self.tell(&format!("`{last}` lost its power; the gang goes on on {nodes:?}"));
        Ok(())
    }

    fn make(&self, name: &str, priority: &str, devices: &str, run: &Value) -> Result<()> {
        let job = json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {
                "name": name, "namespace": "default",
                "labels": { "heterosis.dev/scheduler": SCHEDULER },
            },
            "spec": { "priority": priority, "stages": [{
                "name": "train", "kind": "train", "run": run, "devices": devices,
                "container": { "image": PROGRAMS, "volumes": ["shared:/shared"] },
                "checkpoint": { "every": "10s", "grace": "10s", "dir": "/shared/checkpoints" },
            }] },
        });
        installation::apply(self.cluster, job.to_string().as_bytes())
    }

    fn field(&self, job: &str, path: &str) -> String {
        let path = format!("jsonpath={{{path}}}");
        self.cluster.told(&["get", "trainingjob", job, "-o", &path])
    }

    fn state(&self, job: &str) -> String {
        self.field(job, ".status.state")
    }

    fn attempts(&self, job: &str) -> u32 {
        self.field(job, ".status.stages[0].attempts").parse().unwrap_or(0)
    }

    /// The step of its newest checkpoint.
    fn saved(&self, job: &str) -> u64 {
        let path = self.field(job, ".status.stages[0].checkpoint");
        path.rsplit_once('-').and_then(|(_, step)| step.parse().ok()).unwrap_or(0)
    }

    fn nodes_of(&self, job: &str) -> Vec<String> {
        serde_json::from_str(&self.field(job, ".status.stages[0].nodes")).unwrap_or_default()
    }

    /// What the program has saved, whoever heard of it.
    fn checkpoint_of_files(&self) -> u64 {
        let dir = self.cluster.dir().join("shared/checkpoints");
        let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|it| it.file_name());
        let steps = names
            .filter_map(|name| name.to_string_lossy().strip_prefix("checkpoint-")?.parse().ok());
        steps.max().unwrap_or(0)
    }

    fn tell(&self, what: &str) {
        println!("{:>4} s  {what}", self.began.elapsed().as_secs());
    }

    fn until(&self, what: &str, is_true: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !is_true() {
            if Instant::now() > deadline {
                let jobs = self.cluster.told(&["get", "trainingjobs,pods,nodes", "-o", "wide"]);
                bail!("waited for nothing: {what}\n{jobs}");
            }
            sleep(Duration::from_millis(250));
        }
        Ok(())
    }
}

/// What each rank of the gang runs.
fn program() -> Value {
    json!(["data_parallel", STEPS.to_string(), PAUSE_MS.to_string(), "/shared/result"])
}
