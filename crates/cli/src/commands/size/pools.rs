//! The devices that a job may have: from words, files or this machine.

use het_core::Bytes;
use het_parallel::Pool;
use het_planner::pools::{self, of_cluster};
use het_planner::{PoolError, Pools};
use het_wire::topology::FABRICS;

use crate::cluster::{cluster, this};
use crate::fail::{Fail, code};

/// `NxCLASS`, templates, files, or any cluster that `het sim` knows, several joined by `+`.
pub fn of_word(word: &str) -> Result<Pools, Fail> {
    parts(word).iter().try_fold(Pools::default(), |all, part| {
        let more = match counted(part) {
            Some((count, class)) => Pools { pools: vec![usual(class, count)?], ..Pools::default() },
            None => of_cluster(&cluster(part)?).map_err(|error| refused(&error))?,
        };
        Ok(all.and(more))
    })
}

/// Of this machine, with its own memory and links.
pub fn of_this() -> Result<Pools, Fail> {
    let machine = this();
    let mut all = of_cluster(&machine).map_err(|error| refused(&error))?;
    let devices: u32 = all.pools.iter().map(|pool| pool.devices).sum();
    let host = machine.topology.nodes.first().map_or(Bytes::ZERO, |node| node.host.memory);
    for pool in &mut all.pools {
        pool.host_memory = Some(Bytes(host.0 / u64::from(devices.max(1))));
    }
    Ok(all)
}

/// Devices of a class, joined as usual.
pub fn usual(class: &str, devices: u32) -> Result<Pool, Fail> {
    pools::usual(class, devices).map_err(|error| refused(&error))
}

fn refused(error: &PoolError) -> Fail {
    Fail::new(code::USAGE, error.to_string()).hint(error.hint())
}

/// Parts between `+`; a fabric stays with the template before it.
fn parts(word: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in word.split('+').map(str::trim) {
        match parts.last_mut() {
            Some(last) if FABRICS.contains(&part) => *last = format!("{last}+{part}"),
            _ => parts.push(part.to_owned()),
        }
    }
    parts
}

/// `8xh100-sxm5-80`: so many of a class, joined as usual.
fn counted(part: &str) -> Option<(u32, &str)> {
    let (count, class) = part.split_once('x')?;
    Some((count.parse().ok().filter(|count| *count > 0)?, class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_and_counts_stand_side_by_side() {
        let pools = |word: &str| of_word(word).map(|all| all.pools).expect("pools");
        let found = pools("hgx-h100-8x4+rail+16xascend-910b");
        let told: Vec<_> = found.iter().map(|pool| (pool.class.as_str(), pool.devices)).collect();
        assert_eq!(told, [("h100-sxm5-80", 32), ("ascend-910b", 16)]);
        let [drawn, usual] = [&found[0], &pools("32xh100-sxm5-80")[0]].map(|pool| pool.machine);
        assert_eq!(drawn.island.devices_per_node, usual.island.devices_per_node);
        assert!((drawn.island.network_gbps / usual.island.network_gbps - 1.0).abs() < 0.01);
        let links = drawn.island.link_gbps / usual.island.link_gbps;
        assert!((0.9..1.1).contains(&links), "{links}");
        assert_eq!(pools("gb200-nvl72")[0].machine.island.devices_per_node, 72);
    }
}
