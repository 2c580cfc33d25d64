//! When devices that are in use become free.

use het_core::{Alternative, Grant, Millis, StageKey};

use crate::View;
use crate::line::{rate, steps_left};

/// What is taken of a running stage whose end is unknown.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unknown {
    /// It may never end.
    Never,
    /// It ends after so long.
    After(Millis),
}

/// Until `wanted` units that the alternative accepts have become free, beside those that are; or
/// until all users have ended, if they hold fewer. `None` if nobody can tell.
pub(crate) fn until_free(
    view: &View<'_>,
    alternative: &Alternative,
    wanted: u32,
    unknown: Unknown,
) -> Option<Millis> {
    let topology = view.state.topology();
    let ours = |grant: &Grant| alternative.selector.accepts(topology, grant.device);
    let mut ends: Vec<(Millis, u32)> = Vec::new();
    let mut all_known = true;
    for lease in view.state.leases().values() {
        let units = lease.placement.devices().filter(ours).map(|g| g.share.whole_units()).sum();
        if units == 0 {
            continue;
        }
        match (expected_span(view, lease.stage, lease.placement.alternative), unknown) {
            (Some(end), _) | (None, Unknown::After(end)) => ends.push((end, units)),
            (None, Unknown::Never) => all_known = false,
        }
    }
    ends.sort_unstable();
    let mut missing = wanted;
    let enough = ends.iter().find_map(|(end, units)| {
        missing = missing.saturating_sub(*units);
        (missing == 0).then_some(*end)
    });
    enough.or(ends.last().filter(|_| all_known).map(|(end, _)| *end))
}

/// How long the rest of a stage should take on an alternative; `None` if its steps or rate are
/// unknown.
pub(crate) fn expected_span(view: &View<'_>, key: StageKey, index: usize) -> Option<Millis> {
    let (_, spec, _) = view.state.stage(key);
    let left = steps_left(view, key)?;
    rate(view, spec, index).map(|rate| Millis((left as f64 / rate * 1_000.0) as u64))
}
