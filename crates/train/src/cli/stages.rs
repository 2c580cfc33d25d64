//! The commands that a job's stages run: each reports its progress to the scheduler.

use super::arguments::{Dataset, Evaluate, Finetune, Tokenize, Weights};
use super::{precision, show, warn};
use crate::architecture::Architecture;
use crate::batch::Sequence;
use crate::cpu::model::Model;
use crate::digest::sha256_file;
use crate::error::{IoContext, Result};
use crate::evaluate::{self, Sample};
use crate::finetune::{Outcome, Places, Settings};
use crate::lora::Adapter;
use crate::notice::{EXIT_SAVED, Notice};
use crate::progress::{Progress, Totals};
use crate::saves::Saves;
use crate::split::Split;
use crate::tokenizer::Tokenizer;
use crate::weights::{Source, Weights as Loaded};
use crate::{dataset, drivers, finetune, tokens, warm};
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

pub fn load(arguments: &Weights) -> Result<ExitCode> {
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

/// Says what the configuration asks for in training and is not done.
fn report_dropout(architecture: &Architecture, progress: &mut Progress) {
    if !architecture.dropout.is_empty() {
        let text = format!("trained without dropout ({})", architecture.dropout.join(", "));
        warn(&text);
        progress.message(&text);
    }
}

pub fn finetune(arguments: &Finetune) -> Result<ExitCode> {
    precision::check_training(&arguments.precision)?;
    let notice = Notice::from_environment()?;
    let mut progress = Progress::from_environment();
    // A driver that is not there is told of before anything is read.
    let early = if warm::is_early() { None } else { Some(drivers::chosen(&arguments.driver)?) };
    let source = Source::open(&arguments.weights.weights)?;
    let architecture = source.architecture()?;
    architecture.check_length(arguments.seq)?;
    report_dropout(&architecture, &mut progress);
    let tokenizer = Tokenizer::of(&source)?;
    let data = Split::open(&arguments.data, tokens::TRAIN, &tokenizer)?;
    let places = Places {
        output: arguments.output.clone(),
        checkpoints: arguments
            .checkpoint_dir
            .clone()
            .unwrap_or_else(|| arguments.output.join("checkpoints")),
        saves: Saves::told(arguments.checkpoint_every),
        resume: arguments.resume.clone().filter(|path| !path.as_os_str().is_empty()),
        base_model: source.base_name(&arguments.weights.weights),
        identity: identity(arguments, &source)?,
    };
    let weights = Arc::new(source.weights()?);
    drop(source);
    let name = match early {
        Some(name) => name,
        None => match granted_driver(&arguments.driver, &notice)? {
            Some(name) => name,
            None => return Ok(ExitCode::from(EXIT_SAVED)),
        },
    };
    let mut driver = drivers::start(&name, &weights)?;
    progress.driver(&name, &driver.detail());
    warn(&format!("driver `{name}`: {}", driver.detail()));
    let settings = settings(arguments);
    let outcome = finetune::run(
        &settings,
        &places,
        &weights.architecture,
        &data,
        driver.as_mut(),
        &notice,
        &mut progress,
        &mut warn,
    )?;
    match outcome {
        Outcome::Saved { path, reason } => {
            warn(&format!("stopped ({reason}) with `{}` saved", path.display()));
            warn("hint: run the same command with `--resume` and that path to continue");
            Ok(ExitCode::from(EXIT_SAVED))
        }
        Outcome::Finished { last_loss, totals } => {
            progress.done();
            let seconds = totals.useful_ns as f64 / 1e9;
            let last = match last_loss.is_finite() {
                true => format!("last loss {last_loss:.4}"),
                false => "no step was left to do".to_owned(),
            };
            show(&format!(
                "adapter in {}: {} steps, {} tokens in {seconds:.1} s ({:.0} tokens/s), {last}",
                places.output.display(),
                settings.steps,
                totals.tokens,
                totals.tokens as f64 / seconds
            ))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What a resumed run must have in common with the run that it continues, beside its settings.
fn identity(arguments: &Finetune, source: &Source) -> Result<Json> {
    let mut identity = json!({
        "weights": source.sha256()?,
        "data": sha256_file(&arguments.data.join(tokens::TRAIN))?,
    });
    // The same matrices compute something else by another configuration.
    if let Some(configuration) = source.configuration_sha256()? {
        identity["configuration"] = json!(configuration);
    }
    Ok(identity)
}

fn settings(arguments: &Finetune) -> Settings {
    Settings {
        steps: arguments.steps,
        batch: arguments.batch,
        accumulate: arguments.accumulate,
        seq: arguments.seq,
        lr: arguments.lr,
        rank: arguments.rank,
        alpha: arguments.alpha,
        seed: arguments.seed,
    }
}

/// The driver of the devices that this process was started before, once they are its own; `None`
/// where it is asked to stop before.
fn granted_driver(wanted: &str, notice: &Notice) -> Result<Option<String>> {
    let Some(devices) = warm::wait(notice)? else { return Ok(None) };
    let name = drivers::resolve(wanted, devices.variable("HET_DEVICES").as_deref())?;
    if name != drivers::CPU {
        devices.begin_anew()?;
    }
    Ok(Some(name))
}

pub fn evaluate(arguments: &Evaluate) -> Result<ExitCode> {
    let mut progress = Progress::from_environment();
    let name = drivers::chosen(&arguments.driver)?;
    let source = Source::open(&arguments.weights.weights)?;
    let tokenizer = Tokenizer::of(&source)?;
    let data = tokens::read(&arguments.data, tokens::HELD_OUT, &tokenizer)?;
    let mut weights = source.weights()?;
    drop(source);
    if let Some(path) = &arguments.adapter {
        let adapter = Adapter::open(path, &weights.architecture)?;
        weights.parameters = adapter.merged(&weights.parameters);
    }
    precision::apply(&arguments.precision, &mut weights)?;
    let weights = Arc::new(weights);
    let mut driver = drivers::start(&name, &weights)?;
    progress.driver(&name, &driver.detail());
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
    let loss = evaluate::loss(driver.as_mut(), &data, arguments.seq, &mut totals, &mut progress)?;
    record(&mut progress, "loss", loss);
    drop(driver);
    let mut samples = Vec::new();
    if arguments.generate > 0 {
        samples = generated(arguments, &weights, &tokenizer, &mut totals)?;
        record(&mut progress, "valid", evaluate::share(&samples, |sample| sample.valid));
        record(&mut progress, "exact", evaluate::share(&samples, |sample| sample.exact));
    }
    write_results(arguments, results, &samples, &data)?;
    progress.send(&totals.report(1, 1));
    progress.done();
    shown?;
    Ok(ExitCode::SUCCESS)
}

fn generated(
    arguments: &Evaluate,
    weights: &Loaded,
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
    data: &[Sequence],
) -> Result<()> {
    let Some(path) = &arguments.output else { return Ok(()) };
    let json = json!({"results": results, "sequences": data.len(), "samples": samples});
    let text = serde_json::to_string_pretty(&json).expect("a JSON value serialises");
    std::fs::write(path, text).at("write", path)
}
