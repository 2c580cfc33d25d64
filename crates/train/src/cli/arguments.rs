//! Every flag, with its default and its help.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Fine-tunes small language models with LoRA, without Python at run time
///
/// Run by hand or as the stages of a Heterosis job: `fetch`, `dataset`, `tokenize`, `load`,
/// `finetune`, `evaluate`, `export`.
#[derive(Debug, Parser)]
#[command(name = "het-train", version, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Download a model once and keep it in the cache
    Fetch {
        /// The model to fetch: `smollm2-135m`
        model: String,
    },
    /// Generate requests in words and the job files they ask for
    Dataset(Dataset),
    /// Turn conversations, pairs or plain text into tokens
    Tokenize(Tokenize),
    /// Fetch if needed, verify and report the weights, so that a later stage starts warm
    Load {
        #[command(flatten)]
        weights: Weights,
    },
    /// Train a LoRA adapter
    Finetune(Finetune),
    /// Measure held-out loss and the share of generated job files that are accepted
    Evaluate(Evaluate),
    /// Write the adapter's model for other programs: merged, as a PEFT adapter, or as a GGUF
    Export(Export),
    /// Write a job file for one request
    Generate(Generate),
    /// Tokens and mean next-token loss of every line of a file
    Score(Score),
    /// Show which drivers there are and which of them start here
    Drivers {
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Start one driver and report; `drivers` runs it in a process of its own
    #[command(hide = true)]
    Probe { driver: String },
    /// Write a tiny random model with a tokenizer, for tests
    #[command(hide = true)]
    Tiny {
        #[arg(long)]
        output: PathBuf,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Time LoRA steps on random tokens
    #[command(hide = true)]
    BenchStep(BenchStep),
    /// Time and judge inference in every precision that this processor has instructions for
    #[command(hide = true)]
    BenchInference(BenchInference),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}

#[derive(Debug, Args)]
pub struct Weights {
    /// `smollm2-135m`, a Llama `.gguf` file, or a directory with Hugging Face files of a Llama,
    /// Mistral, Qwen 2 or 3, Gemma 2 or 3, GPT-2 or SmolLM
    #[arg(long, default_value = crate::fetch::MODEL, value_name = "NAME|FILE|DIR")]
    pub weights: String,
}

#[derive(Debug, Args)]
pub struct Dataset {
    /// Seed of the generator: the same seed writes the same bytes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of training pairs
    #[arg(long, default_value_t = 1000)]
    pub train: usize,
    /// Number of held-out pairs, whose sentence patterns never occur in training
    #[arg(long, default_value_t = 64)]
    pub heldout: usize,
    /// Directory to write `train.jsonl` and `heldout.jsonl` to
    #[arg(long, short)]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct Tokenize {
    /// JSONL, Parquet or text file, or a directory with `train*` and `heldout*` files, such as
    /// `dataset` writes
    #[arg(long, short)]
    pub input: PathBuf,
    /// Directory to write the tokens to
    #[arg(long, short)]
    pub output: PathBuf,
    /// The day that a chat template writes as today's, such as 2026-01-31
    #[arg(long)]
    pub date: Option<jiff::civil::Date>,
    #[command(flatten)]
    pub weights: Weights,
}

#[derive(Debug, Args)]
pub struct Finetune {
    /// Directory that `tokenize` wrote
    #[arg(long)]
    pub data: PathBuf,
    /// Directory for the PEFT adapter
    #[arg(long, short)]
    pub output: PathBuf,
    #[command(flatten)]
    pub weights: Weights,
    /// Optimiser updates
    #[arg(long, default_value_t = 60)]
    pub steps: u64,
    /// Sequences per forward pass
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
    /// Forward passes per update
    #[arg(long, default_value_t = 1)]
    pub accumulate: usize,
    /// Longest sequence in tokens; longer ones are cut
    #[arg(long, default_value_t = 256)]
    pub seq: usize,
    /// Peak learning rate
    #[arg(long, default_value_t = 3e-3)]
    pub lr: f32,
    /// Rank of the adapter
    #[arg(long, default_value_t = 8)]
    pub rank: usize,
    /// Scale of the adapter: its product counts alpha / rank times
    #[arg(long, default_value_t = 16.0)]
    pub alpha: f32,
    /// Seed of the initial adapter and of the data order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Save a checkpoint every so many steps; 0 saves only on request [default: as often as the
    /// scheduler says in HET_CHECKPOINT_EVERY, or every 20 steps]
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every: Option<u64>,
    /// Directory for checkpoints [default: OUTPUT/checkpoints]
    #[arg(long, env = "HET_CHECKPOINT_DIR", value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Checkpoint to continue from
    #[arg(long, env = "HET_RESUME_FROM", value_name = "PATH")]
    pub resume: Option<PathBuf>,
    /// Format of the arithmetic: `f32` is all that there is for training
    #[arg(long, env = "HET_PRECISION", default_value = "f32")]
    pub precision: String,
    /// Driver to compute with: `auto` or `cpu`
    #[arg(long, default_value = "auto")]
    pub driver: String,
}

#[derive(Debug, Args)]
pub struct Precision {
    /// Format of the matrices and of what they are multiplied with
    #[arg(long, env = "HET_PRECISION", value_enum, default_value = "f32")]
    pub precision: Number,
    /// Instructions of integer products; `auto` takes the fastest that this processor has
    #[arg(long, value_enum, default_value = "auto", value_name = "SET")]
    pub instructions: InstructionSet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Number {
    #[value(alias = "fp32")]
    F32,
    /// Products of int8 weights and int8 activations
    Int8,
    /// Products of int4 weights and int8 activations; embedding and head are int8
    Int4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InstructionSet {
    Auto,
    Portable,
    Avx2,
    Avx512Vnni,
}

#[derive(Debug, Args)]
pub struct Evaluate {
    /// Directory that `tokenize` wrote
    #[arg(long)]
    pub data: PathBuf,
    /// Adapter to apply
    #[arg(long)]
    pub adapter: Option<PathBuf>,
    #[command(flatten)]
    pub weights: Weights,
    #[command(flatten)]
    pub precision: Precision,
    /// Suffix of the result names: `loss_LABEL`, `valid_LABEL`, `exact_LABEL`
    #[arg(long)]
    pub label: Option<String>,
    /// Generate job files for this many held-out requests and count the accepted ones
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub generate: usize,
    /// Longest generated file in tokens
    #[arg(long, default_value_t = 96, value_name = "TOKENS")]
    pub new_max: usize,
    /// Longest sequence in tokens; longer ones are cut
    #[arg(long, default_value_t = 256)]
    pub seq: usize,
    /// Also write the results and the generated files to this JSON file
    #[arg(long, short)]
    pub output: Option<PathBuf>,
    /// Driver for the loss: `auto` or `cpu`; generation runs on the cpu
    #[arg(long, default_value = "auto")]
    pub driver: String,
}

#[derive(Debug, Args)]
pub struct Export {
    /// Adapter to merge into the weights
    #[arg(long)]
    pub adapter: PathBuf,
    /// Directory to write to
    #[arg(long, short)]
    pub output: PathBuf,
    #[command(flatten)]
    pub weights: Weights,
    /// Write merged Hugging Face files: model.safetensors, config.json and those of the tokenizer
    #[arg(long)]
    pub merged: bool,
    /// Write a PEFT adapter with the files of the tokenizer
    #[arg(long)]
    pub peft: bool,
    /// The model that the PEFT adapter names as its base [default: the weights' own directory, or
    /// the name on the hub of a model that `fetch` knows]
    #[arg(long, value_name = "NAME|DIR", requires = "peft")]
    pub base: Option<String>,
    /// Write a GGUF with matrices of this format
    #[arg(long, value_enum)]
    pub gguf: Option<GgufFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GgufFormat {
    /// Four bits and scales; eight in the token table and where rows are no multiple of 256
    #[value(name = "q4_k")]
    Q4K,
    #[value(name = "q8_0")]
    Q8_0,
    F16,
    F32,
}

#[derive(Debug, Args)]
pub struct Generate {
    /// The request in words
    #[arg(long, short)]
    pub prompt: String,
    /// Adapter to apply
    #[arg(long)]
    pub adapter: Option<PathBuf>,
    #[command(flatten)]
    pub weights: Weights,
    /// Continue the prompt as plain text, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Most tokens to write
    #[arg(long, default_value_t = 96, value_name = "TOKENS")]
    pub new_max: usize,
    #[command(flatten)]
    pub precision: Precision,
}

#[derive(Debug, Args)]
pub struct Score {
    /// Lines of `{"text": …}`, with the tokens that the tokenizer itself puts around a text, or of
    /// `{"tokens": […]}`
    #[arg(long, short, value_name = "FILE")]
    pub input: PathBuf,
    /// Adapter to apply
    #[arg(long)]
    pub adapter: Option<PathBuf>,
    #[command(flatten)]
    pub weights: Weights,
    #[command(flatten)]
    pub precision: Precision,
    /// Driver to compute with: `auto` or `cpu`
    #[arg(long, default_value = "auto")]
    pub driver: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

#[derive(Debug, Args)]
pub struct BenchStep {
    #[command(flatten)]
    pub weights: Weights,
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
    #[arg(long, default_value_t = 128)]
    pub seq: usize,
    /// Scored tokens at the end of each sequence
    #[arg(long, default_value_t = 48)]
    pub scored: usize,
    #[arg(long, default_value_t = 8)]
    pub rank: usize,
    #[arg(long, default_value_t = 3)]
    pub steps: u64,
    #[arg(long, default_value = "cpu")]
    pub driver: String,
}

#[derive(Debug, Args)]
pub struct BenchInference {
    #[command(flatten)]
    pub weights: Weights,
    /// Text whose next tokens are predicted
    #[arg(long, short)]
    pub input: PathBuf,
    /// Tokens of the text that are used
    #[arg(long, default_value_t = 4096)]
    pub tokens: usize,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 256)]
    pub seq: usize,
    /// Tokens to generate after the first 16 of the text
    #[arg(long, default_value_t = 128, value_name = "TOKENS")]
    pub new_max: usize,
    /// Rounds, each of which times every precision once
    #[arg(long, default_value_t = 5)]
    pub repeats: usize,
}
