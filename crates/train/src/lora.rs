//! The low-rank adapter: one flat vector of values, and where each matrix lies in it.
//!
//! Every linear layer of attention and MLP has `A [rank, in]` and `B [out, rank]`. Matrices `A`
//! that read the same input lie side by side, so one product serves them all.

use crate::architecture::{Architecture, Family};
use crate::blocks::linear::{LowRank, Update};
use crate::error::{Error, IoContext, Result};
use crate::hub::{TensorFile, f32_bytes};
use crate::names::{Kind, Name, Part, Piece, Site, pieces};
use crate::weights::{Layer, Parameters};
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
    family: Family,
    layers: Vec<[Group; 4]>,
}

/// Matrices that read one input: q, k, v; o; gate, up; or down.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub inputs: usize,
    pub part: Part,
    /// All `A` of the group, one below the other.
    pub a: Range<usize>,
    pub slots: Vec<Slot>,
}

/// One adapted matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    pub piece: Piece,
    pub outputs: usize,
    /// Its first row in the layer's joined matrix.
    pub first_row: usize,
    pub a: Range<usize>,
    pub b: Range<usize>,
}

impl Adapter {
    /// All zeros, which changes nothing.
    pub fn zeros(architecture: &Architecture, rank: usize, alpha: f32) -> Self {
        let mut next = 0;
        let count = architecture.layers.len();
        let layers = (0..count).map(|_| layout(architecture, rank, &mut next)).collect();
        Self { rank, alpha, values: vec![0.0; next], family: architecture.family, layers }
    }

    /// `A` uniform in ±1/√in as PEFT draws it, `B` zero.
    pub fn random(architecture: &Architecture, rank: usize, alpha: f32, seed: u64) -> Self {
        let mut adapter = Self::zeros(architecture, rank, alpha);
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

    /// The groups of one layer as updates of its matrices: those of `qkv`, `output`, `up` and
    /// `down`. `gradient` is laid out as the values.
    pub fn low_rank<'a>(&'a self, layer: usize, gradient: &'a mut [f32]) -> [LowRank<'a>; 4] {
        let mut rest = gradient;
        let mut next = 0;
        let mut take = |range: &Range<usize>| {
            let (_, after) = std::mem::take(&mut rest).split_at_mut(range.start - next);
            let (own, after) = after.split_at_mut(range.len());
            (rest, next) = (after, range.end);
            own
        };
        self.groups(layer).map(|group| LowRank {
            rank: self.rank,
            scale: self.scale(),
            a: &self.values[group.a.clone()],
            a_gradient: take(&group.a),
            updates: group
                .slots
                .iter()
                .map(|slot| Update {
                    first_row: slot.first_row,
                    b: &self.values[slot.b.clone()],
                    b_gradient: take(&slot.b),
                })
                .collect(),
        })
    }

    /// PEFT's name, shape and place of every tensor.
    pub fn tensors(&self) -> impl Iterator<Item = (String, [usize; 2], Range<usize>)> {
        self.layers.iter().enumerate().flat_map(move |(layer, groups)| {
            groups.iter().flat_map(move |group| {
                group.slots.iter().flat_map(move |slot| {
                    let name = self.peft_name(layer, group.part, slot.piece);
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
        for group in self.groups(index) {
            let base = &base.part(group.part).weight;
            self.merge_group(group, base, &mut merged.part_mut(group.part).weight);
        }
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
    pub fn merged(&self, base: &Parameters) -> Parameters {
        let mut merged = base.clone();
        let layers = merged.layers.par_iter_mut().zip(&base.layers).enumerate();
        layers.for_each(|(index, (merged, base))| self.merge_layer(index, base, merged));
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
            "fan_in_fan_out": self.family == Family::Gpt2, "inference_mode": true,
            "init_lora_weights": true, "modules_to_save": null,
            "target_modules": self.target_modules(),
        })
    }

    /// The last words of the adapted matrices' names.
    fn target_modules(&self) -> Vec<String> {
        let groups = self.layers.first().into_iter().flatten();
        let names = groups.flat_map(|group| {
            group.slots.iter().map(|slot| self.peft_name(0, group.part, slot.piece))
        });
        let mut words: Vec<String> = Vec::new();
        for name in names {
            let word = name.rsplit('.').next().unwrap_or(&name).to_owned();
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words
    }

    fn peft_name(&self, layer: usize, part: Part, piece: Piece) -> String {
        let name = Name { site: Site::Layer(layer, part), piece, kind: Kind::Weight };
        format!("base_model.model.{}", name.hub_module(self.family))
    }

    /// Reads a directory as `finetune` or PEFT writes it, for weights of this shape.
    pub fn open(directory: &Path, architecture: &Architecture) -> Result<Self> {
        let path = directory.join(CONFIG_FILE);
        let wrong = |what: String| Error::Adapter { path: directory.to_owned(), what };
        let text = std::fs::read_to_string(&path).at("read", &path)?;
        let json: Json = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if let Some(key) = unknown(&json) {
            return Err(wrong(format!("`{key}` is {}, which is not known here", json[key])));
        }
        let rank = json["r"].as_u64().filter(|&rank| rank > 0);
        let rank = rank.ok_or_else(|| wrong("it has no rank `r`".into()))? as usize;
        let alpha = json["lora_alpha"].as_f64();
        let alpha = alpha.ok_or_else(|| wrong("it has no `lora_alpha`".into()))? as f32;
        let mut adapter = Self::zeros(architecture, rank, alpha);
        let file = TensorFile::open(&directory.join(TENSORS_FILE))?;
        let places: Vec<_> = adapter.tensors().collect();
        for (name, shape, place) in places {
            let tensor = file.get(&name, &shape)?;
            adapter.values[place].copy_from_slice(&tensor);
        }
        Ok(adapter)
    }
}

/// The first key by which PEFT would compute something else than [`Adapter::merged`] does.
fn unknown(json: &Json) -> Option<&'static str> {
    const OFF: [&str; 11] = [
        "use_dora",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
        "layer_replication",
        "lora_bias",
        "target_parameters",
        "trainable_token_indices",
    ];
    let is_off = |value: &Json| match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(items) => items.is_empty(),
        _ => false,
    };
    let says = |key: &str, expected: &str| json[key].as_str().is_none_or(|text| text == expected);
    if !says("peft_type", "LORA") {
        return Some("peft_type");
    }
    if !says("bias", "none") {
        return Some("bias");
    }
    OFF.into_iter().find(|&key| !is_off(&json[key]))
}

fn layout(architecture: &Architecture, rank: usize, next: &mut usize) -> [Group; 4] {
    let mut group = |part: Part, inputs: usize| {
        let pieces = pieces(architecture, part);
        let mut take = |length: usize| {
            *next += length;
            *next - length..*next
        };
        let lower: Vec<_> = pieces.iter().map(|_| take(rank * inputs)).collect();
        let a = lower[0].start..lower[lower.len() - 1].end;
        let mut first_row = 0;
        let slots = pieces.into_iter().zip(lower).map(|((piece, outputs), a)| {
            let slot = Slot { piece, outputs, first_row, a, b: take(outputs * rank) };
            first_row += outputs;
            slot
        });
        Group { inputs, part, a, slots: slots.collect() }
    };
    [
        group(Part::Qkv, architecture.hidden),
        group(Part::Output, architecture.attention.q_width()),
        group(Part::Up, architecture.hidden),
        group(Part::Down, architecture.mlp.feed_forward),
    ]
}
