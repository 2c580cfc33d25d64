//! Throughput tables: how fast a profile really runs on a device class.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::Millis;
use het_sim::Application;

/// Speeds of rigid profiles, and elastic applications.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Speeds {
    /// Steps per second by profile, class and units.
    table: BTreeMap<String, BTreeMap<String, BTreeMap<u32, f64>>>,
    applications: BTreeMap<String, (Arc<Application>, Millis)>,
}

impl Speeds {
    pub fn declare(&mut self, profile: &str, class: &str, units: u32, steps_per_second: f64) {
        let by_class = self.table.entry(profile.to_owned()).or_default();
        by_class.entry(class.to_owned()).or_default().insert(units, steps_per_second);
    }

    /// `None` where the profile does not run in this shape.
    pub fn rate(&self, profile: &str, class: &str, units: u32) -> Option<f64> {
        self.table.get(profile)?.get(class)?.get(&units).copied()
    }

    /// Numbers of units that a profile has a speed for on a class.
    pub fn sizes(&self, profile: &str, class: &str) -> Vec<u32> {
        let by_units = self.table.get(profile).and_then(|by_class| by_class.get(class));
        by_units.map(|by_units| by_units.keys().copied().collect()).unwrap_or_default()
    }

    /// Rigid profiles: name, class, units and steps per second.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &str, u32, f64)> {
        self.table.iter().flat_map(|(profile, by_class)| {
            by_class.iter().flat_map(move |(class, by_units)| {
                let rows = by_units.iter();
                rows.map(move |(units, rate)| (profile.as_str(), class.as_str(), *units, *rate))
            })
        })
    }

    /// Rigid profiles, by name.
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        self.table.keys().map(String::as_str)
    }

    pub fn knows(&self, profile: &str) -> bool {
        self.table.contains_key(profile)
    }

    /// Adds an elastic application and its pause at every start.
    pub fn declare_application(&mut self, name: &str, application: Application, pause: Millis) {
        self.applications.insert(name.to_owned(), (Arc::new(application), pause));
    }

    /// An elastic application and its pause at every start.
    pub fn application(&self, name: &str) -> Option<(&Arc<Application>, Millis)> {
        self.applications.get(name).map(|(application, pause)| (application, *pause))
    }
}
