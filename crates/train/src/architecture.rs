//! The description of a model: which blocks it has, of what shape, and how they are joined.
//!
//! One struct describes every family. A residual layer is
//! `x += [post norm](attention(norm(x)))`, then `x += [post norm](mlp(norm(x)))`.

use crate::error::{Error, Result};
use het_blocks::attention;
use het_blocks::mlp;
use het_blocks::norm::{Kind, Norm};
use het_blocks::rotation::Rope;

/// The families whose configurations and tensor names are known. Nothing that computes asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma2,
    Gemma3,
    Gpt2,
    SmolLm3,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    pub family: Family,
    pub hidden: usize,
    pub vocabulary: usize,
    pub positions_max: usize,
    /// What rows of the token table are multiplied by.
    pub embedding_scale: f32,
    /// The token whose row has no gradient as an input.
    pub padding: Option<u32>,
    pub positions: Positions,
    /// Of the residual stream, before every block and before the head.
    pub norm: Norm,
    pub post_norms: PostNorms,
    /// Heads and their norms; scale and window are each layer's own.
    pub attention: attention::Shape,
    pub mlp: mlp::Shape,
    pub biases: Biases,
    pub layers: Vec<LayerShape>,
    /// Rotations that layers choose from.
    pub ropes: Vec<Rope>,
    pub head: HeadWeight,
    pub logit_cap: Option<f32>,
    /// Regularisation that the configuration asks for in training and that is not applied.
    pub dropout: Vec<String>,
}

/// What differs between layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerShape {
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// How many positions a token sees, its own included.
    pub window: Option<usize>,
    /// Index into [`Architecture::ropes`]
    pub rope: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// A table of their own is added to the embeddings.
    Learned,
    /// Queries and keys are rotated, in the layers that name a rope.
    Rotated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostNorms {
    None,
    /// Results of attention and MLP are normalised before they join the residual stream.
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadWeight {
    /// The token table.
    Tied,
    Own,
}

/// Which linear layers have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    pub qkv: bool,
    pub output: bool,
    pub mlp: bool,
}

impl Architecture {
    /// The shape of one layer's attention.
    pub fn attention_of(&self, layer: usize) -> attention::Shape {
        let LayerShape { scale, window, .. } = self.layers[layer];
        attention::Shape { scale, window, ..self.attention }
    }

    pub fn norm_has_bias(&self) -> bool {
        self.norm.kind == Kind::Layer
    }

    /// Refuses shapes that no forward pass can compute, by what is wrong.
    pub fn check(&self) -> std::result::Result<(), String> {
        let attention::Shape { heads, kv_heads, head_size, .. } = self.attention;
        let sizes = [self.hidden, self.vocabulary, self.positions_max, self.mlp.feed_forward];
        if sizes.contains(&0) || [heads, kv_heads, head_size, self.layers.len()].contains(&0) {
            return Err("its configuration has a size of zero".into());
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(format!("{heads} heads cannot share {kv_heads} key/value heads"));
        }
        if self.positions == Positions::Rotated && !head_size.is_multiple_of(2) {
            return Err(format!("head size {head_size} is odd"));
        }
        Ok(())
    }

    /// Refuses a sequence length that the positions of these weights do not reach.
    pub fn check_length(&self, tokens: usize) -> Result<()> {
        if tokens <= self.positions_max {
            return Ok(());
        }
        Err(Error::Usage {
            what: format!(
                "{tokens} tokens are more than the {} positions of the weights",
                self.positions_max
            ),
            hint: "lower `--seq`",
        })
    }
}
