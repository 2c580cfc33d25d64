//! A topology as tables: its nodes, the figures of its classes, its links by kind.

use std::collections::BTreeMap;

use anstream::println;
use het_core::{Bytes, Link, Topology};
use het_wire::catalogue;
use het_wire::topology::Cluster;

use super::graph::{self, stem, wire_text};
use crate::output::{plain_table, print_table};

pub fn print(cluster: &Cluster) {
    nodes(&cluster.topology);
    println!();
    classes(cluster);
    println!();
    links(&cluster.topology);
}

fn nodes(topology: &Topology) {
    let mut table = plain_table(&["NODES", "COUNT", "POD", "MEMORY", "DEVICES"]);
    for alike in graph::kinds(topology) {
        let (Some(first), Some(last)) = (alike.first(), alike.last()) else { continue };
        let node = topology.node(*first);
        let name = match alike.len() {
            1 => node.name.to_string(),
            _ => format!("{} … {}", node.name, topology.node(*last).name),
        };
        let memory = node.host.memory.to_string();
        let devices = graph::contents(topology, *first).join(", ");
        table.add_row([name, alike.len().to_string(), node.pod.to_string(), memory, devices]);
    }
    print_table(&table);
}

/// Dense peaks in TFLOP/s (int8: TOP/s); `?` unknown, `~` approximate, `-` not there.
fn classes(cluster: &Cluster) {
    let titles = ["CLASS", "DEVICES", "FP32", "BF16", "INT8", "FP8", "GIB", "GB/S", "W", "CERTAIN"];
    let mut table = plain_table(&titles);
    let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
    for device in &cluster.topology.devices {
        *counts.entry(device.class).or_default() += 1;
    }
    for (class, count) in counts {
        let id = cluster.topology.classes[class].id.as_str();
        let mut row = vec![id.to_owned(), count.to_string()];
        match cluster.sheet(id) {
            Some(sheet) => {
                row.extend(
                    [
                        sheet.fp32_tflops,
                        sheet.half_tflops,
                        sheet.int8_tops,
                        sheet.fp8_tflops,
                        sheet.memory_gib,
                        sheet.memory_gbps,
                        sheet.power_w,
                    ]
                    .map(|figure| figure.to_string()),
                );
                row.push(sheet.certainty.to_string());
            }
            None => row.extend(std::iter::repeat_n("?".to_owned(), 8)),
        }
        table.add_row(row);
    }
    print_table(&table);
    println!("catalogue {}", catalogue::version());
}

/// What links of one row have in common: stems of both ends, kind and rate, nanoseconds.
type LinksAlike = (String, String, String, Option<u64>);

fn links(topology: &Topology) {
    let mut table = plain_table(&["FROM", "TO", "EACH", "EDGES", "LINKS", "LATENCY"]);
    let mut groups: BTreeMap<LinksAlike, (u32, u32)> = BTreeMap::new();
    for link in &topology.links {
        let [from, to] = [&link.from, &link.to].map(|vertex| match vertex {
            het_core::Vertex::Node(_) => "node".to_owned(),
            other => stem(topology, other),
        });
        let (edges, links) = groups.entry((from, to, each(link), link.latency_ns)).or_default();
        *edges += 1;
        *links += link.count;
    }
    for ((from, to, each, latency), (edges, links)) in groups {
        let latency = latency.map_or("?".to_owned(), |ns| format!("{ns} ns"));
        table.add_row([from, to, each, edges.to_string(), links.to_string(), latency]);
    }
    print_table(&table);
}

/// Kind and rate of one link, without the number of them.
fn each(link: &Link) -> String {
    let one = link.bandwidth.map(|sum| Bytes(sum.0 / u64::from(link.count.max(1))));
    match one {
        Some(_) => wire_text(&link.kind, one, 1),
        None => format!("{} ?", link.kind),
    }
}
