//! Seeded randomness: one stream for each thing that is drawn, so that a draw for one changes no
//! other, whatever order threads come in.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of draws.
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// The stream that is called so under `seed`.
    pub fn of(seed: u64, name: &str) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(fnv1a(name));
        Self(generator)
    }

    /// Uniform in `low..=high`; the bias of the remainder is below 2⁻³² for the spans used here.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next_u64() % (high - low + 1)
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 99) < percent
    }

    /// `None` where there is nothing to pick from.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let last = items.len().checked_sub(1)?;
        Some(items[self.between(0, last as u64) as usize])
    }
}

/// Fowler, Noll and Vo's hash, 64 bits.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
