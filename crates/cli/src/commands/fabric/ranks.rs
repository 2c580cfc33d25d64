//! `het fabric ranks`: which card each rank sends through, and the variables and files that tell
//! collective libraries.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anstream::eprintln;
use clap::Args;
use het_core::{NodeId, Topology};
use het_wire::ranks::{Server, hccl, nccl, rank_table};
use het_wire::topology::{Card, DeviceCard, device_cards};
use serde_json::{Value, json};

use super::write;
use crate::cluster::cluster;
use crate::fail::{Fail, code};
use crate::output::{Column, Form, Shown, list};

const COLUMNS: &[Column] = &[
    Column("RANK", "rank", Shown::Always),
    Column("NODE", "node", Shown::Always),
    Column("DEVICE", "device", Shown::Always),
    Column("CARD", "card", Shown::Always),
    Column("DISTANCE", "distance", Shown::Always),
    Column("LEAF", "leaf", Shown::Always),
];

/// Queues of a port.
const QUEUES: u8 = 8;

#[derive(Debug, Args)]
pub struct RanksArgs {
    /// A cluster file, `this`, or templates: `hgx-h100-8x4+rail`.
    #[arg(long, default_value = "this")]
    pub cluster: String,
    /// What drivers call the cards, numbered behind: `mlx5_`. Without it NCCL chooses among all
    /// cards of a node.
    #[arg(long, value_name = "PREFIX")]
    pub cards: Option<String>,
    /// Write a file of NCCL's or HCCL's variables for each rank into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub env: Option<PathBuf>,
    /// Write HCCL's rank table; needs `--addresses`.
    #[arg(long, value_name = "JSON")]
    pub rank_table: Option<PathBuf>,
    /// Rows `node,device,address`; a node's own address has no device.
    #[arg(long, value_name = "CSV")]
    pub addresses: Option<PathBuf>,
    /// Queue of the lossless traffic, as for `het fabric ecn`.
    #[arg(long, default_value_t = 3)]
    pub queue: u8,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn ranks(args: &RanksArgs) -> Result<u8, Fail> {
    if args.queue >= QUEUES {
        let text = format!("`--queue {}` is none that a port has", args.queue);
        return Err(Fail::new(code::USAGE, text).hint("from 0 to 7"));
    }
    let topology = cluster(&args.cluster)?.topology;
    let mut devices = device_cards(&topology);
    if let Some(prefix) = &args.cards {
        let cards = devices.iter_mut().filter_map(|device| device.card.as_mut());
        cards.for_each(|card| rename(card, prefix));
    }
    if devices.is_empty() {
        return Err(Fail::new(code::USAGE, "there is no GPU or NPU to place a rank on")
            .hint("name a cluster that has some, for example `--cluster hgx-h100-8x2+rail`"));
    }
    let mut cards: BTreeMap<NodeId, Vec<Card>> = BTreeMap::new();
    for device in &devices {
        let of_node = cards.entry(topology.device(device.device).node).or_default();
        of_node.extend(device.card.clone());
    }
    let row = |(rank, of): (usize, &DeviceCard)| {
        row(&topology, &cards[&topology.device(of.device).node], rank as u32, of, args.queue)
    };
    let rows: Vec<Value> = devices.iter().enumerate().map(row).collect();
    if let Some(folder) = &args.env {
        variables(folder, &rows)?;
    }
    if let Some(path) = &args.rank_table {
        let table = table(args, &topology, &devices)?;
        write(path, &format!("{table:#}\n"))?;
        eprintln!("{} written; HCCL reads it where RANK_TABLE_FILE says", path.display());
    }
    list("RankList", &rows, COLUMNS, args.output);
    Ok(code::OK)
}

/// What topologies call cards; no driver does.
const NUMBERED: &str = "nic";

fn rename(card: &mut Card, prefix: &str) {
    if let Some(number) = card.name.strip_prefix(NUMBERED) {
        card.name = format!("{prefix}{number}");
    }
}

/// A rank, on a node with these cards.
fn row(topology: &Topology, cards: &[Card], rank: u32, of: &DeviceCard, queue: u8) -> Value {
    let device = topology.device(of.device);
    let class = topology.class_of(of.device);
    let env = match class.vendor.as_str() {
        "Huawei" => hccl(rank, queue),
        _ if cards.is_empty() => BTreeMap::new(),
        _ => {
            let mut variables = nccl(cards, queue);
            if cards.iter().any(|card| card.name.starts_with(NUMBERED)) {
                variables.remove("NCCL_IB_HCA");
            }
            variables
        }
    };
    let card = of.card.as_ref();
    json!({
        "rank": rank,
        "local_rank": of.local,
        "node": topology.node(device.node).name.as_str(),
        "device": device.name.as_str(),
        "card": card.map(|card| &card.name),
        "distance": card.map(|card| card.distance.word()),
        "leaf": card.and_then(|card| card.leaf.as_deref()),
        "env": env,
    })
}

/// A file of variables for each rank.
fn variables(folder: &Path, rows: &[Value]) -> Result<(), Fail> {
    fs::create_dir_all(folder).map_err(|error| Fail::file(folder, error))?;
    for row in rows {
        let of_rank = row["env"].as_object().into_iter().flatten();
        let lines =
            of_rank.map(|(name, value)| format!("{name}={}\n", value.as_str().unwrap_or_default()));
        write(&folder.join(format!("rank-{}.env", row["rank"])), &lines.collect::<String>())?;
    }
    eprintln!("{} files of variables written below {}", rows.len(), folder.display());
    let named = |row: &Value| row["card"].as_str().is_some_and(|card| card.starts_with(NUMBERED));
    if rows.iter().any(named) {
        eprintln!("! cards are numbered here: say what drivers call them, `--cards mlx5_`");
    }
    Ok(())
}

/// Addresses by node and device; a node's own has no device.
type Addresses = BTreeMap<(String, String), String>;

fn table(args: &RanksArgs, topology: &Topology, devices: &[DeviceCard]) -> Result<Value, Fail> {
    let path = args.addresses.as_ref().ok_or_else(|| {
        Fail::new(code::USAGE, "a rank table needs the addresses of nodes and of their devices")
            .hint("`--addresses CSV` with rows `node,device,address`; a node's own has no device")
    })?;
    let addresses = addresses(path)?;
    let find = |node: &str, device: &str| {
        addresses.get(&(node.to_owned(), device.to_owned())).cloned().ok_or_else(|| {
            let text = format!("`{}` has no address of `{node},{device}`", path.display());
            Fail::new(code::USAGE, text).hint(format!("add a row `{node},{device},ADDRESS`"))
        })
    };
    let mut servers: BTreeMap<NodeId, Server> = BTreeMap::new();
    for (rank, of) in devices.iter().enumerate() {
        let device = topology.device(of.device);
        let node = topology.node(device.node).name.as_str();
        let server = match servers.entry(device.node) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Server { address: find(node, "")?, devices: Vec::new() })
            }
        };
        let address = find(node, device.name.as_str())?;
        server.devices.push((of.local, address, rank as u32));
    }
    Ok(rank_table(&servers.into_values().collect::<Vec<_>>()))
}

fn addresses(path: &Path) -> Result<Addresses, Fail> {
    let text = fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
    let mut addresses = Addresses::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line == "node,device,address" {
            continue;
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [node, device, address] = fields[..] else {
            let text = format!("{}:{}: `{line}` is no row", path.display(), number + 1);
            return Err(Fail::new(code::USAGE, text).hint("write `node,device,address`"));
        };
        if address.parse::<std::net::IpAddr>().is_err() {
            let text = format!("{}:{}: `{address}` is no address", path.display(), number + 1);
            return Err(Fail::new(code::USAGE, text).hint("write for example `192.168.1.8`"));
        }
        addresses.insert((node.to_owned(), device.to_owned()), address.to_owned());
    }
    Ok(addresses)
}
