//! The chart, installed by Helm on real nodes: its server runs in a pod of a namespace that
//! enforces the `restricted` standard, gives a job its node, and leaves what runs alone when it is
//! upgraded and when it is uninstalled.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::binaries::{Binaries, HELM};
use super::control_plane::ControlPlane;
use super::installation;
use super::real::PROGRAMS;

const NAMESPACE: &str = "charted";
/// Jobs bring their own images, whose users may be anybody.
const JOBS_NAMESPACE: &str = "jobs-of-the-chart";
const RELEASE: &str = "heterosis";
const JOB: &str = "of-the-chart";
const TABLE: &str = "apiVersion: heterosis.dev/v1alpha1\nkind: DeviceTable\nresources: []\n";
const LIMIT: Duration = Duration::from_secs(120);
const EVERY: Duration = Duration::from_millis(250);

/// What a run needs that was not built.
pub fn missing(binaries: &Binaries) -> Option<&'static str> {
    (!binaries.path(HELM.name).exists()).then_some("helm")
}

/// Installs, upgrades and uninstalls it.
///
/// # Errors
/// When something is refused, or does not come about.
pub fn play(cluster: &ControlPlane, het: &Path) -> Result<()> {
    let began = Instant::now();
    let tell = |what: &str| println!("{:>4} s  {what}", began.elapsed().as_secs());
    let release = Release { cluster, chart: cluster.dir().join("chart") };
    let mut chart = Command::new(het);
    let chart = chart.args(["kubernetes", "chart"]).arg(&release.chart).stdout(Stdio::null());
    if !chart.status().context("`het` does not start")?.success() {
        bail!("there is no chart");
    }
    release.prepare()?;
    release
        .helm(&["install", "--set", "resources=null"])
        .err()
        .context("a word that no value has")?;
    release.helm(&["install"])?;
    tell("the chart is installed under `restricted`, and its server is ready");

    release.make_job()?;
    release.until("the job runs", || release.state() == "running")?;
    let pod = release.pod();
    let exec = ["exec", "deploy/heterosis", "--namespace", NAMESPACE, "--", "het", "ps"];
    let listed = release.cluster.told(&exec);
    if !listed.contains(JOB) {
        bail!("the server in its pod does not list the job:\n{listed}");
    }
    tell("a job runs, and the server in its pod lists it");

    let (before, table) = (release.servers(), cluster.dir().join("table.yaml"));
    fs::write(&table, TABLE)?;
    release.helm(&["upgrade", "--set-file", &format!("deviceTable={}", table.display())])?;
    release.until("the next server", || !release.servers().is_empty())?;
    if release.servers() == before {
        bail!("an upgrade does not bring another server");
    }
    tell("the chart is upgraded, and its next server is ready");
    release.uninstall()?;
    release.until("its server is gone", || release.servers().is_empty())?;
    if (release.state().as_str(), release.pod()) != ("running", pod) {
        bail!("upgrade and uninstall do not leave the job alone: {}", release.state());
    }
    tell("the chart is uninstalled; the job runs on, with its pod");
    release.cluster.told(&["delete", "trainingjob", JOB, "--namespace", JOBS_NAMESPACE]);
    release.until("its pods are gone", || release.pod().is_empty())
}

struct Release<'a> {
    cluster: &'a ControlPlane,
    chart: PathBuf,
}

impl Release<'_> {
    /// Namespaces, and a volume for the log of the server.
    fn prepare(&self) -> Result<()> {
        let home = self.cluster.dir().join("chart-home");
        fs::create_dir_all(&home)?;
        // The user of the server is no user of this machine.
        fs::set_permissions(&home, Permissions::from_mode(0o777))?;
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": NAMESPACE,
                "labels": { "pod-security.kubernetes.io/enforce": "restricted" },
            },
        });
        let jobs = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": JOBS_NAMESPACE },
        });
        let volume = installation::volume("log-of-the-chart", &home, "ReadWriteOncePod");
        let list =
            json!({ "apiVersion": "v1", "kind": "List", "items": [namespace, jobs, volume] });
        installation::apply(self.cluster, list.to_string().as_bytes())
    }

    /// `words` begin with what Helm is to do; it waits until the server is ready.
    fn helm(&self, words: &[&str]) -> Result<()> {
        let (verb, more) = words.split_first().context("a verb")?;
        let chart = self.chart.display().to_string();
        let values = format!("image={PROGRAMS},jobsNamespaces={{{JOBS_NAMESPACE}}},storage=1Gi");
        let of_release = [verb, RELEASE, &chart, "--wait", "--timeout", "120s", "--set", &values];
        self.run(&[&of_release[..], more].concat())
    }

    fn uninstall(&self) -> Result<()> {
        self.run(&["uninstall", RELEASE, "--wait"])
    }

    fn run(&self, arguments: &[&str]) -> Result<()> {
        let mut helm = Command::new(self.cluster.dir().join("helm"));
        helm.args(arguments).args(["--namespace", NAMESPACE, "--kubeconfig"]);
        helm.arg(self.cluster.kubeconfig()).stdout(Stdio::null());
        let output = helm.output().context("`helm` does not start")?;
        if !output.status.success() {
            bail!("`helm {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    fn make_job(&self) -> Result<()> {
        let job = json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": { "name": JOB, "namespace": JOBS_NAMESPACE },
            "spec": { "stages": [{
                "name": "train", "kind": "train", "run": ["sleep", "3600"], "devices": "cpu:1",
                "container": { "image": PROGRAMS },
            }] },
        });
        installation::apply(self.cluster, job.to_string().as_bytes())
    }

    fn state(&self) -> String {
        let path = "jsonpath={.status.state}";
        self.cluster.told(&["get", "trainingjob", JOB, "--namespace", JOBS_NAMESPACE, "-o", path])
    }

    fn pod(&self) -> String {
        self.pods(JOBS_NAMESPACE)
    }

    fn servers(&self) -> String {
        self.pods(NAMESPACE)
    }

    /// Of a namespace, the name and uid of each.
    fn pods(&self, namespace: &str) -> String {
        let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {end}";
        self.cluster.told(&["get", "pods", "--namespace", namespace, "-o", path])
    }

    fn until(&self, what: &str, is_true: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !is_true() {
            if Instant::now() > deadline {
                let objects = ["get", "trainingjobs,pods,events", "--all-namespaces"];
                bail!("waited for nothing: {what}\n{}", self.cluster.told(&objects));
            }
            sleep(EVERY);
        }
        Ok(())
    }
}
