//! Packing without time: where one request goes on nodes that are filled and never emptied, so that
//! as much as possible fits in the end. Devices may be taken in parts here.
//!
//! *Fragmentation* of a node, as a workload sees it (Weng et al., USENIX ATC 2023, "Beware of
//! Fragmentation"): of its free accelerator shares, those that a request drawn from the workload
//! could not use, because too few are free together, because the cores beside them are taken, or
//! because it accepts other models only.

use std::collections::BTreeMap;

use het_core::{Bytes, Share};

/// Growth of fragmentation that makes a difference, as a share of an accelerator: less is noise in
/// what is to be expected. Chosen on drawn pod lists: see `docs/studies/packing.md`.
pub(super) const STEP: Share = Share(3_000);

/// What is free on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bin {
    pub cores: Share,
    pub memory: Bytes,
    /// Number of its accelerator model.
    pub model: u8,
    /// Of each accelerator.
    pub devices: Vec<Share>,
}

/// What is to be packed: parts of one accelerator, or several whole ones, on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    pub cores: Share,
    pub memory: Bytes,
    pub devices: u32,
    /// Of each.
    pub share: Share,
    /// Accepted models, one bit each.
    pub models: u64,
}

/// Which accelerators of a bin an item takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    pub bin: usize,
    pub devices: Vec<usize>,
}

/// Chooses among the spots that an item could take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackingRule {
    /// Any, all equally likely.
    Random,
    /// The node that is fullest afterwards.
    BestFit,
    /// The spot after which fragmentation has grown least, as its authors score it ("fragmentation
    /// gradient descent"): rounded to whole points, the first of equals.
    LeastFragmentation,
    /// The same in equal steps, so that what is nearly equal goes to the first node and
    /// later ones stay whole.
    LeastSteps { step: Share },
}

impl PackingRule {
    /// What `adaptive` goes by.
    pub const SHIPPED: Self = Self::LeastSteps { step: STEP };

    pub const ALL: [Self; 4] =
        [Self::SHIPPED, Self::LeastFragmentation, Self::BestFit, Self::Random];

    /// Names of the policies that these are the placement of.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::BestFit => "best-fit",
            Self::LeastFragmentation => "fgd",
            Self::LeastSteps { .. } => "adaptive",
        }
    }
}

impl Item {
    /// Accelerator share in all.
    pub fn demand(&self) -> Share {
        Share(self.share.0 * self.devices)
    }
}

impl Bin {
    fn free(&self) -> Share {
        self.devices.iter().copied().sum()
    }

    /// The ways to put an item here that differ.
    pub(super) fn ways(&self, item: &Item) -> Vec<Vec<usize>> {
        let accepted = item.devices == 0 || item.models >> self.model & 1 == 1;
        if !accepted || item.cores > self.cores || item.memory > self.memory {
            return Vec::new();
        }
        let roomy = (0..self.devices.len()).filter(|&index| self.devices[index] >= item.share);
        match item.devices {
            0 => vec![Vec::new()],
            1 if item.share < Share::WHOLE => {
                let mut seen: Vec<Share> = Vec::new();
                let new = roomy.filter(|&index| {
                    let is_new = !seen.contains(&self.devices[index]);
                    seen.extend(is_new.then_some(self.devices[index]));
                    is_new
                });
                new.map(|index| vec![index]).collect()
            }
            count => {
                let chosen: Vec<usize> = roomy.take(count as usize).collect();
                if chosen.len() == count as usize { vec![chosen] } else { Vec::new() }
            }
        }
    }

    fn take(&mut self, item: &Item, devices: &[usize]) {
        self.cores -= item.cores;
        self.memory -= item.memory;
        for &index in devices {
            self.devices[index] -= item.share;
        }
    }
}

/// Requests that are to be expected, as parts of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mix {
    /// For each accelerator request: the cores that go with it, from few to many, each with the
    /// part of requests that need at most so many.
    shapes: Vec<(AcceleratorRequest, Vec<(Share, f64)>)>,
}

/// Accelerators, share of each, accepted models.
type AcceleratorRequest = (u32, Share, u64);

impl Mix {
    pub fn of(items: &[Item]) -> Self {
        let mut weights: BTreeMap<Item, u64> = BTreeMap::new();
        for item in items {
            *weights.entry(*item).or_default() += 1;
        }
        Self::weighted(weights)
    }

    /// Of items that count for so much each.
    pub(crate) fn weighted(weights: BTreeMap<Item, u64>) -> Self {
        let all: u64 = weights.values().sum();
        let mut requests: BTreeMap<AcceleratorRequest, BTreeMap<Share, u64>> = BTreeMap::new();
        for (item, weight) in weights {
            let by_cores = requests.entry((item.devices, item.share, item.models)).or_default();
            *by_cores.entry(item.cores).or_default() += weight;
        }
        let shapes = requests.into_iter().map(|(shape, by_cores)| {
            let mut sum = 0;
            let rows = by_cores.into_iter().map(|(cores, weight)| {
                sum += weight;
                (cores, sum as f64 / all as f64)
            });
            (shape, rows.collect())
        });
        Self { shapes: shapes.collect() }
    }

    /// Expected share of a bin's free accelerators that a request cannot use.
    pub(super) fn fragmentation(&self, bin: &Bin) -> f64 {
        let free = f64::from(bin.free().0);
        if free == 0.0 {
            return 0.0;
        }
        let of_shape = |((devices, share, models), by_cores): &(AcceleratorRequest, Vec<_>)| {
            let all = by_cores.last().map_or(0.0, |(_, part): &(Share, f64)| *part);
            let usable = usable(bin, *devices, *share, *models);
            if usable == 0 {
                return all * free;
            }
            let served = by_cores.partition_point(|(cores, _)| *cores <= bin.cores);
            let served = served.checked_sub(1).map_or(0.0, |row| by_cores[row].1);
            served * (free - f64::from(usable)) + (all - served) * free
        };
        self.shapes.iter().map(of_shape).sum()
    }
}

/// Free share of a bin that lies on accelerators which such requests can use.
fn usable(bin: &Bin, devices: u32, share: Share, models: u64) -> u32 {
    if devices == 0 || models >> bin.model & 1 == 0 {
        return 0;
    }
    let fitting = bin.devices.iter().filter(|free| **free >= share);
    let (count, sum) = fitting.fold((0, 0), |(count, sum), free| (count + 1, sum + free.0));
    if count >= devices { sum } else { 0 }
}

/// Bins that fill up under a rule.
#[derive(Debug)]
pub struct Packer {
    rule: PackingRule,
    mix: Mix,
    bins: Vec<Bin>,
    /// How often each bin changed.
    versions: Vec<u32>,
    /// Score of every bin for an item when it had that version: bins change one at a time, so most
    /// scores stand. Lower is better.
    scores: BTreeMap<Item, Vec<Option<(u32, Scored)>>>,
}

/// The best way into a bin; `None` where there is none.
type Scored = Option<(f64, Vec<usize>)>;

impl Packer {
    pub fn new(rule: PackingRule, mix: Mix, bins: Vec<Bin>) -> Self {
        Self { rule, mix, versions: vec![0; bins.len()], bins, scores: BTreeMap::new() }
    }

    /// Puts an item where the rule says; `draw` is a random number for the rules that want one.
    /// `None`, and nothing changes, if it fits nowhere.
    pub fn put(&mut self, item: &Item, draw: u64) -> Option<Spot> {
        let known = self.scores.entry(*item).or_insert_with(|| vec![None; self.bins.len()]);
        for (index, known) in known.iter_mut().enumerate() {
            let version = self.versions[index];
            if known.as_ref().is_none_or(|(at, _)| *at != version) {
                *known = Some((version, score(self.rule, &self.mix, &self.bins[index], item)));
            }
        }
        let rows = known.iter().enumerate().filter_map(|(bin, known)| {
            let (_, scored) = known.as_ref()?;
            scored.as_ref().map(|(score, devices)| (*score, (bin, devices)))
        });
        let (bin, devices) = best(self.rule, rows, draw)?;
        let spot = Spot { bin, devices: devices.clone() };
        self.bins[bin].take(item, &spot.devices);
        self.versions[bin] += 1;
        Some(spot)
    }

    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }
}

/// The row of the bin that the rule names for an item; `None` where it fits nowhere.
pub(crate) fn best_bin<'a>(
    rule: PackingRule,
    mix: &Mix,
    bins: impl Iterator<Item = &'a Bin>,
    item: &Item,
    draw: u64,
) -> Option<usize> {
    let scored = |(row, bin): (usize, &Bin)| Some((score(rule, mix, bin, item)?.0, row));
    best(rule, bins.enumerate().filter_map(scored), draw)
}

/// The lowest score, the first of equals; any where the rule is to take any.
fn best<T>(rule: PackingRule, rows: impl Iterator<Item = (f64, T)>, draw: u64) -> Option<T> {
    match rule {
        PackingRule::Random => {
            let mut rows: Vec<T> = rows.map(|(_, row)| row).collect();
            let count = rows.len().max(1) as u64;
            (!rows.is_empty()).then(|| rows.swap_remove((draw % count) as usize))
        }
        _ => rows.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, row)| row),
    }
}

fn score(rule: PackingRule, mix: &Mix, bin: &Bin, item: &Item) -> Scored {
    let before = match rule {
        PackingRule::LeastFragmentation | PackingRule::LeastSteps { .. } => mix.fragmentation(bin),
        PackingRule::Random | PackingRule::BestFit => 0.0,
    };
    let ways = bin.ways(item).into_iter().map(|devices| {
        let mut after = bin.clone();
        after.take(item, &devices);
        let grown = || mix.fragmentation(&after) - before;
        let score = match rule {
            PackingRule::Random => 0.0,
            PackingRule::BestFit => fullness(&after, &devices),
            PackingRule::LeastFragmentation => {
                -(100.0 / (1.0 + (grown() / f64::from(Share::WHOLE.0)).exp())).trunc()
            }
            PackingRule::LeastSteps { step } => steps(grown(), step),
        };
        (score, devices)
    });
    ways.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Growth of fragmentation, in shares, as so many steps.
pub(super) fn steps(grown: f64, step: Share) -> f64 {
    (grown / f64::from(step.0)).ceil()
}

/// What is left on a node, in parts of a large one (104 cores, 8 accelerators), and of nearly
/// equals on the accelerators in use.
fn fullness(after: &Bin, devices: &[usize]) -> f64 {
    let part = |share: Share, units: u32| f64::from(share.0) / f64::from(Share::units(units).0);
    let touched = devices.iter().map(|&index| after.devices[index]).sum();
    part(after.cores, 104) + part(after.free(), 8) + 1e-3 * part(touched, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(cores: u32, devices: &[u32]) -> Bin {
        let devices = devices.iter().map(|tenths| Share(tenths * 1_000)).collect();
        Bin { cores: Share::units(cores), memory: Bytes::gib(64), model: 0, devices }
    }

    fn item(cores: u32, devices: u32, tenths: u32) -> Item {
        let (cores, share) = (Share::units(cores), Share(tenths * 1_000));
        Item { cores, memory: Bytes::gib(1), devices, share, models: 1 }
    }

    #[test]
    fn fragmentation_is_what_a_request_of_the_mix_cannot_use() {
        let mix = Mix::of(&[item(4, 1, 6), item(4, 1, 10)]);
        let check = |bin: &Bin, tenths: f64| {
            let found = mix.fragmentation(bin) / 1_000.0;
            assert!((found - tenths).abs() < 1e-9, "{found} tenths, not {tenths}");
        };
        check(&bin(8, &[10]), 0.0);
        // Half of the requests can use 0.7 of an accelerator.
        check(&bin(8, &[7]), 3.5);
        check(&bin(8, &[10, 5]), 5.0);
        // Nobody can use an accelerator without cores beside it.
        check(&bin(2, &[10]), 10.0);
    }

    #[test]
    fn a_part_goes_where_it_fits_and_breaks_nothing() {
        let whole_or_part = [item(1, 1, 3), item(1, 1, 10)];
        for rule in [PackingRule::LeastFragmentation, PackingRule::SHIPPED, PackingRule::BestFit] {
            let bins = vec![bin(8, &[10, 10]), bin(8, &[10, 3])];
            let mut packer = Packer::new(rule, Mix::of(&whole_or_part), bins);
            let spot = packer.put(&item(1, 1, 3), 0);
            assert_eq!(spot, Some(Spot { bin: 1, devices: vec![1] }), "under {rule:?}");
        }
    }

    #[test]
    fn what_fits_nowhere_changes_nothing() {
        let bins = vec![bin(8, &[10, 5])];
        let mut packer = Packer::new(PackingRule::Random, Mix::default(), bins.clone());
        assert_eq!(packer.put(&item(1, 2, 10), 7), None);
        assert_eq!(packer.put(&item(9, 1, 1), 7), None);
        assert_eq!(packer.put(&Item { models: 2, ..item(1, 1, 1) }, 7), None);
        assert_eq!(packer.bins(), bins);
    }
}
