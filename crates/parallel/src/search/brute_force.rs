//! Every cut of small clusters, priced one after the other: what the search is held against.

use het_core::Bytes;
use het_perf::training::{
    DeviceFigures, Efficiency, Island, Machine, Offload, Recompute, Transformer, Zero,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::search;
use crate::candidate::Candidate;
use crate::outline::{Block, Kind, Outline, Recipe, Tricks};
use crate::price::price;
use crate::request::{Batch, Choices, Pool, Request};

fn pool(class: &str, devices: u32, tflops: f64, gibibytes: u64, node: u32) -> Pool {
    let device = DeviceFigures {
        fp32_tflops: None,
        half_tflops: Some(tflops),
        fp8_tflops: None,
        memory: Bytes(gibibytes << 30),
        memory_gbps: 2_000.0,
    };
    let island = Island { devices_per_node: node, ..Island::hgx_a100(25.0) };
    Pool::new(class, Machine { device, island, efficiency: Efficiency::A100 }, devices)
}

fn all_tricks(request: &Request, stages: u32) -> Vec<Tricks> {
    let mut all = Vec::new();
    for virtual_stages in 1..=if stages > 2 { request.choices.virtual_stages_max } else { 1 } {
        for recompute in [Recompute::None, Recompute::Full] {
            for zero in [Zero::None, Zero::One, Zero::Three] {
                let offload = Offload::None;
                let (context, expert) = (1, 1);
                all.push(Tricks { context, expert, virtual_stages, recompute, zero, offload });
            }
        }
    }
    all
}

/// Numbers of replicas with so many stages on tensor groups of each size.
fn blocks(request: &Request, pool: usize) -> Vec<(u32, Block)> {
    let devices = request.pools[pool].devices;
    let mut all = Vec::new();
    for tensor in [1, 2, 4] {
        let groups = request.pools[pool].groups(tensor, 1);
        if tensor > request.pools[pool].machine.island.devices_per_node {
            continue;
        }
        for stages in 1..=groups.min(devices).min(request.model.layers) {
            let counts = 1..=groups / stages;
            all.extend(counts.map(|count| (count, Block { pool, tensor, stages })));
        }
    }
    all
}

fn kinds(request: &Request, pool: usize) -> Vec<Kind> {
    let tricked = |(count, block): (u32, Block)| {
        let kind = move |tricks| Kind { count, blocks: vec![block], tricks };
        all_tricks(request, block.stages).into_iter().map(kind)
    };
    blocks(request, pool).into_iter().flat_map(tricked).collect()
}

/// Pipelines from one pool to another.
fn through(request: &Request, from: usize, to: usize) -> Vec<Kind> {
    let mut all = Vec::new();
    for (count, first) in blocks(request, from) {
        for (_, second) in blocks(request, to).into_iter().filter(|(other, _)| *other == count) {
            for tricks in all_tricks(request, first.stages + second.stages) {
                all.push(Kind { count, blocks: vec![first, second], tricks });
            }
        }
    }
    all
}

fn best(request: &Request) -> Option<Candidate> {
    let (own, other) = (kinds(request, 0), kinds(request, 1));
    let mut choices: Vec<Vec<Kind>> =
        [own.clone(), other.clone()].concat().into_iter().map(|kind| vec![kind]).collect();
    for first in &own {
        choices.extend(other.iter().map(|second| vec![first.clone(), second.clone()]));
    }
    let mixed = [through(request, 0, 1), through(request, 1, 0)].concat();
    choices.extend(mixed.into_iter().map(|kind| vec![kind]));
    let mut best: Option<Candidate> = None;
    for microbatch in (1..=request.choices.microbatch_max)
        .filter(|size| request.batch.largest.is_multiple_of(*size))
    {
        for kinds in &choices {
            let recipe = Recipe {
                precision: request.choices.precisions[0],
                tuning: request.choices.tunings[0],
                optimizer: request.choices.optimizers[0],
                microbatch,
            };
            let outline = Outline { batch: request.batch.largest, recipe, kinds: kinds.clone() };
            let granule = outline.kinds.iter().map(Kind::granule).max().unwrap_or(1);
            let each = outline.microbatches() / outline.replicas();
            if granule > 1 && outline.kinds.len() == 1 && !each.is_multiple_of(granule) {
                continue;
            }
            // Who has nobody to share states with shares none, whatever others exchange.
            let alone = |kind: &Kind| outline.sharing(kind) == 1 && kind.tricks.zero != Zero::None;
            if outline.kinds.iter().any(alone) {
                continue;
            }
            if let Ok(found) = price(request, &outline) {
                let faster = |best: &Candidate| found.sample_s < best.sample_s;
                if best.as_ref().is_none_or(faster) {
                    best = Some(found);
                }
            }
        }
    }
    best
}

/// The same inputs every time: what is pruned is best in all but 3 of 10,000 of them
/// (`docs/studies/planner.md`).
fn cases(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// Devices, TFLOPS and GiB of two pools, nodes of four and of two.
type Two<T> = (T, T);

fn holds(
    (layers, hidden, batch): (u32, u32, u32),
    (sizes, tflops, memory): (Two<u32>, Two<u32>, Two<u64>),
) -> Result<(), TestCaseError> {
    let model = Transformer::gpt(layers, hidden, hidden / 128, 2_048, 32_000);
    let pools = vec![
        pool("one", sizes.0, f64::from(tflops.0), memory.0, 4),
        pool("other", sizes.1, f64::from(tflops.1), memory.1, 2),
    ];
    let mut request = Request::new(model, pools, Batch::exactly(batch));
    request.choices = Choices {
        recomputes: vec![Recompute::None, Recompute::Full],
        zeros: vec![Zero::None, Zero::One, Zero::Three],
        offloads: vec![Offload::None],
        microbatch_max: 4,
        context_max: 1,
        virtual_stages_max: 2,
        ..Choices::default()
    };
    let best = best(&request);
    let found = search(&request).ok().map(|ranking| ranking.candidates[0].clone());
    match (best, found) {
        (None, None) => {}
        (Some(best), Some(found)) => {
            let slower = found.sample_s / best.sample_s - 1.0;
            prop_assert!(slower < 1e-9, "{slower}: {found:#?} for {best:#?}");
        }
        other => prop_assert!(false, "{other:?}"),
    }
    Ok(())
}

#[test]
fn an_exchange_behind_the_bubble_of_a_pipeline_is_found() {
    holds((7, 4_096, 14), ((2, 3), (50, 312), (20, 14))).expect("nothing is faster");
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn nothing_is_faster_than_what_the_search_finds(
        layers in 2_u32..9,
        hidden in prop::sample::select(vec![1_024_u32, 4_096, 8_192]),
        sizes in (1_u32..5, 1_u32..4),
        tflops in (50_u32..500, 50_u32..500),
        memory in (8_u64..40, 8_u64..40),
        batch in 1_u32..33,
    ) {
        holds((layers, hidden, batch), (sizes, tflops, memory))?;
    }
}
