//! Clusters for simulations, from a word: `gavel:8,16,24`, `uniform:50x8`, `64xv100`.

use het_core::{Bytes, Device, DeviceClass, Node, NodeId, Share, Topology};
use thiserror::Error;

/// Memory of a node where the word says nothing: what a simulated gang asks beside its devices is
/// never short of it.
const NODE_MEMORY: Bytes = Bytes::gib(1 << 10);

/// Classes of `gavel:A,B,C`, in its order.
const GAVEL: [&str; 3] = ["v100", "p100", "k80"];

/// Why a word is no cluster.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{word}` is no cluster")]
pub struct ClusterError {
    pub word: String,
}

/// The cluster that a word describes.
///
/// # Errors
/// When it is none of the known forms.
pub fn cluster(word: &str) -> Result<Topology, ClusterError> {
    let unknown = || ClusterError { word: word.to_owned() };
    let shape = match word.split_once(':') {
        Some(("gavel", counts)) => gavel(counts),
        Some(("uniform", size)) => uniform(size),
        None => single_devices(word),
        Some(_) => None,
    };
    let groups = shape.ok_or_else(unknown)?;
    if groups.iter().all(|group| group.nodes * group.devices == 0) {
        return Err(unknown());
    }
    Ok(build(&groups))
}

/// Nodes that are alike.
struct Group {
    class: String,
    nodes: u32,
    devices: u32,
}

/// Three classes, one device a node.
fn gavel(counts: &str) -> Option<Vec<Group>> {
    let counts: Vec<u32> =
        counts.split(',').map(|count| count.parse().ok()).collect::<Option<_>>()?;
    if counts.len() != GAVEL.len() {
        return None;
    }
    let group =
        |(class, &nodes): (&&str, &u32)| Group { class: (*class).into(), nodes, devices: 1 };
    Some(GAVEL.iter().zip(&counts).map(group).collect())
}

/// `NODESxDEVICES` of one class.
fn uniform(size: &str) -> Option<Vec<Group>> {
    let (nodes, devices) = size.split_once('x')?;
    let group = Group {
        class: "gpu".to_owned(),
        nodes: nodes.parse().ok()?,
        devices: devices.parse().ok()?,
    };
    Some(vec![group])
}

/// `NxCLASS`: single devices.
fn single_devices(word: &str) -> Option<Vec<Group>> {
    let (nodes, class) = word.split_once('x')?;
    Some(vec![Group { class: class.to_owned(), nodes: nodes.parse().ok()?, devices: 1 }])
}

fn build(groups: &[Group]) -> Topology {
    let mut topology = Topology::default();
    for group in groups {
        let class = topology.classes.len();
        topology.classes.push(DeviceClass {
            id: group.class.as_str().into(),
            kind: "gpu".into(),
            vendor: "simulated".into(),
            title: group.class.as_str().into(),
            peak_gflops: None,
            software: false,
        });
        for row in 0..group.nodes {
            let node = NodeId(topology.nodes.len() as u32);
            topology.nodes.push(Node {
                name: format!("{}-{row}", group.class).into(),
                memory: NODE_MEMORY,
                rack: "rack".into(),
                pod: "pod".into(),
            });
            topology.devices.extend((0..group.devices).map(|index| Device {
                node,
                name: format!("gpu{index}").into(),
                class,
                drivers: vec!["cuda".into()],
                capacity: Share::WHOLE,
                memory: Bytes::gib(32),
                visible_id: index.to_string().into(),
            }));
        }
    }
    topology
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_clusters() {
        let sizes = |word| cluster(word).map(|built| (built.nodes.len(), built.devices.len()));
        assert_eq!(sizes("gavel:8,16,24"), Ok((48, 48)));
        assert_eq!(sizes("uniform:50x8"), Ok((50, 400)));
        assert_eq!(sizes("4xh100"), Ok((4, 4)));
        for wrong in ["gavel:8,16", "uniform:8", "gavel:0,0,0", "moon:3", "h100"] {
            assert_eq!(sizes(wrong), Err(ClusterError { word: wrong.to_owned() }));
        }
        assert_eq!(cluster("gavel:1,2,3").expect("a cluster").validate(), Ok(()));
    }
}
