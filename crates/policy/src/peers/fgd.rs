//! Policies that place one request after the other, in the order in which they came, and never look
//! back: each goes to the node that a packing rule names, who does not fit is passed.
//!
//! What is expected to come, which `fgd` wants to know, is what has come so far.

use std::collections::BTreeMap;

use het_core::{JobId, NodeId, Placement, Reason, StageKey, StageSpec, Ticket};

use crate::packing::{Bin, Item, Mix, PackingRule, best_bin};
use crate::placement::{AskId, Asks, Contents, item, place_among};
use crate::tenants::Tenants;
use crate::{Cache, Decision, Policy, Pool, View, Want};

/// The mix of requests is counted anew each time that there is one more for so many.
const NEW_PARTS: usize = 20;

/// In order of arrival, by a packing rule.
#[derive(Debug, Clone, Copy)]
pub struct InOrder(pub(crate) PackingRule);

/// What has come so far.
#[derive(Debug, Clone, Default)]
struct Kept {
    /// All jobs below it were looked at.
    seen: JobId,
    items: Vec<Item>,
    /// So many of them are in the mix.
    counted: usize,
    mix: Mix,
    asks: Asks,
}

impl Policy for InOrder {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn decide(&self, view: &View<'_>, cache: &mut Cache) -> Decision {
        let kept = cache.of::<Kept>();
        kept.update(view);
        let mut pass = Pass {
            view,
            rule: self.0,
            mix: &kept.mix,
            asks: &mut kept.asks,
            pool: Pool::of(view.state),
            tenants: Tenants::of(view.state),
            bins: Vec::new(),
            unfit: BTreeMap::new(),
        };
        pass.bins = pass.all_bins();
        let waiting = view.state.waiting_since(Ticket::default());
        let wants = waiting.map(|(_, key)| (key, pass.want(key))).collect();
        Decision { wants, ..Decision::default() }
    }
}

impl Kept {
    fn update(&mut self, view: &View<'_>) {
        for (_, job) in view.state.jobs().range(self.seen..) {
            self.items.extend(job.spec.stages.iter().map(|stage| item(view.state, stage, 0)));
        }
        self.seen = view.state.next_job();
        let counted = to_count(self.items.len());
        if counted != self.counted {
            self.mix = Mix::of(&self.items[..counted]);
            self.counted = counted;
        }
    }
}

/// How many of those that have come are in the mix.
fn to_count(come: usize) -> usize {
    let more = |counted: &usize| Some(counted + counted / NEW_PARTS + 1);
    let steps = std::iter::successors(Some(0), more).take_while(|counted| *counted <= come);
    steps.last().unwrap_or(0)
}

struct Pass<'a> {
    view: &'a View<'a>,
    rule: PackingRule,
    mix: &'a Mix,
    asks: &'a mut Asks,
    pool: Pool<'a>,
    tenants: Option<Tenants<'a>>,
    /// One a node and class of its accelerators.
    bins: Vec<(NodeId, Bin)>,
    unfit: BTreeMap<AskId, Reason>,
}

impl Pass<'_> {
    fn want(&mut self, key: StageKey) -> Want {
        let (job, spec, stage) = self.view.state.stage(key);
        let mut reasons = Vec::new();
        for index in 0..spec.alternatives.len() {
            let placement = match self.find(key, spec, index) {
                Ok(placement) => placement,
                Err(reason) => {
                    reasons.push(reason);
                    continue;
                }
            };
            let tenant = &job.spec.tenant;
            let tenants = self.tenants.as_ref();
            let refused = tenants.and_then(|all| all.refusal(tenant, spec.preemptible, &placement));
            if let Some(reason) = refused {
                reasons.push(reason);
                continue;
            }
            if let Some(tenants) = &mut self.tenants {
                tenants.take(tenant, &placement);
            }
            self.take(&placement);
            let word = spec.alternatives[index].selector.word.clone();
            let mut reasons = vec![match spec.alternatives.len() {
                1 => Reason::OnlyAlternative { word },
                _ => Reason::FreeNow { word },
            }];
            reasons.extend(stage.checkpoint.as_ref().map(|c| Reason::Resumed { step: c.step }));
            return Want::Run { placement, reasons };
        }
        Want::Wait { reasons }
    }

    /// Where the rule puts an alternative; one that no node has room for goes where it fits.
    fn find(&mut self, key: StageKey, spec: &StageSpec, index: usize) -> Result<Placement, Reason> {
        let ask = self.asks.of(self.view.state, spec, index);
        if let Some(reason) = self.unfit.get(&ask.id) {
            return Err(reason.clone());
        }
        let wanted = item(self.view.state, spec, index);
        let bins = self.bins.iter().map(|(_, bin)| bin);
        if let Some(row) = best_bin(self.rule, self.mix, bins, &wanted, draw(key)) {
            let there = ask.accepted.only(self.bins[row].0);
            if let Ok(placement) = place_among(&self.pool, spec, index, &there) {
                return Ok(placement);
            }
        }
        let found = place_among(&self.pool, spec, index, &ask.accepted);
        found.map_err(|reason| {
            let reason = ask.never.clone().unwrap_or(reason);
            self.unfit.insert(ask.id, reason.clone());
            reason
        })
    }

    fn take(&mut self, placement: &Placement) {
        self.pool.take(placement);
        for rank in &placement.ranks {
            let fresh = self.bins_of(rank.node);
            self.bins.retain(|(node, _)| *node != rank.node);
            self.bins.extend(fresh);
        }
        // The order of nodes decides between equals.
        self.bins.sort_by_key(|(node, bin)| (*node, bin.model));
    }

    fn all_bins(&self) -> Vec<(NodeId, Bin)> {
        let nodes = self.view.state.topology().node_ids();
        nodes.flat_map(|node| self.bins_of(node)).collect()
    }

    /// What is free on a node now.
    fn bins_of(&self, node: NodeId) -> Vec<(NodeId, Bin)> {
        let bins = Contents::of(&self.pool, node).bins(&self.pool, node);
        bins.into_iter().map(|bin| (node, bin)).collect()
    }
}

/// A number that looks random and is the same for the same stage (SplitMix64, Steele et al. 2014).
fn draw(key: StageKey) -> u64 {
    let mut z = (key.job.0 << 16 | u64::from(key.stage.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
