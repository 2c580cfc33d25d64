//! The levels of the multi-level feedback queue: whoever has had much of the machine goes behind
//! whoever of the same priority has had little, because nobody knows how long a program takes, and
//! one that has run for long will mostly run for long (Nuyens and Wierman 2008 on foreground-
//! background scheduling; Gu et al., NSDI 2019, for training).
//!
//! A stage sinks by what it had and is stopped for one above it only where that costs least: right
//! after a checkpoint. For one that never saves no moment is better than another: it is stopped
//! where the other is shorter by more than what it would lose.

use het_core::{
    Grant, Lease, LeaseId, Millis, Phase, Placement, Share, ShareMillis, StageKey, StageState,
    State, StopCost, Time,
};
use het_perf::{expected_loss, stop_cost};

use crate::View;
use crate::speed::{rate, steps_done, steps_left};

/// Device-seconds, on the fastest class of the machine, from which a stage stands one level lower.
const LEVELS: [f64; 3] = [600.0, 4_800.0, 38_400.0];

/// Number of a level; those who have had least are on level 0.
pub(crate) type Level = u8;

/// How long after a checkpoint a stop still counts as one at its boundary: what happens at once on
/// a real machine takes a moment to be heard of.
const BOUNDARY: Millis = Millis::seconds(2);

/// Between a start and a stop for others a stage works for this many times as long as going on
/// takes, and no less than [`TURN_MIN`].
const TURN_AFTER: u64 = 10;
const TURN_MIN: Millis = Millis::seconds(60);

/// A turn is not doubled more often than this.
const FRUITLESS_MAX: u32 = 20;

/// The level of a stage.
pub(crate) fn level(view: &View<'_>, key: StageKey) -> Level {
    let had = attained(view.state, key, view.now);
    LEVELS.iter().filter(|from| had >= **from).count() as Level
}

/// Device-seconds that a stage has had, weighted by the peak of the devices. Its earlier leases
/// count as the last one does: what it had where is not kept.
fn attained(state: &State, key: StageKey, now: Time) -> f64 {
    let (_, _, stage) = state.stage(key);
    let Some(placement) = &stage.placement else { return 0.0 };
    let all: Share = placement.grants().map(|grant| grant.share).sum();
    let running = match stage.state {
        StageState::Active { lease } => all.over(now.since(state.leases()[&lease].since)),
        _ => ShareMillis::ZERO,
    };
    // What is charged counts the cores beside an accelerator too.
    let devices: Share = placement.devices().map(|grant| grant.share).sum();
    let part = f64::from(devices.0) / f64::from(all.0.max(1));
    (stage.charged + running).device_seconds() * part * weight(state, placement)
}

/// Peak of the devices of a placement over that of the fastest class; 1 where that is not known.
fn weight(state: &State, placement: &Placement) -> f64 {
    let topology = state.topology();
    let peak = |grant: Grant| topology.class_of(grant.device).peak_gflops;
    let peaks = topology.classes.iter().filter_map(|class| class.peak_gflops);
    match (placement.devices().next().and_then(peak), peaks.max()) {
        (Some(own), Some(best)) if best > 0 => own as f64 / best as f64,
        _ => 1.0,
    }
}

/// Who may be stopped for equals, cheapest to stop first: who has completed a checkpoint a moment
/// ago and has had a turn, and, at any time, who saves nothing when it is told to stop. Its turn
/// doubles with every stop in a row that saved nothing, so that it comes to its end.
pub(crate) fn at_boundary(view: &View<'_>) -> Vec<(LeaseId, StopCost)> {
    let state = view.state;
    let mut rows: Vec<(LeaseId, StopCost)> = Vec::new();
    let just_saved = |at: Time| view.now.since(at) <= BOUNDARY;
    let anybody_saved = state.last_checkpoint().is_some_and(just_saved);
    for (&id, lease) in state.leases() {
        let Phase::Running { .. } = lease.phase else { continue };
        let (_, spec, stage) = state.stage(lease.stage);
        let turn = Millis(view.rates.restart(spec).0 * TURN_AFTER).max(TURN_MIN);
        let turn = Millis(turn.0 << stage.fruitless.min(FRUITLESS_MAX));
        let had_turn = view.now.since(lease.since) >= turn;
        let saved = stage.checkpoint_at.filter(|at| anybody_saved && *at >= lease.since);
        let is_cheapest = saved.is_some_and(just_saved) || loss(view, lease) > BOUNDARY;
        if had_turn && is_cheapest && spec.preemptible.allows(lease.since, view.now) {
            rows.push((id, stop_cost(view.rates, spec, stage, lease, view.now)));
        }
    }
    rows.sort_by_key(|(id, cost)| (cost.cost, *id));
    rows
}

/// Work that a stop now is expected to lose.
fn loss(view: &View<'_>, lease: &Lease) -> Millis {
    let (_, spec, stage) = view.state.stage(lease.stage);
    expected_loss(spec.saves(lease.placement.alternative), stage, lease.since, view.now)
}

/// Whether a running stage should let a waiting one of its priority go first.
pub(crate) fn gives_way(view: &View<'_>, lease: &Lease, waiting: StageKey) -> bool {
    let (state, running) = (view.state, lease.stage);
    let equals = state.stage(running).0.priority() == state.stage(waiting).0.priority();
    if !equals || level(view, waiting) >= level(view, running) {
        return false;
    }
    match rest(view, running).zip(rest(view, waiting)) {
        Some((own, other)) => own >= other + loss(view, lease).as_seconds(),
        // It is taken to need as long again as it has had: no longer than what it would lose.
        None => loss(view, lease) <= BOUNDARY,
    }
}

/// Seconds that the rest of a stage takes where it is fastest, as far as is known.
fn rest(view: &View<'_>, key: StageKey) -> Option<f64> {
    let (_, spec, stage) = view.state.stage(key);
    let at = |index| rate(view, spec, index).map(|(rate, _)| rate);
    let fastest = (0..spec.alternatives.len()).filter_map(at).max_by(f64::total_cmp)?;
    let left = match spec.steps {
        Some(steps) => steps as f64 - steps_done(view, key, fastest),
        None => steps_left(spec, stage)? as f64,
    };
    Some(left.max(0.0) / fastest)
}
