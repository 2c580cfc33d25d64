//! A large fabric: shares of 10,000 flows over 8,192 links, packets, planned paths, collectives.

use criterion::{Criterion, criterion_group, criterion_main};
use het_perf::fabric::{
    Clos, Collective, Control, Dcqcn, Demand, Flow, Group, Link, LinkId, Marking, Message, Network,
    PacketModel, Routes, SpineLeaf, Transport, completion_times, deliver, hash, spine_leaf,
};

/// 1,024 NICs below 64 leaves and 16 spines in each of four pods.
fn fabric() -> Clos {
    spine_leaf(&SpineLeaf {
        pods: 4,
        leaves_per_pod: 16,
        nics_per_leaf: 16,
        spines_per_pod: 16,
        cores_per_spine: 8,
        nic_bytes_per_s: 50e9,
        oversubscription: 1.0,
        latency_s: 0.5e-6,
    })
}

fn demands(clos: &Clos, flows: u64) -> Vec<Demand> {
    let nics = clos.nics.len() as u64;
    let demand = |flow: u64| {
        let from = hash(1, flow) % nics;
        let to = (from + 1 + hash(2, flow) % (nics - 1)) % nics;
        let bytes_per_s = 5e9;
        Demand { from: clos.nics[from as usize], to: clos.nics[to as usize], bytes_per_s }
    };
    (0..flows).map(demand).collect()
}

/// Seven links one behind the other, and every stretch of them.
fn line() -> (Network, Vec<Vec<LinkId>>) {
    let mut network = Network::default();
    let hosts: Vec<_> = (0..8).map(|host| network.add_vertex(format!("host {host}"))).collect();
    let links: Vec<LinkId> = hosts
        .windows(2)
        .map(|ends| {
            let (from, to) = (ends[0], ends[1]);
            network.add_link(Link { from, to, bytes_per_s: 1.25e9, latency_s: 1e-6 })
        })
        .collect();
    let stretch = |from: usize| (from + 1..=links.len()).map(move |to| from..to);
    let stretches = (0..links.len()).flat_map(stretch).map(|places| links[places].to_vec());
    let stretches = stretches.collect();
    (network, stretches)
}

fn large(criterion: &mut Criterion) {
    let clos = fabric();
    let demands = demands(&clos, 10_000);
    let paths = Routes::of(&clos.network, &demands).expect("all is joined").hashed(3);
    let flows: Vec<Flow> = paths
        .iter()
        .zip(0_u64..)
        .map(|(path, flow)| Flow {
            arrival_s: (hash(4, flow) % 1_000_000) as f64 * 1e-8,
            wire_bytes: (hash(5, flow) % 10_000_000) as f64 + 1e5,
            path: path.clone(),
        })
        .collect();
    criterion.bench_function("shares of 10,000 flows", |bencher| {
        bencher.iter(|| completion_times(&clos.network, &flows));
    });
    let at_once: Vec<Flow> =
        flows.iter().map(|flow| Flow { arrival_s: 0.0, ..flow.clone() }).collect();
    criterion.bench_function("shares of 10,000 flows that begin at once", |bencher| {
        bencher.iter(|| completion_times(&clos.network, &at_once));
    });
    let (line, stretches) = line();
    let along: Vec<Flow> = at_once
        .iter()
        .zip(0_u64..)
        .map(|(flow, place)| {
            let path = stretches[(hash(6, place) % stretches.len() as u64) as usize].clone();
            Flow { path, ..flow.clone() }
        })
        .collect();
    criterion.bench_function("shares of 10,000 flows that begin at once along a line", |bencher| {
        bencher.iter(|| completion_times(&line, &along));
    });
    criterion.bench_function("paths for 10,000 flows", |bencher| {
        bencher.iter(|| Routes::of(&clos.network, &demands).expect("all is joined").planned());
    });
    let messages: Vec<Message> = flows
        .iter()
        .take(1_000)
        .map(|flow| {
            let (arrival_s, path) = (flow.arrival_s, flow.path.clone());
            Message { arrival_s, bytes: flow.wire_bytes as u64 / 50, path }
        })
        .collect();
    let model = PacketModel {
        payload_bytes_max: 4_096,
        header_bytes: 66,
        window_bytes: 400e3,
        marking: Marking { min_bytes: 800e3, max_bytes: 3_200e3, probability_max: 0.2 },
        control: Control::Dcqcn(Dcqcn::vendor(50e9)),
        seed: 1,
    };
    criterion.bench_function("packets of 1,000 flows, 100 MB", |bencher| {
        bencher.iter(|| deliver(&clos.network, &messages, &model));
    });
    let group =
        Group::new([128, 8], Transport::nvlink(18, 20.6), Transport::network(400.0), 3.35e12);
    criterion.bench_function("cost of an all-reduce", |bencher| {
        bencher.iter(|| group.cost(Collective::AllReduce, 1e9));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = large
}
criterion_main!(benches);
