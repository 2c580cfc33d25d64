//! Greedy generation for many prompts at once, with a key/value cache a prompt.

use super::attention::{self, Inputs};
use super::forward::{Model, Scratch, Tape};
use super::matrix::{rows, rows_mut, split_rows};
use crate::error::Result;
use crate::weights::check_length;
use rayon::prelude::*;

/// Keys and values of one sequence, layer by layer.
#[derive(Debug)]
struct Cache {
    layers: Vec<(Vec<f32>, Vec<f32>)>,
    length: usize,
}

/// The tokens that follow each prompt, up to and without `end`, at most `new_max` of them.
pub fn generate(
    model: &Model,
    prompts: &[Vec<u32>],
    end: u32,
    new_max: usize,
) -> Result<Vec<Vec<u32>>> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    check_length(&model.config, longest + new_max)?;
    let mut answers = vec![Vec::new(); prompts.len()];
    let mut caches: Vec<Cache> = prompts.iter().map(|_| Cache::new(model)).collect();
    let mut active: Vec<usize> = (0..prompts.len()).collect();
    let mut next: Vec<Vec<u32>> = prompts.to_vec();
    for _ in 0..new_max {
        let chosen = step(model, &mut caches, &next);
        let mut kept = Vec::new();
        for (place, &token) in chosen.iter().enumerate() {
            if token != end {
                answers[active[place]].push(token);
                kept.push(place);
            }
        }
        next = kept.iter().map(|&place| vec![chosen[place]]).collect();
        active = kept.iter().map(|&place| active[place]).collect();
        let mut place = 0..caches.len();
        caches.retain(|_| place.next().is_some_and(|place| kept.contains(&place)));
        if active.is_empty() {
            break;
        }
    }
    Ok(answers)
}

impl Cache {
    fn new(model: &Model) -> Self {
        Self { layers: vec![Default::default(); model.config.layers], length: 0 }
    }
}

/// Appends `tokens` to each sequence and returns the likeliest token after each.
fn step(model: &Model, caches: &mut [Cache], tokens: &[Vec<u32>]) -> Vec<u32> {
    let mut bounds = vec![0];
    tokens.iter().for_each(|tokens| bounds.push(bounds[bounds.len() - 1] + tokens.len()));
    let (mut tape, mut out, mut scratch) = (Tape::default(), Vec::new(), Scratch::default());
    model.embed(&tokens.concat(), &mut tape.input);
    for (index, layer) in model.layers.iter().enumerate() {
        model.block(layer, &mut tape, &mut scratch, &mut out, |qkv, mixed, _| {
            mix_cached(model, index, caches, &bounds, qkv, mixed);
        });
        std::mem::swap(&mut tape.input, &mut out);
    }
    for (cache, tokens) in caches.iter_mut().zip(tokens) {
        cache.length += tokens.len();
    }
    let last: Vec<usize> = bounds[1..].iter().map(|end| end - 1).collect();
    model.most_likely(&tape.input, &last)
}

fn mix_cached(
    model: &Model,
    layer: usize,
    caches: &mut [Cache],
    bounds: &[usize],
    qkv: &mut [f32],
    mixed: &mut [f32],
) {
    let config = &model.config;
    let (width, kv) = (config.qkv_width(), config.kv_width());
    let pieces = split_rows(qkv, bounds, width)
        .into_par_iter()
        .zip(split_rows(mixed, bounds, config.q_width()))
        .zip(caches);
    pieces.for_each(|((qkv, mixed), cache)| {
        model.rotate(qkv, cache.length, 1.0);
        let (keys, values) = &mut cache.layers[layer];
        for row in qkv.chunks_exact(width) {
            let (key, value) = row[config.q_width()..].split_at(kv);
            keys.extend(key);
            values.extend(value);
        }
        let q = rows(qkv, width).subcols(0, config.q_width());
        let inputs = Inputs { q, k: rows(keys, kv), v: rows(values, kv) };
        let stored = attention::probabilities_length(config, q.nrows(), inputs.k.nrows());
        let out = rows_mut(mixed, config.q_width());
        attention::attend(config, inputs, out, &mut vec![0.0; stored]);
    });
}
