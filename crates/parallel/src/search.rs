//! The search: best bound first, memory before time, unlike devices after like ones.
//!
//! Three shapes are looked at. A pool by itself; every pool with replicas of its own, microbatches
//! shared out by speed; pipelines that lead through several pools. A pool by itself is searched the
//! same way whatever else is there, so the answer for all of them is never worse than for one.
//!
//! Pools of the same devices are first made one (`merged_pools`). Mixes of two pools are searched
//! to the end, those of more until a `budget` is spent, and the answer says so.

#[cfg(test)]
mod brute_force;
mod budget;
mod merged_pools;
mod pipelines;
mod replicas;
mod shortlist;
mod single_pool;

use het_core::Bytes;
use het_perf::training::{Offload, Zero};

use self::budget::{PRICED, SearchBudget};
use self::merged_pools::MergedPools;
use self::shortlist::Shortlist;
use crate::candidate::Candidate;
use crate::fit::Outcome;
use crate::outline::{Kind, Outline, Tricks};
use crate::price::{Refusal, fits, price};
use crate::problem::{Problem, checked, fits_nowhere};
use crate::rejection::{Rejection, Rejections};
use crate::request::Request;
use crate::search_space::{Setting, memory_savers};

/// The answer: best first.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// Fastest to the end first; never empty.
    pub candidates: Vec<Candidate>,
    /// The best on each pool by itself, in the request's order.
    pub alone: Vec<Option<Candidate>>,
    /// Why the others were rejected.
    pub rejected: Vec<Rejection>,
    /// Configurations that were looked at.
    pub looked_at: u64,
    /// Of three pools and more there are more mixes than are looked at: a better one is possible.
    pub in_part: bool,
}

/// Ranks the ways to cut a job.
///
/// # Errors
/// When the request makes no sense or nothing fits, with the nearest thing that works.
pub fn search(request: &Request) -> Result<Ranking, Problem> {
    checked(request)?;
    let merged = MergedPools::of(request);
    if !merged.is_as_asked() {
        let joined = search_pools(&merged.request)?;
        let fastest = joined.candidates[0].sample_s;
        let apart = joined.apart(request, &merged);
        if apart.candidates.first().is_some_and(|best| best.sample_s <= fastest) {
            return Ok(apart);
        }
        // The best had a group over two pools: mixing them as they are may be better than the rest.
    }
    search_pools(request)
}

/// The same of pools as they are.
fn search_pools(request: &Request) -> Result<Ranking, Problem> {
    let state = run(request);
    match state.top.best() {
        Some(best) => Ok(Ranking {
            rejected: state.rejections.summary(best),
            looked_at: state.rejections.count(),
            in_part: state.budget.in_part(),
            alone: state.alone,
            candidates: state.top.into_candidates(),
        }),
        None => Err(fits_nowhere(request, &state.rejections)),
    }
}

impl Ranking {
    /// In terms of the pools that were asked about, each of which is looked at by itself again.
    fn apart(self, asked: &Request, merged: &MergedPools) -> Self {
        let pools = 0..asked.pools.len();
        let alone: Vec<Option<Candidate>> = pools.map(|pool| best_alone(asked, pool)).collect();
        let mut top = Shortlist::of(asked.keep);
        let joined = self.candidates.into_iter();
        let joined = joined.filter_map(|candidate| merged.apart(asked, candidate));
        for candidate in joined.chain(alone.iter().flatten().cloned()) {
            top.keep(&candidate);
        }
        let rejected = self.rejected.into_iter().map(|row| merged.rejection(row)).collect();
        Self { candidates: top.into_candidates(), alone, rejected, ..self }
    }
}

/// The best on one pool, in the request's terms.
fn best_alone(request: &Request, pool: usize) -> Option<Candidate> {
    let one = request.on(vec![request.pools[pool].clone()]);
    let mut best = run(&one).alone.remove(0)?;
    let kinds = best.layout.replicas.iter_mut();
    kinds.flat_map(|kind| &mut kind.stages).for_each(|stage| stage.pool = pool);
    Some(best)
}

/// Whether anything fits at all.
pub(crate) fn finds(request: &Request) -> bool {
    let once = Request { keep: 1, ..request.clone() };
    checked(&once).is_ok() && run(&MergedPools::of(&once).request).top.best().is_some()
}

/// The best candidate, or what keeps all of them from fitting.
pub(crate) fn shortest(request: &Request) -> Result<Candidate, Outcome> {
    let merged = MergedPools::of(request);
    let state = run(&merged.request);
    let as_asked = |best| {
        let apart = merged.apart(request, best);
        apart.or_else(|| run(request).top.best().cloned())
    };
    match (
        state.top.best().cloned().and_then(as_asked),
        state.rejections.nearest_host(),
        state.rejections.nearest(),
    ) {
        (Some(best), ..) => Ok(best),
        (None, Some(each), _) => Err(Outcome::LacksHost { each }),
        (None, None, Some((_, device, _))) => Err(Outcome::Lacks { device }),
        (None, None, None) => Err(Outcome::Uneven),
    }
}

/// What a search has so far.
pub(crate) struct SearchState<'a> {
    request: &'a Request,
    settings: Vec<Setting>,
    top: Shortlist,
    alone: Vec<Option<Candidate>>,
    rejections: Rejections,
    budget: SearchBudget,
}

fn run(request: &Request) -> SearchState<'_> {
    let settings = Setting::all(request);
    let (top, rejections) = (Shortlist::of(request.keep), Rejections::default());
    let budget = SearchBudget::on(request.pools.len());
    let mut state = SearchState { request, settings, top, alone: Vec::new(), rejections, budget };
    for pool in 0..request.pools.len() {
        let best = single_pool::search(&mut state, pool);
        state.alone.push(best);
    }
    if request.pools.len() > 1 {
        replicas::search(&mut state);
        pipelines::search(&mut state);
    }
    state
}

impl SearchState<'_> {
    /// Seconds a sample above which nothing is worth a look.
    fn threshold(&self) -> f64 {
        self.top.threshold()
    }

    /// The same for a mix, where there is budget left for it.
    fn climb_mix(&mut self, outline: &Outline) {
        if self.budget.spend(PRICED) {
            self.climb(outline);
        }
    }

    /// Prices an outline whose replicas are all alike, with every way to save memory until one
    /// fits; what comes after that only costs time. Of unlike ones each has its own way already.
    fn climb(&mut self, outline: &Outline) {
        let kind = &outline.kinds[0];
        let sharing = outline.sharing(kind);
        let alike = outline.kinds.len() == 1 || sharing > kind.count;
        let bare = kind.tricks.zero == Zero::None && kind.tricks.offload == Offload::None;
        if !alike || !bare {
            self.try_out(outline);
            return;
        }
        let microbatches = outline.microbatches() / sharing.max(1);
        let rungs = memory_savers(self.request, sharing * kind.tricks.context);
        let at = |(offload, zero)| {
            let tricks = |kind: &Kind| Tricks { offload, zero, ..kind.tricks };
            let kinds = outline.kinds.iter();
            let kinds = kinds.map(|kind| Kind { tricks: tricks(kind), ..kind.clone() }).collect();
            Outline { kinds, ..outline.clone() }
        };
        let Some(last) = rungs.last() else { return };
        let most = at(*last);
        let held = |kind: &Kind| fits(self.request, &most, kind, microbatches.max(1));
        if !most.kinds.iter().all(held) {
            self.try_out(&most);
            return;
        }
        let mut enough = None;
        for rung in &rungs {
            // With one microbatch, sharing more costs no more: every weight goes once.
            let costs_more = match enough {
                Some((offload, first)) => microbatches > 1 && (first || rung.0 == offload),
                None => false,
            };
            if costs_more {
                self.rejections.needless(1);
            } else if self.try_out(&at(*rung)) {
                enough = Some((rung.0, rungs.iter().find(|one| one.0 == rung.0) == Some(rung)));
            }
        }
    }

    /// Prices an outline as it is and keeps it if it is good; whether it can be done.
    fn try_out(&mut self, outline: &Outline) -> bool {
        match price(self.request, outline) {
            Ok(candidate) => {
                self.rejections.priced(&candidate);
                self.top.keep(&candidate);
                true
            }
            Err(refusal) => {
                self.refuse(outline, refusal);
                false
            }
        }
    }

    fn refuse(&mut self, outline: &Outline, refusal: Refusal) {
        let example = || {
            let kind = &outline.kinds[0];
            let each = (outline.microbatches() / outline.replicas().max(1)).max(1);
            let ranks = [outline.replicas(), each];
            kind.config(self.request, &outline.recipe, &kind.blocks[0], ranks)
        };
        match refusal {
            Refusal::OutOfMemory { pool, over } => {
                let example = example();
                self.rejections.memory(pool, over.max(Bytes(1)), example);
            }
            Refusal::OutOfHostMemory { pool, over } => {
                let example = example();
                self.rejections.host_memory(pool, over, example);
            }
            Refusal::Batch | Refusal::Layers | Refusal::Step(_) => self.rejections.indivisible(),
        }
    }
}
