//! `het topo`: the links of this machine, as a tree, a table for programs, or a Graphviz graph.

use std::collections::BTreeSet;

use anstream::println;
use het_core::{Link, Topology, Vertex};
use het_server::this_machine;
use het_wire::API_VERSION;
use het_wire::quantity;
use het_wire::record::write_topology;
use serde_json::json;

use crate::args::{TopoArgs, TopoForm};
use crate::fail::{Fail, code};

pub fn topo(args: &TopoArgs) -> Result<u8, Fail> {
    let topology = this_machine().topology;
    match args.output {
        TopoForm::Tree => println!("{}", tree(&topology).trim_end()),
        TopoForm::Dot => println!("{}", dot(&topology).trim_end()),
        TopoForm::Json => {
            let shape = serde_json::to_value(write_topology(&topology)).unwrap_or_default();
            let document =
                json!({ "apiVersion": API_VERSION, "kind": "Topology", "topology": shape });
            println!("{document:#}");
        }
    }
    Ok(code::OK)
}

/// Each node with what hangs on it, nearest first.
fn tree(topology: &Topology) -> String {
    let mut text = String::new();
    let mut drawn = BTreeSet::new();
    for id in topology.node_ids() {
        let node = topology.node(id);
        text.push_str(&format!("{} ({})\n", node.name, quantity::size_text(node.memory)));
        branch(topology, &Vertex::Node(id), "", &mut drawn, &mut text);
        let loose = topology.device_ids().filter(|device| topology.device(*device).node == id);
        for device in loose.map(Vertex::Device) {
            if drawn.insert(device.clone()) {
                text.push_str(&format!("└─ {} (link unknown)\n", title(topology, &device)));
            }
        }
    }
    text
}

fn branch(
    topology: &Topology,
    from: &Vertex,
    indent: &str,
    drawn: &mut BTreeSet<Vertex>,
    text: &mut String,
) {
    drawn.insert(from.clone());
    let next: Vec<(&Link, &Vertex)> = topology
        .links
        .iter()
        .filter_map(|link| match (&link.from, &link.to) {
            (near, far) if near == from => Some((link, far)),
            (far, near) if near == from => Some((link, far)),
            _ => None,
        })
        .filter(|(_, far)| !drawn.contains(*far))
        .collect();
    for (index, (link, far)) in next.iter().enumerate() {
        if !drawn.insert((*far).clone()) {
            continue;
        }
        let last = index + 1 == next.len();
        let (fork, rest) = if last { ("└─", "   ") } else { ("├─", "│  ") };
        let name = title(topology, far);
        text.push_str(&format!("{indent}{fork} {name}  {}\n", link_text(link)));
        branch(topology, far, &format!("{indent}{rest}"), drawn, text);
    }
}

fn link_text(link: &Link) -> String {
    match link.bandwidth {
        Some(bytes) => format!("[{} {}/s]", link.kind, quantity::size_text(bytes)),
        None => format!("[{}]", link.kind),
    }
}

fn title(topology: &Topology, vertex: &Vertex) -> String {
    match vertex {
        Vertex::Node(id) => topology.node(*id).name.to_string(),
        Vertex::Switch(name) => name.to_string(),
        Vertex::Device(id) => {
            let device = topology.device(*id);
            let class = topology.class_of(*id);
            match class.kind.as_str() {
                "cpu" => {
                    let cores = device.capacity.whole_units();
                    format!("{} {} ({cores} cores)", device.name, class.title)
                }
                _ => format!("{} {}", device.name, class.title),
            }
        }
    }
}

fn dot(topology: &Topology) -> String {
    let quote = |vertex: &Vertex| format!("{:?}", title(topology, vertex));
    let mut text = String::from("graph topology {\n  node [shape=box];\n");
    for link in &topology.links {
        let label = link_text(link);
        let (from, to) = (quote(&link.from), quote(&link.to));
        text.push_str(&format!("  {from} -- {to} [label={label:?}];\n"));
    }
    for device in topology.device_ids().map(Vertex::Device) {
        text.push_str(&format!("  {};\n", quote(&device)));
    }
    text.push_str("}\n");
    text
}
