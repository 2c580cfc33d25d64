//! `het devices`.

use anstream::eprintln;
use het_core::{Bytes, Topology};
use het_server::this_machine;
use het_wire::quantity;
use serde_json::{Value, json};

use crate::args::ListArgs;
use crate::fail::{Fail, code};
use crate::output::{Column, Shown, list};

const COLUMNS: &[Column] = &[
    Column("NAME", "name", Shown::Always),
    Column("KIND", "kind", Shown::Always),
    Column("CLASS", "class", Shown::Always),
    Column("MODEL", "model", Shown::Always),
    Column("UNITS", "units", Shown::Always),
    Column("MEMORY", "memory", Shown::Always),
    Column("DRIVERS", "drivers", Shown::Always),
    Column("NODE", "node", Shown::Wide),
    Column("PEAK_GFLOPS", "peak_gflops", Shown::Wide),
    Column("SOFTWARE", "software", Shown::Wide),
];

pub fn devices(args: &ListArgs) -> Result<u8, Fail> {
    let machine = this_machine();
    list("DeviceList", &items(&machine.topology), COLUMNS, args.output);
    for finding in &machine.discovery.findings {
        eprintln!("! {finding}");
        if let Some(hint) = finding.hint() {
            eprintln!("  hint: {hint}");
        }
    }
    Ok(code::OK)
}

fn items(topology: &Topology) -> Vec<Value> {
    let rows = topology.device_ids().map(|id| {
        let (device, class) = (topology.device(id), topology.class_of(id));
        let memory = match topology.memory_of(id) {
            Bytes::ZERO => None,
            bytes => Some(bytes),
        };
        json!({
            "name": device.name.as_str(),
            "node": topology.node(device.node).name.as_str(),
            "kind": class.kind.as_str(),
            "class": class.id.as_str(),
            "model": class.title.as_str(),
            "vendor": class.vendor.as_str(),
            "units": device.capacity.whole_units(),
            "memory": memory.map(quantity::size_text),
            "memory_bytes": memory.map(|bytes| bytes.0),
            "drivers": device.drivers.iter().map(|driver| driver.as_str()).collect::<Vec<_>>(),
            "visible_id": device.visible_id.as_str(),
            "peak_gflops": class.peak_gflops,
            "software": class.software,
        })
    });
    rows.collect()
}
