//! Throughput tables: how fast a profile really runs on a device class.

use std::collections::BTreeMap;

/// Steps per second by profile, class and units.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Speeds(BTreeMap<String, BTreeMap<String, BTreeMap<u32, f64>>>);

impl Speeds {
    pub fn declare(&mut self, profile: &str, class: &str, units: u32, steps_per_second: f64) {
        let by_class = self.0.entry(profile.to_owned()).or_default();
        by_class.entry(class.to_owned()).or_default().insert(units, steps_per_second);
    }

    /// `None` where the profile does not run in this shape.
    pub fn rate(&self, profile: &str, class: &str, units: u32) -> Option<f64> {
        self.0.get(profile)?.get(class)?.get(&units).copied()
    }

    pub fn knows(&self, profile: &str) -> bool {
        self.0.contains_key(profile)
    }
}
