//! The whole search: GPT-3 on one class, and on 16,384 devices of two.

#[path = "../tests/plans/machines.rs"]
mod machines;

use criterion::{Criterion, criterion_group, criterion_main};
use het_parallel::{Batch, Request, known_model, search};
use machines::pool;

fn searches(criterion: &mut Criterion) {
    let model = known_model("gpt3-175b").expect("in the table").shape;
    let batch = Batch::between(256, 2_048);
    let mut time = |title: &str, request: &Request| {
        criterion.bench_function(title, |bencher| bencher.iter(|| search(request)));
    };
    time("175B on 1,024 H100", &Request::new(model, vec![pool("h100-sxm5-80", 1_024)], batch));
    let mixed = vec![pool("h100-sxm5-80", 8_192), pool("a100-sxm4-80", 8_192)];
    time("175B on 8,192 H100 + 8,192 A100", &Request::new(model, mixed.clone(), batch));
    let fixed = Request::new(model, mixed, Batch::exactly(1_536));
    time("175B on 8,192 H100 + 8,192 A100, batch 1,536", &fixed);
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = searches
}
criterion_main!(benches);
