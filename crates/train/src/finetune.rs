//! The training loop: steps, checkpoints, notices, progress.
//!
//! What a step does follows from its number and the seed alone, so a resumed run writes the same
//! bytes as one that was never stopped.

use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::checkpoint::{self, State};
use crate::driver::Driver;
use crate::error::{Error, IoContext, Result};
use crate::lora::{self, Adapter};
use crate::notice::Notice;
use crate::optimiser::{AdamW, Schedule};
use crate::progress::{Progress, Totals};
use crate::saves::{SaveClock, Saves};
use crate::split::Split;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::time::Instant;

/// What decides every byte of the result, together with the weights and the data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    pub steps: u64,
    pub batch: usize,
    pub accumulate: usize,
    pub seq: usize,
    pub lr: f32,
    pub rank: usize,
    pub alpha: f32,
    pub seed: u64,
}

/// What does not.
#[derive(Debug, Clone)]
pub struct Places {
    pub output: PathBuf,
    pub checkpoints: PathBuf,
    pub saves: Saves,
    pub resume: Option<PathBuf>,
    pub base_model: String,
    /// Names the weights and the data in the checkpoints.
    pub identity: Json,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Finished {
        last_loss: f64,
        totals: Totals,
    },
    /// Stopped on request after saving.
    Saved {
        path: PathBuf,
        reason: String,
    },
}

/// Says something to whoever watches: progress lines and, in the command, standard error.
pub type Say<'a> = &'a mut dyn FnMut(&str);

/// Trains an adapter and writes it to `places.output`.
pub fn run(
    settings: &Settings,
    places: &Places,
    architecture: &Architecture,
    data: &Split,
    driver: &mut dyn Driver,
    notice: &Notice,
    progress: &mut Progress,
    say: Say<'_>,
) -> Result<Outcome> {
    check(settings, architecture)?;
    data.check_scored(settings.seq)?;
    let mut trainer = Trainer::start(settings, places, architecture, data)?;
    if trainer.state.step > 0 {
        say(&format!("resumed at step {}", trainer.state.step));
        progress.message(&format!("resumed at step {}", trainer.state.step));
    }
    report_shortened(settings, data, progress, say);
    let mut loss = f64::NAN;
    let mut clock = SaveClock::start(places.saves);
    while trainer.state.step < settings.steps {
        loss = trainer.step(driver)?;
        let (step, totals) = (trainer.state.step, trainer.state.totals);
        let mut line = totals.report(step, settings.steps);
        line["loss"] = json!(loss);
        progress.send(&line);
        if step == 1 || step.is_multiple_of(5) || step == settings.steps {
            say(&format!("step {step}/{} loss {loss:.4}", settings.steps));
        }
        if let Some(reason) = notice.reason() {
            let path = trainer.save(places)?;
            report_checkpoint(progress, step, &path);
            return Ok(Outcome::Saved { path, reason });
        }
        if clock.is_due(step) {
            let began = Instant::now();
            match trainer.save(places) {
                Ok(path) => report_checkpoint(progress, step, &path),
                // The state in memory is whole, so training goes on and the next save may work.
                Err(error) => {
                    let hint = error.hint().unwrap_or_default();
                    let text = format!("{error}, training goes on; hint: {hint}");
                    say(&text);
                    progress.message(&text);
                }
            }
            clock.saved(began);
        }
    }
    std::fs::create_dir_all(&places.output).at("create", &places.output)?;
    checkpoint::write_adapter(&places.output, &trainer.adapter, &places.base_model)?;
    Ok(Outcome::Finished { last_loss: loss, totals: trainer.state.totals })
}

/// More tokens than a forward pass on processors has memory for, with any model.
const TOKENS_MAX: usize = 1 << 20;

fn check(settings: &Settings, architecture: &Architecture) -> Result<()> {
    let Settings { batch, accumulate, seq, rank, steps, lr, alpha, .. } = *settings;
    let positive = [batch, accumulate, rank].iter().all(|&count| count > 0);
    if !positive || seq < 2 || steps == 0 || !lr.is_finite() || !alpha.is_finite() {
        return Err(Error::Usage {
            what: "steps, batch, accumulate and rank must be at least 1, seq at least 2, and lr \
                   and alpha finite"
                .into(),
            hint: "see `het-train finetune --help`",
        });
    }
    check_sizes(batch, seq, rank, architecture)
}

/// Refuses sizes with which nothing, or no machine, computes.
pub fn check_sizes(batch: usize, seq: usize, rank: usize, shape: &Architecture) -> Result<()> {
    if batch == 0 || seq < 2 || rank == 0 {
        return Err(Error::Usage {
            what: "batch and rank must be at least 1, and seq at least 2".into(),
            hint: "raise them",
        });
    }
    shape.check_length(seq)?;
    if batch.checked_mul(seq).is_none_or(|tokens| tokens > TOKENS_MAX) {
        return Err(Error::Usage {
            what: format!(
                "a forward pass of {batch} sequences of up to {seq} tokens is more than \
                 {TOKENS_MAX} tokens"
            ),
            hint: "lower `--batch` or `--seq`, and raise `--accumulate` instead",
        });
    }
    lora::check_rank(rank, shape).map_err(|what| Error::Usage { what, hint: "lower `--rank`" })
}

fn report_shortened(settings: &Settings, data: &Split, progress: &mut Progress, say: Say<'_>) {
    let all = data.count();
    let cut = (0..all).filter(|&index| data.length(index) > settings.seq).count();
    if cut > 0 {
        let text = format!("{cut} of {all} sequences are cut to {} tokens", settings.seq);
        say(&text);
        progress.message(&text);
    }
    let empty = (0..all).filter(|&index| !data.is_scored(index, settings.seq)).count();
    if empty > 0 {
        let text =
            format!("{empty} of {all} sequences are left out: none of their tokens is scored");
        say(&text);
        progress.message(&text);
    }
}

fn report_checkpoint(progress: &mut Progress, step: u64, path: &std::path::Path) {
    progress.send(&json!({"checkpoint": {"step": step, "path": path}}));
}

/// The state of a run between two steps.
struct Trainer<'a> {
    settings: &'a Settings,
    data: &'a Split,
    /// Sequences with a scored token, so that every step has some.
    usable: Vec<usize>,
    adapter: Adapter,
    moments: AdamW,
    gradient: Vec<f32>,
    state: State,
    order: Vec<usize>,
}

impl<'a> Trainer<'a> {
    fn start(
        settings: &'a Settings,
        places: &Places,
        architecture: &Architecture,
        data: &'a Split,
    ) -> Result<Self> {
        let Settings { rank, alpha, seed, .. } = *settings;
        let mut adapter = Adapter::random(architecture, rank, alpha, seed);
        let length = adapter.values.len();
        let mut moments = AdamW::new(length);
        let run = identity(settings, places);
        let state = match &places.resume {
            Some(path) => checkpoint::load(path, &run, &mut adapter, &mut moments)?,
            None => State { step: 0, epoch: 0, position: 0, totals: Totals::default(), run },
        };
        let is_usable = |&index: &usize| data.is_scored(index, settings.seq);
        let usable: Vec<usize> = (0..data.count()).filter(is_usable).collect();
        let order = order(settings.seed, state.epoch, usable.len());
        let gradient = vec![0.0; length];
        Ok(Self { settings, data, usable, adapter, moments, gradient, state, order })
    }

    /// One update; returns the mean loss over its scored tokens.
    fn step(&mut self, driver: &mut dyn Driver) -> Result<f64> {
        let mut totals = self.state.totals;
        let loss = totals.time(|| self.update(driver))?;
        let Totals { samples, tokens, .. } = self.state.totals;
        self.state.totals = Totals { samples, tokens, ..totals };
        self.state.step += 1;
        Ok(loss)
    }

    fn update(&mut self, driver: &mut dyn Driver) -> Result<f64> {
        let step = self.state.step + 1;
        driver.use_adapter(&self.adapter)?;
        self.gradient.fill(0.0);
        let (mut loss, mut scored) = (0.0, 0);
        for _ in 0..self.settings.accumulate {
            let batch = self.next_batch()?;
            loss += driver.gradients(&self.adapter, &batch, &mut self.gradient)?;
            scored += batch.rows.len();
            self.state.totals.samples += batch.sequences() as u64;
            self.state.totals.tokens += batch.tokens.len() as u64;
        }
        let mean = loss / scored as f64;
        if !mean.is_finite() {
            return Err(Error::Diverged { step });
        }
        let scale = 1.0 / scored as f32;
        self.gradient.iter_mut().for_each(|value| *value *= scale);
        let schedule = Schedule { peak: self.settings.lr, steps: self.settings.steps };
        let rate = schedule.rate(step);
        self.moments.update(&mut self.adapter.values, &self.gradient, rate, step);
        // The loss of this step says nothing of the values that follow from its gradient.
        if self.adapter.values.iter().any(|value| !value.is_finite()) {
            return Err(Error::Diverged { step });
        }
        Ok(mean)
    }

    fn next_batch(&mut self) -> Result<Batch> {
        let mut chosen = Vec::new();
        for _ in 0..self.settings.batch {
            if self.state.position as usize >= self.usable.len() {
                self.state.epoch += 1;
                self.state.position = 0;
                self.order = order(self.settings.seed, self.state.epoch, self.usable.len());
            }
            let index = self.usable[self.order[self.state.position as usize]];
            chosen.push(self.data.sequence(index, self.settings.seq)?);
            self.state.position += 1;
        }
        Ok(Batch::pack(&chosen, self.settings.seq))
    }

    fn save(&self, places: &Places) -> Result<PathBuf> {
        std::fs::create_dir_all(&places.checkpoints).at("create", &places.checkpoints)?;
        let base = &places.base_model;
        checkpoint::save(&places.checkpoints, &self.state, &self.adapter, base, &self.moments)
    }
}

fn identity(settings: &Settings, places: &Places) -> Json {
    let mut run = serde_json::to_value(settings).expect("a plain struct serialises");
    if let (Some(run), Some(more)) = (run.as_object_mut(), places.identity.as_object()) {
        run.extend(more.clone());
    }
    run
}

/// The order of one epoch's sequences.
fn order(seed: u64, epoch: u64, length: usize) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(epoch + 1);
    let mut order: Vec<usize> = (0..length).collect();
    for last in (1..length).rev() {
        let chosen = (u64::from(random.next_u32()) * (last as u64 + 1)) >> 32;
        order.swap(last, chosen as usize);
    }
    order
}
