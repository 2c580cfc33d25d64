//! Requests and nodes of a real state as the items and bins of packing.

use het_core::{Bytes, NodeId, Share, StageSpec, State};

use super::packing::{Bin, Item, Mix, STEP, steps};
use super::pool::{Pool, accepted};

/// Classes of accelerators that are told apart on one node; more only make scores coarser.
const CLASSES: usize = 4;

/// What one alternative takes of a node.
pub(crate) fn item(state: &State, spec: &StageSpec, index: usize) -> Item {
    let alternative = &spec.alternatives[index];
    let topology = state.topology();
    let classes = accepted(state, &alternative.selector, None);
    let of_devices = |class: &usize| topology.classes[*class].kind != "cpu";
    let models = classes.classes(state).filter(of_devices).fold(0, |all, class| all | bit(class));
    let ranks = spec.ranks.ranks_on_node(alternative.count);
    let (devices, own_cores) =
        if models == 0 { (0, alternative.count) } else { (alternative.count, 0) };
    Item {
        cores: Share::units(own_cores.saturating_add(ranks.saturating_mul(spec.companions.cores))),
        memory: spec.companions.host.memory,
        devices,
        share: if devices == 0 { Share::ZERO } else { Share::WHOLE },
        models,
    }
}

/// Classes beyond the 64th share a bit, which only makes scores coarser.
fn bit(class: usize) -> u64 {
    1 << (class % 64)
}

/// What is free on a node in whole units, as far as fragmentation depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contents {
    cores: u32,
    /// Class of accelerators and how many of them.
    free: [Option<(usize, u32)>; CLASSES],
}

impl Contents {
    pub fn of(pool: &Pool<'_>, node: NodeId) -> Self {
        let mut free = [None; CLASSES];
        for (class, units) in pool.accelerators(node) {
            let row = free.iter_mut().find(|row| row.is_none_or(|(of, _)| of == class));
            if let Some(row) = row {
                *row = Some((class, row.map_or(0, |(_, units)| units) + units));
            }
        }
        Self { cores: pool.free_cores(node), free }
    }

    /// One a class of accelerators, or one without any.
    pub fn bins(&self, pool: &Pool<'_>, node: NodeId) -> Vec<Bin> {
        let bin = |class: usize, units: u32| Bin {
            cores: Share::units(self.cores),
            memory: pool.host(node).memory,
            model: (class % 64) as u8,
            devices: vec![Share::WHOLE; units as usize],
        };
        let bins: Vec<Bin> = self.free.iter().flatten().map(|&(c, units)| bin(c, units)).collect();
        if bins.is_empty() { vec![bin(0, 0)] } else { bins }
    }
}

/// By how much fragmentation grows on nodes that are given an item; alike nodes are looked at once.
pub(crate) struct Growth<'a> {
    pool: &'a Pool<'a>,
    mix: &'a Mix,
    item: Item,
    known: Vec<(Contents, f64)>,
}

impl<'a> Growth<'a> {
    pub fn new(pool: &'a Pool<'a>, mix: &'a Mix, item: Item) -> Self {
        Self { pool, mix, item, known: Vec::new() }
    }

    /// On a node that has room for it, in steps that make a difference.
    pub fn on(&mut self, node: NodeId) -> i64 {
        let contents = Contents::of(self.pool, node);
        let known = self.known.iter().find(|(of, _)| *of == contents);
        let steps = known.map_or_else(|| self.steps(&contents, node), |(_, steps)| *steps);
        if known.is_none() {
            self.known.push((contents, steps));
        }
        steps as i64
    }

    /// Its devices are of the class where that costs least.
    fn steps(&self, contents: &Contents, node: NodeId) -> f64 {
        let bins = contents.bins(self.pool, node);
        let all = |bins: &[Bin]| bins.iter().map(|bin| self.mix.fragmentation(bin)).sum::<f64>();
        let before = all(&bins);
        let grown = (0..bins.len()).filter_map(|row| {
            // Memory decides nothing here: the node has room.
            let ways = bins[row].ways(&Item { memory: Bytes::ZERO, ..self.item });
            let devices = ways.first()?;
            let mut after = bins.clone();
            after.iter_mut().for_each(|bin| bin.cores -= self.item.cores);
            devices.iter().for_each(|&device| after[row].devices[device] -= self.item.share);
            Some(all(&after) - before)
        });
        grown.min_by(f64::total_cmp).map_or(0.0, |grown| steps(grown, STEP))
    }
}
