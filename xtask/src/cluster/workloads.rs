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

/// Kinds of objects that files of one published Go module define.
struct Kinds {
    /// In `tests/kubernetes`: what says which version of the Go module.
    module: &'static str,
    go_module: &'static str,
    definitions: &'static [&'static str],
    /// Without one its objects stay as they are made.
    controller: Option<Program>,
    /// A file of `module` with what its webhook would refuse.
    policy: Option<&'static str>,
}

const KINDS: [Kinds; 5] = [
    Kinds {
        module: "jobset",
        go_module: "sigs.k8s.io/jobset",
        definitions: &["config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"],
        controller: Some(Program { name: "jobset-controller", module: "jobset", package: "." }),
        policy: Some("policy.yaml"),
    },
    Kinds {
        module: "training-operator",
        go_module: "github.com/kubeflow/training-operator",
        definitions: &["manifests/base/crds/kubeflow.org_pytorchjobs.yaml"],
        controller: Some(Program {
            name: "training-operator",
            module: "training-operator",
            package: ".",
        }),
        policy: None,
    },
    Kinds {
        module: "trainer",
        go_module: "github.com/kubeflow/trainer/v2",
        definitions: &[
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
        ],
        controller: Some(Program { name: "trainer-controller", module: "trainer", package: "." }),
        policy: None,
    },
    Kinds {
        module: "kuberay",
        go_module: "github.com/ray-project/kuberay/ray-operator",
        definitions: &["config/crd/bases/ray.io_rayclusters.yaml"],
        controller: Some(Program { name: "ray-operator", module: "kuberay", package: "." }),
        policy: None,
    },
    Kinds {
        module: "definitions",
        go_module: "sigs.k8s.io/kueue",
        definitions: &["config/components/crd/bases/kueue.x-k8s.io_topologies.yaml"],
        controller: None,
        policy: None,
    },
];

/// Builds what is missing; what cannot be had, a cluster does without.
pub fn build(binaries: &Binaries) {
    for kinds in &KINDS {
        let controller = kinds.controller.as_ref();
        let built = controller.map_or(Ok(()), |program| binaries.build_if_missing(program));
        if let Err(error) = built.and_then(|()| kinds.extract(binaries)) {
            eprintln!("NOT BUILT: clusters will not know those of {}: {error:#}", kinds.module);
        }
    }
}

/// Gives a cluster the kinds that were built, and starts their controllers. Kinds are not there
/// without their controller, so that tests need not ask for both.
///
/// # Errors
/// When the API server refuses one, or a controller does not start.
pub fn start(cluster: &ControlPlane, binaries: &Binaries) -> Result<()> {
    let (built, missing): (Vec<&Kinds>, Vec<&Kinds>) =
        KINDS.iter().partition(|kinds| kinds.are_built(binaries));
    if !missing.is_empty() {
        let modules: Vec<&str> = missing.iter().map(|kinds| kinds.module).collect();
        println!("SKIPPED: {}; `cargo xtask cluster build` helps", modules.join(", "));
    }
    if built.is_empty() {
        return Ok(());
    }
    let mut create = cluster.kubectl();
    create.arg("create");
    for kinds in &built {
        for (_, extracted) in kinds.files(binaries) {
            create.arg("-f").arg(extracted);
        }
        if let Some(policy) = kinds.policy {
            create.arg("-f").arg(binaries::directory(kinds.module).join(policy));
        }
    }
    expect(&mut create)?;
    await_kinds(cluster)?;
    let kubeconfig = [format!("--kubeconfig={}", cluster.kubeconfig().display())];
    let mut controllers = built.iter().filter_map(|kinds| kinds.controller.as_ref());
    controllers.try_for_each(|program| {
        processes::start(cluster.dir(), &binaries.path(program.name), &kubeconfig)
    })
}

impl Kinds {
    /// Each in its module, and where it is once it is built.
    fn files(&self, binaries: &Binaries) -> impl Iterator<Item = (&'static str, PathBuf)> {
        self.definitions.iter().map(|path| (*path, binaries.path(name_of(path))))
    }

    fn are_built(&self, binaries: &Binaries) -> bool {
        let has_controller =
            self.controller.as_ref().is_none_or(|it| binaries.path(it.name).exists());
        has_controller && self.files(binaries).all(|(_, extracted)| extracted.exists())
    }

    fn extract(&self, binaries: &Binaries) -> Result<()> {
        if self.files(binaries).all(|(_, extracted)| extracted.exists()) {
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
        for path in self.definitions {
            let text = fs::read(Path::new(dir).join(path))
                .with_context(|| format!("`{path}` of {}", self.go_module))?;
            binaries.keep(name_of(path), &text)?;
        }
        Ok(())
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
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
