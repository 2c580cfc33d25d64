//! Clusters for simulations, from a word: `gavel:8,16,24`, `uniform:50x8`, `uniform:48x8/4` (four
//! nodes a rack), `64xv100`, `sia:default`, `sia:4` (four times as many nodes),
//! `epyc-h100x8-910bx2`, or a published inventory, `alibaba-openb:NODES.csv`, `spot2026:FILE`.

use std::num::NonZeroUsize;
use std::path::Path;

use het_core::{Bytes, Device, DeviceClass, HostResources, Node, NodeId, Share, Topology};
use het_perf::training::Island;
use het_wire::catalogue;
use thiserror::Error;

use crate::workload::{CsvTable, WorkloadError};

/// Memory of a node where the word says nothing: what a simulated gang asks beside its devices is
/// never short of it.
const NODE_MEMORY: Bytes = Bytes::gib(1 << 10);

/// Classes of `gavel:A,B,C`, in its order.
const GAVEL: [&str; 3] = ["v100", "p100", "k80"];

/// The mixed cluster of Sia's simulator (Jayaram Subramanya et al., SOSP 2023): node type, nodes,
/// devices a node. T4, A100 and RTX 2080 Ti.
const SIA: [(&str, u32, u32); 3] = [("aws", 6, 4), ("dgx-ext", 2, 8), ("rtx", 3, 8)];

/// Where all nodes stand of a word that says nothing of racks.
const RACK: &str = "rack";

/// The template of a node of two EPYC, eight H100 and one 910B.
const MIXED: &str = "epyc-h100x8-910b";

/// Why a word is no cluster.
#[derive(Debug, Error)]
pub enum ClusterError {
    #[error("`{word}` is no cluster")]
    Unknown { word: String },
    #[error(transparent)]
    Inventory(#[from] WorkloadError),
}

/// The cluster that a word describes.
///
/// # Errors
/// When it is none of the known forms, or its file cannot be read.
pub fn cluster(word: &str) -> Result<Topology, ClusterError> {
    let nodes = match word.split_once(':') {
        Some(("gavel", counts)) => gavel(counts),
        Some(("uniform", size)) => uniform(size),
        Some(("sia", times)) => sia(times),
        Some(("alibaba-openb", path)) => Some(openb(Path::new(path))?),
        Some(("spot2026", path)) => Some(spot2026(Path::new(path))?),
        None => mixed(word).or_else(|| counted(word)),
        Some(_) => None,
    };
    let nodes = nodes.filter(|nodes| {
        nodes.iter().any(|node| node.accelerators.iter().any(|(.., count)| *count > 0))
    });
    nodes.map(|nodes| build(&nodes)).ok_or_else(|| ClusterError::Unknown { word: word.to_owned() })
}

/// A node.
struct Shape {
    name: String,
    /// Class, kind and number of its accelerators.
    accelerators: Vec<(String, &'static str, u32)>,
    /// Class and cores of each socket, where they are known.
    sockets: Vec<(&'static str, u32)>,
    memory: Bytes,
    rack: String,
}

/// `nodes` nodes that are alike.
fn alike(class: &str, nodes: u32, devices: u32) -> impl Iterator<Item = Shape> {
    (0..nodes).map(move |row| Shape {
        name: format!("{class}-{row}"),
        accelerators: vec![(class.to_owned(), "gpu", devices)],
        sockets: Vec::new(),
        memory: NODE_MEMORY,
        rack: RACK.to_owned(),
    })
}

/// Three classes, one device a node.
fn gavel(counts: &str) -> Option<Vec<Shape>> {
    let counts: Vec<u32> =
        counts.split(',').map(|count| count.parse().ok()).collect::<Option<_>>()?;
    if counts.len() != GAVEL.len() {
        return None;
    }
    let classes = GAVEL.iter().zip(&counts);
    Some(classes.flat_map(|(class, &nodes)| alike(class, nodes, 1)).collect())
}

/// `NODESxDEVICES[/NODES]` of one class, so many nodes a rack.
fn uniform(size: &str) -> Option<Vec<Shape>> {
    let (size, a_rack) = match size.split_once('/') {
        Some((size, nodes)) => (size, Some(nodes.parse::<NonZeroUsize>().ok()?)),
        None => (size, None),
    };
    let (nodes, devices) = size.split_once('x')?;
    let mut shapes: Vec<Shape> = alike("gpu", nodes.parse().ok()?, devices.parse().ok()?).collect();
    if let Some(a_rack) = a_rack {
        let rows = shapes.iter_mut().enumerate();
        rows.for_each(|(row, shape)| shape.rack = format!("{RACK}{}", row / a_rack));
    }
    Some(shapes)
}

/// `NxCLASS`: so many devices, in as many nodes as they usually take, of which the last may hold
/// fewer. Of a class that nobody knows each stands by itself.
fn counted(word: &str) -> Option<Vec<Shape>> {
    let (count, class) = word.split_once('x')?;
    let count: u32 = count.parse().ok()?;
    let known = catalogue::sheet(class).is_some();
    let each = if known { Island::of_class(class).devices_per_node } else { 1 };
    let mut nodes: Vec<Shape> = alike(class, count.div_ceil(each), each).collect();
    let last = nodes.last_mut()?;
    last.accelerators[0].2 -= count.next_multiple_of(each) - count;
    Some(nodes)
}

/// `epyc-h100x8-910b[xN]`: nodes with two EPYC 9654, eight H100 and one Ascend 910B.
fn mixed(word: &str) -> Option<Vec<Shape>> {
    let rest = word.strip_prefix(MIXED)?;
    let nodes: u32 = if rest.is_empty() { 1 } else { rest.strip_prefix('x')?.parse().ok()? };
    let node = |row| Shape {
        name: format!("node-{row}"),
        accelerators: vec![
            ("h100-sxm5-80".to_owned(), "gpu", 8),
            ("ascend-910b".to_owned(), "npu", 1),
        ],
        sockets: vec![("epyc-9654", 96), ("epyc-9654", 96)],
        memory: NODE_MEMORY,
        rack: RACK.to_owned(),
    };
    Some((0..nodes).map(node).collect())
}

/// `default`, or so many times its nodes.
fn sia(times: &str) -> Option<Vec<Shape>> {
    let times: u32 = if times == "default" { 1 } else { times.parse().ok()? };
    let of_class = |(class, nodes, devices): (&'static str, u32, u32)| {
        alike(class, nodes.saturating_mul(times), devices)
    };
    Some(SIA.into_iter().flat_map(of_class).collect())
}

/// The node list of Alibaba's 2023 GPU cluster (Weng et al., USENIX ATC 2023).
fn openb(path: &Path) -> Result<Vec<Shape>, WorkloadError> {
    let table = CsvTable::read(path)?;
    let [name, cores, memory, count, model] =
        table.columns(["sn", "cpu_milli", "memory_mib", "gpu", "model"])?;
    table.rows(|row| {
        let cores: u32 = row.number(cores, "cpu_milli")?;
        let mebibytes: u64 = row.number(memory, "memory_mib")?;
        Ok(Shape {
            name: row.text(name, "sn")?.to_owned(),
            accelerators: vec![(
                row.text(model, "model")?.to_owned(),
                "gpu",
                row.number(count, "gpu")?,
            )],
            sockets: vec![("cpu", cores / 1_000)],
            memory: Bytes(mebibytes << 20),
            rack: RACK.to_owned(),
        })
    })
}

/// The node list of Alibaba's 2026 spot-GPU cluster, which names no memory.
fn spot2026(path: &Path) -> Result<Vec<Shape>, WorkloadError> {
    let table = CsvTable::read(path)?;
    let [model, count, cores, name] =
        table.columns(["gpu_model", "gpu_capacity_num", "cpu_num", "node_name"])?;
    table.rows(|row| {
        Ok(Shape {
            name: format!("n{}", row.text(name, "node_name")?),
            accelerators: vec![(
                row.text(model, "gpu_model")?.to_lowercase(),
                "gpu",
                row.number(count, "gpu_capacity_num")?,
            )],
            sockets: vec![("cpu", row.number(cores, "cpu_num")?)],
            memory: NODE_MEMORY,
            rack: RACK.to_owned(),
        })
    })
}

fn build(nodes: &[Shape]) -> Topology {
    let mut topology = Topology::default();
    for shape in nodes {
        let node = NodeId(topology.nodes.len() as u32);
        topology.nodes.push(Node {
            name: shape.name.as_str().into(),
            host: HostResources::with_memory(shape.memory),
            rack: shape.rack.as_str().into(),
            pod: "pod".into(),
        });
        for (id, kind, count) in &shape.accelerators {
            let class = class(&mut topology, id, kind);
            topology.devices.extend((0..*count).map(|index| Device {
                node,
                name: format!("{kind}{index}").into(),
                class,
                drivers: vec![(*kind).into()],
                capacity: Share::WHOLE,
                memory: catalogue::memory(id).unwrap_or(Bytes::gib(32)),
                visible_id: index.to_string().into(),
            }));
        }
        for (index, (id, cores)) in shape.sockets.iter().enumerate() {
            let class = class(&mut topology, id, "cpu");
            if *cores > 0 {
                topology.devices.push(Device {
                    node,
                    name: format!("cpu{index}").into(),
                    class,
                    drivers: vec!["cpu".into()],
                    capacity: Share::units(*cores),
                    memory: Bytes::ZERO,
                    visible_id: index.to_string().into(),
                });
            }
        }
    }
    topology
}

/// The row of a class, added if it is new.
fn class(topology: &mut Topology, id: &str, kind: &str) -> usize {
    if let Some(row) = topology.classes.iter().position(|class| class.id == id) {
        return row;
    }
    topology.classes.push(DeviceClass {
        id: id.into(),
        kind: kind.into(),
        vendor: "simulated".into(),
        title: id.into(),
        peak_gflops: catalogue::class_by_id(id).and_then(|known| known.peak_gflops),
        software: false,
    });
    topology.classes.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_clusters() {
        let sizes = |word| cluster(word).map(|built| (built.nodes.len(), built.devices.len())).ok();
        assert_eq!(sizes("gavel:8,16,24"), Some((48, 48)));
        assert_eq!(sizes("uniform:50x8"), Some((50, 400)));
        assert_eq!(sizes("4xgpu"), Some((4, 4)));
        assert_eq!(sizes("4xh100-sxm5-80"), Some((1, 4)));
        assert_eq!(sizes("20xh100-sxm5-80"), Some((3, 20)));
        assert_eq!(sizes("sia:default"), Some((11, 64)));
        assert_eq!(sizes("sia:4"), Some((44, 256)));
        assert_eq!(sizes("epyc-h100x8-910bx2"), Some((2, 22)));
        let racks = cluster("uniform:5x8/2").map(|built| built.nodes[4].rack.clone()).ok();
        assert_eq!(racks, Some("rack2".into()));
        for wrong in [
            "gavel:8,16",
            "uniform:8",
            "uniform:8x2/0",
            "gavel:0,0,0",
            "moon:3",
            "h100",
            "sia:other",
        ] {
            assert!(matches!(cluster(wrong), Err(ClusterError::Unknown { word }) if word == wrong));
        }
        assert_eq!(cluster("gavel:1,2,3").expect("a cluster").validate(), Ok(()));
    }
}
