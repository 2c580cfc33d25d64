//! Which devices of a node a gang gets: the set whose slowest pair is fastest; of equals the one
//! that is nearest to one socket and to network cards of its own; of those the one that parts the
//! fewest devices that are free together.
//!
//! The set is exact: every set of different devices is looked at, up to [`SETS_MAX`] of them, which
//! are all of a node with 20 accelerators. Beyond a node a gang stands in as few nodes as it can
//! (`place`), in each of them in such a set.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{DeviceId, Distance, Interconnect, NodeId, Path, bits};

use super::pool::Pool;

/// Sets that are weighed for one gang at most.
const SETS_MAX: u32 = 200_000;

/// So many of the free devices among these, best set first of all, by id.
pub(super) fn choose(
    pool: &Pool<'_>,
    node: NodeId,
    devices: &[DeviceId],
    count: u32,
) -> Vec<DeviceId> {
    let is_free = |id: &&DeviceId| pool.free(**id).whole_units() > 0;
    let open: Vec<DeviceId> = devices.iter().filter(is_free).copied().collect();
    let index = pool.state().index();
    let interconnect = &index.interconnects[node.index()];
    let candidates = index.local_set(node, open.iter().copied());
    // Of devices that the table leaves out, and of sockets, the first.
    if open.len() as u32 <= count || candidates.count_ones() < open.len() as u32 {
        return open;
    }
    let all = index.devices[node.index()].iter().filter(is_free).copied();
    let free = index.local_set(node, all);
    let chosen = best_set(interconnect, free, candidates, count);
    open.into_iter().filter(|id| chosen >> index.local_rows[id.index()] & 1 == 1).collect()
}

/// The slowest pair of the set that a gang would get.
pub(super) struct Fastest<'a> {
    pool: &'a Pool<'a>,
    count: u32,
    /// By table and set of free devices.
    known: BTreeMap<(*const Interconnect, u64), Option<Path>>,
}

impl<'a> Fastest<'a> {
    pub(super) fn new(pool: &'a Pool<'a>, count: u32) -> Self {
        Self { pool, count, known: BTreeMap::new() }
    }

    /// On the free devices among these of a node; `None` of fewer than two.
    pub(super) fn on(&mut self, node: NodeId, devices: &[DeviceId]) -> Option<Path> {
        if self.count < 2 {
            return None;
        }
        let index = self.pool.state().index();
        let interconnect = &index.interconnects[node.index()];
        let open = devices.iter().copied().filter(|id| self.pool.free(*id).whole_units() > 0);
        let open = index.local_set(node, open);
        let key = (std::ptr::from_ref(&**interconnect), open);
        *self.known.entry(key).or_insert_with(|| interconnect.fastest(open, self.count))
    }
}

/// What a set costs, the first criterion aside. The least is best; of equals the first rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    sockets: usize,
    /// Steps to the nearest cards, of all its devices together.
    card_steps: usize,
    /// Devices that have to share a card with another of the set.
    sharing: usize,
    /// Pairs of free devices of an island that are parted.
    parted: u32,
    set: u64,
}

impl Cost {
    fn of(interconnect: &Interconnect, free: u64, set: u64) -> Self {
        let rows = || bits(set);
        let sockets: BTreeSet<usize> = rows().filter_map(|row| interconnect.sockets[row]).collect();
        let near: Vec<_> = rows().filter_map(|row| interconnect.near_cards[row]).collect();
        let cards: BTreeSet<usize> = near.iter().map(|near| near.card).collect();
        let pairs = |devices: u64| {
            let count = devices.count_ones();
            count * count.saturating_sub(1) / 2
        };
        let parted = interconnect
            .islands
            .iter()
            .map(|island| pairs(free & island) - pairs(free & !set & island));
        Self {
            sockets: sockets.len(),
            card_steps: near.iter().map(|near| steps(near.distance)).sum(),
            sharing: near.len() - cards.len(),
            parted: parted.sum(),
            set,
        }
    }
}

fn steps(distance: Distance) -> usize {
    match distance {
        Distance::Peers | Distance::Switch => 0,
        Distance::Switches => 1,
        Distance::Socket => 2,
        Distance::Sockets => 3,
    }
}

/// So many of the candidates, where these accelerators are free.
fn best_set(interconnect: &Interconnect, free: u64, candidates: u64, count: u32) -> u64 {
    let level = interconnect.fastest(candidates, count);
    let mut search = Search {
        interconnect,
        free,
        near: interconnect.no_slower_than(level),
        twins: twins(interconnect, free, candidates),
        best: None,
        left: SETS_MAX,
    };
    search.extend(0, 0, candidates, count);
    search.best.map_or(0, |cost| cost.set)
}

struct Search<'a> {
    interconnect: &'a Interconnect,
    free: u64,
    /// Of each device, those that it reaches fast enough.
    near: Vec<u64>,
    twins: Vec<u64>,
    best: Option<Cost>,
    left: u32,
}

impl Search<'_> {
    /// Goes on with the twins from this row on: how many of them the set gets, which has `chosen`
    /// and may have `open` devices, `count` more of them.
    fn extend(&mut self, row: usize, chosen: u64, open: u64, count: u32) {
        if self.left == 0 || open.count_ones() < count {
            return;
        }
        if count == 0 {
            self.left -= 1;
            let cost = Cost::of(self.interconnect, self.free, chosen);
            self.best = Some(self.best.map_or(cost, |best| best.min(cost)));
            return;
        }
        let Some(twins) = self.twins.get(row).copied() else { return };
        let beyond = open & !twins;
        self.extend(row + 1, chosen, beyond, count);
        let (mut own, mut fits, mut taken) = (chosen, open, 0);
        for device in bits(twins & open) {
            if taken == count || fits >> device & 1 == 0 {
                break;
            }
            own |= 1 << device;
            fits &= self.near[device];
            taken += 1;
            self.extend(row + 1, own, fits & !twins, count - taken);
        }
    }
}

/// Candidates that no criterion tells apart, each group in row order.
fn twins(interconnect: &Interconnect, free: u64, candidates: u64) -> Vec<u64> {
    let count_of = |card| {
        let near = interconnect.near_cards.iter().flatten();
        near.filter(|near| near.card == card).count()
    };
    // A card that nobody else has is as good as any other.
    let card = |row: usize| {
        let near = interconnect.near_cards[row]?;
        Some((near.distance, Some(near.card).filter(|card| count_of(*card) > 1)))
    };
    let alike = |a: usize, b: usize| {
        let others = || bits(free | candidates).filter(|other| *other != a && *other != b);
        interconnect.sockets[a] == interconnect.sockets[b]
            && card(a) == card(b)
            && interconnect.islands.iter().all(|island| island >> a & 1 == island >> b & 1)
            && others().all(|other| interconnect.path(a, other) == interconnect.path(b, other))
    };
    let mut groups: Vec<u64> = Vec::new();
    for row in bits(candidates) {
        let same = groups.iter_mut().find(|group| alike(group.trailing_zeros() as usize, row));
        match same {
            Some(group) => *group |= 1 << row,
            None => groups.push(1 << row),
        }
    }
    groups
}
