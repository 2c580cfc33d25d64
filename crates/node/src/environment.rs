//! The environment contract: what every process of a gang is told. A table, without I/O.
//!
//! Later rows win: defaults that a user may override, then the user's own variables, then facts
//! (ranks, addresses, visible devices, `HET_*`) that nobody may.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;

use het_core::{DeviceId, Millis};
use het_perf::{SAVE_DEFAULT, checkpoint_interval, mean_time_between_failures};
use serde::Serialize;

use crate::cores::is_cpu;
use crate::order::Order;
use crate::template;

/// The file whose path also marks every process of a lease, see [`crate::procfs::members`].
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
pub(crate) fn table(order: &Order, rank: u32) -> Table {
    let mut table = Table::new();
    let cores = order.cores(rank);
    if cores > 0 {
        set(&mut table, "OMP_NUM_THREADS", cores);
        set(&mut table, "RAYON_NUM_THREADS", cores);
    }
    for (name, value) in &order.launch.env {
        table.insert(name.clone().into(), template::fill(value, order.words(rank)));
    }
    add_visible_devices(&mut table, order, rank);
    add_ranks(&mut table, order, rank);
    add_heterosis(&mut table, order, rank);
    table
}

/// Values by the names of their variables.
pub(crate) type Table = BTreeMap<Cow<'static, str>, String>;

/// `NAME=VALUE`, as a program is given it.
pub(crate) type Pair = Cow<'static, CStr>;

fn pair(name: &[u8], value: &[u8]) -> io::Result<CString> {
    // With the zero byte at its end.
    let mut pair = Vec::with_capacity(name.len() + value.len() + 2);
    pair.extend_from_slice(name);
    pair.push(b'=');
    pair.extend_from_slice(value);
    Ok(CString::new(pair)?)
}

/// This process's own environment, in which nothing changes, without what is true of some starts
/// only. A name that is not text is in no table.
static OWN: LazyLock<Vec<(Option<String>, CString)>> = LazyLock::new(|| {
    let pairs = std::env::vars_os().filter_map(|(name, value)| {
        let pair = pair(name.as_bytes(), value.as_bytes()).ok()?;
        Some((name.into_string().ok(), pair))
    });
    let optional =
        |name: &Option<String>| name.as_ref().is_some_and(|name| OPTIONAL.contains(&name.as_str()));
    pairs.filter(|(name, _)| !optional(name)).collect()
});

/// This process's own environment with a table over it.
///
/// # Errors
/// When a name or a value holds a zero byte.
pub(crate) fn inherited_and(table: &Table) -> io::Result<Vec<Pair>> {
    let told =
        |name: &Option<String>| name.as_ref().is_some_and(|name| table.contains_key(name.as_str()));
    let own = OWN.iter().filter(|(name, _)| !told(name));
    let own = own.map(|(_, pair)| Ok(Cow::Borrowed(pair.as_c_str())));
    let table =
        table.iter().map(|(name, value)| Ok(Cow::Owned(pair(name.as_bytes(), value.as_bytes())?)));
    own.chain(table).collect()
}

fn set(table: &mut Table, name: &'static str, value: impl ToString) {
    table.insert(name.into(), value.to_string());
}

/// Shows the granted accelerators. A rank without any is shown its CPU, which hides every
/// accelerator.
fn add_visible_devices(table: &mut Table, order: &Order, rank: u32) {
    for (driver, ids) in order.shown_devices(rank) {
        for (name, value) in (order.visible_env)(driver, &ids) {
            set(table, name, value);
        }
    }
}

/// The rendezvous of `torch.distributed`, and its mirror for `torchrun`, which is one agent a rank
/// and starts a worker a device.
fn add_ranks(table: &mut Table, order: &Order, rank: u32) {
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
        set(table, name, value);
    }
    set(table, "MASTER_ADDR", "127.0.0.1");
    set(table, "PET_MASTER_ADDR", "127.0.0.1");
}

fn add_heterosis(table: &mut Table, order: &Order, rank: u32) {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    set(table, "HET_JOB", &order.launch.job);
    set(table, "HET_STAGE", &order.launch.stage);
    set(table, "HET_ATTEMPT", order.attempt);
    set(table, "HET_DEVICES", devices(order, rank));
    set(table, NOTICE, path(&order.notice()));
    set(table, "HET_PROGRESS", path(&order.progress()));
    set(table, "HET_OUTPUT", path(&order.output_dir()));
    if let Some(dir) = order.checkpoint_dir() {
        set(table, "HET_CHECKPOINT_DIR", path(&dir));
    }
    if let Some(spec) = &order.launch.checkpoint {
        add_saving(table, order, spec.every);
    }
    if let Some(checkpoint) = &order.resume {
        set(table, "HET_RESUME_FROM", &checkpoint.path);
    }
    if let Some(precision) = &order.launch.precision {
        set(table, "HET_PRECISION", precision);
    }
}

/// How often to save. Where nobody said, also how long the devices mostly live, so that a program
/// that knows what its saves take can reckon anew.
fn add_saving(table: &mut Table, order: &Order, told: Option<Millis>) {
    let devices: BTreeSet<DeviceId> = order.placement.devices().map(|grant| grant.device).collect();
    let mean = mean_time_between_failures(devices.len() as u32);
    let every = told.unwrap_or_else(|| checkpoint_interval(SAVE_DEFAULT, mean));
    set(table, "HET_CHECKPOINT_EVERY", every.as_seconds());
    if told.is_none() {
        set(table, "HET_MEAN_TIME_BETWEEN_FAILURES", mean.as_seconds().round());
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
