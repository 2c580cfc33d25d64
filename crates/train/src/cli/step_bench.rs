//! `bench-step`: speed, memory and profile of training steps on random tokens.

use super::arguments::{self, BenchStep};
use super::show;
use super::training::{Start, drawn, recompute};
use crate::batch::{Batch, Sequence};
use crate::blocks::matrix::{product, rows, rows_mut};
use crate::blocks::meter::{self, Spent, WORK};
use crate::error::Result;
use crate::lora::Adapter;
use crate::optimiser::{self, AdamW};
use crate::tokenizer::Tokenizer;
use crate::weights::Source;
use crate::{drivers, memory, training};
use serde_json::{Map, Value as Json, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Rows and columns of the product whose rate is the peak: its operands are larger than caches.
const PEAK_SIZE: usize = 2048;
const PEAK_REPEATS: usize = 5;

/// One step's time, and where it went.
#[derive(Debug, Clone, Copy)]
struct Step {
    seconds: f64,
    spent: Spent,
}

/// Prints a line of JSON on the step whose time is the median.
pub fn run(arguments: &BenchStep) -> Result<ExitCode> {
    let BenchStep { batch, seq, scored, rank, steps, .. } = *arguments;
    let source = Source::open(&arguments.weights.weights)?;
    let weights = if arguments.from_scratch { drawn(&source, 1)? } else { source.weights()? };
    let tokenizer = Tokenizer::of(&source)?;
    drop(source);
    training::check_sizes(batch, seq, &weights.architecture)?;
    training::check_rank(rank, &weights.architecture)?;
    let vocabulary = weights.architecture.vocabulary as u32;
    let name = drivers::resolve(&arguments.driver, None)?;
    let start = match arguments.method {
        arguments::Method::Full => Start::Model(Box::new(weights)),
        arguments::Method::Lora => {
            let adapter = Adapter::random(&weights.architecture, rank, 2.0 * rank as f32, 1);
            Start::Adapter { adapter, base_model: String::new(), weights: Arc::new(weights) }
        }
    };
    let (mut trainable, mut driver) = start.into_parts(&name, &tokenizer)?;
    driver.set_recompute(recompute(arguments.recompute));
    let mut moments = AdamW::new(trainable.count());
    let batch = random_batch(batch, seq, scored, vocabulary);
    let mut measured = Vec::new();
    // The first step also pays for the buffers, so it is not counted.
    for step in 0..=steps {
        let (began, before) = (Instant::now(), meter::spent());
        trainable.begin_step(driver.as_mut())?;
        trainable.add_gradients(driver.as_mut(), &batch)?;
        let (slices, scale) = (trainable.slices(driver.as_mut()), 1.0 / batch.rows.len() as f32);
        moments.update(&optimiser::Settings::default(), slices, scale, 1e-4, step + 1);
        if step > 0 {
            let seconds = began.elapsed().as_secs_f64();
            measured.push(Step { seconds, spent: meter::spent().since(&before) });
        }
    }
    measured.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let Some(median) = measured.get(measured.len() / 2) else { return Ok(ExitCode::SUCCESS) };
    let peak_bytes = memory::peak()?;
    let mut line = json!({"driver": name, "detail": driver.detail(), "step_s": median.seconds,
                          "tokens_per_s": batch.tokens.len() as f64 / median.seconds,
                          "peak_bytes": peak_bytes});
    if arguments.profile {
        drop((trainable, driver, moments));
        line["profile"] = profile(median);
    }
    show(&line.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Seconds by kind of work, and the rate of whole products beside that of a large one.
fn profile(step: &Step) -> Json {
    let seconds = |work| step.spent.time(work).as_secs_f64();
    let mut parts: Map<String, Json> =
        WORK.iter().map(|(work, name)| ((*name).to_owned(), json!(seconds(*work)))).collect();
    let counted: f64 = WORK.iter().map(|(work, _)| seconds(*work)).sum();
    parts.insert("other".to_owned(), json!(step.seconds - counted));
    let rate = step.spent.operations / seconds(meter::Work::Products);
    json!({"seconds": parts, "products_flop_per_s": rate, "peak_flop_per_s": peak_rate()})
}

/// Operations a second of the fastest of some large products, by all threads of the pool.
fn peak_rate() -> f64 {
    const SIZE: usize = PEAK_SIZE;
    let values = vec![1.0; SIZE * SIZE];
    let mut out = vec![0.0; SIZE * SIZE];
    let mut timed = || {
        let began = Instant::now();
        product(rows_mut(&mut out, SIZE), rows(&values, SIZE), rows(&values, SIZE).transpose());
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
