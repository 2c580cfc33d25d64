//! The words typed and shown: arguments in, sentences and exit codes out.
//!
//! The only place that prints: results on standard output, all else on standard error.

mod arguments;
mod drivers;
mod inference_bench;
mod precision;
mod stages;
mod step_bench;
mod tools;
mod training;

use crate::error::{Error, Result};
use arguments::{Arguments, Command};
use clap::Parser;
use serde_json::{Value as Json, json};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Runs the program with the process's own arguments.
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Fetch { model } => tools::fetch(&model),
        Command::Dataset(arguments) => stages::dataset(&arguments),
        Command::Tokenize(arguments) => stages::tokenize(&arguments),
        Command::Load { weights } => stages::load(&weights),
        Command::Finetune(arguments) => training::finetune(&arguments),
        Command::Pretrain(arguments) => training::pretrain(&arguments),
        Command::Evaluate(arguments) => stages::evaluate(&arguments),
        Command::Export(arguments) => tools::export(&arguments),
        Command::Generate(arguments) => tools::generate(&arguments),
        Command::Score(arguments) => tools::score(&arguments),
        Command::Drivers { output } => drivers::list(output),
        Command::Probe { driver } => drivers::probe(&driver),
        Command::Tiny { output, seed } => tools::tiny(&output, seed),
        Command::BenchStep(arguments) => step_bench::run(&arguments),
        Command::BenchInference(arguments) => inference_bench::run(&arguments),
    };
    match result {
        Ok(code) => code,
        // Whoever read the output has enough of it, as `head` does.
        Err(Error::Output { source }) if source.kind() == ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

fn report(error: &Error) {
    warn(&format!("error: {error}"));
    if let Some(hint) = error.hint() {
        warn(&format!("hint: {hint}"));
    }
}

fn show(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").map_err(|source| Error::Output { source })
}

fn show_list(kind: &str, items: &[Json]) -> Result<()> {
    let list = json!({"apiVersion": "heterosis.dev/v1alpha1", "kind": kind, "items": items});
    show(&list.to_string())
}

/// Nobody is left to be told of messages that cannot be written.
fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
