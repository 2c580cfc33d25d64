//! The first example on every composed machine: by which devices it runs with the drivers that the
//! built-in trainer has, and what is said of that.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use het_core::{Action, Drivers, Event, JobId, JobSpec, StageSpec, State};
use het_devices::System;
use het_perf::Rates;
use het_policy::by_name;
use het_server::{Detail, explanation_of_record, machine};
use het_testkit::build::{committed, submitted};
use het_testkit::scene::proposed;
use het_wire::job::{Context, Trainer, parse};
use het_wire::text::Lang;

use crate::tree;

const EXAMPLE: &str = include_str!("../../../../examples/finetune.yaml");
const POLICY: &str = "adaptive";

fn resolved(text: &str, state: &State, drivers: &[&str]) -> JobSpec {
    let job = parse(text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let (env, drivers) = (BTreeMap::new(), drivers.iter().copied().collect::<Drivers>());
    let trainer = Some(Trainer { program: "/opt/bin/het-train", drivers: &drivers });
    let context = Context { trainer, ..Context::new(&state.topology().classes, &[], &env) };
    job.resolve(&context).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Starts one stage alone on the empty machine: its devices, why they, and what it passed over.
fn started(state: &State, spec: &JobSpec, stage: &StageSpec) -> String {
    let stage = StageSpec { after: Vec::new(), follows: Vec::new(), ..stage.clone() };
    let (name, drivers) = (stage.name.clone(), stage.alternatives[0].selector.drivers.clone());
    let mut state = state.clone();
    state.apply(state.now(), &submitted(1, JobSpec { stages: vec![stage], ..spec.clone() }));
    let plan = proposed(&state, &Rates::default(), POLICY);
    let [start @ Action::Start { placement, .. }] = plan.actions.as_slice() else {
        return format!("{name}: does not start");
    };
    let topology = Arc::clone(state.topology());
    let mut told = format!("{name}:");
    for grant in placement.devices() {
        let device = topology.device(grant.device);
        assert!(drivers.reach(device), "`{name}` on `{}`", device.name);
        write!(told, " {}:{}", device.name, grant.share.whole_units()).expect("text");
    }
    let event: Event = committed(&state, start.clone());
    state.apply(state.now(), &event);
    let policy = by_name(POLICY).expect("it is a policy");
    let said = explanation_of_record(&state, policy, JobId(1), (Lang::En, Detail::Reasons));
    let said = said.expect("the job is there").stages.remove(0);
    for sentence in said.start_reasons.iter().chain(&said.passed_over) {
        write!(told, "\n    {sentence}").expect("text");
    }
    told
}

/// What each stage that may run on more than a processor does on a machine.
fn told(tree: &str, text: &str, drivers: &[&str]) -> String {
    let root = tree::recorded(tree);
    let state = State::new(machine(System::recorded(root.path())).topology);
    let spec = resolved(text, &state, drivers);
    let stages = spec.stages.iter().filter(|stage| stage.alternatives.len() > 1);
    let stages: Vec<String> = stages.map(|stage| started(&state, &spec, stage)).collect();
    format!("{tree}\n  {}", stages.join("\n  "))
}

#[test]
fn the_example_runs_on_every_composed_machine() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../devices/tests/trees");
    let entries = fs::read_dir(dir).expect("the trees are there").flatten();
    let names = entries.filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    let all: Vec<String> = names.iter().map(|name| told(name, EXAMPLE, &["cpu"])).collect();
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn a_driver_that_a_program_has_brings_its_devices() {
    let check = |tree: &str, drivers: &str, expected: &str| {
        let text = format!(
            "{{ name: x, kind: custom, run: [train], devices: 'gpu:1 | npu:1 | cpu:2', \
             drivers: [{drivers}] }}"
        );
        let told = told(tree, &text, &["cpu"]);
        let line = told.lines().nth(1).unwrap_or_default();
        assert_eq!(line.trim(), format!("main: {expected}"), "{told}");
    };
    check("xeon-intel-gpus", "level-zero, cpu", "gpu0:1");
    check("xeon-intel-gpus", "habana, cpu", "cpu0:2");
    check("gaudi2x8", "habana, cpu", "npu0:1");
    check("gaudi2x8", "cann, cpu", "cpu0:2");
    check("atlas-800t-a2", "cann", "npu0:1");
    check("laptop-intel-npu", "npu-ort, cpu", "npu0:1");
    check("ryzen-xdna-radeon", "rocm, npu-ort", "gpu0:1");
}
