//! The devices that a job may have: pools of one class each, from words, files or this machine.

use het_core::{Bytes, DeviceId};
use het_lab::planner::device_figures;
use het_parallel::{Pool, pool_of_class};
use het_perf::training::BUS_PART;
use het_wire::catalogue::{self, Figures};
use het_wire::topology::{Cluster, FABRICS, Reach, reaches};
use het_wire::words::closest;

use crate::cluster::{cluster, this};
use crate::fail::{Fail, code};

/// Of what PCIe carries, the part that programs see: 25.6 of 31.5 GB/s (SimAI).
const HOST_PART: f64 = 25.6 / 31.5;

/// Pools, what joins them, and classes that nothing is known of.
#[derive(Debug, Default)]
pub struct Pools {
    pub pools: Vec<Pool>,
    /// GB/s a device between pools, where their pods are joined by less than their cards carry.
    pub between_gbps: Option<f64>,
    /// GB/s of a node's cards on the storage network, where links tell.
    pub storage_gbps: Option<f64>,
    pub unknown: Vec<String>,
}

/// `NxCLASS`, templates, files, or any cluster that `het sim` knows, several joined by `+`.
pub fn of_word(word: &str) -> Result<Pools, Fail> {
    let mut all = Pools::default();
    for part in parts(word) {
        match counted(&part) {
            Some((count, class)) => all.pools.push(usual(class, count)?),
            None => {
                let of = of_cluster(&cluster(&part)?)?;
                all.pools.extend(of.pools);
                all.unknown.extend(of.unknown);
                all.between_gbps = least(all.between_gbps, of.between_gbps);
                all.storage_gbps = least(all.storage_gbps, of.storage_gbps);
            }
        }
    }
    Ok(all)
}

/// Of this machine, with its own memory and links.
pub fn of_this() -> Result<Pools, Fail> {
    let machine = this();
    let mut all = of_cluster(&machine)?;
    let devices: u32 = all.pools.iter().map(|pool| pool.devices).sum();
    let host = machine.topology.nodes.first().map_or(Bytes::ZERO, |node| node.memory);
    for pool in &mut all.pools {
        pool.host_memory = Some(Bytes(host.0 / u64::from(devices.max(1))));
    }
    Ok(all)
}

/// Parts between `+`; a fabric stays with the template before it.
fn parts(word: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in word.split('+').map(str::trim) {
        match parts.last_mut() {
            Some(last) if FABRICS.contains(&part) => *last = format!("{last}+{part}"),
            _ => parts.push(part.to_owned()),
        }
    }
    parts
}

/// `8xh100-sxm5-80`: so many of a class, joined as usual.
fn counted(part: &str) -> Option<(u32, &str)> {
    let (count, class) = part.split_once('x')?;
    Some((count.parse().ok().filter(|count| *count > 0)?, class))
}

/// Devices of a class, joined as usual.
pub fn usual(class: &str, devices: u32) -> Result<Pool, Fail> {
    let Some(figures) = catalogue::figures(class) else {
        let ids = || catalogue::sheets().iter().map(|sheet| sheet.id.as_str());
        // `h100` is the beginning of several.
        let begun: Vec<String> =
            ids().filter(|id| id.starts_with(class)).map(str::to_owned).collect();
        let near = match class.is_empty() || begun.is_empty() {
            true => closest(class, ids()).into_iter().collect(),
            false => begun,
        };
        let hint = match &near[..] {
            [] => "`het topo FILE -o table` names classes; a cluster file may describe its own"
                .to_owned(),
            near => format!("did you mean `{}`?", near.join("`, `")),
        };
        let text = format!("`{class}` is no device class of the catalogue");
        return Err(Fail::new(code::USAGE, text).hint(hint));
    };
    pool(class, "", &figures, devices).ok_or_else(|| {
        Fail::new(code::USAGE, format!("the catalogue lacks figures of `{class}`"))
            .hint("say its peak, memory and bandwidth under `classes:` of a cluster file")
    })
}

/// `None` where the planner lacks figures.
fn pool(class: &str, vendor: &str, figures: &Figures, devices: u32) -> Option<Pool> {
    let device = device_figures(figures).filter(|device| device.half_tflops.is_some())?;
    let known = catalogue::class_by_id(class).map(|known| known.vendor.as_str());
    let pool = pool_of_class(class, known.unwrap_or(vendor), device, devices);
    Some(Pool { power_w: figures.power_w, ..pool })
}

/// A pool for each class of accelerators, joined as the cluster's links say.
fn of_cluster(cluster: &Cluster) -> Result<Pools, Fail> {
    let topology = &cluster.topology;
    let reaches = reaches(topology);
    let mut all = Pools::default();
    let mut pods = Vec::new();
    for (index, class) in topology.classes.iter().enumerate() {
        let of_class = |id: &DeviceId| topology.device(*id).class == index;
        let devices: Vec<_> = topology.accelerators().filter(of_class).collect();
        if devices.is_empty() || class.software {
            continue;
        }
        let id = class.id.as_str();
        let figures = cluster.own.get(id).map(Figures::from).or_else(|| catalogue::figures(id));
        let known = figures
            .and_then(|figures| pool(id, class.vendor.as_str(), &figures, devices.len() as u32));
        let Some(mut pool) = known else {
            all.unknown.push(id.to_owned());
            continue;
        };
        let memory = devices.iter().map(|id| topology.memory_of(*id)).min();
        if let Some(memory) = memory.filter(|memory| *memory > Bytes::ZERO) {
            pool.machine.device.memory = memory;
        }
        let mut own: Vec<_> =
            devices.iter().map(|id| &topology.node(topology.device(*id).node).pod).collect();
        own.sort_unstable();
        own.dedup();
        join(&mut pool, &reaches[index], own.len() > 1);
        pods.extend(own);
        let reach = &reaches[index];
        all.between_gbps = least(all.between_gbps, reach.beyond_pod.map(gigabytes));
        let cards = reach.storage.map(|each| gigabytes(each) * f64::from(reach.island));
        all.storage_gbps = least(all.storage_gbps, cards);
        all.pools.push(pool);
    }
    pods.sort_unstable();
    pods.dedup();
    if pods.len() < 2 {
        all.between_gbps = None;
    }
    if all.pools.is_empty() {
        let hint = match &all.unknown[..] {
            [] => "name devices to think of, for example `--cluster 8xh100-sxm5-80`".to_owned(),
            unknown => format!(
                "say peak, memory and bandwidth of `{}` under `classes:` of a cluster file",
                unknown.join("`, `")
            ),
        };
        let text = "there is no GPU or NPU to train on whose figures are known";
        return Err(Fail::new(code::USAGE, text).hint(hint));
    }
    Ok(all)
}

/// Takes over what links tell; where they tell nothing, what is usual stays.
fn join(pool: &mut Pool, reach: &Reach, in_several_pods: bool) {
    let island = &mut pool.machine.island;
    island.devices_per_node = reach.island.max(1);
    if let Some(peers) = reach.peers {
        island.link_gbps = gigabytes(peers) * BUS_PART;
    }
    if let Some(host) = reach.host {
        island.host_gbps = gigabytes(host) * HOST_PART;
    }
    let beyond = if in_several_pods { reach.beyond_pod } else { None };
    if let Some(network) = beyond.or(reach.beyond_leaf).or(reach.network) {
        island.network_gbps = gigabytes(network);
    }
}

fn gigabytes(bytes: Bytes) -> f64 {
    bytes.0 as f64 / 1e9
}

fn least(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_and_counts_stand_side_by_side() {
        let pools = |word: &str| of_word(word).map(|all| all.pools).expect("pools");
        let found = pools("hgx-h100-8x4+rail+16xascend-910b");
        let told: Vec<_> = found.iter().map(|pool| (pool.class.as_str(), pool.devices)).collect();
        assert_eq!(told, [("h100-sxm5-80", 32), ("ascend-910b", 16)]);
        let [drawn, usual] = [&found[0], &pools("32xh100-sxm5-80")[0]].map(|pool| pool.machine);
        assert_eq!(drawn.island.devices_per_node, usual.island.devices_per_node);
        assert!((drawn.island.network_gbps / usual.island.network_gbps - 1.0).abs() < 0.01);
        let links = drawn.island.link_gbps / usual.island.link_gbps;
        assert!((0.9..1.1).contains(&links), "{links}");
        assert_eq!(pools("gb200-nvl72")[0].machine.island.devices_per_node, 72);
    }
}
