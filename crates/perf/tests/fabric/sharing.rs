//! Max-min shares: no link beyond its capacity, everybody has a bottleneck, nothing depends on the
//! order of flows, and all the work is done.

use het_perf::fabric::{
    Control, Dcqcn, Flow, Link, LinkId, Marking, Message, Network, PacketModel, completion_times,
    deliver, max_min_rates,
};
use proptest::prelude::*;

/// Links side by side: a path may use any of them, in any order.
fn network(capacities: &[f64]) -> Network {
    let mut network = Network::default();
    for (index, bytes_per_s) in capacities.iter().enumerate() {
        let from = network.add_vertex(format!("from {index}"));
        let to = network.add_vertex(format!("to {index}"));
        network.add_link(Link { from, to, bytes_per_s: *bytes_per_s, latency_s: 0.0 });
    }
    network
}

fn capacities() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(1.0..100.0, 6)
}

fn path() -> impl Strategy<Value = Vec<LinkId>> {
    prop::collection::btree_set(0..6_u32, 1..4)
        .prop_map(|links| links.into_iter().map(LinkId).collect())
}

/// Every other flow on the same path as many others.
fn flows() -> impl Strategy<Value = Vec<Flow>> {
    let path = prop_oneof![path(), Just(vec![LinkId(0), LinkId(1)])];
    let flow = (0.0..10.0, 1.0..50.0, path).prop_map(|(arrival_s, wire_bytes, path)| Flow {
        arrival_s,
        wire_bytes,
        path,
    });
    prop::collection::vec(flow, 1..40)
}

/// What progressive filling gives if all of it is done again at every change: written apart from
/// the model, without its bookkeeping.
fn reference(capacities: &[f64], flows: &[Flow]) -> Vec<f64> {
    let mut remaining: Vec<f64> = flows.iter().map(|flow| flow.wire_bytes).collect();
    let mut completed = vec![f64::NAN; flows.len()];
    let mut now = 0.0;
    loop {
        let active: Vec<usize> = (0..flows.len())
            .filter(|flow| flows[*flow].arrival_s <= now && completed[*flow].is_nan())
            .collect();
        let paths: Vec<&[LinkId]> = active.iter().map(|flow| &flows[*flow].path[..]).collect();
        let rates = fill(capacities, &paths);
        let later = flows.iter().map(|flow| flow.arrival_s).filter(|at| *at > now);
        let arrival = later.fold(f64::INFINITY, f64::min);
        let ends = active.iter().zip(&rates).map(|(flow, rate)| now + remaining[*flow] / rate);
        let end = ends.fold(f64::INFINITY, f64::min);
        let next = arrival.min(end);
        if next == f64::INFINITY {
            return completed;
        }
        for (flow, rate) in active.iter().zip(&rates) {
            remaining[*flow] -= rate * (next - now);
            if remaining[*flow] <= 1e-9 {
                completed[*flow] = next - flows[*flow].arrival_s;
            }
        }
        now = next;
    }
}

fn fill(capacities: &[f64], paths: &[&[LinkId]]) -> Vec<f64> {
    let mut rates = vec![f64::NAN; paths.len()];
    while rates.iter().any(|rate| rate.is_nan()) {
        let share = |link: usize| {
            let on = |path: &&[LinkId]| path.contains(&LinkId(link as u32));
            let mut left = capacities[link];
            let mut open = 0;
            for (path, rate) in paths.iter().zip(&rates).filter(|(path, _)| on(path)) {
                let _ = path;
                if rate.is_nan() { open += 1 } else { left -= rate }
            }
            if open == 0 { f64::INFINITY } else { left / f64::from(open) }
        };
        let shares: Vec<f64> = (0..capacities.len()).map(share).collect();
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let link = shares.iter().position(|share| *share == least).expect("some flow is open");
        for (path, rate) in paths.iter().zip(&mut rates) {
            if rate.is_nan() && path.contains(&LinkId(link as u32)) {
                *rate = least;
            }
        }
    }
    rates
}

proptest! {
    #[test]
    fn every_flow_has_a_bottleneck_and_no_link_too_much(
        capacities in capacities(),
        paths in prop::collection::vec(path(), 1..60),
    ) {
        let rates = max_min_rates(&network(&capacities), &paths);
        let on = |link: u32| {
            let rows = paths.iter().zip(&rates);
            rows.filter(move |(path, _)| path.contains(&LinkId(link))).map(|(_, rate)| *rate)
        };
        for link in 0..6 {
            let load: f64 = on(link).sum();
            prop_assert!(load <= capacities[link as usize] * (1.0 + 1e-9), "{link}: {load}");
        }
        for (path, rate) in paths.iter().zip(&rates) {
            let bottleneck = path.iter().any(|link| {
                let full = on(link.0).sum::<f64>() >= capacities[link.0 as usize] * (1.0 - 1e-7);
                full && on(link.0).all(|other| other <= rate * (1.0 + 1e-7))
            });
            prop_assert!(bottleneck, "{path:?} at {rate} of {rates:?}");
        }
    }

    #[test]
    fn what_is_shared_out_again_equals_sharing_all_out_again(
        capacities in capacities(),
        flows in flows(),
    ) {
        let ours = completion_times(&network(&capacities), &flows);
        for (ours, theirs) in ours.iter().zip(reference(&capacities, &flows)) {
            prop_assert!((ours / theirs - 1.0).abs() < 1e-6, "{ours} and {theirs}");
        }
    }

    #[test]
    fn the_order_of_flows_does_not_matter(capacities in capacities(), flows in flows()) {
        let network = network(&capacities);
        let there = completion_times(&network, &flows);
        let reversed: Vec<Flow> = flows.iter().rev().cloned().collect();
        let back = completion_times(&network, &reversed);
        for (there, back) in there.iter().zip(back.iter().rev()) {
            prop_assert!((there / back - 1.0).abs() < 1e-9, "{there} and {back}");
        }
    }

    #[test]
    fn a_single_link_is_never_idle_while_there_is_work(
        sizes in prop::collection::vec(1.0..50.0, 1..30),
    ) {
        let flow = |wire_bytes: &f64| {
            Flow { arrival_s: 0.0, wire_bytes: *wire_bytes, path: vec![LinkId(0)] }
        };
        let flows: Vec<Flow> = sizes.iter().map(flow).collect();
        let last = completion_times(&network(&[7.0]), &flows).into_iter().fold(0.0, f64::max);
        prop_assert!((last / (sizes.iter().sum::<f64>() / 7.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn packets_are_never_faster_than_the_link(
        sizes in prop::collection::vec(1..200_000_u64, 1..20),
        seed in 0..1_000_u64,
    ) {
        let network = network(&[f64::INFINITY, 1.25e9]);
        let message = |bytes: &u64| {
            Message { arrival_s: 0.0, bytes: *bytes, path: vec![LinkId(0), LinkId(1)] }
        };
        let messages: Vec<Message> = sizes.iter().map(message).collect();
        let model = PacketModel {
            payload_bytes_max: 1_000,
            header_bytes: 48,
            window_bytes: 17_500.0,
            marking: Marking { min_bytes: 14e3, max_bytes: 30e3, probability_max: 0.2 },
            control: Control::Dcqcn(Dcqcn::paper(1.25e9)),
            seed,
        };
        let times = deliver(&network, &messages, &model);
        let wire = |bytes: u64| (bytes + 48 * bytes.div_ceil(1_000)) as f64 / 1.25e9;
        for (bytes, time) in sizes.iter().zip(&times) {
            prop_assert!(*time >= wire(*bytes) - 1e-9, "{bytes} in {time}");
        }
        let all: f64 = sizes.iter().map(|bytes| wire(*bytes)).sum();
        prop_assert!(times.iter().copied().fold(0.0, f64::max) >= all - 1e-9);
        prop_assert_eq!(times, deliver(&network, &messages, &model));
    }
}
