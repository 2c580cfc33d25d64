//! What holds for every question.

use std::collections::BTreeSet;

use het_core::Bytes;
use het_parallel::{Batch, Candidate, Pool, Replicas, Request, search};
use het_perf::training::{
    Embeddings, FeedForward, FeedForwardKind, ParallelConfig, SequenceParallel, StagePlace,
    Transformer, stage_memory, step_time,
};
use proptest::prelude::*;

use crate::machines::pool;

const CLASSES: [&str; 3] = ["h100-sxm5-80", "a100-sxm4-80", "ascend-910b"];

/// Small and middling models, on pools of up to so many devices.
fn requests(devices: u32) -> impl Strategy<Value = Request> {
    let model = (2_u32..25, 0_usize..3, 1_u32..5, prop::bool::ANY);
    let pools = (1..=devices, 1..=devices, 0_usize..3, 0_usize..3, 8_u64..80);
    let batch = (1_u32..200, prop::bool::ANY, prop::option::of(1_u32..500));
    (model, pools, batch).prop_map(|(model, pools, (largest, fixed, critical))| {
        let (layers, width, sequence, gated) = model;
        let hidden = [1_024, 4_096, 8_192][width];
        let gpt = Transformer::gpt(layers, hidden, hidden / 128, 1_024 * sequence, 51_200);
        let kind = if gated { FeedForwardKind::Gated } else { FeedForwardKind::Plain };
        let feed_forward = FeedForward { kind, ..gpt.feed_forward };
        let model = Transformer { feed_forward, embeddings: Embeddings::Untied, ..gpt };
        let (first, second, class, other, gibibytes) = pools;
        let mut pools = vec![pool(CLASSES[class], first), pool(CLASSES[other], second)];
        pools[1].machine.device.memory = Bytes(gibibytes << 30);
        let smallest = if fixed { largest } else { 1 };
        let batch = Batch { smallest, largest, critical };
        Request { keep: 4, ..Request::new(model, pools, batch) }
    })
}

fn best(request: &Request) -> Option<Candidate> {
    search(request).ok().map(|ranking| ranking.candidates[0].clone())
}

fn some_of(pool: &Pool, devices: u32) -> Vec<Pool> {
    vec![Pool { devices, ..pool.clone() }]
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn a_mix_is_never_worse_than_a_part_of_one_class(request in requests(12), part in 1_u32..13) {
        let mixed = best(&request).map_or(f64::INFINITY, |best| best.sample_s);
        for pool in &request.pools {
            for devices in [pool.devices, part.min(pool.devices)] {
                let alone = best(&request.on(some_of(pool, devices)));
                let alone = alone.map_or(f64::INFINITY, |best| best.sample_s);
                prop_assert!(mixed <= alone * (1.0 + 1e-9), "{mixed} for {alone}");
            }
        }
    }

    #[test]
    fn no_device_holds_more_than_it_can(request in requests(40)) {
        let Ok(ranking) = search(&request) else { return Ok(()) };
        for candidate in &ranking.candidates {
            let layout = &candidate.layout;
            let kinds = layout.replicas.len();
            for kind in &layout.replicas {
                let layers: u32 = kind.stages.iter().map(|stage| stage.layers).sum();
                prop_assert_eq!(layers, request.model.layers);
                for (stage, at) in kind.stages.iter().enumerate() {
                    prop_assert!(at.memory <= request.capacity(at.pool));
                    let sequence_parallel =
                        if at.tensor > 1 { SequenceParallel::On } else { SequenceParallel::Off };
                    let attention = request.pools[at.pool].attention;
                    let config = ParallelConfig {
                        tensor: at.tensor,
                        sequence_parallel,
                        attention,
                        ..kind.config
                    };
                    let place = StagePlace { stage: stage as u32, layers: at.layers };
                    if kinds == 1 {
                        let held = stage_memory(&request.model, &config, place).total();
                        prop_assert_eq!(held, at.memory);
                    }
                }
            }
            let samples: u32 = layout.replicas.iter().map(|kind| kind.samples()).sum();
            prop_assert_eq!(samples, layout.batch);
            for (pool, there) in request.pools.iter().enumerate() {
                prop_assert!(layout.devices_of(pool) <= there.devices);
            }
            let batch = request.batch;
            prop_assert!((batch.smallest..=batch.largest).contains(&layout.batch));
        }
    }

    #[test]
    fn each_candidate_is_faster_or_smaller_than_others_of_the_same_groups(request in requests(24)) {
        let Ok(ranking) = search(&request) else { return Ok(()) };
        let groups = |candidate: &Candidate| -> Vec<Vec<(usize, u32)>> {
            let kinds = candidate.layout.replicas.iter();
            let stages = |kind: &Replicas| kind.stages.iter().map(|s| (s.pool, s.tensor)).collect();
            kinds.map(stages).collect()
        };
        for (index, slower) in ranking.candidates.iter().enumerate() {
            for faster in &ranking.candidates[..index] {
                prop_assert!(faster.sample_s <= slower.sample_s);
                if groups(faster) == groups(slower) {
                    let leaner = slower.memory.0 as f64 <= 0.9 * faster.memory.0 as f64;
                    let fewer = f64::from(slower.devices) <= 0.9 * f64::from(faster.devices);
                    prop_assert!(leaner || fewer);
                }
            }
        }
    }

    #[test]
    fn even_stages_on_equal_devices_take_the_time_of_the_model(request in requests(24)) {
        let request = request.on(vec![request.pools[0].clone()]);
        let Ok(ranking) = search(&request) else { return Ok(()) };
        for candidate in &ranking.candidates {
            let [kind] = &candidate.layout.replicas[..] else { continue };
            if kind.stages.iter().all(|stage| stage.layers == kind.stages[0].layers) {
                let machine = request.pools[0].machine;
                let time = step_time(&request.model, &kind.config, &machine);
                let total_s = time.expect("a candidate can be timed").total_s;
                prop_assert!((candidate.step.total_s / total_s - 1.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn equal_devices_under_two_names_share_equally(request in requests(12), nodes in 1_u32..4) {
        let half = some_of(&request.pools[0], 8 * nodes).remove(0);
        let two = request.on(vec![half.clone(), half]);
        let Ok(ranking) = search(&two) else { return Ok(()) };
        for candidate in &ranking.candidates {
            let [one, other] = &candidate.layout.replicas[..] else { continue };
            if one.config == other.config && one.stages.len() == other.stages.len() {
                let apart = one.microbatches_most().abs_diff(other.microbatches_most());
                prop_assert!(apart <= one.granule);
            }
        }
    }

    #[test]
    fn pools_alike_are_as_good_as_one_of_them_all(
        request in requests(12),
        nodes in [1_u32..4, 1..4],
    ) {
        let [first, second] = nodes.map(|nodes| some_of(&request.pools[0], 8 * nodes).remove(0));
        let together = some_of(&first, first.devices + second.devices);
        let one = best(&request.on(together));
        let asked = request.on(vec![first, second]);
        let found = best(&asked);
        prop_assert_eq!(found.is_some(), one.is_some());
        let Some((best, one)) = found.zip(one) else { return Ok(()) };
        let group = one.layout.config().tensor * one.layout.config().context;
        // A group over several nodes may stand on two pools, which no layout can say.
        prop_assume!(group <= 8);
        prop_assert!(best.sample_s <= one.sample_s * (1.0 + 1e-9));
        let ranks = best.layout.ranks(&asked.pools);
        prop_assert_eq!(ranks.len() as u32, one.devices);
        prop_assert!(ranks.iter().all(|rank| 8 * rank.node + rank.device
            < asked.pools[rank.pool].devices));
        let samples: u32 = best.layout.replicas.iter().map(|kind| kind.samples()).sum();
        prop_assert_eq!(samples, best.layout.batch);
    }

    #[test]
    fn every_rank_has_a_device_of_its_own(request in requests(40)) {
        let Ok(ranking) = search(&request) else { return Ok(()) };
        for candidate in &ranking.candidates {
            let ranks = candidate.layout.ranks(&request.pools);
            prop_assert_eq!(ranks.len() as u32, candidate.devices);
            let devices: BTreeSet<_> =
                ranks.iter().map(|rank| (rank.pool, rank.node, rank.device)).collect();
            prop_assert_eq!(devices.len(), ranks.len());
            let mut nodes = BTreeSet::new();
            for rank in &ranks {
                let pool = &request.pools[rank.pool];
                let index = rank.node * pool.machine.island.devices_per_node + rank.device;
                prop_assert!(index < pool.devices);
                nodes.insert((rank.replica, rank.stage, rank.context, rank.node));
            }
            let groups: BTreeSet<_> =
                nodes.iter().map(|(replica, stage, row, _)| (replica, stage, row)).collect();
            prop_assert_eq!(groups.len(), nodes.len(), "a tensor group stands in one node");
        }
    }

    #[test]
    fn the_same_question_has_the_same_answer(request in requests(16)) {
        prop_assert_eq!(search(&request), search(&request));
    }
}
