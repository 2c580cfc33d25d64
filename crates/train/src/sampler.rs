//! Which sequences make the next batch: a fresh order every epoch, by the seed alone.

use crate::batch::{Batch, Sequence};
use crate::error::Result;
use crate::split::Split;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// How much one forward pass takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub batch: usize,
    /// Longest sequence in tokens
    pub seq: usize,
    pub packing: Packing,
}

/// What `batch` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Sequences, whatever their length.
    Off,
    /// Rows of `seq` tokens, each filled with as many whole sequences as fit. A sequence sees no
    /// other, and its positions begin at zero.
    Rows,
}

/// The place in the data.
#[derive(Debug, Clone)]
pub struct Sampler<'a> {
    data: &'a Split,
    /// Sequences with a scored token, so that every batch has some.
    usable: Vec<usize>,
    order: Vec<usize>,
    seed: u64,
    pub epoch: u64,
    /// Sequences of this epoch that were used.
    pub position: u64,
}

impl<'a> Sampler<'a> {
    /// At a place of sequences that have a scored token within `seq`; there must be one.
    pub fn at(data: &'a Split, seq: usize, seed: u64, epoch: u64, position: u64) -> Self {
        let is_usable = |&index: &usize| data.is_scored(index, seq);
        let usable: Vec<usize> = (0..data.count()).filter(is_usable).collect();
        let order = order(seed, epoch, usable.len());
        Self { data, usable, order, seed, epoch, position }
    }

    /// Reads the sequences of the next batch.
    pub fn next_batch(&mut self, shape: Shape) -> Result<Batch> {
        let chosen = self.next_sequences(shape).into_iter();
        let read = chosen.map(|index| self.data.sequence(index, shape.seq));
        Ok(Batch::pack(&read.collect::<Result<Vec<Sequence>>>()?, shape.seq))
    }

    /// The rows of the split that make the next batch.
    pub fn next_sequences(&mut self, Shape { batch, seq, packing }: Shape) -> Vec<usize> {
        let mut chosen = Vec::new();
        for _ in 0..batch {
            let mut room = seq;
            loop {
                let next = self.peek();
                let length = self.data.length(next).min(seq);
                if length > room {
                    break;
                }
                room -= length;
                chosen.push(next);
                self.position += 1;
                if packing == Packing::Off {
                    break;
                }
            }
        }
        chosen
    }

    fn peek(&mut self) -> usize {
        if self.position as usize >= self.usable.len() {
            self.epoch += 1;
            self.position = 0;
            self.order = order(self.seed, self.epoch, self.usable.len());
        }
        self.usable[self.order[self.position as usize]]
    }
}

/// The order of one epoch's sequences.
fn order(seed: u64, epoch: u64, length: usize) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(epoch + 1);
    let mut order: Vec<usize> = (0..length).collect();
    for last in (1..length).rev() {
        let chosen = (u64::from(random.next_u32()) * (last as u64 + 1)) >> 32;
        order.swap(last, chosen as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(lengths: &[usize]) -> Split {
        let sequences = lengths.iter().map(|&length| Sequence {
            tokens: vec![length as u32; length],
            scored: vec![true; length],
        });
        Split::of_sequences(&sequences.collect::<Vec<_>>())
    }

    #[test]
    fn packed_rows_hold_all_sequences_whole_and_in_the_same_order() {
        let data = data(&[3, 9, 4, 2, 7, 5, 12, 2, 3]);
        let lengths = |packing, batches: usize| -> Vec<usize> {
            let mut sampler = Sampler::at(&data, 10, 5, 0, 0);
            let shape = Shape { batch: 2, seq: 10, packing };
            let batches = (0..batches).flat_map(|_| sampler.next_sequences(shape));
            batches.map(|index| data.length(index)).collect()
        };
        let packed = lengths(Packing::Rows, 4);
        assert!(packed.len() > 8, "rows of ten hold several: {packed:?}");
        assert_eq!(packed, lengths(Packing::Off, packed.len())[..packed.len()]);
        let mut sampler = Sampler::at(&data, 10, 5, 0, 0);
        for _ in 0..20 {
            let shape = Shape { batch: 2, seq: 10, packing: Packing::Rows };
            let batch = sampler.next_batch(shape).expect("it can be read");
            assert!(batch.tokens.len() <= 20 && batch.longest() <= 10);
            assert!(batch.tokens.len() > 8, "a row is left only where the next does not fit");
        }
    }

    #[test]
    fn a_sampler_continues_where_another_was() {
        let data = data(&[3, 4, 5, 6, 7]);
        let shape = Shape { batch: 2, seq: 8, packing: Packing::Off };
        let mut first = Sampler::at(&data, 8, 9, 0, 0);
        (0..4).for_each(|_| drop(first.next_sequences(shape)));
        let mut second = Sampler::at(&data, 8, 9, first.epoch, first.position);
        for _ in 0..9 {
            assert_eq!(first.next_sequences(shape), second.next_sequences(shape));
        }
    }
}
