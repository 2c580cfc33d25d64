//! What learns, as files: an adapter beside frozen weights, or every parameter of a model.

use crate::error::{Result, bad_weights};
use crate::export;
use crate::hub::TensorFile;
use crate::lora;
use crate::names::Tensor;
use crate::steps::Executor;
use crate::stored::{self, Stored, StoredFile, Values};
use crate::tokenizer::Tokenizer;
use crate::weights::{Parameters, Weights, transposed};
use het_blocks::linear::Numbers;
use serde_json::{Map, Value as Json};
use std::path::{Path, PathBuf};

const PARAMETERS_FILE: &str = "model.safetensors";

#[derive(Debug)]
pub enum Trainable<'a> {
    Adapter {
        base_model: String,
    },
    /// All parameters; `configuration` and `tokenizer` go with them into what is written.
    Model {
        configuration: Map<String, Json>,
        tokenizer: &'a Tokenizer,
    },
}

impl Trainable<'_> {
    /// Writes the values into the directory of a checkpoint.
    pub fn save(&self, executor: &mut Executor, directory: &Path) -> Result<()> {
        if let Self::Adapter { base_model } = self {
            return executor.adapter()?.write(directory, base_model);
        }
        let architecture = executor.architecture().clone();
        executor.with_parameters(|parameters| {
            let tensors = parameters.tensors(&architecture).into_iter();
            let tensors = tensors.map(|(Tensor { name, mut shape }, values)| {
                let values = match name.is_transposed(architecture.family) {
                    true => {
                        shape.reverse();
                        Values::OfTranspose(values)
                    }
                    false => Values::Parts(vec![values]),
                };
                (name.hub_name(architecture.family), Stored { shape, values })
            });
            stored::write(&directory.join(PARAMETERS_FILE), &tensors.collect::<Vec<_>>())
        })
    }

    /// Reads what [`Trainable::save`] wrote.
    pub fn load(&self, executor: &mut Executor, directory: &Path) -> Result<()> {
        match self {
            Self::Adapter { .. } => {
                let mut adapter = executor.adapter()?;
                let tensors = TensorFile::open(&directory.join(lora::TENSORS_FILE))?;
                for (name, shape, place) in adapter.tensors().collect::<Vec<_>>() {
                    adapter.values[place].copy_from_slice(&tensors.get(&name, &shape)?);
                }
                executor.set_adapter(&adapter)
            }
            Self::Model { .. } => {
                let architecture = executor.architecture().clone();
                let path = directory.join(PARAMETERS_FILE);
                // The earlier values make room first.
                drop(executor.take_parameters()?);
                executor.give_parameters(Parameters::read(&architecture, Numbers::F32, |tensor| {
                    let mut values = vec![0.0; tensor.values()];
                    let family = architecture.family;
                    let mut file = StoredFile::open(&path)?;
                    file.read(&tensor.name.hub_name(family), &mut values)?;
                    if tensor.name.is_transposed(family) {
                        values = transposed(&values, tensor.shape[0]);
                    }
                    Ok(values)
                })?)
            }
        }
    }

    /// Writes the result: the files of a PEFT adapter, or of a model as Hugging Face has them.
    pub fn finish(self, executor: &mut Executor, output: &Path) -> Result<PathBuf> {
        match self {
            Self::Adapter { base_model } => {
                executor.adapter()?.write(output, &base_model)?;
                Ok(output.to_owned())
            }
            Self::Model { configuration, tokenizer } => {
                let parameters = executor.take_parameters()?;
                let (architecture, configuration) =
                    (executor.architecture().clone(), Some(configuration));
                let weights = Weights { architecture, parameters, configuration };
                export::hub(&weights, tokenizer, output)
            }
        }
    }
}

/// Refuses weights of which nothing could be written in the end: those of a GGUF with rope divisors
/// have no `config.json`.
pub fn check_configuration(weights: &Weights, path: &Path) -> Result<()> {
    if weights.configuration.is_some() {
        return Ok(());
    }
    let what = "they came with rope divisors, which no `config.json` says, so that the result of \
                full fine-tuning could not be written; an adapter can be trained";
    Err(bad_weights(path, what))
}
