//! Where the time of a step goes, by kind of work.
//!
//! Each thread counts what it waits for itself, which for a task of a step is the thread of its
//! device: work that it hands to the pool is one span, and what the pool's threads do within it is
//! not counted again. Nothing that is computed depends on
//! it.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A kind of work, which no other contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Products with whole weight matrices: outputs, gradients of inputs, gradients of weights.
    Products,
    /// Products with the low-rank matrices of adapters, and working them into the weights.
    LowRank,
    /// Scores, softmax and mixing, with rotation and the norms of heads.
    Attention,
    Norms,
    Activations,
    /// Cross-entropy over the vocabulary.
    Loss,
    /// The norm of the gradients and the update.
    Optimiser,
}

/// Every kind, with the name that reports have for it.
pub const WORK: [(Work, &str); 7] = [
    (Work::Products, "products"),
    (Work::LowRank, "low_rank"),
    (Work::Attention, "attention"),
    (Work::Norms, "norms"),
    (Work::Activations, "activations"),
    (Work::Loss, "loss"),
    (Work::Optimiser, "optimiser"),
];

/// What the calling thread has spent since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    times: [Duration; WORK.len()],
    /// Floating-point operations of [`Work::Products`]: two for a multiplication with its sum.
    pub operations: f64,
}

impl Spent {
    pub fn time(&self, work: Work) -> Duration {
        self.times[work as usize]
    }

    /// What was spent since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut times = self.times;
        times.iter_mut().zip(before.times).for_each(|(time, before)| *time -= before);
        Self { times, operations: self.operations - before.operations }
    }

    /// Counts what was spent elsewhere, too.
    pub fn add(&mut self, other: &Self) {
        self.times.iter_mut().zip(other.times).for_each(|(time, other)| *time += other);
        self.operations += other.operations;
    }
}

thread_local! {
    static SPENT: Cell<Spent> = const {
        Cell::new(Spent { times: [Duration::ZERO; WORK.len()], operations: 0.0 })
    };
}

/// What the calling thread has spent.
pub fn spent() -> Spent {
    SPENT.get()
}

/// Does some work, and counts its time for the calling thread.
pub fn spend<T>(work: Work, run: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = run();
    let mut spent = SPENT.get();
    spent.times[work as usize] += began.elapsed();
    SPENT.set(spent);
    result
}

/// As [`spend`], for a product `[rows, inner] × [inner, columns]` of [`Work::Products`].
pub fn spend_product<T>(rows: usize, inner: usize, columns: usize, run: impl FnOnce() -> T) -> T {
    let result = spend(Work::Products, run);
    let mut spent = SPENT.get();
    spent.operations += 2.0 * rows as f64 * inner as f64 * columns as f64;
    SPENT.set(spent);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_by_its_kind_and_for_its_thread() {
        for (index, (work, _)) in WORK.into_iter().enumerate() {
            assert_eq!(work as usize, index);
        }
        let before = spent();
        assert_eq!(spend_product(2, 3, 5, || 7), 7);
        std::thread::spawn(|| spend_product(1, 1, 1, || ())).join().expect("it ends");
        let since = spent().since(&before);
        assert_eq!(since.operations, 60.0);
        assert_eq!(since.time(Work::Loss), Duration::ZERO);
    }
}
