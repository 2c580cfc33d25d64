//! Every flag, with its default and its help.

use crate::drivers::WorkerDriver;
use crate::optimiser::Schedule;
use clap::{Args, Parser, Subcommand, ValueEnum};
use het_core::Bytes;
use std::path::PathBuf;

/// Trains small language models, without Python at run time: with LoRA, whole, or from nothing
///
/// Run by hand or as the stages of a Heterosis job: `fetch`, `dataset`, `tokenize`, `load`,
/// `finetune`, `pretrain`, `evaluate`, `export`.
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
        weights: WeightsOption,
    },
    /// Train a LoRA adapter, or all parameters with `--method full`
    Finetune(Finetune),
    /// Train a model from nothing but its `config.json` and tokenizer
    Pretrain(Pretrain),
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
    /// Time training steps on random tokens
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
pub struct WeightsOption {
    /// `smollm2-135m`, or a `.gguf` file or a directory with Hugging Face files of a Llama,
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
    pub weights: WeightsOption,
}

/// What all training has in common.
#[derive(Debug, Args)]
pub struct Training {
    /// Directory that `tokenize` wrote
    #[arg(long)]
    pub data: PathBuf,
    /// Directory for the result: a PEFT adapter, or a model as Hugging Face has it
    #[arg(long, short)]
    pub output: PathBuf,
    /// Optimiser updates
    #[arg(long, default_value_t = 60)]
    pub steps: u64,
    /// Sequences per forward pass; with `--pack`, rows of `--seq` tokens
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
    /// Forward passes per update
    #[arg(long, default_value_t = 1)]
    pub accumulate: usize,
    /// Longest sequence in tokens; longer ones are cut
    #[arg(long, default_value_t = 256)]
    pub seq: usize,
    /// Fill each row of a batch with as many whole sequences as fit; none sees another
    #[arg(long)]
    pub pack: bool,
    /// Peak learning rate [default: 3e-3 for an adapter, 1e-4 for `--method full`, 1e-3 for
    /// `pretrain`]
    #[arg(long)]
    pub lr: Option<f32>,
    /// What becomes of the learning rate after its warm-up
    #[arg(long, value_enum, default_value_t)]
    pub schedule: Schedule,
    /// Steps over which the learning rate rises to its peak [default: a tenth of all]
    #[arg(long, value_name = "STEPS")]
    pub warmup: Option<u64>,
    /// Learning rate of the last step, as a share of the peak; not for a constant schedule
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    pub lr_final: f32,
    /// Weight decay of AdamW; without effect on norms, biases, and tables of tokens and positions
    #[arg(long, default_value_t = 0.01)]
    pub weight_decay: f32,
    /// Decay of AdamW's mean of gradients
    #[arg(long, default_value_t = 0.9)]
    pub beta1: f32,
    /// Decay of AdamW's mean of squared gradients
    #[arg(long, default_value_t = 0.999)]
    pub beta2: f32,
    /// Norm that the gradient is cut to, over all of it; 0 cuts nothing
    #[arg(long, default_value_t = 1.0, value_name = "NORM")]
    pub max_grad_norm: f32,
    /// Keep no more of a layer than its input, and compute the rest again: less memory, a third
    /// more time, the same bits
    #[arg(long)]
    pub recompute: bool,
    /// Most memory that the run may take, such as `6GiB` [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<Bytes>,
    /// Seed of the values that are drawn and of the data order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Save a checkpoint every so many steps; 0 saves only on request [default: as often as the
    /// scheduler says in HET_CHECKPOINT_EVERY, or every 20 steps]
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every: Option<u64>,
    /// Held-out prompts that the model answers before and after, for the report
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub samples: usize,
    /// Directory for checkpoints [default: OUTPUT/checkpoints]
    #[arg(long, env = "HET_CHECKPOINT_DIR", value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Checkpoint to continue from
    #[arg(long, env = "HET_RESUME_FROM", value_name = "PATH")]
    pub resume: Option<PathBuf>,
    /// What products with weights compute in: `f32`, or `bf16`, which is faster where the processor
    /// has AVX512-BF16. What learns stays in f32, and frozen weights are stored in bf16
    #[arg(long, env = "HET_PRECISION", default_value = "f32")]
    pub precision: String,
    /// Driver to compute with: `auto` or `cpu`
    #[arg(long, default_value = "auto")]
    pub driver: String,
    /// Steps after the first one whose tasks, copies and waits are written to
    /// OUTPUT/timeline.json, for ui.perfetto.dev; 0 writes none
    #[arg(long, default_value_t = 10, value_name = "STEPS")]
    pub timeline_steps: u64,
    /// Compute the held-out loss every so many steps and after the last; 0 never does [default:
    /// with workers a tenth of all steps, or more where that would take 5 % of the time; else 0]
    #[arg(long, value_name = "STEPS")]
    pub validate_every: Option<u64>,
    /// Held-out sequences that this is computed of, from the first on
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub validate_sequences: usize,
    /// Format of the matrices that this is computed with, and of what they are multiplied with;
    /// `f32` computes as the training does
    #[arg(long, value_enum, default_value = "f32")]
    pub validate_precision: Number,
    /// Further processes, each of which computes a part of every batch, as large as it is fast; the
    /// cores of this one are divided among them
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub workers: usize,
    /// What these processes, or the other ranks of a gang, compute with, one after the other:
    /// `cpu`, or `vulkan` or `vulkan:N` for a device that a Vulkan driver has; the last is that of
    /// the rest
    #[arg(long, default_value = "cpu", value_delimiter = ',', value_name = "DRIVERS")]
    pub worker_driver: Vec<WorkerDriver>,
}

fn size(text: &str) -> Result<Bytes, String> {
    het_wire::quantity::size(text).ok_or_else(|| "write a size such as `6GiB`".to_owned())
}

#[derive(Debug, Args)]
pub struct Finetune {
    #[command(flatten)]
    pub training: Training,
    #[command(flatten)]
    pub weights: WeightsOption,
    /// What learns
    #[arg(long, value_enum, default_value_t)]
    pub method: Method,
    /// Rank of the adapter [default: 8]
    #[arg(long)]
    pub rank: Option<usize>,
    /// Scale of the adapter: its product counts alpha / rank times [default: 16]
    #[arg(long)]
    pub alpha: Option<f32>,
    /// Count the adapter's product alpha / √rank times (rsLoRA)
    #[arg(long)]
    pub rslora: bool,
    /// Matrices with an adapter, by the ends of their names, such as `q_proj,v_proj` [default: all
    /// of attention and MLP]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub target: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// A low-rank adapter beside frozen matrices
    #[default]
    Lora,
    /// Every parameter
    Full,
}

#[derive(Debug, Args)]
pub struct Pretrain {
    #[command(flatten)]
    pub training: Training,
    /// Directory with the model's `config.json` and `tokenizer.json`
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
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
    /// Products of bf16 weights and bf16 activations
    Bf16,
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
    pub weights: WeightsOption,
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
    pub adapter: Option<PathBuf>,
    /// Directory to write to
    #[arg(long, short)]
    pub output: PathBuf,
    #[command(flatten)]
    pub weights: WeightsOption,
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
    pub weights: WeightsOption,
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
    pub weights: WeightsOption,
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
    pub weights: WeightsOption,
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
    #[arg(long, default_value_t = 128)]
    pub seq: usize,
    /// Scored tokens at the end of each sequence
    #[arg(long, default_value_t = 48)]
    pub scored: usize,
    /// What learns
    #[arg(long, value_enum, default_value_t)]
    pub method: Method,
    /// Draw the weights of the model that `--weights` describes
    #[arg(long)]
    pub from_scratch: bool,
    #[arg(long)]
    pub recompute: bool,
    /// What products with weights compute in: `f32` or `bf16`
    #[arg(long, default_value = "f32")]
    pub precision: String,
    #[arg(long, default_value_t = 8)]
    pub rank: usize,
    #[arg(long, default_value_t = 3)]
    pub steps: u64,
    /// Also say where the time went, and how fast products are beside the fastest one
    #[arg(long)]
    pub profile: bool,
    #[arg(long, default_value = "cpu")]
    pub driver: String,
    /// Further processes, as for `finetune`
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub workers: usize,
}

#[derive(Debug, Args)]
pub struct BenchInference {
    #[command(flatten)]
    pub weights: WeightsOption,
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
