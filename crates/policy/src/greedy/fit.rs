//! Where a stage fits now, whether its tenant may have that, and whether something better is worth
//! waiting for.

use std::sync::Arc;

use het_core::{
    Alternative, Locality, Micro, Millis, Name, Placement, Reason, Share, StageKey, StageSpec,
};

use super::Pass;
use super::supply::Verdict;
use crate::adaptive::Bid;
use crate::market::offer_rate;
use crate::placement::{Ask, OpportunityCost, Shape, Unknown, fits_one_node, place_among, shape};
use crate::queue::{FootprintId, Group, Head, PendingQueue, Precedence, Quota, Rank};
use crate::rules::{Choice, Order, Preempts};
use crate::speed::steps_left;
use crate::tenants::Tenants;

impl<'a> Pass<'a> {
    /// Where a stage of the group fits now, and why there; or why it fits nowhere.
    pub(super) fn fitting(
        &mut self,
        group: &Group,
        rank: &Rank,
    ) -> Result<(Placement, Reason), Vec<Reason>> {
        if let Some(index) = self.only(group) {
            let word = group.spec().alternatives[index].selector.word.clone();
            let bound = Reason::FixedAtSubmission { word };
            let fit = self.place(group, index);
            if let Some(blocker) = fit.as_ref().ok().and_then(|p| self.delays(group, rank, p)) {
                return Err(vec![Reason::WouldDelay { blocker }]);
            }
            return fit
                .map(|placement| (placement, bound))
                .map_err(|_| self.reasons_to_wait(group));
        }
        if let Some(bidding) = &mut self.bidding {
            let bids = bidding.bids(self.view, rank.key);
            if !bids.is_empty() {
                return self.fitting_bid(group, rank, &bids);
            }
        }
        let ranked = group.by_cost(self.opportunity_cost.as_ref());
        let best = ranked[0];
        let places_differ = self.places_differ(group);
        let mut delayed = None;
        let mut fits = |&index: &usize| {
            let placement = self.place(group, index).ok()?;
            let delays = self.delays(group, rank, &placement);
            delayed = delayed.or(delays);
            delays.is_none().then_some(placement)
        };
        let mut open = ranked.iter().filter_map(&mut fits);
        let mut is_best_slow = false;
        let found = match places_differ {
            false => open.next(),
            true => {
                let open: Vec<Placement> = open.collect();
                let mut of_best = open.iter().filter(|placement| placement.alternative == best);
                is_best_slow = of_best.any(|placement| self.is_slow(placement));
                self.least_costly(group, open)
            }
        };
        let Some(placement) = found else {
            return Err(match delayed {
                Some(blocker) => vec![Reason::WouldDelay { blocker }],
                None => self.reasons_to_wait(group),
            });
        };
        let index = placement.alternative;
        // What is free and slow is nothing to wait for.
        let could_wait = index != best && !is_best_slow;
        if could_wait && self.waiting_pays(group, rank.key, best, &placement) {
            let word = group.spec().alternatives[best].selector.word.clone();
            return Err(vec![Reason::BetterToWait { word }]);
        }
        let spec = group.spec();
        let word = spec.alternatives[index].selector.word.clone();
        let reason = match (spec.alternatives.len(), index == best) {
            (1, _) => Reason::OnlyAlternative { word },
            (_, true) if best == group.ranked[0] => Reason::FastestFinish { word },
            (_, true) => Reason::BestUse { word },
            // The other one is free as well.
            _ if is_best_slow => Reason::FastestFinish { word },
            _ if index == group.preferred => Reason::FirstPossible { word },
            (_, false) => Reason::FreeNow { word },
        };
        Ok((placement, reason))
    }

    /// The alternative that will do for a group, where no other does.
    fn only(&self, group: &Group) -> Option<usize> {
        let fixed = group.bound()?;
        Some(match self.rules.choice {
            Choice::FixedUntil(_) => {
                let order = group.by_cost(self.opportunity_cost.as_ref());
                let possible = order.iter().find(|&&index| group.asks[index].never.is_none());
                *possible.unwrap_or(&order[0])
            }
            _ => fixed,
        })
    }

    /// Whether nothing that would do for any of a footprint fits now.
    pub(super) fn is_unfit(&mut self, queue: &PendingQueue, id: FootprintId) -> bool {
        if self.supply.verdicts.len() <= id.index() {
            self.supply.verdicts.resize(id.index() + 1, Verdict::Unknown);
        }
        match self.supply.verdicts[id.index()] {
            Verdict::Unfit => return true,
            Verdict::Fits { changes } if changes == self.supply.changes => return false,
            Verdict::Fits { .. } | Verdict::Unknown => {}
        }
        let group = queue.one_of(id);
        let fits = match (group.bound(), self.rules.choice) {
            // Which one will do is for each group to say.
            (Some(_), Choice::FixedUntil(_)) => true,
            (Some(fixed), _) => self.has_room(group, fixed),
            (None, _) => (0..group.asks.len()).any(|index| self.has_room(group, index)),
        };
        let changes = self.supply.changes;
        self.supply.verdicts[id.index()] =
            if fits { Verdict::Fits { changes } } else { Verdict::Unfit };
        !fits
    }

    /// The same by what a stage gives for its offers, the best first.
    fn fitting_bid(
        &mut self,
        group: &Group,
        rank: &Rank,
        bids: &[Bid],
    ) -> Result<(Placement, Reason), Vec<Reason>> {
        let apart = self.places_differ(group);
        let mut delayed = None;
        let mut open: Vec<(f64, usize, Placement)> = Vec::new();
        let worthwhile = bids.iter().filter(|bid| bid.value > 0.0);
        let by_bid = worthwhile.map(|bid| (bid.offer.alternative, Some(*bid)));
        // A gang on several classes, or of unknown speed, is better than idle devices.
        let anywhere: Vec<usize> = group.worthwhile(None).collect();
        let anywhere = anywhere.into_iter().map(|index| (index, None));
        for (position, (index, bid)) in by_bid.chain(anywhere).enumerate() {
            let class = bid.map(|bid| bid.offer.class);
            if bid.is_none() && !open.is_empty() {
                break;
            }
            let Ok(placement) = self.place_on(group, index, class) else { continue };
            if let Some(blocker) = self.delays(group, rank, &placement) {
                delayed = Some(blocker);
                continue;
            }
            let surplus =
                bid.map_or(0.0, |bid| bid.surplus(self.part_kept(group, &bid, &placement)));
            open.push((surplus, position, placement));
            if !apart {
                break;
            }
        }
        let first = bids[0].offer.alternative;
        let mut of_first = open.iter().filter(|(_, _, placement)| placement.alternative == first);
        let is_first_slow = of_first.any(|(_, _, placement)| self.is_slow(placement));
        let best = open.into_iter().max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        let Some((_, position, placement)) = best else {
            return Err(match delayed {
                Some(blocker) => vec![Reason::WouldDelay { blocker }],
                None => self.reasons_to_wait(group),
            });
        };
        if group.knows_its_best_size()
            && placement.alternative != first
            && !is_first_slow
            && self.waiting_pays(group, rank.key, first, &placement)
        {
            let word = group.spec().alternatives[first].selector.word.clone();
            return Err(vec![Reason::BetterToWait { word }]);
        }
        let spec = group.spec();
        let word = spec.alternatives[placement.alternative].selector.word.clone();
        let fastest = |bid: &Bid| bids.iter().all(|other| other.offer.rate <= bid.offer.rate);
        let reason = match position {
            _ if spec.alternatives.len() == 1 => Reason::OnlyAlternative { word },
            0 if bids.first().is_some_and(fastest) => Reason::FastestFinish { word },
            0 => Reason::BestUse { word },
            _ if is_first_slow => Reason::FastestFinish { word },
            _ => Reason::FreeNow { word },
        };
        Ok((placement, reason))
    }

    /// Whether the better shape, once its present users end, still finishes before the free one.
    fn waiting_pays(&self, group: &Group, key: StageKey, best: usize, free: &Placement) -> bool {
        if self.bidding.is_none() {
            return false;
        }
        let (_, spec, stage) = self.view.state.stage(key);
        let Some(left) = steps_left(spec, stage) else { return false };
        let (fast, slow) = (group.span(best, left), self.span_on(group, free, left));
        let (Some(fast), Some(slow)) = (fast, slow) else { return false };
        if fast >= slow {
            return false;
        }
        let alternative = &group.spec().alternatives[best];
        // For those who wait for the same before it too.
        let wanted = alternative.count + self.supply.ahead;
        let wait = self.ends().until_free(alternative, wanted, Unknown::Never);
        let price = self.opportunity_cost.as_ref().map_or(1.0, OpportunityCost::price_of_waiting);
        wait.is_some_and(|wait| price * wait.as_seconds() + fast.as_seconds() < slow.as_seconds())
    }

    /// Whether an alternative may be faster at one place than at another.
    fn places_differ(&self, group: &Group) -> bool {
        group.spec().planned.differ() || self.view.state.slow_devices().next().is_some()
    }

    fn is_slow(&self, placement: &Placement) -> bool {
        self.view.state.pace_of(placement) < Micro::ONE
    }

    /// The part of the speed of an offer that is left where its gang really stands.
    fn part_kept(&self, group: &Group, bid: &Bid, placement: &Placement) -> f64 {
        let (state, spec) = (self.view.state, group.spec());
        let rate = offer_rate(self.view, spec, &bid.offer, state.locality(spec, placement));
        rate / bid.offer.rate * state.pace_of(placement).as_f64()
    }

    /// Of placements that are all free, the best first, the one that costs all least where it
    /// really stands; of equals the one whose ranks stand closer together.
    fn least_costly(&self, group: &Group, open: Vec<Placement>) -> Option<Placement> {
        let cost = |placement: &Placement| {
            let shape = self.shape_on(group, placement);
            let cost = |shape: Shape| {
                self.opportunity_cost.as_ref().map_or(1.0 / shape.rate, |c| c.cost(shape))
            };
            let near = self.view.state.locality(group.spec(), placement).within;
            (shape.map_or(f64::INFINITY, cost), near)
        };
        let costed = open.into_iter().map(|placement| (cost(&placement), placement));
        let least =
            costed.min_by(|((a, near), _), ((b, far), _)| a.total_cmp(b).then(near.cmp(far)));
        least.map(|(_, placement)| placement)
    }

    /// The shape of a placement where it really stands.
    fn shape_on(&self, group: &Group, placement: &Placement) -> Option<Shape> {
        let (state, spec) = (self.view.state, group.spec());
        let locality = state.locality(spec, placement);
        let shape = shape(self.view, spec, placement.alternative, locality)?;
        Some(Shape { rate: shape.rate * state.pace_of(placement).as_f64(), ..shape })
    }

    /// How long so many steps take on a placement.
    pub(super) fn span_on(
        &self,
        group: &Group,
        placement: &Placement,
        steps: u64,
    ) -> Option<Millis> {
        let is_best = self.view.state.locality(group.spec(), placement) == Locality::BEST;
        match is_best && !self.is_slow(placement) {
            true => group.span(placement.alternative, steps),
            false => self.shape_on(group, placement).map(|shape| shape.span(steps)),
        }
    }

    /// One reason an alternative, and that the others are far too slow where some are, or that only
    /// one will do.
    pub(super) fn reasons_to_wait(&mut self, group: &Group) -> Vec<Reason> {
        let mut reasons = self.reasons_why_not(group);
        if let Some(fixed) = self.only(group) {
            let word = group.spec().alternatives[fixed].selector.word.clone();
            reasons.push(Reason::FixedAtSubmission { word });
        } else if reasons.len() < group.asks.len() {
            let word = group.spec().alternatives[group.ranked[0]].selector.word.clone();
            reasons.push(Reason::BetterToWait { word });
        }
        reasons
    }

    /// One reason an alternative, telling *never* from *not now*.
    fn reasons_why_not(&mut self, group: &Group) -> Vec<Reason> {
        let why = |(index, ask): (usize, &Arc<Ask>)| match &ask.never {
            Some(never) => Some(never.clone()),
            None => self.place(group, index).err(),
        };
        group.asks.iter().enumerate().filter_map(why).collect()
    }

    /// Whether an alternative of a group fits now.
    fn has_room(&mut self, group: &Group, index: usize) -> bool {
        let ask = &group.asks[index];
        if self.supply.unfit.contains_key(&(ask.id, None)) {
            return false;
        }
        // Whether a tenant may have it depends on where it is.
        self.supply.tenants.is_none()
            && fits_one_node(&self.supply.pool, group.spec(), index, &ask.accepted)
            || self.place(group, index).is_ok()
    }

    /// Where an alternative of a group fits now. The pool only shrinks while the queue is looked
    /// at, so that what did not fit once need not be tried again.
    fn place(&mut self, group: &Group, index: usize) -> Result<Placement, Reason> {
        self.place_on(group, index, None)
    }

    /// The same on devices of one class, if one is named.
    fn place_on(
        &mut self,
        group: &Group,
        index: usize,
        class: Option<usize>,
    ) -> Result<Placement, Reason> {
        let ask = &group.asks[index];
        if let Some(reason) = self.supply.unfit.get(&(ask.id, class)) {
            return Err(reason.clone());
        }
        let found = self.place_ask(group, index, class);
        if let Err(reason) = &found {
            self.supply.unfit.insert((ask.id, class), reason.clone());
        }
        if class.is_some() {
            let refused = |placement| self.refusal(group.tenant(), group.spec(), placement);
            return match found.as_ref().ok().and_then(refused) {
                Some(reason) => Err(reason),
                None => found,
            };
        }
        let found = found?;
        let refused = self.refusal(group.tenant(), group.spec(), &found);
        let Some(reason) = refused else { return Ok(found) };
        // Another class that will do may be open to its tenant.
        let classes = 0..self.view.state.topology().classes.len();
        let mut open = classes.filter_map(|class| {
            let found = self.place_ask(group, index, Some(class)).ok()?;
            let refused = self.refusal(group.tenant(), group.spec(), &found);
            refused.is_none().then_some(found)
        });
        open.next().ok_or(reason)
    }

    /// Where an alternative of a group fits, on devices of one class if one is named.
    fn place_ask(
        &self,
        group: &Group,
        index: usize,
        class: Option<usize>,
    ) -> Result<Placement, Reason> {
        let ask = &group.asks[index];
        let accepted = class.map_or(Some(&ask.accepted), |class| ask.on_class(class));
        match accepted {
            Some(accepted) => place_among(&self.supply.pool, group.spec(), index, accepted),
            None => {
                let Alternative { selector, count, .. } = &group.spec().alternatives[index];
                Err(Reason::NotEnough { word: selector.word.clone(), need: *count })
            }
        }
    }

    /// Why a tenant may not have a placement that is free for a stage.
    fn refusal(&self, tenant: &Name, spec: &StageSpec, placement: &Placement) -> Option<Reason> {
        self.refusal_of(self.supply.tenants.as_ref()?, tenant, spec, placement)
    }

    fn refusal_of(
        &self,
        tenants: &Tenants<'_>,
        tenant: &Name,
        spec: &StageSpec,
        placement: &Placement,
    ) -> Option<Reason> {
        // What is never taken back must not be lent.
        let lends = self.rules.preempts == Preempts::ForHigherPriority;
        let kept = || tenants.kept_for_others(tenant, placement).filter(|_| !lends);
        tenants.refusal(tenant, spec.preemptible, placement).or_else(kept)
    }

    pub(super) fn may_have(&self, key: StageKey, placement: &Placement) -> bool {
        let (job, spec, _) = self.view.state.stage(key);
        self.refusal(&job.spec.tenant, spec, placement).is_none()
    }

    /// The same for a placement that is waited for until leases are gone that stop already.
    pub(super) fn may_have_once_stopped(&self, key: StageKey, placement: &Placement) -> bool {
        let (job, spec, _) = self.view.state.stage(key);
        self.supply.tenants.as_ref().is_none_or(|tenants| {
            let later = tenants.once_stopped();
            self.refusal_of(&later, &job.spec.tenant, spec, placement).is_none()
        })
    }

    /// Uses a placement for a stage, or keeps it for it.
    pub(super) fn take(&mut self, key: StageKey, placement: &Placement) {
        self.supply.take(self.view, key, placement);
    }

    pub(super) fn give_back(&mut self, key: StageKey, placement: &Placement) {
        self.supply.give_back(self.view, key, placement);
        self.told.spared.clear();
    }

    /// Something becomes free: what did not fit may do so now.
    pub(super) fn widen(&mut self) {
        self.supply.widen();
        self.told.spared.clear();
    }

    /// Where one stands of those who wait: by what a device brings to it, where there is a market,
    /// and where tenants have quotas, among those.
    pub(super) fn precedence(&mut self, queue: &PendingQueue, head: &Head) -> Precedence {
        let rank = &head.rank;
        let density = match self.bidding.is_some() && !self.is_unfit(queue, head.footprint) {
            true => self.density(queue.group(head.group), rank),
            // Among those for whom nothing is free it does not matter who brings most.
            false => 0.0,
        };
        let Some(tenants) =
            self.supply.tenants.as_ref().filter(|_| self.rules.order != Order::Submission)
        else {
            return Precedence::of(rank, density);
        };
        let group = queue.group(head.group);
        let owns =
            |(class, units): (usize, u32)| tenants.owns(group.tenant(), class, Share::units(units));
        let quota = match group.by_class(self.view.state).any(owns) {
            true => Quota::Own,
            false => Quota::Borrowed,
        };
        Precedence::among_tenants(rank, quota, tenants.fair_share(group.tenant()), density)
    }

    /// What a device brings to a stage where it brings most; who has risen by waiting is not
    /// weighed any more.
    fn density(&mut self, group: &Group, rank: &Rank) -> f64 {
        if rank.level() > group.priority() as u64 {
            return f64::INFINITY;
        }
        let view = self.view;
        self.bidding.as_mut().map_or(0.0, |bidding| bidding.density(view, rank.key))
    }
}
