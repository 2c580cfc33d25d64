//! The environment contract: what every process of a gang is told. A table, without I/O.
//!
//! Later rows win: defaults that a user may override, then the user's own variables, then facts
//! (ranks, addresses, visible devices, `HET_*`) that nobody may.

use std::collections::BTreeSet;

use het_core::{DeviceId, Millis};
use het_perf::{SAVE_DEFAULT, checkpoint_interval, mean_time_between_failures};
use serde::Serialize;

use crate::launch::spec::Order;
use crate::launch::template;
use crate::process::variables::Variables;
use crate::resources::cores::is_cpu;

/// The file whose path also marks every process of a lease, see
/// [`crate::process::procfs::members`].
pub(crate) const NOTICE: &str = "HET_NOTICE";

/// Which rank of its gang a process is.
pub(crate) const RANK: &str = "RANK";

/// Facts that are true of some starts only: an outer job's must not leak into an inner one.
pub(crate) const OPTIONAL: [&str; 5] = [
    "HET_CHECKPOINT_DIR",
    "HET_CHECKPOINT_EVERY",
    "HET_MEAN_TIME_BETWEEN_FAILURES",
    "HET_PRECISION",
    "HET_RESUME_FROM",
];

/// One device of `HET_DEVICES`.
#[derive(Debug, Serialize)]
struct DeviceRow<'a> {
    name: &'a str,
    kind: &'a str,
    driver: &'a str,
    class: &'a str,
    /// Granted cores of a CPU socket; 0 for an accelerator.
    cores: u32,
}

/// What is added to the engine's own environment for this rank.
pub(crate) fn told(order: &Order, rank: u32) -> Variables {
    let mut told = Variables::new();
    let cores = order.cores(rank);
    if cores > 0 {
        told.set("OMP_NUM_THREADS", cores);
        told.set("RAYON_NUM_THREADS", cores);
    }
    for (name, value) in &order.launch.env {
        told.set(name, template::fill(value, order.words(rank)));
    }
    add_visible_devices(&mut told, order, rank);
    add_ranks(&mut told, order, rank);
    add_heterosis(&mut told, order, rank);
    told
}

/// Shows the granted accelerators. A rank without any is shown its CPU, which hides every
/// accelerator.
fn add_visible_devices(told: &mut Variables, order: &Order, rank: u32) {
    for (driver, ids) in order.shown_devices(rank) {
        for (name, value) in (order.visible_env)(driver, &ids) {
            told.set(&name, value);
        }
    }
}

/// The rendezvous of `torch.distributed`, and its mirror for `torchrun`, which is one agent a rank
/// and starts a worker a device.
fn add_ranks(told: &mut Variables, order: &Order, rank: u32) {
    let world = order.world();
    let rows = [
        ("MASTER_PORT", u32::from(order.port)),
        ("PET_MASTER_PORT", u32::from(order.port)),
        ("WORLD_SIZE", world),
        (RANK, rank),
        ("LOCAL_RANK", rank),
        ("LOCAL_WORLD_SIZE", world),
        ("NODE_RANK", 0),
        ("NNODES", 1),
        ("PET_NNODES", world),
        ("PET_NODE_RANK", rank),
        ("PET_NPROC_PER_NODE", (order.rank(rank).grants.len() as u32).max(1)),
    ];
    for (name, value) in rows {
        told.set(name, value);
    }
    told.set("MASTER_ADDR", "127.0.0.1");
    told.set("PET_MASTER_ADDR", "127.0.0.1");
}

fn add_heterosis(told: &mut Variables, order: &Order, rank: u32) {
    told.set("HET_JOB", &order.launch.job);
    told.set("HET_STAGE", &order.launch.stage);
    told.set("HET_ATTEMPT", order.attempt);
    told.set("HET_DEVICES", devices(order, rank));
    told.set(NOTICE, order.notice().to_string_lossy());
    told.set("HET_PROGRESS", order.progress().to_string_lossy());
    told.set("HET_OUTPUT", order.output_dir().to_string_lossy());
    if let Some(dir) = order.checkpoint_dir() {
        told.set("HET_CHECKPOINT_DIR", dir.to_string_lossy());
    }
    if let Some(spec) = &order.launch.checkpoint {
        add_saving(told, order, spec.every);
    }
    if let Some(checkpoint) = &order.resume {
        told.set("HET_RESUME_FROM", &checkpoint.path);
    }
    if let Some(precision) = &order.launch.precision {
        told.set("HET_PRECISION", precision);
    }
}

/// How often to save. Where nobody said, also how long the devices mostly live, so that a program
/// that knows what its saves take can reckon anew.
fn add_saving(told: &mut Variables, order: &Order, every: Option<Millis>) {
    let devices: BTreeSet<DeviceId> = order.placement.devices().map(|grant| grant.device).collect();
    let mean = mean_time_between_failures(devices.len() as u32);
    let interval = every.unwrap_or_else(|| checkpoint_interval(SAVE_DEFAULT, mean));
    told.set("HET_CHECKPOINT_EVERY", interval.as_seconds());
    if every.is_none() {
        told.set("HET_MEAN_TIME_BETWEEN_FAILURES", mean.as_seconds().round());
    }
}

fn devices(order: &Order, rank: u32) -> String {
    let topology = &order.topology;
    let rows: Vec<DeviceRow<'_>> = order
        .rank(rank)
        .grants
        .iter()
        .map(|grant| {
            let device = topology.device(grant.device);
            let class = topology.class_of(grant.device);
            let cores = if is_cpu(topology, grant.device) { grant.share.whole_units() } else { 0 };
            DeviceRow {
                name: device.name.as_str(),
                kind: class.kind.as_str(),
                driver: device.drivers.first().map_or("", |driver| driver.as_str()),
                class: class.id.as_str(),
                cores,
            }
        })
        .collect();
    serde_json::to_string(&rows).expect("text and numbers always become JSON")
}
