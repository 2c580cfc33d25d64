//! What a handle holds in the memory of a Vulkan device.

use super::super::content::Content;
use crate::architecture::Architecture;
use crate::names::Part;
use crate::weights::{Layer, Outer, Pair};
use het_runtime::drivers::process::Portable;
use het_vulkan::kernels::View;
use het_vulkan::{Buffer, Device};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts of a layer that a device computes with, in the order in which they lie in its buffer.
pub const PARTS: [Part; 6] =
    [Part::AttentionNorm, Part::Qkv, Part::Output, Part::MlpNorm, Part::Up, Part::Down];

/// A content. Kernels of the one queue and whoever sends contents take turns.
#[derive(Debug, Default)]
pub struct Cell(Mutex<State>);

#[derive(Debug, Default)]
pub enum State {
    #[default]
    Empty,
    /// As it came, or what the processor computes with.
    Host(Content),
    Values(Values),
    Tape(Tape),
    Angles(Vec<Angles>),
}

/// Values on the device, and what they are.
#[derive(Debug)]
pub struct Values {
    pub buffer: Buffer,
    pub layout: Layout,
}

/// Lengths of what lies in a buffer, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Nothing but values.
    Plain(usize),
    /// [`PARTS`] of a layer.
    Layer([usize; 6]),
    /// Embedding, norm, and the head, whose length is 0 where the embedding serves.
    Outer([usize; 3]),
}

/// What a layer keeps for its backward.
#[derive(Debug)]
pub struct Tape {
    pub qkv: Buffer,
    pub probabilities: Buffer,
    pub mixed: Buffer,
    pub middle: Buffer,
    pub up: Buffer,
}

/// Of one rope.
#[derive(Debug)]
pub struct Angles {
    pub cosines: Buffer,
    pub sines: Buffer,
}

impl Layout {
    pub fn layer(architecture: &Architecture) -> Self {
        let Architecture { hidden, attention, mlp, .. } = architecture;
        Self::Layer([
            *hidden,
            attention.qkv_width() * hidden,
            hidden * attention.q_width(),
            *hidden,
            mlp.up_width() * hidden,
            hidden * mlp.feed_forward,
        ])
    }

    pub fn outer(architecture: &Architecture, has_head: bool) -> Self {
        let table = architecture.vocabulary * architecture.hidden;
        Self::Outer([table, architecture.hidden, if has_head { table } else { 0 }])
    }

    fn lengths(&self) -> &[usize] {
        match self {
            Self::Plain(length) => std::slice::from_ref(length),
            Self::Layer(lengths) => lengths,
            Self::Outer(lengths) => lengths,
        }
    }

    pub fn length(&self) -> usize {
        self.lengths().iter().sum()
    }
}

impl Values {
    pub fn new(device: &Device, layout: Layout) -> Result<Self, String> {
        let buffer = device.buffer(layout.length()).map_err(|error| error.to_string())?;
        Ok(Self { buffer, layout })
    }

    /// The part of this place.
    pub fn part(&self, place: usize) -> View<'_> {
        let lengths = self.layout.lengths();
        self.buffer.view().part(lengths[..place].iter().sum(), lengths[place])
    }

    /// As the processor has it.
    fn to_content(&self) -> Content {
        let part = |place: usize| self.part(place).to_vec();
        let pair = |place: usize| Pair { weight: part(place), ..Pair::default() };
        match self.layout {
            Layout::Plain(_) => Content::Values(part(0)),
            Layout::Layer(_) => {
                let mut layer = Layer::default();
                for (place, own) in PARTS.into_iter().enumerate() {
                    *layer.part_mut(own) = pair(place);
                }
                Content::Layer(Box::new(layer))
            }
            Layout::Outer(_) => Content::Outer(Arc::new(Outer {
                embedding: part(0),
                norm: pair(1),
                head: part(2),
                ..Outer::default()
            })),
        }
    }

    /// Copies a content to a device; none of one that is no values.
    fn of(device: &Device, content: &Content) -> Option<Result<Self, String>> {
        let (layout, parts) = match content {
            Content::Values(values) => {
                (Layout::Plain(values.len()), vec![Cow::Borrowed(&**values)])
            }
            Content::Layer(layer) => {
                let parts = PARTS.map(|part| layer.part(part).values());
                (Layout::Layer(parts.each_ref().map(|part| part.len())), parts.into())
            }
            Content::Outer(outer) => {
                let parts = [outer.embedding_values(), outer.norm.values(), outer.head_values()];
                (Layout::Outer(parts.each_ref().map(|part| part.len())), parts.into())
            }
            _ => return None,
        };
        Some(Self::new(device, layout).inspect(|own| {
            for (place, values) in parts.iter().enumerate() {
                own.part(place).set(values);
            }
        }))
    }
}

impl Cell {
    pub fn state(&self) -> MutexGuard<'_, State> {
        // A kernel that panicked leaves no content, which the coordinator knows.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The values, which are brought to the device the first time that it needs them.
    pub fn on(&self, device: &Device, wanted: Layout) -> Result<Held<'_>, String> {
        let mut state = self.state();
        if let State::Host(content) = &*state
            && let Some(values) = Values::of(device, content)
        {
            *state = State::Values(values?);
        }
        match &*state {
            State::Values(own) if own.layout == wanted => Ok(Held(state)),
            _ => Err(format!("a handle does not hold {} values", wanted.length())),
        }
    }

    /// The same to be written whole, whatever it held.
    pub fn fresh(&self, device: &Device, wanted: Layout) -> Result<Held<'_>, String> {
        let mut state = self.state();
        if !matches!(&*state, State::Values(own) if own.layout == wanted) {
            *state = State::Empty;
            *state = State::Values(Values::new(device, wanted)?);
        }
        Ok(Held(state))
    }
}

/// Values of a cell, while a kernel uses them.
pub struct Held<'c>(MutexGuard<'c, State>);

impl std::ops::Deref for Held<'_> {
    type Target = Values;

    fn deref(&self) -> &Values {
        match &*self.0 {
            State::Values(values) => values,
            _ => unreachable!("it was just made so"),
        }
    }
}

/// A worker has one memory: nothing is copied there but what is sent.
impl Clone for Cell {
    fn clone(&self) -> Self {
        let state = match &*self.state() {
            State::Host(content) => State::Host(content.clone()),
            State::Values(values) => State::Host(values.to_content()),
            State::Empty | State::Tape(_) | State::Angles(_) => State::Empty,
        };
        Self(Mutex::new(state))
    }
}

impl Portable for Cell {
    fn to_bytes(&self) -> Vec<u8> {
        match &*self.state() {
            State::Host(content) => content.to_bytes(),
            State::Values(values) => values.to_content().to_bytes(),
            State::Empty | State::Tape(_) | State::Angles(_) => Content::Empty.to_bytes(),
        }
    }

    fn from_bytes(bytes: Vec<u8>) -> Result<Self, String> {
        Content::from_bytes(bytes).map(|content| Self(Mutex::new(State::Host(content))))
    }
}
