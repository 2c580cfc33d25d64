//! A node that runs pods for real: a kubelet and a containerd of its own beside others on one
//! machine, in the network and process namespaces of [`super::real`].

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::binaries::Binaries;
use super::control_plane::ControlPlane;
use super::image::PAUSE;
use super::processes;

const READY_LIMIT: Duration = Duration::from_secs(60);
/// Where Debian has the plug-ins that give pods their network.
const CNI: &str = "/usr/lib/cni";
const RUNC: &str = "/usr/sbin/runc";
/// All controllers of cgroup v1.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The domain of service names, and the address that answers for them.
pub const DNS: (&str, &str) = ("cluster.local", "10.0.0.10");

/// A node that was started.
#[derive(Debug)]
pub struct RealNode {
    pub name: String,
    number: u8,
    cores_kept: u32,
    dir: PathBuf,
    kubeconfig: PathBuf,
}

/// What is missing on this machine to have one.
pub fn missing() -> Option<&'static str> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|it| owner(&it) == 0);
    match () {
        () if !is_root => Some("root"),
        // Nobody has tried it on the other.
        () if Path::new(CGROUPS).join("cgroup.controllers").exists() => Some("cgroup v1"),
        () if !Path::new(RUNC).exists() => Some("runc"),
        () if !Path::new(CNI).join("bridge").exists() => Some("containernetworking-plugins"),
        () if !Path::new(super::image::BUSYBOX).exists() => Some("busybox-static"),
        () if !Path::new(super::image::CATATONIT).exists() => Some("catatonit"),
        () => None,
    }
}

fn owner(file: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(file)
}

impl RealNode {
    /// Starts the node of a number from 1 on, which keeps cores back from pods, with images that
    /// these can name.
    ///
    /// # Errors
    /// When one of its programs does not start, or it does not become ready.
    pub fn start(
        cluster: &ControlPlane,
        binaries: &Binaries,
        number: u8,
        cores_kept: u32,
        images: &[PathBuf],
    ) -> Result<Self> {
        let name = format!("real-{number}");
        let dir = cluster.dir().join(&name);
        let node = Self { kubeconfig: cluster.kubeconfig(), number, cores_kept, dir, name };
        fs::create_dir_all(node.dir.join("cni"))?;
        node.make_cgroup()?;
        node.write_configs()?;
        let containerd = [
            "--config".to_owned(),
            node.path("containerd.toml"),
            "--log-level".to_owned(),
            "warn".to_owned(),
        ];
        processes::start(&node.dir, &binaries.path("containerd"), &containerd)?;
        for image in images {
            node.import(binaries, image)?;
        }
        node.start_kubelet(binaries)?;
        node.await_ready(cluster)?;
        Ok(node)
    }

    /// As if its power failed: everything on it ends at once, and nobody says so.
    ///
    /// # Errors
    /// When `kill` is missing.
    pub fn power_off(&self) -> Result<()> {
        processes::stop_all(&self.dir)?;
        for id in self.remaining()? {
            processes::signal("KILL", &id)?;
        }
        Ok(())
    }

    /// # Errors
    /// When it does not start.
    pub fn start_kubelet(&self, binaries: &Binaries) -> Result<()> {
        let flags = [
            format!("--config={}", self.path("kubelet.json")),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--hostname-override={}", self.name),
            format!("--root-dir={}", self.path("kubelet")),
            format!("--cert-dir={}", self.path("certificates")),
            format!("--node-ip=10.10.0.{}", self.number),
        ];
        processes::start(&self.dir, &binaries.path("kubelet"), &flags)
    }

    /// Kills its kubelet alone: its pods run on.
    ///
    /// # Errors
    /// When `kill` is missing.
    pub fn kill_kubelet(&self, binaries: &Binaries) -> Result<()> {
        processes::kill(&self.dir, &binaries.path("kubelet"))
    }

    /// Removes what the kernel keeps of nodes after their processes are gone.
    pub fn forget_all() {
        for controller in fs::read_dir(CGROUPS).into_iter().flatten().flatten() {
            for number in 1..=9 {
                remove_cgroups(&controller.path().join(format!("het-real-{number}")));
            }
        }
    }

    /// Shims, which name its directory, and the processes of its containers.
    fn remaining(&self) -> Result<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
            let is_shim = read("cmdline").contains(&format!("{}/", self.dir.display()));
            let is_of_pod = read("cgroup").contains(&format!("/{}/", self.cgroup()));
            if id.parse::<u32>().is_ok() && (is_shim || is_of_pod) {
                ids.insert(id);
            }
        }
        Ok(ids)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn cgroup(&self) -> String {
        format!("het-{}", self.name)
    }

    /// The kubelet wants it to be there, with processors and memory to give.
    fn make_cgroup(&self) -> Result<()> {
        for controller in fs::read_dir(CGROUPS)?.flatten() {
            let dir = controller.path().join(self.cgroup());
            if !controller.path().is_dir() || fs::create_dir_all(&dir).is_err() {
                continue;
            }
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(value) = fs::read_to_string(controller.path().join(file)) {
                    fs::write(dir.join(file), value)
                        .with_context(|| format!("`{}/{file}`", dir.display()))?;
                }
            }
        }
        Ok(())
    }

    fn write_configs(&self) -> Result<()> {
        fs::write(self.dir.join("containerd.toml"), self.containerd_config())?;
        fs::write(self.dir.join("cni/10-bridge.conflist"), self.network().to_string())?;
        fs::write(self.dir.join("resolv.conf"), "")?;
        fs::write(self.dir.join("kubelet.json"), self.kubelet_config().to_string())?;
        Ok(())
    }

    fn containerd_config(&self) -> String {
        let dir = self.dir.display();
        format!(
            "version = 3
root = '{dir}/containerd/root'
state = '{dir}/containerd/state'
[grpc]
  address = '{dir}/containerd.sock'
[ttrpc]
  address = '{dir}/containerd.ttrpc.sock'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{CNI}']
    conf_dir = '{dir}/cni'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '{RUNC}'
      SystemdCgroup = false
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{PAUSE}'
"
        )
    }

    /// A bridge and a subnet of its own; the kernel passes on what is for the others.
    fn network(&self) -> Value {
        let number = self.number;
        json!({
            "cniVersion": "1.0.0", "name": self.name,
            "plugins": [{
                "type": "bridge", "bridge": format!("het{number}"), "isGateway": true,
                "ipam": {
                    "type": "host-local", "dataDir": self.path("cni/addresses"),
                    "ranges": [[{ "subnet": format!("10.20.{number}.0/24") }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        })
    }

    fn kubelet_config(&self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{}", self.path("containerd.sock")),
            "address": "0.0.0.0", "port": 10_250 + u32::from(self.number), "healthzPort": 0,
            // Nobody else is in this network, and the API server has no certificate to show.
            "authentication": {
                "anonymous": { "enabled": true }, "webhook": { "enabled": false },
            },
            "authorization": { "mode": "AlwaysAllow" },
            "failCgroupV1": false, "failSwapOn": false, "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.cgroup()),
            "systemReserved": { "cpu": self.cores_kept.to_string() },
            "makeIPTablesUtilChains": false, "podLogsDir": self.path("logs"),
            "clusterDomain": DNS.0, "clusterDNS": [DNS.1], "resolvConf": self.path("resolv.conf"),
            // A machine of developers is full.
            "evictionHard": { "memory.available": "100Mi", "nodefs.available": "1%" },
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "5s",
        })
    }

    fn import(&self, binaries: &Binaries, image: &Path) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let mut ctr = Command::new(binaries.path("ctr"));
            ctr.arg("--address").arg(self.dir.join("containerd.sock"));
            ctr.args(["--namespace", "k8s.io", "images", "import"]).arg(image);
            let output = ctr.output().context("`ctr` does not start")?;
            if output.status.success() {
                return Ok(());
            }
            if Instant::now() > deadline || processes::first_dead(&self.dir).is_some() {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                bail!("containerd of `{}` does not take an image: {why}", self.name);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn await_ready(&self, cluster: &ControlPlane) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        while cluster.told(&["get", "node", &self.name, "-o", path]) != "True" {
            if let Some(program) = processes::first_dead(&self.dir) {
                bail!("`{program}` ended: see its log in `{}`", self.dir.display());
            }
            if Instant::now() > deadline {
                bail!("`{}` is not ready: see its logs in `{}`", self.name, self.dir.display());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

/// From the innermost on; they have no files of their own.
fn remove_cgroups(dir: &Path) {
    for inner in fs::read_dir(dir).into_iter().flatten().flatten() {
        if inner.path().is_dir() {
            remove_cgroups(&inner.path());
        }
    }
    let _ = fs::remove_dir(dir);
}
