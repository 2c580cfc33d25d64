//! A chosen cut as a job file: `het run` and `het submit` take it as it is.

use std::path::Path;

use anstream::eprintln;
use het_parallel::{Candidate, Launch, Ranking, Request};
use het_perf::training::{FeedForwardKind, Offload, ParallelConfig, Precision, Recompute, Zero};
use het_wire::yaml;
use serde_json::{Value, json};

use super::shown::cut;
use crate::args::SizeArgs;
use crate::fail::{Fail, code};

/// Writes candidate `number`, from 1, to the file that `-o` names.
pub fn write(
    args: &SizeArgs,
    request: &Request,
    ranking: &Ranking,
    number: usize,
) -> Result<u8, Fail> {
    let Some(candidate) = number.checked_sub(1).and_then(|row| ranking.candidates.get(row)) else {
        let text = format!("there is no candidate {number}");
        return Err(Fail::new(code::USAGE, text)
            .hint(format!("they are numbered from 1 to {}", ranking.candidates.len())));
    };
    let path = Path::new(&args.output);
    if path.extension().is_none() {
        return Err(
            Fail::new(code::USAGE, "`--pick` writes a job file").hint("name it: `-o job.yaml`")
        );
    }
    let name = args.model.as_deref().unwrap_or("job");
    let text = yaml::to_text(&job(request, candidate, name));
    std::fs::write(path, text).map_err(|error| Fail::file(path, error))?;
    eprintln!("{} written: {}", path.display(), cut(candidate.layout.config()));
    if let Launch::NoCommonLibrary(libraries) = &candidate.launch {
        eprintln!(
            "! no launcher runs it as it is: {libraries:?} have no common collective library; \
             hint: pick a candidate on one class, or use a program that exchanges over the hosts"
        );
    }
    Ok(code::OK)
}

fn job(request: &Request, candidate: &Candidate, name: &str) -> Value {
    let layout = &candidate.layout;
    let parts = layout
        .pools()
        .into_iter()
        .map(|pool| format!("{}:{}", request.pools[pool].class, layout.devices_of(pool)));
    let words: Vec<String> = parts.collect();
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    json!({
        "apiVersion": "heterosis.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": { "name": name.to_lowercase() },
        "spec": { "stages": [{
            "name": "train",
            "kind": "train",
            "run": megatron(request, layout.config()),
            // One shape for each class: a gang of several is for programs that know what to do.
            "devices": words.join(" | "),
            "env": { "HET_LAYERS": layers(request, candidate).to_string() },
            "checkpoint": candidate.finish.as_ref().map_or_else(
                || "30m".to_owned(),
                |finish| format!("{}s", finish.checkpoint_every.0 / 1_000),
            ),
        }] },
    })
}

/// Ranks of each kind of replica with the layers that they hold, for programs that place layers
/// unevenly.
fn layers(request: &Request, candidate: &Candidate) -> Value {
    let kinds = candidate.layout.replicas.iter().map(|kind| {
        let mut first = 0;
        let stages: Vec<Value> = kind
            .stages
            .iter()
            .map(|stage| {
                let begin = first;
                first += stage.layers;
                json!({
                    "class": request.pools[stage.pool].class,
                    "tensor": stage.tensor,
                    "first": begin,
                    "layers": stage.layers,
                })
            })
            .collect();
        json!({ "replicas": kind.count, "microbatches": kind.microbatches, "stages": stages })
    });
    Value::Array(kinds.collect())
}

/// The words of Megatron-LM's `pretrain_gpt.py`; data, tokenizer and length are the user's to add.
fn megatron(request: &Request, config: &ParallelConfig) -> Vec<String> {
    let model = &request.model;
    let mut words: Vec<String> = ["torchrun", "pretrain_gpt.py"].map(str::to_owned).to_vec();
    let numbers = [
        ("num-layers", model.layers),
        ("hidden-size", model.hidden),
        ("ffn-hidden-size", model.feed_forward.hidden),
        ("num-attention-heads", model.heads),
        ("seq-length", model.sequence),
        ("max-position-embeddings", model.sequence),
        ("micro-batch-size", config.microbatch),
        ("global-batch-size", config.global_batch),
        ("tensor-model-parallel-size", config.tensor),
        ("pipeline-model-parallel-size", config.pipeline),
        ("context-parallel-size", config.context),
        ("expert-model-parallel-size", config.expert),
    ];
    words.extend(numbers.iter().flat_map(|(name, n)| [format!("--{name}"), n.to_string()]));
    if model.key_value_heads < model.heads {
        words.push("--group-query-attention".to_owned());
        words.extend(["--num-query-groups".to_owned(), model.key_value_heads.to_string()]);
    }
    if config.virtual_stages > 1 {
        let each = model.layers / (config.pipeline * config.virtual_stages).max(1);
        words.push("--num-layers-per-virtual-pipeline-stage".to_owned());
        words.push(each.to_string());
    }
    let used = flags(config, model.feed_forward.kind).into_iter().filter(|(used, _)| *used);
    words.extend(used.map(|(_, word)| word.to_owned()));
    words
}

/// Flags and whether they are used.
fn flags(config: &ParallelConfig, kind: FeedForwardKind) -> [(bool, &'static str); 11] {
    let full = config.recompute == Recompute::Full;
    [
        (kind == FeedForwardKind::Gated, "--swiglu"),
        (config.precision == Precision::Bf16, "--bf16"),
        (config.precision == Precision::Fp16, "--fp16"),
        (config.precision == Precision::Fp8, "--fp8-hybrid"),
        (config.tensor > 1, "--sequence-parallel"),
        (config.zero != Zero::None, "--use-distributed-optimizer"),
        (config.recompute == Recompute::Selective, "--recompute-activations"),
        (full, "--recompute-granularity=full"),
        (full, "--recompute-method=uniform"),
        (full, "--recompute-num-layers=1"),
        (config.offload != Offload::None, "--optimizer-cpu-offload"),
    ]
}
