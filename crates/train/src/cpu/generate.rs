//! Greedy generation for many prompts at once, with keys and values kept.

use super::layer::Tape;
use super::model::Model;
use crate::error::{Error, Result};
use het_blocks::attention::KeyValues;

/// Keys and values of every sequence: layer by layer, one entry a sequence.
#[derive(Debug)]
struct Cache {
    layers: Vec<Vec<KeyValues>>,
    lengths: Vec<usize>,
}

/// The tokens that follow each prompt, up to and without `end`, at most `new_max` of them.
pub fn generate(
    model: &mut Model,
    prompts: &[Vec<u32>],
    end: Option<u32>,
    new_max: usize,
) -> Result<Vec<Vec<u32>>> {
    let Some(longest) = prompts.iter().map(Vec::len).max() else { return Ok(Vec::new()) };
    let positions_max = model.architecture.positions_max;
    let reached = longest.saturating_add(new_max);
    if reached > positions_max {
        return Err(Error::Usage {
            what: format!(
                "a prompt of {longest} tokens and {new_max} new ones are more than the \
                 {positions_max} positions of the weights"
            ),
            hint: "lower `--new-max`, or shorten the prompt",
        });
    }
    model.reach(reached);
    // Inside the pool a short step is not handed to it kernel by kernel.
    rayon::scope(|_| extend(model, prompts, end, new_max))
}

fn extend(
    model: &Model,
    prompts: &[Vec<u32>],
    end: Option<u32>,
    new_max: usize,
) -> Result<Vec<Vec<u32>>> {
    let mut answers = vec![Vec::new(); prompts.len()];
    let mut cache = Cache::new(model, prompts.len());
    let mut active: Vec<usize> = (0..prompts.len()).collect();
    let mut next: Vec<Vec<u32>> = prompts.to_vec();
    let mut buffers = <(Vec<f32>, Tape)>::default();
    for _ in 0..new_max {
        let chosen = step(model, &mut cache, &next, &mut buffers)?;
        let mut kept = Vec::new();
        for (place, &token) in chosen.iter().enumerate() {
            if Some(token) != end {
                answers[active[place]].push(token);
                kept.push(place);
            }
        }
        next = kept.iter().map(|&place| vec![chosen[place]]).collect();
        active = kept.iter().map(|&place| active[place]).collect();
        cache.keep(&kept);
        if active.is_empty() {
            break;
        }
    }
    Ok(answers)
}

impl Cache {
    fn new(model: &Model, sequences: usize) -> Self {
        let layer = || vec![KeyValues::default(); sequences];
        let layers = model.architecture.layers.iter().map(|_| layer()).collect();
        Self { layers, lengths: vec![0; sequences] }
    }

    /// Forgets all sequences but those at `places`.
    fn keep(&mut self, places: &[usize]) {
        for layer in &mut self.layers {
            let mut place = 0..layer.len();
            layer.retain(|_| place.next().is_some_and(|place| places.contains(&place)));
        }
        self.lengths = places.iter().map(|&place| self.lengths[place]).collect();
    }
}

/// Appends `tokens` to each sequence and returns the likeliest token after each.
fn step(
    model: &Model,
    cache: &mut Cache,
    tokens: &[Vec<u32>],
    (stream, tape): &mut (Vec<f32>, Tape),
) -> Result<Vec<u32>> {
    let (mut bounds, mut positions) = (vec![0], Vec::new());
    for (length, tokens) in cache.lengths.iter_mut().zip(tokens) {
        positions.extend((*length..*length + tokens.len()).map(|position| position as u32));
        *length += tokens.len();
        bounds.push(positions.len());
    }
    model.extend(&tokens.concat(), &positions, &bounds, &mut cache.layers, (stream, tape));
    let last: Vec<usize> = bounds[1..].iter().map(|end| end - 1).collect();
    model.most_likely(stream, &last)
}
