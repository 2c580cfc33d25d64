//! From words to a question: a known model, a cluster's pools, what may be tried.

use anstream::eprintln;
use het_core::Bytes;
use het_parallel::{
    Batch, Choices, Dataset, Pins, Request, Rule, has_bf16, known_model, known_models, small_team,
};
use het_perf::fabric::Route;
use het_perf::training::{Precision, Transformer, Tuning};
use het_planner::Pools;
use het_wire::quantity;
use het_wire::words::closest;

use super::pools::{of_this, of_word};
use super::{PrecisionWord, RouteWord, SizeArgs, TuningWord};
use crate::fail::{Fail, code};
use crate::local::home;

/// Refuses wishes that do not go together.
pub fn consistent(args: &SizeArgs) -> Result<(), Fail> {
    if args.pick.is_none() {
        return Ok(());
    }
    if args.mfu.is_some() {
        return Err(Fail::new(code::USAGE, "a rule of thumb has no plan to pick")
            .hint("leave out `--mfu`, or `--pick`"));
    }
    if tries_several_ways(args) {
        return Err(Fail::new(code::USAGE, "`--pick` takes one plan of one way to train")
            .hint("say which weights learn: `--tuning full`, `lora` or `qlora`"));
    }
    Ok(())
}

pub fn request(args: &SizeArgs) -> Result<Request, Fail> {
    let model = model(args.model.as_deref(), args.sequence)?;
    let Pools { pools, between_gbps, storage_gbps, .. } = pools(args)?;
    let (smallest, largest) = batch(&args.batch)?;
    let mut request = Request::new(model, pools, Batch::between(smallest, largest));
    request.between_gbps = between_gbps;
    request.tokens = args.tokens.as_deref().map(count).transpose()?;
    request.pins = Pins {
        data: args.pins.dp,
        tensor: args.pins.tp,
        pipeline: args.pins.pp,
        context: args.pins.cp,
        expert: args.pins.ep,
        microbatch: args.pins.mb,
        virtual_stages: args.pins.vp,
    };
    request.dataset = dataset(args, storage_gbps)?;
    request.choices = choices(args);
    request.keep = args.keep.max(args.pick.unwrap_or(1));
    Ok(request)
}

/// The shape of a known model, with samples of the given length.
pub fn model(name: Option<&str>, sequence: Option<u32>) -> Result<Transformer, Fail> {
    let Some(name) = name else {
        return Err(Fail::new(code::USAGE, "which model is to be trained?")
            .hint("name one with `--model`, for example `--model llama3-8b`"));
    };
    let known = known_model(name).ok_or_else(|| {
        let names = known_models();
        let near = closest(name, names.iter().map(|model| model.name));
        let all = || names.iter().map(|model| model.name).collect::<Vec<_>>().join(", ");
        let hint = near.map_or_else(all, |near| format!("did you mean `{near}`?"));
        Fail::new(code::USAGE, format!("`{name}` is no model that is known here")).hint(hint)
    })?;
    let mut model = known.shape;
    if let Some(sequence) = sequence {
        model.sequence = sequence;
        model.attention_span = sequence;
    }
    Ok(model)
}

/// Several ways to train are looked at, not only the cuts of one.
pub fn tries_several_ways(args: &SizeArgs) -> bool {
    tuning(args) == TuningWord::Any
}

/// What `--mfu` asks instead.
pub fn rule(args: &SizeArgs, request: &Request) -> Result<Option<Rule>, Fail> {
    let Some(utilisation) = args.mfu else { return Ok(None) };
    let Some(tokens) = request.tokens else {
        return Err(Fail::new(code::USAGE, "`--mfu` needs to know for how many tokens")
            .hint("say `--tokens 300e9`"));
    };
    if !(utilisation > 0.0 && utilisation <= 1.0) {
        return Err(Fail::new(code::USAGE, format!("a utilisation of {utilisation} is none"))
            .hint("write a part of the peak, for example `--mfu 0.4`"));
    }
    let precision = args.precision.into();
    let mut tflops = 0.0;
    for pool in &request.pools {
        let Some(flops) = pool.machine.device.peak_flops(precision) else {
            let text = format!("the catalogue has no peak of `{}` at this precision", pool.class);
            return Err(Fail::new(code::USAGE, text).hint("choose another `--precision`"));
        };
        tflops += flops / 1e12 * f64::from(pool.devices);
    }
    let devices = request.devices();
    Ok(Some(Rule { tokens, devices, tflops: tflops / f64::from(devices), utilisation }))
}

fn tuning(args: &SizeArgs) -> TuningWord {
    let default = if args.this { TuningWord::Any } else { TuningWord::Full };
    args.tuning.unwrap_or(default)
}

fn choices(args: &SizeArgs) -> Choices {
    let rank = args.rank;
    let mut choices = match tuning(args) {
        TuningWord::Any => small_team(rank),
        TuningWord::Full => Choices::default(),
        TuningWord::Lora => Choices { tunings: vec![Tuning::Lora { rank }], ..Choices::default() },
        TuningWord::Qlora => {
            Choices { tunings: vec![Tuning::Qlora { rank }], ..Choices::default() }
        }
    };
    choices.precisions = vec![args.precision.into()];
    choices
}

impl From<PrecisionWord> for Precision {
    fn from(word: PrecisionWord) -> Self {
        match word {
            PrecisionWord::Fp32 => Self::Fp32,
            PrecisionWord::Fp16 => Self::Fp16,
            PrecisionWord::Bf16 => Self::Bf16,
            PrecisionWord::Fp8 => Self::Fp8,
        }
    }
}

/// Nobody reads a dataset more often.
const PASSES_MAX: f64 = 1e6;

/// What is read while the job runs.
fn dataset(args: &SizeArgs, cards_gbps: Option<f64>) -> Result<Option<Dataset>, Fail> {
    let Some(text) = &args.dataset else { return Ok(None) };
    let bytes = |name: &str, text: &str| {
        quantity::size(text).ok_or_else(|| {
            Fail::new(code::USAGE, format!("`{name} {text}` is no size"))
                .hint("write for example `4TB` or `512GiB`")
        })
    };
    let rate = quantity::rate(&args.storage).filter(|rate| *rate > Bytes::ZERO);
    let storage = rate.ok_or_else(|| {
        Fail::new(code::USAGE, format!("`--storage {}` is no rate", args.storage))
            .hint("write for example `40GB/s` or `200G`")
    })?;
    if !(1.0..=PASSES_MAX).contains(&args.passes) {
        return Err(Fail::new(code::USAGE, format!("`--passes {}` are none", args.passes))
            .hint(format!("from 1 to {PASSES_MAX}")));
    }
    Ok(Some(Dataset {
        bytes: bytes("--dataset", text)?,
        passes: args.passes,
        storage_gbps: storage.0 as f64 / 1e9,
        cards_gbps,
        route: match args.route {
            RouteWord::Host => Route::Memory,
            RouteWord::Direct => Route::SwitchPeer,
        },
        cache: bytes("--cache", &args.cache)?,
    }))
}

/// `300e9`, `1.5e12` or `5000`.
fn count(text: &str) -> Result<u64, Fail> {
    let number = text.replace('_', "").parse::<f64>().ok();
    let whole = number.filter(|number| (1.0..1e18).contains(number));
    whole.map(|number| number.round() as u64).ok_or_else(|| {
        Fail::new(code::USAGE, format!("`{text}` is no number of tokens"))
            .hint("write for example `300e9`")
    })
}

/// `1024` or `256..2048`.
fn batch(text: &str) -> Result<(u32, u32), Fail> {
    let (smallest, largest) = text.split_once("..").unwrap_or((text, text));
    match (smallest.trim().parse(), largest.trim().parse()) {
        (Ok(smallest), Ok(largest)) => Ok((smallest, largest)),
        _ => Err(Fail::new(code::USAGE, format!("`{text}` is no batch"))
            .hint("write samples of a step, `1024`, or from and to, `256..2048`")),
    }
}

fn pools(args: &SizeArgs) -> Result<Pools, Fail> {
    let mut all = match (&args.cluster, args.this) {
        (Some(word), false) => of_word(word)?,
        (None, _) => of_this()?,
        (Some(_), true) => {
            return Err(Fail::new(code::USAGE, "`--this` and `--cluster` say two things")
                .hint("leave one of them out"));
        }
    };
    for class in &all.unknown {
        eprintln!("! `{class}` takes no part: its peak, memory or bandwidth are not known");
    }
    if args.precision == PrecisionWord::Bf16
        && let Some(pool) = all.pools.iter().find(|pool| !has_bf16(&pool.class))
    {
        return Err(Fail::new(code::USAGE, format!("`{}` does not compute in bf16", pool.class))
            .hint("say `--precision fp16`"));
    }
    if !args.uncalibrated {
        let measured = home()?.calibrations().all()?;
        for pool in &mut all.pools {
            // Goes by what was measured of the class.
            if let Some(one) = measured.get(&pool.class) {
                let efficiency = &mut pool.machine.efficiency;
                *efficiency = efficiency.slowed(one.factors.to_array(), one.error);
            }
        }
    }
    Ok(all)
}
