//! When devices that are in use become free.

use het_core::{Alternative, Grant, Lease, Millis};

use super::pool::accepted;
use super::running::{Runner, Running};
use crate::View;
use crate::speed::steps_made;

/// What is taken of a running stage whose end is unknown.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unknown {
    /// It may never end.
    Never,
    /// It ends after so long.
    After(Millis),
}

/// All that runs, by its expected end.
#[derive(Debug)]
pub(crate) struct Ends<'a> {
    view: &'a View<'a>,
    /// The first to end first.
    known: Vec<(Millis, &'a Lease)>,
    unknown: Vec<&'a Lease>,
}

impl<'a> Ends<'a> {
    pub fn of(view: &'a View<'a>, running: &Running) -> Self {
        let mut ends = Self { view, known: Vec::new(), unknown: Vec::new() };
        for (id, lease) in view.state.leases() {
            let span = running.get(*id).and_then(|runner| expected_span(view, lease, runner));
            match span {
                Some(end) => ends.known.push((end, lease)),
                None => ends.unknown.push(lease),
            }
        }
        ends.known.sort_unstable_by_key(|(end, lease)| (*end, lease.stage));
        ends
    }

    /// Until `wanted` units that the alternative accepts have become free, beside those that are;
    /// or until all users have ended, if they hold fewer. `None` if nobody can tell.
    pub fn until_free(
        &self,
        alternative: &Alternative,
        wanted: u32,
        unknown: Unknown,
    ) -> Option<Millis> {
        let accepted = accepted(self.view.state, &alternative.selector, None);
        let ours = |grant: &Grant| accepted.has(self.view.state, grant.device);
        let units = |lease: &Lease| -> u32 {
            lease.placement.devices().filter(ours).map(|grant| grant.share.whole_units()).sum()
        };
        let (first, assumed) = match unknown {
            Unknown::Never => (self.known.len(), None),
            Unknown::After(end) => (self.known.partition_point(|row| row.0 <= end), Some(end)),
        };
        let known = |(end, lease): &(Millis, &'a Lease)| (Some(*end), *lease);
        let rows = self.known[..first].iter().map(known);
        let rows = rows.chain(self.unknown.iter().map(|&lease| (assumed, lease)));
        let rows = rows.chain(self.known[first..].iter().map(known));
        let mut missing = wanted;
        let mut last = None;
        for (end, freed) in rows.map(|(end, lease)| (end, units(lease))) {
            if freed == 0 {
                continue;
            }
            last = Some(end?);
            missing = missing.saturating_sub(freed);
            if missing == 0 {
                break;
            }
        }
        last
    }
}

/// How long the rest of a running stage should take where it is; `None` if nobody says how many
/// steps there are or how fast they go.
fn expected_span(view: &View<'_>, lease: &Lease, runner: &Runner) -> Option<Millis> {
    let stage = view.state.stage_record(lease.stage);
    let rate = runner.here?.rate;
    let total = runner.steps.or(stage.progress.total)? as f64;
    let left = (total - steps_made(view, stage, lease, rate)).max(0.0);
    Some(Millis((left / rate * 1_000.0) as u64))
}
