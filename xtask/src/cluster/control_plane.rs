//! etcd, API server, controller manager, scheduler and kwok on loopback, with RBAC.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::binaries::Binaries;
use super::processes;

/// How long the API server may take; four seconds are usual.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// Nodes in one request of `kubectl`.
const NODES_AT_ONCE: u32 = 500;
/// Where pods look for the API server.
const SERVICE_PORT: u16 = 443;
/// May do anything.
const ADMIN_TOKEN: &str = "admin";

/// Whether what etcd has taken is there after it was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// No: it is faster.
    Fast,
    Durable,
}

/// From where the API server can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// From this machine, on any port that is free.
    Loopback,
    /// From pods, too, which look for it where the service `kubernetes` is: in a network namespace
    /// of its own, whose loopback has the addresses of services.
    Pods,
}

/// A control plane that runs.
#[derive(Debug)]
pub struct ControlPlane {
    reach: Reach,
    dir: PathBuf,
    kubectl: PathBuf,
    etcd: PathBuf,
    api_server: PathBuf,
    kwok: PathBuf,
    /// Of etcd and of the API server.
    ports: [u16; 2],
    writes: Writes,
}

impl ControlPlane {
    /// Starts all of it in `dir`, which is empty.
    ///
    /// # Errors
    /// When a program does not start or does not become ready.
    pub fn start(binaries: &Binaries, dir: &Path, writes: Writes) -> Result<Self> {
        let this = Self::start_bare(binaries, dir, writes, Reach::Loopback)?;
        let start = |name: &str, arguments: &[String]| {
            processes::start(dir, &binaries.path(name), arguments)
        };
        start("kube-controller-manager", &this.controller_manager())?;
        start("kube-scheduler", &this.scheduler())?;
        start("kwok", &this.kwok_flags())?;
        Ok(this)
    }

    /// Starts all of it but what plays nodes.
    ///
    /// # Errors
    /// When a program does not start or does not become ready.
    pub fn start_for_real_nodes(binaries: &Binaries, dir: &Path) -> Result<Self> {
        let this = Self::start_bare(binaries, dir, Writes::Fast, Reach::Pods)?;
        let manager = binaries.path("kube-controller-manager");
        let silence = ["--node-monitor-grace-period=20s".to_owned()];
        processes::start(dir, &manager, &[&this.controller_manager()[..], &silence].concat())?;
        processes::start(dir, &binaries.path("kube-scheduler"), &this.scheduler())?;
        Ok(this)
    }

    /// Starts etcd and the API server in `dir`, which is empty.
    ///
    /// # Errors
    /// When a program does not start or does not become ready.
    pub fn start_bare(
        binaries: &Binaries,
        dir: &Path,
        writes: Writes,
        reach: Reach,
    ) -> Result<Self> {
        let api_port = match reach {
            Reach::Loopback => lasting_port(1)?,
            Reach::Pods => SERVICE_PORT,
        };
        let this = Self {
            reach,
            dir: dir.to_owned(),
            kubectl: binaries.path("kubectl"),
            etcd: binaries.path("etcd"),
            api_server: binaries.path("kube-apiserver"),
            kwok: binaries.path("kwok"),
            ports: [lasting_port(0)?, api_port],
            writes,
        };
        // Tests know the directory alone.
        symlink(&this.kubectl, dir.join("kubectl")).context("`kubectl` cannot be linked")?;
        let helm = binaries.path(super::binaries::HELM.name);
        if helm.exists() {
            symlink(helm, dir.join("helm")).context("`helm` cannot be linked")?;
        }
        processes::start(dir, &this.etcd, &this.etcd_flags())?;
        this.write_credentials()?;
        processes::start(dir, &this.api_server, &this.api_server_flags())?;
        this.await_ready()?;
        Ok(this)
    }

    /// Kills the API server and starts it again.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn restart_api_server(&self) -> Result<()> {
        processes::kill(&self.dir, &self.api_server)?;
        await_free(self.ports[1]);
        processes::start(&self.dir, &self.api_server, &self.api_server_flags())?;
        self.await_ready()
    }

    /// Kills etcd and starts it again on what it had.
    ///
    /// # Errors
    /// When the API server does not become ready.
    pub fn restart_etcd(&self) -> Result<()> {
        processes::kill(&self.dir, &self.etcd)?;
        await_free(self.ports[0]);
        processes::start(&self.dir, &self.etcd, &self.etcd_flags())?;
        self.await_ready()
    }

    /// Starts kwok again: what the API server did not take from it, it does not try again.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart_kwok(&self) -> Result<()> {
        processes::kill(&self.dir, &self.kwok)?;
        processes::start(&self.dir, &self.kwok, &self.kwok_flags())
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    fn etcd_flags(&self) -> Vec<String> {
        let url = self.etcd_url();
        flags(&[
            ("data-dir", &self.path("etcd")),
            ("listen-client-urls", &url),
            ("advertise-client-urls", &url),
            ("listen-peer-urls", "http://127.0.0.1:0"),
            ("unsafe-no-fsync", if self.writes == Writes::Fast { "true" } else { "false" }),
            ("log-level", "warn"),
        ])
    }

    fn api_server_flags(&self) -> Vec<String> {
        let port = self.ports[1];
        flags(&[
            ("etcd-servers", &self.etcd_url()),
            ("bind-address", if self.reach == Reach::Pods { "0.0.0.0" } else { "127.0.0.1" }),
            ("advertise-address", "127.0.0.1"),
            ("endpoint-reconciler-type", "none"),
            ("secure-port", &port.to_string()),
            ("cert-dir", &self.path("certificates")),
            ("service-account-issuer", &format!("https://127.0.0.1:{port}/")),
            ("service-account-key-file", &self.path("service-accounts.pub")),
            ("service-account-signing-key-file", &self.path("service-accounts.pem")),
            ("service-cluster-ip-range", "10.0.0.0/24"),
            ("authorization-mode", "RBAC"),
            ("allow-privileged", "true"),
            // Nobody looks up names of nodes.
            ("kubelet-preferred-address-types", "InternalIP"),
            ("token-auth-file", &self.path("tokens.csv")),
            ("audit-log-path", &self.path("audit.log")),
            // In MiB: whoever reads it wants all of it.
            ("audit-log-maxsize", "10000"),
            ("audit-policy-file", &self.path("audit-policy.json")),
            ("feature-gates", "GenericWorkload=true"),
            ("runtime-config", "scheduling.k8s.io/v1beta1=true"),
            // Tests ask for much at once.
            ("max-requests-inflight", "3000"),
            ("max-mutating-requests-inflight", "1000"),
        ])
    }

    fn controller_manager(&self) -> Vec<String> {
        flags(&[
            ("kubeconfig", &self.path("admin.kubeconfig")),
            // Of groups of pods, whose finalizer nobody else removes.
            ("feature-gates", "GenericWorkload=true"),
            ("service-account-private-key-file", &self.path("service-accounts.pem")),
            ("root-ca-file", &self.path("certificates/apiserver.crt")),
            ("use-service-account-credentials", "true"),
            ("leader-elect", "false"),
            ("secure-port", "0"),
        ])
    }

    fn scheduler(&self) -> Vec<String> {
        flags(&[
            ("kubeconfig", &self.path("admin.kubeconfig")),
            ("feature-gates", "GenericWorkload=true"),
            ("leader-elect", "false"),
            ("kube-api-qps", "5000"),
            ("kube-api-burst", "5000"),
            ("secure-port", "0"),
        ])
    }

    /// It has no stages unless it is given some.
    fn kwok_flags(&self) -> Vec<String> {
        let stages = crate::root().join("tests/kubernetes/kwok");
        let stage = |file: &str| stages.join(file).display().to_string();
        flags(&[
            ("kubeconfig", &self.path("admin.kubeconfig")),
            ("manage-all-nodes", "false"),
            ("manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake"),
            ("config", &stage("nodes.yaml")),
            ("config", &stage("pods.yaml")),
        ])
    }

    /// Keys, tokens, and a kubeconfig for each.
    fn write_credentials(&self) -> Result<()> {
        let write = |name: &str, text: String| {
            fs::write(self.dir.join(name), text).with_context(|| format!("`{name}` of the cluster"))
        };
        let key = rcgen::KeyPair::generate().context("a key cannot be made")?;
        write("service-accounts.pem", key.serialize_pem())?;
        write("service-accounts.pub", key.public_key_pem())?;
        write("tokens.csv", format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;
        let audit = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [
                { "level": "None", "verbs": ["get", "list", "watch"] },
                { "level": "None", "resources": [{ "group": "coordination.k8s.io" }] },
                { "level": "Request" },
            ],
        });
        write("audit-policy.json", audit.to_string())?;
        let cluster = json!({
            "server": format!("https://127.0.0.1:{}", self.ports[1]),
            "certificate-authority": self.path("certificates/apiserver.crt"),
        });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": "admin", "user": { "token": ADMIN_TOKEN } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "admin" } }],
        });
        write("admin.kubeconfig", config.to_string())
    }

    pub fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        kubectl.arg("--kubeconfig").arg(self.kubeconfig());
        kubectl
    }

    /// What `kubectl` prints; nothing where the API server does not answer.
    pub fn told(&self, arguments: &[&str]) -> String {
        let output = self.kubectl().args(arguments).output();
        output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default()
    }

    fn await_ready(&self) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let answer = self.kubectl().args(["get", "--raw", "/readyz"]).output();
            if answer.context("`kubectl` does not start")?.status.success() {
                return Ok(());
            }
            if let Some(program) = processes::first_dead(&self.dir) {
                bail!("`{program}` ended: see its log in `{}`", self.dir.display());
            }
            if Instant::now() > deadline {
                bail!("the API server is not ready: see its log in `{}`", self.dir.display());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Nodes that kwok plays: 8 GPUs, 96 cores, 1 TiB.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn make_nodes(&self, count: u32) -> Result<()> {
        for first in (0..count).step_by(NODES_AT_ONCE as usize) {
            self.make(first..count.min(first + NODES_AT_ONCE))?;
        }
        self.await_nodes(count)
    }

    /// Makes one of them again, and waits until all that there are are ready.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn make_node(&self, number: u32) -> Result<()> {
        self.make(number..number + 1)?;
        self.await_nodes(1)
    }

    fn make(&self, numbers: Range<u32>) -> Result<()> {
        let items: Vec<Value> = numbers.map(node).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let file = self.dir.join("nodes.json");
        fs::write(&file, list.to_string()).context("nodes cannot be written down")?;
        let mut create = self.kubectl();
        create.args(["create", "--output", "name", "-f"]).arg(&file);
        let made = create.output().context("`kubectl` does not start")?;
        if !made.status.success() {
            bail!("nodes are refused: {}", String::from_utf8_lossy(&made.stderr));
        }
        Ok(())
    }

    /// Until kwok says that they are ready.
    fn await_nodes(&self, count: u32) -> Result<()> {
        let mut wait = self.kubectl();
        let limit = format!("--timeout={}s", READY_LIMIT.as_secs() + u64::from(count) / 10);
        wait.args(["wait", "--for=condition=Ready", "nodes", "--all", "--output=name", &limit]);
        let mut wait = || wait.stdout(Stdio::null()).status().context("`kubectl` does not start");
        let is_ready = count == 0 || wait()?.success();
        let dead = processes::first_dead(&self.dir);
        match dead {
            Some(program) => bail!("`{program}` ended: see its log in `{}`", self.dir.display()),
            None if !is_ready => bail!("the nodes do not become ready"),
            None => Ok(()),
        }
    }
}

/// A port that a program can have again after it was killed: below those that the kernel gives to
/// clients, one of which could take it meanwhile (`ip_local_port_range` begins with 32,768).
fn lasting_port(which: u16) -> Result<u16> {
    let first = 20_000 + (std::process::id() as u16 % 1_000) * 10 + which;
    (first..32_768).step_by(10).find(is_free).context("no port is free below 32768")
}

fn is_free(port: &u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
}

/// Threads of a program that was killed hold its ports for a moment.
fn await_free(port: u16) {
    while !is_free(&port) {
        std::thread::yield_now();
    }
}

fn node(number: u32) -> Value {
    let name = format!("kwok-{number}");
    let has = json!({
        "cpu": "96", "memory": "1Ti", "pods": "110", "ephemeral-storage": "4Ti",
        "nvidia.com/gpu": "8",
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": { "kwok.x-k8s.io/node": "fake" },
            "labels": {
                "kubernetes.io/hostname": name,
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.memory": "81559",
                "topology.kubernetes.io/zone": format!("zone-{}", number / 256),
                "fabric.topograph.run/tier-0": format!("leaf-{}", number / 32),
            },
        },
        "status": { "capacity": has, "allocatable": has },
    })
}

fn flags(pairs: &[(&str, &str)]) -> Vec<String> {
    pairs.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}
