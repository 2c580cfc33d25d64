//! Answers as tables and as JSON.

use anstream::{eprintln, println};
use clap::ValueEnum as _;
use het_parallel::{
    Candidate, Cause, Comparison, Fit, Launch, Layout, Outcome, Ranking, Request, Rule, Trick,
    limit_name as limit,
};
use het_perf::training::{Offload, Recompute, Tuning};
use het_planner::Launcher;
use het_wire::API_VERSION;
use serde_json::{Value, json};

use super::SizeArgs;
use super::labels::{self, cut, cut_of};
use crate::fail::{Fail, code};
use crate::output::{Column, Form, Shown, list};

const PLAN_COLUMNS: &[Column] = &[
    Column("#", "rank", Shown::Always),
    Column("CUT", "cut", Shown::Always),
    Column("DEVICES", "devices", Shown::Always),
    Column("BATCH", "batch", Shown::Always),
    Column("MEMORY_GIB", "memory_gib", Shown::Always),
    Column("STEP_S", "step_time_s", Shown::Always),
    Column("TOKENS_S", "tokens_per_s", Shown::Always),
    Column("MFU", "mfu", Shown::Always),
    Column("BUBBLE", "bubble", Shown::Wide),
    Column("EXPOSED", "exposed_comm", Shown::Wide),
    Column("LIMIT", "limit", Shown::Always),
    Column("DAYS", "days", Shown::Always),
    Column("LAUNCHER", "launcher", Shown::Always),
];

const FIT_COLUMNS: &[Column] = &[
    Column("WAY", "way", Shown::Always),
    Column("FITS", "fits", Shown::Always),
    Column("LACKS_GIB", "lacks_gib", Shown::Always),
    Column("WITH", "with", Shown::Always),
    Column("MEMORY_GIB", "memory_gib", Shown::Always),
    Column("TOKENS_S", "tokens_per_s", Shown::Always),
    Column("LIMIT", "limit", Shown::Always),
];

/// The form that `-o` names.
pub fn form(args: &SizeArgs) -> Result<Form, Fail> {
    Form::from_str(&args.output, true).map_err(|_| {
        Fail::new(code::USAGE, format!("`-o {}` is no form of output", args.output)).hint(
            "say `table`, `wide`, `json`, `jsonl`, `yaml`, `name` or `csv`; a file goes with \
                   `--pick N`",
        )
    })
}

pub fn ranking(request: &Request, ranking: &Ranking, form: Form) -> Result<u8, Fail> {
    let items: Vec<Value> = ranking
        .candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| plan(request, candidate, index + 1))
        .collect();
    let lost = ranking.rejected.iter().map(|lost| {
        json!({
            "why": lost.why.to_string(),
            "count": lost.count,
            "example": lost.example.as_ref().map(cut),
        })
    });
    let lost: Vec<Value> = lost.collect();
    match form {
        Form::Json => {
            let all = json!({
                "apiVersion": API_VERSION, "kind": "PlanList", "items": items, "lost": lost,
                "looked_at": ranking.looked_at, "in_part": ranking.in_part,
                "alone": alone(request, ranking),
            });
            println!("{all:#}");
        }
        _ => list("PlanList", &items, PLAN_COLUMNS, form),
    }
    if matches!(form, Form::Table | Form::Wide) {
        beside(request, ranking);
        if ranking.in_part {
            eprintln!("! so many kinds are searched in part: there may be better mixes");
        }
        eprintln!("\n{} ways were looked at; the others lost:", ranking.looked_at);
        for row in &ranking.rejected {
            let example = row.example.as_ref().map(|config| format!(", such as {}", cut(config)));
            eprintln!("  {:>9}  {}{}", row.count, row.why, example.unwrap_or_default());
        }
    }
    Ok(code::OK)
}

/// The best of each pool without the others; `null` where the model does not fit.
fn alone(request: &Request, ranking: &Ranking) -> Vec<Value> {
    let pools = request.pools.iter().zip(&ranking.alone);
    let rows = pools.map(|(pool, alone)| {
        json!({
            "class": pool.class,
            "devices": pool.devices,
            "tokens_per_s": alone.as_ref().map(|best| best.tokens_per_s.round()),
        })
    });
    rows.collect()
}

/// What the mix is worth, and whether anything can launch it.
fn beside(request: &Request, ranking: &Ranking) {
    let best = &ranking.candidates[0];
    if request.pools.len() > 1 {
        for (pool, alone) in request.pools.iter().zip(&ranking.alone) {
            let told = match alone {
                Some(alone) => format!("{:.0} tokens/s", alone.tokens_per_s),
                None => "does not fit".to_owned(),
            };
            eprintln!("{} × {} alone: {told}", pool.devices, pool.class);
        }
    }
    if let Some(finish) = best.finish.as_ref().filter(|finish| finish.reading_s > 0.0) {
        let limit = finish.reading_limit.map_or("storage", labels::loading);
        eprintln!("{:.0} s are waited for weights and samples, for {limit}", finish.reading_s);
    }
    if let Launch::NoCommonLibrary(libraries) = &best.launch {
        let names: Vec<&str> = libraries.iter().map(|name| labels::collectives(*name)).collect();
        eprintln!(
            "! no launcher runs the best as it is: {} have nothing in common to exchange over",
            names.join(" and ")
        );
    }
}

fn plan(request: &Request, candidate: &Candidate, rank: usize) -> Value {
    let finish = candidate.finish.as_ref();
    let parts: Vec<Value> = candidate
        .layout
        .replicas
        .iter()
        .map(|kind| {
            let stages = kind.stages.iter().map(|stage| {
                json!({
                    "class": request.pools[stage.pool].class,
                    "tensor": stage.tensor,
                    "layers": stage.layers,
                    "memory_bytes": stage.memory.0,
                })
            });
            json!({
                "replicas": kind.count,
                "microbatches": kind.microbatches,
                "one_more": kind.more,
                "stages": stages.collect::<Vec<_>>(),
            })
        })
        .collect();
    let cuts: Vec<String> =
        candidate.layout.replicas.iter().map(|kind| cut_of(request, kind)).collect();
    json!({
        "rank": rank,
        "cut": cuts.join(" + "),
        "config": dimensions(&candidate.layout),
        "replicas": parts,
        "batch": candidate.layout.batch,
        "devices": candidate.devices,
        "memory_per_device_bytes": candidate.memory.0,
        "memory_gib": rounded(gib(candidate.memory.0), 1),
        "capacity_bytes": candidate.capacity.0,
        "step_time_s": rounded(candidate.step.total_s, 4),
        "tokens_per_s": candidate.tokens_per_s.round(),
        "mfu": rounded(candidate.step.model_utilisation, 4),
        "bubble": rounded(candidate.bubble, 4),
        "exposed_comm": rounded(candidate.exposed_communication, 4),
        "limit": limit(candidate.limit),
        "expected_error": rounded(candidate.step.error, 3),
        "days": finish.map(|finish| rounded(finish.days, 3)),
        "days_undisturbed": finish.map(|finish| rounded(finish.days_undisturbed, 3)),
        "checkpoint_every_s": finish.map(|finish| finish.checkpoint_every.0 / 1_000),
        "reading_s": finish.map(|finish| rounded(finish.reading_s, 1)),
        "reading_limit": finish.and_then(|finish| finish.reading_limit).map(labels::loading),
        "energy_kwh": finish.and_then(|finish| finish.energy_kwh).map(f64::round),
        "price": finish.and_then(|finish| finish.price),
        "launch": match &candidate.launch {
            Launch::Common(library) => Some(labels::collectives(*library)),
            Launch::NoCommonLibrary(_) => None,
        },
        "launcher": Launcher::of(request, candidate).ok().map(Launcher::word),
    })
}

pub fn fits(request: &Request, fits: &[Fit], form: Form) -> Result<u8, Fail> {
    let items: Vec<Value> = fits.iter().map(|fit| way(request, fit)).collect();
    list("FitList", &items, FIT_COLUMNS, form);
    Ok(code::OK)
}

fn way(request: &Request, fit: &Fit) -> Value {
    let tuning = match fit.tuning {
        Tuning::Full => "all weights".to_owned(),
        Tuning::Lora { rank } => format!("LoRA of rank {rank}"),
        Tuning::Qlora { rank } => format!("QLoRA of rank {rank}"),
    };
    let offload = match fit.offload {
        Offload::None => "",
        Offload::Cpu => ", states in the host's memory",
        Offload::Nvme => ", states on NVMe",
    };
    let way = format!("{tuning}, {}{offload}", labels::optimizer(fit.optimizer));
    let mut row = match &fit.outcome {
        Outcome::Fits { candidate, tricks } => {
            let mut row = plan(request, candidate, 1);
            let with: Vec<String> = tricks.iter().map(trick).collect();
            row["with"] = with.join(", ").into();
            row["fits"] = true.into();
            row
        }
        Outcome::Lacks { device } => lacks(device.0, "memory of the device"),
        Outcome::LacksHost { each } => lacks(each.0, "memory of the host"),
        Outcome::Uneven => json!({ "fits": false, "limit": "nothing comes out even" }),
    };
    row["way"] = way.into();
    row
}

fn lacks(bytes: u64, of: &str) -> Value {
    json!({ "fits": false, "lacks_bytes": bytes, "lacks_gib": rounded(gib(bytes), 1), "limit": of })
}

fn trick(trick: &Trick) -> String {
    match trick {
        Trick::Accumulate { microbatch, times } => {
            format!("{times} microbatches of {microbatch} added up")
        }
        Trick::Recompute(Recompute::Full) => "recomputation".to_owned(),
        Trick::Recompute(_) => "recomputation of attention".to_owned(),
        Trick::Share(zero) => format!("states shared ({})", labels::zero(*zero)),
        Trick::Tensor(ways) => format!("layers cut in {ways}"),
        Trick::Pipeline(stages) => format!("{stages} stages"),
    }
}

/// A given utilisation, beside our own estimate and why it differs.
pub fn rule(
    request: &Request,
    rule: &Rule,
    against: Option<&Comparison>,
    form: Form,
) -> Result<u8, Fail> {
    let days = rule.days(&request.model);
    let tokens_per_s = rule.tokens as f64 / (days * 86_400.0);
    let step_tokens = f64::from(request.batch.largest) * f64::from(request.model.sequence);
    let item = json!({
        "rank": 1,
        "cut": "6·P·T at the given utilisation",
        "config": Value::Null,
        "devices": rule.devices,
        "memory_per_device_bytes": Value::Null,
        "step_time_s": rounded(step_tokens / tokens_per_s, 4),
        "tokens_per_s": tokens_per_s.round(),
        "mfu": rule.utilisation,
        "bubble": Value::Null,
        "exposed_comm": Value::Null,
        "limit": "the given utilisation",
        "days": rounded(days, 4),
        "calibrated_days": against.map(|against| rounded(against.plan_days, 4)),
        "why": against.map(|against| against.causes.iter().map(cause).collect::<Vec<_>>()),
    });
    list("PlanList", &[item], PLAN_COLUMNS, form);
    if let (Some(against), Form::Table | Form::Wide) = (against, form) {
        eprintln!(
            "\nour own estimate is {:.2} days instead of {days:.2}, because of",
            against.plan_days
        );
        for row in &against.causes {
            eprintln!("  × {:.3}  {}", row.factor(), cause(row));
        }
        for (spent, part) in against.spent.iter().take(3) {
            eprintln!("  {:>6.1} % of a step goes into {}", part * 100.0, limit(*spent));
        }
    }
    Ok(code::OK)
}

fn cause(cause: &Cause) -> String {
    match cause {
        Cause::Utilisation { given, reached, .. } => {
            format!("{:.1} % of the peak are reached, not {:.1} %", reached * 100.0, given * 100.0)
        }
        Cause::Operations { .. } => {
            "attention and logits, which 6 operations for each weight leave out".to_owned()
        }
        Cause::Devices { used, of, .. } => {
            format!("{used} of {of} devices take part: batch, heads and layers leave no more place")
        }
        Cause::Failures { productive, .. } => {
            format!("{:.1} % of the time is left by failures and saves", productive * 100.0)
        }
        Cause::Reading { .. } => "weights and samples that are waited for".to_owned(),
        Cause::Batch { .. } => "samples that a batch above the critical one costs".to_owned(),
    }
}

/// The dimensions of the first kind of replicas; the batch is the whole step's.
fn dimensions(layout: &Layout) -> Value {
    let config = layout.config();
    json!({
        "dp": config.data,
        "tp": config.tensor,
        "pp": config.pipeline,
        "cp": config.context,
        "ep": config.expert,
        "virtual_stages": config.virtual_stages,
        "microbatch": config.microbatch,
        "accumulation": layout.replicas[0].microbatches_most(),
        "global_batch": layout.batch,
        "precision": labels::precision(config.precision),
        "recompute": labels::recompute(config.recompute),
        "sequence_parallel": labels::sequence_parallel(config.sequence_parallel),
        "zero": labels::zero(config.zero),
        "offload": labels::offload(config.offload),
        "optimizer": labels::optimizer(config.optimizer),
        "tuning": labels::tuning(config.tuning),
    })
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
