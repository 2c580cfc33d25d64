//! The line of waiting stages, kept between rounds: sorted by rank, and in groups that ask for the
//! same. If one of a group does not fit, none does, so a round costs what changed and how many
//! groups there are, not how many wait.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use het_core::{
    Bytes, Companions, Domain, JobSpec, Millis, Name, PlannedSpeeds, Priority, Quotas, RankRule,
    Reason, StageIndex, StageKey, StageSpec, State, Ticket, Time,
};

use crate::View;
use crate::asks::{Ask, Asks, Wanted, wanted};
use crate::demand::Book;
use crate::footprint::{Footprint, FootprintId, Footprints};
use crate::market::Work;
use crate::order::{Rank, rank};
use crate::rules::{Choice, Rules};
use crate::speed::steps_left;
use crate::value::WORTHWHILE;
use crate::worth::{Crowd, Shape, shapes};

/// Of each group so many of the first and of the last are on the shortlist, and so many stages in
/// all, about.
const FIRST: usize = 32;
const LAST: usize = 4;
const SHORTLIST_MAX: usize = 4_096;

/// Everybody who waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
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
    /// When the clock alone changes somebody's place.
    changes: BTreeSet<(Time, StageKey)>,
    /// Those who have to be told why they wait, whatever their group was told.
    pub untold: BTreeSet<StageKey>,
    /// What groups were told last that were told something else than all of their footprint.
    told: BTreeMap<GroupId, Vec<Reason>>,
}

/// Number of a group; later ones are higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct GroupId(u64);

/// Where a stage stands in the line.
#[derive(Debug, Clone, Copy)]
struct Filed {
    group: GroupId,
    rank: Rank,
    changes: Option<Time>,
    /// That it has to go, as far as is known.
    steps: u64,
}

/// The first of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head {
    pub rank: Rank,
    pub group: GroupId,
    pub footprint: FootprintId,
    pub priority: Priority,
    pub can_be_passed: bool,
}

/// What makes requests alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    alternatives: Vec<Wanted>,
    companions: (u32, Bytes),
    within: Domain,
    ranks: RankRule,
    /// Speeds and stakes are alike too.
    profile: Name,
    planned: PlannedSpeeds,
    steps_known: bool,
    priority: Priority,
    /// Only the preferred alternative will do.
    bound: bool,
    /// Where tenants have quotas.
    tenant: Option<Name>,
}

/// Stages that ask for the same.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub id: GroupId,
    request: Request,
    pub footprint: FootprintId,
    /// The job of one of them.
    job: Arc<JobSpec>,
    stage: StageIndex,
    /// Alternatives, the fastest first; in file order where nobody says how far there is to go or
    /// how fast they are.
    pub ranked: Vec<usize>,
    /// The alternative that rule and profile name whatever is free: the fastest that the cluster
    /// could ever run.
    pub preferred: usize,
    /// By alternative.
    shapes: Vec<Option<Shape>>,
    pub asks: Vec<Arc<Ask>>,
    /// That any alternative accepts.
    classes: Vec<usize>,
    /// They need several devices at once, or cores or memory beside them, so that others who need
    /// less could slip past them for ever.
    pub can_be_passed: bool,
    queue: BTreeSet<Rank>,
    /// That all of them have to go, as far as is known.
    steps: u64,
}

impl Line {
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
        let tenant = (!self.quotas.is_empty()).then(|| job.spec.tenant.clone());
        let request = Request::of(spec, job.priority(), left.is_some(), bound, tenant);
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
        self.next_group = GroupId(id.0 + 1);
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

impl Request {
    fn of(
        spec: &StageSpec,
        priority: Priority,
        steps_known: bool,
        bound: bool,
        tenant: Option<Name>,
    ) -> Self {
        Self {
            alternatives: spec.alternatives.iter().map(wanted).collect(),
            companions: (spec.companions.cores, spec.companions.memory),
            within: spec.within,
            ranks: spec.ranks,
            profile: spec.profile.clone(),
            planned: spec.planned.clone(),
            steps_known,
            priority,
            bound: bound && spec.alternatives.len() > 1,
            tenant,
        }
    }

    /// Whether speeds say which alternative is best, and not the order of the file.
    fn weighs_speeds(&self) -> bool {
        self.steps_known || !self.planned.is_empty()
    }
}

impl Group {
    fn new(
        view: &View<'_>,
        asks: &mut Asks,
        (id, request): (GroupId, Request),
        key: StageKey,
    ) -> Self {
        let (job, spec, _) = view.state.stage(key);
        let indices = 0..spec.alternatives.len();
        let shapes = shapes(view, spec);
        let mut ranked: Vec<usize> = indices.collect();
        if request.weighs_speeds() {
            let slowness =
                |index: &usize| shapes[*index].map_or(f64::INFINITY, |shape| 1.0 / shape.rate);
            ranked.sort_by(|a, b| slowness(a).total_cmp(&slowness(b)));
        }
        let count = spec.alternatives.len();
        let asks: Vec<Arc<Ask>> =
            (0..count).map(|index| asks.of(view.state, spec, index)).collect();
        let classes: BTreeSet<usize> =
            asks.iter().flat_map(|ask| ask.accepted.classes(view.state)).collect();
        let possible = ranked.iter().copied().find(|&index| asks[index].never.is_none());
        Self {
            preferred: possible.unwrap_or(ranked[0]),
            job: Arc::clone(&job.spec),
            stage: key.stage,
            asks,
            classes: classes.into_iter().collect(),
            can_be_passed: can_be_passed(spec),
            id,
            request,
            footprint: FootprintId::default(),
            ranked,
            shapes,
            queue: BTreeSet::new(),
            steps: 0,
        }
    }

    /// They say how far there is to go, and may have more or fewer devices.
    pub fn has_sizes(&self) -> bool {
        let counts = || self.spec().alternatives.iter().map(|alternative| alternative.count);
        self.request.steps_known && counts().min() != counts().max()
    }

    /// One of them as its head.
    pub fn head(&self, rank: Rank) -> Head {
        let Self { id: group, footprint, can_be_passed, .. } = *self;
        Head { rank, group, footprint, priority: self.priority(), can_be_passed }
    }

    /// What each of them asks for.
    pub fn spec(&self) -> &StageSpec {
        self.job.stage(self.stage)
    }

    pub fn priority(&self) -> Priority {
        self.request.priority
    }

    /// Whose they are, where tenants have quotas.
    pub fn quota_of(&self) -> Option<&Name> {
        self.request.tenant.as_ref()
    }

    /// Whose they are.
    pub fn tenant(&self) -> &Name {
        &self.job.tenant
    }

    /// The only alternative that will do, where the policy binds its stages to one.
    pub fn bound(&self) -> Option<usize> {
        self.request.bound.then_some(self.preferred)
    }

    /// Alternatives, the best first: the fastest, or in a crowd the one that costs all least.
    pub fn by_worth(&self, crowd: Option<&Crowd>) -> Vec<usize> {
        let mut order = self.ranked.clone();
        let choice = order.len() > 1 && self.request.weighs_speeds();
        if let Some(crowd) = crowd.filter(|_| choice) {
            let cost = |index: &usize| self.shapes[*index].map_or(f64::INFINITY, |s| crowd.cost(s));
            order.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        }
        order
    }

    /// Alternatives for which others may be stopped or kept waiting: not those that are far slower
    /// than the fastest.
    pub fn worthwhile(&self, crowd: Option<&Crowd>) -> impl Iterator<Item = usize> + '_ {
        let fastest = self.shapes[self.ranked[0]];
        let worth = move |index: &usize| match (self.shapes[*index], fastest) {
            (Some(shape), Some(fastest)) => shape.rate >= fastest.rate * WORTHWHILE,
            _ => true,
        };
        self.by_worth(crowd).into_iter().filter(worth)
    }

    /// The classes that would do, and how many of each.
    pub fn by_class<'a>(&'a self, state: &'a State) -> impl Iterator<Item = (usize, u32)> + 'a {
        let alternatives = self.spec().alternatives.iter().zip(&self.asks);
        alternatives.flat_map(|(alternative, ask)| {
            ask.accepted.classes(state).map(|class| (class, alternative.count))
        })
    }

    /// The most units that any alternative takes.
    pub fn units(&self) -> u32 {
        self.spec().alternatives.iter().map(|alternative| alternative.count).max().unwrap_or(0)
    }

    pub fn members(&self) -> impl Iterator<Item = Rank> + '_ {
        self.queue.iter().copied()
    }

    /// How long so many steps take on an alternative; `None` if nothing is known about its speed.
    pub fn span(&self, index: usize, steps: u64) -> Option<Millis> {
        self.shapes[index].map(|shape| shape.span(steps))
    }

    /// Least time on one device for so many steps.
    fn device_time(&self, spec: &StageSpec, steps: u64) -> Option<Millis> {
        let alternatives = spec.alternatives.iter().enumerate();
        let times = alternatives.filter_map(|(index, alternative)| {
            let span = self.span(index, steps)?;
            Some(Millis(span.0.saturating_mul(u64::from(alternative.count))))
        });
        times.min()
    }
}

fn can_be_passed(spec: &StageSpec) -> bool {
    let several = spec.alternatives.iter().all(|alternative| alternative.count > 1);
    several || spec.companions != Companions::default()
}
