//! The low-rank adapter: one flat vector of values, and where each matrix lies in it.
//!
//! Every linear layer of attention and MLP has `A [rank, in]` and `B [out, rank]`. Matrices `A`
//! that read the same input lie side by side, so one product serves them all.

use crate::architecture::{Architecture, Family};
use crate::blocks::linear::{LowRank, Update};
use crate::configuration::keys::{Keys, Read};
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
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
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
        let (mut adapter, length) = Self::without_values(architecture, rank, alpha);
        adapter.values = vec![0.0; length];
        adapter
    }

    /// Where each matrix will lie, and how many values there will be.
    fn without_values(architecture: &Architecture, rank: usize, alpha: f32) -> (Self, usize) {
        let mut next = 0;
        let count = architecture.layers.len();
        let layers = (0..count).map(|_| layout(architecture, rank, &mut next)).collect();
        (Self { rank, alpha, values: Vec::new(), family: architecture.family, layers }, next)
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
        let json: Map<String, Json> =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let (rank, alpha) = read_config(&json).map_err(|refusal| wrong(refusal.to_string()))?;
        check_rank(rank, architecture).map_err(wrong)?;
        let (mut adapter, length) = Self::without_values(architecture, rank, alpha);
        let file = TensorFile::open(&directory.join(TENSORS_FILE))?;
        let places: Vec<_> = adapter.tensors().collect();
        // All shapes before any memory, which a wrong rank would ask for.
        for (name, shape, _) in &places {
            match file.shape(name) {
                Some(found) if found == shape => {}
                Some(found) => {
                    let what = format!("`{name}` has shape {found:?}, expected {shape:?}");
                    return Err(wrong(what));
                }
                None => return Err(wrong(format!("it has no `{name}`"))),
            }
        }
        let expected: BTreeSet<&String> = places.iter().map(|(name, _, _)| name).collect();
        if let Some(name) = file.names().iter().find(|name| !expected.contains(name)) {
            return Err(wrong(format!("nothing in these weights uses its tensor `{name}`")));
        }
        adapter.values = vec![0.0; length];
        for (name, shape, place) in places {
            let tensor = file.get(&name, &shape)?;
            if tensor.iter().any(|value| !value.is_finite()) {
                return Err(wrong(format!("`{name}` holds values that are not finite numbers")));
            }
            adapter.values[place].copy_from_slice(&tensor);
        }
        Ok(adapter)
    }
}

/// Refuses a rank above that of any matrix of these weights: it says nothing more, and would ask
/// for more memory than the weights have.
pub fn check_rank(rank: usize, architecture: &Architecture) -> std::result::Result<(), String> {
    let Architecture { hidden, attention, mlp, .. } = architecture;
    let largest = (*hidden).max(attention.q_width()).max(mlp.feed_forward);
    match rank <= largest {
        true => Ok(()),
        false => Err(format!("a rank of {rank} is above {largest}, the most a matrix here has")),
    }
}

/// Keys of `adapter_config.json` that change nothing here: they describe the file, or how PEFT
/// chose the matrices and drew their first values, all of which the tensors show.
const HARMLESS: [&str; 12] = [
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "target_modules",
    "task_type",
];

/// Keys that change nothing where they are off.
const OFF: [&str; 21] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "layer_replication",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_bias",
    "lora_ga_config",
    "megatron_config",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "use_rslora",
];

/// Rank and alpha; refuses every key by which PEFT would compute something else than
/// [`Adapter::merged`] does.
fn read_config(json: &Map<String, Json>) -> Read<(usize, f32)> {
    let keys = Keys::new(json, "");
    if keys.text("peft_type")?.is_some_and(|kind| kind != "LORA") {
        return keys.refuse("peft_type", "`LORA` is known");
    }
    if keys.text("bias")?.is_some_and(|bias| bias != "none") {
        return keys.refuse("bias", "`none` is known");
    }
    let rank = keys.required_size("r")?;
    if rank == 0 {
        return keys.refuse("r", "it must be above 0");
    }
    let alpha = keys.real("lora_alpha")?.map(|alpha| alpha as f32);
    let Some(alpha) = alpha.filter(|alpha| alpha.is_finite()) else {
        return keys.refuse("lora_alpha", "it must be a number of a possible size");
    };
    let is_off = |value: &Json| match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(items) => items.is_empty(),
        _ => false,
    };
    // Other ways to draw the first values change the weights, too.
    let draws_alone = |value: &Json| value.is_boolean() || value == "gaussian";
    keys.finish(|key, value| {
        HARMLESS.contains(&key)
            || value.is_null()
            || (OFF.contains(&key) && is_off(value))
            || (key == "init_lora_weights" && draws_alone(value))
    })?;
    Ok((rank, alpha))
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
