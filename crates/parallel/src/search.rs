//! The search: best bound first, memory before time, unlike devices after like ones.
//!
//! Three shapes are looked at. A pool by itself; every pool with replicas of its own, microbatches
//! shared out by speed; pipelines that lead through several pools. A pool by itself is searched the
//! same way whatever else is there, so the answer for all of them is never worse than for one.
//!
//! Pools of the same devices are first made one (`alike`). Mixes of two pools are searched to the
//! end, those of more as far as an allowance goes (`effort`), and the answer says so.

mod alike;
mod alone;
#[cfg(test)]
mod brute;
mod effort;
mod pipelines;
mod replicas;
mod shortlist;

use het_core::Bytes;
use het_perf::training::{Offload, Zero};

use self::alike::Alike;
use self::effort::{Effort, PRICED};
use self::shortlist::Shortlist;
use crate::candidate::Candidate;
use crate::fit::Outcome;
use crate::lost::{Losses, Lost};
use crate::outline::{Kind, Outline, Tricks};
use crate::price::{Refusal, fits, price};
use crate::problem::{Problem, checked, nowhere};
use crate::request::Request;
use crate::space::{Setting, rungs};

/// The answer: best first.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// Fastest to the end first; never empty.
    pub candidates: Vec<Candidate>,
    /// The best on each pool by itself, in the request's order.
    pub alone: Vec<Option<Candidate>>,
    /// Why the others lost.
    pub lost: Vec<Lost>,
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
    let alike = Alike::of(request);
    if !alike.is_as_asked() {
        let joined = search_pools(&alike.request)?;
        let fastest = joined.candidates[0].sample_s;
        let apart = joined.apart(request, &alike);
        if apart.candidates.first().is_some_and(|best| best.sample_s <= fastest) {
            return Ok(apart);
        }
        // The best had a group over two pools: mixing them as they are may be better than the rest.
    }
    search_pools(request)
}

/// The same of pools as they are.
fn search_pools(request: &Request) -> Result<Ranking, Problem> {
    let hunt = run(request);
    match hunt.top.best() {
        Some(best) => Ok(Ranking {
            lost: hunt.losses.summed_up(best),
            looked_at: hunt.losses.count(),
            in_part: hunt.effort.in_part(),
            alone: hunt.alone,
            candidates: hunt.top.told(),
        }),
        None => Err(nowhere(request, &hunt.losses)),
    }
}

impl Ranking {
    /// In terms of the pools that were asked about, each of which is looked at by itself again.
    fn apart(self, asked: &Request, alike: &Alike) -> Self {
        let pools = 0..asked.pools.len();
        let alone: Vec<Option<Candidate>> = pools.map(|pool| best_alone(asked, pool)).collect();
        let mut top = Shortlist::of(asked.keep);
        let joined = self.candidates.into_iter();
        let joined = joined.filter_map(|candidate| alike.apart(asked, candidate));
        for candidate in joined.chain(alone.iter().flatten().cloned()) {
            top.keep(&candidate);
        }
        let lost = self.lost.into_iter().map(|lost| alike.lost(lost)).collect();
        Self { candidates: top.told(), alone, lost, ..self }
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
    checked(&once).is_ok() && run(&Alike::of(&once).request).top.best().is_some()
}

/// The best candidate, or what keeps all of them from fitting.
pub(crate) fn shortest(request: &Request) -> Result<Candidate, Outcome> {
    let alike = Alike::of(request);
    let hunt = run(&alike.request);
    let as_asked = |best| {
        let apart = alike.apart(request, best);
        apart.or_else(|| run(request).top.best().cloned())
    };
    match (
        hunt.top.best().cloned().and_then(as_asked),
        hunt.losses.nearest_host(),
        hunt.losses.nearest(),
    ) {
        (Some(best), ..) => Ok(best),
        (None, Some(each), _) => Err(Outcome::LacksHost { each }),
        (None, None, Some((_, device, _))) => Err(Outcome::Lacks { device }),
        (None, None, None) => Err(Outcome::Uneven),
    }
}

/// A search on its way.
pub(crate) struct Hunt<'a> {
    request: &'a Request,
    settings: Vec<Setting>,
    top: Shortlist,
    alone: Vec<Option<Candidate>>,
    losses: Losses,
    effort: Effort,
}

fn run(request: &Request) -> Hunt<'_> {
    let settings = Setting::all(request);
    let (top, losses) = (Shortlist::of(request.keep), Losses::default());
    let effort = Effort::on(request.pools.len());
    let mut hunt = Hunt { request, settings, top, alone: Vec::new(), losses, effort };
    for pool in 0..request.pools.len() {
        let best = alone::search(&mut hunt, pool);
        hunt.alone.push(best);
    }
    if request.pools.len() > 1 {
        replicas::search(&mut hunt);
        pipelines::search(&mut hunt);
    }
    hunt
}

impl Hunt<'_> {
    /// Seconds a sample above which nothing is worth a look.
    fn threshold(&self) -> f64 {
        self.top.threshold()
    }

    /// The same for a mix, where there is effort left for it.
    fn climb_mix(&mut self, outline: &Outline) {
        if self.effort.spend(PRICED) {
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
        let rungs = rungs(self.request, sharing * kind.tricks.context);
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
                self.losses.needless(1);
            } else if self.try_out(&at(*rung)) {
                enough = Some((rung.0, rungs.iter().find(|one| one.0 == rung.0) == Some(rung)));
            }
        }
    }

    /// Prices an outline as it is and keeps it if it is good; whether it can be done.
    fn try_out(&mut self, outline: &Outline) -> bool {
        match price(self.request, outline) {
            Ok(candidate) => {
                self.losses.priced(&candidate);
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
                self.losses.memory(pool, over.max(Bytes(1)), example);
            }
            Refusal::OutOfHostMemory { pool, over } => {
                let example = example();
                self.losses.host_memory(pool, over, example);
            }
            Refusal::Batch | Refusal::Layers | Refusal::Step(_) => self.losses.indivisible(),
        }
    }
}
