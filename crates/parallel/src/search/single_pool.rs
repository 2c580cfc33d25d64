//! One pool by itself.

use super::SearchState;
use super::shortlist::Shortlist;
use crate::candidate::Candidate;
use crate::outline::{Block, Kind, Outline};
use crate::search_space::{Setting, Tile, at_least_s, batches, counts, virtual_stages};

/// A cut with the least that it can take for each sample that is needed.
#[derive(Debug, Clone, Copy)]
struct Idea {
    at_least_s: f64,
    setting: usize,
    tile: Tile,
    stages: u32,
    count: u32,
    virtual_stages: u32,
    batch: u32,
}

/// Searches a pool as if it were alone: what others reached elsewhere cuts nothing short here. Its
/// best.
pub(super) fn search(state: &mut SearchState<'_>, pool: usize) -> Option<Candidate> {
    let others = std::mem::replace(&mut state.top, Shortlist::of(state.request.keep));
    let mut ideas = Vec::new();
    for (index, setting) in state.settings.iter().enumerate() {
        for tile in &setting.tiles[pool] {
            cuts(state, (index, setting), tile, &mut ideas);
        }
    }
    ideas.sort_by(|a, b| a.at_least_s.total_cmp(&b.at_least_s));
    for (index, idea) in ideas.iter().enumerate() {
        if idea.at_least_s >= state.threshold() {
            state.rejections.bounded((ideas.len() - index) as u64, idea.at_least_s);
            break;
        }
        state.climb(&outline(state, pool, idea));
    }
    let best = state.top.best().cloned();
    for other in others.into_candidates() {
        state.top.keep(&other);
    }
    best
}

/// Every number of stages, replicas and pieces, and every batch, on one size of tile.
fn cuts(
    state: &SearchState<'_>,
    (index, setting): (usize, &Setting),
    tile: &Tile,
    ideas: &mut Vec<Idea>,
) {
    let request = state.request;
    let layers = request.model.layers;
    let most = tile.groups.min(layers);
    let pinned = request.pins.pipeline;
    for stages in pinned.map_or(1..=most, |stages| stages..=stages.min(most)) {
        for count in counts(request, setting, tile.groups / stages) {
            for pieces in virtual_stages(request, stages) {
                let granule = if pieces > 1 { stages } else { 1 };
                let unit = count * setting.recipe.microbatch * granule;
                for batch in batches(&request.batch, unit) {
                    let microbatches = batch / (count * setting.recipe.microbatch);
                    let blocks = [(stages, tile.layer_s)];
                    let step = at_least_s(layers, &blocks, tile.head_s, microbatches, pieces);
                    let needed = request.batch.samples_for_one(batch);
                    ideas.push(Idea {
                        at_least_s: step / f64::from(batch) * needed,
                        setting: index,
                        tile: *tile,
                        stages,
                        count,
                        virtual_stages: pieces,
                        batch,
                    });
                }
            }
        }
    }
}

fn outline(state: &SearchState<'_>, pool: usize, idea: &Idea) -> Outline {
    let setting = &state.settings[idea.setting];
    let block = Block { pool, tensor: idea.tile.tensor, stages: idea.stages };
    let tricks = setting.tricks(idea.virtual_stages);
    let kind = Kind { count: idea.count, blocks: vec![block], tricks };
    Outline { batch: idea.batch, recipe: setting.recipe, kinds: vec![kind] }
}
