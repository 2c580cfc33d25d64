//! What rates learned, exported for storage and restored.

use std::collections::BTreeMap;

use het_core::{Domain, HostResources, Name};

use super::{Rates, Seen, Timed};
use crate::Moments;
use crate::goodput::{ElasticProfile, Goodput, SeenStep};

/// Everything that was observed. Speeds and starts that were declared are not in it: whoever begins
/// anew declares them anew.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Learned {
    pub history: Vec<Observed>,
    pub times: Vec<ObservedTime>,
    pub elastic: Vec<ObservedElastic>,
    /// What a rank takes of its node beside devices, by profile.
    pub demands: BTreeMap<Name, HostResources>,
    /// Files that programs read while they start, by tenant and profile.
    pub inputs: BTreeMap<Name, BTreeMap<Name, Vec<String>>>,
    /// Peaks of classes that were observed.
    pub peaks: BTreeMap<Name, u64>,
    pub revision: u64,
    pub revisions: BTreeMap<Name, u64>,
}

/// Steps per second of a profile on so many devices of a class in such a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub profile: Name,
    pub class: Name,
    pub units: u32,
    pub within: Domain,
    pub moments: Moments,
    /// Steps per second reported since the mean last moved far.
    pub reported: f64,
}

/// Seconds that starts or saves of a profile took on so many devices.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedTime {
    pub profile: Name,
    pub timed: Timed,
    pub units: u32,
    pub moments: Moments,
    /// As in [`Observed`].
    pub reported: f64,
}

/// What an elastic job showed of its steps.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedElastic {
    pub profile: Name,
    pub elastic: ElasticProfile,
    pub steps: Vec<SeenStep>,
    /// Of its gradient, at the batch that it begins with.
    pub noise: Option<f64>,
}

impl Rates {
    pub fn learned(&self) -> Learned {
        let by_class = self.history.iter().flat_map(|(profile, by_class)| {
            by_class.iter().map(move |(class, by_units)| (profile, class, by_units))
        });
        let by_units = by_class.flat_map(|(profile, class, by_units)| {
            by_units.iter().map(move |(&units, by_domain)| (profile, class, units, by_domain))
        });
        let history = by_units.flat_map(|(profile, class, units, by_domain)| {
            by_domain.iter().map(move |(&within, seen)| Observed {
                profile: profile.clone(),
                class: class.clone(),
                units,
                within,
                moments: seen.moments,
                reported: seen.reported,
            })
        });
        let times = self.times.iter().flat_map(|(profile, times)| {
            times.iter().map(move |(&(timed, units), seen)| ObservedTime {
                profile: profile.clone(),
                timed,
                units,
                moments: seen.moments,
                reported: seen.reported,
            })
        });
        let elastic = self.elastic.iter().map(|(profile, goodput)| {
            let (steps, noise) = goodput.seen();
            let (profile, elastic) = (profile.clone(), goodput.profile().clone());
            ObservedElastic { profile, elastic, steps, noise }
        });
        Learned {
            history: history.collect(),
            times: times.collect(),
            elastic: elastic.collect(),
            demands: self.demands.clone(),
            inputs: self.inputs.clone(),
            peaks: self.peaks.clone(),
            revision: self.revision,
            revisions: self.revisions.clone(),
        }
    }

    /// Rates that know what was learned, and nothing else.
    pub fn from_learned(learned: Learned) -> Self {
        let mut rates = Self {
            demands: learned.demands,
            inputs: learned.inputs,
            peaks: learned.peaks,
            revision: learned.revision,
            revisions: learned.revisions,
            ..Self::default()
        };
        for Observed { profile, class, units, within, moments, reported } in learned.history {
            let by_class = rates.history.entry(profile).or_default();
            let by_domain = by_class.entry(class).or_default().entry(units).or_default();
            by_domain.insert(within, Seen { moments, reported });
        }
        for ObservedTime { profile, timed, units, moments, reported } in learned.times {
            let times = rates.times.entry(profile).or_default();
            times.insert((timed, units), Seen { moments, reported });
        }
        for ObservedElastic { profile, elastic, steps, noise } in learned.elastic {
            rates.elastic.insert(profile, Goodput::from_seen(elastic, steps, noise));
        }
        rates
    }
}
