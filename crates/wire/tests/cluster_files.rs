//! Cluster files and words: what they mean, and everything that is wrong with one at once.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Topology, Vertex};
use het_wire::topology::{Cluster, FABRICS, Role, TEMPLATES, from_word, json_schema, parse};

const HEAD: &str = "apiVersion: heterosis.dev/v1alpha1\nkind: Cluster\nmetadata: { name: lab }\n";

fn built(word: &str) -> Topology {
    from_word(word).unwrap_or_else(|error| panic!("{error}")).topology
}

fn read(rest: &str) -> Result<Cluster, String> {
    parse(&format!("{HEAD}{rest}"), "cluster.yaml").map_err(|problems| problems.to_string())
}

fn check(rest: &str, expected: &[&str]) {
    let told = read(rest).expect_err("the file is wrong");
    for part in expected {
        assert!(told.contains(part), "`{part}` is not in\n{told}");
    }
}

/// Edges, links and GB/s in one direction of all together, of the links of a kind at one device.
fn at(topology: &Topology, device: &str, kind: &str) -> (usize, u32, u64) {
    let id = topology.device_ids().find(|id| topology.device(*id).name == device);
    let vertex = Vertex::Device(id.expect("the device is there"));
    let links = topology.links.iter().filter(|link| link.kind == kind);
    let links: Vec<_> = links.filter(|link| link.from == vertex || link.to == vertex).collect();
    let sum: u64 = links.iter().filter_map(|link| link.bandwidth).map(|rate| rate.0).sum();
    (links.len(), links.iter().map(|link| link.count).sum(), sum / 1_000_000_000)
}

#[test]
fn every_template_stands_on_every_fabric() {
    for template in TEMPLATES {
        for fabric in FABRICS {
            let word = format!("{}x2+{fabric}", template.name);
            let topology = built(&word);
            assert_eq!(topology.validate(), Ok(()), "{word}");
            assert_eq!(topology.nodes.len() as u32, 2 * template.nodes, "{word}");
            assert_eq!(topology, built(&word), "the same word gives the same graph");
        }
    }
}

#[test]
fn accelerators_have_the_published_links() {
    let check = |word: &str, device: &str, kind: &str, expected: (usize, u32, u64)| {
        assert_eq!(at(&built(word), device, kind), expected, "{word}");
    };
    check("hgx-a100-8", "gpu3", "nvlink", (6, 12, 300));
    check("hgx-h100-8", "gpu0", "nvlink", (4, 18, 450));
    check("gb200-nvl72", "gpu0", "nvlink", (18, 18, 900));
    check("gb200-nvl72", "gpu0", "c2c", (1, 1, 450));
    check("atlas-800t-a2", "npu0", "hccs", (7, 7, 196));
    check("atlas-a3", "npu0", "ub", (7, 7, 196));
    check("t4x4", "gpu0", "pcie", (1, 1, 15));
    check("epyc-h100x8-910b", "npu0", "pcie", (1, 1, 63));
}

#[test]
fn islands_are_the_domains_of_fast_links() {
    let sizes = |word: &str, kind: &str| -> Vec<usize> {
        built(word).islands(kind).iter().map(Vec::len).collect()
    };
    assert_eq!(sizes("gb200-nvl72x2", "nvlink"), [72, 72]);
    assert_eq!(sizes("hgx-h100-8x2", "nvlink"), [8, 8]);
    assert_eq!(sizes("atlas-a3", "module"), [2; 8]);
    assert_eq!(sizes("atlas-800t-a2", "hccs"), [8]);
}

#[test]
fn rails_join_the_same_card_of_every_node() {
    let topology = built("hgx-h100-8x64+rail");
    let on_leaf = |leaf: &str| -> Vec<String> {
        let links = topology.links.iter().filter(|link| link.to == Vertex::Switch(leaf.into()));
        links
            .filter_map(|link| match &link.from {
                Vertex::Switch(name) => Some(name.to_string()),
                _ => None,
            })
            .collect()
    };
    let cards = on_leaf("pod0/leaf3");
    assert_eq!(cards.len(), 64);
    assert!(cards.iter().all(|card| card.ends_with("/nic3")), "{cards:?}");
}

#[test]
fn oversubscription_halves_what_goes_up() {
    let nodes = "nodes: [{ template: hgx-h100-8, count: 16 }]\n";
    let sums = |of: &str| {
        let rest = format!("{nodes}fabric: {{ template: spine-leaf, oversubscription: {of} }}\n");
        let topology = read(&rest).expect("the file is right").topology;
        let sum = |kind: &str| -> u64 {
            let links = topology.links.iter().filter(|link| link.kind == kind);
            links.filter_map(|link| link.bandwidth).map(|rate| rate.0 / 1_000_000_000).sum()
        };
        (sum("leaf"), sum("spine"))
    };
    assert_eq!(sums("1"), (6_400, 6_400));
    assert_eq!(sums("2"), (6_400, 3_200));
}

#[test]
fn planes_share_no_switch_and_halve_the_ports() {
    let topology = built("hgx-h100-8x4+dual-plane");
    let ports = topology.links.iter().filter(|link| link.kind == "leaf");
    assert!(ports.clone().all(|link| link.bandwidth.is_some_and(|rate| rate.0 == 25_000_000_000)));
    assert_eq!(ports.count(), 4 * 8 * 2);
    let plane = |vertex: &Vertex| match vertex {
        Vertex::Switch(name) if Role::of(&topology, vertex).is_network() => {
            name.as_str().chars().last()
        }
        _ => None,
    };
    let between = topology.links.iter().filter(|link| link.kind == "spine");
    assert!(between.into_iter().all(|link| plane(&link.from) == plane(&link.to)));
}

#[test]
fn the_shipped_example_is_valid() {
    let text = include_str!("../../../examples/cluster.yaml");
    let cluster = parse(text, "cluster.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((cluster.topology.nodes.len(), cluster.topology.validate()), (9, Ok(())));
    let npu = cluster.sheet("ascend-910b").expect("the file changes it");
    assert_eq!(
        (npu.half_tflops.to_string(), npu.certainty.to_string()),
        ("376".into(), "own".into())
    );
    let shipped: serde_json::Value =
        serde_json::from_str(include_str!("../../../examples/cluster.schema.json"))
            .expect("the schema is JSON");
    assert_eq!(shipped, json_schema(), "`het schema cluster` writes the newest");
}

#[test]
fn a_file_of_one_template_is_the_word() {
    let file = read("nodes: [{ template: hgx-a100-8, count: 3 }]\nfabric: { template: rail }\n");
    assert_eq!(file.expect("the file is right").topology, built("hgx-a100-8x3+rail"));
}

#[test]
fn every_mistake_is_told_with_its_place_and_a_hint() {
    check("nodes: [{ tmplate: cpu }]", &["unknown field `tmplate`", "did you mean `template`?"]);
    check("nodes: [{ template: hgx-h100 }]", &[":4:21", "did you mean `hgx-h100-8`?"]);
    check("nodes: []", &["no nodes"]);
    check("nodes: [{ template: cpu, count: 0 }]", &["a group of 0 nodes", "`count: 1`"]);
    check(
        "nodes: [{ template: cpu, count: 2 }]\nfabric: { template: rail, oversubscription: 0.5 }",
        &["an oversubscription of 0.5 is below 1", "never blocks"],
    );
    check("nodes: [{ template: cpu }]\nfabric: { template: rial }", &["did you mean `rail`?"]);
    check(
        "nodes: [{ devices: [{ name: gpu0, class: h10O }] }]",
        &["`h10O` is no device class", "did you mean"],
    );
    check(
        "nodes: [{ devices: [{ name: gpu0, class: h100 }] }]",
        &["say which: `h100-pcie-80`, `h100-sxm5-80`"],
    );
    check(
        "nodes: [{ devices: [{ name: gpu0, class: t4 }], \
         links: [{ from: gpu0, to: cpu, kind: pcie, bandwidth: fast }] }]",
        &["ends at `cpu`, which does not exist", "`fast` is not a bandwidth"],
    );
    check(
        "nodes: [{ template: cpu }]\nlinks: [{ from: node-0/nic0, to: node-0/nic9, kind: leaf }]",
        &["ends at `node-0/nic9`", "did you mean `node-0/nic0`?"],
    );
    check(
        "classes: { h100-sxm5-80: { bf16_tflops: -5 } }\nnodes: [{ template: cpu }]",
        &[":4:", "no device has -5 there", "0 says that it has none"],
    );
    check("classes: { mine: {} }\nnodes: [{ template: cpu }]", &["add `like:`"]);
}

#[test]
fn a_wrong_word_names_the_nearest() {
    let check = |word: &str, message: &str, hint: &str| {
        let error = from_word(word).expect_err("the word is wrong");
        assert_eq!((error.to_string().as_str(), error.hint().as_str()), (message, hint));
    };
    check("hgx-h100-9", "`hgx-h100-9` is no node template", "did you mean `hgx-h100-8`?");
    check("t4x4x2+rails", "`rails` is no fabric", "did you mean `rail`?");
    check("hgx-h100-8x0", "`hgx-h100-8x0` has no nodes", "`hgx-h100-8x1` has one");
    check("cpux99999", "`cpux99999` has more than 16384 nodes", "name at most 16384");
}

#[test]
fn an_empty_file_is_told_what_a_cluster_looks_like() {
    let problems = het_wire::topology::parse("", "lab.yaml").expect_err("it is empty").to_string();
    assert!(problems.contains("het schema cluster"), "{problems}");
}

#[test]
fn any_two_leaves_of_a_pod_have_all_its_spines_between_them() {
    for fabric in ["spine-leaf", "rail", "dual-plane"] {
        for nodes in [1, 2, 3, 4, 8, 9] {
            let cluster = from_word(&format!("hgx-h100-8x{nodes}+{fabric}")).expect("a cluster");
            let mut spines: BTreeMap<&Vertex, BTreeSet<&Vertex>> = BTreeMap::new();
            for link in cluster.topology.links.iter().filter(|link| link.kind == "spine") {
                spines.entry(&link.from).or_default().insert(&link.to);
            }
            let of_b = |leaf: &Vertex| match leaf {
                Vertex::Switch(name) => name.as_str().ends_with('b'),
                Vertex::Node(_) | Vertex::Device(_) => false,
            };
            for (leaf, reached) in &spines {
                let plane = spines.iter().filter(|(other, _)| of_b(other) == of_b(leaf));
                assert!(
                    plane.map(|(_, other)| other).all(|other| other == reached),
                    "{fabric}, {nodes}"
                );
            }
        }
    }
}
