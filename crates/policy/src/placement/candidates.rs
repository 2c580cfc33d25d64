//! What a stage could have, and how each of its alternatives would do: for whoever asks why.

use std::sync::Arc;

use het_core::{
    Bytes, DeviceId, Millis, Name, Path, Placement, Planned, Reason, StageKey, StageSpec,
    StageState,
};
use het_perf::RateSource;

use super::expected::Expected;
use super::opportunity_cost::{OpportunityCost, shape};
use crate::speed::{rate, rate_on, spread_penalty, steps_left};
use crate::{Pool, View, place};

/// An alternative, where it would stand now, and the terms that it is weighed by.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub word: Name,
    pub units: u32,
    pub stands: Stands,
    /// Steps per second in the best place that the cluster could have for it, and how that is
    /// known.
    pub best: Option<(f64, RateSource)>,
    /// What a device of it lacks, however the job is cut, as the planner has it.
    pub lacks: Option<Bytes>,
    /// Where it stands.
    pub terms: Option<Terms>,
}

/// Whether there is room for it.
#[derive(Debug, Clone, PartialEq)]
pub enum Stands {
    /// It runs there.
    Runs(Placement),
    /// It would be given that now.
    Free(Placement),
    Nowhere(Reason),
}

/// What an alternative is weighed by.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// Steps per second.
    pub rate: f64,
    /// That its gang stands apart, and what that costs.
    pub apart: Option<Reason>,
    /// The two of its devices in one node that are joined worst, and how.
    pub slowest: Option<(DeviceId, DeviceId, Path)>,
    /// Of the peak of the whole cluster that it takes.
    pub part: f64,
    /// Seconds that a second of it costs the stage and everybody else.
    pub price: f64,
    /// Seconds that a step costs all: price over rate. The least is best.
    pub step_cost_s: f64,
    /// To the end of its steps, where it says how many there are.
    pub ends_in: Option<Millis>,
}

/// The alternatives of a stage, in file order.
pub fn candidates(view: &View<'_>, key: StageKey) -> Vec<Candidate> {
    let (_, spec, stage) = view.state.stage(key);
    let running = match stage.state {
        StageState::Active { lease } => Some(&view.state.leases()[&lease].placement),
        _ => None,
    };
    let opportunity_cost = OpportunityCost::of(view.state);
    let left = steps_left(spec, stage);
    let expected = Expected::of(view.state).mix(&Expected::default());
    let mut pool = Pool::for_stage(view.state, key).expecting(expected.map(Arc::new));
    let candidate = |index: usize| {
        let alternative = &spec.alternatives[index];
        let stands = match running.filter(|placement| placement.alternative == index) {
            Some(placement) => Stands::Runs((**placement).clone()),
            None => place(&mut pool, spec, index).map_or_else(Stands::Nowhere, Stands::Free),
        };
        Candidate {
            word: alternative.selector.word.clone(),
            units: alternative.count,
            best: rate(view, spec, index),
            lacks: lacks(spec, alternative.count, |class| {
                alternative.selector.accepts_class(view.state.topology(), class)
            }),
            terms: stands.placement().and_then(|at| terms(view, &opportunity_cost, spec, at, left)),
            stands,
        }
    };
    (0..spec.alternatives.len()).map(candidate).collect()
}

impl Stands {
    pub fn placement(&self) -> Option<&Placement> {
        match self {
            Self::Runs(placement) | Self::Free(placement) => Some(placement),
            Self::Nowhere(_) => None,
        }
    }
}

fn terms(
    view: &View<'_>,
    opportunity_cost: &OpportunityCost,
    spec: &StageSpec,
    placement: &Placement,
    left: Option<u64>,
) -> Option<Terms> {
    let (rate, _) = rate_on(view, spec, placement)?;
    let locality = view.state.locality(spec, placement);
    let shape = shape(view, spec, placement.alternative, locality)?;
    Some(Terms {
        rate,
        apart: spread_penalty(view, spec, placement),
        slowest: view.state.index().slowest_pair(placement),
        part: shape.part,
        price: opportunity_cost.price(shape),
        step_cost_s: opportunity_cost.cost(shape),
        ends_in: left.map(|steps| shape.span(steps)),
    })
}

/// What a device lacks of the class, among those that will do, on which it lacks least; `None` if
/// the gang fits one of them or nobody planned it.
fn lacks(spec: &StageSpec, units: u32, accepts: impl Fn(&Name) -> bool) -> Option<Bytes> {
    let says = spec.planned.iter().filter(|(class, of, _)| *of == units && accepts(class));
    let lacking = says.map(|(_, _, planned)| match planned {
        Planned::Runs(_) => None,
        Planned::Lacks(bytes) => Some(bytes),
    });
    lacking.min().flatten()
}
