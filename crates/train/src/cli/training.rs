//! The commands that train: `finetune` and `pretrain`.

use super::arguments::{self, Finetune, Number, Pretrain, Training};
use super::{precision, show, warn};
use crate::architecture::Architecture;
use crate::digest::sha256_file;
use crate::drivers::WorkerDriver;
use crate::error::{Error, Result, gibibytes};
use crate::lora::{self, Adapter};
use crate::memory::{self, Run};
use crate::notice::{EXIT_SAVED, Notice};
use crate::optimiser;
use crate::precision::store_in_bf16;
use crate::progress::{Progress, Totals};
use crate::report::{Page, Sample};
use crate::saves::Saves;
use crate::split::{self, Split};
use crate::steps::{self, DeviceWork, Executor, Recompute, TaskTime};
use crate::tokenizer::Tokenizer;
use crate::trainable::{Trainable, check_configuration};
use crate::training::{self, Every, HeldOut, Method, Outcome, Places, Prompts, Settings};
use crate::weights::{Source, Weights};
use crate::workers::{Gang, Program, Workers};
use crate::{drivers, initial, samples, warm, whole};
use het_blocks::linear::Numbers;
use het_core::Bytes;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub fn finetune(arguments: &Finetune) -> Result<ExitCode> {
    let Finetune { training, weights, method, rank, alpha, rslora, target } = arguments;
    let method = match method {
        arguments::Method::Full if rank.is_some() || alpha.is_some() || *rslora => {
            return Err(of_adapters("`--rank`, `--alpha` and `--rslora` say"));
        }
        arguments::Method::Full if !target.is_empty() => {
            return Err(of_adapters("`--target` says"));
        }
        arguments::Method::Full => Method::Full,
        arguments::Method::Lora => {
            let default = lora::Settings::default();
            Method::Lora(lora::Settings {
                rank: rank.unwrap_or(default.rank),
                alpha: alpha.unwrap_or(default.alpha),
                rslora: *rslora,
                targets: target.clone(),
            })
        }
    };
    train(training, method, &weights.weights)
}

fn of_adapters(which: &str) -> Error {
    Error::Usage {
        what: format!("{which} how an adapter learns, and `--method full` trains none"),
        hint: "leave them out, or use `--method lora`",
    }
}

pub fn pretrain(arguments: &Pretrain) -> Result<ExitCode> {
    let model = &arguments.model;
    if !model.is_dir() {
        return Err(Error::Usage {
            what: format!("`{}` is no directory", model.display()),
            hint: "pass one with the model's config.json and tokenizer.json",
        });
    }
    train(&arguments.training, Method::Scratch, &model.display().to_string())
}

/// All training: what differs is what learns, and where its first values come from.
fn train(arguments: &Training, method: Method, weights: &str) -> Result<ExitCode> {
    let notice = Notice::from_environment()?;
    let numbers = precision::of_training(&arguments.precision)?;
    let checkpoints = checkpoints(arguments);
    let gang = Gang::from_environment(&checkpoints)?;
    if let Some(program) = Program::from_environment(gang.as_ref()) {
        return work(&program, (arguments, numbers), &method, weights, &notice);
    }
    let mut progress = Progress::from_environment();
    // A driver that is not there is told of before anything is read.
    let early = if warm::is_early() { None } else { Some(drivers::chosen(&arguments.driver)?) };
    let has_workers = arguments.workers > 0 || gang.is_some();
    check_worker_drivers((arguments, numbers), has_workers, weights)?;
    let Some(workers) = Workers::start(arguments.workers, gang.as_ref(), &notice)? else {
        return Ok(ExitCode::from(EXIT_SAVED));
    };
    let source = Source::open(weights)?;
    let architecture = source.architecture()?;
    architecture.check_length(arguments.seq)?;
    report_dropout(&architecture, &mut progress);
    let tokenizer = Tokenizer::of(&source)?;
    let data = Split::open(&arguments.data, split::TRAIN, &tokenizer)?;
    let prompts =
        samples::prompts(arguments.samples, &arguments.data, &data, &tokenizer, &architecture)?;
    let held_out = held_out(arguments, has_workers, (&tokenizer, &architecture))?;
    let places = places(arguments, checkpoints, &method, &source, (prompts, held_out))?;
    let settings = settings(arguments, method, numbers);
    settings.check(&architecture, &data)?;
    let is_validated = places.held_out.every != Every::Never;
    let estimated =
        check_memory((arguments, is_validated), &settings, &architecture, &data, &source)?;
    let start = Start::read(&settings, &source, weights)?;
    drop(source);
    let name = match early {
        Some(name) => name,
        None => match granted_driver(&arguments.driver, &notice)? {
            Some(name) => name,
            None => return Ok(ExitCode::from(EXIT_SAVED)),
        },
    };
    let (trainable, mut executor) = start.into_parts(&tokenizer, numbers, workers)?;
    executor.set_recompute(recompute(arguments.recompute));
    let workers_by = workers_by(&arguments.worker_driver);
    let computes = format!("driver `{name}`: {}{workers_by}", executor.detail());
    progress.driver(&name, executor.detail());
    warn(&computes);
    let outcome = training::run(
        &settings,
        &places,
        trainable,
        &data,
        &mut executor,
        &notice,
        &mut progress,
        &mut warn,
    )?;
    let peak = gibibytes(Bytes(memory::peak()?));
    let memory = format!("peak {peak}, estimated {}", gibibytes(estimated));
    warn(&format!("memory: {memory}"));
    let tasks = by_task(executor.times());
    warn(&format!("tasks: {tasks}"));
    let mut facts = vec![("computed by", computes), ("memory", memory), ("tasks", tasks)];
    if executor.work().len() > 1 {
        let shares = by_device(executor.work());
        warn(&format!("devices: {shares}"));
        facts.push(("devices", shares));
    }
    report(outcome, &settings, &places, &tokenizer, facts, &mut progress)
}

fn report(
    outcome: Outcome,
    settings: &Settings,
    places: &Places,
    tokenizer: &Tokenizer,
    facts: Vec<(&'static str, String)>,
    progress: &mut Progress,
) -> Result<ExitCode> {
    match outcome {
        Outcome::Saved { path, reason } => {
            warn(&format!("stopped ({reason}) with `{}` saved", path.display()));
            warn("hint: run the same command with `--resume` and that path to continue");
            Ok(ExitCode::from(EXIT_SAVED))
        }
        Outcome::Finished { last_loss, totals, losses, held_out, answers, timeline } => {
            let samples = samples::decoded(&places.prompts, &answers, tokenizer)?;
            samples.iter().for_each(print_sample);
            let seconds = totals.useful_ns as f64 / 1e9;
            let last = match last_loss.is_finite() {
                true => format!("last loss {last_loss:.4}"),
                false => "no step was left to do".to_owned(),
            };
            let what = match settings.method {
                Method::Lora(_) => "adapter",
                Method::Full | Method::Scratch => "model",
            };
            let Totals { tokens, .. } = totals;
            let did = format!(
                "{} steps, {tokens} tokens in {seconds:.1} s ({:.0} tokens/s), {last}",
                settings.steps,
                tokens as f64 / seconds
            );
            let title = format!("{what} in {}", places.output.display());
            let timeline = timeline.and_then(|trace| write_timeline(&places.output, &trace));
            let facts = [("training", did.clone())].into_iter().chain(facts).chain(timeline);
            let facts: Vec<_> = facts.collect();
            let (losses, samples, step) = (&losses, &samples, settings.steps);
            let held_out = &held_out;
            let page = Page { title: &title, facts: &facts, losses, held_out, step, samples };
            // The result is there all the same.
            let said = match page.write(&places.output) {
                Ok(path) => format!("report in {}", path.display()),
                Err(error) => format!("no report: {error}"),
            };
            warn(&said);
            progress.message(&said);
            progress.done();
            show(&format!("{title}: {did}"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes what devices did in some steps; the row of the report that says where. The result is
/// there without it.
fn write_timeline(output: &Path, trace: &str) -> Option<(&'static str, String)> {
    let path = output.join("timeline.json");
    match whole::write(&path, trace.as_bytes()) {
        Ok(()) => Some(("timeline", "timeline.json, to be opened in ui.perfetto.dev".to_owned())),
        Err(error) => {
            warn(&format!("no timeline: {error}"));
            None
        }
    }
}

/// What each kind of task took since the process began, the one that took most first:
/// `layer_backward 61.2 s (1080 tasks), …`
fn by_task(mut times: Vec<TaskTime>) -> String {
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let told = times.iter().map(|TaskTime { kernel, count, seconds }| {
        let tasks = if *count == 1 { "task" } else { "tasks" };
        format!("{kernel} {seconds:.1} s ({count} {tasks})")
    });
    told.collect::<Vec<_>>().join(", ")
}

/// What share of the tokens each device had: `cpu0 62 % in 31.0 s, …`
fn by_device(work: &[DeviceWork]) -> String {
    let all: u64 = work.iter().map(|own| own.tokens).sum();
    let told = work.iter().map(|DeviceWork { device, tokens, seconds, losses, is_lost }| {
        let share = 100.0 * *tokens as f64 / all.max(1) as f64;
        let lost = match (losses.as_slice(), is_lost) {
            ([], _) => String::new(),
            ([.., last], true) => format!(", lost: {last}"),
            ([.., last], false) => format!(", started again after a loss: {last}"),
        };
        format!("{device} {share:.0} % of the tokens in {seconds:.1} s{lost}")
    });
    told.collect::<Vec<_>>().join("; ")
}

/// A sample for whoever reads.
fn print_sample(sample: &Sample) {
    for (name, text) in sample.rows() {
        warn(&format!("{name}: {}", text.trim()));
    }
}

/// Says what the configuration asks for in training and is not done.
fn report_dropout(architecture: &Architecture, progress: &mut Progress) {
    if !architecture.dropout.is_empty() {
        let text = format!("trained without dropout ({})", architecture.dropout.join(", "));
        warn(&text);
        progress.message(&text);
    }
}

/// Computes what the program of a run asks for, with what a worker of its number has.
fn work(
    program: &Program<'_>,
    (arguments, numbers): (&Training, Numbers),
    method: &Method,
    weights: &str,
    notice: &Notice,
) -> Result<ExitCode> {
    let architecture = Source::open(weights)?.architecture()?;
    let adapter = match method {
        Method::Lora(lora) => Some(drawn_adapter(&architecture, lora, arguments.seed)?),
        Method::Full | Method::Scratch => None,
    };
    let drivers = &arguments.worker_driver;
    let driver = drivers.get(program.number()).or(drivers.last()).copied().unwrap_or_default();
    serve(program, architecture, (adapter.as_ref(), numbers, driver), notice)
}

/// What workers compute with, where that is something else than this process: ` (vulkan, cpu)`
fn workers_by(drivers: &[WorkerDriver]) -> String {
    if drivers.iter().all(|driver| *driver == WorkerDriver::Cpu) {
        return String::new();
    }
    let names: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
    format!(" ({})", names.join(", "))
}

/// Refuses drivers of no workers, and a model that one does not compute, before they are started.
fn check_worker_drivers(
    (arguments, numbers): (&Training, Numbers),
    has_workers: bool,
    weights: &str,
) -> Result<()> {
    let drivers = &arguments.worker_driver;
    if drivers.iter().all(|driver| *driver == WorkerDriver::Cpu) {
        return Ok(());
    }
    if !has_workers {
        return Err(Error::Usage {
            what: "`--worker-driver` says what workers compute with, and there are none".into(),
            hint: "add `--workers`",
        });
    }
    if numbers != Numbers::F32 || arguments.validate_precision != Number::F32 {
        return Err(Error::Usage {
            what: "the driver `vulkan` computes in f32, and another precision is asked for".into(),
            hint: "leave out `--precision` and `--validate-precision`, or `--worker-driver`",
        });
    }
    match steps::vulkan_lacks(&Source::open(weights)?.architecture()?) {
        None => Ok(()),
        Some(what) => Err(Error::Usage {
            what: format!("this model has {what}, which the driver `vulkan` does not compute"),
            hint: "leave out `--worker-driver`, which computes on processors",
        }),
    }
}

/// Computes for the program that this process is a worker of.
pub(super) fn serve(
    program: &Program<'_>,
    architecture: Architecture,
    (adapter, numbers, driver): (Option<&Adapter>, Numbers, WorkerDriver),
    notice: &Notice,
) -> Result<ExitCode> {
    let Some(connection) = program.connect(notice)? else {
        return Ok(ExitCode::from(EXIT_SAVED));
    };
    steps::serve(connection, architecture, (adapter, numbers), driver)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn recompute(asked: bool) -> Recompute {
    if asked { Recompute::Layers } else { Recompute::Nothing }
}

/// Refuses a run that would not fit, before weights are read; what this process will need of it.
fn check_memory(
    (arguments, is_validated): (&Training, bool),
    settings: &Settings,
    architecture: &Architecture,
    data: &Split,
    source: &Source,
) -> Result<Bytes> {
    let run = Run {
        settings,
        recompute: recompute(arguments.recompute),
        architecture,
        data,
        program: memory::resident()?.saturating_sub(source.held_bytes()),
        workers: arguments.workers,
        is_validated,
    };
    let available = memory::available()?;
    let available = arguments.memory.map_or(available, |most| most.0.min(available));
    let estimate = run.check(available)?;
    let (all, there) = (gibibytes(Bytes(estimate.total())), gibibytes(Bytes(available)));
    warn(&format!("this run needs about {all} of {there} memory"));
    Ok(Bytes(estimate.total() - estimate.workers))
}

/// What learns and what it learns from, in memory.
pub(super) enum Start {
    Adapter { adapter: Adapter, base_model: String, weights: Arc<Weights> },
    Model(Box<Weights>),
}

impl Start {
    fn read(settings: &Settings, source: &Source, name: &str) -> Result<Self> {
        if settings.method == Method::Scratch {
            return Ok(Self::Model(Box::new(drawn(source, settings.seed, Numbers::F32)?)));
        }
        let Method::Lora(lora) = &settings.method else {
            let weights = source.weights()?;
            check_configuration(&weights, source.path())?;
            return Ok(Self::Model(Box::new(weights)));
        };
        let weights = source.weights_in(settings.numbers)?;
        let adapter = drawn_adapter(&weights.architecture, lora, settings.seed)?;
        let base_model = source.base_name(name);
        Ok(Self::Adapter { adapter, base_model, weights: Arc::new(weights) })
    }

    pub(super) fn into_parts<'a>(
        self,
        tokenizer: &'a Tokenizer,
        numbers: Numbers,
        workers: Workers,
    ) -> Result<(Trainable<'a>, Executor)> {
        match self {
            Self::Adapter { adapter, base_model, weights } => {
                let executor = Executor::adapting(&weights, &adapter, workers)?;
                Ok((Trainable::Adapter { base_model }, executor))
            }
            Self::Model(weights) => {
                let configuration = weights.configuration.clone().unwrap_or_default();
                let executor = Executor::learning(*weights, numbers, workers)?;
                Ok((Trainable::Model { configuration, tokenizer }, executor))
            }
        }
    }
}

fn drawn_adapter(shape: &Architecture, lora: &lora::Settings, seed: u64) -> Result<Adapter> {
    let adapter = Adapter::drawn(shape, lora, seed);
    adapter.map_err(|what| Error::Usage { what, hint: "correct `--target`" })
}

/// Weights of the model that a directory describes, drawn, and stored in such numbers.
pub(super) fn drawn(source: &Source, seed: u64, numbers: Numbers) -> Result<Weights> {
    let Source::Hub(hub) = source else {
        return Err(Error::Usage {
            what: "a GGUF is no description of a model to train from nothing".into(),
            hint: "pass a directory with config.json and tokenizer.json",
        });
    };
    let (architecture, configuration) = hub.architecture()?;
    let path = hub.configuration_path();
    let drawn = initial::weights(architecture, configuration, seed);
    let mut drawn = drawn.map_err(|refusal| Error::Configuration { path, refusal })?;
    if numbers == Numbers::Bf16 {
        store_in_bf16(&mut drawn.parameters, &drawn.architecture);
    }
    Ok(drawn)
}

fn checkpoints(arguments: &Training) -> PathBuf {
    let own = || arguments.output.join("checkpoints");
    arguments.checkpoint_dir.clone().unwrap_or_else(own)
}

fn places(
    arguments: &Training,
    checkpoints: PathBuf,
    method: &Method,
    source: &Source,
    (prompts, held_out): (Prompts, HeldOut),
) -> Result<Places> {
    Ok(Places {
        output: arguments.output.clone(),
        checkpoints,
        timeline_steps: arguments.timeline_steps,
        saves: Saves::told(arguments.checkpoint_every),
        resume: arguments.resume.clone().filter(|path| !path.as_os_str().is_empty()),
        identity: identity(&arguments.data, method, source)?,
        prompts,
        held_out,
    })
}

/// What is validated while the run trains: nothing where there is no held-out data.
fn held_out(
    arguments: &Training,
    has_workers: bool,
    (tokenizer, architecture): (&Tokenizer, &Architecture),
) -> Result<HeldOut> {
    let every = match arguments.validate_every {
        Some(0) => Every::Never,
        Some(steps) => Every::Steps(steps),
        None if has_workers => Every::Affordable((arguments.steps / 10).max(1)),
        None => Every::Never,
    };
    if every == Every::Never || arguments.validate_sequences == 0 {
        return Ok(HeldOut::default());
    }
    let data = match Split::open(&arguments.data, split::HELD_OUT, tokenizer) {
        // Nobody asked for it.
        Err(_) if arguments.validate_every.is_none() => return Ok(HeldOut::default()),
        data => data?,
    };
    let format = precision::of_validation(arguments.validate_precision, architecture)?;
    let most = (arguments.validate_sequences, arguments.seq);
    let held_out = HeldOut::read(&data, most, every, format)?;
    let mut batches = held_out.batches.iter();
    batches.try_for_each(|batch| batch.check_vocabulary(architecture.vocabulary))?;
    Ok(held_out)
}

/// What a resumed run must have in common with the run that it continues, beside its settings.
fn identity(data: &Path, method: &Method, source: &Source) -> Result<Json> {
    let mut identity = json!({"data": sha256_file(&data.join(split::TRAIN))?});
    if *method != Method::Scratch {
        identity["weights"] = json!(source.sha256()?);
    }
    // The same matrices compute something else by another configuration.
    if let Some(configuration) = source.configuration_sha256()? {
        identity["configuration"] = json!(configuration);
    }
    Ok(identity)
}

fn settings(arguments: &Training, method: Method, numbers: Numbers) -> Settings {
    let lr = arguments.lr.unwrap_or(match method {
        Method::Lora(_) => 3e-3,
        Method::Full => 1e-4,
        Method::Scratch => 1e-3,
    });
    Settings {
        steps: arguments.steps,
        batch: arguments.batch,
        accumulate: arguments.accumulate,
        seq: arguments.seq,
        pack: arguments.pack,
        seed: arguments.seed,
        optimiser: optimiser::Settings {
            lr,
            schedule: arguments.schedule,
            warmup: arguments.warmup,
            lr_final: arguments.lr_final,
            weight_decay: arguments.weight_decay,
            beta1: arguments.beta1,
            beta2: arguments.beta2,
            max_grad_norm: arguments.max_grad_norm,
        },
        numbers,
        method,
    }
}

/// The driver of the devices that this process was started before, once they are its own; `None`
/// where it is asked to stop before.
fn granted_driver(wanted: &str, notice: &Notice) -> Result<Option<String>> {
    let Some(devices) = warm::wait(notice)? else { return Ok(None) };
    let name = drivers::resolve(wanted, devices.variable("HET_DEVICES").as_deref())?;
    if name != drivers::CPU {
        devices.begin_anew()?;
    }
    Ok(Some(name))
}
