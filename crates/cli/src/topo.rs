//! `het topo`: how devices are linked, of this machine, a cluster file or a template, as a tree, a
//! table, a picture, a Graphviz graph, or JSON for programs.

mod graph;
mod layout;
mod picture;
mod svg;
mod table;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;

use anstream::println;
use het_core::{Topology, Vertex};
use het_server::this_machine;
use het_wire::API_VERSION;
use het_wire::record::write_topology;
use het_wire::topology::{Cluster, from_word, parse};
use serde_json::json;

use crate::args::{TopoArgs, TopoForm};
use crate::fail::{Fail, code};

/// Stands for the machine that the command runs on.
const THIS: &str = "this";

pub fn topo(args: &TopoArgs) -> Result<u8, Fail> {
    let cluster = cluster(&args.what)?;
    match args.output {
        TopoForm::Tree => println!("{}", tree::text(&cluster.topology).trim_end()),
        TopoForm::Table => table::print(&cluster),
        TopoForm::Svg => println!("{}", svg::text(&picture::picture(&cluster)).trim_end()),
        TopoForm::Dot => println!("{}", dot(&cluster).trim_end()),
        TopoForm::Json => {
            let shape = serde_json::to_value(write_topology(&cluster.topology));
            let shape = shape.unwrap_or_default();
            let document =
                json!({ "apiVersion": API_VERSION, "kind": "Topology", "topology": shape });
            println!("{document:#}");
        }
    }
    Ok(code::OK)
}

/// A file, a word, or this machine.
fn cluster(what: &str) -> Result<Cluster, Fail> {
    if what == THIS {
        let topology = Topology::clone(&this_machine().topology);
        let name = topology.nodes.first().map(|node| node.name.to_string()).unwrap_or_default();
        return Ok(Cluster { name, topology, own: BTreeMap::new() });
    }
    let path = Path::new(what);
    let is_file = path.is_file()
        || path.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|it| end == *it));
    if !is_file {
        return from_word(what)
            .map_err(|error| Fail::new(code::USAGE, error.to_string()).hint(error.hint()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
    parse(&text, what)
        .map_err(|problems| Fail::Report { code: code::USAGE, text: problems.to_string() })
}

fn dot(cluster: &Cluster) -> String {
    let topology = &cluster.topology;
    let name = |vertex: &Vertex| format!("{:?}", graph::full_name(topology, vertex));
    let mut text = String::from("graph topology {\n  node [shape=box];\n");
    for link in &topology.links {
        let label = graph::wire_text(&link.kind, link.bandwidth, link.count);
        let (from, to) = (name(&link.from), name(&link.to));
        text.push_str(&format!("  {from} -- {to} [label={label:?}];\n"));
    }
    for device in topology.device_ids() {
        text.push_str(&format!("  {};\n", name(&device.into())));
    }
    text.push_str("}\n");
    text
}
