//! `het fabric`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::Form;

#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// Play published flows, and say how far our completion times are from theirs.
    Simulate(SimulateArgs),
    /// Plan paths that no two flows collide on, beside what hashing would choose.
    Paths(PathsArgs),
    /// Propose thresholds of marking and pausing for a mix of traffic.
    Ecn(EcnArgs),
    /// Tell collective libraries which card each rank sends through.
    Ranks(RanksArgs),
}

#[derive(Debug, ClapArgs)]
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

#[derive(Debug, ClapArgs)]
pub struct SimulateArgs {
    /// Flows with their published completion times (CSV).
    #[arg(long, value_name = "CSV")]
    pub flows: PathBuf,
    /// Draw our completion times beside the published ones.
    #[arg(long, value_name = "SVG")]
    pub plot: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
pub struct PathsArgs {
    #[arg(long, value_enum, default_value_t = FabricKind::SpineLeaf)]
    pub fabric: FabricKind,
    #[arg(long, default_value_t = 1)]
    pub pods: u32,
    /// Leaf switches of a pod, or groups of nodes that share the leaves of their rails.
    #[arg(long, default_value_t = 2)]
    pub leaves: u32,
    #[arg(long, default_value_t = 8)]
    pub nics_per_leaf: u32,
    /// Spine switches of a pod.
    #[arg(long, default_value_t = 8)]
    pub spines: u32,
    /// NICs of a node, where the fabric is by rails.
    #[arg(long, default_value_t = 8)]
    pub rails: u32,
    /// Gb/s of a NIC.
    #[arg(long, default_value_t = 400.0)]
    pub link: f64,
    /// What the NICs of a leaf could send over what its uplinks carry.
    #[arg(long, default_value_t = 1.0)]
    pub oversubscription: f64,
    #[arg(long, value_enum, default_value_t = TrafficWord::Ring)]
    pub traffic: TrafficWord,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FabricKind {
    SpineLeaf,
    /// NICs of the same place in their nodes share leaves.
    Rail,
    /// Every NIC has a port in each of two planes.
    DualPlane,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrafficWord {
    /// Every NIC to the same place below the next leaf: data parallel over nodes.
    Ring,
    /// The NICs of the first leaf to those of the second.
    Leaf,
    /// Every NIC to the one half of the fabric away.
    Halves,
}

#[derive(Debug, ClapArgs)]
pub struct EcnArgs {
    /// Long flows that share a port at the same time.
    #[arg(long, default_value_t = 8)]
    pub flows: u32,
    /// Gb/s of the port.
    #[arg(long, default_value_t = 400.0)]
    pub link: f64,
    /// Round trip without queues, in microseconds.
    #[arg(long, default_value_t = 8.0)]
    pub rtt_us: f64,
    /// Bytes of a packet with its headers.
    #[arg(long, default_value_t = 4_200.0)]
    pub packet_bytes: f64,
    /// MB of the switch's buffer that the port may use.
    #[arg(long, default_value_t = 16.0)]
    pub buffer_mb: f64,
    /// Part of the flows that end within one round trip.
    #[arg(long, default_value_t = 0.5)]
    pub short_share: f64,
    /// Draw queue and rates over time.
    #[arg(long, value_name = "SVG")]
    pub plot: Option<PathBuf>,
    /// Write the thresholds as SONiC's `config_db.json`.
    #[arg(long, value_name = "JSON")]
    pub sonic: Option<PathBuf>,
    /// Ports of the switch, for `--sonic`; may be given several times.
    #[arg(long, default_value = "Ethernet0")]
    pub port: Vec<String>,
    /// Queue and priority of the lossless traffic.
    #[arg(long, default_value_t = 3)]
    pub queue: u8,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}
