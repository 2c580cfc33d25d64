//! The training loop: steps, checkpoints, notices, progress.
//!
//! What a step does follows from its number and the seed alone, so a resumed run writes the same
//! bytes as one that was never stopped.

use crate::architecture::Architecture;
use crate::batch::{Batch, Sequence};
use crate::checkpoint::{self, State};
use crate::curve::Curve;
use crate::error::{Error, IoContext, Result};
use crate::evaluate;
use crate::lora;
use crate::notice::Notice;
use crate::optimiser::{self, Request};
use crate::progress::{Pace, Progress, Totals};
use crate::sampler::{Packing, Sampler, Shape};
use crate::saves::{SaveClock, Saves};
use crate::split::Split;
use crate::steps::{Executor, Step, Validated, When};
use crate::trainable::Trainable;
use het_blocks::linear::Numbers;
use het_blocks::quantized::Format;
use het_wire::quantity::duration_text;
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
    /// Whether a batch counts rows that are filled with sequences.
    pub pack: bool,
    pub seed: u64,
    #[serde(flatten)]
    pub optimiser: optimiser::Settings,
    /// What products with weights compute in. Left out for f32, of which earlier checkpoints say
    /// nothing.
    #[serde(rename = "precision", skip_serializing_if = "Numbers::is_f32")]
    pub numbers: Numbers,
    #[serde(flatten)]
    pub method: Method,
}

/// What learns.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "method", rename_all = "lowercase")]
pub enum Method {
    Lora(lora::Settings),
    /// Every parameter, from weights that are given.
    Full,
    /// Every parameter, from weights that are drawn.
    Scratch,
}

/// What does not.
#[derive(Debug, Clone)]
pub struct Places {
    pub output: PathBuf,
    pub checkpoints: PathBuf,
    pub saves: Saves,
    pub resume: Option<PathBuf>,
    /// Names the weights and the data in the checkpoints.
    pub identity: Json,
    /// What the model is asked before and after.
    pub prompts: Prompts,
    /// Steps of which it is noted when which device did what.
    pub timeline_steps: u64,
    pub held_out: HeldOut,
}

/// What the held-out loss is computed of while a run trains, and how often.
#[derive(Debug, Clone, Default)]
pub struct HeldOut {
    pub batches: Vec<Batch>,
    pub every: Every,
    /// What matrices are rounded to for it; `None` leaves them in f32.
    pub format: Option<Format>,
}

/// How often a run validates; after its last step it does so in any case, unless never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Every {
    #[default]
    Never,
    /// So many steps, however long that takes.
    Steps(u64),
    /// So many steps, or more: one may take a twentieth of the time since the one before.
    Affordable(u64),
}

/// Of the time of a run, what is spent on validations that nobody asked for.
const VALIDATION_PART: f64 = 1.0 / 20.0;

/// Tokens of a validation's batch: a step waits for one of its tasks at most.
const VALIDATED_AT_ONCE: usize = 256;

impl HeldOut {
    /// Of the first so many sequences of held-out data.
    pub fn read(
        data: &Split,
        (sequences, length_max): (usize, usize),
        every: Every,
        format: Option<Format>,
    ) -> Result<Self> {
        let mut batches = Vec::new();
        let groups = evaluate::by_tokens(data, length_max, VALIDATED_AT_ONCE).into_iter();
        for group in groups.take_while(|group| group.start < sequences) {
            let read = group.filter(|index| *index < sequences);
            let read = read.map(|index| data.sequence(index, length_max));
            let batch = Batch::pack(&read.collect::<Result<Vec<Sequence>>>()?, length_max);
            if !batch.rows.is_empty() {
                batches.push(batch);
            }
        }
        let every = if batches.is_empty() { Every::Never } else { every };
        Ok(Self { batches, every, format })
    }
}

/// Prompts as tokens, and how answers end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    pub prompts: Vec<Vec<u32>>,
    pub end: Option<u32>,
    pub new_max: usize,
}

impl Prompts {
    /// What the model writes now; nothing, and why, where it writes nothing: no run fails for that.
    fn answers(&self, executor: &mut Executor, say: Say<'_>) -> Vec<Vec<u32>> {
        executor.generate(&self.prompts, self.end, self.new_max).unwrap_or_else(|error| {
            say(&format!("no samples: {error}"));
            Vec::new()
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Finished {
        last_loss: f64,
        totals: Totals,
        losses: Curve,
        /// Held-out losses after steps.
        held_out: Vec<(u64, f64)>,
        /// What was written for each prompt with the first weights, and with the last.
        answers: [Vec<Vec<u32>>; 2],
        /// When which device did what, in some steps, as Perfetto reads it.
        timeline: Option<String>,
    },
    /// Stopped on request after saving.
    Saved { path: PathBuf, reason: String },
}

/// Says something to whoever watches: progress lines and, in the command, standard error.
pub type Say<'a> = &'a mut dyn FnMut(&str);

/// Trains and writes the result to `places.output`.
pub fn run(
    settings: &Settings,
    places: &Places,
    trainable: Trainable<'_>,
    data: &Split,
    executor: &mut Executor,
    notice: &Notice,
    progress: &mut Progress,
    say: Say<'_>,
) -> Result<Outcome> {
    let before = places.prompts.answers(executor, say);
    let mut trainer = Trainer::start(settings, places, trainable, data, executor)?;
    if trainer.state.step > 0 {
        say(&format!("resumed at step {}", trainer.state.step));
        progress.message(&format!("resumed at step {}", trainer.state.step));
    }
    report_shortened(settings, data, progress, say);
    let mut loss = f64::NAN;
    let mut clock = SaveClock::start(places.saves);
    let pace = Pace::start(trainer.state.step, trainer.state.totals);
    // The first step has weights copied to workers, and is no picture of the others.
    let is_first_left_out = trainer.state.step + 1 < settings.steps;
    let recorded_from = trainer.state.step + u64::from(is_first_left_out);
    let (recorded_until, mut timeline) = (recorded_from + places.timeline_steps, None);
    if places.timeline_steps > 0 && !is_first_left_out {
        executor.record();
    }
    while trainer.state.step < settings.steps {
        loss = trainer.step(executor)?;
        let step = trainer.state.step;
        tell_news(executor, progress, say);
        trainer.report(loss, &pace, progress, say);
        if step == recorded_until || step == settings.steps {
            timeline = timeline.or_else(|| executor.take_trace());
        }
        if step == recorded_from && places.timeline_steps > 0 {
            executor.record();
        }
        if let Some(reason) = notice.reason() {
            let path = trainer.save(places, executor)?;
            report_checkpoint(progress, step, &path);
            return Ok(Outcome::Saved { path, reason });
        }
        if clock.is_due(step) {
            let began = Instant::now();
            match trainer.save(places, executor) {
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
        // Nothing is begun, and nothing waited for, once the run is told to end.
        trainer.validate(&places.held_out, executor, progress, say)?;
    }
    trainer.take_validated(true, &places.held_out, executor, progress, say)?;
    tell_news(executor, progress, say);
    let Trainer { trainable, state, .. } = trainer;
    executor.end_training()?;
    executor.use_adapter()?;
    let after = places.prompts.answers(executor, say);
    std::fs::create_dir_all(&places.output).at("create", &places.output)?;
    trainable.finish(executor, &places.output)?;
    let State { totals, losses, held_out, .. } = state;
    let answers = [before, after];
    Ok(Outcome::Finished { last_loss: loss, totals, losses, held_out, answers, timeline })
}

/// More tokens than a forward pass on processors has memory for, with any model.
const TOKENS_MAX: usize = 1 << 20;

impl Settings {
    pub fn shape(&self) -> Shape {
        let packing = if self.pack { Packing::Rows } else { Packing::Off };
        Shape { batch: self.batch, seq: self.seq, packing }
    }

    /// Refuses what nothing, or no machine, computes with, and data of which nothing is scored.
    pub fn check(&self, architecture: &Architecture, data: &Split) -> Result<()> {
        let usage = |what: String| Error::Usage { what, hint: "see `--help`" };
        if self.accumulate == 0 || self.steps == 0 {
            return Err(usage("`--steps` and `--accumulate` must be at least 1".into()));
        }
        self.optimiser.check().map_err(usage)?;
        if let Method::Lora(lora) = &self.method {
            if !lora.alpha.is_finite() {
                return Err(usage("`--alpha` must be a number of a possible size".into()));
            }
            check_rank(lora.rank, architecture)?;
        }
        check_sizes(self.batch, self.seq, architecture)?;
        data.check_scored(self.seq)
    }
}

/// Refuses sizes with which nothing, or no machine, computes.
pub fn check_sizes(batch: usize, seq: usize, shape: &Architecture) -> Result<()> {
    if batch == 0 || seq < 2 {
        return Err(Error::Usage {
            what: "batch must be at least 1, and seq at least 2".into(),
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
    Ok(())
}

/// Refuses a rank with which nothing is learned, or more than the matrices have.
pub fn check_rank(rank: usize, shape: &Architecture) -> Result<()> {
    if rank == 0 {
        return Err(Error::Usage { what: "rank must be at least 1".into(), hint: "raise it" });
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

/// Tells what became of workers.
fn tell_news(executor: &mut Executor, progress: &mut Progress, say: Say<'_>) {
    for text in executor.take_news() {
        say(&text);
        progress.message(&text);
    }
}

/// The state of a run between two steps.
struct Trainer<'a> {
    settings: &'a Settings,
    trainable: Trainable<'a>,
    state: State,
    sampler: Sampler<'a>,
    /// The step whose weights were validated last, or are being, and since when.
    validated: (u64, Instant),
}

impl<'a> Trainer<'a> {
    fn start(
        settings: &'a Settings,
        places: &Places,
        trainable: Trainable<'a>,
        data: &'a Split,
        executor: &mut Executor,
    ) -> Result<Self> {
        checkpoint::remove_unfinished(&places.checkpoints);
        let run = identity(settings, places);
        let state = match &places.resume {
            Some(path) => checkpoint::load(path, &run, &trainable, executor)?,
            None => {
                let (totals, losses, held_out) = Default::default();
                State { step: 0, epoch: 0, position: 0, totals, losses, held_out, run }
            }
        };
        let State { epoch, position, .. } = state;
        let sampler = Sampler::at(data, settings.seq, settings.seed, epoch, position);
        let validated = (state.step, Instant::now());
        Ok(Self { settings, trainable, state, sampler, validated })
    }

    /// One update; returns the mean loss over its scored tokens.
    fn step(&mut self, executor: &mut Executor) -> Result<f64> {
        let mut totals = self.state.totals;
        let loss = totals.time(|| self.update(executor))?;
        let Totals { samples, tokens, .. } = self.state.totals;
        self.state.totals = Totals { samples, tokens, ..totals };
        self.state.step += 1;
        self.state.losses.push(loss);
        Ok(loss)
    }

    /// Tells how far the run is: the scheduler of every step, and now and then whoever reads.
    fn report(&self, loss: f64, pace: &Pace, progress: &mut Progress, say: Say<'_>) {
        let (State { step, totals, .. }, steps) = (&self.state, self.settings.steps);
        let speed = pace.tokens_per_s(totals);
        let left = pace.left(*step, steps);
        let mut line = totals.report(*step, steps);
        line["loss"] = json!(loss);
        line["tokens_per_s"] = json!(speed);
        line["left_s"] = json!(left.as_seconds());
        progress.send(&line);
        if *step == 1 || step.is_multiple_of(5) || *step == steps {
            let left = duration_text(left);
            say(&format!("step {step}/{steps} loss {loss:.4}, {speed:.0} tokens/s, {left} left"));
        }
    }

    /// Tells what the last validation found, and begins the next one where it is due.
    fn validate(
        &mut self,
        held_out: &HeldOut,
        executor: &mut Executor,
        progress: &mut Progress,
        say: Say<'_>,
    ) -> Result<()> {
        let when = match self.state.step == self.settings.steps {
            true => When::AfterAllSteps,
            false => When::BetweenSteps,
        };
        let is_due = self.is_due(held_out, executor, when);
        self.take_validated(is_due, held_out, executor, progress, say)?;
        if is_due {
            executor.begin_validation(&held_out.batches, held_out.format, when)?;
            self.validated = (self.state.step, Instant::now());
            // There is no time in which a single device has nothing to do.
            self.take_validated(executor.devices() == 1, held_out, executor, progress, say)?;
        }
        Ok(())
    }

    fn is_due(&self, held_out: &HeldOut, executor: &Executor, when: When) -> bool {
        let (before, since) = self.validated;
        match held_out.every {
            Every::Never => false,
            Every::Steps(_) | Every::Affordable(_) if when == When::AfterAllSteps => true,
            Every::Steps(steps) => self.state.step.is_multiple_of(steps),
            Every::Affordable(steps) => {
                let affordable = VALIDATION_PART * since.elapsed().as_secs_f64();
                self.state.step >= before + steps
                    && executor.validation_seconds(&held_out.batches) <= affordable
            }
        }
    }

    fn take_validated(
        &mut self,
        is_to_wait: bool,
        held_out: &HeldOut,
        executor: &mut Executor,
        progress: &mut Progress,
        say: Say<'_>,
    ) -> Result<()> {
        if let Some(Validated { loss, device }) = executor.take_validated(is_to_wait)? {
            let (step, _) = self.validated;
            self.state.held_out.push((step, loss));
            let format = held_out.format.map(|format| format!(" in {}", format.name()));
            let by = format!("{device}{}", format.unwrap_or_default());
            let text = format!("held-out loss after step {step}: {loss:.4}, by {by}");
            say(&text);
            progress.message(&text);
        }
        Ok(())
    }

    fn update(&mut self, executor: &mut Executor) -> Result<f64> {
        let step = self.state.step + 1;
        executor.begin_step()?;
        let mut scored = 0;
        for _ in 0..self.settings.accumulate {
            let batch = self.sampler.next_batch(self.settings.shape())?;
            executor.add_gradients(&batch)?;
            scored += batch.rows.len();
            self.state.totals.samples += batch.sequences() as u64;
            self.state.totals.tokens += batch.tokens.len() as u64;
        }
        (self.state.epoch, self.state.position) = (self.sampler.epoch, self.sampler.position);
        let Settings { optimiser: settings, steps, .. } = *self.settings;
        let (scale, rate) = (1.0 / scored as f32, settings.rate(step, steps));
        // The loss of this step says nothing of the values that follow from its gradient.
        let Step { loss, is_finite } = executor.update(Request { settings, scale, rate, step })?;
        let mean = loss / scored as f64;
        match mean.is_finite() && is_finite {
            true => Ok(mean),
            false => Err(Error::Diverged { step }),
        }
    }

    fn save(&self, places: &Places, executor: &mut Executor) -> Result<PathBuf> {
        std::fs::create_dir_all(&places.checkpoints).at("create", &places.checkpoints)?;
        let Self { state, trainable, .. } = self;
        checkpoint::save(&places.checkpoints, state, trainable, executor)
    }
}

fn identity(settings: &Settings, places: &Places) -> Json {
    let mut run = serde_json::to_value(settings).expect("a plain struct serialises");
    if let (Some(run), Some(more)) = (run.as_object_mut(), places.identity.as_object()) {
        run.extend(more.clone());
    }
    run
}
