//! Who wants devices, as planners see it that share out whole device classes.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    Job, Lease, LeaseId, Locality, Millis, Name, Phase, Priority, Quotas, Share, ShareMillis,
    Stage, StageKey, StageSpec, Time,
};

use het_perf::{Gang, RateSource, expected_loss};
use serde::{Deserialize, Serialize};

use crate::placement::{Words, on_class, words};
use crate::speed::{steps_kept, steps_made};
use crate::{Pool, View};

/// Part of the declared work that a stage is taken to have left once it has done more than all.
const OVERRUN: f64 = 0.05;

/// Running time ahead of a stage about which nothing is known; afterwards it is taken to need as
/// long again as it has had, which is right for the heavy-tailed durations of real clusters
/// (least attained service: Nuyens and Wierman 2008, "The foreground-background queue").
const UNKNOWN_WORK: Millis = Millis::seconds(600);

/// The most that unsaved work makes devices worth to whoever runs on them, by their worth without.
const UNSAVED_MAX: f64 = 100.0;

/// Everybody who runs or waits, and what there is to share.
#[derive(Debug, Clone)]
pub(crate) struct Demands {
    /// How many run or wait, stages that are not among these included.
    pub present: usize,
    /// By stage key.
    pub stages: Vec<Demand>,
    /// Those who cannot be planned for: no class alone has enough units.
    pub spanning: Vec<StageKey>,
    /// Whole units in service, by device class.
    pub capacity: Vec<u32>,
    /// Ids of the device classes.
    pub classes: Vec<Name>,
    pub quotas: Arc<Quotas>,
}

/// A stage that runs or waits for nothing but devices.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    pub key: StageKey,
    pub tenant: Name,
    pub priority: Priority,
    pub submitted: Time,
    /// Since when it could have run: those before it in its job had ended.
    pub ready: Time,
    /// Its lease and the offer it runs on.
    pub running: Option<(LeaseId, usize)>,
    /// A round leaves it where it is: it cannot save, its last stop saved nothing, or it is not
    /// preemptible now.
    pub stuck: bool,
    /// Work that a stop now is expected to lose.
    pub lost: Millis,
    /// Suspending it would only waste work: it has not yet worked for as long as its start took.
    pub unripe: bool,
    /// Shapes that the cluster could run; none has a rate of zero.
    pub offers: Arc<[Offer]>,
    /// Somebody said how many steps there are, and how fast they go.
    pub known: bool,
    /// Steps to go, at least a little.
    pub remaining: f64,
    /// Steps in all, as declared or assumed.
    pub total: f64,
    /// Device-seconds that it has held.
    pub attained_device_s: f64,
    /// From a start to the first step.
    pub restart: Millis,
    /// The same, where anybody has declared or measured it.
    pub restart_known: Option<Millis>,
    /// It is starting just now.
    pub starting: bool,
    /// Times that it has started.
    pub attempts: u32,
}

/// One shape of a request on one device class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Index into the alternatives of the stage.
    pub alternative: usize,
    /// Index into [`het_core::Topology::classes`].
    pub class: usize,
    pub units: u32,
    /// Steps per second.
    #[serde(with = "crate::memory::exact")]
    pub rate: f64,
    /// That rate is a model's word about more devices than were ever observed.
    pub extrapolated: bool,
}

impl Demand {
    /// The offer with the highest rate, the first of equals.
    pub fn fastest(&self) -> Offer {
        let better = |best: Offer, next: &Offer| if next.rate > best.rate { *next } else { best };
        self.offers.iter().skip(1).fold(self.offers[0], better)
    }

    /// The offer that it must be left on.
    pub fn pinned(&self) -> Option<usize> {
        self.running.filter(|_| self.stuck || self.unripe).map(|(_, offer)| offer)
    }

    /// It may have more or fewer devices.
    pub fn has_sizes(&self) -> bool {
        self.offers.iter().any(|offer| offer.units != self.offers[0].units)
    }

    /// Part of its life that it would not have spent on restarts if it were restarted now.
    pub fn kept_after_a_restart(&self, now: Time) -> f64 {
        let age = now.since(self.submitted).as_seconds();
        let pause = self.restart.as_seconds();
        if age < pause {
            return 1.0;
        }
        let lost = f64::from(self.attempts.saturating_sub(1)) * pause;
        ((age - lost) / (age + pause)).max(0.0)
    }

    /// By how much unsaved work makes an offer worth more where it runs, and less elsewhere. Of two
    /// that want the same devices the one that runs should go on unless its rest is longer than
    /// that of the other and what it would lose together: as if its rest were shorter by that.
    pub fn weight_of_unsaved(&self, offer: usize) -> f64 {
        let Some((_, here)) = self.running.filter(|_| self.lost > Millis::ZERO) else { return 1.0 };
        let (left, lost) = (self.seconds_on(&self.offers[here]), self.lost.as_seconds());
        match offer == here {
            true => (left / (left - lost).max(left / UNSAVED_MAX)).max(1.0),
            false => left / (left + lost),
        }
    }

    /// Seconds to the end on an offer.
    pub fn seconds_on(&self, offer: &Offer) -> f64 {
        self.remaining / offer.rate
    }
}

impl Demands {
    /// Everybody in `view`.
    pub fn survey(view: &View<'_>, book: &mut Book) -> Self {
        Self::of(view, book, view.state.waiting())
    }

    /// Everybody who runs, and those who wait among `waiting`.
    pub fn of(view: &View<'_>, book: &mut Book, waiting: impl Iterator<Item = StageKey>) -> Self {
        book.open(view);
        let running = view.state.leases().iter().filter_map(|(&id, lease)| {
            let stopping = lease.phase.is_stopping();
            (!stopping).then_some((lease.stage, Some((id, lease))))
        });
        let mut everybody: Vec<_> = running.chain(waiting.map(|key| (key, None))).collect();
        everybody.sort_unstable_by_key(|(key, _)| *key);
        let mut stages: Vec<Demand> = Vec::with_capacity(everybody.len());
        let mut spanning: Vec<StageKey> = Vec::new();
        for (key, lease) in everybody {
            let demand = demand(view, book, key, lease);
            if demand.offers.is_empty() {
                spanning.push(key);
            } else {
                stages.push(demand);
            }
        }
        book.close();
        let classes = view.state.topology().classes.iter().map(|class| class.id.clone()).collect();
        Self {
            present: view.state.leases().len() + view.state.waiting_count(),
            capacity: capacity(view),
            stages,
            spanning,
            classes,
            quotas: Arc::clone(view.state.quotas()),
        }
    }

    /// Steps per second on an equal part of every class.
    pub fn equal_part_rate(&self, demand: &Demand) -> f64 {
        equal_part_rate(&self.capacity, demand)
    }
}

/// Steps per second on an equal part of every class.
fn equal_part_rate(capacity: &[u32], demand: &Demand) -> f64 {
    let everything: f64 = capacity.iter().map(|&units| f64::from(units)).sum();
    let part = |class: usize| f64::from(capacity[class]) / everything;
    demand.offers.iter().map(|offer| offer.rate * part(offer.class)).sum()
}

/// What a device brings to a stage where it brings most.
pub(crate) fn density(demand: &Demand, values: &[f64]) -> f64 {
    let per_unit = demand.offers.iter().zip(values);
    per_unit.map(|(offer, value)| value / f64::from(offer.units)).fold(0.0, f64::max)
}

/// Seconds for all of a stage on an equal part of the cluster, shared by everybody `present`.
pub(crate) fn alone_seconds(capacity: &[u32], present: usize, demand: &Demand) -> f64 {
    let everything: f64 = capacity.iter().map(|&units| f64::from(units)).sum();
    let units = f64::from(demand.offers[0].units);
    let part = (everything / units / present as f64).min(1.0);
    demand.total / (equal_part_rate(capacity, demand) * part)
}

/// Whole units of each class on devices that are up.
fn capacity(view: &View<'_>) -> Vec<u32> {
    let topology = view.state.topology();
    let mut units = vec![0; topology.classes.len()];
    for (device, service) in topology.devices.iter().zip(view.state.service()) {
        units[device.class] += service.whole_units();
    }
    units
}

pub(crate) fn demand(
    view: &View<'_>,
    book: &mut Book,
    key: StageKey,
    lease: Option<(LeaseId, &Lease)>,
) -> Demand {
    let (job, spec, stage) = view.state.stage(key);
    let (rated, offers) = book.offers(view, key, spec);
    let total = spec.steps.or(stage.progress.total);
    let at = lease.map(|(id, lease)| (id, current(view, &offers, lease)));
    let rate = at.and_then(|(_, offer)| Some(offers[offer?])).map_or(0.0, |offer| {
        let placement = lease.map(|(_, lease)| &lease.placement);
        let locality = placement.map_or(Locality::BEST, |at| view.state.locality(spec, at));
        offer_rate(view, spec, &offer, locality)
    });

    let restart = view.rates.restart(spec);
    let attained = attained(view, stage, lease.map(|(_, lease)| lease));
    let known = total.is_some() && rated;
    let (total, remaining) = match total.filter(|_| rated) {
        Some(total) => {
            let total = total as f64;
            let done = match lease {
                Some((_, lease)) => steps_made(view, stage, lease, rate),
                None => steps_kept(stage),
            };
            (total, (total - done).max(total * OVERRUN))
        }
        None => {
            let units = stage.placement.as_ref().map_or(1, |placement| placement.units());
            let had = attained.device_seconds() / f64::from(units.max(1));
            let had = had.max(UNKNOWN_WORK.as_seconds());
            let fastest = offers.iter().map(|offer| offer.rate).fold(0.0, f64::max);
            (2.0 * had * fastest, had * fastest)
        }
    };
    Demand {
        key,
        tenant: job.spec.tenant.clone(),
        priority: job.priority(),
        submitted: job.eligible_since(),
        ready: ready(job, spec),
        running: at.and_then(|(id, offer)| Some((id, offer?))),
        stuck: lease.is_some_and(|(_, lease)| stuck(view, spec, stage, lease)),
        lost: lease.map_or(Millis::ZERO, |(_, lease)| {
            let saves = spec.saves(lease.placement.alternative);
            expected_loss(saves, stage, lease.since, view.now)
        }),
        unripe: lease.is_some_and(|(_, lease)| unripe(view, lease, restart)),
        offers,
        known,
        remaining,
        total,
        attained_device_s: attained.device_seconds(),
        restart,
        restart_known: view.rates.restart_known(&spec.profile),
        starting: lease.is_some_and(|(_, lease)| lease.phase == Phase::Starting),
        attempts: stage.attempts,
    }
}

/// Since when a stage could have run, as far as its job is concerned.
fn ready(job: &Job, spec: &StageSpec) -> Time {
    let before = spec.after.iter().filter_map(|stage| job.stages[stage.index()].ended);
    before.fold(job.eligible_since(), Time::max)
}

/// Steps per second of an offer whose gang stands so.
pub(crate) fn offer_rate(
    view: &View<'_>,
    spec: &StageSpec,
    offer: &Offer,
    locality: Locality,
) -> f64 {
    let class = &view.state.topology().classes[offer.class];
    let gang = Gang { class, units: offer.units, locality };
    match locality {
        Locality::BEST => offer.rate,
        _ => view.rates.rate(&spec.profile, &spec.planned, gang).map_or(offer.rate, |(r, _)| r),
    }
}

fn stuck(view: &View<'_>, spec: &StageSpec, stage: &Stage, lease: &Lease) -> bool {
    !spec.saves(lease.placement.alternative)
        || stage.fruitless > 0
        || !spec.preemptible.allows(lease.since, view.now)
}

fn unripe(view: &View<'_>, lease: &Lease, restart: Millis) -> bool {
    match lease.phase {
        Phase::Starting => true,
        Phase::Running { since } => view.now.since(since) < restart,
        Phase::Stopping { .. } => false,
    }
}

/// The offers of everybody, kept as long as speeds and what is in service stay the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Book {
    service: Vec<Share>,
    kept: BTreeMap<StageKey, Kept>,
    feasible: BTreeMap<Request, bool>,
    shared: BTreeMap<Vec<OfferWord>, Arc<[Offer]>>,
    /// Of the survey that is being made.
    survey: u64,
}

/// An [`Offer`] that can be sorted.
type OfferWord = (usize, usize, u32, u64, bool);

#[derive(Debug, Clone)]
struct Kept {
    /// Of the rates of the profile.
    revision: Option<u64>,
    survey: u64,
    rated: bool,
    offers: Arc<[Offer]>,
}

impl Book {
    /// The offers of a stage that were asked for before.
    pub fn look_up(&self, key: StageKey) -> Option<&Arc<[Offer]>> {
        self.kept.get(&key).map(|kept| &kept.offers)
    }

    /// Forgets what no longer holds.
    pub fn open(&mut self, view: &View<'_>) {
        self.survey += 1;
        if self.service != view.state.service() {
            self.service = view.state.service().to_vec();
            self.kept.clear();
            self.feasible.clear();
        }
    }

    /// One copy of what many have alike.
    fn shared(&mut self, offers: Vec<Offer>) -> Arc<[Offer]> {
        let word = |offer: &Offer| {
            let Offer { alternative, class, units, rate, extrapolated } = *offer;
            (alternative, class, units, rate.to_bits(), extrapolated)
        };
        let words = offers.iter().map(word).collect();
        Arc::clone(self.shared.entry(words).or_insert_with(|| offers.into()))
    }

    /// Forgets whoever has not been asked for since it was opened.
    fn close(&mut self) {
        let survey = self.survey;
        self.kept.retain(|_, kept| kept.survey == survey);
        self.shared.retain(|_, offers| Arc::strong_count(offers) > 1);
    }

    fn offers(&mut self, view: &View<'_>, key: StageKey, spec: &StageSpec) -> (bool, Arc<[Offer]>) {
        let revision = view.rates.revision_of(&spec.profile);
        if let Some(kept) = self.kept.get_mut(&key).filter(|kept| kept.revision == revision) {
            kept.survey = self.survey;
            return (kept.rated, Arc::clone(&kept.offers));
        }
        let mut offers = offers(view, &mut self.feasible, key);
        let rated = offers.iter().any(|offer| offer.rate > 0.0);
        if rated {
            offers.retain(|offer| offer.rate > 0.0);
        } else {
            offers.iter_mut().for_each(|offer| offer.rate = 1.0);
        }
        let offers = self.shared(offers);
        let kept = Kept { revision, survey: self.survey, rated, offers: Arc::clone(&offers) };
        self.kept.insert(key, kept);
        (rated, offers)
    }
}

/// What an alternative asks for, and on which class.
type Request = (Words, usize);

/// Whether an alternative could ever run on the devices of one class; alike requests are looked at
/// once.
fn is_feasible(
    view: &View<'_>,
    known: &mut BTreeMap<Request, bool>,
    spec: &StageSpec,
    (alternative, class): (usize, usize),
) -> bool {
    let fits = || on_class(&mut Pool::in_service(view.state), spec, alternative, class).is_ok();
    *known.entry((words(spec, alternative), class)).or_insert_with(fits)
}

/// Every alternative on every class that could run it.
fn offers(view: &View<'_>, feasible: &mut BTreeMap<Request, bool>, key: StageKey) -> Vec<Offer> {
    let topology = view.state.topology();
    let (_, spec, _) = view.state.stage(key);
    let mut found: BTreeMap<(usize, usize), Offer> = BTreeMap::new();
    for (alternative, shape) in spec.alternatives.iter().enumerate() {
        let representatives =
            view.state.index().device_groups.iter().map(|sort| sort.representative);
        for id in representatives.filter(|&id| shape.selector.accepts(topology, id)) {
            let class = topology.device(id).class;
            if is_feasible(view, feasible, spec, (alternative, class)) {
                let (units, locality) = (shape.count, Locality::BEST);
                let gang = Gang { class: &topology.classes[class], units, locality };
                let known = view.rates.rate(&spec.profile, &spec.planned, gang);
                let rate = known.map_or(0.0, |(rate, _)| rate);
                let extrapolated =
                    known.is_some_and(|(_, source)| source == RateSource::Extrapolated);
                let offer = Offer { alternative, class, units: shape.count, rate, extrapolated };
                found.entry((alternative, class)).or_insert(offer);
            }
        }
    }
    found.into_values().collect()
}

/// The offer that a lease runs on.
fn current(view: &View<'_>, offers: &[Offer], lease: &Lease) -> Option<usize> {
    let device = lease.placement.devices().next()?.device;
    let class = view.state.topology().device(device).class;
    let same =
        |offer: &Offer| offer.class == class && offer.alternative == lease.placement.alternative;
    offers.iter().position(same)
}

/// Device time that the stage has held, and holds.
fn attained(view: &View<'_>, stage: &Stage, lease: Option<&Lease>) -> ShareMillis {
    let Some(lease) = lease else { return stage.charged };
    let share: Share = lease.placement.grants().map(|grant| grant.share).sum();
    stage.charged + share.over(view.now.since(lease.since))
}

#[cfg(test)]
impl Demand {
    /// Waits with ten steps to go, and may have one unit of each class at these rates.
    pub fn example(job: u64, tenant: &str, rates: &[f64]) -> Self {
        let offer = |(class, &rate): (usize, &f64)| Offer {
            alternative: class,
            class,
            units: 1,
            rate,
            extrapolated: false,
        };
        Self {
            key: StageKey { job: het_core::JobId(job), stage: het_core::StageIndex(0) },
            tenant: tenant.into(),
            priority: Priority::Normal,
            submitted: Time::ZERO,
            ready: Time::ZERO,
            running: None,
            stuck: false,
            lost: Millis(0),
            unripe: false,
            offers: rates.iter().enumerate().map(offer).collect::<Vec<_>>().into(),
            known: true,
            remaining: 10.0,
            total: 10.0,
            attained_device_s: 0.0,
            restart: Millis(0),
            restart_known: None,
            starting: false,
            attempts: 0,
        }
    }
}
