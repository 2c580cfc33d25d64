//! How cuts are written in tables and JSON.

use het_parallel::{Collectives, Replicas, Request, Stage};
use het_perf::fabric::LoadingLimit;
use het_perf::training::{
    Offload, Optimizer, ParallelConfig, Precision, Recompute, SequenceParallel, Tuning, Zero,
};

/// The cut of replicas: how many they are, the ways of each stage's layers where stages differ
/// (`tp 1/8`), and what they stand on where there is a choice.
pub fn cut_of(request: &Request, kind: &Replicas) -> String {
    let mut ways: Vec<String> = kind.stages.iter().map(|stage| stage.tensor.to_string()).collect();
    ways.dedup();
    let cut = told(kind.count, &ways.join("/"), &kind.config);
    if request.pools.len() == 1 {
        return cut;
    }
    let class = |stage: &Stage| request.pools[stage.pool].class.as_str();
    let mut classes: Vec<&str> = kind.stages.iter().map(class).collect();
    classes.dedup();
    format!("{cut} on {}", classes.join("/"))
}

/// One line: `dp 16 · tp 8 · pp 8`, and what else is not plain.
pub fn cut(config: &ParallelConfig) -> String {
    told(config.data, &config.tensor.to_string(), config)
}

fn told(replicas: u32, tensor: &str, config: &ParallelConfig) -> String {
    let mut words =
        vec![format!("dp {replicas}"), format!("tp {tensor}"), format!("pp {}", config.pipeline)];
    let counts = [("cp", config.context), ("ep", config.expert), ("vp", config.virtual_stages)];
    words.extend(counts.iter().filter(|(_, n)| *n > 1).map(|(word, n)| format!("{word} {n}")));
    words.push(format!("mb {}", config.microbatch));
    let more = [
        (config.zero != Zero::None, zero(config.zero)),
        (config.recompute == Recompute::Selective, "recompute attention"),
        (config.recompute == Recompute::Full, "recompute"),
        (config.offload == Offload::Cpu, "offload"),
        (config.offload == Offload::Nvme, "offload nvme"),
    ];
    words.extend(more.iter().filter(|(used, _)| *used).map(|(_, word)| (*word).to_owned()));
    words.join(" · ")
}

pub fn zero(zero: Zero) -> &'static str {
    match zero {
        Zero::None => "zero 0",
        Zero::One => "zero 1",
        Zero::Two => "zero 2",
        Zero::Three => "zero 3",
    }
}

pub fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::Fp32 => "fp32",
        Precision::Fp16 => "fp16",
        Precision::Bf16 => "bf16",
        Precision::Fp8 => "fp8",
    }
}

pub fn recompute(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    }
}

pub fn offload(offload: Offload) -> &'static str {
    match offload {
        Offload::None => "none",
        Offload::Cpu => "cpu",
        Offload::Nvme => "nvme",
    }
}

pub fn optimizer(optimizer: Optimizer) -> &'static str {
    match optimizer {
        Optimizer::Sgd => "sgd",
        Optimizer::Momentum => "momentum",
        Optimizer::Adam => "adam",
        Optimizer::AdamW8bit => "adamw-8bit",
    }
}

pub fn sequence_parallel(sequence_parallel: SequenceParallel) -> bool {
    sequence_parallel == SequenceParallel::On
}

/// `full`, `lora-16`, `qlora-16`.
pub fn tuning(tuning: Tuning) -> String {
    match tuning {
        Tuning::Full => "full".to_owned(),
        Tuning::Lora { rank } => format!("lora-{rank}"),
        Tuning::Qlora { rank } => format!("qlora-{rank}"),
    }
}

pub fn collectives(library: Collectives) -> &'static str {
    match library {
        Collectives::Nccl => "NCCL",
        Collectives::Rccl => "RCCL",
        Collectives::Hccl => "HCCL",
        Collectives::Host => "Gloo or MPI",
    }
}

pub fn loading(limit: LoadingLimit) -> &'static str {
    match limit {
        LoadingLimit::Storage => "the storage system",
        LoadingLimit::Cards => "the nodes' cards on the storage network",
        LoadingLimit::HostMemory => "the hosts' memory",
    }
}
