//! Steps per second of a profile on a device class, from the best source there is.

mod learned;

use std::collections::BTreeMap;

use het_core::{DeviceClass, Measured, Millis, Name};

use crate::goodput::{ElasticProfile, Goodput};
use crate::{LOAD_DEFAULT, Moments};

pub use learned::{Learned, Observed};

/// Where a rate comes from, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RateSource {
    /// Given by a throughput table.
    Table,
    /// Observed on this class before.
    History,
    /// Observed on another class, scaled by the ratio of the catalogue's peaks.
    Scaled,
    /// A model's word about more devices than were ever observed.
    Extrapolated,
}

/// Profile → class → units → value.
type ByShape<T> = BTreeMap<Name, BTreeMap<Name, BTreeMap<u32, T>>>;

/// Throughput table and history of one cluster.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    /// Steps per second.
    table: ByShape<f64>,
    history: ByShape<Moments>,
    /// Jobs whose speed depends on how they cut their batch.
    elastic: BTreeMap<Name, Goodput>,
    /// Peaks of classes that were observed, for scaling.
    peaks: BTreeMap<Name, u64>,
    /// Declared time from a start to the first step, by profile.
    restarts: BTreeMap<Name, Millis>,
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

    /// States what is known of an elastic job before it runs.
    pub fn declare_elastic(&mut self, profile: &Name, elastic: ElasticProfile) {
        self.elastic.insert(profile.clone(), Goodput::new(elastic));
        self.revise(profile);
    }

    /// Learns from a step that an elastic job made on `devices` devices in `nodes` nodes.
    pub fn observe_step(
        &mut self,
        profile: &Name,
        class: &Name,
        (nodes, devices): (u32, u32),
        measured: &Measured,
    ) {
        if let Some(goodput) = self.elastic.get_mut(profile) {
            goodput.observe(class, nodes, devices, measured);
            self.revise(profile);
        }
    }

    /// States how long `profile` takes from a start to its first step.
    pub fn declare_restart(&mut self, profile: &Name, pause: Millis) {
        self.restarts.insert(profile.clone(), pause);
    }

    /// From a start, or a start elsewhere, to the first step.
    pub fn restart(&self, profile: &Name) -> Millis {
        self.restarts.get(profile).copied().unwrap_or(LOAD_DEFAULT)
    }

    /// Learns from a finished or running lease. What a table says is not learned anew.
    pub fn observe(
        &mut self,
        profile: &Name,
        class: &DeviceClass,
        units: u32,
        steps_per_second: f64,
    ) {
        if self.table.contains_key(profile) || self.elastic.contains_key(profile) {
            return;
        }
        self.revise(profile);
        if let Some(peak) = class.peak_gflops {
            self.peaks.insert(class.id.clone(), peak);
        }
        let by_class = self.history.entry(profile.clone()).or_default();
        let by_units = by_class.entry(class.id.clone()).or_default();
        by_units.entry(units).or_default().add(steps_per_second);
    }

    /// Steps per second of `profile` on `units` devices of `class`; `None` if nothing is known
    /// about the profile, or if its table leaves this shape out: it does not run there.
    pub fn rate(
        &self,
        profile: &Name,
        class: &DeviceClass,
        units: u32,
    ) -> Option<(f64, RateSource)> {
        if let Some(goodput) = self.elastic.get(profile) {
            return goodput.rate(&class.id, units);
        }
        if let Some(by_class) = self.table.get(profile) {
            let rate = by_class.get(&class.id).and_then(|by_units| by_units.get(&units));
            return rate.map(|&rate| (rate, RateSource::Table));
        }
        let by_class = self.history.get(profile)?;
        let observed = by_class.get(&class.id).and_then(|by_units| by_units.get(&units)?.mean());
        if let Some(rate) = observed {
            return Some((rate, RateSource::History));
        }
        self.scaled(by_class, class, units).map(|rate| (rate, RateSource::Scaled))
    }

    /// The nearest observation of the profile, scaled by peak and by the number of devices
    /// (linear: an upper bound until the size itself is observed).
    fn scaled(
        &self,
        observed: &BTreeMap<Name, BTreeMap<u32, Moments>>,
        class: &DeviceClass,
        units: u32,
    ) -> Option<f64> {
        let per_unit = observed.iter().filter_map(|(other, by_units)| {
            let (seen_units, moments) = by_units.iter().next()?;
            let same_class = *other == class.id;
            let ratio = match (same_class, class.peak_gflops, self.peaks.get(other)) {
                (true, _, _) => 1.0,
                (false, Some(ours), Some(&theirs)) if theirs > 0 => ours as f64 / theirs as f64,
                _ => return None,
            };
            Some((same_class, moments.mean()? / f64::from(*seen_units) * ratio))
        });
        per_unit.max_by_key(|(same_class, _)| *same_class).map(|(_, rate)| rate * f64::from(units))
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_table_beats_history_and_history_beats_scaling() {
        let (slow, fast, job) = (class("slow", 10), class("fast", 40), Name::from("job"));
        let mut rates = Rates::default();
        assert_eq!(rates.rate(&job, &fast, 1), None);
        rates.observe(&job, &slow, 1, 2.0);
        assert_eq!(rates.rate(&job, &fast, 2), Some((16.0, RateSource::Scaled)));
        rates.observe(&job, &fast, 2, 12.0);
        assert_eq!(rates.rate(&job, &fast, 2), Some((12.0, RateSource::History)));
        rates.declare(&job, &fast.id, 2, 11.0);
        assert_eq!(rates.rate(&job, &fast, 2), Some((11.0, RateSource::Table)));
        assert_eq!(rates.rate(&job, &slow, 2), None);
    }
}
