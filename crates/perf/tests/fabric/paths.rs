//! Planned paths: no worse than hashing, as good as can be where that is known.

use het_perf::fabric::{
    Clos, Demand, LinkId, Network, Rail, Routes, SpineLeaf, dual_plane, rail, shortest_paths,
    spine_leaf, worst_link_load,
};
use proptest::prelude::*;

const LEAVES: SpineLeaf = SpineLeaf {
    pods: 1,
    leaves_per_pod: 2,
    nics_per_leaf: 8,
    spines_per_pod: 8,
    cores_per_spine: 0,
    nic_bytes_per_s: 50e9,
    oversubscription: 1.0,
    latency_s: 0.5e-6,
};

fn demand(clos: &Clos, from: usize, to: usize) -> Demand {
    Demand { from: clos.nics[from], to: clos.nics[to], bytes_per_s: 50e9 }
}

fn planned(clos: &Clos, demands: &[Demand]) -> f64 {
    let paths = Routes::of(&clos.network, demands).expect("all is joined").planned();
    for (demand, path) in demands.iter().zip(&paths) {
        assert!(clos.network.is_path(path));
        let ends = path.first().zip(path.last());
        let (first, last) = ends.expect("the ends differ");
        assert_eq!(clos.network.link(*first).from, demand.from);
        assert_eq!(clos.network.link(*last).to, demand.to);
    }
    worst_link_load(&clos.network, demands, &paths)
}

#[test]
fn eight_flows_on_eight_uplinks_all_have_line_rate() {
    let clos = spine_leaf(&LEAVES);
    let demands: Vec<Demand> = (0..8).map(|nic| demand(&clos, nic, 8 + nic)).collect();
    assert!((planned(&clos, &demands) - 1.0).abs() < 1e-9);
    let routes = Routes::of(&clos.network, &demands).expect("all is joined");
    let hashed = (0..50).map(|seed| worst_link_load(&clos.network, &demands, &routes.hashed(seed)));
    // Both the way up and the way down collide: a flow's spine decides both.
    assert!(hashed.sum::<f64>() / 50.0 > 2.3);
}

#[test]
fn every_permutation_of_a_fabric_that_blocks_nothing_has_line_rate() {
    let three = SpineLeaf {
        pods: 4,
        leaves_per_pod: 4,
        nics_per_leaf: 4,
        spines_per_pod: 4,
        cores_per_spine: 4,
        ..LEAVES
    };
    for clos in [spine_leaf(&three), spine_leaf(&SpineLeaf { leaves_per_pod: 8, ..LEAVES })] {
        let nics = clos.nics.len();
        for shift in [1, 5, nics / 2, nics - 3] {
            let demands: Vec<Demand> =
                (0..nics).map(|nic| demand(&clos, nic, (nic + shift) % nics)).collect();
            let load = planned(&clos, &demands);
            assert!((load - 1.0).abs() < 1e-9, "{nics} by {shift}: {load}");
        }
    }
}

/// A flow has 1,024 paths here, more than are weighed: those that are must lead all over.
#[test]
fn flows_with_more_paths_than_are_weighed_use_the_whole_fabric() {
    let wide = SpineLeaf {
        pods: 2,
        leaves_per_pod: 32,
        nics_per_leaf: 32,
        spines_per_pod: 32,
        cores_per_spine: 32,
        ..LEAVES
    };
    let clos = spine_leaf(&wide);
    let nics = clos.nics.len();
    let demands: Vec<Demand> =
        (0..nics).map(|nic| demand(&clos, nic, (nic + nics / 2) % nics)).collect();
    let load = planned(&clos, &demands);
    assert!((load - 1.0).abs() < 1e-9, "{load}");
}

#[test]
fn rails_and_planes_carry_rings_at_line_rate() {
    let rails = rail(&Rail {
        nodes: 16,
        rails: 8,
        nodes_per_leaf: 4,
        spines: 4,
        nic_bytes_per_s: 50e9,
        oversubscription: 1.0,
        latency_s: 0.5e-6,
    });
    let next = |nic: usize| demand(&rails, nic, (nic + 8) % 128);
    assert!(planned(&rails, &(0..128).map(next).collect::<Vec<_>>()) <= 1.0 + 1e-9);
    let planes = dual_plane(&LEAVES);
    let half = |from, to| Demand { from, to, bytes_per_s: 25e9 };
    let demands: Vec<Demand> = planes
        .nics
        .chunks(16)
        .flat_map(|ports| (0..8).map(move |nic| half(ports[nic], ports[8 + nic])))
        .collect();
    assert_eq!(demands.len(), 16);
    assert!((planned(&planes, &demands) - 1.0).abs() < 1e-9);
}

#[test]
fn what_cannot_be_reached_is_said_by_name() {
    let mut network = Network::default();
    let [from, to] = ["here", "there"].map(|name| network.add_vertex(name));
    let demands = [Demand { from, to, bytes_per_s: 1.0 }];
    let error = Routes::of(&network, &demands).expect_err("nothing joins them");
    assert_eq!(error.to_string(), "nothing leads from `here` to `there`");
}

/// The least worst load of all combinations of paths.
fn brute_force(network: &Network, demands: &[Demand]) -> f64 {
    let rows: Vec<Vec<Vec<LinkId>>> =
        demands.iter().map(|demand| shortest_paths(network, demand.from, demand.to)).collect();
    let combinations: usize = rows.iter().map(Vec::len).product();
    let loads = (0..combinations).map(|mut place| {
        let paths = rows.iter().map(|row| {
            let path = row[place % row.len()].clone();
            place /= row.len();
            path
        });
        worst_link_load(network, demands, &paths.collect::<Vec<_>>())
    });
    loads.fold(f64::INFINITY, f64::min)
}

fn traffic(nics: usize, flows: usize) -> impl Strategy<Value = Vec<(usize, usize, u32)>> {
    let flow = (0..nics, 1..nics, 1..5_u32);
    let flow = flow.prop_map(move |(from, step, size)| (from, (from + step) % nics, size));
    prop::collection::vec(flow, 1..flows)
}

fn sized(clos: &Clos, traffic: &[(usize, usize, u32)]) -> Vec<Demand> {
    let sized = traffic.iter().map(|(from, to, size)| Demand {
        bytes_per_s: f64::from(*size) * 10e9,
        ..demand(clos, *from, *to)
    });
    sized.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn small_cases_are_as_good_as_can_be(traffic in traffic(6, 8)) {
        let small = SpineLeaf { leaves_per_pod: 3, nics_per_leaf: 2, spines_per_pod: 3, ..LEAVES };
        let clos = spine_leaf(&small);
        let demands = sized(&clos, &traffic);
        let best = brute_force(&clos.network, &demands);
        prop_assert!((planned(&clos, &demands) - best).abs() < 1e-9);
    }

    #[test]
    fn planning_is_never_worse_than_hashing(traffic in traffic(32, 100), seed in 0..1_000_u64) {
        let clos = spine_leaf(&SpineLeaf { leaves_per_pod: 4, spines_per_pod: 4, ..LEAVES });
        let demands = sized(&clos, &traffic);
        let hashed = Routes::of(&clos.network, &demands).expect("all is joined").hashed(seed);
        let hashed = worst_link_load(&clos.network, &demands, &hashed);
        prop_assert!(planned(&clos, &demands) <= hashed + 1e-9);
    }
}
