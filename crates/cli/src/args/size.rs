//! `het size` and `het profile`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::Form;

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SizeArgs {
    #[command(subcommand)]
    pub command: Option<SizeCommand>,
    /// A known model, for example `gpt3-175b` or `llama3-8b`.
    #[arg(long)]
    pub model: Option<String>,
    /// Devices: `NxCLASS`, several joined by `+`, or a cluster as for `sim run`.
    #[arg(long, value_name = "CLUSTER")]
    pub cluster: Option<String>,
    /// This machine's devices; so it is where no cluster is named.
    #[arg(long)]
    pub this: bool,
    /// Tokens to train on, for example `300e9`: says how many days.
    #[arg(long)]
    pub tokens: Option<String>,
    /// Tokens of a sample; what the model was trained on at first if absent.
    #[arg(long)]
    pub sequence: Option<u32>,
    /// Samples of a step, or the least and the most of them.
    #[arg(long, default_value = "256..2048")]
    pub batch: String,
    #[arg(long, value_enum, default_value_t = PrecisionWord::Bf16)]
    pub precision: PrecisionWord,
    /// Which weights learn; `any` tries all ways and says which fit.
    #[arg(long, value_enum)]
    pub tuning: Option<TuningWord>,
    /// Of adapters.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub rank: u32,
    #[command(flatten)]
    pub pins: PinArgs,
    /// Bytes that one pass over the dataset reads, for example `4TB`; with `--tokens`.
    #[arg(long, value_name = "SIZE", requires = "tokens")]
    pub dataset: Option<String>,
    /// Passes over the dataset.
    #[arg(long, default_value_t = 1.0)]
    pub passes: f64,
    /// What the storage system gives all readers together.
    #[arg(long, value_name = "RATE", default_value = "40GB/s")]
    pub storage: String,
    /// Local NVMe of a node that may keep the dataset.
    #[arg(long, value_name = "SIZE", default_value = "0B")]
    pub cache: String,
    /// How samples reach device memory.
    #[arg(long, value_enum, default_value_t = RouteWord::Host)]
    pub route: RouteWord,
    /// Answer by the rule of 6 operations a weight and token, at this part of the peak.
    #[arg(long)]
    pub mfu: Option<f64>,
    /// Leave out what `het profile import` measured.
    #[arg(long)]
    pub uncalibrated: bool,
    /// How many ways are listed.
    #[arg(long, default_value_t = 10)]
    pub keep: usize,
    /// Write this one of them as a job file, which `-o` names.
    #[arg(long, value_name = "N")]
    pub pick: Option<usize>,
    /// `table`, `wide`, `json`, `jsonl`, `yaml`, `name`, `csv`; with `--pick` a file.
    #[arg(short, long, default_value = "table", value_name = "FORM|FILE")]
    pub output: String,
}

/// Counts that are given; the others are searched.
#[derive(Debug, ClapArgs)]
pub struct PinArgs {
    /// Replicas.
    #[arg(long, value_name = "N")]
    pub dp: Option<u32>,
    /// Ways that layers are cut.
    #[arg(long, value_name = "N")]
    pub tp: Option<u32>,
    /// Stages.
    #[arg(long, value_name = "N")]
    pub pp: Option<u32>,
    /// Ways that sequences are cut.
    #[arg(long, value_name = "N")]
    pub cp: Option<u32>,
    /// Ranks that share experts.
    #[arg(long, value_name = "N")]
    pub ep: Option<u32>,
    /// Samples that a replica takes at once.
    #[arg(long, value_name = "N")]
    pub mb: Option<u32>,
    /// Pieces of a stage.
    #[arg(long, value_name = "N")]
    pub vp: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RouteWord {
    /// Through the memory of the host.
    Host,
    /// Straight (GPUDirect Storage).
    Direct,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionWord {
    Fp32,
    Fp16,
    Bf16,
    Fp8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TuningWord {
    Full,
    Lora,
    Qlora,
    /// Each of them, with states of 32 and 8 bits, on the device and offloaded.
    Any,
}

#[derive(Debug, Subcommand)]
pub enum SizeCommand {
    /// Hold the estimates against measured step times.
    Validate(ValidateArgs),
}

#[derive(Debug, ClapArgs)]
pub struct ValidateArgs {
    /// Measured training runs (CSV); may be given several times.
    #[arg(long, required = true, value_name = "CSV")]
    pub data: Vec<PathBuf>,
    /// Draw predicted beside measured step times.
    #[arg(long, value_name = "SVG")]
    pub plot: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Fit a class's constants to measured steps: CSV rows as `size validate` takes them, PyTorch
    /// profiles (`*.pt.trace.json[.gz]`), or progress of `het-train` (JSON Lines).
    ///
    /// Replaces what was measured of the class before: name old and new files together to add.
    Import(ProfileImportArgs),
    /// What was measured, and how far to trust it.
    List(ProfileListArgs),
    /// Go by what is known of the class in general again.
    Forget { class: String },
}

#[derive(Debug, ClapArgs)]
pub struct ProfileImportArgs {
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Device class of the catalogue, where the file does not name its device.
    #[arg(long)]
    pub class: Option<String>,
    #[command(flatten)]
    pub ran: RanArgs,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

/// What ran while a profile was made; CSV rows say it themselves.
#[derive(Debug, ClapArgs)]
pub struct RanArgs {
    /// A known model, for example `llama3-8b`.
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens of a sample; what the model was trained on at first if absent.
    #[arg(long)]
    pub sequence: Option<u32>,
    /// Samples of a step, over all devices.
    #[arg(long)]
    pub batch: Option<u32>,
    #[arg(long, default_value_t = 1)]
    pub microbatch: u32,
    #[arg(long, default_value_t = 1)]
    pub tensor: u32,
    #[arg(long, default_value_t = 1)]
    pub pipeline: u32,
    #[arg(long, default_value_t = 1)]
    pub context: u32,
    /// Replicas; what the profile's number of ranks leaves if absent, else one.
    #[arg(long)]
    pub data: Option<u32>,
    #[arg(long, value_enum, default_value_t = PrecisionWord::Bf16)]
    pub precision: PrecisionWord,
    /// What the backward pass computes again.
    #[arg(long, value_enum, default_value_t = RecomputeWord::None)]
    pub recompute: RecomputeWord,
    /// What replicas share out among them: 0 nothing, 1 states, 2 gradients too, 3 weights too.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub zero: u8,
    /// `full`, `lora` or `qlora`.
    #[arg(long, value_enum, default_value_t = TuningWord::Full)]
    pub tuning: TuningWord,
    /// Of adapters.
    #[arg(long, default_value_t = 16)]
    pub rank: u32,
}

#[derive(Debug, ClapArgs)]
pub struct ProfileListArgs {
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecomputeWord {
    None,
    Selective,
    Full,
}
