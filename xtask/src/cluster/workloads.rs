//! Workloads of others than Kubernetes itself, so that tests can hand a scheduler what users would,
//! and what else they have: their definitions, and controllers of some. The controller manager has
//! that of `Job`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::binaries::{self, Binaries, Program};
use super::control_plane::ControlPlane;
use super::processes;

/// How long the API server may take to serve kinds; two seconds are usual.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A kind of object, which a file of a published Go module defines.
struct Kind {
    /// In `tests/kubernetes`: what says which version of the Go module.
    module: &'static str,
    go_module: &'static str,
    definition: &'static str,
    /// Without one its objects stay as they are made.
    controller: Option<Program>,
    /// A file of `module` with what its webhook would refuse.
    policy: Option<&'static str>,
}

const KINDS: [Kind; 5] = [
    Kind {
        module: "jobset",
        go_module: "sigs.k8s.io/jobset",
        definition: "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
        controller: Some(Program { name: "jobset-controller", module: "jobset", package: "." }),
        policy: Some("policy.yaml"),
    },
    Kind {
        module: "training-operator",
        go_module: "github.com/kubeflow/training-operator",
        definition: "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
        controller: Some(Program {
            name: "training-operator",
            module: "training-operator",
            package: ".",
        }),
        policy: None,
    },
    Kind {
        module: "definitions",
        go_module: "github.com/kubeflow/trainer/v2",
        definition: "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
        controller: None,
        policy: None,
    },
    Kind {
        module: "definitions",
        go_module: "github.com/ray-project/kuberay/ray-operator",
        definition: "config/crd/bases/ray.io_rayclusters.yaml",
        controller: None,
        policy: None,
    },
    Kind {
        module: "definitions",
        go_module: "sigs.k8s.io/kueue",
        definition: "config/components/crd/bases/kueue.x-k8s.io_topologies.yaml",
        controller: None,
        policy: None,
    },
];

/// Builds what is missing; what cannot be had, a cluster does without.
pub fn build(binaries: &Binaries) {
    for kind in &KINDS {
        let controller = kind.controller.as_ref();
        let built = controller.map_or(Ok(()), |program| binaries.build_if_missing(program));
        if let Err(error) = built.and_then(|()| kind.extract(binaries)) {
            eprintln!("NOT BUILT: clusters will not know {}: {error:#}", kind.file());
        }
    }
}

/// Gives a cluster the kinds that were built, and starts their controllers. A kind is not there
/// without its controller, so that tests need not ask for both.
///
/// # Errors
/// When the API server refuses one, or a controller does not start.
pub fn start(cluster: &ControlPlane, binaries: &Binaries) -> Result<()> {
    let (kinds, missing): (Vec<&Kind>, Vec<&Kind>) =
        KINDS.iter().partition(|kind| kind.is_built(binaries));
    if !missing.is_empty() {
        let files: Vec<&str> = missing.iter().map(|kind| kind.file()).collect();
        println!("SKIPPED: {}; `cargo xtask cluster build` helps", files.join(", "));
    }
    if kinds.is_empty() {
        return Ok(());
    }
    let mut create = cluster.kubectl();
    create.arg("create");
    for kind in &kinds {
        create.arg("-f").arg(kind.extracted(binaries));
        if let Some(policy) = kind.policy {
            create.arg("-f").arg(binaries::directory(kind.module).join(policy));
        }
    }
    expect(&mut create)?;
    await_kinds(cluster)?;
    let kubeconfig = [format!("--kubeconfig={}", cluster.kubeconfig().display())];
    let mut controllers = kinds.iter().filter_map(|kind| kind.controller.as_ref());
    controllers.try_for_each(|program| {
        processes::start(cluster.dir(), &binaries.path(program.name), &kubeconfig)
    })
}

impl Kind {
    fn file(&self) -> &'static str {
        self.definition.rsplit('/').next().unwrap_or_default()
    }

    /// Where its definition is, once it is built.
    fn extracted(&self, binaries: &Binaries) -> PathBuf {
        binaries.path(self.file())
    }

    fn is_built(&self, binaries: &Binaries) -> bool {
        let has_controller =
            self.controller.as_ref().is_none_or(|it| binaries.path(it.name).exists());
        has_controller && self.extracted(binaries).exists()
    }

    fn extract(&self, binaries: &Binaries) -> Result<()> {
        if self.extracted(binaries).exists() {
            return Ok(());
        }
        let mut go = Command::new("go");
        go.args(["mod", "download", "-json", self.go_module]);
        let output = go.current_dir(binaries::directory(self.module)).output();
        let output = output.context("`go` does not start: is Go 1.26 installed?")?;
        let module: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let Some(dir) = module["Dir"].as_str() else {
            let why = module["Error"].as_str().map(str::to_owned);
            bail!("{}", why.unwrap_or_else(|| String::from_utf8_lossy(&output.stderr).into()));
        };
        let text = fs::read(Path::new(dir).join(self.definition))
            .with_context(|| format!("`{}` of {}", self.definition, self.go_module))?;
        binaries.keep(self.file(), &text)
    }
}

/// Until the API server serves them: a controller that misses its kind asks again much later.
fn await_kinds(cluster: &ControlPlane) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let mut wait = cluster.kubectl();
        wait.args(["wait", "--for=condition=Established", "crd", "--all"]);
        match expect(&mut wait) {
            // `kubectl` does not wait for one that has no conditions yet.
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(200)),
            result => return result,
        }
    }
}

fn expect(kubectl: &mut Command) -> Result<()> {
    let output = kubectl.stdout(Stdio::null()).output().context("`kubectl` does not start")?;
    if !output.status.success() {
        bail!("the API server does not take kinds: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
