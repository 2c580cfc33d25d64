//! `bench-step`: speed, memory and profile of training steps on random tokens.

use super::arguments::{self, BenchStep};
use super::training::{Start, drawn, recompute, serve};
use super::{precision, show};
use crate::architecture::Architecture;
use crate::batch::{Batch, Sequence};
use crate::drivers::WorkerDriver;
use crate::error::Result;
use crate::lora::Adapter;
use crate::notice::Notice;
use crate::optimiser::{self, Request};
use crate::steps::{DeviceWork, Executor, TaskTime};
use crate::tokenizer::Tokenizer;
use crate::weights::{Pair, Source};
use crate::workers::{Program, Workers};
use crate::{drivers, memory, training};
use het_blocks::linear::Numbers;
use het_blocks::meter::{Spent, WORK, Work};
use serde_json::{Map, Value as Json, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Rows and columns of the product whose rate is the peak: its operands are larger than caches.
const PEAK_SIZE: usize = 2048;
const PEAK_REPEATS: usize = 5;

/// One step's time, and where it went.
#[derive(Debug, Clone)]
struct Measured {
    seconds: f64,
    spent: Spent,
    /// Of tasks by kernel: counts and seconds of this step.
    tasks: Vec<TaskTime>,
}

impl Measured {
    /// What the step took beyond its tasks: submission, scheduling, and waking the device and
    /// whoever waits for it.
    fn exposed(&self) -> f64 {
        self.seconds - self.tasks.iter().map(|task| task.seconds).sum::<f64>()
    }
}

/// Prints a line of JSON on the step whose time is the median.
pub fn run(arguments: &BenchStep) -> Result<ExitCode> {
    let BenchStep { batch, seq, scored, rank, steps, .. } = *arguments;
    let numbers = precision::of_training(&arguments.precision)?;
    let source = Source::open(&arguments.weights.weights)?;
    let adapter = |shape: &Architecture| match arguments.method {
        arguments::Method::Full => None,
        arguments::Method::Lora => Some(Adapter::random(shape, rank, 2.0 * rank as f32, 1)),
    };
    if let Some(program) = Program::from_environment(None) {
        let architecture = source.architecture()?;
        let adapter = adapter(&architecture);
        let learns = (adapter.as_ref(), numbers, WorkerDriver::default());
        return serve(&program, architecture, learns, &Notice::default());
    }
    let workers = Workers::start(arguments.workers, None, &Notice::default())?;
    let workers = workers.unwrap_or_default();
    // What learns stays in f32.
    let stored = match arguments.method {
        arguments::Method::Full => Numbers::F32,
        arguments::Method::Lora => numbers,
    };
    let weights = match arguments.from_scratch {
        true => drawn(&source, 1, stored)?,
        false => source.weights_in(stored)?,
    };
    let tokenizer = Tokenizer::of(&source)?;
    drop(source);
    training::check_sizes(batch, seq, &weights.architecture)?;
    training::check_rank(rank, &weights.architecture)?;
    let vocabulary = weights.architecture.vocabulary as u32;
    let name = drivers::resolve(&arguments.driver, None)?;
    let start = match adapter(&weights.architecture) {
        None => Start::Model(Box::new(weights)),
        Some(adapter) => {
            Start::Adapter { adapter, base_model: String::new(), weights: Arc::new(weights) }
        }
    };
    let (_, mut executor) = start.into_parts(&tokenizer, numbers, workers)?;
    executor.set_recompute(recompute(arguments.recompute));
    let batch = random_batch(batch, seq, scored, vocabulary);
    // The first step also pays for the buffers, so it is not counted.
    let all = (0..=steps).map(|step| measured(&mut executor, &batch, step + 1));
    let mut all = all.collect::<Result<Vec<_>>>()?.split_off(1);
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let Some(median) = all.get(all.len() / 2) else { return Ok(ExitCode::SUCCESS) };
    let exposed = median.exposed();
    let mut line = json!({"driver": name, "detail": executor.detail(), "step_s": median.seconds,
                          "tokens_per_s": batch.tokens.len() as f64 / median.seconds,
                          "overhead": {"seconds": exposed, "share": exposed / median.seconds},
                          "peak_bytes": memory::peak()?});
    if executor.work().len() > 1 {
        line["work"] = executor.work().iter().map(worked).collect();
    }
    if arguments.profile {
        drop(executor);
        line["profile"] = profile(median, numbers);
    }
    show(&line.to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn measured(executor: &mut Executor, batch: &Batch, step: u64) -> Result<Measured> {
    let (began, spent, before) = (Instant::now(), executor.spent(), executor.times());
    executor.begin_step()?;
    executor.add_gradients(batch)?;
    let scale = 1.0 / batch.rows.len() as f32;
    let settings = optimiser::Settings::default();
    executor.update(Request { settings, scale, rate: 1e-4, step })?;
    let seconds = began.elapsed().as_secs_f64();
    let tasks = executor.times().into_iter().map(|task| {
        let before = before.iter().find(|before| before.kernel == task.kernel);
        before.map_or(task, |before| task.since(before))
    });
    let tasks = tasks.filter(|task| task.count > 0).collect();
    Ok(Measured { seconds, spent: executor.spent().since(&spent), tasks })
}

/// What a device did of all steps.
fn worked(DeviceWork { device, tokens, seconds, losses, .. }: &DeviceWork) -> Json {
    json!({"device": device, "tokens": tokens, "seconds": seconds, "losses": losses})
}

/// Seconds by kind of work and by kernel, and the rate of whole products beside that of a large
/// one.
fn profile(step: &Measured, numbers: Numbers) -> Json {
    let seconds = |work| step.spent.time(work).as_secs_f64();
    let mut parts: Map<String, Json> =
        WORK.iter().map(|(work, name)| ((*name).to_owned(), json!(seconds(*work)))).collect();
    let counted: f64 = WORK.iter().map(|(work, _)| seconds(*work)).sum();
    parts.insert("other".to_owned(), json!(step.seconds - counted));
    let rate = step.spent.operations / seconds(Work::Products);
    let task = |task: &TaskTime| {
        let TaskTime { kernel, count, seconds } = task;
        json!({"kernel": kernel, "count": count, "seconds": seconds})
    };
    let tasks: Vec<Json> = step.tasks.iter().map(task).collect();
    json!({"seconds": parts, "tasks": tasks, "products_flop_per_s": rate,
           "peak_flop_per_s": peak_rate(numbers)})
}

/// Operations a second of the fastest of some large products, by all threads of the pool.
fn peak_rate(numbers: Numbers) -> f64 {
    const SIZE: usize = PEAK_SIZE;
    let values = vec![1.0; SIZE * SIZE];
    let mut out = vec![0.0; SIZE * SIZE];
    let linear = Pair { weight: values.clone(), ..Pair::default() };
    let linear = linear.linear(SIZE, numbers);
    let mut timed = || {
        let began = Instant::now();
        linear.forward(&values, &mut out);
        began.elapsed().as_secs_f64()
    };
    let fastest = (0..PEAK_REPEATS).map(|_| timed()).fold(f64::INFINITY, f64::min);
    2.0 * (SIZE as f64).powi(3) / fastest
}

fn random_batch(batch: usize, seq: usize, scored: usize, vocabulary: u32) -> Batch {
    let sequences = (0..batch as u32).map(|row| Sequence {
        tokens: (0..seq as u32)
            .map(|i| row.wrapping_mul(7919).wrapping_add(i.wrapping_mul(104_729)) % vocabulary)
            .collect(),
        scored: (0..seq).map(|i| i.saturating_add(scored) >= seq).collect(),
    });
    Batch::pack(&sequences.collect::<Vec<_>>(), seq)
}
