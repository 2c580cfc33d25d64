//! The devices that a job may have: pools of one class each, by name or of a cluster.

use het_core::{Bytes, DeviceId};
use het_parallel::{Pool, pool_of_class};
use het_perf::training::BUS_PART;
use het_wire::catalogue::{self, Figures};
use het_wire::topology::{Cluster, Reach, reaches};
use het_wire::words::closest;
use thiserror::Error;

use crate::validation::device_figures;

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

/// Why there are no pools.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PoolError {
    #[error("`{class}` is no device class of the catalogue")]
    UnknownClass { class: String, near: Vec<String> },
    #[error("the catalogue lacks figures of `{class}`")]
    NoFigures { class: String },
    #[error("there is no GPU or NPU to train on whose figures are known")]
    NothingKnown { unknown: Vec<String> },
}

impl PoolError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownClass { near, .. } if near.is_empty() => {
                "`het topo FILE -o table` names classes; a cluster file may describe its own"
                    .to_owned()
            }
            Self::UnknownClass { near, .. } => format!("did you mean `{}`?", near.join("`, `")),
            Self::NoFigures { .. } => {
                "say its peak, memory and bandwidth under `classes:` of a cluster file".to_owned()
            }
            Self::NothingKnown { unknown } if unknown.is_empty() => {
                "name devices to think of, for example `--cluster 8xh100-sxm5-80`".to_owned()
            }
            Self::NothingKnown { unknown } => format!(
                "say peak, memory and bandwidth of `{}` under `classes:` of a cluster file",
                unknown.join("`, `")
            ),
        }
    }
}

impl Pools {
    /// Of a cluster and another beside it.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.pools.extend(other.pools);
        self.unknown.extend(other.unknown);
        self.between_gbps = least(self.between_gbps, other.between_gbps);
        self.storage_gbps = least(self.storage_gbps, other.storage_gbps);
        self
    }
}

/// Devices of a class, joined as usual.
///
/// # Errors
/// When the catalogue does not know the class, or too little of it.
pub fn usual(class: &str, devices: u32) -> Result<Pool, PoolError> {
    let Some(figures) = catalogue::figures(class) else {
        let ids = || catalogue::sheets().iter().map(|sheet| sheet.id.as_str());
        // `h100` is the beginning of several.
        let begun: Vec<String> =
            ids().filter(|id| id.starts_with(class)).map(str::to_owned).collect();
        let near = match class.is_empty() || begun.is_empty() {
            true => closest(class, ids()).into_iter().map(|near| near.to_string()).collect(),
            false => begun,
        };
        return Err(PoolError::UnknownClass { class: class.to_owned(), near });
    };
    let lacks = || PoolError::NoFigures { class: class.to_owned() };
    pool(class, "", &figures, devices).ok_or_else(lacks)
}

/// `None` where the planner lacks figures.
fn pool(class: &str, vendor: &str, figures: &Figures, devices: u32) -> Option<Pool> {
    let device = device_figures(figures).filter(|device| device.half_tflops.is_some())?;
    let known = catalogue::class_by_id(class).map(|known| known.vendor.as_str());
    let pool = pool_of_class(class, known.unwrap_or(vendor), device, devices);
    Some(Pool { power_w: figures.power_w, ..pool })
}

/// A pool for each class of accelerators, joined as the cluster's links say.
///
/// # Errors
/// When there is none whose figures are known.
pub fn of_cluster(cluster: &Cluster) -> Result<Pools, PoolError> {
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
        return Err(PoolError::NothingKnown { unknown: all.unknown });
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
