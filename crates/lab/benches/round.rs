//! One round of `adaptive` beside one of `fifo` on the same cluster and queue: quote the ratio.

use criterion::{Criterion, criterion_group, criterion_main};
use het_lab::{RoundBench, bench_rounds};
use het_policy::by_name;

fn rounds(criterion: &mut Criterion) {
    let size = RoundBench { nodes: 64, devices_per_node: 8, jobs: 1_000, rounds: 20, seed: 1 };
    for name in ["fifo", "adaptive"] {
        let policy = by_name(name).expect("the table has it");
        criterion.bench_function(&format!("20 rounds of {name}, 1,000 jobs, 64 x 8"), |bencher| {
            bencher.iter(|| bench_rounds(size, policy));
        });
    }
}

criterion_group!(benches, rounds);
criterion_main!(benches);
