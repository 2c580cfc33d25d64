//! Questions that are asked, and what the answer must look like.

use het_core::Bytes;
use het_parallel::{
    Batch, Cause, Collectives, Launch, Outcome, RejectionReason, Request, Rule, fit, known_model,
    search, small_team,
};
use het_perf::training::{Precision, Transformer, Tuning};

use crate::machines::pool;

fn named(name: &str) -> Transformer {
    known_model(name).expect("in the table").shape
}

/// 300 billion tokens on 20,000 devices at 11.6 %: 5.0 days of A100 and 19 hours of H100 in 8 bits.
/// The model reaches more of the peaks, and the factors say all of the difference.
#[test]
fn the_briefs_figures_and_why_the_model_says_less() {
    let check = |class: &str, precision, tflops, hours: f64, within: std::ops::Range<f64>| {
        let tokens = 300_000_000_000;
        let rule = Rule { tokens, devices: 20_000, tflops, utilisation: 0.116 };
        let model = named("gpt3-175b");
        let said = rule.days(&model) * 24.0;
        assert!((said / hours - 1.0).abs() < 0.01, "{said}");
        let mut request =
            Request::new(model, vec![pool(class, 20_000)], Batch::between(256, 1_536));
        request.tokens = Some(tokens);
        request.choices.precisions = vec![precision];
        let ranking = search(&request).expect("fits");
        let compared = rule.against(&model, &ranking.candidates[0]).expect("tokens are given");
        assert!(within.contains(&(compared.plan_days * 24.0)), "{compared:#?}");
        let product: f64 = compared.causes.iter().map(Cause::factor).product();
        assert!((product * compared.rule_days / compared.plan_days - 1.0).abs() < 1e-9);
    };
    check("a100-sxm4-80", Precision::Bf16, 312.0, 120.0, 24.0..60.0);
    check("h100-sxm5-80", Precision::Fp8, 1_979.0, 19.0, 7.0..19.0);
}

#[test]
fn sixty_four_and_sixty_four_are_faster_than_either() {
    let pools = vec![pool("h100-sxm5-80", 64), pool("ascend-910b", 64)];
    let request = Request::new(named("llama2-70b"), pools, Batch::exactly(1_024));
    let ranking = search(&request).expect("fits");
    let best = &ranking.candidates[0];
    let alone = ranking.alone.iter().flatten().map(|alone| alone.sample_s);
    assert!(alone.fold(f64::INFINITY, f64::min) > 1.1 * best.sample_s);
    // The share of the work is near the share of the speed.
    assert!((0.15..0.35).contains(&best.layout.work_of(1)), "{}", best.layout.work_of(1));
    let libraries = vec![Collectives::Nccl, Collectives::Hccl];
    assert_eq!(best.launch, Launch::NoCommonLibrary(libraries));
    let slower =
        |why: &RejectionReason| matches!(why, RejectionReason::Slower { by, .. } if *by > 0.0);
    assert!(ranking.rejected.iter().any(|row| slower(&row.why)));
    let memory = |why: &RejectionReason| matches!(why, RejectionReason::OutOfMemory { .. });
    assert!(ranking.rejected.iter().any(|row| memory(&row.why) && row.example.is_some()));
}

/// Eight H100 and one 910B in one node: the ninth device is worth a tenth of another at best, and
/// what it costs to exchange with it must be less.
/// Mixes of many pools are more than can be looked at: the answer comes all the same, and says so.
#[test]
fn many_pools_are_searched_in_part() {
    let mut pools = vec![pool("h100-sxm5-80", 512), pool("a100-sxm4-80", 512)];
    pools.push(pool("ascend-910b", 512));
    for (index, slower) in [0.9, 0.8].into_iter().enumerate() {
        let mut other = pools[index].clone();
        other.machine.device.memory_gbps *= slower;
        other.machine.device.half_tflops = other.machine.device.half_tflops.map(|t| t * slower);
        pools.push(other);
    }
    let batch = Batch::between(256, 2_048);
    let request = Request::new(named("gpt3-175b"), pools.clone(), batch);
    let ranking = search(&request).expect("fits");
    assert!(ranking.in_part);
    let two = search(&request.on(pools[..2].to_vec())).expect("fits");
    assert!(!two.in_part);
    let alone = ranking.alone.iter().flatten().map(|alone| alone.sample_s);
    assert!(ranking.candidates[0].sample_s < alone.fold(f64::INFINITY, f64::min));
}

#[test]
fn a_ninth_slow_device_takes_part_where_it_pays() {
    let check = |batch, used: bool| {
        let mut slow = pool("ascend-910b", 1);
        slow.machine.island.devices_per_node = 1;
        let pools = vec![pool("h100-sxm5-80", 8), slow];
        let mut request = Request::new(named("smollm2-1.7b"), pools, Batch::exactly(batch));
        request.between_gbps = Some(25.6);
        let ranking = search(&request).expect("fits");
        let best = &ranking.candidates[0];
        assert_eq!(best.layout.devices_of(1) > 0, used, "{batch}: {best:#?}");
    };
    check(64, false);
    check(8_192, true);
}

#[test]
fn a_small_team_is_told_its_tricks() {
    let mut card = pool("rtx-4090", 1);
    card.host_memory = Some(Bytes(64 << 30));
    let model = Transformer { sequence: 2_048, attention_span: 2_048, ..named("llama3-8b") };
    let mut request = Request::new(model, vec![card], Batch::exactly(16));
    request.choices = small_team(16);
    let fits = fit(&request).expect("a sensible question");
    let outcome = |tuning| {
        let found = fits.iter().find(|fit| fit.tuning == tuning).expect("each way is answered");
        matches!(found.outcome, Outcome::Fits { .. })
    };
    assert!(outcome(Tuning::Lora { rank: 16 }) && outcome(Tuning::Qlora { rank: 16 }));
    assert!(!outcome(Tuning::Full));
    assert!(matches!(fits[0].outcome, Outcome::Fits { .. }));
}

#[test]
fn a_critical_batch_keeps_the_batch_small() {
    let model = named("llama2-7b");
    let batch = |critical| {
        let batch = Batch { smallest: 64, largest: 8_192, critical };
        let request = Request::new(model, vec![pool("h100-sxm5-80", 64)], batch);
        search(&request).expect("fits").candidates[0].layout.batch
    };
    assert_eq!(batch(None), 8_192);
    assert!(batch(Some(500)) < 1_024);
}
