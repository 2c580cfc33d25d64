//! What the handles of a step hold in a memory.

use crate::batch::Batch;
use crate::cpu::layer::Tape;
use crate::optimiser::{AdamW, Request, Rule};
use crate::weights::{Layer, Outer, Weights};
use het_blocks::rotation::Table;
use std::sync::Arc;

/// The content of a handle; empty before anything was written.
#[derive(Debug, Clone, Default)]
pub(super) enum Content {
    #[default]
    Empty,
    /// Of the weights, or their gradient.
    Outer(Arc<Outer>),
    Layer(Box<Layer>),
    Frozen(Frozen),
    /// Angles of each rope.
    Angles(Vec<Table>),
    /// A residual stream, its gradient, or what an adapter has of one layer.
    Values(Vec<f32>),
    Moments(AdamW),
    Batch(Batch),
    Tape(Box<Tape>),
    Loss(f64),
    Request(Request),
    /// None where the gradients are not finite.
    Rule(Option<Rule>),
    IsFinite(bool),
}

/// One layer of weights that nobody changes.
#[derive(Debug, Clone)]
pub(super) struct Frozen {
    pub weights: Arc<Weights>,
    pub layer: usize,
}

impl Frozen {
    pub fn layer(&self) -> &Layer {
        &self.weights.parameters.layers[self.layer]
    }
}

/// A kind of content.
pub(super) trait Kind: Sized {
    const NAME: &'static str;

    fn get(content: &Content) -> Option<&Self>;

    fn get_mut(content: &mut Content) -> Option<&mut Self>;
}

/// The content as this kind.
///
/// # Errors
/// Another kind.
pub(super) fn get<T: Kind>(content: &Content) -> Result<&T, String> {
    T::get(content).ok_or_else(|| format!("a handle does not hold {}", T::NAME))
}

/// The same to change it.
///
/// # Errors
/// Another kind.
pub(super) fn get_mut<T: Kind>(content: &mut Content) -> Result<&mut T, String> {
    T::get_mut(content).ok_or_else(|| format!("a handle does not hold {}", T::NAME))
}

/// The content as this kind, to be written whole: buffers of an earlier one stay.
pub(super) fn fill<T: Kind + Default + Into<Content>>(content: &mut Content) -> &mut T {
    if T::get(content).is_none() {
        *content = T::default().into();
    }
    T::get_mut(content).expect("it was just made one")
}

macro_rules! kinds {
    ($($type:ty, $name:literal, $variant:ident;)*) => { $(
        impl Kind for $type {
            const NAME: &'static str = $name;

            fn get(content: &Content) -> Option<&Self> {
                if let Content::$variant(own) = content { Some(own) } else { None }
            }

            fn get_mut(content: &mut Content) -> Option<&mut Self> {
                if let Content::$variant(own) = content { Some(own) } else { None }
            }
        }

        impl From<$type> for Content {
            fn from(own: $type) -> Self {
                Self::$variant(own.into())
            }
        }
    )* };
}

kinds! {
    Vec<Table>, "angles", Angles;
    Vec<f32>, "values", Values;
    AdamW, "moments", Moments;
    Batch, "a batch", Batch;
    Tape, "what a layer keeps", Tape;
    f64, "a loss", Loss;
    Request, "a request", Request;
    Option<Rule>, "a rule", Rule;
    bool, "whether all is finite", IsFinite;
}

impl Kind for Layer {
    const NAME: &'static str = "a layer";

    fn get(content: &Content) -> Option<&Self> {
        match content {
            Content::Layer(layer) => Some(layer),
            Content::Frozen(frozen) => Some(frozen.layer()),
            _ => None,
        }
    }

    fn get_mut(content: &mut Content) -> Option<&mut Self> {
        if let Content::Layer(layer) = content { Some(layer) } else { None }
    }
}

impl Kind for Outer {
    const NAME: &'static str = "what lies around the layers";

    fn get(content: &Content) -> Option<&Self> {
        if let Content::Outer(outer) = content { Some(outer) } else { None }
    }

    fn get_mut(content: &mut Content) -> Option<&mut Self> {
        if let Content::Outer(outer) = content { Some(Arc::make_mut(outer)) } else { None }
    }
}

impl Content {
    /// The layer for whoever takes it over: a frozen one is copied.
    pub fn into_layer(self) -> Option<Layer> {
        match self {
            Self::Layer(layer) => Some(*layer),
            Self::Frozen(frozen) => Some(frozen.layer().clone()),
            _ => None,
        }
    }

    /// Memory of what does not cross.
    pub fn own_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Outer(outer) => outer.bytes(),
            Self::Layer(layer) => layer.bytes(),
            Self::Frozen(frozen) => frozen.layer().bytes(),
            Self::Moments(AdamW { first, second }) => {
                size_of_val(&**first) + size_of_val(&**second)
            }
            _ => size_of::<Self>(),
        };
        bytes as u64
    }
}
