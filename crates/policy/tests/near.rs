//! Cores beside accelerators: of the sockets on whose buses those are.

use std::sync::Arc;

use het_core::{Companions, Device, DeviceId, Grant, Link, RankRule, StageSpec, State, Topology};
use het_policy::{Pool, place};
use het_testkit::build::{alternative, stage, topology};

/// `cpu0` 0 · `gpu0` 1 on `cpu1` · `gpu1` 2 on `cpu0` · `cpu1` 3; eight cores a socket.
fn two_sockets() -> Topology {
    let mut topology = topology(&[(&[("gpu", 2)], 8)]);
    let first = topology.devices[0].clone();
    topology.devices.push(Device { name: "cpu1".into(), ..first });
    for (gpu, socket) in [(1, 3), (2, 0)] {
        topology.links.push(Link {
            from: DeviceId(gpu).into(),
            to: DeviceId(socket).into(),
            kind: "pcie".into(),
            bandwidth: None,
            count: 1,
            latency_ns: None,
        });
    }
    topology
}

#[track_caller]
fn check(gpus: u32, ranks: RankRule, cores: u32, expected: &[&[(u32, u32)]]) {
    let state = State::new(Arc::new(two_sockets()));
    let companions = Companions { cores, ..Companions::default() };
    let stage = StageSpec { companions, ranks, ..stage("train", vec![alternative("gpu", gpus)]) };
    let placement = place(&mut Pool::empty_cluster(&state), &stage, 0).expect("it fits");
    let cores = |grants: &[Grant]| -> Vec<(u32, u32)> {
        grants.iter().map(|grant| (grant.device.0, grant.share.whole_units())).collect()
    };
    let found: Vec<_> = placement.ranks.iter().map(|rank| cores(&rank.companions)).collect();
    assert_eq!(found, expected);
}

#[test]
fn cores_are_those_next_to_the_device() {
    check(1, RankRule::PER_DEVICE, 4, &[&[(3, 4)]]);
    check(2, RankRule::PER_DEVICE, 4, &[&[(3, 4)], &[(0, 4)]]);
}

#[test]
fn where_those_do_not_suffice_others_help() {
    check(1, RankRule::PER_DEVICE, 10, &[&[(3, 8), (0, 2)]]);
    check(2, RankRule::PerNode, 10, &[&[(0, 8), (3, 2)]]);
}
