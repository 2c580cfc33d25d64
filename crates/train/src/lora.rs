//! The low-rank adapter: one flat vector of values, and where each matrix lies in it.
//!
//! Every linear layer of attention and MLP has `A [rank, in]` and `B [out, rank]`. Matrices `A`
//! that read the same input lie side by side, so one product serves them all.

use crate::config::Config;
use crate::error::{Error, IoContext, Result};
use crate::hub::{TensorFile, f32_bytes};
use crate::weights::{Layer, Part, Weights};
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value as Json, json};
use std::ops::Range;
use std::path::Path;

pub const TENSORS_FILE: &str = "adapter_model.safetensors";
pub const CONFIG_FILE: &str = "adapter_config.json";

#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    pub rank: usize,
    pub alpha: f32,
    pub values: Vec<f32>,
    layers: Vec<[Group; 4]>,
}

/// Matrices that read one input: q, k, v; o; gate, up; or down.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub inputs: usize,
    /// All `A` of the group, one below the other.
    pub a: Range<usize>,
    pub slots: Vec<Slot>,
}

/// One adapted matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    pub part: Part,
    pub outputs: usize,
    /// Its first row in the layer's joined matrix.
    pub first_row: usize,
    pub a: Range<usize>,
    pub b: Range<usize>,
}

impl Adapter {
    /// All zeros, which changes nothing.
    pub fn zeros(config: &Config, rank: usize, alpha: f32) -> Self {
        let mut next = 0;
        let layers: Vec<_> = (0..config.layers).map(|_| layout(config, rank, &mut next)).collect();
        Self { rank, alpha, values: vec![0.0; next], layers }
    }

    /// `A` uniform in ±1/√in as PEFT draws it, `B` zero.
    pub fn random(config: &Config, rank: usize, alpha: f32, seed: u64) -> Self {
        let mut adapter = Self::zeros(config, rank, alpha);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for group in adapter.layers.iter().flatten() {
            let bound = 1.0 / (group.inputs as f32).sqrt();
            for value in &mut adapter.values[group.a.clone()] {
                let unit = (random.next_u32() >> 8) as f32 / (1 << 24) as f32;
                *value = (2.0 * unit - 1.0) * bound;
            }
        }
        adapter
    }

    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// The groups of one layer: qkv, output, gate and up, down.
    pub fn groups(&self, layer: usize) -> [&Group; 4] {
        self.layers[layer].each_ref()
    }

    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// PEFT's name, shape and place of every tensor.
    pub fn tensors(&self) -> impl Iterator<Item = (String, [usize; 2], Range<usize>)> {
        self.layers.iter().enumerate().flat_map(move |(layer, groups)| {
            groups.iter().flat_map(move |group| {
                group.slots.iter().flat_map(move |slot| {
                    let name = peft_name(layer, slot.part);
                    [
                        (
                            format!("{name}.lora_A.weight"),
                            [self.rank, group.inputs],
                            slot.a.clone(),
                        ),
                        (
                            format!("{name}.lora_B.weight"),
                            [slot.outputs, self.rank],
                            slot.b.clone(),
                        ),
                    ]
                })
            })
        })
    }

    /// `merged = base + scale B A` for one layer.
    pub fn merge_layer(&self, index: usize, base: &Layer, merged: &mut Layer) {
        let [qkv, output, gate_up, down] = self.groups(index);
        self.merge_group(qkv, &base.qkv, &mut merged.qkv);
        self.merge_group(output, &base.output, &mut merged.output);
        self.merge_group(gate_up, &base.gate_up, &mut merged.gate_up);
        self.merge_group(down, &base.down, &mut merged.down);
    }

    fn merge_group(&self, group: &Group, base: &[f32], merged: &mut [f32]) {
        let inputs = group.inputs;
        merged.copy_from_slice(base);
        for slot in &group.slots {
            let a = MatRef::from_row_major_slice(&self.values[slot.a.clone()], self.rank, inputs);
            let b = &self.values[slot.b.clone()];
            let b = MatRef::from_row_major_slice(b, slot.outputs, self.rank);
            let rows = &mut merged[slot.first_row * inputs..][..slot.outputs * inputs];
            let out = MatMut::from_row_major_slice_mut(rows, slot.outputs, inputs);
            matmul(out, Accum::Add, b, a, self.scale(), Par::Seq);
        }
    }

    /// The weights with this adapter worked in.
    pub fn merged(&self, base: &Weights) -> Weights {
        let mut merged = base.clone();
        merged
            .layers
            .par_iter_mut()
            .zip(&base.layers)
            .enumerate()
            .for_each(|(index, (merged, base))| self.merge_layer(index, base, merged));
        merged
    }

    /// The tensors as PEFT stores them, ready to be written.
    pub fn to_safetensors(&self) -> Result<Vec<u8>> {
        let bytes = f32_bytes(&self.values);
        let views = self.tensors().map(|(name, shape, place)| {
            let bytes = &bytes[place.start * 4..place.end * 4];
            TensorView::new(Dtype::F32, shape.to_vec(), bytes).map(|view| (name, view))
        });
        let views = views.collect::<std::result::Result<Vec<_>, _>>();
        let written = views.and_then(|views| safetensors::serialize(views, None));
        written.map_err(|error| Error::Adapter {
            path: TENSORS_FILE.into(),
            what: format!("it cannot be written: {error}"),
        })
    }

    /// PEFT's `adapter_config.json`.
    pub fn peft_config(&self, base_model: &str) -> Json {
        json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model,
            "r": self.rank, "lora_alpha": self.alpha, "lora_dropout": 0.0, "bias": "none",
            "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
            "modules_to_save": null,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                               "down_proj"],
        })
    }

    /// Reads a directory as `finetune` or PEFT writes it, for weights of this shape.
    pub fn open(directory: &Path, config: &Config) -> Result<Self> {
        let path = directory.join(CONFIG_FILE);
        let wrong = |what: String| Error::Adapter { path: directory.to_owned(), what };
        let text = std::fs::read_to_string(&path).at("read", &path)?;
        let json: Json = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let rank = json["r"].as_u64().filter(|&rank| rank > 0);
        let rank = rank.ok_or_else(|| wrong("it has no rank `r`".into()))? as usize;
        let alpha = json["lora_alpha"].as_f64();
        let alpha = alpha.ok_or_else(|| wrong("it has no `lora_alpha`".into()))? as f32;
        let mut adapter = Self::zeros(config, rank, alpha);
        let file = TensorFile::open(&directory.join(TENSORS_FILE))?;
        let places: Vec<_> = adapter.tensors().collect();
        for (name, shape, place) in places {
            let tensor = file.get(&name, shape[0] * shape[1])?;
            adapter.values[place].copy_from_slice(&tensor);
        }
        Ok(adapter)
    }
}

fn peft_name(layer: usize, part: Part) -> String {
    let hub = crate::weights::Name::Layer(layer, part).hub_name();
    format!("base_model.model.{}", hub.trim_end_matches(".weight"))
}

fn layout(config: &Config, rank: usize, next: &mut usize) -> [Group; 4] {
    let (hidden, q, kv) = (config.hidden, config.q_width(), config.kv_width());
    let wide = config.feed_forward;
    let mut group = |inputs: usize, parts: &[(Part, usize)]| {
        let mut take = |length: usize| {
            *next += length;
            *next - length..*next
        };
        let lower: Vec<_> = parts.iter().map(|_| take(rank * inputs)).collect();
        let a = lower[0].start..lower[lower.len() - 1].end;
        let mut first_row = 0;
        let slots = parts.iter().zip(lower).map(|(&(part, outputs), a)| {
            let slot = Slot { part, outputs, first_row, a, b: take(outputs * rank) };
            first_row += outputs;
            slot
        });
        Group { inputs, a, slots: slots.collect() }
    };
    [
        group(hidden, &[(Part::Query, q), (Part::Key, kv), (Part::Value, kv)]),
        group(q, &[(Part::Output, hidden)]),
        group(hidden, &[(Part::Gate, wide), (Part::Up, wide)]),
        group(wide, &[(Part::Down, hidden)]),
    ]
}
