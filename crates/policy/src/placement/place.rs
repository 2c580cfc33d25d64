//! Placement of one alternative on a pool: all ranks or nothing.
//!
//! On one node where any has room for it: the one whose links join it best; of equals the one where
//! free devices become useless least to what is expected to come (see `packing`), then the one that
//! keeps the fewest free. There it gets the best set of devices (see `device_set`). Else the domain
//! that keeps the fewest devices free afterwards, so that large gangs find room later; inside a
//! domain the fewest nodes, so that a gang talks over short links. A gang that is slower apart
//! stands in the smallest domain that has room for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use het_core::{
    Companions, DeviceId, Domain, Drivers, Grant, Name, NodeId, Placement, Rank, RankRule, Reason,
    Share, StageSpec, Topology,
};

use super::contents::{Growth, item};
use super::device_set::{self, Fastest};
use super::pool::Accepted;
use crate::Pool;

/// Finds exact devices for alternative number `index` of a stage. Takes nothing out of the pool.
///
/// # Errors
/// Why it does not fit now.
pub fn place(pool: &mut Pool<'_>, spec: &StageSpec, index: usize) -> Result<Placement, Reason> {
    let accepted = pool.accepted(&spec.alternatives[index].selector, None);
    place_among(pool, spec, index, &accepted)
}

/// The same, on devices of one class only.
///
/// # Errors
/// Why it does not fit now.
pub(crate) fn on_class(
    pool: &mut Pool<'_>,
    spec: &StageSpec,
    index: usize,
    class: usize,
) -> Result<Placement, Reason> {
    let accepted = pool.accepted(&spec.alternatives[index].selector, Some(class));
    place_among(pool, spec, index, &accepted)
}

/// The same, on devices that are known to be accepted; on slow ones only where there is no room
/// without them.
///
/// # Errors
/// Why it does not fit now.
pub(crate) fn place_among(
    pool: &Pool<'_>,
    spec: &StageSpec,
    index: usize,
    accepted: &Accepted,
) -> Result<Placement, Reason> {
    let placed = on_any(pool, spec, index, accepted)?;
    let slow: BTreeSet<DeviceId> = pool.state().slow_devices().collect();
    if placed.devices().any(|grant| slow.contains(&grant.device)) {
        return on_any(pool, spec, index, &accepted.without(&slow)).or(Ok(placed));
    }
    Ok(placed)
}

fn on_any(
    pool: &Pool<'_>,
    spec: &StageSpec,
    index: usize,
    accepted: &Accepted,
) -> Result<Placement, Reason> {
    let alternative = &spec.alternatives[index];
    let need = alternative.count;
    let word = alternative.selector.word.clone();
    if pool.units(accepted) < need {
        return Err(Reason::NotEnough { word, need });
    }
    if let Some(room) = on_one_node(pool, spec, index, accepted) {
        return Ok(Placement { alternative: index, ranks: fill(pool, spec, &[room], need) });
    }
    let rooms: Vec<Room<'_>> = rooms(pool, spec, accepted, 1).collect();
    if rooms.iter().map(|room| room.units).sum::<u32>() < need {
        return Err(Reason::NoCompanions { word });
    }
    let mut domains = domains(spec);
    let Some(chosen) = domains.find_map(|domain| choose_domain(pool, &rooms, domain, need)) else {
        return Err(Reason::TooSpread { word, need, domain: spec.within.word().into() });
    };
    Ok(Placement { alternative: index, ranks: fill(pool, spec, &chosen, need) })
}

/// The node for all of it: where links join it best, then where free devices become useless least,
/// and of equals the fullest.
fn on_one_node<'a>(
    pool: &'a Pool<'_>,
    spec: &'a StageSpec,
    index: usize,
    accepted: &'a Accepted,
) -> Option<Room<'a>> {
    let need = spec.alternatives[index].count;
    let rooms = rooms(pool, spec, accepted, need);
    let mut fastest = Fastest::new(pool, need);
    let mut growth =
        pool.expected().map(|mix| Growth::new(pool, mix, item(pool.state(), spec, index)));
    rooms.min_by_key(|room| {
        let grown = growth.as_mut().map(|growth| growth.on(room.node));
        let slowest = fastest.on(room.node, room.devices);
        (Reverse(slowest), grown, room.units, room.node)
    })
}

/// Whether one node has room for all of it.
pub(crate) fn fits_one_node(
    pool: &Pool<'_>,
    spec: &StageSpec,
    index: usize,
    accepted: &Accepted,
) -> bool {
    let need = spec.alternatives[index].count;
    pool.units(accepted) >= need && rooms(pool, spec, accepted, need).next().is_some()
}

/// Nodes with at least so many units.
fn rooms<'a>(
    pool: &'a Pool<'_>,
    spec: &'a StageSpec,
    accepted: &'a Accepted,
    least: u32,
) -> impl Iterator<Item = Room<'a>> {
    let enough = accepted.free(pool).filter(move |(.., free)| *free >= least);
    let rooms = enough.map(|(node, ids, free)| Room::measure(pool, spec, node, ids, free));
    rooms.filter(move |room| room.units >= least)
}

/// Where a gang that no node holds may stand, the best first.
fn domains(spec: &StageSpec) -> impl Iterator<Item = Domain> + use<> {
    let narrowest = if spec.planned.differ() { Domain::Rack } else { spec.within };
    let within = spec.within;
    Domain::ALL.into_iter().filter(move |domain| (narrowest..=within).contains(domain))
}

/// Why a stage that waits cannot start, one reason an alternative, telling *never* from *not now*.
pub fn reasons_why_not(pool: &mut Pool<'_>, spec: &StageSpec) -> Vec<Reason> {
    let mut cluster = Pool::empty_cluster(pool.state());
    let why = |index| never(&mut cluster, spec, index).or_else(|| place(pool, spec, index).err());
    (0..spec.alternatives.len()).filter_map(why).collect()
}

/// That an alternative does not fit even the empty `cluster`, and what would.
pub(crate) fn never(cluster: &mut Pool<'_>, spec: &StageSpec, index: usize) -> Option<Reason> {
    if place(cluster, spec, index).is_ok() {
        return None;
    }
    let alternative = &spec.alternatives[index];
    let word = alternative.selector.word.clone();
    if let Some(drivers) = alternative.selector.drivers.named() {
        let mut any = spec.clone();
        any.alternatives[index].selector.drivers = Drivers::Unknown;
        if place(cluster, &any, index).is_ok() {
            return Some(Reason::NoDriver { word, drivers: drivers.to_vec() });
        }
    }
    // Somebody may ask for millions.
    let most = cluster.units(&super::accepted(cluster.state(), &alternative.selector, None));
    let mut single = spec.clone();
    let mut fits = |count| {
        single.alternatives[index].count = count;
        place(cluster, &single, index).is_ok()
    };
    let largest = (1..alternative.count.min(most + 1)).rev().find(|&count| fits(count));
    let largest = largest.unwrap_or(0);
    Some(Reason::NeverFits { word, need: alternative.count, largest })
}

/// What one node could contribute to a gang.
#[derive(Debug, Clone, Copy)]
struct Room<'a> {
    node: NodeId,
    devices: &'a [DeviceId],
    /// Units that fit together with their companions.
    units: u32,
}

impl<'a> Room<'a> {
    /// `free` whole units of these devices are.
    fn measure(
        pool: &Pool<'_>,
        spec: &StageSpec,
        node: NodeId,
        devices: &'a [DeviceId],
        free: u32,
    ) -> Self {
        let Companions { cores, host } = spec.companions;
        if spec.companions == Companions::default() {
            return Self { node, devices, units: spec.ranks.whole(free) };
        }
        let on_cores = devices.iter().any(|id| pool.sockets(node).contains(id));
        let fits = |count: u32| {
            let ranks = spec.ranks.ranks_on_node(count);
            let own_cores = if on_cores { count } else { 0 };
            ranks * cores + own_cores <= pool.free_cores(node)
                && host.times(ranks).fits(pool.host(node))
        };
        let is_whole = |count: &u32| spec.ranks.whole(*count) == *count;
        let units = (0..=free).rev().filter(is_whole).find(|&count| fits(count)).unwrap_or(0);
        Self { node, devices, units }
    }
}

/// The rooms of one domain with enough units, largest room first; no single room has enough.
fn choose_domain<'a>(
    pool: &Pool<'_>,
    rooms: &[Room<'a>],
    domain: Domain,
    need: u32,
) -> Option<Vec<Room<'a>>> {
    if domain == Domain::Node {
        return None;
    }
    let topology = pool.state().topology();
    let mut groups: BTreeMap<&Name, Vec<Room<'a>>> = BTreeMap::new();
    let anywhere = Name::default();
    for of_one in rooms.chunk_by(|a, b| same(topology, domain, a.node, b.node)) {
        let node = topology.node(of_one[0].node);
        let group = match domain {
            Domain::Node | Domain::Any => &anywhere,
            Domain::Rack => &node.rack,
            Domain::Pod => &node.pod,
        };
        groups.entry(group).or_default().extend(of_one);
    }
    let total = |group: &[Room<'_>]| group.iter().map(|room| room.units).sum::<u32>();
    let fitting = groups.into_values().filter(|group| total(group) >= need);
    let mut chosen = fitting.min_by_key(|group| total(group))?;
    chosen.sort_by_key(|room| (Reverse(room.units), room.node));
    Some(chosen)
}

/// Whether two nodes are in one domain.
fn same(topology: &Topology, domain: Domain, one: NodeId, other: NodeId) -> bool {
    match domain {
        Domain::Node => one == other,
        Domain::Rack => topology.node(one).rack == topology.node(other).rack,
        Domain::Pod => topology.node(one).pod == topology.node(other).pod,
        Domain::Any => true,
    }
}

/// Hands out units room by room; the rooms are known to suffice.
fn fill(pool: &Pool<'_>, spec: &StageSpec, rooms: &[Room<'_>], need: u32) -> Vec<Rank> {
    let mut left = need;
    let mut ranks = Vec::new();
    for room in rooms {
        let count = left.min(room.units);
        if count == 0 {
            break;
        }
        left -= count;
        let mut taken = Taken::default();
        let devices = device_set::choose(pool, room.node, room.devices, count);
        let grants = taken.units(pool, &devices, count);
        let groups = match spec.ranks {
            RankRule::PerNode => vec![grants],
            RankRule::PerUnits(each) => split(&grants, each),
        };
        ranks.extend(groups.into_iter().map(|grants| Rank {
            node: room.node,
            companions: companions(pool, &mut taken, spec.companions.cores, (room.node, &grants)),
            grants,
            host: spec.companions.host,
        }));
    }
    ranks
}

/// Cores beside these devices, of the sockets on whose buses they are as far as those have any.
fn companions(
    pool: &Pool<'_>,
    taken: &mut Taken,
    cores: u32,
    (node, beside): (NodeId, &[Grant]),
) -> Vec<Grant> {
    match cores {
        0 => Vec::new(),
        cores => taken.units(pool, &pool.sockets_near(node, beside), cores),
    }
}

/// Shares that this placement already uses.
#[derive(Default)]
struct Taken(BTreeMap<DeviceId, Share>);

impl Taken {
    fn units(&mut self, pool: &Pool<'_>, devices: &[DeviceId], count: u32) -> Vec<Grant> {
        let mut left = count;
        let mut grants = Vec::new();
        for &device in devices {
            let used = self.0.entry(device).or_default();
            let share =
                Share::units(left.min(pool.free(device).saturating_sub(*used).whole_units()));
            if share > Share::ZERO {
                *used += share;
                left -= share.whole_units();
                grants.push(Grant { device, share });
            }
        }
        grants
    }
}

/// Into so many units each; there are a multiple of them.
fn split(grants: &[Grant], each: NonZeroU32) -> Vec<Vec<Grant>> {
    let units = grants
        .iter()
        .flat_map(|grant| std::iter::repeat_n(grant.device, grant.share.whole_units() as usize));
    let units: Vec<DeviceId> = units.collect();
    let ranks = units.chunks(each.get() as usize).map(|of_rank| {
        let of_device = of_rank.chunk_by(|one, other| one == other);
        let grants = of_device.map(|of_device| Grant {
            device: of_device[0],
            share: Share::units(of_device.len() as u32),
        });
        grants.collect()
    });
    ranks.collect()
}
