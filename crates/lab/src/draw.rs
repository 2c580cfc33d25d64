//! Seeded randomness: one stream an entity, so that adding a draw for one changes no other.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of draws.
#[derive(Debug, Clone)]
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// The stream of entity number `stream` under `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// Uniform in `low..=high`; the bias of the remainder is below 2⁻³² for the spans used here.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range has no draw");
        low + self.0.next_u64() % (high - low + 1)
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 99) < percent
    }

    /// Exponential with that mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.part().ln()
    }

    /// Uniform in (0, 1].
    pub fn part(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A lognormal factor with median one: e to a normal of deviation `sigma` (Box and Muller
    /// 1958). One for a `sigma` of zero, which draws nothing.
    pub fn lognormal(&mut self, sigma: f64) -> f64 {
        if sigma == 0.0 {
            return 1.0;
        }
        let radius = (-2.0 * self.part().ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.part()).cos();
        (sigma * normal).exp()
    }

    /// All orders equally likely (Fisher and Yates 1938).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.between(0, last as u64) as usize);
        }
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.between(0, items.len() as u64 - 1) as usize]
    }
}
