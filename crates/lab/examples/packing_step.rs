//! The step to which `adaptive` rounds the growth of fragmentation, tried on drawn clusters and pod
//! lists that share nothing with published ones.
//!
//! `cargo run --release -p het-lab --example packing_step` prints, for each family and step, the
//! part of the accelerators that is allocated when as much was asked for as there is, in percent:
//! the mean over twelve draws. `fgd` and `best-fit` stand beside it.

use std::io::{self, Write};

use het_core::{Bytes, Device, DeviceClass, HostResources, Node, NodeId, Share, Topology};
use het_lab::{Draw, pack};
use het_policy::packing::{Item, PackingRule};

/// Draws of each family.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=12;

/// In 1/10,000 of an accelerator.
const STEPS: [u32; 10] = [200, 400, 600, 800, 1_000, 1_250, 1_500, 2_000, 3_000, 5_000];

/// What pods of a family ask for.
struct Family {
    name: &'static str,
    /// Of a hundred pods, so many ask for a part of an accelerator, for several, and for none.
    parts: u64,
    several: u64,
    none: u64,
    /// Of a hundred, so many accept certain models only.
    picky: u64,
    /// Cores beside each accelerator.
    cores: (u64, u64),
    /// Tenths of an accelerator that a part may be.
    tenths: &'static [u32],
}

const FAMILIES: [Family; 6] = [
    family("parts", [80, 5, 5], 0, (1, 8), &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    family("whole", [20, 40, 5], 0, (2, 12), &[2, 5]),
    family("picky", [45, 10, 10], 40, (1, 10), &[1, 3, 5, 6, 8]),
    family("cores", [40, 15, 30], 10, (4, 24), &[2, 4, 5, 7]),
    family("few shapes", [60, 10, 0], 0, (4, 4), &[3, 6]),
    family("large parts", [65, 10, 5], 20, (2, 8), &[5, 6, 7, 8, 9]),
];

const fn family(
    name: &'static str,
    [parts, several, none]: [u64; 3],
    picky: u64,
    cores: (u64, u64),
    tenths: &'static [u32],
) -> Family {
    Family { name, parts, several, none, picky, cores, tenths }
}

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| family | fgd | best-fit | {} |",
        STEPS.map(|s| f64::from(s) / 1e4).map(|s| s.to_string()).join(" | ")
    )?;
    let rules = [PackingRule::LeastFragmentation, PackingRule::BestFit].into_iter();
    let steps = STEPS.map(|step| PackingRule::LeastSteps { step: Share(step) });
    let rules: Vec<PackingRule> = rules.chain(steps).collect();
    let mut sums = vec![0.0; rules.len()];
    for family in &FAMILIES {
        let draws: Vec<(Topology, Vec<Item>)> = SEEDS.map(|seed| draw(family, seed)).collect();
        let of = |rule: &PackingRule| {
            let each = draws
                .iter()
                .zip(SEEDS)
                .map(|((topology, pods), seed)| 100.0 * pack(topology, pods, *rule, seed));
            each.sum::<f64>() / draws.len() as f64
        };
        let row: Vec<f64> = rules.iter().map(of).collect();
        row.iter().zip(&mut sums).for_each(|(part, sum)| *sum += part);
        writeln!(out, "| {} | {} |", family.name, printed(&row))?;
    }
    let means: Vec<f64> = sums.iter().map(|sum| sum / FAMILIES.len() as f64).collect();
    writeln!(out, "| mean | {} |", printed(&means))
}

fn printed(row: &[f64]) -> String {
    row.iter().map(|part| format!("{part:.2}")).collect::<Vec<_>>().join(" | ")
}

/// 120 nodes of two to six models, and a thousand pods.
fn draw(family: &Family, seed: u64) -> (Topology, Vec<Item>) {
    let mut draw = Draw::new(seed, 7);
    let models = draw.between(2, 6) as usize;
    let topology = cluster(&mut draw, models);
    let pods = (0..1_000).map(|_| pod(&mut draw, family, models)).collect();
    (topology, pods)
}

fn cluster(draw: &mut Draw, models: usize) -> Topology {
    let class = |id: String, kind: &str| DeviceClass {
        id: id.as_str().into(),
        kind: kind.into(),
        vendor: "drawn".into(),
        title: "drawn".into(),
        peak_gflops: None,
        software: false,
    };
    let gpus = (0..models).map(|model| class(format!("m{model}"), "gpu"));
    let classes = gpus.chain([class("cpu".to_owned(), "cpu")]).collect();
    let mut topology = Topology { classes, ..Topology::default() };
    for row in 0..120 {
        topology.nodes.push(Node {
            name: format!("n{row}").as_str().into(),
            host: HostResources::with_memory(Bytes::gib(512)),
            rack: "r".into(),
            pod: "p".into(),
        });
        let model = draw.between(0, models as u64 - 1) as usize;
        let count = *draw.pick(&[2, 4, 8, 8]);
        let cores = *draw.pick(&[8, 12, 16]) * count;
        let kinds =
            (0..count).map(|_| (model, Share::WHOLE)).chain([(models, Share::units(cores))]);
        for (class, capacity) in kinds {
            topology.devices.push(Device {
                node: NodeId(row),
                name: "device".into(),
                class,
                drivers: Vec::new(),
                capacity,
                memory: Bytes::ZERO,
                visible_id: "0".into(),
            });
        }
    }
    topology
}

fn pod(draw: &mut Draw, family: &Family, models: usize) -> Item {
    let kind = draw.between(0, 99);
    let cores = draw.between(family.cores.0, family.cores.1) as u32;
    let (several, parts) =
        (family.none + family.several, family.none + family.several + family.parts);
    let (devices, share) = match kind {
        kind if kind < family.none => (0, Share::ZERO),
        kind if kind < several => (*draw.pick(&[2, 2, 4, 8]), Share::WHOLE),
        kind if kind < parts => (1, Share(*draw.pick(family.tenths) * 1_000)),
        _ => (1, Share::WHOLE),
    };
    let any = (1 << models) - 1;
    let named = 1 << draw.between(0, models as u64 - 1);
    let picky = devices > 0 && draw.chance(family.picky);
    Item {
        cores: Share::units(cores * devices.max(1)),
        memory: Bytes::gib(u64::from(cores)),
        devices,
        share,
        models: if picky { named } else { any },
    }
}
