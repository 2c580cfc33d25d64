//! `cargo xtask cluster`: a real Kubernetes control plane on loopback, for tests and for trying.

mod audit;
mod binaries;
mod chart;
mod control_plane;
mod faults;
mod image;
mod installation;
mod processes;
mod real;
mod real_node;
mod workloads;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use binaries::{Binaries, Set};
use control_plane::{ControlPlane, Reach, Writes};

const USAGE: &str =
    "usage: cargo xtask cluster up [NODES | bare] | down | build | faults [RUNS [SEED]]
                             | real [example DIR]

  up     build what is missing, start etcd, API server, controller manager, kube-scheduler and
         kwok on 127.0.0.1, and make so many nodes that kwok plays, 0 without a number; also the
         controllers of JobSets and PyTorchJobs where `build` made them;
         `bare` starts etcd and the API server alone, for `het bench kubernetes`
  down   stop them and remove what they kept
  build  only build, into the cache of this user
  faults start one, and play so many runs on it, 100 without a number: leaders are killed and stand
         still, API server and etcd start again, nodes vanish; the audit log says what came of it
  real   two nodes that run pods for real, which wants root: a gang on both is stopped for an
         urgent job, loses a kubelet and a node, and ends with the weights of one machine;
         `example` runs the example with the `het-train` of a directory instead";

/// Where a cluster keeps its state, `admin.kubeconfig` and logs among it.
fn dir() -> PathBuf {
    crate::target().join("kubernetes")
}

pub fn run(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["build"] => build(),
        ["real"] => play_for_real(None),
        ["real", "example", programs] => play_for_real(Some(Path::new(programs))),
        [word, example @ ..] if *word == real::INSIDE => {
            real::play_inside(example.first().map(Path::new))
        }
        ["up"] => up(0),
        ["up", "bare"] => up_bare(),
        ["faults", numbers @ ..] => play_faults(numbers),
        ["up", nodes] => up(nodes.parse().with_context(|| format!("`{nodes}` is no number"))?),
        ["down"] => down(),
        _ => bail!("{USAGE}"),
    }
}

fn build() -> Result<()> {
    let sets: &[Set] = match real::missing() {
        None => &[Set::ControlPlane, Set::RealNodes],
        Some(_) => &[Set::ControlPlane],
    };
    let binaries = Binaries::build(sets)?;
    if let Err(error) = binaries.build_if_missing(&binaries::HELM) {
        eprintln!("NOT BUILT: tests will not render the chart: {error:#}");
    }
    workloads::build(&binaries);
    Ok(())
}

/// Plays the gang where its programs were built; else says that it is skipped.
///
/// # Errors
/// When it does not come about.
pub fn play_for_real_if_built() -> Result<()> {
    let is_built = Binaries::find(&[Set::ControlPlane, Set::RealNodes])?.is_some();
    match real::missing() {
        Some(what) => println!("SKIPPED: real nodes want {what}"),
        None if !is_built => println!("SKIPPED: real nodes; `cargo xtask cluster build` helps"),
        None => real::play(None)?,
    }
    Ok(())
}

fn play_for_real(example: Option<&Path>) -> Result<()> {
    match real::missing() {
        None => real::play(example),
        Some(what) => bail!("real nodes want {what}, which is not here"),
    }
}

fn up(nodes: u32) -> Result<()> {
    let binaries = Binaries::build(&[Set::ControlPlane])?;
    let cluster = start(&binaries, Writes::Fast)?;
    workloads::start(&cluster, &binaries)?;
    cluster.make_nodes(nodes)?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
}

/// Runs with seeds one after the other.
fn play_faults(numbers: &[&str]) -> Result<()> {
    let number = |at: usize, usual: u64| match numbers.get(at) {
        None => Ok(usual),
        Some(text) => text.parse().with_context(|| format!("`{text}` is no number")),
    };
    let (runs, seed) = (number(0, 100)?, number(1, 1)?);
    let cluster = start(&Binaries::build(&[Set::ControlPlane])?, Writes::Durable)?;
    // What failed stays, to be looked at.
    faults::play(&cluster, &dir(), seed..seed + runs)?;
    down()
}

fn up_bare() -> Result<()> {
    let binaries = Binaries::build(&[Set::ControlPlane])?;
    let cluster = ControlPlane::start_bare(&binaries, &emptied()?, Writes::Fast, Reach::Loopback)?;
    let scheduler = binaries.path("kube-scheduler");
    println!(
        "het bench kubernetes --kubeconfig {} --kube-scheduler {}",
        cluster.kubeconfig().display(),
        scheduler.display()
    );
    Ok(())
}

/// A cluster that tests find, for as long as this lives.
#[derive(Debug)]
pub struct TestCluster(());

impl TestCluster {
    /// `None`, loudly, where its programs were not built.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_if_built() -> Result<Option<Self>> {
        let Some(binaries) = Binaries::find(&[Set::ControlPlane])? else {
            println!(
                "SKIPPED: tests on Kubernetes; `cargo xtask cluster build` makes them possible"
            );
            return Ok(None);
        };
        workloads::start(&start(&binaries, Writes::Fast)?, &binaries)?;
        Ok(Some(Self(())))
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if let Err(error) = down() {
            eprintln!("the cluster of the tests remains: {error:#}");
        }
    }
}

fn start(binaries: &Binaries, writes: Writes) -> Result<ControlPlane> {
    ControlPlane::start(binaries, &emptied()?, writes)
}

/// The directory of a cluster that is no more.
fn emptied() -> Result<PathBuf> {
    down()?;
    let dir = dir();
    fs::create_dir_all(&dir).with_context(|| format!("`{}` cannot be made", dir.display()))?;
    Ok(dir)
}

/// Nothing where nothing runs.
fn down() -> Result<()> {
    let dir = dir();
    processes::stop_all(&dir)?;
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("`{}` cannot be removed", dir.display()))
        }
        _ => Ok(()),
    }
}
