//! Clusters as users name them: this machine, a file, node templates, or the short words of the
//! published workloads.

use std::collections::BTreeMap;
use std::path::Path;

use het_core::Topology;
use het_lab::ClusterError;
use het_server::this_machine;
use het_wire::catalogue;
use het_wire::topology::{Cluster, from_word, parse};

use crate::fail::{Fail, code};
use crate::workload::unusable;

/// Stands for the machine that the command runs on.
pub const THIS: &str = "this";

/// # Errors
/// With what is nearest to a word that is none of them, or everything that is wrong with a file.
pub fn cluster(word: &str) -> Result<Cluster, Fail> {
    if word == THIS {
        return Ok(this());
    }
    if is_file(word) {
        return read(Path::new(word));
    }
    let template = match from_word(word) {
        Ok(cluster) => return Ok(cluster),
        Err(error) => error,
    };
    match het_lab::cluster(word) {
        Ok(topology) => Ok(Cluster { name: word.to_owned(), topology, own: BTreeMap::new() }),
        Err(ClusterError::Inventory(error)) => Err(unusable(&error)),
        Err(ClusterError::Unknown { .. }) if catalogue::sheet(word).is_some() => {
            Err(Fail::new(code::USAGE, format!("`{word}` is a device, and nobody says how many"))
                .hint(format!("write `8x{word}`")))
        }
        Err(ClusterError::Unknown { .. }) => {
            Err(Fail::new(code::USAGE, format!("`{word}` is no cluster that is known here")).hint(
                format!(
                    "write a file, `this`, `8xh100-sxm5-80`, `gavel:8,16,24`, `uniform:50x8`, or \
                     templates as in `hgx-h100-8x4+rail`: {}",
                    template.hint()
                ),
            ))
        }
    }
}

/// This machine as it is found.
pub fn this() -> Cluster {
    let topology = Topology::clone(&this_machine().topology);
    let name = topology.nodes.first().map(|node| node.name.to_string()).unwrap_or_default();
    Cluster { name, topology, own: BTreeMap::new() }
}

fn is_file(word: &str) -> bool {
    let path = Path::new(word);
    let ends = ["yaml", "yml", "json"];
    let named_so = path.extension().is_some_and(|end| ends.iter().any(|known| end == *known));
    // `spot2026:jobs.json` is a form with a file of its own.
    path.is_file() || named_so && !word.contains(':')
}

fn read(path: &Path) -> Result<Cluster, Fail> {
    let text = std::fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
    parse(&text, &path.display().to_string())
        .map_err(|problems| Fail::Report { code: code::USAGE, text: problems.to_string() })
}
