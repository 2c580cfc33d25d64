//! What learns: an adapter beside frozen weights, or every parameter of a model.

use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::driver::Driver;
use crate::error::{Result, bad_weights};
use crate::export;
use crate::hub::TensorFile;
use crate::lora::{self, Adapter};
use crate::names::{Kind, Site, Tensor};
use crate::optimiser::Slice;
use crate::stored::{self, Order, Stored, StoredFile};
use crate::tokenizer::Tokenizer;
use crate::weights::{Parameters, Weights, transposed};
use rayon::prelude::*;
use serde_json::{Map, Value as Json};
use std::path::{Path, PathBuf};

const PARAMETERS_FILE: &str = "model.safetensors";

#[derive(Debug)]
pub enum Trainable<'a> {
    Adapter(LowRank),
    Model(Box<Model<'a>>),
}

/// An adapter; the driver has the weights that it belongs to.
#[derive(Debug)]
pub struct LowRank {
    pub adapter: Adapter,
    gradient: Vec<f32>,
    base_model: String,
}

/// A model whose parameters the driver has.
#[derive(Debug)]
pub struct Model<'a> {
    architecture: Architecture,
    gradient: Parameters,
    configuration: Map<String, Json>,
    tokenizer: &'a Tokenizer,
}

impl<'a> Trainable<'a> {
    pub fn adapter(adapter: Adapter, base_model: String) -> Self {
        let gradient = vec![0.0; adapter.values.len()];
        Self::Adapter(LowRank { adapter, gradient, base_model })
    }

    /// All parameters; `configuration` and `tokenizer` go with them into what is written.
    pub fn model(
        architecture: Architecture,
        configuration: Map<String, Json>,
        tokenizer: &'a Tokenizer,
    ) -> Self {
        let gradient = Parameters::zeros(&architecture);
        Self::Model(Box::new(Model { architecture, gradient, configuration, tokenizer }))
    }

    /// How many values learn.
    pub fn count(&mut self) -> usize {
        match self {
            Self::Adapter(low_rank) => low_rank.adapter.values.len(),
            Self::Model(model) => {
                model.gradient.buffers_mut().iter().map(|(_, _, values)| values.len()).sum()
            }
        }
    }

    /// Makes the driver compute with the present values, and the gradient zero.
    pub fn begin_step(&mut self, driver: &mut dyn Driver) -> Result<()> {
        match self {
            Self::Adapter(low_rank) => {
                low_rank.gradient.fill(0.0);
                driver.use_adapter(&low_rank.adapter)
            }
            Self::Model(model) => {
                let buffers = model.gradient.buffers_mut();
                buffers.into_par_iter().for_each(|(_, _, values)| values.fill(0.0));
                Ok(())
            }
        }
    }

    /// The loss summed over the scored rows; adds its gradient to what the step has.
    pub fn add_gradients(&mut self, driver: &mut dyn Driver, batch: &Batch) -> Result<f64> {
        match self {
            Self::Adapter(low_rank) => {
                driver.gradients(&low_rank.adapter, batch, &mut low_rank.gradient)
            }
            Self::Model(model) => driver.full_gradients(batch, &mut model.gradient),
        }
    }

    /// All values and their gradients, always in the same order.
    pub fn slices<'s>(&'s mut self, driver: &'s mut dyn Driver) -> Vec<Slice<'s>> {
        match self {
            Self::Adapter(LowRank { adapter, gradient, .. }) => {
                vec![Slice { values: &mut adapter.values, gradient, decays: true }]
            }
            Self::Model(model) => {
                let values = driver.parameters().buffers_mut().into_iter();
                let gradients = model.gradient.buffers_mut();
                let slices =
                    values.zip(gradients).map(|((site, kind, values), (_, _, gradient))| Slice {
                        values,
                        gradient,
                        decays: decays(site, kind),
                    });
                slices.collect()
            }
        }
    }

    /// Writes the values into the directory of a checkpoint.
    pub fn save(&self, driver: &mut dyn Driver, directory: &Path) -> Result<()> {
        let model = match self {
            Self::Adapter(LowRank { adapter, base_model, .. }) => {
                return adapter.write(directory, base_model);
            }
            Self::Model(model) => model,
        };
        let family = model.architecture.family;
        let tensors = driver.parameters().tensors(&model.architecture).into_iter();
        let tensors = tensors.map(|(Tensor { name, mut shape }, values)| {
            let order = match name.is_transposed(family) {
                true => Order::Transposed,
                false => Order::AsTheyLie,
            };
            if order == Order::Transposed {
                shape.reverse();
            }
            (name.hub_name(family), Stored { shape, values, order })
        });
        stored::write(&directory.join(PARAMETERS_FILE), &tensors.collect::<Vec<_>>())
    }

    /// Reads what [`Trainable::save`] wrote.
    pub fn load(&mut self, driver: &mut dyn Driver, directory: &Path) -> Result<()> {
        match self {
            Self::Adapter(low_rank) => {
                let adapter = &mut low_rank.adapter;
                let tensors = TensorFile::open(&directory.join(lora::TENSORS_FILE))?;
                for (name, shape, place) in adapter.tensors().collect::<Vec<_>>() {
                    adapter.values[place].copy_from_slice(&tensors.get(&name, &shape)?);
                }
                Ok(())
            }
            Self::Model(model) => {
                let architecture = &model.architecture;
                let path = directory.join(PARAMETERS_FILE);
                // The earlier values make room first.
                *driver.parameters() = Parameters::default();
                *driver.parameters() = Parameters::read(architecture, |tensor| {
                    let mut values = vec![0.0; tensor.values()];
                    let family = architecture.family;
                    let mut file = StoredFile::open(&path)?;
                    file.read(&tensor.name.hub_name(family), &mut values)?;
                    if tensor.name.is_transposed(family) {
                        values = transposed(&values, tensor.shape[0]);
                    }
                    Ok(values)
                })?;
                Ok(())
            }
        }
    }

    /// Writes the result: the files of a PEFT adapter, or of a model as Hugging Face has them.
    pub fn finish(self, driver: &mut dyn Driver, output: &Path) -> Result<PathBuf> {
        match self {
            Self::Adapter(LowRank { adapter, base_model, .. }) => {
                adapter.write(output, &base_model)?;
                Ok(output.to_owned())
            }
            Self::Model(model) => {
                let Model { architecture, gradient, configuration, tokenizer } = *model;
                drop(gradient);
                let parameters = std::mem::take(driver.parameters());
                let configuration = Some(configuration);
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

/// Matrices of layers and of the head decay. Norms and biases do not, as is customary; nor do
/// tables of tokens and positions, a head that is tied to one included: most of their rows have no
/// gradient in a step, and would only shrink.
fn decays(site: Site, kind: Kind) -> bool {
    let is_matrix = match site {
        Site::Head => true,
        Site::Layer(_, part) => part.is_matrix(),
        Site::Embedding | Site::Positions | Site::Norm => false,
    };
    is_matrix && kind == Kind::Weight
}
