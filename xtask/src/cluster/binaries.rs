//! The programs of a cluster, built from published Go modules (`tests/kubernetes`) into the cache
//! of this user, or taken from `KUBEBUILDER_ASSETS`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Of `tests/kubernetes/control-plane/go.mod`; programs that read versions want it in the binary.
const VERSION: &str = "v1.37.2";

/// A program, the module in `tests/kubernetes` that requires it, and its package.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    pub module: &'static str,
    pub package: &'static str,
}

const fn of_kubernetes(name: &'static str, package: &'static str) -> Program {
    Program { name, module: "control-plane", package }
}

const fn of_containerd(name: &'static str, package: &'static str) -> Program {
    Program { name, module: "containerd", package }
}

/// What a set of programs is for.
#[derive(Debug, Clone, Copy)]
pub enum Set {
    /// A control plane, and kubelets that kwok plays.
    ControlPlane,
    /// Nodes that run pods for real, beside it. Of `runc` and the CNI plug-ins those of the
    /// distribution are taken.
    RealNodes,
}

const CONTROL_PLANE: [Program; 6] = [
    of_kubernetes("etcd", "go.etcd.io/etcd/server/v3"),
    of_kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    of_kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    of_kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    of_kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    Program { name: "kwok", module: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok" },
];

/// Installs charts; a cluster does without.
pub const HELM: Program =
    Program { name: "helm", module: "helm", package: "helm.sh/helm/v3/cmd/helm" };

const REAL_NODES: [Program; 5] = [
    of_kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    of_containerd("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    of_containerd(
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    of_containerd("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    Program { name: "coredns", module: "coredns", package: "github.com/coredns/coredns" },
];

impl Set {
    fn programs(self) -> &'static [Program] {
        match self {
            Self::ControlPlane => &CONTROL_PLANE,
            Self::RealNodes => &REAL_NODES,
        }
    }
}

/// Where they are.
#[derive(Debug)]
pub struct Binaries {
    cache: PathBuf,
    assets: Option<PathBuf>,
}

impl Binaries {
    /// Builds what is missing: the first time ten minutes on two cores, of which the API server
    /// takes most; real nodes take two more, and controllers of workloads five.
    ///
    /// # Errors
    /// When Go is missing, or a module cannot be had or built.
    pub fn build(sets: &[Set]) -> Result<Self> {
        let binaries = Self::here()?;
        fs::create_dir_all(&binaries.cache)
            .with_context(|| format!("`{}` cannot be made", binaries.cache.display()))?;
        for program in sets.iter().flat_map(|set| set.programs()) {
            binaries.build_if_missing(program)?;
        }
        Ok(binaries)
    }

    /// Builds a program that is in no set.
    ///
    /// # Errors
    /// When Go is missing, or its module cannot be had or built.
    pub fn build_if_missing(&self, program: &Program) -> Result<()> {
        if self.path(program.name).exists() {
            return Ok(());
        }
        program.build(&self.cache)
    }

    /// Keeps a file beside the programs.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, name: &str, text: &[u8]) -> Result<()> {
        let draft = draft(&self.cache, name);
        fs::write(&draft, text).with_context(|| format!("`{}`", draft.display()))?;
        fs::rename(&draft, self.cache.join(name)).context("what was written cannot be moved")
    }

    /// `None` where one is missing.
    ///
    /// # Errors
    /// When there is no place for them.
    pub fn find(sets: &[Set]) -> Result<Option<Self>> {
        let binaries = Self::here()?;
        let mut programs = sets.iter().flat_map(|set| set.programs());
        let are_there = programs.all(|program| binaries.path(program.name).exists());
        Ok(are_there.then_some(binaries))
    }

    fn here() -> Result<Self> {
        let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        Ok(Self { cache: cache()?, assets })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        let given = self.assets.as_ref().map(|dir| dir.join(name));
        given.filter(|path| path.exists()).unwrap_or_else(|| self.cache.join(name))
    }
}

/// One a version: what is in it never changes.
fn cache() -> Result<PathBuf> {
    Ok(user_cache()?.join("heterosis/kubernetes").join(VERSION))
}

/// # Errors
/// When nobody says where it is.
pub fn user_cache() -> Result<PathBuf> {
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let root = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    root.context("neither XDG_CACHE_HOME nor HOME is set")
}

/// Where a module of `tests/kubernetes` is.
pub fn directory(module: &str) -> PathBuf {
    crate::root().join("tests/kubernetes").join(module)
}

/// The name of a file until it is whole.
fn draft(cache: &Path, name: &str) -> PathBuf {
    cache.join(format!(".{name}-{}", std::process::id()))
}

impl Program {
    fn build(&self, into: &Path) -> Result<()> {
        let began = Instant::now();
        println!("building {} …", self.name);
        let (major, minor) = VERSION.trim_start_matches('v').split_once('.').unwrap_or_default();
        let minor = minor.split('.').next().unwrap_or_default();
        let stamp = "k8s.io/component-base/version";
        let flags = format!(
            "-s -w -X {stamp}.gitVersion={VERSION} -X {stamp}.gitMajor={major} \
             -X {stamp}.gitMinor={minor}"
        );
        let draft = draft(into, self.name);
        let mut go = Command::new("go");
        // Storage drivers that want libraries in C.
        let tags = "no_btrfs no_devmapper no_zfs";
        go.args(["build", "-trimpath", "-tags", tags, "-ldflags", &flags, "-o"]);
        go.arg(&draft).arg(self.package);
        expect(go.env("CGO_ENABLED", "0").current_dir(directory(self.module)))?;
        fs::rename(&draft, into.join(self.name)).context("what was built cannot be moved")?;
        println!("built {} in {} s", self.name, began.elapsed().as_secs());
        Ok(())
    }
}

fn expect(command: &mut Command) -> Result<()> {
    let status = command.status().context("`go` does not start: is Go 1.26 installed?")?;
    if !status.success() {
        bail!("`{command:?}` ended with {status}");
    }
    Ok(())
}
