//! `bench-inference`: speed, memory and loss of every precision, in turns.

use super::arguments::BenchInference;
use super::show;
use crate::batch::{Batch, Sequence};
use crate::cpu::generate::generate;
use crate::cpu::model::Model;
use crate::error::{Error, IoContext, Result};
use crate::precision;
use crate::steps::Executor;
use crate::tokenizer::Tokenizer;
use crate::weights::{Source, Weights};
use het_blocks::quantized::{Format, Instructions};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Tokens before those that are generated.
const PROMPT: usize = 16;

/// One precision by one set of instructions, with what was measured of it.
struct Candidate {
    name: &'static str,
    bytes: usize,
    executor: Executor,
    model: Model,
    loss: f64,
    forward_s: Vec<f64>,
    generate_s: Vec<f64>,
    generated: usize,
}

/// Prints a line of JSON for each precision; the first is f32.
pub fn run(arguments: &BenchInference) -> Result<ExitCode> {
    let source = Source::open(&arguments.weights.weights)?;
    let text = std::fs::read_to_string(&arguments.input).at("read", &arguments.input)?;
    let mut tokens = Tokenizer::of(&source)?.encode(&text)?;
    tokens.truncate(arguments.tokens);
    if tokens.len() < PROMPT.max(2) || arguments.seq < 2 || arguments.repeats == 0 {
        return Err(Error::Usage {
            what: format!("{} tokens of text are nothing to measure", tokens.len()),
            hint: "pass a longer text, and `--seq` and `--repeats` above 1",
        });
    }
    let batches = batches(&tokens, arguments.seq);
    let weights = source.weights()?;
    weights.architecture.check_length(arguments.seq)?;
    let mut candidates = candidates(weights)?;
    for _ in 0..arguments.repeats {
        for candidate in &mut candidates {
            candidate.measure(&batches, &tokens[..PROMPT], arguments.new_max)?;
        }
    }
    for candidate in &candidates {
        show(&candidate.report(tokens.len(), &candidates[0]))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Batches of 1024 tokens, as `evaluate` computes them, or of one sequence.
fn batches(tokens: &[u32], seq: usize) -> Vec<Batch> {
    let sequences: Vec<Sequence> = tokens
        .chunks(seq)
        .filter(|tokens| tokens.len() > 1)
        .map(|tokens| Sequence { tokens: tokens.to_vec(), scored: vec![true; tokens.len()] })
        .collect();
    sequences.chunks((1024 / seq).max(1)).map(|group| Batch::pack(group, seq)).collect()
}

fn candidates(weights: Weights) -> Result<Vec<Candidate>> {
    // Portable code takes minutes, and is for processors that have nothing else.
    let timed = [Instructions::Avx2, Instructions::Avx512Vnni];
    let here: Vec<_> = timed.into_iter().filter(|instructions| instructions.is_here()).collect();
    let formats = [("int8", Format::Int8), ("int4", Format::Int4)];
    let mut all = Vec::new();
    for (name, format) in formats {
        for instructions in &here {
            let mut weights = weights.clone();
            let Weights { parameters, architecture, .. } = &mut weights;
            precision::quantize(parameters, architecture, format, *instructions);
            all.push(Candidate::new(name, weights)?);
        }
    }
    let mut in_bf16 = weights.clone();
    precision::store_in_bf16(&mut in_bf16.parameters, &in_bf16.architecture);
    all.insert(0, Candidate::new("bf16", in_bf16)?);
    all.insert(0, Candidate::new("f32", weights)?);
    Ok(all)
}

impl Candidate {
    fn new(name: &'static str, weights: Weights) -> Result<Self> {
        Ok(Self {
            name,
            bytes: precision::bytes(&weights.parameters),
            model: Model::new(&weights),
            executor: Executor::frozen(&Arc::new(weights))?,
            loss: f64::NAN,
            forward_s: Vec::new(),
            generate_s: Vec::new(),
            generated: 0,
        })
    }

    fn measure(&mut self, batches: &[Batch], prompt: &[u32], new_max: usize) -> Result<()> {
        let start = Instant::now();
        let (mut loss, mut scored) = (0.0, 0);
        for batch in batches {
            loss += self.executor.loss(batch)?;
            scored += batch.rows.len();
        }
        self.forward_s.push(start.elapsed().as_secs_f64());
        self.loss = loss / scored as f64;
        let start = Instant::now();
        let answers = generate(&mut self.model, &[prompt.to_vec()], None, new_max)?;
        self.generate_s.push(start.elapsed().as_secs_f64());
        self.generated = answers[0].len();
        Ok(())
    }

    fn report(&self, tokens: usize, f32: &Self) -> String {
        let (forward, generate) = (median(&self.forward_s), median(&self.generate_s));
        json!({
            "precision": self.name,
            "detail": self.executor.detail(),
            "weight_bytes": self.bytes,
            "weight_bytes_over_bf16": 2.0 * self.bytes as f64 / f32.bytes as f64,
            "loss": self.loss,
            "loss_over_f32": self.loss / f32.loss,
            "forward_tokens_per_s": tokens as f64 / forward,
            "forward_over_f32": median(&f32.forward_s) / forward,
            "generate_tokens_per_s": self.generated as f64 / generate,
        })
        .to_string()
    }
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
