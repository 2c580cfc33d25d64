//! Replicas of their own in every pool, each with as many microbatches as it is fast.

use super::SearchState;
use crate::outline::{Block, Kind, Outline, Recipe, Tricks};
use crate::price::{common, fits, price};
use crate::request::Request;
use crate::search_space::{Setting, Tile, at_least_s, batches, memory_savers, virtual_stages};

/// Replicas of one pool that may take part.
#[derive(Debug, Clone)]
struct Team {
    kind: Kind,
    /// Microbatches a second of all of them, at most.
    rate: f64,
    /// Seconds to fill and drain.
    fill_s: f64,
    /// Place on the ladder of ways to save memory.
    rung: usize,
    /// Seconds of a step on its share, exchange included.
    step_s: f64,
}

/// Teams of a pool that are combined with those of others, by how many pools there are.
const TEAMS_MAX: [usize; 5] = [32, 32, 16, 8, 5];

/// Microbatches that are handed out at a time, at most.
const GRANULE_MAX: u32 = 256;

/// Fewer replicas than there is room for are tried up to so many: with few microbatches they pay.
const COUNTS_ALL: u32 = 6;

/// Looks at every set of two pools and more.
pub(super) fn search(state: &mut SearchState<'_>) {
    sharing(state);
    let (recipes, sets) = (recipes(&state.settings), sets(state.request.pools.len()));
    let mut parts = recipes.len() * sets.len();
    state.budget.renew();
    for recipe in recipes {
        let teams = teams(state, &recipe);
        for set in &sets {
            state.budget.begin(parts);
            parts -= 1;
            let most = TEAMS_MAX[set.len().min(TEAMS_MAX.len() - 1)];
            let chosen: Vec<&[Team]> =
                set.iter().map(|pool| &teams[*pool][..teams[*pool].len().min(most)]).collect();
            combine(state, &recipe, &chosen, &mut Vec::new());
        }
    }
}

/// Replicas of one stage each, all cut alike: they share states with each other, and so may hold
/// what no pool's own could.
fn sharing(state: &mut SearchState<'_>) {
    let sets = sets(state.request.pools.len());
    let mut parts = state.settings.len() * sets.len();
    for index in 0..state.settings.len() {
        let setting = state.settings[index].clone();
        for set in &sets {
            state.budget.begin(parts);
            parts -= 1;
            for first in &setting.tiles[set[0]] {
                let same = |pool: &usize| {
                    let mut tiles = setting.tiles[*pool].iter();
                    tiles.find(|tile| tile.tensor == first.tensor).map(|tile| (*pool, *tile))
                };
                let tiles: Vec<(usize, Tile)> = set.iter().filter_map(same).collect();
                if tiles.len() == set.len() && state.request.pins.pipeline.is_none_or(|p| p == 1) {
                    share_states(state, &setting, &tiles, &mut Vec::new());
                }
            }
        }
    }
}

/// Every choice of a number of replicas in each pool.
fn share_states(
    state: &mut SearchState<'_>,
    setting: &Setting,
    tiles: &[(usize, Tile)],
    chosen: &mut Vec<Team>,
) {
    let Some(((pool, tile), rest)) = tiles.split_first() else {
        return together(state, &setting.recipe, chosen);
    };
    for count in numbers(state.request, setting, tile.groups) {
        if !state.budget.spend(1) {
            return;
        }
        chosen.push(team(state.request, setting, (*pool, tile), [1, count, 1]));
        share_states(state, setting, rest, chosen);
        chosen.pop();
    }
}

/// Numbers of replicas to try, the most first.
fn numbers(request: &Request, setting: &Setting, most: u32) -> Vec<u32> {
    let total = request.batch.largest / setting.recipe.microbatch.max(1);
    let step = (setting.expert / setting.context.min(setting.expert)).max(1);
    let most = most.min(total) / step * step;
    let all = if most <= COUNTS_ALL { 1..=most } else { most..=most };
    all.rev().filter(|count| *count > 0 && count.is_multiple_of(step)).collect()
}

fn team(
    request: &Request,
    setting: &Setting,
    (pool, tile): (usize, &Tile),
    [stages, count, pieces]: [u32; 3],
) -> Team {
    let blocks = [(stages, tile.layer_s)];
    let layers = request.model.layers;
    let time = |count| at_least_s(layers, &blocks, tile.head_s, count, pieces);
    let each = time(2) - time(1);
    let block = Block { pool, tensor: tile.tensor, stages };
    Team {
        kind: Kind { count, blocks: vec![block], tricks: setting.tricks(pieces) },
        rate: f64::from(count) / each,
        fill_s: time(1) - each,
        rung: 0,
        step_s: 0.0,
    }
}

/// Sets of two pools and more: all of them where pools are few, else pairs and the whole.
pub(super) fn sets(pools: usize) -> Vec<Vec<usize>> {
    const FEW: usize = 4;
    let members = |mask: u32| (0..pools).filter(move |pool| mask & (1 << pool) != 0).collect();
    if pools <= FEW {
        let masks = (0..1_u32 << pools).filter(|mask| mask.count_ones() > 1);
        return masks.map(members).collect();
    }
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for first in 0..pools {
        sets.extend((first + 1..pools).map(|second| vec![first, second]));
    }
    sets.push((0..pools).collect());
    sets
}

fn recipes(settings: &[Setting]) -> Vec<Recipe> {
    let mut recipes: Vec<Recipe> = Vec::new();
    for setting in settings {
        if !recipes.contains(&setting.recipe) {
            recipes.push(setting.recipe);
        }
    }
    recipes
}

/// For each pool the teams worth combining, best first.
fn teams(state: &SearchState<'_>, recipe: &Recipe) -> Vec<Vec<Team>> {
    let request = state.request;
    let pools = 0..request.pools.len();
    let all: Vec<Vec<Team>> = pools.map(|pool| candidates(state, recipe, pool)).collect();
    let fastest = |teams: &Vec<Team>| teams.iter().map(|team| team.rate).fold(0.0, f64::max);
    let rate: f64 = all.iter().map(fastest).sum();
    let total = f64::from(request.batch.largest / recipe.microbatch.max(1));
    let own = all.into_iter().map(|teams| held(request, recipe, teams, total / rate));
    own.map(undominated).collect()
}

/// All teams of a pool, before memory.
fn candidates(state: &SearchState<'_>, recipe: &Recipe, pool: usize) -> Vec<Team> {
    let request = state.request;
    let layers = request.model.layers;
    let mut teams = Vec::new();
    for setting in state.settings.iter().filter(|setting| setting.recipe == *recipe) {
        for tile in &setting.tiles[pool] {
            let most = tile.groups.min(layers);
            let pinned = request.pins.pipeline;
            for stages in pinned.map_or(1..=most, |stages| stages..=stages.min(most)) {
                for count in numbers(request, setting, tile.groups / stages) {
                    for pieces in virtual_stages(request, stages) {
                        let size = [stages, count, pieces];
                        teams.push(team(request, setting, (pool, tile), size));
                    }
                }
            }
        }
    }
    teams
}

/// Those that can hold their part, on the first rung that does, with the time of a step of about
/// `seconds` for which they would be there.
fn held(request: &Request, recipe: &Recipe, teams: Vec<Team>, seconds: f64) -> Vec<Team> {
    let mut kept: Vec<Team> = Vec::new();
    for mut team in teams {
        let granule = team.kind.granule();
        let each = (team.rate * seconds / f64::from(team.kind.count)) as u32;
        let each = (each / granule * granule).max(granule);
        // Others that are at least as good in every way leave no use for it.
        if kept.iter().any(|other| other.rung == 0 && dominates(other, &team)) {
            continue;
        }
        let ranks = team.kind.count * team.kind.tricks.context;
        let batch = team.kind.count * each * recipe.microbatch;
        for (rung, (offload, zero)) in memory_savers(request, ranks).into_iter().enumerate() {
            let tricks = Tricks { offload, zero, ..team.kind.tricks };
            let kind = Kind { tricks, ..team.kind.clone() };
            let outline = Outline { batch, recipe: *recipe, kinds: vec![kind.clone()] };
            if !fits(request, &outline, &kind, each) {
                continue;
            }
            if let Ok(found) = price(request, &outline) {
                team = Team { rung, step_s: found.sample_s, kind, ..team };
                kept.push(team);
                break;
            }
        }
    }
    kept
}

/// A team that is as good in every way leaves no use for another. More stages are a way too: the
/// exchange of gradients hides behind the bubble of a pipeline.
fn dominates(team: &Team, other: &Team) -> bool {
    let (stages, others) = (team.kind.stages(), other.kind.stages());
    let tensor = |team: &Team| team.kind.blocks[0].tensor;
    let few = other.kind.count <= COUNTS_ALL && team.kind.count > other.kind.count;
    !few && team.rate >= other.rate
        && team.fill_s <= other.fill_s
        && team.rung <= other.rung
        && stages >= others
        && stages * tensor(team) >= others * tensor(other)
        && team.kind.granule() <= other.kind.granule()
}

/// Those that no other of the pool beats in every way, fastest first.
fn undominated(mut teams: Vec<Team>) -> Vec<Team> {
    teams.sort_by(|a, b| a.step_s.total_cmp(&b.step_s));
    let mut kept: Vec<Team> = Vec::new();
    for team in teams {
        if !kept.iter().any(|other| dominates(other, &team)) {
            kept.push(team);
        }
    }
    kept
}

/// Every choice of one team a pool, on every batch.
fn combine(state: &mut SearchState<'_>, recipe: &Recipe, left: &[&[Team]], chosen: &mut Vec<Team>) {
    let Some((teams, rest)) = left.split_first() else {
        return together(state, recipe, chosen);
    };
    for team in *teams {
        if !state.budget.spend(1) {
            return;
        }
        chosen.push(team.clone());
        combine(state, recipe, rest, chosen);
        chosen.pop();
    }
}

/// Prices teams together on every batch, with every way to save memory where they share states.
fn together(state: &mut SearchState<'_>, recipe: &Recipe, teams: &[Team]) {
    let request = state.request;
    let replicas: u32 = teams.iter().map(|team| team.kind.count).sum();
    if request.pins.data.is_some_and(|data| data != replicas) {
        return;
    }
    let granule = teams.iter().map(|team| team.kind.granule()).fold(1, common);
    if granule > GRANULE_MAX {
        return state.rejections.indivisible();
    }
    let rate: f64 = teams.iter().map(|team| team.rate).sum();
    let fill_s = teams.iter().map(|team| team.fill_s).fold(f64::INFINITY, f64::min);
    for batch in batches(&request.batch, recipe.microbatch * granule) {
        let microbatches = f64::from(batch / recipe.microbatch);
        let needed = request.batch.samples_for_one(batch);
        let at_least_s = (microbatches / rate + fill_s) / f64::from(batch) * needed;
        if at_least_s >= state.threshold() {
            state.rejections.bounded(1, at_least_s);
            continue;
        }
        let kinds = teams.iter().map(|team| team.kind.clone()).collect();
        state.climb_mix(&Outline { batch, recipe: *recipe, kinds });
    }
}
