//! What is planned for jobs on clusters with and without links.

use std::collections::BTreeMap;

use het_wire::job::{Context, parse};
use het_wire::topology::from_word;

use super::*;

/// The only stage of a job that trains, as it is kept, and what was said of it.
fn planned(topology: &Topology, devices: &str, trains: &str) -> (StageSpec, Vec<String>) {
    let text = format!("{{ name: job, run: [train], devices: '{devices}', trains: {trains} }}");
    let job = parse(&text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let env = BTreeMap::new();
    let classes = &topology.classes;
    let context = Context { workdir: "/w", cwd: "/", classes, models: models(), env: &env };
    let mut spec = job.resolve(&context).unwrap_or_else(|problems| panic!("{problems}"));
    let warnings = plan(&job.file, topology, &mut spec);
    (spec.stages.remove(0), warnings)
}

fn cluster(word: &str) -> Topology {
    from_word(word).expect("the word is known").topology
}

/// Parts of the best speed in a rack, in a pod and beyond, in per cent.
fn parts(stage: &StageSpec, class: &str, units: u32) -> [u32; 3] {
    let speeds = stage.planned.speeds(&class.into(), units).expect("planned");
    [Domain::Rack, Domain::Pod, Domain::Any].map(|to| (speeds.part(to) * 100.0).round() as u32)
}

const SMALL: &str = "{ model: llama3-8b, batch: 64, sequence: 4096 }";

#[test]
fn a_gang_is_slower_apart_by_what_the_links_leave_of_its_bandwidth() {
    let topology = cluster("hgx-h100-8x16+spine-leaf");
    let (stage, warnings) = planned(&topology, "h100:8 | h100:16", SMALL);
    assert_eq!(warnings, Vec::<String>::new());
    println!("{:?}", [8, 16].map(|units| parts(&stage, "h100-sxm5-80", units)));
}

#[test]
fn where_no_link_says_it_wider_domains_have_a_part_of_the_network() {
    let mut topology = cluster("hgx-h100-8x4");
    topology.links.clear();
    let (stage, _) = planned(&topology, "h100:8 | h100:16", SMALL);
    println!("{:?}", [8, 16].map(|units| parts(&stage, "h100-sxm5-80", units)));
}

#[test]
fn what_lacks_memory_is_told_and_not_planned() {
    let topology = cluster("t4x4");
    let (stage, warnings) = planned(&topology, "t4:1", "{ model: gpt3-175b, batch: 8 }");
    println!("{warnings:?} {:?}", stage.planned);
}
