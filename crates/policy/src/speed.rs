//! How much a stage has left to do, and how fast each of its shapes does it.

use het_core::{Stage, StageSpec};
use het_perf::RateSource;

use crate::View;

/// Steps that a stage still has to make, if it says how many there are.
pub(crate) fn steps_left(spec: &StageSpec, stage: &Stage) -> Option<u64> {
    let total = spec.steps.or(stage.progress.total)?;
    Some(total.saturating_sub(stage.progress.step.unwrap_or(0)))
}

/// Steps per second of an alternative on the slowest class that it accepts, a promise that no
/// placement can break, and how that is known; `None` if no class has a known speed.
pub(crate) fn rate(view: &View<'_>, spec: &StageSpec, index: usize) -> Option<(f64, RateSource)> {
    let alternative = &spec.alternatives[index];
    let topology = view.state.topology();
    let mut classes: Vec<usize> = (view.state.index().sorts.iter().map(|sort| sort.exemplar))
        .filter(|&id| alternative.selector.accepts(topology, id))
        .map(|id| topology.device(id).class)
        .collect();
    classes.sort_unstable();
    classes.dedup();
    let rates = classes.into_iter().filter_map(|class| {
        let class = &topology.classes[class];
        view.rates.rate(&spec.profile, class, alternative.count)
    });
    rates.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|(rate, _)| *rate > 0.0)
}
