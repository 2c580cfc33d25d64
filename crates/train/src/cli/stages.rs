//! The commands that a job's stages run beside training: each reports its progress to the
//! scheduler.

use super::arguments::{Dataset, Evaluate, Tokenize, WeightsOption};
use super::{precision, show, warn};
use crate::cpu::model::Model;
use crate::error::{IoContext, Result};
use crate::evaluate::{self, Sample};
use crate::lora::Adapter;
use crate::progress::{Progress, Totals};
use crate::split::{self, Split};
use crate::steps::Executor;
use crate::tokenizer::Tokenizer;
use crate::weights::{Source, Weights};
use crate::{dataset, drivers, tokens};
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

pub fn dataset(arguments: &Dataset) -> Result<ExitCode> {
    let mut progress = Progress::from_environment();
    let Dataset { seed, train, heldout, output } = arguments;
    dataset::write(output, *train, *heldout, *seed)?;
    progress.send(&json!({"step": 1, "total": 1, "samples": train + heldout}));
    progress.done();
    show(&format!("{train} training and {heldout} held-out pairs in {}", output.display()))?;
    Ok(ExitCode::SUCCESS)
}

pub fn tokenize(arguments: &Tokenize) -> Result<ExitCode> {
    let mut progress = Progress::from_environment();
    let tokenizer = Tokenizer::of(&Source::open(&arguments.weights.weights)?)?;
    let mut totals = Totals::default();
    let (input, output) = (&arguments.input, &arguments.output);
    let manifest = totals.time(|| tokens::tokenize(input, output, &tokenizer, arguments.date))?;
    totals.samples = (manifest.train_sequences + manifest.held_out_sequences) as u64;
    totals.tokens = (manifest.train_tokens + manifest.held_out_tokens) as u64;
    progress.send(&totals.report(1, 1));
    if !manifest.unused.is_empty() {
        let text = format!("nothing was read from `{}`", manifest.unused.join("`, `"));
        warn(&text);
        progress.message(&text);
    }
    progress.done();
    show(&format!(
        "{} training sequences ({} tokens) and {} held-out ones ({} tokens) in {}",
        manifest.train_sequences,
        manifest.train_tokens,
        manifest.held_out_sequences,
        manifest.held_out_tokens,
        output.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub fn load(arguments: &WeightsOption) -> Result<ExitCode> {
    let mut progress = Progress::from_environment();
    let start = Instant::now();
    let source = Source::open(&arguments.weights)?;
    let weights = source.weights()?;
    let tokenizer = Tokenizer::of(&source)?;
    let text = format!(
        "{}: {} parameters in {} layers, {}, vocabulary {}, SHA-256 {}",
        listed(&source.files()),
        weights.count(),
        weights.architecture.layers.len(),
        source.formats()?,
        tokenizer.vocabulary(),
        source.sha256()?
    );
    progress.message(&text);
    progress.send(&json!({"step": 1, "total": 1}));
    progress.done();
    show(&text)?;
    warn(&format!("loaded in {:.1} s", start.elapsed().as_secs_f64()));
    Ok(ExitCode::SUCCESS)
}

/// The only file, or the first one and how many more there are.
fn listed(files: &[PathBuf]) -> String {
    match files {
        [] => String::new(),
        [only] => only.display().to_string(),
        [first, rest @ ..] => format!("{} and {} more", first.display(), rest.len()),
    }
}

pub fn evaluate(arguments: &Evaluate) -> Result<ExitCode> {
    let mut progress = Progress::from_environment();
    let name = drivers::chosen(&arguments.driver)?;
    let source = Source::open(&arguments.weights.weights)?;
    let tokenizer = Tokenizer::of(&source)?;
    let data = Split::open(&arguments.data, split::HELD_OUT, &tokenizer)?;
    let mut weights = source.weights()?;
    drop(source);
    if let Some(path) = &arguments.adapter {
        let adapter = Adapter::open(path, &weights.architecture)?;
        weights.parameters = adapter.merged(&weights.parameters);
    }
    precision::apply(&arguments.precision, &mut weights)?;
    let weights = Arc::new(weights);
    let mut executor = Executor::frozen(&weights)?;
    progress.driver(&name, executor.detail());
    let label = arguments.label.as_deref();
    let mut results = Map::new();
    // Whoever stopped listening still gets the file.
    let mut shown = Ok(());
    let mut record = |progress: &mut Progress, name: &str, value: f64| {
        let name = label.map_or_else(|| name.to_owned(), |label| format!("{name}_{label}"));
        progress.send(&json!({"result": {name.as_str(): value}}));
        if shown.is_ok() {
            shown = show(&format!("{name} {value:.4}"));
        }
        results.insert(name, json!(value));
    };
    let mut totals = Totals::default();
    let loss = evaluate::loss(&mut executor, &data, arguments.seq, &mut totals, &mut progress)?;
    record(&mut progress, "loss", loss);
    drop(executor);
    let mut samples = Vec::new();
    if arguments.generate > 0 {
        samples = generated(arguments, &weights, &tokenizer, &mut totals)?;
        record(&mut progress, "valid", evaluate::share(&samples, |sample| sample.valid));
        record(&mut progress, "exact", evaluate::share(&samples, |sample| sample.exact));
    }
    write_results(arguments, results, &samples, data.count())?;
    progress.send(&totals.report(1, 1));
    progress.done();
    shown?;
    Ok(ExitCode::SUCCESS)
}

fn generated(
    arguments: &Evaluate,
    weights: &Weights,
    tokenizer: &Tokenizer,
    totals: &mut Totals,
) -> Result<Vec<Sample>> {
    let mut examples = dataset::read(&arguments.data.join(dataset::HELD_OUT_FILE))?;
    examples.truncate(arguments.generate);
    let mut model = Model::new(weights);
    totals.time(|| evaluate::samples(&mut model, tokenizer, &examples, arguments.new_max))
}

fn write_results(
    arguments: &Evaluate,
    results: Map<String, Json>,
    samples: &[Sample],
    sequences: usize,
) -> Result<()> {
    let Some(path) = &arguments.output else { return Ok(()) };
    let json = json!({"results": results, "sequences": sequences, "samples": samples});
    let text = serde_json::to_string_pretty(&json).expect("a JSON value serialises");
    std::fs::write(path, text).at("write", path)
}
