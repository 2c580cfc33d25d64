//! Pools of the same devices are searched as one: cuts of ten such pools are those of one that is
//! ten times as large.

use crate::candidate::Candidate;
use crate::layout::{Layout, Replicas, Stage};
use crate::rejection::{Rejection, RejectionReason};
use crate::request::{Pool, Request};

/// A request whose pools are all unlike, and which of the asked ones each is made of.
pub(super) struct MergedPools {
    pub request: Request,
    /// In order: the first has the first nodes.
    members: Vec<Vec<usize>>,
}

impl MergedPools {
    pub fn of(request: &Request) -> Self {
        let mut pools: Vec<Pool> = Vec::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        for (index, pool) in request.pools.iter().enumerate() {
            let same = |other: &Pool| Pool { devices: pool.devices, ..other.clone() } == *pool;
            let joined = joins(request, pool)
                .then(|| pools.iter().position(|other| same(other) && joins(request, other)));
            if let Some(at) = joined.flatten() {
                pools[at].devices += pool.devices;
                members[at].push(index);
            } else {
                pools.push(pool.clone());
                members.push(vec![index]);
            }
        }
        Self { request: request.on(pools), members }
    }

    /// The asked pool that each is, where none is made of several.
    pub fn is_as_asked(&self) -> bool {
        self.members.iter().all(|members| members.len() == 1)
    }

    /// A candidate in terms of the pools that were asked about: replicas are told apart by the
    /// pools they stand on. `None` where a group of devices would stand on two of them.
    pub fn apart(&self, asked: &Request, candidate: Candidate) -> Option<Candidate> {
        let homes = self.homes(asked, &candidate.layout)?;
        let mut homes = homes.into_iter();
        let kinds = candidate.layout.replicas.iter();
        let replicas = kinds.flat_map(|kind| split(kind, homes.by_ref().take(kind.count as usize)));
        let layout = Layout { replicas: replicas.collect(), ..candidate.layout };
        stands(asked, &layout).then_some(Candidate { layout, ..candidate })
    }

    /// A reason in terms of the pools that were asked about: the first of those that were merged.
    pub fn rejection(&self, rejection: Rejection) -> Rejection {
        let first = |pool: usize| self.members[pool][0];
        let why = match rejection.why {
            RejectionReason::OutOfMemory { pool, over } => {
                RejectionReason::OutOfMemory { pool: first(pool), over }
            }
            RejectionReason::OutOfHostMemory { pool, over } => {
                RejectionReason::OutOfHostMemory { pool: first(pool), over }
            }
            why @ (RejectionReason::Slower { .. }
            | RejectionReason::CannotBeFaster { .. }
            | RejectionReason::SavesMoreThanNeeded
            | RejectionReason::NotDivisible) => why,
        };
        Rejection { why, ..rejection }
    }

    /// For each replica the asked pool of each stage.
    fn homes(&self, asked: &Request, layout: &Layout) -> Option<Vec<Vec<usize>>> {
        let kinds = layout.replicas.iter();
        let mut homes: Vec<Vec<Option<usize>>> = kinds
            .flat_map(|kind| vec![vec![None; kind.stages.len()]; kind.count as usize])
            .collect();
        for place in layout.ranks(&self.request.pools) {
            let home = self.home(asked, place.pool, place.node)?;
            let known = &mut homes[place.replica as usize][place.stage as usize];
            if *known.get_or_insert(home) != home {
                return None;
            }
        }
        homes.into_iter().map(|stages| stages.into_iter().collect()).collect()
    }

    /// The asked pool that a node is of.
    fn home(&self, asked: &Request, pool: usize, node: u32) -> Option<usize> {
        let mut before = 0;
        self.members[pool].iter().copied().find(|member| {
            let there = &asked.pools[*member];
            before += there.devices.div_ceil(there.machine.island.devices_per_node.max(1));
            node < before
        })
    }
}

/// Whether a pool can be one with others: of whole nodes, for what is left over of two nodes is no
/// node, and with nothing slower between pools than within.
fn joins(request: &Request, pool: &Pool) -> bool {
    let island = &pool.machine.island;
    let near = request.between_gbps.is_none_or(|between| between >= island.network_gbps);
    near && pool.devices.is_multiple_of(island.devices_per_node.max(1))
}

/// Replicas by where they stand, neighbours together.
fn split(kind: &Replicas, homes: impl Iterator<Item = Vec<usize>>) -> Vec<Replicas> {
    let mut runs: Vec<(Vec<usize>, u32)> = Vec::new();
    for home in homes {
        match runs.last_mut() {
            Some((last, count)) if *last == home => *count += 1,
            _ => runs.push((home, 1)),
        }
    }
    let mut more = kind.more;
    let part = |(home, count): (Vec<usize>, u32)| {
        let stages = kind.stages.iter().zip(home).map(|(stage, pool)| Stage { pool, ..*stage });
        let own = more.min(count);
        more -= own;
        Replicas { count, more: own, stages: stages.collect(), ..kind.clone() }
    };
    runs.into_iter().map(part).collect()
}

/// Whether every rank stands on a device that is there.
fn stands(request: &Request, layout: &Layout) -> bool {
    layout.ranks(&request.pools).iter().all(|place| {
        let pool = &request.pools[place.pool];
        place.node * pool.machine.island.devices_per_node.max(1) + place.device < pool.devices
    })
}
