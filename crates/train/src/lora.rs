//! The low-rank adapter: one flat vector of values, and where each matrix lies in it.
//!
//! Linear layers of attention and MLP have `A [rank, in]` and `B [out, rank]`: all of them, or
//! those that were asked for. Matrices `A` that read the same input lie side by side, so one
//! product serves them all.

use crate::architecture::{Architecture, Family};
use crate::configuration::keys::{Keys, Read};
use crate::error::{Error, IoContext, Result};
use crate::hub::{TensorFile, f32_bytes};
use crate::names::{Kind, Name, Part, Piece, Site, pieces};
use crate::weights::{Layer, Parameters, Rounded};
use crate::whole;
use het_blocks::bf16;
use het_blocks::linear::{LowRank, Update};
use het_blocks::math::add_scaled_rows;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub const TENSORS_FILE: &str = "adapter_model.safetensors";
pub const CONFIG_FILE: &str = "adapter_config.json";

/// Rows that one thread takes at least.
const ROWS_AT_ONCE: usize = 16;
/// Values that a thread copies at once.
const PIECE: usize = 1 << 15;

/// What an adapter changes, and by how much.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    pub rank: usize,
    pub alpha: f32,
    /// Whether the product of `B` and `A` counts alpha / √rank times, not alpha / rank
    /// (Kalajdzievski 2023, rsLoRA, section 4).
    pub rslora: bool,
    /// Last words of the names of the matrices, as PEFT matches them; empty for all.
    pub targets: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { rank: 8, alpha: 16.0, rslora: false, targets: Vec::new() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    pub rank: usize,
    pub alpha: f32,
    pub values: Vec<f32>,
    rslora: bool,
    family: Family,
    layers: Vec<[Group; 4]>,
}

/// Matrices that read one input: q, k, v; o; gate, up; or down. Those without an update are left
/// out.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub inputs: usize,
    pub part: Part,
    /// All `A` of the group, one below the other; empty where nothing of it is adapted.
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
    /// All zeros, which changes nothing, beside every matrix.
    pub fn zeros(architecture: &Architecture, rank: usize, alpha: f32) -> Self {
        let settings = Settings { rank, alpha, rslora: false, targets: Vec::new() };
        Self::zeros_as(architecture, &settings, |_| true)
    }

    /// Zeros beside the matrices that `is_adapted`, by PEFT's name, says.
    fn zeros_as(
        architecture: &Architecture,
        settings: &Settings,
        is_adapted: impl Fn(&str) -> bool,
    ) -> Self {
        let (mut adapter, length) = Self::without_values(architecture, settings, is_adapted);
        adapter.values = vec![0.0; length];
        adapter
    }

    /// Where each matrix will lie, and how many values there will be.
    fn without_values(
        architecture: &Architecture,
        settings: &Settings,
        is_adapted: impl Fn(&str) -> bool,
    ) -> (Self, usize) {
        let Settings { rank, alpha, rslora, .. } = *settings;
        let family = architecture.family;
        let mut next = 0;
        let layers = (0..architecture.layers.len()).map(|layer| {
            layout(architecture, rank, &mut next, |part, piece| {
                is_adapted(&peft_name(family, layer, part, piece))
            })
        });
        let layers = layers.collect();
        (Self { rank, alpha, values: Vec::new(), rslora, family, layers }, next)
    }

    /// An adapter of every matrix, drawn as [`Adapter::drawn`] says.
    pub fn random(architecture: &Architecture, rank: usize, alpha: f32, seed: u64) -> Self {
        Self::zeros(architecture, rank, alpha).with_drawn_values(seed)
    }

    /// `A` uniform in ±1/√in as PEFT draws it, `B` zero; refuses targets that name no matrix.
    pub fn drawn(
        architecture: &Architecture,
        settings: &Settings,
        seed: u64,
    ) -> std::result::Result<Self, String> {
        let all = Self::without_values(architecture, settings, |_| true).0;
        for target in &settings.targets {
            if !all.modules().any(|name| is_target(&name, target)) {
                let known = all.target_modules().into_iter().collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "no matrix of a layer is called `{target}`; there are {known}"
                ));
            }
        }
        let adapter = Self::zeros_as(architecture, settings, |name| settings.adapts(name));
        Ok(adapter.with_drawn_values(seed))
    }

    /// How many values such an adapter has.
    pub fn length(architecture: &Architecture, settings: &Settings) -> usize {
        Self::without_values(architecture, settings, |name| settings.adapts(name)).1
    }

    fn with_drawn_values(self, seed: u64) -> Self {
        let mut adapter = self;
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
        match self.rslora {
            true => self.alpha / (self.rank as f32).sqrt(),
            false => self.alpha / self.rank as f32,
        }
    }

    /// The groups of one layer: qkv, output, gate and up, down.
    pub fn groups(&self, layer: usize) -> [&Group; 4] {
        self.layers[layer].each_ref()
    }

    /// Where the values of one layer lie.
    pub fn place(&self, layer: usize) -> Range<usize> {
        let groups = &self.layers[layer];
        let start = groups[0].a.start;
        let slots = groups.iter().flat_map(|group| &group.slots);
        start..slots.fold(start, |end, slot| end.max(slot.b.end))
    }

    /// The same matrices with other values, or with none where they lie elsewhere.
    pub fn with_values(&self, values: Vec<f32>) -> Self {
        let Self { rank, alpha, rslora, family, .. } = *self;
        Self { rank, alpha, values, rslora, family, layers: self.layers.clone() }
    }

    /// The groups of one layer as updates of its matrices: those of `qkv`, `output`, `up` and
    /// `down`, none where nothing is adapted. `values` are those of the layer, and `gradient` is
    /// laid out as they are.
    pub fn low_rank<'a>(
        &'a self,
        layer: usize,
        values: &'a [f32],
        gradient: &'a mut [f32],
    ) -> [Option<LowRank<'a>>; 4] {
        let mut rest = gradient;
        let first = self.place(layer).start;
        let own = move |range: &Range<usize>| &values[range.start - first..range.end - first];
        let mut next = first;
        let mut take = |range: &Range<usize>| {
            let (_, after) = std::mem::take(&mut rest).split_at_mut(range.start - next);
            let (taken, after) = after.split_at_mut(range.len());
            (rest, next) = (after, range.end);
            taken
        };
        self.groups(layer).map(|group| {
            let a_gradient = take(&group.a);
            let updates = group.slots.iter().map(|slot| Update {
                first_row: slot.first_row,
                b: own(&slot.b),
                b_gradient: take(&slot.b),
            });
            let updates: Vec<_> = updates.collect();
            let a = own(&group.a);
            let (rank, scale) = (self.rank, self.scale());
            (!updates.is_empty()).then_some(LowRank { rank, scale, a, a_gradient, updates })
        })
    }

    /// PEFT's name, shape and place of every tensor.
    pub fn tensors(&self) -> impl Iterator<Item = (String, [usize; 2], Range<usize>)> {
        self.layers.iter().enumerate().flat_map(move |(layer, groups)| {
            groups.iter().flat_map(move |group| {
                group.slots.iter().flat_map(move |slot| {
                    let name = peft_name(self.family, layer, group.part, slot.piece);
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

    /// `merged = base + scale B A` for one layer, with its `values`.
    pub fn merge_layer(&self, index: usize, values: &[f32], base: &Layer, merged: &mut Layer) {
        let first = self.place(index).start;
        let own = |range: &Range<usize>| &values[range.start - first..range.end - first];
        for group in self.groups(index) {
            let (base, merged) = (base.part(group.part), merged.part_mut(group.part));
            match (&base.rounded, &mut merged.rounded) {
                (Some(Rounded::Bf16(base)), Some(Rounded::Bf16(merged))) => {
                    // A layer that was copied shares its matrices until here.
                    let merged = Arc::make_mut(merged).bits_mut();
                    self.merge_group(group, own, (base.bits(), merged), add_to_bf16);
                }
                _ => {
                    let matrices = (&*base.weight, &mut *merged.weight);
                    self.merge_group(group, own, matrices, |base, a, factors, merged, _| {
                        add_scaled_rows(base, a, factors, merged);
                    });
                }
            }
        }
    }

    /// `add` writes what a row becomes: of its base, the rows of `A`, what each of them is
    /// multiplied by, and a buffer.
    fn merge_group<'v, T: Copy + Send + Sync>(
        &self,
        group: &Group,
        own: impl Fn(&Range<usize>) -> &'v [f32],
        (base, merged): (&[T], &mut [T]),
        add: impl Fn(&[T], &[f32], &[f32], &mut [T], &mut Vec<f32>) + Sync,
    ) {
        let (inputs, scale, rank) = (group.inputs, self.scale(), self.rank);
        let mut done = 0;
        for slot in &group.slots {
            let start = slot.first_row * inputs;
            copy(&base[done..start], &mut merged[done..start]);
            done = start + slot.outputs * inputs;
            let a = own(&slot.a);
            let rows = merged[start..done].par_chunks_exact_mut(inputs);
            let rows = rows.zip(base[start..done].par_chunks_exact(inputs));
            let rows = rows.zip(own(&slot.b).par_chunks_exact(rank));
            let rows = rows.with_min_len(ROWS_AT_ONCE);
            rows.for_each_init(
                || (vec![0.0; rank], Vec::new()),
                |(factors, buffer), ((merged, base), b)| {
                    factors.iter_mut().zip(b).for_each(|(factor, b)| *factor = scale * b);
                    add(base, a, factors, merged, buffer);
                },
            );
        }
        copy(&base[done..], &mut merged[done..]);
    }

    /// The weights with this adapter worked in.
    pub fn merged(&self, base: &Parameters) -> Parameters {
        let mut merged = base.clone();
        let layers = merged.layers.par_iter_mut().zip(&base.layers).enumerate();
        layers.for_each(|(index, (merged, base))| {
            self.merge_layer(index, &self.values[self.place(index)], base, merged);
        });
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

    /// Writes the two files of a PEFT adapter.
    pub fn write(&self, directory: &Path, base_model: &str) -> Result<()> {
        whole::write(&directory.join(TENSORS_FILE), &self.to_safetensors()?)?;
        let text = serde_json::to_string_pretty(&self.peft_config(base_model))
            .expect("a JSON value serialises");
        whole::write(&directory.join(CONFIG_FILE), text.as_bytes())
    }

    /// PEFT's `adapter_config.json`.
    pub fn peft_config(&self, base_model: &str) -> Json {
        json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model,
            "r": self.rank, "lora_alpha": self.alpha, "lora_dropout": 0.0, "bias": "none",
            "fan_in_fan_out": self.family == Family::Gpt2, "inference_mode": true,
            "init_lora_weights": true, "modules_to_save": null, "use_rslora": self.rslora,
            "target_modules": self.target_modules(),
        })
    }

    /// The last two words of the adapted matrices' names, such as `self_attn.q_proj`: GPT-2 has two
    /// that are called `c_proj`.
    fn target_modules(&self) -> BTreeSet<String> {
        let names = self.modules();
        let ends = names.map(|name| {
            let words: Vec<&str> = name.rsplitn(3, '.').take(2).collect();
            format!("{}.{}", words[1], words[0])
        });
        ends.collect()
    }

    /// PEFT's names of the adapted matrices.
    fn modules(&self) -> impl Iterator<Item = String> {
        self.layers.iter().enumerate().flat_map(move |(layer, groups)| {
            groups.iter().flat_map(move |group| {
                let slots = group.slots.iter();
                slots.map(move |slot| peft_name(self.family, layer, group.part, slot.piece))
            })
        })
    }

    /// Reads a directory as `finetune` or PEFT writes it, for weights of this shape.
    pub fn open(directory: &Path, architecture: &Architecture) -> Result<Self> {
        let path = directory.join(CONFIG_FILE);
        let wrong = |what: String| Error::Adapter { path: directory.to_owned(), what };
        let text = std::fs::read_to_string(&path).at("read", &path)?;
        let json: Map<String, Json> =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let settings = read_config(&json).map_err(|refusal| wrong(refusal.to_string()))?;
        check_rank(settings.rank, architecture).map_err(wrong)?;
        let file = TensorFile::open(&directory.join(TENSORS_FILE))?;
        let names: BTreeSet<String> = file.names().into_iter().collect();
        let (mut adapter, length) = Self::without_values(architecture, &settings, |name| {
            ["A", "B"].iter().any(|half| names.contains(&format!("{name}.lora_{half}.weight")))
        });
        if length == 0 {
            return Err(wrong("it adapts no matrix of these weights".into()));
        }
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

/// A row of a base in bf16 with what an adapter adds to it, rounded once.
fn add_to_bf16(base: &[u16], a: &[f32], factors: &[f32], to: &mut [u16], buffer: &mut Vec<f32>) {
    buffer.resize(2 * base.len(), 0.0);
    let (widened, sum) = buffer.split_at_mut(base.len());
    bf16::widen_row(base, widened);
    add_scaled_rows(widened, a, factors, sum);
    bf16::round_row(sum, to);
}

fn copy<T: Copy + Send + Sync>(from: &[T], to: &mut [T]) {
    let pieces = to.par_chunks_mut(PIECE).zip(from.par_chunks(PIECE));
    pieces.for_each(|(to, from)| to.copy_from_slice(from));
}

impl Settings {
    /// Whether a matrix, by PEFT's name, is to be adapted.
    fn adapts(&self, name: &str) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|target| is_target(name, target))
    }
}

fn peft_name(family: Family, layer: usize, part: Part, piece: Piece) -> String {
    let name = Name { site: Site::Layer(layer, part), piece, kind: Kind::Weight };
    format!("base_model.model.{}", name.hub_module(family))
}

/// Whether the words of `target` are the last of a module's name, as PEFT's `target_modules` mean.
fn is_target(name: &str, target: &str) -> bool {
    name.strip_suffix(target).is_some_and(|before| before.ends_with('.'))
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
const OFF: [&str; 20] = [
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
];

/// What it says beside the matrices; refuses every key by which PEFT would compute something else
/// than [`Adapter::merged`] does.
fn read_config(json: &Map<String, Json>) -> Read<Settings> {
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
    let rslora = keys.flag("use_rslora")?.unwrap_or(false);
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
    Ok(Settings { rank, alpha, rslora, targets: Vec::new() })
}

fn layout(
    architecture: &Architecture,
    rank: usize,
    next: &mut usize,
    is_adapted: impl Fn(Part, Piece) -> bool,
) -> [Group; 4] {
    let mut group =
        |part: Part, inputs: usize| {
            let mut below = 0;
            let rows = pieces(architecture, part).into_iter().map(|(piece, outputs)| {
                below += outputs;
                (piece, outputs, below - outputs)
            });
            let adapted: Vec<_> = rows.filter(|&(piece, _, _)| is_adapted(part, piece)).collect();
            let start = *next;
            let mut take = |length: usize| {
                *next += length;
                *next - length..*next
            };
            let lower: Vec<_> = adapted.iter().map(|_| take(rank * inputs)).collect();
            let a = start..start + adapted.len() * rank * inputs;
            let slots = adapted.into_iter().zip(lower).map(|((piece, outputs, first_row), a)| {
                Slot { piece, outputs, first_row, a, b: take(outputs * rank) }
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
