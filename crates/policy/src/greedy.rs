//! One pass over the waiting stages, best first: the shared core of our policies.
//!
//! - A stage whose claim became free starts on it.
//! - Every other stage, in order, starts where it fits.
//! - One that does not fit may preempt, or have devices reserved, or waits with its reasons.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{
    Bytes, Companions, Domain, LeaseId, Millis, Name, Phase, Placement, Priority, RankRule, Reason,
    StageKey, StageSpec, StopCause, Time,
};

use crate::order::{AGEING_STEP, sorted};
use crate::rules::{Choice, Passing, Preempts};
use crate::{Decision, Pool, Rules, StopOrder, View, Want, place, preempt, reasons_why_not};

/// Searches for victims in one round: a round stays short however long the queue is, and the next
/// round goes on.
const PREEMPTION_SEARCHES_MAX: usize = 16;

/// Gangs that may have devices reserved at a time, so that reservations cannot idle a cluster.
const RESERVATIONS_MAX: usize = 1;

pub(crate) fn decide(rules: &Rules, view: &View<'_>) -> Decision {
    if view.state.waiting().next().is_none() {
        return Decision::default();
    }
    let (order, wake_at) = sorted(view, rules.order);
    let mut pass = Pass::new(rules, view, wake_at);
    for &key in &order {
        let want = pass.want(key);
        pass.passed |= matches!(want, Want::Wait { .. });
        pass.decision.wants.push((key, want));
    }
    pass.decision
}

/// What makes two requests alike: if one does not fit, neither does the other in the same round.
type Shape<'a> = (Vec<(&'a Name, u32, Bytes)>, (u32, Bytes), Domain, RankRule, Option<usize>);

struct Pass<'a> {
    rules: &'a Rules,
    view: &'a View<'a>,
    pool: Pool<'a>,
    decision: Decision,
    /// The first stage that did not fit, where nobody may pass it.
    head: Option<StageKey>,
    /// Somebody better placed in the order waits on.
    passed: bool,
    /// The lowest priority that runs: only higher ones need to look for victims.
    lowest_running: Option<Priority>,
    misfits: BTreeMap<Shape<'a>, Vec<Reason>>,
    stopped: BTreeSet<LeaseId>,
    searches: usize,
    reservations: usize,
}

impl<'a> Pass<'a> {
    fn new(rules: &'a Rules, view: &'a View<'a>, wake_at: Option<Time>) -> Self {
        Self {
            rules,
            view,
            pool: Pool::of(view.state),
            decision: Decision { wake_at, ..Decision::default() },
            head: None,
            passed: false,
            lowest_running: preempt::lowest_running(view),
            misfits: BTreeMap::new(),
            stopped: BTreeSet::new(),
            searches: 0,
            reservations: reserved(view),
        }
    }

    fn want(&mut self, key: StageKey) -> Want {
        if let Some(claim) = self.view.state.claims().get(&key) {
            return self.claimed(key, &claim.placement.clone());
        }
        if let Some(blocker) = self.head {
            return Want::Wait { reasons: vec![Reason::HeadOfLine { blocker }] };
        }
        let (_, spec, _) = self.view.state.stage(key);
        let fixed = self.fixed_alternative(key);
        let shape = shape(spec, fixed);
        if let Some(reasons) = self.misfits.get(&shape) {
            let reasons = reasons.clone();
            return self.misfit(key, reasons);
        }
        match self.fitting(key, fixed) {
            Ok((placement, reason)) => self.start(key, placement, reason),
            Err(reasons) => {
                // A stage that waits for something better says nothing about others of its shape.
                if !matches!(reasons.as_slice(), [Reason::BetterToWait { .. }]) {
                    self.misfits.insert(shape, reasons.clone());
                }
                self.misfit(key, reasons)
            }
        }
    }

    /// A claim that is free now becomes a start; one on a device that went down is given up; any
    /// other is waited for, unless the stage fits elsewhere already.
    fn claimed(&mut self, key: StageKey, placement: &Placement) -> Want {
        let state = self.view.state;
        let own = Pool::for_stage(state, key);
        if own.covers(placement) {
            let reasons = self.start_reasons(key, Reason::ClaimReady);
            return Want::Run { placement: placement.clone(), reasons };
        }
        if let Ok((elsewhere, reason)) = self.fitting(key, self.fixed_alternative(key)) {
            return self.start(key, elsewhere, reason);
        }
        let (_, spec, _) = state.stage(key);
        if placement.devices().all(|grant| state.is_up(grant.device)) {
            return Want::Run { placement: placement.clone(), reasons: vec![Reason::ClaimPending] };
        }
        Want::Wait { reasons: reasons_why_not(&mut self.pool, spec) }
    }

    fn start(&mut self, key: StageKey, placement: Placement, reason: Reason) -> Want {
        self.pool.take(&placement);
        let reasons = self.start_reasons(key, reason);
        Want::Run { placement, reasons }
    }

    fn start_reasons(&self, key: StageKey, first: Reason) -> Vec<Reason> {
        let (job, _, stage) = self.view.state.stage(key);
        let waited = self.view.now.since(job.waiting_since(key.stage));
        let mut reasons = vec![first];
        reasons.extend(self.passed.then_some(Reason::Backfilled));
        reasons.extend(stage.checkpoint.as_ref().map(|c| Reason::Resumed { step: c.step }));
        reasons
            .extend((waited >= AGEING_STEP).then_some(Reason::Aged { seconds: waited.0 / 1_000 }));
        reasons
    }

    /// A stage that fits nowhere: preempt for it, reserve for it, or let it wait.
    fn misfit(&mut self, key: StageKey, mut reasons: Vec<Reason>) -> Want {
        if self.rules.passing == Passing::Never {
            self.head = Some(key);
        }
        if self.rules.preempts == Preempts::ForHigherPriority
            && self.searches < PREEMPTION_SEARCHES_MAX
            && self.lowest_running.is_some_and(|p| p < self.view.state.stage(key).0.priority())
        {
            self.searches += 1;
            match preempt::find(self.view, &self.pool, key, &self.stopped) {
                Ok((placement, orders)) => return self.preempt(placement, orders),
                Err(reason) => reasons.extend(reason),
            }
        }
        match self.reserve(key) {
            Some(want) => want,
            None => Want::Wait { reasons },
        }
    }

    fn preempt(&mut self, placement: Placement, orders: Vec<StopOrder>) -> Want {
        // What the victims free beyond the placement may fit others.
        self.misfits.clear();
        for order in &orders {
            self.stopped.insert(order.lease);
            self.pool.give_back(&self.view.state.leases()[&order.lease].placement);
        }
        self.pool.take(&placement);
        self.decision.stops.extend(orders);
        Want::Run { placement, reasons: vec![Reason::ClaimPending] }
    }

    /// Reserves the devices of running stages, without stopping anybody, for a gang that others
    /// have passed for too long.
    fn reserve(&mut self, key: StageKey) -> Option<Want> {
        let Passing::Backfill { reserve_after: Some(after) } = self.rules.passing else {
            return None;
        };
        let (job, spec, _) = self.view.state.stage(key);
        let due = job.waiting_since(key.stage) + after;
        if self.view.now < due {
            self.wake_by(due);
            return None;
        }
        if self.reservations >= RESERVATIONS_MAX {
            return None;
        }
        let mut drained = self.drained();
        let index = (0..spec.alternatives.len()).find(|&i| place(&mut drained, spec, i).is_ok())?;
        let placement = place(&mut drained, spec, index).ok()?;
        self.reservations += 1;
        self.pool.reserve(&placement);
        Some(Want::Run { placement, reasons: vec![Reason::ClaimPending] })
    }

    /// The pool as it will be when everything that runs has ended.
    fn drained(&self) -> Pool<'a> {
        let mut drained = self.pool.clone();
        let leases = self.view.state.leases().iter();
        for (_, lease) in leases.filter(|(id, _)| !self.stopped.contains(id)) {
            drained.give_back(&lease.placement);
        }
        drained
    }

    fn wake_by(&mut self, at: Time) {
        let wake = self.decision.wake_at.map_or(at, |earlier| earlier.min(at));
        self.decision.wake_at = Some(wake);
    }

    /// The alternative that the stage is bound to, if its policy binds it.
    fn fixed_alternative(&self, key: StageKey) -> Option<usize> {
        let (job, spec, _) = self.view.state.stage(key);
        let waited = self.view.now.since(job.waiting_since(key.stage));
        let bound = match self.rules.choice {
            Choice::Fixed => true,
            Choice::FixedUntil(patience) => waited < patience,
            Choice::FreeNow | Choice::EarliestFinish => false,
        };
        (bound && spec.alternatives.len() > 1).then(|| preferred(self.view, key))
    }

    /// Where the stage fits now, and why there.
    fn fitting(
        &mut self,
        key: StageKey,
        fixed: Option<usize>,
    ) -> Result<(Placement, Reason), Vec<Reason>> {
        let (job, spec, _) = self.view.state.stage(key);
        if let Some(index) = fixed {
            let word = spec.alternatives[index].selector.word.clone();
            if let Choice::FixedUntil(patience) = self.rules.choice {
                self.wake_by(job.waiting_since(key.stage) + patience);
            }
            let bound = Reason::FixedAtSubmission { word };
            return match place(&mut self.pool, spec, index) {
                Ok(placement) => Ok((placement, bound)),
                Err(_) => {
                    let mut reasons = reasons_why_not(&mut self.pool, spec);
                    reasons.push(bound);
                    Err(reasons)
                }
            };
        }
        let ranked = ranked(self.view, key);
        let best = ranked[0];
        let fit = ranked
            .iter()
            .find_map(|&index| place(&mut self.pool, spec, index).ok().map(|p| (index, p)));
        let Some((index, placement)) = fit else {
            return Err(reasons_why_not(&mut self.pool, spec));
        };
        let word = spec.alternatives[index].selector.word.clone();
        if index != best && self.waiting_pays(key, best, index) {
            let word = spec.alternatives[best].selector.word.clone();
            return Err(vec![Reason::BetterToWait { word }]);
        }
        let reason = match (spec.alternatives.len(), index == best) {
            (1, _) => Reason::OnlyAlternative { word },
            (_, true) => Reason::FastestFinish { word },
            _ if index == preferred(self.view, key) => Reason::FirstPossible { word },
            (_, false) => Reason::FreeNow { word },
        };
        Ok((placement, reason))
    }

    /// Whether the better shape, once its present users end, still finishes before the free one.
    fn waiting_pays(&mut self, key: StageKey, best: usize, free: usize) -> bool {
        if self.rules.choice != Choice::EarliestFinish {
            return false;
        }
        let (_, spec, _) = self.view.state.stage(key);
        let (Some(fast), Some(slow)) =
            (expected_span(self.view, key, best), expected_span(self.view, key, free))
        else {
            return false;
        };
        let selector = &spec.alternatives[best].selector;
        let topology = self.view.state.topology();
        let ends = self.view.state.leases().values().filter_map(|lease| {
            let ours = lease.placement.devices().any(|g| selector.accepts(topology, g.device));
            ours.then(|| expected_span(self.view, lease.stage, lease.placement.alternative))
        });
        // The wait lasts until the last of them ends: pessimistic, so it rarely idles for nothing.
        // An unknown end is never waited for.
        let wait = ends.reduce(|a, b| Some(a?.max(b?))).flatten();
        wait.is_some_and(|wait| wait + fast < slow)
    }
}

/// Reservations that stand: claims that no stop is making room for.
fn reserved(view: &View<'_>) -> usize {
    let leases = view.state.leases();
    let beneficiaries: BTreeSet<StageKey> = leases
        .values()
        .filter_map(|lease| match lease.phase {
            Phase::Stopping { cause: StopCause::Priority { beneficiary } } => Some(beneficiary),
            _ => None,
        })
        .collect();
    view.state.claims().keys().filter(|key| !beneficiaries.contains(key)).count()
}

fn shape(spec: &StageSpec, fixed: Option<usize>) -> Shape<'_> {
    let Companions { cores, memory } = spec.companions;
    let words = spec.alternatives.iter().map(|alternative| {
        (&alternative.selector.word, alternative.count, alternative.selector.memory_min)
    });
    (words.collect(), (cores, memory), spec.within, spec.ranks, fixed)
}

/// The alternative that rule and profile name, whatever is free: shortest expected run, then file
/// order; one that the cluster could never run is passed over.
fn preferred(view: &View<'_>, key: StageKey) -> usize {
    let (_, spec, _) = view.state.stage(key);
    let mut cluster = Pool::empty_cluster(view.state);
    let ranked = ranked(view, key);
    let possible = ranked.iter().copied().find(|&index| place(&mut cluster, spec, index).is_ok());
    possible.unwrap_or(ranked[0])
}

/// Alternatives, shortest expected run first; those without a known rate keep file order behind.
fn ranked(view: &View<'_>, key: StageKey) -> Vec<usize> {
    let (_, spec, _) = view.state.stage(key);
    let mut indices: Vec<usize> = (0..spec.alternatives.len()).collect();
    if indices.len() > 1 {
        indices.sort_by_key(|&index| expected_span(view, key, index).unwrap_or(Millis(u64::MAX)));
    }
    indices
}

/// How long the rest of a stage should take on an alternative; `None` if its steps or rate are
/// unknown.
pub(crate) fn expected_span(view: &View<'_>, key: StageKey, index: usize) -> Option<Millis> {
    let (_, spec, stage) = view.state.stage(key);
    let total = spec.steps.or(stage.progress.total)?;
    let done = stage.progress.step.unwrap_or(0);
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
        view.rates.rate(&spec.profile, class, alternative.count).map(|(rate, _)| rate)
    });
    // The slowest accepted class: a promise that placement cannot break.
    let rate = rates.min_by(f64::total_cmp).filter(|rate| *rate > 0.0)?;
    Some(Millis((total.saturating_sub(done) as f64 / rate * 1_000.0) as u64))
}
