//! Pipelines that lead through several pools.

use super::SearchState;
use super::replicas::sets;
use crate::outline::{Block, Kind, Outline};
use crate::search_space::{Setting, Tile, at_least_s, batches, virtual_stages};

/// A pipeline with the least that it can take for each sample that is needed.
#[derive(Debug, Clone)]
struct Idea {
    at_least_s: f64,
    setting: usize,
    blocks: Vec<Block>,
    count: u32,
    virtual_stages: u32,
    batch: u32,
}

/// Pools with a tile each, in the order of the pipeline.
type Way<'a> = [(usize, &'a Tile)];

/// Stages that are tried in every number; above it, few near the most there is room for.
const STAGES_ALL: u32 = 6;

/// Looks at every order of every set of two pools and more.
pub(super) fn search(state: &mut SearchState<'_>) {
    let mut ideas = Vec::new();
    let settings = std::mem::take(&mut state.settings);
    let orders: Vec<Vec<usize>> =
        sets(state.request.pools.len()).iter().flat_map(|set| orders(set)).collect();
    let mut parts = settings.len() * orders.len();
    state.budget.renew();
    for (index, setting) in settings.iter().enumerate() {
        for order in &orders {
            state.budget.begin(parts);
            parts -= 1;
            walk(state, (index, setting), order, &mut Vec::new(), &mut ideas);
        }
    }
    state.settings = settings;
    state.budget.renew();
    state.budget.begin(1);
    ideas.sort_by(|a: &Idea, b| a.at_least_s.total_cmp(&b.at_least_s));
    for (index, idea) in ideas.iter().enumerate() {
        if idea.at_least_s >= state.threshold() {
            state.rejections.bounded((ideas.len() - index) as u64, idea.at_least_s);
            break;
        }
        let setting = &state.settings[idea.setting];
        let tricks = setting.tricks(idea.virtual_stages);
        let kind = Kind { count: idea.count, blocks: idea.blocks.clone(), tricks };
        let (batch, recipe) = (idea.batch, setting.recipe);
        state.climb_mix(&Outline { batch, recipe, kinds: vec![kind] });
    }
}

/// Every order of a set: where pools are few all of them, else as they are and reversed.
fn orders(set: &[usize]) -> Vec<Vec<usize>> {
    const FEW: usize = 3;
    if set.len() > FEW {
        return vec![set.to_vec(), set.iter().rev().copied().collect()];
    }
    if set.len() < 2 {
        return vec![set.to_vec()];
    }
    let mut orders = Vec::new();
    for (at, first) in set.iter().enumerate() {
        let rest = [&set[..at], &set[at + 1..]].concat();
        orders.extend(orders_of(*first, &rest));
    }
    orders
}

fn orders_of(first: usize, rest: &[usize]) -> Vec<Vec<usize>> {
    orders(rest).into_iter().map(|order| [vec![first], order].concat()).collect()
}

/// Every choice of a tile in each pool.
fn walk<'a>(
    state: &mut SearchState<'_>,
    (index, setting): (usize, &'a Setting),
    order: &[usize],
    way: &mut Vec<(usize, &'a Tile)>,
    ideas: &mut Vec<Idea>,
) {
    let Some((pool, rest)) = order.split_first() else {
        return replicate(state, (index, setting), way, ideas);
    };
    for tile in &setting.tiles[*pool] {
        if !state.budget.spend(1) {
            return;
        }
        way.push((*pool, tile));
        walk(state, (index, setting), rest, way, ideas);
        way.pop();
    }
}

/// Every number of replicas that all of the pools have room for.
fn replicate(
    state: &mut SearchState<'_>,
    (index, setting): (usize, &Setting),
    way: &Way<'_>,
    ideas: &mut Vec<Idea>,
) {
    let rate: f64 = way.iter().map(|(_, tile)| f64::from(tile.groups) / tile.layer_s).sum();
    let layers = f64::from(state.request.model.layers);
    let ideal_s = layers / rate / f64::from(setting.recipe.microbatch);
    if ideal_s >= state.threshold() {
        return state.rejections.bounded(1, ideal_s);
    }
    for count in replica_counts(state, setting, way) {
        let most: Vec<u32> = way.iter().map(|(_, tile)| tile.groups / count).collect();
        stages(state, (index, setting), way, count, &most, &mut Vec::new(), ideas);
    }
}

/// Counts at which some pool's devices are all used: more replicas leave fewer stages each.
fn replica_counts(state: &SearchState<'_>, setting: &Setting, way: &Way<'_>) -> Vec<u32> {
    let request = state.request;
    let most = way.iter().map(|(_, tile)| tile.groups).min().unwrap_or(0);
    let total = request.batch.largest / setting.recipe.microbatch.max(1);
    let fixed = request.batch.smallest == request.batch.largest;
    let layers = request.model.layers;
    let full = way
        .iter()
        .flat_map(|(_, tile)| (1..=layers.min(tile.groups)).map(|stages| tile.groups / stages));
    let mut counts: Vec<u32> = if fixed {
        (1..=most.min(total)).filter(|count| total.is_multiple_of(*count)).collect()
    } else {
        full.filter(|count| *count <= most.min(total)).collect()
    };
    counts.retain(|count| (count * setting.context).is_multiple_of(setting.expert));
    counts.retain(|count| request.pins.data.is_none_or(|data| data == *count));
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Every choice of stages in each pool.
fn stages(
    state: &mut SearchState<'_>,
    (index, setting): (usize, &Setting),
    way: &Way<'_>,
    count: u32,
    most: &[u32],
    chosen: &mut Vec<u32>,
    ideas: &mut Vec<Idea>,
) {
    if chosen.len() == way.len() {
        return cut(state, (index, setting), way, count, chosen, ideas);
    }
    for own in numbers(most[chosen.len()].min(state.request.model.layers)) {
        if !state.budget.spend(1) {
            return;
        }
        chosen.push(own);
        stages(state, (index, setting), way, count, most, chosen, ideas);
        chosen.pop();
    }
}

/// Numbers of stages up to a most: all where they are few; fewer than there is room for leaves
/// devices idle, and only pays where a pipeline becomes too long.
fn numbers(most: u32) -> Vec<u32> {
    if most <= STAGES_ALL {
        return (1..=most).collect();
    }
    let mut numbers = vec![1, most / 4, most / 2, most * 3 / 4, most - 1, most];
    numbers.dedup();
    numbers
}

fn cut(
    state: &mut SearchState<'_>,
    (index, setting): (usize, &Setting),
    way: &Way<'_>,
    count: u32,
    stages: &[u32],
    ideas: &mut Vec<Idea>,
) {
    let request = state.request;
    let layers = request.model.layers;
    let all: u32 = stages.iter().sum();
    if all > layers || request.pins.pipeline.is_some_and(|pipeline| pipeline != all) {
        return;
    }
    let seconds = way.iter().map(|(_, tile)| tile.layer_s);
    let paces: Vec<(u32, f64)> = stages.iter().copied().zip(seconds).collect();
    let head_s = way.last().map_or(0.0, |(_, tile)| tile.head_s);
    for pieces in virtual_stages(request, all) {
        let granule = if pieces > 1 { all } else { 1 };
        for batch in batches(&request.batch, count * setting.recipe.microbatch * granule) {
            let microbatches = batch / (count * setting.recipe.microbatch);
            let step = at_least_s(layers, &paces, head_s, microbatches, pieces);
            let needed = request.batch.samples_for_one(batch);
            let at_least_s = step / f64::from(batch) * needed;
            if at_least_s >= state.threshold() {
                state.rejections.bounded(1, at_least_s);
                continue;
            }
            let blocks = way.iter().zip(stages).map(|((pool, tile), stages)| Block {
                pool: *pool,
                tensor: tile.tensor,
                stages: *stages,
            });
            let blocks = blocks.collect();
            let virtual_stages = pieces;
            ideas.push(Idea { at_least_s, setting: index, blocks, count, virtual_stages, batch });
        }
    }
}
