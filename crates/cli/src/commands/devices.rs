//! `het devices`.

use std::env;

use anstream::eprintln;
use clap::{Args, Subcommand};
use het_core::{Bytes, Topology};
use het_server::this_machine;
use het_wire::api::{DeviceList, DeviceRow};
use serde_json::{Value, json};

use crate::client::{Client, Place, client, escaped};
use crate::fail::{Fail, code};
use crate::local::home;
use crate::output::{Column, Form, ListArgs, Shown, all, list};

const COLUMNS: &[Column] = &[
    Column("NAME", "name", Shown::Always),
    Column("KIND", "kind", Shown::Always),
    Column("CLASS", "class", Shown::Always),
    Column("MODEL", "model", Shown::Always),
    Column("UNITS", "units", Shown::Always),
    Column("MEMORY", "memory", Shown::Always),
    Column("DRIVERS", "drivers", Shown::Always),
    Column("STATE", "state", Shown::Always),
    Column("BUSY_PCT", "busy_pct", Shown::Wide),
    Column("PACE_PCT", "pace_pct", Shown::Wide),
    Column("SLOW_CAUSE", "slow_cause", Shown::Wide),
    Column("OCCUPANT", "occupant", Shown::Wide),
    Column("CLOCK_PCT", "clock_pct", Shown::Wide),
    Column("MEMORY_USED_BYTES", "memory_used_bytes", Shown::Wide),
    Column("NODE", "node", Shown::Wide),
    Column("PEAK_GFLOPS", "peak_gflops", Shown::Wide),
    Column("SOFTWARE", "software", Shown::Wide),
];

/// Of devices as a server has them.
const SERVED_COLUMNS: &[Column] = &[
    Column("NAME", "name", Shown::Always),
    Column("CLASS", "class", Shown::Always),
    Column("UNITS", "units", Shown::Always),
    Column("HELD", "held", Shown::Always),
    Column("STATE", "state", Shown::Always),
    Column("BUSY_PCT", "busy_pct", Shown::Always),
    Column("PACE_PCT", "pace_pct", Shown::Wide),
    Column("SLOW_CAUSE", "slow_cause", Shown::Wide),
    Column("OCCUPANT", "occupant", Shown::Always),
    Column("CLOCK_PCT", "clock_pct", Shown::Wide),
    Column("MEMORY_USED_BYTES", "memory_used_bytes", Shown::Wide),
];

/// What a server knows of its devices that cannot be discovered.
const LOAD: [&str; 6] =
    ["busy_pct", "pace_pct", "slow_cause", "occupant", "clock_pct", "memory_used_bytes"];

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DevicesArgs {
    #[command(subcommand)]
    pub command: Option<DevicesCommand>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Subcommand)]
pub enum DevicesCommand {
    /// Let nothing start there any more; what saves goes elsewhere, the rest may end there.
    Drain(DeviceNames),
    /// Take it into service again, also after it has failed.
    Undrain(DeviceNames),
}

#[derive(Debug, Args)]
pub struct DeviceNames {
    /// As `het devices` lists them.
    #[arg(required = true)]
    pub devices: Vec<String>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn devices(args: &DevicesArgs) -> Result<u8, Fail> {
    match &args.command {
        None if is_elsewhere() => show_served(args.list.output),
        None => show(args.list.output),
        Some(DevicesCommand::Drain(names)) => serve(names, "drain"),
        Some(DevicesCommand::Undrain(names)) => serve(names, "undrain"),
    }
}

/// Takes devices out of the server's service, or back.
fn serve(names: &DeviceNames, operation: &str) -> Result<u8, Fail> {
    let mut client = client()?;
    Ok(all(&names.devices, ("DeviceList", SERVED_COLUMNS), names.output, |name| {
        let path = format!("/api/v1/devices/{}/{operation}", escaped(name));
        Ok(vec![client.post::<DeviceRow>(&path, &Value::Null)?])
    }))
}

/// A server across the network is named: its devices are meant, as they are for `drain`.
fn is_elsewhere() -> bool {
    env::var("HET_SERVER").is_ok_and(|url| !url.is_empty())
}

fn show_served(form: Form) -> Result<u8, Fail> {
    let served: DeviceList = client()?.get("/api/v1/devices")?;
    let rows = served.items.iter().filter_map(|row| serde_json::to_value(row).ok());
    list("DeviceList", &rows.collect::<Vec<_>>(), SERVED_COLUMNS, form);
    Ok(code::OK)
}

fn show(form: Form) -> Result<u8, Fail> {
    let machine = this_machine();
    let mut rows = items(&machine.topology);
    let served = served();
    let same = |(row, served): (&Value, &DeviceRow)| row["class"] == served.class;
    if !served.is_empty() && (served.len() != rows.len() || !rows.iter().zip(&served).all(same)) {
        // It has shares of devices, or remembers some that are gone.
        return show_served(form);
    }
    for (row, served) in rows.iter_mut().zip(served) {
        row["state"] = served.state.word().into();
        let served = serde_json::to_value(served).unwrap_or_default();
        for name in LOAD {
            row[name] = served[name].clone();
        }
    }
    list("DeviceList", &rows, COLUMNS, form);
    for finding in &machine.discovery.diagnostics {
        eprintln!("! {finding}");
        if let Some(hint) = finding.hint() {
            eprintln!("  hint: {hint}");
        }
    }
    Ok(code::OK)
}

/// In the order of this machine's devices; nothing where no server of it runs.
fn served() -> Vec<DeviceRow> {
    let own = home().and_then(|home| Client::connect(Place::Socket(home.socket())));
    let Ok(Some(mut own)) = own else { return Vec::new() };
    let list = own.get::<DeviceList>("/api/v1/devices");
    list.map(|list| list.items).unwrap_or_default()
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
            "memory": memory.map(|memory| memory.to_string()),
            "memory_bytes": memory.map(|bytes| bytes.0),
            "drivers": device.drivers.iter().map(|driver| driver.as_str()).collect::<Vec<_>>(),
            "visible_id": device.visible_id.as_str(),
            "peak_gflops": class.peak_gflops,
            "software": class.software,
        })
    });
    rows.collect()
}
