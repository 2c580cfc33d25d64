//! Published bandwidths of collectives, and what the cost model says of the same groups.

use std::collections::BTreeMap;
use std::path::Path;

use het_perf::fabric::{Algorithm, Collective, Group, Transport};

use crate::workload::{CsvTable, Fields, TraceError, WorkloadError};

/// One published figure: a bandwidth as nccl-tests prints it, or a part of what is ideal.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedCollective {
    pub source: String,
    pub hardware: String,
    pub kind: String,
    pub ranks: u32,
    pub nodes: u32,
    pub bytes: f64,
    /// GB/s, or a part.
    pub figure: f64,
}

/// How far the model is from one group of figures.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveScore {
    /// Source, hardware and kind.
    pub group: String,
    pub rows: usize,
    /// Mean and greatest error of the time, as a part of what it takes by the published figure.
    pub error_mean: f64,
    pub error_max: f64,
    /// Figures and what the model says of each, in the order of the file.
    pub points: Vec<(PublishedCollective, f64)>,
}

/// What "large" means where a size is not told.
const LARGE_BYTES: f64 = 8e9;

/// Rings of NVLink that a DGX-1V has among its first ranks (its hybrid cube mesh), from two on, and
/// GB/s of one, as nccl-tests sees it with two ranks.
const DGX1_RINGS: [u32; 7] = [1, 2, 4, 2, 2, 4, 6];
const DGX1_LINK_GBYTES_PER_S: f64 = 22.5;

/// Reads `source,hw,collective,ranks,nodes,bytes,time_us,busbw_gbps,note`; rows that tell no group
/// of ranks are left out.
///
/// # Errors
/// When the file cannot be read, or with file, line, column and reason of the first row that makes
/// no sense.
pub fn read_collectives(path: &Path) -> Result<Vec<PublishedCollective>, WorkloadError> {
    let table = CsvTable::read(path)?;
    let columns =
        table.columns(["source", "hw", "collective", "ranks", "nodes", "bytes", "busbw_gbps"])?;
    Ok(table.rows(|fields| row(&fields, columns))?.into_iter().flatten().collect())
}

/// The model beside every figure of a group that it knows the hardware of.
pub fn score_collectives(published: &[PublishedCollective]) -> Vec<CollectiveScore> {
    let mut groups: BTreeMap<String, Vec<(PublishedCollective, f64)>> = BTreeMap::new();
    for point in published {
        if let Some(told) = predicted(point) {
            let name = format!("{}, {}, {}", point.source, point.hardware, point.kind);
            groups.entry(name).or_default().push((point.clone(), told));
        }
    }
    let scores = groups.into_iter().map(|(group, points)| {
        let errors = points.iter().map(|(point, told)| (point.figure / told - 1.0).abs());
        let errors: Vec<f64> = errors.collect();
        CollectiveScore {
            group,
            rows: points.len(),
            error_mean: errors.iter().sum::<f64>() / errors.len() as f64,
            error_max: errors.iter().copied().fold(0.0, f64::max),
            points,
        }
    });
    scores.collect()
}

fn row(
    fields: &Fields<'_>,
    columns: [usize; 7],
) -> Result<Option<PublishedCollective>, TraceError> {
    let [source, hardware, kind, ranks, nodes, bytes, figure] = columns;
    if fields.text(ranks, "ranks")?.trim().is_empty() {
        return Ok(None);
    }
    let size = fields.text(bytes, "bytes")?.trim();
    let unreadable = || fields.wrong(bytes, format!("`bytes` is `{size}`, no such size"));
    Ok(Some(PublishedCollective {
        source: fields.text(source, "source")?.trim().to_owned(),
        hardware: fields.text(hardware, "hw")?.trim().to_owned(),
        kind: fields.text(kind, "collective")?.trim().to_owned(),
        ranks: fields.number(ranks, "ranks")?,
        nodes: fields.number(nodes, "nodes")?,
        bytes: size_bytes(size).ok_or_else(unreadable)?,
        figure: fields.number(figure, "busbw_gbps")?,
    }))
}

fn size_bytes(size: &str) -> Option<f64> {
    let binary = |number: &str, shift: u32| {
        let number: f64 = number.parse().ok()?;
        Some(number * f64::from(1_u32 << shift))
    };
    match size {
        "" | "large" => Some(LARGE_BYTES),
        _ => match (size.strip_suffix('M'), size.strip_suffix('G')) {
            (Some(number), _) => binary(number, 20),
            (_, Some(number)) => binary(number, 30),
            _ => size.parse().ok().filter(|bytes: &f64| bytes.is_finite() && *bytes > 0.0),
        },
    }
}

/// GB/s, or a part of the ideal; nothing of hardware that is not known here.
fn predicted(point: &PublishedCollective) -> Option<f64> {
    let per_node = point.ranks.checked_div(point.nodes)?.max(1);
    let shape = [point.nodes, per_node];
    let hopper =
        |shape| Group::new(shape, Transport::nvlink(18, 20.6), Transport::network(400.0), 3.35e12);
    let ampere = |nic| Group::new(shape, Transport::nvlink(12, 20.0), nic, 1.555e12);
    let in_switch = |bus: f64| Group {
        in_switch_bytes_per_s: Some(bus / Collective::AllReduce.bus_factor(8)),
        ..hopper(shape)
    };
    let hardware = point.hardware.as_str();
    let group = match hardware {
        "8-GPU nodes" => return part_of_ideal(&hopper(shape), point),
        "H100 8xSXM ring" | "H100 NVLink ring" => hopper(shape),
        // Eight links of a Hopper's eighteen.
        "H800 NVLS" => Group { inside: Transport::nvlink(8, 20.6), ..in_switch(215e9) },
        // SimAI's figure of a Hopper node, held against what users measured.
        _ if hardware.starts_with("H100 8xSXM") || hardware.starts_with("H200 8xSXM") => {
            in_switch(475e9)
        }
        "H100 NVLS" => in_switch(475e9),
        "A100 2 nodes 4x200G IB" | "A100 3 nodes 4xHDR" => ampere(Transport::network(100.0)),
        "A100 2 nodes 8x100G RoCE" => ampere(Transport::network(100.0)),
        _ if hardware.starts_with("A100") => ampere(Transport::network(200.0)),
        "V100 NVLink 1 node" => {
            let rings = *DGX1_RINGS.get(point.ranks.checked_sub(2)? as usize)?;
            let inside = Transport::nvlink(rings, DGX1_LINK_GBYTES_PER_S);
            let group = Group::new(shape, inside, Transport::network(100.0), 0.9e12);
            Group { low_latency_bytes_per_s_max: 39e9, ..group }
        }
        _ => return None,
    };
    let collective = match point.kind.as_str() {
        "all_reduce" => Collective::AllReduce,
        "all_gather" => Collective::AllGather,
        _ => return None,
    };
    Some(group.cost(collective, point.bytes).bus_bytes_per_s / 1e9)
}

/// Rings only, as that source has it; of what the same group attains without any latency.
fn part_of_ideal(group: &Group, point: &PublishedCollective) -> Option<f64> {
    let (collective, algorithm) = match point.kind.as_str() {
        "ring ratio of NIC bw" => (Collective::AllReduce, Algorithm::Ring),
        "alltoall ratio" => (Collective::AllToAll, Algorithm::Pairwise),
        _ => return None,
    };
    let attained = |bytes: f64| {
        let ways = group.ways(collective, bytes).into_iter();
        let own = ways.filter(|way| way.algorithm == algorithm);
        own.map(|way| way.bus_bytes_per_s).fold(0.0, f64::max)
    };
    Some(attained(point.bytes) / attained(1e15))
}
