//! Which devices of a node a gang gets: the best set there is, on every machine that templates
//! know, on drawn ones, and on those that are found in a composed sysfs; and what that is worth on
//! boxes whose sockets are far apart.

#[path = "../../devices/tests/tree/mod.rs"]
mod tree;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use het_control::{Controller, MemoryLog};
use het_core::{
    Bytes, Device, DeviceId, Distance, Event, Grant, HostResources, Index, Link, Millis, NodeId,
    Placement, Plan, Priority, Rank, RankRule, Share, State, Time, Topology, Vertex, bits,
};
use het_engine::{Engine, Waker};
use het_lab::workload::{Speeds as Table, read_jobs};
use het_lab::{Assumptions, Cadence, CheckpointModel, Draw, Noise, Restart, Scenario, what_if};
use het_perf::Rates;
use het_policy::{Pool, View, by_name, candidates, place};
use het_sim::Sim;
use het_testkit::build::{alternative, job, key, stage, submitted};

fn cluster(word: &str) -> Topology {
    het_wire::topology::from_word(word).expect("the word is known").topology
}

/// Sets of free devices that are drawn for each size of a gang.
const DRAWS: u64 = 20;

/// Drawn machines whose sysfs is read.
const BOXES_FOUND: u64 = 20;

/// The three criteria, the least is best: the slowest pair; sockets, steps to cards, devices that
/// share one; pairs of free devices that are parted.
fn criteria(index: &Index, free: u64, set: u64) -> impl Ord + std::fmt::Debug + use<> {
    let table = &index.interconnects[0];
    let rows: Vec<usize> = bits(set).collect();
    let mut slowest = None;
    for (at, &a) in rows.iter().enumerate() {
        for &b in &rows[at + 1..] {
            let path = table.path(a, b).map(|path| {
                let bandwidth = path.bandwidth.unwrap_or(Bytes(u64::MAX));
                (path.distance == Distance::Peers, bandwidth, Reverse(path.distance))
            });
            slowest = Some(slowest.map_or(path, |least: Option<_>| least.min(path)));
        }
    }
    let sockets: BTreeSet<_> = rows.iter().filter_map(|&row| table.sockets[row]).collect();
    let cards: Vec<_> = rows.iter().filter_map(|&row| table.near_cards[row]).collect();
    let different: BTreeSet<_> = cards.iter().map(|near| near.card).collect();
    let steps = |distance| match distance {
        Distance::Peers | Distance::Switch => 0,
        Distance::Switches => 1,
        Distance::Socket => 2,
        Distance::Sockets => 3,
    };
    let far: u32 = cards.iter().map(|near| steps(near.distance)).sum();
    let mut parted = 0;
    for island in &table.islands {
        let together = |devices: u64| {
            let rows: Vec<usize> = bits(devices & island).collect();
            rows.iter().map(|a| rows.iter().filter(|b| *b > a).count()).sum::<usize>()
        };
        parted += together(free) - together(free & !set);
    }
    let (slowest, shared) = (Reverse(slowest), cards.len() - different.len());
    (slowest, sockets.len(), far, shared, parted)
}

/// Every gang size on drawn sets of free accelerators of one node.
fn check_node(name: &str, topology: &Topology, draw: &mut Draw) {
    let index = Index::of(topology);
    let state = State::new(Arc::new(topology.clone()));
    let accelerators: Vec<DeviceId> = topology.accelerators().collect();
    let class = topology.class_of(accelerators[0]).id.clone();
    let alike: Vec<DeviceId> =
        accelerators.iter().copied().filter(|id| topology.class_of(*id).id == class).collect();
    for size in 1..=alike.len() as u32 {
        for _ in 0..DRAWS {
            let held: Vec<DeviceId> =
                accelerators.iter().copied().filter(|_| draw.chance(40)).collect();
            let free = |id: &DeviceId| !held.contains(id);
            let open = index.local_set(NodeId(0), alike.iter().copied().filter(free));
            if open.count_ones() < size {
                continue;
            }
            let all_free = index.local_set(NodeId(0), accelerators.iter().copied().filter(free));
            let mut pool = Pool::empty_cluster(&state);
            pool.take(&holding(&held));
            let spec = stage("train", vec![alternative(class.as_str(), size)]);
            let placed = place(&mut pool, &spec, 0).expect("there is room");
            let found = index.local_set(NodeId(0), placed.devices().map(|grant| grant.device));
            assert_eq!(found.count_ones(), size);
            let best = subsets(open, size).map(|set| criteria(&index, all_free, set)).min();
            assert_eq!(
                Some(criteria(&index, all_free, found)),
                best,
                "{name}: {size} of {open:b}, where {all_free:b} are free, got {found:b}"
            );
        }
    }
}

fn holding(devices: &[DeviceId]) -> Placement {
    let grants = devices.iter().map(|&device| Grant { device, share: Share::WHOLE }).collect();
    let rank = Rank { node: NodeId(0), grants, companions: Vec::new(), host: HostResources::NONE };
    Placement { alternative: 0, ranks: vec![rank] }
}

fn subsets(among: u64, size: u32) -> impl Iterator<Item = u64> {
    let rows: Vec<usize> = bits(among).collect();
    let all = (0..1_u64 << rows.len()).filter(move |choice| choice.count_ones() == size);
    all.map(move |choice| bits(choice).map(|at| 1 << rows[at]).sum())
}

#[test]
fn a_gang_gets_the_best_set_on_every_template() {
    let words = [
        "hgx-a100-8",
        "hgx-h100-8",
        "l40s-8",
        "a100-pcie-8",
        "atlas-800t-a2",
        "atlas-a3",
        "t4x4",
        "epyc-h100x8-910b",
    ];
    for (stream, word) in words.into_iter().enumerate() {
        let topology = cluster(word);
        check_node(word, &topology, &mut Draw::new(7, stream as u64));
    }
}

/// Sockets with host bridges, switches below some, x8 and x16 slots, a bridge between some pairs,
/// some cards.
fn drawn_node(draw: &mut Draw) -> Topology {
    let mut topology = cluster("l40s-8");
    topology.links.clear();
    let switch = |name: String| Vertex::Switch(format!("{}/{name}", topology.nodes[0].name).into());
    let (sockets, accelerators): (Vec<DeviceId>, Vec<DeviceId>) =
        topology.device_ids().partition(|id| topology.class_of(*id).kind == "cpu");
    let mut links: Vec<Link> = Vec::new();
    let mut link = |from: Vertex, to: Vertex, kind: &str, gbps: u64| {
        links.push(Link {
            from,
            to,
            kind: kind.into(),
            bandwidth: (gbps > 0).then_some(Bytes(gbps * 1_000_000_000)),
            count: 1,
            latency_ns: None,
        });
    };
    for socket in &sockets {
        link((*socket).into(), NodeId(0).into(), "memory", 0);
    }
    let mut hosts: Vec<Vertex> = Vec::new();
    for number in 0..draw.between(1, 4) {
        let socket = *draw.pick(&sockets);
        let bridge = switch(format!("pci0000:{number}0"));
        link(bridge.clone(), socket.into(), "pcie", 0);
        for below in 0..draw.between(0, 2) {
            let own = switch(format!("0000:{number}{below}:00.0"));
            link(own.clone(), bridge.clone(), "pcie", 63);
            hosts.push(own);
        }
        hosts.push(bridge);
    }
    for (row, id) in accelerators.iter().enumerate() {
        let host = draw.pick(&hosts).clone();
        link((*id).into(), host.clone(), "pcie", *draw.pick(&[0, 15, 31, 31]));
        if draw.chance(50) {
            let card = switch(format!("nic{row}"));
            link(card, if draw.chance(60) { host } else { draw.pick(&hosts).clone() }, "pcie", 31);
        }
        if draw.chance(30) && row > 0 {
            let other = accelerators[draw.between(0, row as u64 - 1) as usize];
            link((*id).into(), other.into(), "nvlink", *draw.pick(&[50, 300]));
        }
    }
    topology.links = links;
    topology
}

#[test]
fn a_gang_gets_the_best_set_on_drawn_machines() {
    for seed in 1..=60 {
        let mut draw = Draw::new(seed, 0);
        let topology = drawn_node(&mut draw);
        check_node(&format!("seed {seed}"), &topology, &mut draw);
    }
}

/// A PCI device below a path of bridges.
fn pci_device(bridges: &[&str], address: &str, socket: u32, lines: &str) -> String {
    let path = [bridges, &[address]].concat().join("/");
    format!(
        "[]\nsys/bus/pci/devices/{address} -> ../../../devices/{path}\n[sys/devices/{path}]\n\
         numa_node = {socket}\ncurrent_link_speed = 16.0 GT/s PCIe\n\
         max_link_speed = 16.0 GT/s PCIe\n{lines}"
    )
}

/// A box of two sockets with eight GPUs in slots of 8 or 16 lanes, below switches or not, and
/// network cards.
fn drawn_tree(draw: &mut Draw) -> String {
    const BRIDGE: &str = "vendor = 0x1022\ndevice = 0x1483\nclass = 0x060400\n\
                          driver -> ../../bus/pci/drivers/pcieport\n\
                          current_link_width = 16\nmax_link_width = 16\n";
    let mut text = "[dev]\nkfd = \ndri/renderD{128-135} = \n[]\nproc/sys/kernel/hostname = box\n\
                    proc/meminfo = MemTotal:       1056763060 kB\\nMemFree: 1 kB\n\
                    proc/cpuinfo = processor\\t: 0\\nmodel name\\t: AMD EPYC 7763\n\
                    proc/self/status = Name:\\thet\\nCpus_allowed_list:\\t0-15\n\
                    proc/self/cgroup = 0::/\n\
                    sys/devices/system/cpu/online = 0-15\n\
                    sys/devices/system/cpu/cpu{0-7}/topology/physical_package_id = 0\n\
                    sys/devices/system/cpu/cpu{8-15}/topology/physical_package_id = 1\n\
                    sys/devices/system/node/node0/cpulist = 0-7\n\
                    sys/devices/system/node/node1/cpulist = 8-15\n"
        .to_owned();
    let (mut gpus, mut bus) = (0, 0);
    while gpus < 8 {
        let socket = draw.between(0, 1) as u32;
        let root = format!("pci0000:{bus:02x}");
        let port = format!("0000:{bus:02x}:01.0");
        bus += 1;
        text += &pci_device(&[&root], &port, socket, BRIDGE);
        let mut above = vec![root, port];
        let below = if draw.chance(60) { draw.between(1, 4) } else { 1 };
        if below > 1 {
            let up = format!("0000:{bus:02x}:00.0");
            bus += 1;
            let bridges: Vec<&str> = above.iter().map(String::as_str).collect();
            text += &pci_device(&bridges, &up, socket, BRIDGE);
            above.push(up);
        }
        let switch = bus;
        for slot in 0..below {
            let mut bridges: Vec<&str> = above.iter().map(String::as_str).collect();
            let down = format!("0000:{switch:02x}:{slot:02x}.0");
            if below > 1 {
                text += &pci_device(&bridges, &down, socket, BRIDGE);
                bridges.push(&down);
            }
            bus += 1;
            let address = format!("0000:{bus:02x}:00.0");
            let width = if draw.chance(70) { 16 } else { 8 };
            let lines = if gpus < 8 && draw.chance(80) {
                gpus += 1;
                format!(
                    "vendor = 0x1002\ndevice = 0x740f\nclass = 0x038000\n\
                     driver -> ../../bus/pci/drivers/amdgpu\nmem_info_vram_total = 68702699520\n\
                     drm/renderD{}/dev = 226:{0}\ncurrent_link_width = {width}\n\
                     max_link_width = 16\n",
                    127 + gpus
                )
            } else {
                format!(
                    "vendor = 0x15b3\ndevice = 0x1021\nclass = 0x020700\n\
                     driver -> ../../bus/pci/drivers/mlx5_core\n\
                     infiniband/mlx5_{bus}/ports/1/rate = 200 Gb/sec (4X HDR)\n\
                     current_link_width = {width}\nmax_link_width = 16\n"
                )
            };
            text += &pci_device(&bridges, &address, socket, &lines);
        }
        bus += 1;
    }
    text
}

fn found(root: &Path) -> Topology {
    het_devices::discover(&het_devices::System::recorded(root)).topology
}

#[test]
fn a_gang_gets_the_best_set_on_what_is_found_in_a_composed_sysfs() {
    let mut draw = Draw::new(7, 300);
    for name in ["atlas-800t-a2", "gaudi2x8", "epyc-h100x8-910b", "ryzen-xdna-radeon"] {
        check_node(name, &found(tree::recorded(name).path()), &mut draw);
    }
    for number in 0..BOXES_FOUND {
        let topology = found(tree::expand(&drawn_tree(&mut draw)).path());
        let index = Index::of(&topology);
        assert_eq!(topology.accelerators().count(), 8, "box {number}");
        assert!(
            index.interconnects[0].path(0, 7).is_some(),
            "box {number}: what joins them is found"
        );
        check_node(&format!("box {number}"), &topology, &mut draw);
    }
}

#[test]
fn of_several_nodes_a_gang_gets_the_one_whose_links_join_it_best() {
    let topology = cluster("l40s-8x2");
    let state = State::new(Arc::new(topology.clone()));
    let gpus: Vec<DeviceId> = topology.accelerators().collect();
    let mut pool = Pool::empty_cluster(&state);
    // The first is fuller, but what is left of it lies on both sockets.
    let held = [0, 1, 2, 4, 5, 6].map(|row| gpus[row]);
    pool.take(&holding(&held));
    let spec = stage("train", vec![alternative("l40s", 2)]);
    let placed = place(&mut pool, &spec, 0).expect("there is room");
    assert_eq!(placed.ranks[0].node, NodeId(1));
    let alone = stage("train", vec![alternative("l40s", 1)]);
    let placed = place(&mut pool, &alone, 0).expect("there is room");
    assert_eq!(placed.ranks[0].node, NodeId(0));
}

#[test]
fn ranks_of_a_gang_are_on_its_set() {
    let topology = cluster("l40s-8");
    let state = State::new(Arc::new(topology.clone()));
    let gpus: Vec<DeviceId> = topology.accelerators().collect();
    let mut pool = Pool::empty_cluster(&state);
    pool.take(&holding(&[gpus[0], gpus[1]]));
    let mut spec = stage("train", vec![alternative("l40s", 4)]);
    spec.ranks = RankRule::PER_DEVICE;
    let placed = place(&mut pool, &spec, 0).expect("there is room");
    let devices: Vec<DeviceId> = placed.devices().map(|grant| grant.device).collect();
    assert_eq!(devices, gpus[4..]);
}

/// Gangs of one to six L40S on four boxes. They exchange in a tenth to half of a step, which is an
/// assumption: as much as replicas and shards do that hide none of it. Pipelines exchange less.
fn boxes(seed: u64) -> Scenario {
    let mut draw = Draw::new(seed, 1);
    let mut lines = String::new();
    for row in 0..120 {
        let (units, seconds) = (*draw.pick(&[1, 1, 2, 2, 3, 4, 4, 6]), draw.between(200, 2_000));
        let exchange = f64::from(draw.between(10, 50) as u32) / 100.0;
        // Four cards of 25 GB/s for eight devices whose slots carry 31.5.
        let apart = 1.0 / (1.0 + exchange * (31.5 / 12.5 - 1.0));
        lines += &format!(
            "{{\"arrival_s\":{},\"stages\":[{{\"units\":{units},\"seconds\":{seconds},\
             \"exchange\":{exchange},\
             \"apart\":{{\"rack\":{apart},\"pod\":{apart},\"any\":{apart}}}}}]}}\n",
            row * 130
        );
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("boxes-{seed}.jsonl"));
    std::fs::write(&path, lines).expect("the folder is there");
    let jobs = read_jobs(&path, None).expect("the lines are well formed");
    let topology = cluster("l40s-8x4");
    let assumptions = Assumptions {
        cadence: Cadence::default(),
        restart: Restart::Fixed(Millis::seconds(30)),
        warm: None,
        noise: Noise::default(),
        checkpoint: CheckpointModel::default(),
        seed,
    };
    what_if(&topology, &jobs, &Table::default(), &assumptions).expect("every job fits")
}

/// A simulator that keeps to its own links, whatever policies are told.
struct TrueLinks(Sim);

impl Engine for TrueLinks {
    fn adopt(&mut self, state: &State) {
        self.0.adopt(state);
    }

    fn topology_changed(&mut self, _: &Arc<Topology>) {}

    fn submit(&mut self, plan: &Plan) {
        self.0.submit(plan);
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        self.0.next_event(until)
    }

    fn committed(&mut self) {
        self.0.committed();
    }

    fn waker(&mut self) -> Waker {
        self.0.waker()
    }

    fn now(&self) -> Time {
        self.0.now()
    }
}

/// When all has ended, and how long a job took on average, where policies know of these links.
fn played(scenario: &Scenario, links: Vec<Link>) -> (f64, f64) {
    let topology = Arc::new(scenario.topology.clone());
    let known = Arc::new(Topology { links, ..scenario.topology.clone() });
    let sim = TrueLinks(Sim::new(topology, scenario.models.clone(), scenario.said(), []));
    let policy = by_name("adaptive").expect("the table has it");
    let mut control = Controller::new(
        State::new(known),
        scenario.rates.clone(),
        policy,
        sim,
        MemoryLog::default(),
    )
    .with_cadence(scenario.cadence);
    while control.state().jobs().len() < scenario.jobs.len()
        || control.state().jobs().values().any(|job| job.end.is_none())
    {
        control.turn(None).expect("no law is broken");
    }
    let jobs = control.state().jobs().values();
    let spans = jobs.map(|job| {
        let (end, _) = job.end.expect("all have ended");
        (end.0 as f64 / 1e3, end.since(job.submitted).as_seconds())
    });
    let spans: Vec<(f64, f64)> = spans.collect();
    let last = spans.iter().map(|(end, _)| *end).fold(0.0, f64::max);
    (last, spans.iter().map(|(_, jct)| jct).sum::<f64>() / spans.len() as f64)
}

#[test]
fn jobs_on_boxes_end_earlier_than_with_links_ignored() {
    let (mut aware, mut blind) = ([0.0; 2], [0.0; 2]);
    for seed in 1..=10 {
        let scenario = boxes(seed);
        for (sums, links) in
            [(&mut aware, scenario.topology.links.clone()), (&mut blind, Vec::new())]
        {
            let (makespan, jct) = played(&scenario, links);
            sums[0] += makespan;
            sums[1] += jct;
        }
    }
    let [makespan, jct] = [0, 1].map(|of| aware[of] / blind[of]);
    println!("with links over without: makespan {makespan:.3}, completion time {jct:.3}");
    assert!(makespan < 1.0 && jct <= 0.95, "makespan {makespan:.3}, completion {jct:.3}");
}

#[test]
fn of_each_candidate_the_slowest_link_is_named() {
    let topology = cluster("l40s-8");
    let mut state = State::new(Arc::new(topology.clone()));
    let sizes = [1, 4, 6].map(|count| alternative("l40s", count));
    let spec = stage("train", sizes.to_vec());
    let mut rates = Rates::default();
    for units in [1, 4, 6] {
        rates.declare(&spec.profile, &"l40s".into(), units, f64::from(units));
    }
    state.apply(Time::ZERO, &submitted(1, job(Priority::Normal, vec![spec])));
    let view = View { state: &state, rates: &rates, now: Time::ZERO, cadence: Cadence::default() };
    let slowest = candidates(&view, key(1, 0)).into_iter().map(|candidate| {
        let (a, b, path) = candidate.terms.expect("there is room").slowest?;
        let names = [a, b].map(|id| topology.device(id).name.to_string());
        Some((names, path.distance.word(), path.bandwidth.map(|it| it.0 / 1_000_000_000)))
    });
    let pair = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
    assert_eq!(
        slowest.collect::<Vec<_>>(),
        [
            None,
            Some((pair("gpu0", "gpu1"), "PIX", Some(31))),
            Some((pair("gpu0", "gpu4"), "SYS", Some(16))),
        ]
    );
}

/// A device is known by where it hangs, whatever its number.
#[test]
fn devices_of_unknown_place_are_given_in_row_order() {
    let mut topology = cluster("l40s-8");
    topology.links.clear();
    let state = State::new(Arc::new(topology.clone()));
    let spec = stage("train", vec![alternative("l40s", 2)]);
    let placed = place(&mut Pool::empty_cluster(&state), &spec, 0).expect("there is room");
    let names: Vec<&Device> = placed.devices().map(|grant| topology.device(grant.device)).collect();
    assert_eq!(names.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["gpu0", "gpu1"]);
}
