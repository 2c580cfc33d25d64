//! The queue of waiting stages, kept between decisions: sorted by rank, in groups that ask for the
//! same, and those in footprints between which no device can tell. If one of a footprint does not
//! fit, none does, so a decision costs what changed and how many groups there are, not how many
//! wait.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use het_core::{Millis, Quotas, Reason, StageKey, State, Ticket, Time};

use super::footprint::{Footprint, Footprints};
use super::group::{FootprintId, Group, GroupId, Head, QuotaOf, Request};
use super::order::{Rank, rank};
use crate::View;
use crate::market::{Book, Work};
use crate::placement::{Asks, Expected};
use crate::rules::{Choice, Rules};
use crate::speed::steps_left;

/// Of each group so many of the first and of the last are on the shortlist, and so many stages in
/// all, about.
const FIRST: usize = 32;
const LAST: usize = 4;
const SHORTLIST_MAX: usize = 4_096;

/// Everybody who waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingQueue {
    /// Everybody up to this ticket has been filed.
    filed_until: Ticket,
    /// So many of whom had left by then.
    departures: u64,
    /// Who was told to start, and may have left by now.
    pub to_start: BTreeSet<StageKey>,
    /// What tenants may have; where that is anything, groups are of one tenant each.
    quotas: Arc<Quotas>,
    /// Of the rates that ranks were made with.
    rates_revision: u64,
    groups: BTreeMap<GroupId, Group>,
    /// The first of every group.
    heads: BTreeMap<Rank, Head>,
    asks: Asks,
    footprints: Footprints,
    by_request: BTreeMap<Request, GroupId>,
    next_group: GroupId,
    filed: BTreeMap<StageKey, Filed>,
    /// What they ask for.
    pub expected: Expected,
    /// When the clock alone changes somebody's place.
    changes: BTreeSet<(Time, StageKey)>,
    /// Those who have to be told why they wait, whatever their group was told.
    pub untold: BTreeSet<StageKey>,
    /// What groups were told last that were told something else than all of their footprint.
    told: BTreeMap<GroupId, Vec<Reason>>,
}

/// Where a stage stands in the queue.
#[derive(Debug, Clone, Copy)]
struct Filed {
    group: GroupId,
    rank: Rank,
    changes: Option<Time>,
    /// That it has to go, as far as is known.
    steps: u64,
}

impl PendingQueue {
    /// Files who came since the last round, and those whose place time or new rates have changed,
    /// and strikes off who left.
    pub fn update(&mut self, rules: &Rules, view: &View<'_>) {
        if !Arc::ptr_eq(&self.quotas, view.state.quotas()) {
            *self = Self {
                quotas: Arc::clone(view.state.quotas()),
                departures: view.state.departures(),
                ..Self::default()
            };
        }
        let mut left = view.state.departures() - self.departures;
        self.departures = view.state.departures();
        for (ticket, key) in view.state.waiting_since(self.filed_until) {
            left = left.saturating_sub(u64::from(self.remove(key)));
            self.file(rules, view, key);
            self.filed_until = ticket;
        }
        self.strike_off(view, left);
        while let Some(&(_, key)) = self.changes.first().filter(|(at, _)| *at <= view.now) {
            self.remove(key);
            self.file(rules, view, key);
        }
        if self.rates_revision != view.rates.revision() {
            let since = self.rates_revision;
            self.rates_revision = view.rates.revision();
            let concerned = self.groups.values().filter(|group| {
                view.rates.revision_of(&group.request.profile).is_some_and(|last| last > since)
            });
            let keys: Vec<StageKey> =
                concerned.flat_map(|group| group.queue.iter().map(|rank| rank.key)).collect();
            // All leave first, so that their group is made anew.
            for &key in &keys {
                self.remove(key);
            }
            keys.iter().for_each(|&key| self.file(rules, view, key));
        }
    }

    /// Removes so many who wait no more: mostly those who were to start, else whoever it was.
    fn strike_off(&mut self, view: &View<'_>, left: u64) {
        let mut left = left;
        for key in std::mem::take(&mut self.to_start) {
            if view.state.is_waiting(key) {
                self.to_start.insert(key);
            } else {
                left = left.saturating_sub(u64::from(self.remove(key)));
            }
        }
        if left > 0 {
            let filed: Vec<StageKey> = self.filed.keys().copied().collect();
            for key in filed.into_iter().filter(|key| !view.state.is_waiting(*key)) {
                self.remove(key);
            }
        }
    }

    /// The first of every group, by rank.
    pub fn heads(&self) -> impl Iterator<Item = Head> + '_ {
        self.heads.values().copied()
    }

    /// Those who are most likely to get something if everything were handed out anew: of each group
    /// the first, and the last, who may have the longest to go.
    pub fn shortlist(&self, state: &State) -> Vec<StageKey> {
        let units = state.topology().units_by_class();
        let mut listed = BTreeSet::new();
        for group in self.by_request.values().map(|id| &self.groups[id]) {
            let most: u32 = group.classes.iter().map(|&class| units[class]).sum();
            let smallest = group.spec().alternatives.iter().map(|shape| shape.count).min();
            let room = (most / smallest.unwrap_or(1).max(1)) as usize;
            listed.extend(group.queue.iter().take(room.min(FIRST)).map(|rank| rank.key));
            listed.extend(group.queue.iter().rev().take(LAST).map(|rank| rank.key));
            if listed.len() > SHORTLIST_MAX {
                break;
            }
        }
        listed.into_iter().collect()
    }

    /// The work of those who are not `listed`, group by group; `book` knows the offers of those who
    /// are.
    pub fn rest(&self, book: &Book, listed: &[StageKey]) -> Vec<Work> {
        let mut listed_steps: BTreeMap<GroupId, u64> = BTreeMap::new();
        let mut firsts: Vec<(GroupId, StageKey)> = Vec::new();
        for &key in listed {
            let Some(filed) = self.filed.get(&key) else { continue };
            let steps = listed_steps.entry(filed.group).or_insert_with(|| {
                firsts.push((filed.group, key));
                0
            });
            *steps += filed.steps;
        }
        let rows = firsts.into_iter().filter_map(|(id, key)| {
            let steps = self.groups[&id].steps.saturating_sub(listed_steps[&id]);
            let offers = Arc::clone(book.look_up(key)?);
            (steps > 0 && !offers.is_empty()).then_some(Work { steps: steps as f64, offers })
        });
        rows.collect()
    }

    /// Whether it matters who is looked at first, or what devices they choose, of those footprints
    /// that `may_fit`.
    pub fn has_choice(&self, mut may_fit: impl FnMut(&Self, FootprintId) -> bool) -> bool {
        // All are asked, so that the answers do not depend on how they are numbered.
        let rows = self.footprints.iter().filter(|(id, _)| may_fit(self, *id));
        let fitting: Vec<&Footprint> = rows.map(|(_, footprint)| footprint).collect();
        match *fitting {
            [] => false,
            [only] => {
                let one = &self.groups[&only.one()];
                only.groups.len() > 1 || one.classes.len() > 1 || one.asks.len() > 1
            }
            _ => true,
        }
    }

    /// A group of a footprint: they differ in nothing that decides whether they fit.
    pub fn one_of(&self, footprint: FootprintId) -> &Group {
        &self.groups[&self.footprints.get(footprint).one()]
    }

    /// Whoever waits next in a group, after one that was looked at.
    pub fn next(&self, id: GroupId, after: Rank) -> Option<Rank> {
        let later = (Bound::Excluded(after), Bound::Unbounded);
        self.groups.get(&id)?.queue.range(later).next().copied()
    }

    pub fn group(&self, id: GroupId) -> &Group {
        &self.groups[&id]
    }

    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.keys().copied()
    }

    /// What the members of a group were told last.
    pub fn told(&self, id: GroupId) -> &[Reason] {
        let of_all = || &self.footprints.get(self.groups[&id].footprint).told;
        self.told.get(&id).unwrap_or_else(of_all)
    }

    /// Says something to the members of one group; those who have not heard it before are added to
    /// `waits`.
    pub fn tell(&mut self, id: GroupId, news: Vec<Reason>, waits: &mut Vec<(Rank, Vec<Reason>)>) {
        if self.told(id) != news {
            waits.extend(self.groups[&id].members().map(|rank| (rank, news.clone())));
            self.told.insert(id, news);
        }
    }

    /// Says something to everybody of a footprint, but for the groups of which `told_apart` is
    /// true.
    pub fn tell_all(
        &mut self,
        id: FootprintId,
        news: Vec<Reason>,
        told_apart: impl Fn(GroupId) -> bool,
        waits: &mut Vec<(Rank, Vec<Reason>)>,
    ) {
        let footprint = self.footprints.get_mut(id);
        let is_new = footprint.told != news;
        if !is_new && self.told.is_empty() {
            return;
        }
        let before = std::mem::replace(&mut footprint.told, news);
        for &group in &footprint.groups {
            if told_apart(group) {
                // It was told what all were told until now.
                if is_new && !self.told.contains_key(&group) {
                    self.told.insert(group, before.clone());
                }
            } else {
                let last = self.told.remove(&group);
                if last.map_or(is_new, |last| last != footprint.told) {
                    let members = self.groups[&group].members();
                    waits.extend(members.map(|rank| (rank, footprint.told.clone())));
                }
            }
        }
    }

    /// Where a waiting stage stands.
    pub fn place_of(&self, key: StageKey) -> Option<(Rank, GroupId)> {
        self.filed.get(&key).map(|filed| (filed.rank, filed.group))
    }

    fn file(&mut self, rules: &Rules, view: &View<'_>, key: StageKey) {
        let (job, spec, stage) = view.state.stage(key);
        let since = job.waiting_since(key.stage);
        let freed = match rules.choice {
            Choice::FixedUntil(patience) => Some(since + patience),
            Choice::Fixed | Choice::FreeNow | Choice::ByPrice => None,
        };
        let freed = freed.filter(|at| *at > view.now);
        let bound = rules.choice == Choice::Fixed || freed.is_some();
        let left = steps_left(spec, stage);
        let quota_of = (!self.quotas.is_empty())
            .then(|| QuotaOf { tenant: job.spec.tenant.clone(), preemptible: spec.preemptible });
        let request = Request::of(spec, job.priority(), left.is_some(), bound, quota_of);
        let id = self.group_of(view, request, key);
        let group = self.groups.get_mut(&id).expect("it is there, or was made just now");
        let device_time =
            left.and_then(|left| group.device_time(spec, left)).unwrap_or(Millis(u64::MAX));
        let (rank, rises) = rank(view, rules.order, key, device_time);
        let first = group.queue.first().copied();
        group.queue.insert(rank);
        if first.is_none_or(|first| rank < first) {
            if let Some(first) = first {
                self.heads.remove(&first);
            }
            self.heads.insert(rank, group.head(rank));
        }
        let steps = left.unwrap_or(0);
        group.steps += steps;
        self.expected.add(&group.part);
        let changes = [freed, rises].into_iter().flatten().min();
        self.changes.extend(changes.map(|at| (at, key)));
        self.filed.insert(key, Filed { group: id, rank, changes, steps });
        self.untold.insert(key);
    }

    fn group_of(&mut self, view: &View<'_>, request: Request, key: StageKey) -> GroupId {
        if let Some(id) = self.by_request.get(&request) {
            return *id;
        }
        let id = self.next_group;
        self.next_group = id.next();
        self.by_request.insert(request.clone(), id);
        let mut group = Group::new(view, &mut self.asks, (id, request), key);
        group.footprint = self.footprints.join(id, &group);
        self.groups.insert(id, group);
        id
    }

    /// Whether it was there.
    fn remove(&mut self, key: StageKey) -> bool {
        let Some(filed) = self.filed.remove(&key) else { return false };
        if let Some(at) = filed.changes {
            self.changes.remove(&(at, key));
        }
        let Some(group) = self.groups.get_mut(&filed.group) else { return false };
        group.queue.remove(&filed.rank);
        group.steps -= filed.steps;
        self.expected.remove(&group.part);
        if self.heads.remove(&filed.rank).is_some()
            && let Some(first) = group.queue.first()
        {
            self.heads.insert(*first, group.head(*first));
        }
        if group.queue.is_empty()
            && let Some(group) = self.groups.remove(&filed.group)
        {
            self.by_request.remove(&group.request);
            self.footprints.leave(filed.group, &group);
            self.told.remove(&filed.group);
        }
        true
    }
}
