//! In which order sums in several memories become one: what a data-parallel step does with the
//! gradients of its replicas.
//!
//! Three shapes are tried on the link graph, and the one that ends first is taken. In a *star* the
//! first memory takes in all others. In a *tree* near memories become one first, all pairs at a
//! time, until one is left. In a *chain* each takes in its neighbour's, from the far end to the
//! first: of many sums every link carries one at a time, as in the first half of a ring. A copy
//! that a third memory would have to hand on is in none but the star.

use crate::{Machine, MemoryId};

/// `into += from`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addition {
    pub into: MemoryId,
    pub from: MemoryId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReductionShape {
    Star,
    Tree,
    Chain,
}

/// An order of additions after which the first memory has the whole sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduction {
    pub shape: ReductionShape,
    pub additions: Vec<Addition>,
    /// What it takes for all sums, where nothing else is under way.
    pub nanos: f64,
}

impl Reduction {
    /// Of sums of so many bytes each, one after the other, that every memory has. `add` is how many
    /// nanoseconds a memory's device takes to add so many bytes, infinite where it cannot.
    pub fn plan(
        machine: &Machine,
        memories: &[MemoryId],
        sums: &[u64],
        add: impl Fn(MemoryId, u64) -> f64,
    ) -> Self {
        let Some((root, others)) = memories.split_first() else {
            return Self { shape: ReductionShape::Star, additions: Vec::new(), nanos: 0.0 };
        };
        let bytes = sums.iter().copied().max().unwrap_or(0);
        let distance = |a: MemoryId, b: MemoryId| match machine.is_direct(a, b) {
            true => machine.transfer_time(a, b, bytes).map_or(f64::INFINITY, |nanos| nanos as f64),
            false => f64::INFINITY,
        };
        let can_add = |memory: MemoryId| add(memory, bytes).is_finite();
        let all = [
            (ReductionShape::Star, star(*root, others)),
            (ReductionShape::Tree, tree(memories, distance, can_add)),
            (ReductionShape::Chain, chain(*root, others, distance)),
        ];
        let timed = all.into_iter().map(|(shape, additions)| {
            let is_relayed = |own: &Addition| !machine.is_direct(own.from, own.into);
            let nanos = match shape != ReductionShape::Star && additions.iter().any(is_relayed) {
                true => f64::INFINITY,
                false => makespan(machine, &additions, sums, &add),
            };
            Self { shape, additions, nanos }
        });
        let best = timed.min_by(|a, b| a.nanos.total_cmp(&b.nanos));
        best.unwrap_or_else(|| unreachable!("there are three"))
    }
}

fn star(root: MemoryId, others: &[MemoryId]) -> Vec<Addition> {
    others.iter().map(|from| Addition { into: root, from: *from }).collect()
}

/// Level by level the nearest pairs: of each the earlier one takes in the later.
fn tree(
    memories: &[MemoryId],
    distance: impl Fn(MemoryId, MemoryId) -> f64,
    can_add: impl Fn(MemoryId) -> bool,
) -> Vec<Addition> {
    let mut left = memories.to_vec();
    let mut additions = Vec::new();
    while left.len() > 1 {
        let mut pairs: Vec<(f64, usize, usize)> = Vec::new();
        for (later, from) in left.iter().enumerate() {
            let able = left[..later].iter().enumerate().filter(|(_, into)| can_add(**into));
            pairs.extend(able.map(|(into, at)| (distance(*from, *at), into, later)));
        }
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let mut is_taken = vec![false; left.len()];
        let mut gone = vec![false; left.len()];
        for (_, into, from) in pairs {
            if is_taken[into] || is_taken[from] {
                continue;
            }
            (is_taken[into], is_taken[from], gone[from]) = (true, true, true);
            additions.push(Addition { into: left[into], from: left[from] });
        }
        if !gone.contains(&true) {
            // The first can't add: whoever asked has no use for any order.
            break;
        }
        let mut gone = gone.into_iter();
        left.retain(|_| !gone.next().unwrap_or(false));
    }
    additions
}

/// From each the nearest that is left is next; the last one begins.
fn chain(
    root: MemoryId,
    others: &[MemoryId],
    distance: impl Fn(MemoryId, MemoryId) -> f64,
) -> Vec<Addition> {
    let mut left = others.to_vec();
    let (mut at, mut additions) = (root, Vec::new());
    while !left.is_empty() {
        let near = |own: &usize| distance(left[*own], at);
        let next = (0..left.len()).min_by(|a, b| near(a).total_cmp(&near(b)));
        let from = left.remove(next.unwrap_or(0));
        additions.push(Addition { into: at, from });
        at = from;
    }
    additions.reverse();
    additions
}

/// Plays it: every link carries one copy at a time, every memory's device adds one sum at a time,
/// in the order in which they are asked for.
fn makespan(
    machine: &Machine,
    additions: &[Addition],
    sums: &[u64],
    add: &impl Fn(MemoryId, u64) -> f64,
) -> f64 {
    let mut link_free = vec![0.0_f64; machine.links().len()];
    let mut device_free = vec![0.0_f64; machine.memories().len()];
    let mut end = 0.0_f64;
    for bytes in sums {
        let mut ready = vec![0.0_f64; machine.memories().len()];
        for Addition { into, from } in additions {
            let Some(whole) = machine.transfer_time(*from, *into, *bytes) else {
                return f64::INFINITY;
            };
            let links = || machine.links_between(*from, *into);
            let start = links().fold(ready[from.row()], |at, link| at.max(link_free[link]));
            links().for_each(|link| {
                link_free[link] = start + machine.link_time(link, *bytes) as f64;
            });
            let arrived = (start + whole as f64).max(ready[into.row()]);
            let added = arrived.max(device_free[into.row()]) + add(*into, *bytes);
            (ready[into.row()], device_free[into.row()]) = (added, added);
            end = end.max(added);
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use het_core::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{Device, Link, Memory};

    /// So many memories with a device each.
    fn machine(count: usize, switches: usize, links: Vec<Link>) -> (Machine, Vec<MemoryId>) {
        let memory = |row: usize| Memory { name: format!("m{row}"), capacity: Bytes(u64::MAX) };
        let device = |row: usize| Device {
            name: format!("d{row}"),
            class: "cpu".to_owned(),
            memory: MemoryId(row as u16),
            wake: 0,
        };
        let devices = (0..count).map(device).collect();
        let machine = Machine::new(devices, (0..count).map(memory).collect(), switches, links);
        let machine = machine.expect("it fits together");
        let memories = machine.memory_ids().collect();
        (machine, memories)
    }

    /// So many memories on each node behind a switch of its own, the switches joined by a link.
    fn nodes(nodes: usize, each: usize, within: f64, between: f64) -> (Machine, Vec<MemoryId>) {
        let count = nodes * each;
        let own = (0..count).flat_map(|row| Link::both(row, count + row / each, within, 1_000));
        let joins =
            (1..nodes).flat_map(|node| Link::both(count + node - 1, count + node, between, 10_000));
        machine(count, nodes, own.chain(joins).collect())
    }

    /// Adding reads and writes memory at 10 GB/s.
    fn add(_: MemoryId, bytes: u64) -> f64 {
        3.0 * bytes as f64 / 10.0
    }

    #[test]
    fn one_slow_link_is_crossed_once_and_not_by_all() {
        let (machine, memories) = nodes(2, 4, 20e9, 1e9);
        let sums = [32 << 20; 12];
        let planned = Reduction::plan(&machine, &memories, &sums, add);
        let star = makespan(&machine, &star(memories[0], &memories[1..]), &sums, &add);
        assert_ne!(planned.shape, ReductionShape::Star);
        assert!(planned.nanos < 0.3 * star, "{planned:?} beside {star}");
        let crossing = planned.additions.iter().filter(|own| (own.into.0 < 4) != (own.from.0 < 4));
        assert_eq!(crossing.count(), 1, "{planned:?}");
    }

    #[test]
    fn two_of_them_need_no_shape_and_short_sums_a_tree() {
        let (machine, memories) = nodes(1, 2, 10e9, 1e9);
        let planned = Reduction::plan(&machine, &memories, &[1 << 20], add);
        assert_eq!(planned.shape, ReductionShape::Star);
        // One sum: a chain would hand it on fifteen times.
        let (machine, memories) = nodes(1, 16, 10e9, 1e9);
        let planned = Reduction::plan(&machine, &memories, &[1 << 20], add);
        assert_eq!(planned.shape, ReductionShape::Tree);
    }

    #[test]
    fn many_sums_go_down_a_chain() {
        let (machine, memories) = nodes(1, 8, 2e9, 1e9);
        let planned = Reduction::plan(&machine, &memories, &[32 << 20; 30], add);
        assert_eq!(planned.shape, ReductionShape::Chain);
    }

    #[test]
    fn workers_behind_the_program_give_to_it_alone() {
        let links = (1..16).flat_map(|row| Link::both(0, row, 1e9, 1_000)).collect();
        let (machine, memories) = machine(16, 0, links);
        assert!(machine.is_direct(memories[3], memories[0]));
        assert!(!machine.is_direct(memories[3], memories[4]));
        let planned = Reduction::plan(&machine, &memories, &[32 << 20; 4], add);
        assert_eq!(planned.shape, ReductionShape::Star);
        assert!(planned.nanos.is_finite());
    }

    #[test]
    fn who_can_not_add_only_gives() {
        let (machine, memories) = nodes(1, 4, 1e9, 1e9);
        let add = |memory: MemoryId, bytes: u64| match memory.row() {
            0 | 2 => add(memory, bytes),
            _ => f64::INFINITY,
        };
        let planned = Reduction::plan(&machine, &memories, &[1 << 20; 4], add);
        assert!(planned.nanos.is_finite(), "{planned:?}");
        assert!(planned.additions.iter().all(|own| matches!(own.into.row(), 0 | 2)), "{planned:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        /// Whatever the shape, every other memory gives its sum once, after it took in all that it
        /// takes in, and the first has all of them.
        #[test]
        fn every_sum_gets_to_the_first(
            per_node in 1_usize..6,
            count in 1_usize..4,
            within in 1.0_f64..50.0,
            between in 0.1_f64..50.0,
            sums in prop::collection::vec(1_u64..100_000_000, 1..8),
        ) {
            let (machine, memories) = nodes(count, per_node, within * 1e9, between * 1e9);
            let (root, others) = memories.split_first().expect("there is one");
            let bytes = sums.iter().copied().max().expect("there is one");
            let distance =
                |a, b| machine.transfer_time(a, b, bytes).map_or(f64::INFINITY, |at| at as f64);
            let planned = Reduction::plan(&machine, &memories, &sums, add);
            for additions in [
                star(*root, others),
                tree(&memories, distance, |_| true),
                chain(*root, others, distance),
                planned.additions.clone(),
            ] {
                let mut held: Vec<BTreeSet<u16>> =
                    memories.iter().map(|own| BTreeSet::from([own.0])).collect();
                for Addition { into, from } in &additions {
                    let given = std::mem::take(&mut held[from.row()]);
                    prop_assert!(!given.is_empty(), "{additions:?}");
                    prop_assert!(!held[into.row()].is_empty(), "{additions:?}");
                    held[into.row()].extend(given);
                }
                prop_assert_eq!(held[0].len(), memories.len());
                let nanos = makespan(&machine, &additions, &sums, &add);
                prop_assert!(planned.nanos <= nanos);
            }
        }
    }
}
