//! `het` in a cluster: its definitions, an account, and servers beside it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::processes;

const LIMIT: Duration = Duration::from_secs(240);
const EVERY: Duration = Duration::from_millis(250);

/// What servers of one name are started with.
#[derive(Debug)]
pub struct Installed {
    pub het: PathBuf,
    scheduler: &'static str,
    kubeconfig: PathBuf,
}

impl Installed {
    /// Gives the cluster the manifests of a scheduler, made with more options.
    ///
    /// # Errors
    /// When the API server does not take them.
    pub fn into(
        cluster: &ControlPlane,
        het: PathBuf,
        scheduler: &'static str,
        options: &[&str],
    ) -> Result<Self> {
        define(cluster, &het, scheduler, options)?;
        let kubeconfig = account(cluster, cluster.dir())?;
        Ok(Self { het, scheduler, kubeconfig })
    }

    /// Starts a server with more options.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn server(&self, home: &Path, options: &[&str]) -> Result<Server> {
        fs::create_dir_all(home)?;
        let log = File::options().create(true).append(true).open(home.join("log"))?;
        let child = Command::new(&self.het)
            .args(["server", "--engine", "kubernetes", "--scheduler-name", self.scheduler])
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(options)
            .env("HET_HOME", home)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("`het` does not start")?;
        Ok(Server(child))
    }
}

/// A server below its keeper.
#[derive(Debug)]
pub struct Server(Child);

impl Server {
    /// The keeper, which would start another, and those below it.
    fn processes(&self) -> Vec<String> {
        let keeper = self.0.id().to_string();
        let path = format!("/proc/{keeper}/task/{keeper}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        [keeper].into_iter().chain(children.split_whitespace().map(str::to_owned)).collect()
    }

    pub fn signal(&self, name: &str) -> Result<()> {
        self.processes().iter().try_for_each(|id| processes::signal(name, id))
    }

    /// Kills the server; its keeper starts the next.
    pub fn kill_server(&self) -> Result<()> {
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

/// A copy of `het`, as tests use it: somebody may build another meanwhile.
///
/// # Errors
/// When it cannot be built.
pub fn built(dir: &Path) -> Result<PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--package", "het-cli", "--bin", "het"])
        .current_dir(crate::root());
    let status = build.status().context("cargo does not start")?;
    if !status.success() {
        bail!("`het` cannot be built");
    }
    let copy = dir.join("het");
    fs::copy(crate::target().join("debug/het"), &copy).context("`het` cannot be copied")?;
    Ok(copy)
}

fn define(cluster: &ControlPlane, het: &Path, scheduler: &str, options: &[&str]) -> Result<()> {
    let manifests = Command::new(het)
        .args(["kubernetes", "manifests", "--scheduler-name", scheduler])
        .args(options)
        .output()
        .context("`het` does not start")?;
    if !manifests.status.success() {
        bail!("no manifests: {}", String::from_utf8_lossy(&manifests.stderr));
    }
    apply(cluster, &manifests.stdout)?;
    let mut wait = cluster.kubectl();
    wait.args(["wait", "--for=condition=Established", "crd/trainingjobs.heterosis.dev"]);
    wait.stdout(Stdio::null()).status().context("`kubectl` does not start")?;
    Ok(())
}

/// Tries until the API server takes it.
///
/// # Errors
/// When it does not.
pub fn apply(cluster: &ControlPlane, objects: &[u8]) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
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

/// A directory that every node sees, as a volume.
pub fn volume(name: &str, directory: &Path, access: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": [access], "storageClassName": "",
            "hostPath": { "path": directory },
        },
    })
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
