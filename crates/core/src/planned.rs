//! What is expected of a stage before anybody has measured it.

use std::collections::BTreeMap;

use crate::{Bytes, Domain, Micro, Name};

/// How close to each other the devices of a gang are: what its speed depends on beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Locality {
    /// The smallest domain that holds all of it.
    pub within: Domain,
    /// Bandwidth of its slowest pair inside a node, as a part of the best that as many devices
    /// of the class could have there.
    pub links: Micro,
}

impl Locality {
    pub const BEST: Self = Self { within: Domain::Node, links: Micro::ONE };

    /// In a domain of this size, as well as can be inside of it.
    pub fn within(within: Domain) -> Self {
        Self { within, ..Self::BEST }
    }
}

/// Steps per second of a gang, by the smallest domain that holds all of it: never more in a wider
/// one. Where no domain of some size could hold it, the speed there is that of the next that can,
/// so that the first is always the best there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Speeds {
    by_domain: [Micro; Domain::ALL.len()],
    /// Of a step inside a node, the part in which devices exchange over the best links.
    exchange: Micro,
}

impl Speeds {
    /// In the order of [`Domain::ALL`]; a wider domain is taken to be no faster than a narrower
    /// one. `None` where the first is no speed at all.
    pub fn new(by_domain: [Micro; Domain::ALL.len()]) -> Option<Self> {
        let mut least = by_domain[0];
        let clamped = by_domain.map(|speed| {
            least = least.min(speed).max(Micro(1));
            least
        });
        let exchange = Micro(0);
        (by_domain[0] > Micro(0)).then_some(Self { by_domain: clamped, exchange })
    }

    /// Of a gang whose devices exchange in this part of a step.
    #[must_use]
    pub fn exchanging(self, part: Micro) -> Self {
        Self { exchange: part.clamp(Micro(0), Micro::ONE), ..self }
    }

    /// See [`Speeds::exchanging`].
    pub fn exchange(self) -> Micro {
        self.exchange
    }

    /// Of a gang that a domain of this size holds, and no smaller one.
    pub fn within(self, domain: Domain) -> Micro {
        self.by_domain[domain as usize]
    }

    /// The same as a part of the best, on its own links. Beyond a node the network sets the pace.
    pub fn part(self, locality: Locality) -> f64 {
        let part = self.within(locality.within).as_f64() / self.by_domain[0].as_f64();
        match locality.within {
            Domain::Node => {
                let slower = 1.0 / locality.links.as_f64() - 1.0;
                part / (1.0 + self.exchange.as_f64() * slower)
            }
            _ => part,
        }
    }

    /// Whether it matters where the gang stands.
    pub fn differ(self) -> bool {
        self.by_domain[0] != self.by_domain[Domain::Any as usize]
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
pub struct PlannedSpeeds {
    gangs: BTreeMap<Name, BTreeMap<u32, Planned>>,
    pub files: Option<TrainingFiles>,
}

/// What a training program reads when it starts, and writes when it saves, at the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrainingFiles {
    pub weights: Bytes,
    /// Trained weights and their optimiser's state.
    pub checkpoint: Bytes,
}

impl PlannedSpeeds {
    /// Of a program with such files.
    pub fn of(files: TrainingFiles) -> Self {
        Self { files: Some(files), ..Self::default() }
    }

    pub fn insert(&mut self, class: Name, units: u32, planned: Planned) {
        self.gangs.entry(class).or_default().insert(units, planned);
    }

    pub fn is_empty(&self) -> bool {
        self.gangs.is_empty()
    }

    pub fn get(&self, class: &Name, units: u32) -> Option<Planned> {
        self.gangs.get(class)?.get(&units).copied()
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
        let rows = self.gangs.iter();
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
        let part = speeds.part(Locality::within(Domain::Rack));
        assert_eq!((part, speeds.differ()), (0.75, true));
        assert_eq!(Speeds::new([0, 6, 7, 0].map(Micro)), None);
    }
    #[test]
    fn a_gang_on_slower_links_is_slower_by_what_it_exchanges() {
        let speeds =
            Speeds::new([8; 4].map(Micro)).expect("8 is a speed").exchanging(Micro(250_000));
        let on = |within, links| speeds.part(Locality { within, links: Micro(links) });
        assert_eq!(on(Domain::Node, 1_000_000), 1.0);
        assert_eq!(on(Domain::Node, 250_000), 1.0 / 1.75);
        assert_eq!(on(Domain::Rack, 250_000), 1.0);
    }
}
