//! Questions without an answer, and the nearest that have one.

use het_parallel::{Batch, Pins, Problem, Remedy, Request, known_model, search};
use het_perf::training::{Offload, Precision, Transformer, Tuning};

use crate::machines::pool;

fn llama() -> Transformer {
    known_model("llama3-8b").expect("in the table").shape
}

fn plain() -> Request {
    Request::new(llama(), vec![pool("h100-sxm5-80", 16)], Batch::exactly(100))
}

fn check(request: &Request, words: &str) {
    let said = search(request).map_err(|problem| problem.to_string());
    assert_eq!(said.err().as_deref(), Some(words));
}

#[test]
fn what_does_not_add_up_is_said_with_what_would() {
    check(
        &plain().on(Vec::new()),
        "there is no device to train on; hint: a pool with one device or more",
    );
    let headless = Transformer { heads: 0, ..llama() };
    let request = Request { model: headless, ..plain() };
    check(&request, "the model's `heads` is zero; hint: 32");
    let pinned = |pins: Pins| Request { pins, ..plain() };
    let tensor = Pins { tensor: Some(3), ..Pins::default() };
    check(&pinned(tensor), "32 heads cannot be cut into 3 equal parts; hint: 2 or 4");
    let island = Pins { tensor: Some(16), ..Pins::default() };
    check(&pinned(island), "no island has 16 devices for a tensor group; hint: 8 or fewer");
    let batch = Pins { data: Some(16), microbatch: Some(2), ..Pins::default() };
    check(
        &pinned(batch),
        "no batch between 100 and 100 is a multiple of 32 samples, as the given replicas and \
         microbatches need; hint: 96 or 128",
    );
    let many = Pins { data: Some(8), tensor: Some(8), ..Pins::default() };
    check(&pinned(many), "the given counts need 64 devices and there are 16; hint: 64");
    let mut request = plain().on(vec![pool("a100-sxm4-80", 8)]);
    request.choices.precisions = vec![Precision::Fp8];
    check(&request, "no device has a figure for Fp8; hint: Bf16");
}

#[test]
fn a_model_that_fits_nowhere_names_the_smallest_changes() {
    let mut request = plain().on(vec![pool("rtx-4090", 1)]);
    request.model = Transformer { sequence: 2_048, attention_span: 2_048, ..llama() };
    request.choices.offloads = vec![Offload::None];
    let Err(Problem::FitsNowhere(shortfall)) = search(&request) else {
        panic!("16 bytes a weight do not fit 24 GiB")
    };
    assert_eq!(shortfall.class, "rtx-4090");
    assert!(shortfall.remedies.contains(&Remedy::Tuning(Tuning::Lora { rank: 16 })));
    let cards = shortfall.remedies.iter().find_map(|remedy| match remedy {
        Remedy::Devices { count, .. } => Some(*count),
        _ => None,
    });
    let cards = cards.expect("more of them are enough");
    let with = |count| search(&request.on(vec![pool("rtx-4090", count)])).is_ok();
    assert!(with(cards) && !with(cards - 1), "{cards}");
}
