//! `het topo`: how devices are linked, of this machine, a cluster file or a template, as a tree, a
//! table, a picture, a Graphviz graph, or JSON for programs.

mod graph;
mod layout;
mod picture;
mod svg;
mod table;
mod tree;

use anstream::println;
use clap::{Args, ValueEnum};
use het_core::Vertex;
use het_wire::API_VERSION;
use het_wire::record::write_topology;
use het_wire::topology::Cluster;
use serde_json::json;

use crate::cluster::cluster;
use crate::fail::{Fail, code};

#[derive(Debug, Args)]
pub struct TopoArgs {
    /// A cluster file, a template such as `hgx-h100-8x4+rail` (`TEMPLATE[xN][+FABRIC]`), or `this`
    /// machine.
    #[arg(default_value = "this")]
    pub what: String,
    #[arg(short, long, value_enum, default_value_t = TopoForm::Tree)]
    pub output: TopoForm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopoForm {
    Tree,
    /// Nodes, figures of the device classes, links by kind.
    Table,
    /// A picture.
    Svg,
    Dot,
    Json,
}

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
