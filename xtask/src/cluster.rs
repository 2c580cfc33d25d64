//! `cargo xtask cluster`: a real Kubernetes control plane on loopback, for tests and for trying.

mod binaries;
mod control_plane;
mod processes;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use binaries::Binaries;
use control_plane::ControlPlane;

const USAGE: &str = "usage: cargo xtask cluster up [NODES] | down | build

  up     build what is missing, start etcd, API server, controller manager, kube-scheduler and
         kwok on 127.0.0.1, and make so many nodes that kwok plays, 0 without a number
  down   stop them and remove what they kept
  build  only build, into the cache of this user";

/// Where a cluster keeps its state, `admin.kubeconfig` and logs among it.
fn dir() -> PathBuf {
    crate::target().join("kubernetes")
}

pub fn run(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["build"] => Binaries::build().map(|_| ()),
        ["up"] => up(0),
        ["up", nodes] => up(nodes.parse().with_context(|| format!("`{nodes}` is no number"))?),
        ["down"] => down(),
        _ => bail!("{USAGE}"),
    }
}

fn up(nodes: u32) -> Result<()> {
    let binaries = Binaries::build()?;
    down()?;
    let dir = dir();
    fs::create_dir_all(&dir).with_context(|| format!("`{}` cannot be made", dir.display()))?;
    let cluster = ControlPlane::start(&binaries, &dir)?;
    cluster.make_nodes(nodes)?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
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
