//! What devices are worth to everybody else: the price of being fast.
//!
//! More devices, or faster ones, end a stage sooner, but seldom as much sooner as they are more:
//! others could do more with them. So a shape is weighed by the time to its end, plus what the
//! others lose meanwhile: the part of the cluster that it takes times everybody who is there.

use het_core::{DeviceGroup, Locality, Millis, StageSpec, State};
use het_perf::RateSource;

use crate::View;
use crate::speed::rate_at;

/// For each stage that is there now, so many will have come before a running one ends. Chosen on
/// seeds 101 to 106 of the mixes of `docs/studies/headline.md`, which shows others.
const TO_COME: f64 = 5.0;

/// What a second of waiting costs where everybody waits, and how much more where nobody does.
/// Chosen on the same seeds.
const WAITING: (f64, f64) = (0.3, 1.5);

/// Part of the speed of the fastest offer of no more devices from which on one is worth a stage's
/// while; it waits for a faster one before it takes a slower one.
pub(crate) const WORTHWHILE: f64 = 1.0 / 16.0;

/// How crowded the cluster is.
#[derive(Debug)]
pub(crate) struct OpportunityCost {
    /// Stages that run or wait, but one.
    others: f64,
    /// Stages that wait, for each accelerator.
    queue: f64,
}

/// How one alternative does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shape {
    /// Steps per second.
    pub rate: f64,
    /// Nobody has measured or declared that rate.
    pub guessed: bool,
    /// Of the peak of the whole cluster.
    pub part: f64,
}

impl Shape {
    /// How long so many steps take.
    pub fn span(self, steps: u64) -> Millis {
        Millis((steps as f64 / self.rate * 1_000.0) as u64)
    }
}

impl OpportunityCost {
    pub fn of(state: &State) -> Self {
        let everybody = state.leases().len() + state.waiting_count();
        let accelerators = state.index().accelerators.max(1) as f64;
        Self {
            others: everybody.saturating_sub(1) as f64,
            queue: state.waiting_count() as f64 / accelerators,
        }
    }

    /// Seconds that a second on a shape costs its own stage and all others together.
    pub fn price(&self, shape: Shape) -> f64 {
        1.0 + TO_COME * self.others * shape.part
    }

    /// Seconds that a second of waiting for something better costs. What a stage leaves free idles
    /// where nobody else waits, and is taken at once where many do.
    pub fn price_of_waiting(&self) -> f64 {
        WAITING.0 + WAITING.1 / (1.0 + self.queue)
    }

    /// What a step costs on a shape.
    pub fn cost(&self, shape: Shape) -> f64 {
        self.price(shape) / shape.rate
    }
}

/// The alternatives of a stage, each in the best place that the cluster could have for it; `None`
/// for one of unknown speed.
pub(crate) fn shapes(view: &View<'_>, spec: &StageSpec) -> Vec<Option<Shape>> {
    let indices = 0..spec.alternatives.len();
    indices.map(|index| shape(view, spec, index, Locality::BEST)).collect()
}

/// An alternative that stands so.
pub(crate) fn shape(
    view: &View<'_>,
    spec: &StageSpec,
    index: usize,
    locality: Locality,
) -> Option<Shape> {
    let (rate, source) = rate_at(view, spec, index, locality)?;
    let guessed = match source {
        RateSource::Table | RateSource::History => false,
        RateSource::Planned | RateSource::Scaled | RateSource::Extrapolated => true,
    };
    Some(Shape { rate, guessed, part: part(view, spec, index)? })
}

/// The part of the peak of the whole cluster that an alternative takes.
fn part(view: &View<'_>, spec: &StageSpec, index: usize) -> Option<f64> {
    let topology = view.state.topology();
    let alternative = &spec.alternatives[index];
    let accepts = |sort: &&DeviceGroup| alternative.selector.accepts(topology, sort.representative);
    let sort = view.state.index().device_groups.iter().find(accepts)?;
    Some(part_of(view.state, topology.device(sort.representative).class, alternative.count))
}

/// The part of the peak of the whole cluster that so many units of a class are.
pub(crate) fn part_of(state: &State, class: usize, units: u32) -> f64 {
    let all = state.index();
    let of_class =
        |sort: &&DeviceGroup| state.topology().device(sort.representative).class == class;
    let peak = all.device_groups.iter().find(of_class).map_or(0, |sort| sort.peak_gflops);
    f64::from(units) * peak as f64 / all.peak_gflops.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_the_fastest_is_best_and_in_a_crowd_what_wastes_least() {
        let one = Shape { rate: 1.0, guessed: false, part: 0.125 };
        let eight = Shape { rate: 6.4, guessed: false, part: 1.0 };
        let check = |others: f64, best: Shape| {
            let crowd = OpportunityCost { others, queue: 0.0 };
            let found = if crowd.cost(one) <= crowd.cost(eight) { one } else { eight };
            assert_eq!(found, best, "{others} others");
        };
        check(0.0, eight);
        check(2.0, eight);
        check(10.0, one);
    }
}
