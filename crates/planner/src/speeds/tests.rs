//! What is planned for jobs on clusters with and without links.

use het_core::Locality;
use het_wire::calibration::{CalibrationFactors, CalibrationFile};
use het_wire::job::{Context, parse};
use het_wire::topology;

use super::*;

/// The only stage of a job that trains, as it is kept, and what was said of it.
fn planned(topology: &Topology, devices: &str, trains: &str) -> (StageSpec, Vec<String>) {
    planned_with(&Measured::new(), topology, devices, trains)
}

fn planned_with(
    measured: &Measured,
    topology: &Topology,
    devices: &str,
    trains: &str,
) -> (StageSpec, Vec<String>) {
    let text = format!("{{ name: job, run: [train], devices: '{devices}', trains: {trains} }}");
    let job = parse(&text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let env = BTreeMap::new();
    let classes = &topology.classes;
    let context = Context::new(classes, models(), &env);
    let mut spec = job.resolve(&context).unwrap_or_else(|problems| panic!("{problems}"));
    let warnings = plan(&job.file, topology, measured, &mut spec);
    (spec.stages.remove(0), warnings)
}

fn cluster(word: &str) -> Topology {
    topology::from_word(word).expect("the word is known").topology
}

/// Parts of the best speed in a rack, in a pod and beyond, in per cent.
fn parts(stage: &StageSpec, class: &str, units: u32) -> [u32; 3] {
    let speeds = stage.planned.speeds(&class.into(), units).expect("planned");
    [Domain::Rack, Domain::Pod, Domain::Any]
        .map(|to| (speeds.part(Locality::within(to)) * 100.0).round() as u32)
}

/// Sixteen nodes of eight H100 in two racks, four times as much below a leaf as above.
fn two_racks() -> Topology {
    let text = "apiVersion: heterosis.dev/v1alpha1\nkind: Cluster\nmetadata: { name: lab }\n\
                nodes: [{ template: hgx-h100-8, count: 16 }]\n\
                fabric: { template: spine-leaf, oversubscription: 4 }\n";
    let cluster = topology::parse(text, "lab.yaml");
    cluster.unwrap_or_else(|problems| panic!("{problems}")).topology
}

/// GB/s of a device in a rack, in a pod and beyond.
fn bandwidths(topology: &Topology) -> [Option<f64>; 3] {
    let class = topology.classes.iter().position(|class| class.id == "h100-sxm5-80");
    let class = class.expect("the cluster has it");
    let network = Network::of(topology, class, reaches(topology)[class]);
    [Domain::Rack, Domain::Pod, Domain::Any].map(|domain| network.gbps(domain, 40.0))
}

#[test]
fn bandwidth_between_racks_is_what_the_leaves_pass_on() {
    let mut topology = two_racks();
    assert_eq!(bandwidths(&topology), [Some(50.0), Some(12.5), Some(12.5 * (1.0 / 7.0))]);
    topology.links.clear();
    assert_eq!(bandwidths(&topology), [Some(40.0), Some(20.0), Some(20.0 * (1.0 / 7.0))]);
}

const SMALL: &str = "{ model: llama3-8b, batch: 32, sequence: 4096 }";

#[test]
fn a_gang_is_slower_apart_by_what_the_links_leave_of_its_bandwidth() {
    let (stage, warnings) = planned(&two_racks(), "h100:8 | h100:16", SMALL);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(
        [8, 16].map(|units| parts(&stage, "h100-sxm5-80", units)),
        [[97, 88, 88], [100, 90, 90]]
    );
}

#[test]
fn a_machine_alone_has_nowhere_to_stand_apart() {
    let (stage, _) = planned(&cluster("hgx-h100-8"), "h100:8 | h100:1 | cpu:4", SMALL);
    assert!(!stage.planned.is_empty() && !stage.planned.differ());
    assert!(stage.planned.iter().all(|(class, ..)| *class == "h100-sxm5-80"));
}

#[test]
fn where_links_differ_a_gang_is_slower_by_what_it_exchanges() {
    let part = |cluster: &Topology, class: &str, units: u32| {
        let (stage, _) = planned(cluster, &format!("{class}:{units}"), SMALL);
        let speeds = stage.planned.speeds(&class.into(), units).expect("planned");
        speeds.exchange().as_f64()
    };
    let boxes = cluster("l40s-8");
    // Pipelines, which the planner takes there, exchange little.
    let exchanged = [2, 4, 8].map(|units| part(&boxes, "l40s", units));
    assert!(exchanged.iter().all(|part| (0.000_1..0.1).contains(part)), "{exchanged:?}");
    assert_eq!(part(&cluster("hgx-h100-8"), "h100-sxm5-80", 4), 0.0);
}

#[test]
fn trays_of_one_link_domain_stand_together() {
    let (stage, _) = planned(&cluster("gb200-nvl72x2+rail"), "gb200:16", SMALL);
    assert_eq!(parts(&stage, "gb200-per-gpu", 16), [100, 96, 96]);
}

#[test]
fn what_lacks_memory_is_told_and_not_planned() {
    let (stage, warnings) = planned(&cluster("t4x4"), "t4:1", "{ model: gpt3-175b, batch: 8 }");
    let lacks = "stage `train` trains `gpt3-175b`: the planner finds no room for it on 1 of `t4`";
    assert!(warnings[0].starts_with(lacks), "{warnings:?}");
    assert_eq!((warnings.len(), stage.planned.speeds(&"t4".into(), 1)), (1, None));
}

#[test]
fn what_was_measured_of_a_class_goes_first() {
    let cluster = cluster("hgx-h100-8");
    let speed = |measured: &Measured| {
        let (stage, warnings) = planned_with(measured, &cluster, "h100:8", SMALL);
        let speeds = stage.planned.speeds(&"h100-sxm5-80".into(), 8);
        (speeds.expect("planned").within(Domain::Node), warnings.len())
    };
    let (before, _) = speed(&Measured::new());

    let factors = CalibrationFactors { matrix: 2.0, elementwise: 2.0, exchange: 2.0 };
    let file = CalibrationFile::new("h100-sxm5-80", factors, 0.02, 3, Vec::new());
    let (after, warnings) = speed(&Measured::from([(file.class.clone(), file)]));
    assert_eq!(warnings, 0);
    assert!((before.as_f64() / after.as_f64() - 2.0).abs() < 0.1, "{before:?} {after:?}");
}
