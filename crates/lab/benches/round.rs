//! One round of `adaptive` beside one of `fifo` on the same cluster and queue: quote the ratio. And
//! how a round grows with the queue and with the cluster.

use criterion::{Criterion, criterion_group, criterion_main};
use het_lab::{Cadence, RoundBench, bench_rounds, mixed_cluster};
use het_policy::by_name;

fn rounds(criterion: &mut Criterion) {
    for (nodes, jobs) in [(64, 1_000), (64, 10_000), (1_024, 1_000)] {
        let topology = mixed_cluster(nodes, 8);
        let cadence = Cadence::default();
        let size = RoundBench { topology, jobs, rounds: 20, seed: 1, cadence };
        for name in ["fifo", "adaptive"] {
            let policy = by_name(name).expect("the table has it");
            let title = format!("20 rounds of {name}, {jobs} jobs, {nodes} x 8");
            criterion.bench_function(&title, |bencher| {
                bencher.iter(|| bench_rounds(&size, policy));
            });
        }
    }
}

criterion_group!(benches, rounds);
criterion_main!(benches);
