//! What crosses to a worker in another process, as bytes: weights, an adapter's values, gradients,
//! batches and losses. The rest is made and used on one device.
//!
//! A kind, and then its lists, each with its length before it; numbers are little-endian.

use super::content::Content;
use crate::batch::Batch;
use crate::weights::{Layer, Outer, PARTS, Pair, Rounded};
use bytemuck::{AnyBitPattern, NoUninit};
use het_blocks::bf16;
use het_runtime::drivers::process::Portable;
use std::sync::Arc;

/// The first byte.
const VALUES: u8 = 1;
const LAYER: u8 = 2;
const OUTER: u8 = 3;
const BATCH: u8 = 4;
const LOSS: u8 = 5;

/// Bytes of a list's length.
const LENGTH: usize = size_of::<u64>();

/// Takes the lists of a content in their order.
trait Sink {
    fn list<T: NoUninit>(&mut self, list: &[T]);
}

struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn list<T: NoUninit>(&mut self, list: &[T]) {
        self.0.extend((list.len() as u64).to_le_bytes());
        self.0.extend_from_slice(bytemuck::cast_slice(list));
    }
}

struct Count(u64);

impl Sink for Count {
    fn list<T: NoUninit>(&mut self, list: &[T]) {
        self.0 += (LENGTH + size_of_val(list)) as u64;
    }
}

impl Content {
    /// Hands its lists over; its kind, where it is one that crosses.
    fn lists(&self, into: &mut impl Sink) -> Option<u8> {
        match self {
            Self::Values(values) => {
                into.list(values);
                Some(VALUES)
            }
            Self::Layer(layer) if !layer.is_in_integers() => {
                layer_lists(layer, into);
                Some(LAYER)
            }
            Self::Frozen(frozen) if !frozen.layer().is_in_integers() => {
                layer_lists(frozen.layer(), into);
                Some(LAYER)
            }
            Self::Outer(outer) if !outer.is_in_integers() => {
                let Outer { embedding, positions, norm, head, .. } = &**outer;
                for list in [embedding, positions, &norm.weight, &norm.bias, head] {
                    into.list(list);
                }
                for matrix in [&outer.rounded_embedding, &outer.rounded_head] {
                    bf16_lists(matrix, into);
                }
                Some(OUTER)
            }
            Self::Batch(Batch { tokens, bounds, rows, targets }) => {
                let wide = |places: &[usize]| places.iter().map(|at| *at as u64).collect();
                let (bounds, rows): (Vec<u64>, Vec<u64>) = (wide(bounds), wide(rows));
                into.list(tokens);
                into.list(&bounds);
                into.list(&rows);
                into.list(targets);
                Some(BATCH)
            }
            Self::Loss(loss) => {
                into.list(&[*loss]);
                Some(LOSS)
            }
            _ => None,
        }
    }

    /// Bytes of what is known when it is put in: of the rest whoever registers it says so.
    pub fn bytes(&self) -> u64 {
        let mut count = Count(1);
        match self.lists(&mut count) {
            Some(_) => count.0,
            None => self.own_bytes(),
        }
    }
}

fn layer_lists(layer: &Layer, into: &mut impl Sink) {
    for part in PARTS {
        let Pair { weight, rounded, bias } = layer.part(part);
        into.list(weight);
        bf16_lists(rounded, into);
        into.list(bias);
    }
}

/// The width and the bits of a matrix in bf16; nothing of what is in f32.
fn bf16_lists(matrix: &Option<Rounded>, into: &mut impl Sink) {
    match matrix {
        Some(Rounded::Bf16(matrix)) => {
            into.list(&[matrix.inputs as u64]);
            into.list(matrix.bits());
        }
        Some(Rounded::Integers(_)) | None => into.list::<u64>(&[]),
    }
}

/// Bytes that are left to read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn list<T: NoUninit + AnyBitPattern>(&mut self) -> Option<Vec<T>> {
        let (length, rest) = self.0.split_first_chunk::<LENGTH>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (list, rest) = rest.split_at_checked(length.checked_mul(size_of::<T>())?)?;
        self.0 = rest;
        Some(list.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    fn places(&mut self) -> Option<Vec<usize>> {
        let wide: Vec<u64> = self.list()?;
        wide.into_iter().map(|at| usize::try_from(at).ok()).collect()
    }

    /// A matrix in bf16 where there is one; none where it is no whole rows.
    fn bf16(&mut self) -> Option<Option<Rounded>> {
        match *self.places()? {
            [] => Some(None),
            [inputs] => {
                let matrix = bf16::Matrix::of_bits(self.list()?, inputs)?;
                Some(Some(Rounded::Bf16(Arc::new(matrix))))
            }
            _ => None,
        }
    }

    fn content(&mut self, kind: u8) -> Option<Content> {
        Some(match kind {
            VALUES => Content::Values(self.list()?),
            LAYER => {
                let mut layer = Layer::default();
                for part in PARTS {
                    let (weight, rounded) = (self.list()?, self.bf16()?);
                    *layer.part_mut(part) = Pair { weight, rounded, bias: self.list()? };
                }
                Content::Layer(Box::new(layer))
            }
            OUTER => {
                let mut next = || self.list();
                let (embedding, positions) = (next()?, next()?);
                let norm = Pair { weight: next()?, bias: next()?, rounded: None };
                let head = next()?;
                let (rounded_embedding, rounded_head) = (self.bf16()?, self.bf16()?);
                Content::Outer(Arc::new(Outer {
                    embedding,
                    positions,
                    norm,
                    head,
                    rounded_embedding,
                    rounded_head,
                }))
            }
            BATCH => {
                let (tokens, bounds) = (self.list()?, self.places()?);
                let (rows, targets) = (self.places()?, self.list()?);
                let batch = Batch { tokens, bounds, rows, targets };
                Content::Batch(Some(batch).filter(Batch::is_whole)?)
            }
            LOSS => Content::Loss(*self.list()?.first()?),
            _ => return None,
        })
    }
}

impl Portable for Content {
    fn to_bytes(&self) -> Vec<u8> {
        // Of what never crosses there is nothing, which whoever asked for it refuses.
        let mut bytes = Bytes(Vec::with_capacity(self.bytes() as usize));
        bytes.0.push(0);
        if let Some(kind) = self.lists(&mut bytes) {
            bytes.0[0] = kind;
        }
        bytes.0
    }

    fn from_bytes(bytes: Vec<u8>) -> Result<Self, String> {
        let read = || {
            let (kind, rest) = bytes.split_first()?;
            let mut rest = Rest(rest);
            let content = rest.content(*kind)?;
            rest.0.is_empty().then_some(content)
        };
        read().ok_or_else(|| format!("{} bytes are nothing that crosses", bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::Frozen;
    use super::*;
    use crate::batch::Sequence;
    use crate::weights::Parameters;
    use crate::{precision, tiny};

    fn crossed(content: &Content) -> Content {
        let bytes = content.to_bytes();
        assert_eq!(bytes.len() as u64, content.bytes());
        // Whatever is cut off or added, it is refused.
        for length in 0..bytes.len().min(300) {
            assert!(Content::from_bytes(bytes[..length].to_vec()).is_err());
        }
        assert!(Content::from_bytes([&bytes[..], &[0]].concat()).is_err());
        Content::from_bytes(bytes).expect("it crosses")
    }

    #[test]
    fn what_crosses_is_the_same() {
        let weights = Arc::new(tiny::weights(1));
        let first = &weights.parameters.layers[0];
        for content in [
            Content::Layer(Box::new(first.clone())),
            Content::Frozen(Frozen { weights: Arc::clone(&weights), layer: 0 }),
        ] {
            let Content::Layer(layer) = crossed(&content) else { panic!("a layer") };
            assert_eq!(*layer, *first);
        }
        let mut rounded = tiny::weights(1);
        precision::store_in_bf16(&mut rounded.parameters, &rounded.architecture);
        let Parameters { outer, layers } = rounded.parameters;
        let Content::Layer(layer) = crossed(&Content::Layer(Box::new(layers[1].clone()))) else {
            panic!("a layer")
        };
        assert_eq!(*layer, layers[1]);
        let own = crossed(&Content::Outer(Arc::clone(&outer)));
        assert!(matches!(own, Content::Outer(own) if own == outer));
        let outer = crossed(&Content::Outer(Arc::clone(&weights.parameters.outer)));
        assert!(matches!(outer, Content::Outer(outer) if outer == weights.parameters.outer));
        let values = vec![1.0, f32::MIN_POSITIVE, -0.0];
        assert!(matches!(crossed(&Content::Values(values.clone())), Content::Values(own)
            if own == values));
        assert!(matches!(crossed(&Content::Loss(0.1)), Content::Loss(0.1)));
        let sequence = Sequence { tokens: vec![1, 2, 3], scored: vec![true; 3] };
        let batch = Batch::pack([&sequence, &sequence], 9);
        let Content::Batch(own) = crossed(&Content::Batch(batch.clone())) else {
            panic!("a batch")
        };
        assert_eq!((own.tokens, own.bounds), (batch.tokens, batch.bounds));
        assert_eq!((own.rows, own.targets), (batch.rows, batch.targets));
    }

    #[test]
    fn what_never_crosses_is_refused() {
        assert!(Content::from_bytes(Content::Empty.to_bytes()).is_err());
        assert!(Content::from_bytes(Vec::new()).is_err());
        let broken = Batch { bounds: vec![0, 5, 3], ..Batch::default() };
        assert!(Content::from_bytes(Content::Batch(broken).to_bytes()).is_err());
        let endless = [&[VALUES][..], &u64::MAX.to_le_bytes()].concat();
        assert!(Content::from_bytes(endless).is_err());
    }
}
