//! The tensors of a model: which buffer each lies in, and its names in files.

use crate::architecture::{Architecture, Family, HeadWeight, Positions, PostNorms};
use het_blocks::mlp::Gate;

/// A place in the network that has weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    Embedding,
    Positions,
    Norm,
    Head,
    Layer(usize, Part),
}

/// A place in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    AttentionNorm,
    Qkv,
    QueryNorm,
    KeyNorm,
    Output,
    AttentionPostNorm,
    MlpNorm,
    /// Gates and ups where there are gates.
    Up,
    Down,
    MlpPostNorm,
}

/// What a tensor holds of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    Whole,
    Query,
    Key,
    Value,
    Gate,
    Up,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Weight,
    Bias,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    pub site: Site,
    pub piece: Piece,
    pub kind: Kind,
}

/// One tensor of a file; `shape` is slowest-varying first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: Name,
    pub shape: Vec<usize>,
}

/// Tensors that lie one below the other in one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    pub site: Site,
    pub kind: Kind,
    pub tensors: Vec<Tensor>,
}

impl Buffer {
    /// The inputs of a matrix that products are computed with; none of what is added, looked up by
    /// position or scales.
    pub fn inputs(&self) -> Option<usize> {
        let tensor = self.tensors.first().filter(|_| self.site != Site::Positions)?;
        match *tensor.shape {
            [_, inputs] => Some(inputs),
            _ => None,
        }
    }
}

/// Every buffer of a model, in the order of its blocks.
pub fn buffers(architecture: &Architecture) -> Vec<Buffer> {
    let hidden = architecture.hidden;
    let whole = |site, kind, shape: Vec<usize>| {
        let name = Name { site, piece: Piece::Whole, kind };
        Buffer { site, kind, tensors: vec![Tensor { name, shape }] }
    };
    let mut all = vec![whole(Site::Embedding, Kind::Weight, vec![architecture.vocabulary, hidden])];
    if architecture.positions == Positions::Learned {
        let shape = vec![architecture.positions_max, hidden];
        all.push(whole(Site::Positions, Kind::Weight, shape));
    }
    for index in 0..architecture.layers.len() {
        for part in parts(architecture) {
            all.extend(layer_buffers(architecture, index, part));
        }
    }
    all.push(whole(Site::Norm, Kind::Weight, vec![hidden]));
    if architecture.norm_has_bias() {
        all.push(whole(Site::Norm, Kind::Bias, vec![hidden]));
    }
    if architecture.head == HeadWeight::Own {
        all.push(whole(Site::Head, Kind::Weight, vec![architecture.vocabulary, hidden]));
    }
    all
}

/// The places of a layer that this model has.
fn parts(architecture: &Architecture) -> Vec<Part> {
    let norms = architecture.attention.norm.is_some();
    let post_norms = architecture.post_norms == PostNorms::Both;
    let all = [
        (Part::AttentionNorm, true),
        (Part::Qkv, true),
        (Part::QueryNorm, norms),
        (Part::KeyNorm, norms),
        (Part::Output, true),
        (Part::AttentionPostNorm, post_norms),
        (Part::MlpNorm, true),
        (Part::Up, true),
        (Part::Down, true),
        (Part::MlpPostNorm, post_norms),
    ];
    all.into_iter().filter(|&(_, has)| has).map(|(part, _)| part).collect()
}

/// Weight and, where there is one, bias.
fn layer_buffers(architecture: &Architecture, index: usize, part: Part) -> Vec<Buffer> {
    let Architecture { hidden, biases, .. } = *architecture;
    let (columns, has_bias) = match part {
        Part::Qkv => (Some(hidden), biases.qkv),
        Part::Output => (Some(architecture.attention.q_width()), biases.output),
        Part::Up => (Some(hidden), biases.mlp),
        Part::Down => (Some(architecture.mlp.feed_forward), biases.mlp),
        Part::QueryNorm | Part::KeyNorm => (None, false),
        _ => (None, architecture.norm_has_bias()),
    };
    let site = Site::Layer(index, part);
    let buffer = |kind, columns: Option<usize>| {
        let tensors = pieces(architecture, part).into_iter().map(|(piece, rows)| Tensor {
            name: Name { site, piece, kind },
            shape: [rows].into_iter().chain(columns).collect(),
        });
        Buffer { site, kind, tensors: tensors.collect() }
    };
    let bias = has_bias.then(|| buffer(Kind::Bias, None));
    [buffer(Kind::Weight, columns)].into_iter().chain(bias).collect()
}

/// The rows of a layer's matrix, tensor by tensor.
pub fn pieces(architecture: &Architecture, part: Part) -> Vec<(Piece, usize)> {
    let shape = &architecture.attention;
    let wide = architecture.mlp.feed_forward;
    match part {
        Part::Qkv if architecture.family == Family::Gpt2 => {
            vec![(Piece::Whole, shape.qkv_width())]
        }
        Part::Qkv => vec![
            (Piece::Query, shape.q_width()),
            (Piece::Key, shape.kv_width()),
            (Piece::Value, shape.kv_width()),
        ],
        Part::Up if architecture.mlp.gate == Gate::Gated => {
            vec![(Piece::Gate, wide), (Piece::Up, wide)]
        }
        Part::Up => vec![(Piece::Whole, wide)],
        Part::QueryNorm | Part::KeyNorm => vec![(Piece::Whole, shape.head_size)],
        _ => vec![(Piece::Whole, architecture.hidden)],
    }
}

impl Part {
    /// Whether its weight is that of a linear layer, not of a norm.
    pub fn is_matrix(self) -> bool {
        matches!(self, Self::Qkv | Self::Output | Self::Up | Self::Down)
    }
}

impl Tensor {
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }

    /// Values of a row; of a bias, one.
    pub fn columns(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }
}

/// What stands before the names of tensors below the head.
pub fn prefix(family: Family) -> &'static str {
    match family {
        Family::Gpt2 => "transformer.",
        _ => "model.",
    }
}

impl Name {
    /// Whether the file holds the transposed matrix: GPT-2's `Conv1D` keeps `[in, out]`.
    pub fn is_transposed(self, family: Family) -> bool {
        family == Family::Gpt2
            && self.kind == Kind::Weight
            && matches!(self.site, Site::Layer(_, part) if part.is_matrix())
    }

    /// The name in files of Hugging Face.
    pub fn hub_name(self, family: Family) -> String {
        format!("{}.{}", self.hub_module(family), self.ending())
    }

    /// As [`Name::hub_name`], without `.weight` or `.bias`.
    pub fn hub_module(self, family: Family) -> String {
        let prefix = prefix(family);
        match (self.site, family) {
            (Site::Head, _) => "lm_head".into(),
            (Site::Embedding, Family::Gpt2) => format!("{prefix}wte"),
            (Site::Embedding, _) => format!("{prefix}embed_tokens"),
            (Site::Positions, _) => format!("{prefix}wpe"),
            (Site::Norm, Family::Gpt2) => format!("{prefix}ln_f"),
            (Site::Norm, _) => format!("{prefix}norm"),
            (Site::Layer(layer, part), Family::Gpt2) => {
                format!("{prefix}h.{layer}.{}", gpt2_part(part))
            }
            (Site::Layer(layer, part), _) => {
                format!("{prefix}layers.{layer}.{}", decoder_part(family, part, self.piece))
            }
        }
    }

    /// The name in a GGUF.
    pub fn gguf_name(self) -> String {
        let module = match self.site {
            Site::Embedding => "token_embd".into(),
            Site::Positions => "position_embd".into(),
            Site::Norm => "output_norm".into(),
            Site::Head => "output".into(),
            Site::Layer(layer, part) => format!("blk.{layer}.{}", gguf_part(part, self.piece)),
        };
        format!("{module}.{}", self.ending())
    }

    fn ending(self) -> &'static str {
        match self.kind {
            Kind::Weight => "weight",
            Kind::Bias => "bias",
        }
    }
}

fn gpt2_part(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "ln_1",
        Part::Qkv => "attn.c_attn",
        Part::Output => "attn.c_proj",
        Part::MlpNorm => "ln_2",
        Part::Up => "mlp.c_fc",
        Part::Down => "mlp.c_proj",
        // No GPT-2 has them.
        Part::QueryNorm | Part::KeyNorm | Part::AttentionPostNorm | Part::MlpPostNorm => "",
    }
}

fn decoder_part(family: Family, part: Part, piece: Piece) -> &'static str {
    let has_post_norms = matches!(family, Family::Gemma2 | Family::Gemma3);
    match (part, piece) {
        (Part::AttentionNorm, _) => "input_layernorm",
        (Part::Qkv, Piece::Key) => "self_attn.k_proj",
        (Part::Qkv, Piece::Value) => "self_attn.v_proj",
        (Part::Qkv, _) => "self_attn.q_proj",
        (Part::QueryNorm, _) => "self_attn.q_norm",
        (Part::KeyNorm, _) => "self_attn.k_norm",
        (Part::Output, _) => "self_attn.o_proj",
        (Part::AttentionPostNorm, _) => "post_attention_layernorm",
        (Part::MlpNorm, _) if has_post_norms => "pre_feedforward_layernorm",
        (Part::MlpNorm, _) => "post_attention_layernorm",
        (Part::Up, Piece::Gate) => "mlp.gate_proj",
        (Part::Up, _) => "mlp.up_proj",
        (Part::Down, _) => "mlp.down_proj",
        (Part::MlpPostNorm, _) => "post_feedforward_layernorm",
    }
}

fn gguf_part(part: Part, piece: Piece) -> &'static str {
    match (part, piece) {
        (Part::AttentionNorm, _) => "attn_norm",
        (Part::Qkv, Piece::Key) => "attn_k",
        (Part::Qkv, Piece::Value) => "attn_v",
        (Part::Qkv, Piece::Whole) => "attn_qkv",
        (Part::Qkv, _) => "attn_q",
        (Part::QueryNorm, _) => "attn_q_norm",
        (Part::KeyNorm, _) => "attn_k_norm",
        (Part::Output, _) => "attn_output",
        (Part::AttentionPostNorm, _) => "post_attention_norm",
        (Part::MlpNorm, _) => "ffn_norm",
        (Part::Up, Piece::Gate) => "ffn_gate",
        (Part::Up, _) => "ffn_up",
        (Part::Down, _) => "ffn_down",
        (Part::MlpPostNorm, _) => "post_ffw_norm",
    }
}
