//! Processors: sockets, cores this process may use, NUMA nodes, memory.

use std::collections::{BTreeMap, BTreeSet};

use het_core::Bytes;

use crate::kernel::cgroup::{self, Limits};
use crate::kernel::files::SystemFiles;
use crate::kernel::parse;
use crate::{Diagnostic, catalogue};

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    pub id: u32,
    /// Online cores (hardware threads), whether or not this process may use them.
    pub cores: Vec<u32>,
    /// Zero if unknown.
    pub memory: Bytes,
    /// The socket's number (`0` for `cpu0`), where one holds its cores.
    pub socket: Option<usize>,
}

/// What the machine computes with when nothing else is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Processors {
    /// Catalogue id and human name of the model.
    pub(crate) class: String,
    pub(crate) title: String,
    pub(crate) vendor: &'static str,
    /// Usable cores by socket number; a socket without any is absent.
    pub(crate) sockets: BTreeMap<usize, Vec<u32>>,
    /// How many sockets there are, usable or not.
    pub(crate) socket_count: usize,
    pub(crate) numa: Vec<NumaNode>,
    pub(crate) memory: Bytes,
    pub(crate) diagnostics: Vec<Diagnostic>,
}

/// Reads the processors below the root. `fallback` are the cores to assume where nothing says.
pub(super) fn processors(files: &SystemFiles, fallback: &[u32]) -> Processors {
    let limits = cgroup::limits(files);
    let online = online(files);
    let mut diagnostics = Vec::new();
    let usable = usable(files, online.as_deref(), &limits, fallback);
    if online.is_none() {
        diagnostics.push(Diagnostic::ProcessorsUnknown { cores: usable.len() });
    }
    if let Some(quota_millicores) = limits.quota_millicores
        && quota_millicores < usable.len() as u64 * 1000
    {
        diagnostics.push(Diagnostic::CpuQuota { cores: usable.len(), quota_millicores });
    }
    let socket_of = sockets(files, online.as_deref().unwrap_or(&usable));
    let mut sockets: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for &core in &usable {
        let socket = socket_of.get(&core).copied().unwrap_or(0);
        sockets.entry(socket).or_default().push(core);
    }
    let cpuinfo = files.text("proc/cpuinfo").unwrap_or_default();
    let (class, title, vendor) = catalogue::processor(&cpuinfo);
    Processors {
        class,
        title,
        vendor,
        sockets,
        socket_count: socket_of.values().max().map_or(1, |last| last + 1),
        numa: numa(files, &socket_of),
        memory: memory(files, &limits, &mut diagnostics),
        diagnostics,
    }
}

fn online(files: &SystemFiles) -> Option<Vec<u32>> {
    let listed = files.text(&format!("{CPUS}/online")).and_then(|text| parse::core_list(&text));
    let listed = listed.filter(|cores| !cores.is_empty());
    listed.or_else(|| {
        let names = files.names(CPUS).into_iter();
        let mut cores: Vec<u32> =
            names.filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect();
        cores.sort_unstable();
        (!cores.is_empty()).then_some(cores)
    })
}

/// Online ∩ affinity ∩ cpuset. A set that leaves nothing (garbage, or read while it changed) is
/// passed over: this process runs somewhere.
fn usable(
    files: &SystemFiles,
    online: Option<&[u32]>,
    limits: &Limits,
    fallback: &[u32],
) -> Vec<u32> {
    // The same mask that `sched_getaffinity` gives, without its limit of 1,024 cores.
    let status = files.text("proc/self/status").unwrap_or_default();
    let affinity = parse::field(&status, "Cpus_allowed_list").and_then(parse::core_list);
    let start = online.or(affinity.as_deref()).unwrap_or(fallback);
    let mut usable: Vec<u32> = if start.is_empty() { vec![0] } else { start.to_vec() };
    for allowed in [affinity.as_deref(), limits.cores.as_deref()].into_iter().flatten() {
        let allowed: BTreeSet<u32> = allowed.iter().copied().collect();
        let both: Vec<u32> = usable.iter().copied().filter(|core| allowed.contains(core)).collect();
        if !both.is_empty() {
            usable = both;
        }
    }
    usable
}

/// Socket numbers by core. Package ids can be any number (36 on ARM, −1 in some virtual machines):
/// sockets are numbered in the order of ids.
fn sockets(files: &SystemFiles, cores: &[u32]) -> BTreeMap<u32, usize> {
    let package = |core: &u32| -> i64 {
        files.number(&format!("{CPUS}/cpu{core}/topology/physical_package_id")).unwrap_or(-1)
    };
    let packages: BTreeMap<u32, i64> = cores.iter().map(|core| (*core, package(core))).collect();
    let known: BTreeSet<i64> = packages.values().copied().filter(|&id| id >= 0).collect();
    let number = |id: i64| known.iter().position(|&other| other == id).unwrap_or(0);
    packages.into_iter().map(|(core, id)| (core, number(id))).collect()
}

fn numa(files: &SystemFiles, socket_of: &BTreeMap<u32, usize>) -> Vec<NumaNode> {
    let ids = files.names(NODES).into_iter();
    let mut nodes: Vec<NumaNode> = ids
        .filter_map(|name| {
            let id = name.strip_prefix("node")?.parse().ok()?;
            let text = |file: &str| files.text(&format!("{NODES}/{name}/{file}"));
            let cores = text("cpulist").and_then(|text| parse::core_list(&text))?;
            let memory = text("meminfo").and_then(|text| parse::memory_total(&text));
            let socket = cores.iter().find_map(|core| socket_of.get(core)).copied();
            Some(NumaNode { id, cores, memory: memory.unwrap_or(Bytes::ZERO), socket })
        })
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

fn memory(files: &SystemFiles, limits: &Limits, diagnostics: &mut Vec<Diagnostic>) -> Bytes {
    let total = files.text("proc/meminfo").and_then(|text| parse::memory_total(&text));
    if total.is_none() {
        diagnostics.push(Diagnostic::NodeMemoryUnknown);
    }
    match (total, limits.memory) {
        (Some(total), Some(limit)) => total.min(limit),
        (total, limit) => total.or(limit).unwrap_or(Bytes::ZERO),
    }
}
