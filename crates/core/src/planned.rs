//! What is expected of a stage before anybody has measured it.

use std::collections::BTreeMap;

use crate::{Bytes, Domain, Micro, Name};

/// Steps per second of a gang, by the smallest domain that holds all of it: never more in a wider
/// one. Where no domain of some size could hold it, the speed there is that of the next that can,
/// so that the first is always the best there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Speeds([Micro; Domain::ALL.len()]);

impl Speeds {
    /// In the order of [`Domain::ALL`]; a wider domain is taken to be no faster than a narrower
    /// one. `None` where the first is no speed at all.
    pub fn new(by_domain: [Micro; Domain::ALL.len()]) -> Option<Self> {
        let mut least = by_domain[0];
        let clamped = by_domain.map(|speed| {
            least = least.min(speed).max(Micro(1));
            least
        });
        (by_domain[0] > Micro(0)).then_some(Self(clamped))
    }

    /// Of a gang that a domain of this size holds, and no smaller one.
    pub fn within(self, domain: Domain) -> Micro {
        self.0[domain as usize]
    }

    /// The same as a part of the best.
    pub fn part(self, domain: Domain) -> f64 {
        self.within(domain).as_f64() / self.0[0].as_f64()
    }

    /// Whether it matters where the gang stands.
    pub fn differ(self) -> bool {
        self.0[0] != self.0[Domain::Any as usize]
    }
}

/// What the planner says of a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Planned {
    Runs(Speeds),
    /// However it is cut; so much is missing on a device.
    Lacks(Bytes),
}

/// The same of every gang that a stage may become: by class and number of devices. Empty for a
/// stage that does not say what it trains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PlannedSpeeds(BTreeMap<Name, BTreeMap<u32, Planned>>);

impl PlannedSpeeds {
    pub fn insert(&mut self, class: Name, units: u32, planned: Planned) {
        self.0.entry(class).or_default().insert(units, planned);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, class: &Name, units: u32) -> Option<Planned> {
        self.0.get(class)?.get(&units).copied()
    }

    pub fn speeds(&self, class: &Name, units: u32) -> Option<Speeds> {
        match self.get(class, units)? {
            Planned::Runs(speeds) => Some(speeds),
            Planned::Lacks(_) => None,
        }
    }

    /// Whether it matters where any of the gangs stands.
    pub fn differ(&self) -> bool {
        let differs = |planned| matches!(planned, Planned::Runs(speeds) if Speeds::differ(speeds));
        self.iter().any(|(_, _, planned)| differs(planned))
    }

    /// By class, then by number of devices.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, u32, Planned)> {
        let rows = self.0.iter();
        rows.flat_map(|(class, by_units)| by_units.iter().map(move |(n, row)| (class, *n, *row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_is_never_faster() {
        let speeds = Speeds::new([8, 6, 7, 0].map(Micro)).expect("8 is a speed");
        assert_eq!(Domain::ALL.map(|domain| speeds.within(domain).0), [8, 6, 6, 1]);
        assert_eq!((speeds.part(Domain::Rack), speeds.differ()), (0.75, true));
        assert_eq!(Speeds::new([0, 6, 7, 0].map(Micro)), None);
    }
}
