//! How much a stage has left to do, and how fast each of its shapes does it where.

use het_core::{
    Domain, Lease, Locality, Millis, Phase, Placement, Reason, Stage, StageKey, StageSpec,
    StageState,
};
use het_perf::{Gang, RateSource};

use crate::View;

/// What is short: little is lost of it.
const SOON: Millis = Millis::seconds(600);

/// Steps that a stage still has to make, if it says how many there are.
pub(crate) fn steps_left(spec: &StageSpec, stage: &Stage) -> Option<u64> {
    let total = spec.steps.or(stage.progress.total)?;
    Some(total.saturating_sub(stage.progress.step.unwrap_or(0)))
}

/// Steps that are done and not lost; a stage that does not run has what its checkpoint holds.
pub(crate) fn steps_done(view: &View<'_>, key: StageKey, rate: f64) -> f64 {
    let stage = view.state.stage_record(key);
    let StageState::Active { lease } = stage.state else { return steps_kept(stage) };
    steps_made(view, stage, &view.state.leases()[&lease], rate)
}

/// What the checkpoint of a stage holds.
pub(crate) fn steps_kept(stage: &Stage) -> f64 {
    stage.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.step) as f64
}

/// Steps that are done and not lost: the last word of the program and, while it runs, what its
/// rate adds since.
pub(crate) fn steps_made(view: &View<'_>, stage: &Stage, lease: &Lease, rate: f64) -> f64 {
    let saved = stage.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.step);
    let Phase::Running { since } = lease.phase else { return saved as f64 };
    let (step, at) = match (stage.progress.step, stage.progressed_at) {
        (Some(step), Some(at)) if at >= since => (step, at),
        _ => (saved, since),
    };
    step as f64 + rate * view.now.since(at).as_seconds()
}

/// How long a stage takes on a placement until it ends, as far as anybody knows.
pub(crate) fn time_left(view: &View<'_>, key: StageKey, placement: &Placement) -> Option<Millis> {
    let (_, spec, stage) = view.state.stage(key);
    let (rate, _) = rate_on(view, spec, placement)?;
    Some(Millis((steps_left(spec, stage)? as f64 / rate * 1e3) as u64))
}

/// Whether a stage should end on a placement within [`SOON`], as far as anybody knows.
pub(crate) fn ends_soon(view: &View<'_>, key: StageKey, placement: &Placement) -> bool {
    let (_, spec, stage) = view.state.stage(key);
    let left = steps_left(spec, stage);
    let rate = rate_on(view, spec, placement);
    left.zip(rate).is_some_and(|(left, (rate, _))| left as f64 <= rate * SOON.as_seconds())
}

/// Steps per second of an alternative, in the best place that the cluster could have for it.
pub(crate) fn rate(view: &View<'_>, spec: &StageSpec, index: usize) -> Option<(f64, RateSource)> {
    rate_at(view, spec, index, Locality::BEST)
}

/// The same on a placement of the stage.
pub(crate) fn rate_on(
    view: &View<'_>,
    spec: &StageSpec,
    placement: &Placement,
) -> Option<(f64, RateSource)> {
    let locality = view.state.locality(spec, placement);
    rate_at(view, spec, placement.alternative, locality)
}

/// Steps per second of an alternative on the slowest class that it accepts, a promise that no
/// placement that stands so can break, and how that is known; `None` if no class has a known
/// speed.
pub(crate) fn rate_at(
    view: &View<'_>,
    spec: &StageSpec,
    index: usize,
    locality: Locality,
) -> Option<(f64, RateSource)> {
    let alternative = &spec.alternatives[index];
    let topology = view.state.topology();
    let mut classes: Vec<usize> =
        (view.state.index().device_groups.iter().map(|sort| sort.representative))
            .filter(|&id| alternative.selector.accepts(topology, id))
            .map(|id| topology.device(id).class)
            .collect();
    classes.sort_unstable();
    classes.dedup();
    let rates = classes.into_iter().filter_map(|class| {
        let class = &topology.classes[class];
        let gang = Gang { class, units: alternative.count, locality };
        view.rates.rate(&spec.profile, &spec.planned, gang)
    });
    rates.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|(rate, _)| *rate > 0.0)
}

/// That a placement is slower than the best place for it, if it is.
pub(crate) fn spread_penalty(
    view: &View<'_>,
    spec: &StageSpec,
    placement: &Placement,
) -> Option<Reason> {
    let topology = view.state.topology();
    let part = match view.state.locality(spec, placement).within {
        Domain::Node => return None,
        _ => rate_on(view, spec, placement)?.0 / rate(view, spec, placement.alternative)?.0,
    };
    let slower_pct = ((1.0 - part) * 100.0).round() as u32;
    let stands_apart = |domain: &Domain| placement.domains(topology, *domain) > 1;
    let widest = Domain::ALL.into_iter().rev().find(stands_apart)?;
    let (count, domain) = (placement.domains(topology, widest), widest.word().into());
    (slower_pct > 0).then_some(Reason::SpreadOver { count, domain, slower_pct })
}
