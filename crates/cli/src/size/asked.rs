//! From words to a question: a known model, a cluster's pools, what may be tried.

use het_core::{Bytes, Topology};
use het_lab::planner::figures;
use het_parallel::{
    Batch, Choices, Pool, Request, Rule, known_model, known_models, small_team, standing,
};
use het_perf::training::{Precision, Tuning};
use het_server::this_machine;
use het_wire::catalogue;
use het_wire::words::closest;

use crate::args::{PrecisionWord, SizeArgs, TuningWord};
use crate::fail::{Fail, code};
use crate::scenario;

pub fn request(args: &SizeArgs) -> Result<Request, Fail> {
    let Some(name) = &args.model else {
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
    if let Some(sequence) = args.sequence {
        model.sequence = sequence;
        model.attention_span = sequence;
    }
    let pools = pools(args)?;
    let (smallest, largest) = batch(&args.batch)?;
    let mut request = Request::new(model, pools, Batch::between(smallest, largest));
    request.tokens = args.tokens.as_deref().map(count).transpose()?;
    request.choices = choices(args);
    request.keep = args.keep.max(args.pick.unwrap_or(1));
    Ok(request)
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
    let precision = precision(args);
    let pool = &request.pools[0];
    let Some(flops) = pool.machine.device.peak_flops(precision) else {
        let text = format!("the catalogue has no peak of `{}` at this precision", pool.class);
        return Err(Fail::new(code::USAGE, text).hint("choose another `--precision`"));
    };
    let (devices, tflops) = (request.devices(), flops / 1e12);
    Ok(Some(Rule { tokens, devices, tflops, utilisation }))
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
    choices.precisions = vec![precision(args)];
    choices
}

fn precision(args: &SizeArgs) -> Precision {
    match args.precision {
        PrecisionWord::Fp32 => Precision::Fp32,
        PrecisionWord::Fp16 => Precision::Fp16,
        PrecisionWord::Bf16 => Precision::Bf16,
        PrecisionWord::Fp8 => Precision::Fp8,
    }
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

fn pools(args: &SizeArgs) -> Result<Vec<Pool>, Fail> {
    match (&args.cluster, args.this) {
        (Some(word), false) => pools_of_word(word),
        (None, _) => pools_of_machine(),
        (Some(_), true) => Err(Fail::new(code::USAGE, "`--this` and `--cluster` say two things")
            .hint("leave one of them out")),
    }
}

/// `NxCLASS` or any cluster that `het sim` knows, several joined by `+`.
fn pools_of_word(word: &str) -> Result<Vec<Pool>, Fail> {
    let mut pools = Vec::new();
    for part in word.split('+').map(str::trim) {
        let counted = part.split_once('x').and_then(|(count, class)| {
            let known = catalogue::classes().iter().find(|known| known.id == class)?;
            Some((count.parse::<u32>().ok()?, known.id.to_string()))
        });
        match counted {
            Some((count, class)) => pools.push(pool(&class, count)?),
            None => pools.extend(pools_of(&scenario::topology(part)?)?),
        }
    }
    Ok(pools)
}

fn pools_of_machine() -> Result<Vec<Pool>, Fail> {
    let topology = this_machine().topology;
    let mut pools = pools_of(&topology)?;
    let devices: u32 = pools.iter().map(|pool| pool.devices).sum();
    let host = topology.nodes.first().map_or(Bytes::ZERO, |node| node.memory);
    for pool in &mut pools {
        pool.machine.island.devices_per_node = pool.devices;
        pool.host_memory = Some(Bytes(host.0 / u64::from(devices.max(1))));
    }
    Ok(pools)
}

/// A pool for each class of accelerators.
fn pools_of(topology: &Topology) -> Result<Vec<Pool>, Fail> {
    let mut pools = Vec::new();
    for (index, class) in topology.classes.iter().enumerate() {
        let of_class = |id: &het_core::DeviceId| topology.device(*id).class == index;
        let devices: Vec<_> = topology.accelerators().filter(of_class).collect();
        if devices.is_empty() || class.software {
            continue;
        }
        let mut pool = pool(class.id.as_str(), devices.len() as u32)?;
        let memory = topology.memory_of(devices[0]);
        if memory > Bytes::ZERO {
            pool.machine.device.memory = memory;
        }
        let node = topology.device(devices[0]).node;
        let beside = devices.iter().filter(|id| topology.device(**id).node == node).count();
        pool.machine.island.devices_per_node = beside as u32;
        pools.push(pool);
    }
    if pools.is_empty() {
        return Err(Fail::new(code::USAGE, "there is no GPU or NPU to train on")
            .hint("name devices to think of, for example `--cluster 8xh100-sxm5-80`"));
    }
    Ok(pools)
}

fn pool(class: &str, devices: u32) -> Result<Pool, Fail> {
    let device = figures(class).ok_or_else(|| {
        Fail::new(code::USAGE, format!("the catalogue lacks figures of `{class}`"))
            .hint("`het size` needs its peak, memory and bandwidth")
    })?;
    let vendor = catalogue::class_by_id(class).map(|known| known.vendor.to_string());
    let power_w = catalogue::figures(class).and_then(|figures| figures.power_w);
    let pool = standing(class, vendor.as_deref().unwrap_or_default(), device, devices);
    Ok(Pool { power_w, ..pool })
}
