//! Steps per second of a profile on a device class, from the best source there is.

mod learned;
mod times;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use het_core::{
    DeviceClass, Domain, HostResources, Locality, Measured, Millis, Name, PlannedSpeeds, Speeds,
};

use crate::Moments;
use crate::goodput::{ElasticProfile, Goodput};
use crate::rate_source::{REVISION_THRESHOLD, RateSource};

pub use learned::{Learned, Observed, ObservedElastic, ObservedTime};
use times::Times;
pub use times::{LOAD_DEFAULT, SAVE_DEFAULT, StopTimes, Timed};

/// Of one tenant, those whose inputs are kept.
const PROFILES_MAX: usize = 1_000;

/// So many devices of a class, and how well they stand.
#[derive(Debug, Clone, Copy)]
pub struct Gang<'a> {
    pub class: &'a DeviceClass,
    pub units: u32,
    pub locality: Locality,
}

/// Class → units → value.
type ByShape<T> = BTreeMap<Name, BTreeMap<u32, T>>;

/// What was observed of a shape, by where it stood: [`Domain::Node`] where nobody asked.
type ByDomain = BTreeMap<Domain, Seen>;

/// What was observed of a shape, and the rate that is reported for it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    moments: Moments,
    /// Steps per second.
    reported: f64,
}

impl Seen {
    fn first(rate: f64) -> Self {
        let mut moments = Moments::default();
        moments.add(rate);
        Self { moments, reported: rate }
    }

    /// Whether the reported rate changes.
    fn add(&mut self, rate: f64) -> bool {
        self.moments.add(rate);
        let mean = self.moments.mean().unwrap_or(rate);
        let is_news = (mean - self.reported).abs() > REVISION_THRESHOLD * self.reported;
        if is_news {
            self.reported = mean;
        }
        is_news
    }
}

/// Throughput table and history of one cluster.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    /// Steps per second, by profile; of a gang that stands as well as it can.
    table: BTreeMap<Name, ByShape<f64>>,
    history: BTreeMap<Name, ByShape<ByDomain>>,
    /// Jobs whose speed depends on how they cut their batch.
    elastic: BTreeMap<Name, Goodput>,
    /// Peaks of classes that were observed, for scaling.
    peaks: BTreeMap<Name, u64>,
    /// Declared time from a start to the first step, by profile.
    restarts: BTreeMap<Name, Millis>,
    /// Times of starts and saves that were measured, by profile.
    times: BTreeMap<Name, Times>,
    /// What a rank takes of its node beside devices, as it was measured, by profile.
    demands: BTreeMap<Name, HostResources>,
    /// Files that programs read while they start, by tenant and profile: what one has is nobody
    /// else's business.
    inputs: BTreeMap<Name, BTreeMap<Name, Vec<String>>>,
    /// Grows with everything that changes a rate; the last one of each profile.
    revision: u64,
    revisions: BTreeMap<Name, u64>,
}

impl Rates {
    /// States that `profile` makes `steps_per_second` on `units` devices of `class`.
    pub fn declare(&mut self, profile: &Name, class: &Name, units: u32, steps_per_second: f64) {
        let by_class = self.table.entry(profile.clone()).or_default();
        by_class.entry(class.clone()).or_default().insert(units, steps_per_second);
        self.revise(profile);
    }

    /// Grows with everything that changes a rate.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision at which the rates of a profile changed last.
    pub fn revision_of(&self, profile: &Name) -> Option<u64> {
        self.revisions.get(profile).copied()
    }

    fn revise(&mut self, profile: &Name) {
        self.revision += 1;
        self.revisions.insert(profile.clone(), self.revision);
    }

    /// Learns what a rank took of its node beside devices.
    pub fn observe_demand(&mut self, profile: &Name, demand: HostResources) {
        let known = self.demands.entry(profile.clone()).or_default();
        *known = known.most(demand);
    }

    /// The most that a rank took of its node beside devices; of what is nothing, nobody knows or
    /// needs to know how much.
    pub fn demand(&self, profile: &Name) -> HostResources {
        self.demands.get(profile).copied().unwrap_or_default()
    }

    /// Learns which files a program read while it started. Of a tenant 1,000 profiles are kept.
    pub fn observe_inputs(&mut self, tenant: &Name, profile: &Name, inputs: Vec<String>) {
        let of_tenant = self.inputs.entry(tenant.clone()).or_default();
        if of_tenant.len() >= PROFILES_MAX && !of_tenant.contains_key(profile) {
            of_tenant.pop_first();
        }
        of_tenant.insert(profile.clone(), inputs);
    }

    /// The files that a program read when it started last.
    pub fn inputs(&self, tenant: &Name, profile: &Name) -> &[String] {
        self.inputs.get(tenant).and_then(|of| of.get(profile)).map_or(&[], Vec::as_slice)
    }

    /// States what is known of an elastic job before it runs. What was learned of it is kept where
    /// its batches are the same.
    pub fn declare_elastic(&mut self, profile: &Name, elastic: ElasticProfile) {
        match self.elastic.get_mut(profile) {
            Some(known) if known.profile().batches() == elastic.batches() => {
                known.extend(elastic.classes);
            }
            _ => {
                self.elastic.insert(profile.clone(), Goodput::new(elastic));
            }
        }
        self.revise(profile);
    }

    /// What was stated of an elastic job.
    pub fn elastic(&self, profile: &Name) -> Option<&ElasticProfile> {
        self.elastic.get(profile).map(Goodput::profile)
    }

    /// Learns from a step that an elastic job made on `devices` devices in `nodes` nodes.
    pub fn observe_step(
        &mut self,
        profile: &Name,
        class: &Name,
        (nodes, devices): (u32, u32),
        measured: &Measured,
    ) {
        if let Some(goodput) = self.elastic.get_mut(profile)
            && goodput.observe(class, nodes, devices, measured)
        {
            self.revise(profile);
        }
    }

    /// Learns from a finished or running lease. What a table says is not learned anew.
    pub fn observe(
        &mut self,
        profile: &Name,
        planned: &PlannedSpeeds,
        gang: Gang<'_>,
        steps_per_second: f64,
    ) {
        let Gang { class, units, locality } = gang;
        if self.table.contains_key(profile) || self.elastic.contains_key(profile) {
            return;
        }
        if let Some(peak) = class.peak_gflops {
            self.peaks.insert(class.id.clone(), peak);
        }
        let by_class = self.history.entry(profile.clone()).or_default();
        let by_units = by_class.entry(class.id.clone()).or_default();
        let speeds = planned.speeds(&class.id, units);
        let within = speeds.map_or(Domain::Node, |_| locality.within);
        // As it would be on the best links of a node.
        let steps_per_second = steps_per_second / speeds.map_or(1.0, |s| on_links(s, locality));
        let by_domain = by_units.entry(units).or_default();
        let is_news = match by_domain.entry(within) {
            Entry::Occupied(mut seen) => seen.get_mut().add(steps_per_second),
            Entry::Vacant(first) => {
                first.insert(Seen::first(steps_per_second));
                true
            }
        };
        if is_news {
            self.revise(profile);
        }
    }

    /// Steps per second of `profile` as a gang; `None` if nothing is known about the profile, or if
    /// its table leaves this shape out: it does not run there.
    pub fn rate(
        &self,
        profile: &Name,
        planned: &PlannedSpeeds,
        gang: Gang<'_>,
    ) -> Option<(f64, RateSource)> {
        let Gang { class, units, locality } = gang;
        if let Some(goodput) = self.elastic.get(profile) {
            return goodput.rate(&class.id, units);
        }
        let speeds = planned.speeds(&class.id, units);
        if let Some(by_class) = self.table.get(profile) {
            let rate = by_class.get(&class.id).and_then(|by_units| by_units.get(&units));
            let part = speeds.map_or(1.0, |speeds| speeds.part(locality));
            return rate.map(|&rate| (rate * part, RateSource::Table));
        }
        let history = self.history.get(profile);
        let here = history.and_then(|by_class| by_class.get(&class.id)?.get(&units));
        if let Some(rate) = here.and_then(|by_domain| observed(by_domain, speeds, locality)) {
            return Some((rate, RateSource::History));
        }
        if let Some(speeds) = speeds {
            let kept = history.and_then(|seen| kept_of_plan(seen, planned, &class.id));
            return Some((
                speeds.within(Domain::Node).as_f64() * speeds.part(locality) * kept.unwrap_or(1.0),
                RateSource::Planned,
            ));
        }
        self.scaled(history?, class, units).map(|rate| (rate, RateSource::Scaled))
    }

    /// The nearest observation of the profile, scaled by peak and by the number of devices
    /// (linear: an upper bound until the size itself is observed).
    fn scaled(&self, observed: &ByShape<ByDomain>, class: &DeviceClass, units: u32) -> Option<f64> {
        let per_unit = observed.iter().filter_map(|(other, by_units)| {
            let (seen_units, by_domain) = by_units.iter().next()?;
            let seen = by_domain.values().next()?;
            let same_class = *other == class.id;
            let ratio = match (same_class, class.peak_gflops, self.peaks.get(other)) {
                (true, _, _) => 1.0,
                (false, Some(ours), Some(&theirs)) if theirs > 0 => ours as f64 / theirs as f64,
                _ => return None,
            };
            Some((same_class, seen.reported / f64::from(*seen_units) * ratio))
        });
        per_unit.max_by_key(|(same_class, _)| *same_class).map(|(_, rate)| rate * f64::from(units))
    }
}

/// What was observed in a domain of this size; where it never stood in one, what was observed in
/// another, made faster or slower as planned.
fn observed(by_domain: &ByDomain, speeds: Option<Speeds>, locality: Locality) -> Option<f64> {
    let Some(speeds) = speeds else { return Some(by_domain.values().next()?.reported) };
    if let Some(seen) = by_domain.get(&locality.within) {
        return Some(seen.reported * on_links(speeds, locality));
    }
    let (elsewhere, seen) = by_domain.iter().next()?;
    Some(seen.reported * speeds.part(locality) / speeds.part(Locality::within(*elsewhere)))
}

/// What is left of the speed of a gang on its own links, of that on the best of its domain.
fn on_links(speeds: Speeds, locality: Locality) -> f64 {
    speeds.part(locality) / speeds.part(Locality::within(locality.within))
}

/// What other shapes of a profile made of their planned speed; of the same class if any did.
fn kept_of_plan(history: &ByShape<ByDomain>, planned: &PlannedSpeeds, class: &Name) -> Option<f64> {
    let parts = history.iter().flat_map(|(other, by_units)| {
        by_units.iter().filter_map(move |(units, by_domain)| {
            let (domain, seen) = by_domain.iter().next()?;
            let expected = planned.speeds(other, *units)?.within(*domain).as_f64();
            Some((other == class, seen.reported / expected))
        })
    });
    parts.max_by_key(|(same_class, _)| *same_class).map(|(_, part)| part)
}

#[cfg(test)]
mod tests {
    use het_core::{Micro, Planned};

    use super::*;

    fn class(id: &str, peak_gflops: u64) -> DeviceClass {
        DeviceClass {
            id: id.into(),
            kind: "gpu".into(),
            vendor: "test".into(),
            title: id.into(),
            peak_gflops: Some(peak_gflops),
            software: false,
        }
    }

    fn of(class: &DeviceClass, units: u32) -> Gang<'_> {
        Gang { class, units, locality: Locality::BEST }
    }

    #[test]
    fn a_table_beats_history_and_history_beats_scaling() {
        let (slow, fast, job) = (class("slow", 10), class("fast", 40), Name::from("job"));
        let mut rates = Rates::default();
        let nothing = PlannedSpeeds::default();
        let rate = |rates: &Rates, gang| rates.rate(&job, &nothing, gang);
        assert_eq!(rate(&rates, of(&fast, 1)), None);
        rates.observe(&job, &nothing, of(&slow, 1), 2.0);
        assert_eq!(rate(&rates, of(&fast, 2)), Some((16.0, RateSource::Scaled)));
        rates.observe(&job, &nothing, of(&fast, 2), 12.0);
        assert_eq!(rate(&rates, of(&fast, 2)), Some((12.0, RateSource::History)));
        rates.declare(&job, &fast.id, 2, 11.0);
        assert_eq!(rate(&rates, of(&fast, 2)), Some((11.0, RateSource::Table)));
        assert_eq!(rate(&rates, of(&slow, 2)), None);
    }

    /// On the slow class 4 steps/s are planned for two devices and half of it over racks, on the
    /// fast one 8 for four.
    fn planned(slow: &DeviceClass, fast: &DeviceClass) -> PlannedSpeeds {
        let speeds = |best: i64| Speeds::new([best, best, best / 2, best / 2].map(Micro));
        let mut planned = PlannedSpeeds::default();
        for (class, units, best) in [(slow, 2, 4_000_000), (fast, 4, 8_000_000)] {
            let speeds = speeds(best).expect("a speed");
            planned.insert(class.id.clone(), units, Planned::Runs(speeds));
        }
        planned
    }

    #[test]
    fn a_plan_beats_scaling_and_is_corrected_by_what_is_observed() {
        let (slow, fast, job) = (class("slow", 10), class("fast", 40), Name::from("job"));
        let planned = planned(&slow, &fast);
        let mut rates = Rates::default();
        let apart = |gang| Gang { locality: Locality::within(Domain::Pod), ..gang };
        let rate = |rates: &Rates, gang| rates.rate(&job, &planned, gang);
        assert_eq!(rate(&rates, of(&fast, 4)), Some((8.0, RateSource::Planned)));
        assert_eq!(rate(&rates, apart(of(&fast, 4))), Some((4.0, RateSource::Planned)));
        // Three quarters of the plan.
        rates.observe(&job, &planned, of(&slow, 2), 3.0);
        assert_eq!(rate(&rates, of(&fast, 4)), Some((6.0, RateSource::Planned)));
        assert_eq!(rate(&rates, apart(of(&slow, 2))), Some((1.5, RateSource::History)));
        rates.observe(&job, &planned, apart(of(&slow, 2)), 1.0);
        assert_eq!(rate(&rates, apart(of(&slow, 2))), Some((1.0, RateSource::History)));
        assert_eq!(rate(&rates, of(&slow, 2)), Some((3.0, RateSource::History)));
    }

    #[test]
    fn a_report_of_what_is_known_changes_no_rate() {
        let (class, job, nothing) = (class("gpu", 10), Name::from("job"), PlannedSpeeds::default());
        let mut rates = Rates::default();
        let reported =
            |rates: &Rates| rates.rate(&job, &nothing, of(&class, 1)).map(|(rate, _)| rate);
        rates.observe(&job, &nothing, of(&class, 1), 10.0);
        let revision = rates.revision();
        rates.observe(&job, &nothing, of(&class, 1), 10.3);
        assert_eq!((reported(&rates), rates.revision()), (Some(10.0), revision));
        rates.observe(&job, &nothing, of(&class, 1), 10.9);
        assert!(reported(&rates) > Some(10.2) && rates.revision() > revision);
    }

    #[test]
    fn a_table_is_slower_apart_as_planned() {
        let (slow, fast, job) = (class("slow", 10), class("fast", 40), Name::from("job"));
        let mut rates = Rates::default();
        rates.declare(&job, &slow.id, 2, 10.0);
        let apart = Gang { locality: Locality::within(Domain::Any), ..of(&slow, 2) };
        let rate = rates.rate(&job, &planned(&slow, &fast), apart);
        assert_eq!(rate, Some((5.0, RateSource::Table)));
    }
}
