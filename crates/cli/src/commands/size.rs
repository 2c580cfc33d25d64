//! `het size`: how a large job is cut, what it needs and how long it takes; and how near such
//! estimates come to what was measured.

mod job_file;
mod labels;
mod pools;
mod render;
mod request;
mod validate;

use clap::{Args, Subcommand, ValueEnum};
use het_parallel::{Problem, Request, Rule, fit, search};

use self::validate::ValidateArgs;
use crate::fail::{Fail, code};

pub use pools::usual;
pub use request::model;

#[derive(Debug, Args)]
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
#[derive(Debug, Args)]
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

pub fn size(args: &SizeArgs) -> Result<u8, Fail> {
    if let Some(SizeCommand::Validate(args)) = &args.command {
        return validate::validate(args);
    }
    request::consistent(args)?;
    let request = request::request(args)?;
    if let Some(rule) = request::rule(args, &request)? {
        return by_rule(args, &request, &rule);
    }
    if request::tries_several_ways(args) {
        let fits = fit(&request).map_err(|problem| unanswerable(&problem))?;
        return render::fits(&request, &fits, render::form(args)?);
    }
    let ranking = search(&request).map_err(|problem| unanswerable(&problem))?;
    match args.pick {
        Some(number) => job_file::write(args, &request, &ranking, number),
        None => render::ranking(&request, &ranking, render::form(args)?),
    }
}

/// The rule of thumb with a given utilisation, and why our own estimate says something else.
fn by_rule(args: &SizeArgs, request: &Request, rule: &Rule) -> Result<u8, Fail> {
    let plan = search(request).ok().and_then(|ranking| ranking.candidates.into_iter().next());
    let against = plan.as_ref().and_then(|plan| rule.against(&request.model, plan));
    render::rule(request, rule, against.as_ref(), render::form(args)?)
}

fn unanswerable(problem: &Problem) -> Fail {
    let text = problem.to_string();
    match text.split_once("; hint: ") {
        Some((message, hint)) => Fail::new(code::USAGE, message).hint(hint),
        None => Fail::new(code::USAGE, text),
    }
}
