//! The values of a model, laid out for the blocks, and where they come from.
//!
//! Matrices are row-major `[out, in]` in Hugging Face's row order. Projections that read the same
//! input lie in one matrix, so that one product serves them all.

use crate::architecture::{Architecture, Family};
use crate::configuration;
use crate::digest::sha256_file;
use crate::error::{Result, bad_weights};
use crate::gguf::Gguf;
use crate::hub::Hub;
use crate::layout;
use crate::names::{Buffer, Kind, Name, Part, Site, Tensor, buffers};
use het_blocks::linear::{Linear, Numbers, Weight};
use het_blocks::{bf16, norm, quantized};
use rayon::prelude::*;
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A matrix and, where it has one, its bias; or a norm's weight and bias.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pair {
    pub weight: Vec<f32>,
    /// What computes instead of the weight, which is empty then.
    pub rounded: Option<Rounded>,
    /// Empty where there is none.
    pub bias: Vec<f32>,
}

/// A matrix that is not in f32.
#[derive(Debug, Clone, PartialEq)]
pub enum Rounded {
    Bf16(Arc<bf16::Matrix>),
    Integers(Arc<quantized::Matrix>),
}

impl Rounded {
    /// Rows of `inputs` values in bf16; none where there are none.
    pub fn bf16(values: &[f32], inputs: usize) -> Option<Self> {
        let matrix = || Self::Bf16(Arc::new(bf16::Matrix::round(values, inputs)));
        (!values.is_empty()).then(matrix)
    }

    fn weight(&self) -> Weight<'_> {
        match self {
            Self::Bf16(matrix) => Weight::Bf16(matrix),
            Self::Integers(matrix) => Weight::Quantized(matrix),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Bf16(matrix) => matrix.bytes(),
            Self::Integers(matrix) => matrix.bytes(),
        }
    }
}

/// What lies before and after the layers; empty where a model has none of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outer {
    /// `[vocabulary, hidden]`
    pub embedding: Vec<f32>,
    /// `[positions, hidden]`
    pub positions: Vec<f32>,
    pub norm: Pair,
    /// `[vocabulary, hidden]`; empty where the embedding serves
    pub head: Vec<f32>,
    /// What computes instead of the embedding, which is empty then.
    pub rounded_embedding: Option<Rounded>,
    /// What computes instead of the head, which is empty then.
    pub rounded_head: Option<Rounded>,
}

/// One layer; what the model does not have is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layer {
    pub attention_norm: Pair,
    /// `[q_width + 2 kv_width, hidden]`
    pub qkv: Pair,
    /// `[head_size]`
    pub query_norm: Pair,
    /// `[head_size]`
    pub key_norm: Pair,
    /// `[hidden, q_width]`
    pub output: Pair,
    pub attention_post_norm: Pair,
    pub mlp_norm: Pair,
    /// Gates and ups, or ups alone: `[up_width, hidden]`
    pub up: Pair,
    /// `[hidden, feed_forward]`
    pub down: Pair,
    pub mlp_post_norm: Pair,
}

/// The values of a model, or gradients of all of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters {
    pub outer: Arc<Outer>,
    pub layers: Vec<Layer>,
}

#[derive(Debug, Clone)]
pub struct Weights {
    pub architecture: Architecture,
    pub parameters: Parameters,
    /// The `config.json` that describes them; none where they came in a way that none describes.
    pub configuration: Option<Map<String, Json>>,
}

impl Pair {
    fn of(&mut self, kind: Kind) -> &mut Vec<f32> {
        match kind {
            Kind::Weight => &mut self.weight,
            Kind::Bias => &mut self.bias,
        }
    }

    fn get(&self, kind: Kind) -> &[f32] {
        match kind {
            Kind::Weight => &self.weight,
            Kind::Bias => &self.bias,
        }
    }

    /// The weight in f32, whatever it is stored in; empty of one in integers.
    pub fn values(&self) -> Cow<'_, [f32]> {
        values(&self.weight, &self.rounded)
    }

    /// As a linear layer that reads rows of `inputs`, and computes in such numbers where it is in
    /// f32.
    pub fn linear(&self, inputs: usize, numbers: Numbers) -> Linear<'_> {
        let weight = stored(&self.weight, &self.rounded, numbers);
        Linear { inputs, weight, bias: &self.bias }
    }

    pub fn norm(&self) -> norm::Parameters<'_> {
        norm::Parameters { weight: &self.weight, bias: &self.bias }
    }

    pub fn norm_gradient(&mut self) -> norm::Gradient<'_> {
        norm::Gradient { weight: &mut self.weight, bias: &mut self.bias }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.weight) + size_of_val(&*self.bias) + rounded_bytes(&self.rounded)
    }
}

fn values<'a>(weight: &'a [f32], rounded: &Option<Rounded>) -> Cow<'a, [f32]> {
    match rounded {
        Some(Rounded::Bf16(matrix)) => Cow::Owned(matrix.to_f32()),
        Some(Rounded::Integers(_)) | None => Cow::Borrowed(weight),
    }
}

fn rounded_bytes(matrix: &Option<Rounded>) -> usize {
    matrix.as_ref().map_or(0, Rounded::bytes)
}

fn is_in_integers(matrix: &Option<Rounded>) -> bool {
    matches!(matrix, Some(Rounded::Integers(_)))
}

/// Places of a layer, in the order of its buffers.
pub const PARTS: [Part; 10] = [
    Part::AttentionNorm,
    Part::Qkv,
    Part::QueryNorm,
    Part::KeyNorm,
    Part::Output,
    Part::AttentionPostNorm,
    Part::MlpNorm,
    Part::Up,
    Part::Down,
    Part::MlpPostNorm,
];

impl Layer {
    pub fn part(&self, part: Part) -> &Pair {
        match part {
            Part::AttentionNorm => &self.attention_norm,
            Part::Qkv => &self.qkv,
            Part::QueryNorm => &self.query_norm,
            Part::KeyNorm => &self.key_norm,
            Part::Output => &self.output,
            Part::AttentionPostNorm => &self.attention_post_norm,
            Part::MlpNorm => &self.mlp_norm,
            Part::Up => &self.up,
            Part::Down => &self.down,
            Part::MlpPostNorm => &self.mlp_post_norm,
        }
    }

    fn pairs_mut(&mut self) -> [(Part, &mut Pair); 10] {
        [
            (Part::AttentionNorm, &mut self.attention_norm),
            (Part::Qkv, &mut self.qkv),
            (Part::QueryNorm, &mut self.query_norm),
            (Part::KeyNorm, &mut self.key_norm),
            (Part::Output, &mut self.output),
            (Part::AttentionPostNorm, &mut self.attention_post_norm),
            (Part::MlpNorm, &mut self.mlp_norm),
            (Part::Up, &mut self.up),
            (Part::Down, &mut self.down),
            (Part::MlpPostNorm, &mut self.mlp_post_norm),
        ]
    }

    /// Every buffer that the layer has, always in the same order.
    pub fn buffers(&self) -> impl Iterator<Item = (Part, Kind, &[f32])> {
        let all = PARTS.into_iter().flat_map(|part| {
            let pair = self.part(part);
            [(part, Kind::Weight, &*pair.weight), (part, Kind::Bias, &*pair.bias)]
        });
        all.filter(|(.., values)| !values.is_empty())
    }

    /// The same to change them.
    pub fn buffers_mut(&mut self) -> Vec<(Part, Kind, &mut Vec<f32>)> {
        let all = self.pairs_mut().into_iter().flat_map(|(part, Pair { weight, bias, .. })| {
            [(part, Kind::Weight, weight), (part, Kind::Bias, bias)]
        });
        all.filter(|(.., values)| !values.is_empty()).collect()
    }

    /// Whether something in it computes on integers.
    pub fn is_in_integers(&self) -> bool {
        PARTS.into_iter().any(|part| is_in_integers(&self.part(part).rounded))
    }

    /// Memory of all values.
    pub fn bytes(&self) -> usize {
        PARTS.into_iter().map(|part| self.part(part).bytes()).sum()
    }

    pub fn part_mut(&mut self, part: Part) -> &mut Pair {
        match part {
            Part::AttentionNorm => &mut self.attention_norm,
            Part::Qkv => &mut self.qkv,
            Part::QueryNorm => &mut self.query_norm,
            Part::KeyNorm => &mut self.key_norm,
            Part::Output => &mut self.output,
            Part::AttentionPostNorm => &mut self.attention_post_norm,
            Part::MlpNorm => &mut self.mlp_norm,
            Part::Up => &mut self.up,
            Part::Down => &mut self.down,
            Part::MlpPostNorm => &mut self.mlp_post_norm,
        }
    }
}

impl Parameters {
    /// Zeros in every buffer of a model that lies at such a place; the others are empty.
    pub fn zeros_where(
        architecture: &Architecture,
        is_wanted: impl Fn(Site) -> bool + Sync,
    ) -> Self {
        Self::filled(architecture, |buffer| {
            let count = buffer.tensors.iter().map(Tensor::values).sum();
            Ok(vec![0.0; if is_wanted(buffer.site) { count } else { 0 }])
        })
        .expect("zeros are always there")
    }

    /// Fills every buffer.
    pub fn filled(
        architecture: &Architecture,
        fill: impl Fn(&Buffer) -> Result<Vec<f32>> + Sync,
    ) -> Result<Self> {
        Self::stored(architecture, |buffer| Ok((fill(buffer)?, None)))
    }

    /// Fills every buffer, in f32 or as a matrix that is not.
    fn stored(
        architecture: &Architecture,
        fill: impl Fn(&Buffer) -> Result<(Vec<f32>, Option<Rounded>)> + Sync,
    ) -> Result<Self> {
        let buffers = buffers(architecture);
        // Of several errors the first in the model's order is told, whichever was found first.
        let filled: Vec<Result<_>> = buffers.par_iter().map(&fill).collect();
        let filled = filled.into_iter().collect::<Result<Vec<_>>>()?;
        let mut outer = Outer::default();
        let mut layers = vec![Layer::default(); architecture.layers.len()];
        for (Buffer { site, kind, .. }, (values, rounded)) in buffers.into_iter().zip(filled) {
            match site {
                Site::Embedding => {
                    (outer.embedding, outer.rounded_embedding) = (values, rounded);
                }
                Site::Positions => outer.positions = values,
                Site::Norm => *outer.norm.of(kind) = values,
                Site::Head => (outer.head, outer.rounded_head) = (values, rounded),
                Site::Layer(layer, part) => {
                    let pair = layers[layer].part_mut(part);
                    *pair.of(kind) = values;
                    pair.rounded = pair.rounded.take().or(rounded);
                }
            }
        }
        Ok(Self { outer: Arc::new(outer), layers })
    }

    /// Reads every tensor of a model by `read`, and stores matrices in such numbers.
    pub fn read(
        architecture: &Architecture,
        numbers: Numbers,
        read: impl Fn(&Tensor) -> Result<Vec<f32>> + Sync,
    ) -> Result<Self> {
        Self::stored(architecture, |buffer| {
            let mut tensors = buffer.tensors.iter();
            let first = tensors.next().map_or_else(|| Ok(Vec::new()), &read)?;
            let values = tensors.try_fold(first, |mut values, tensor| -> Result<_> {
                values.extend(read(tensor)?);
                Ok(values)
            })?;
            Ok(match (numbers, buffer.inputs()) {
                (Numbers::Bf16, Some(inputs)) => (Vec::new(), Rounded::bf16(&values, inputs)),
                _ => (values, None),
            })
        })
    }

    /// Every tensor with its values, in the order of [`buffers`].
    pub fn tensors(&self, architecture: &Architecture) -> Vec<(Tensor, &[f32])> {
        let mut all = Vec::new();
        for Buffer { site, kind, tensors } in buffers(architecture) {
            let mut values = match site {
                Site::Embedding => &self.outer.embedding,
                Site::Positions => &self.outer.positions,
                Site::Norm => self.outer.norm.get(kind),
                Site::Head => &self.outer.head,
                Site::Layer(layer, part) => self.layers[layer].part(part).get(kind),
            };
            for tensor in tensors {
                let (own, rest) = values.split_at(tensor.values());
                all.push((tensor, own));
                values = rest;
            }
        }
        all
    }
}

impl Weights {
    /// How many values there are.
    pub fn count(&self) -> usize {
        let tensors = buffers(&self.architecture);
        tensors.iter().flat_map(|buffer| &buffer.tensors).map(Tensor::values).sum()
    }
}

impl Outer {
    /// Every buffer that the model has around its layers, always in the same order.
    pub fn buffers(&self) -> impl Iterator<Item = (Site, Kind, &[f32])> {
        let Self { embedding, positions, norm, head, .. } = self;
        let all: [(Site, Kind, &[f32]); 5] = [
            (Site::Embedding, Kind::Weight, embedding),
            (Site::Positions, Kind::Weight, positions),
            (Site::Head, Kind::Weight, head),
            (Site::Norm, Kind::Weight, &norm.weight),
            (Site::Norm, Kind::Bias, &norm.bias),
        ];
        all.into_iter().filter(|(.., values)| !values.is_empty())
    }

    /// The same to change them. What computes on integers is made of these, and learns nothing.
    pub fn buffers_mut(&mut self) -> Vec<(Site, Kind, &mut Vec<f32>)> {
        let Self { embedding, positions, norm, head, .. } = self;
        let all = [
            (Site::Embedding, Kind::Weight, embedding),
            (Site::Positions, Kind::Weight, positions),
            (Site::Head, Kind::Weight, head),
            (Site::Norm, Kind::Weight, &mut norm.weight),
            (Site::Norm, Kind::Bias, &mut norm.bias),
        ];
        all.into_iter().filter(|(.., values)| !values.is_empty()).collect()
    }

    /// Whether something in it computes on integers.
    pub fn is_in_integers(&self) -> bool {
        is_in_integers(&self.rounded_embedding) || is_in_integers(&self.rounded_head)
    }

    /// Memory of all values.
    pub fn bytes(&self) -> usize {
        let buffers: usize = self.buffers().map(|(.., values)| size_of_val(values)).sum();
        buffers + rounded_bytes(&self.rounded_embedding) + rounded_bytes(&self.rounded_head)
    }

    /// The embedding in f32, whatever it is stored in; empty of one in integers.
    pub fn embedding_values(&self) -> Cow<'_, [f32]> {
        values(&self.embedding, &self.rounded_embedding)
    }

    /// The same of the head.
    pub fn head_values(&self) -> Cow<'_, [f32]> {
        values(&self.head, &self.rounded_head)
    }

    /// The weight of the head: its own, or the embedding.
    pub fn head(&self, numbers: Numbers) -> Weight<'_> {
        if self.head.is_empty() && self.rounded_head.is_none() {
            return stored(&self.embedding, &self.rounded_embedding, numbers);
        }
        stored(&self.head, &self.rounded_head, numbers)
    }

    pub fn embedding(&self) -> Weight<'_> {
        stored(&self.embedding, &self.rounded_embedding, Numbers::F32)
    }
}

fn stored<'a>(weight: &'a [f32], rounded: &'a Option<Rounded>, numbers: Numbers) -> Weight<'a> {
    match (rounded, numbers) {
        (Some(rounded), _) => rounded.weight(),
        (None, Numbers::F32) => Weight::F32(weight),
        (None, Numbers::Bf16) => Weight::Rounding(weight),
    }
}

/// Opened weights whose matrices have not been decoded yet.
#[derive(Debug)]
pub enum Source {
    Gguf { path: PathBuf, file: Gguf },
    Hub(Hub),
}

impl Source {
    /// `spec` is a model name that `fetch` knows, a `.gguf` file or a Hugging Face directory.
    pub fn open(spec: &str) -> Result<Self> {
        let path = match spec {
            crate::fetch::MODEL => crate::fetch::ensure()?,
            other => PathBuf::from(other),
        };
        if path.is_dir() {
            return Hub::open(&path).map(Source::Hub);
        }
        let file = Gguf::open(&path)?;
        Ok(Source::Gguf { path, file })
    }

    /// What a PEFT adapter of these weights, opened as `spec`, names as its base.
    pub fn base_name(&self, spec: &str) -> String {
        match spec {
            crate::fetch::MODEL => crate::fetch::HUB_NAME.to_owned(),
            _ => {
                let path = self.path().canonicalize();
                path.map_or_else(|_| spec.to_owned(), |path| path.display().to_string())
            }
        }
    }

    pub fn path(&self) -> &Path {
        match self {
            Source::Gguf { path, .. } => path,
            Source::Hub(hub) => hub.path(),
        }
    }

    /// The files that hold the matrices.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Source::Gguf { path, .. } => vec![path.clone()],
            Source::Hub(hub) => hub.files().to_vec(),
        }
    }

    /// Bytes of the files that this holds in memory.
    pub fn held_bytes(&self) -> u64 {
        match self {
            Source::Gguf { file, .. } => file.held_bytes(),
            Source::Hub(_) => 0,
        }
    }

    /// Element types in the files, such as `f32+q4_1`.
    pub fn formats(&self) -> Result<String> {
        let names: BTreeSet<String> = match self {
            Source::Gguf { file, .. } => {
                file.tensors.values().map(|tensor| tensor.format.name().to_owned()).collect()
            }
            Source::Hub(hub) => hub.tensors()?.formats(),
        };
        Ok(names.into_iter().collect::<Vec<_>>().join("+"))
    }

    pub fn architecture(&self) -> Result<Architecture> {
        match self {
            Source::Gguf { path, file } => Ok(configuration::gguf::read(path, file)?.0),
            Source::Hub(hub) => Ok(hub.architecture()?.0),
        }
    }

    pub fn weights(&self) -> Result<Weights> {
        self.weights_in(Numbers::F32)
    }

    /// The weights with their matrices stored in such numbers, in which they never lie in memory
    /// all at once as f32.
    pub fn weights_in(&self, numbers: Numbers) -> Result<Weights> {
        match self {
            Source::Gguf { path, file } => {
                let (architecture, configuration) = configuration::gguf::read(path, file)?;
                refuse_unread_gguf(path, file, &architecture)?;
                let parameters = Parameters::read(&architecture, numbers, |tensor| {
                    let values = file.tensor(&tensor.name.gguf_name(), &tensor.shape)?;
                    Ok(layout::from_gguf(tensor, values, &architecture))
                })?;
                Ok(Weights { architecture, parameters, configuration })
            }
            Source::Hub(hub) => {
                let (architecture, configuration) = hub.architecture()?;
                let tensors = hub.tensors()?;
                let family = architecture.family;
                let prefix = crate::names::prefix(family);
                let stored = stored_names(&architecture, |name| tensors.has(name), prefix);
                refuse_unread(hub.path(), tensors.names(), &stored, &architecture)?;
                let parameters = Parameters::read(&architecture, numbers, |tensor| {
                    let name = stored_name(&stored, tensor.name, family);
                    if tensor.name.is_transposed(family) {
                        let shape = [tensor.shape[1], tensor.shape[0]];
                        return Ok(transposed(&tensors.get(name, &shape)?, shape[1]));
                    }
                    tensors.get(name, &tensor.shape)
                })?;
                Ok(Weights { architecture, parameters, configuration: Some(configuration) })
            }
        }
    }

    /// Of the `config.json` beside the weights; those of a GGUF hold their own.
    pub fn configuration_sha256(&self) -> Result<Option<String>> {
        match self {
            Source::Gguf { .. } => Ok(None),
            Source::Hub(hub) => sha256_file(&hub.configuration_path()).map(Some),
        }
    }

    /// Of the file, or of the digests of several.
    pub fn sha256(&self) -> Result<String> {
        let mut digests = Vec::new();
        for file in self.files() {
            digests.push(sha256_file(&file)?);
        }
        if digests.len() == 1 {
            return Ok(digests.remove(0));
        }
        let all = Sha256::digest(digests.join("\n"));
        Ok(all.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The name that a file has for each tensor, by its full name: files of models without a head
/// leave the prefix out.
fn stored_names(
    architecture: &Architecture,
    has: impl Fn(&str) -> bool,
    prefix: &str,
) -> BTreeMap<String, String> {
    let tensors = buffers(architecture).into_iter().flat_map(|buffer| buffer.tensors);
    tensors
        .map(|tensor| {
            let full = tensor.name.hub_name(architecture.family);
            let short = full.strip_prefix(prefix).filter(|short| !has(&full) && has(short));
            let stored = short.unwrap_or(&full).to_owned();
            (full, stored)
        })
        .collect()
}

fn stored_name(stored: &BTreeMap<String, String>, name: Name, family: Family) -> &str {
    &stored[&name.hub_name(family)]
}

/// Refuses tensors that nothing reads, but for those that follow from the configuration.
fn refuse_unread<'a>(
    path: &Path,
    mut found: impl Iterator<Item = &'a String>,
    stored: &BTreeMap<String, String>,
    architecture: &Architecture,
) -> Result<()> {
    let read: BTreeSet<&String> = stored.values().collect();
    let is_buffer = |name: &str| {
        name.ends_with("rotary_emb.inv_freq")
            || name == "lm_head.weight"
            || (architecture.family == Family::Gpt2
                && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")))
    };
    match found.find(|name| !read.contains(name) && !is_buffer(name)) {
        None => Ok(()),
        Some(name) => {
            let what = format!("nothing in its configuration uses the tensor `{name}`");
            Err(bad_weights(path, what))
        }
    }
}

fn refuse_unread_gguf(path: &Path, file: &Gguf, architecture: &Architecture) -> Result<()> {
    let tensors = buffers(architecture).into_iter().flat_map(|buffer| buffer.tensors);
    let read: BTreeSet<String> = tensors.map(|tensor| tensor.name.gguf_name()).collect();
    // Of others llama.cpp's graphs divide no frequencies.
    let is_llama = matches!(architecture.family, Family::Llama | Family::Mistral);
    let divides = |name: &str| is_llama && name == configuration::gguf::ROPE_DIVISORS;
    let known = |name: &str| read.contains(name) || divides(name);
    match file.tensors.keys().find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => {
            let what = format!("nothing in its configuration uses the tensor `{name}`");
            Err(bad_weights(path, what))
        }
    }
}

/// `[columns, rows]` of a matrix of `[rows, columns]`.
pub fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |index| values.iter().skip(index).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}
