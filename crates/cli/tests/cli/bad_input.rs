//! Bad input: a clear message, a next step, nothing lost.

use crate::support::Sandbox;

fn long(stages: &str) -> String {
    format!(
        "apiVersion: heterosis.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{ name: lora }}\n\
         spec:\n  stages:\n{stages}"
    )
}

#[test]
fn an_unknown_field() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", "name: lora\nrun: \"true\"\ndevice: cpu:1\n");
    assert_told!(sandbox.told(&["run", "job.yaml"]));
}

#[test]
fn a_wrong_type() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", "name: lora\nrun: \"true\"\ndevices: [cpu]\nretries: often\n");
    assert_told!(sandbox.told(&["run", "job.yaml"]));
}

#[test]
fn a_cycle() {
    let sandbox = Sandbox::new();
    let stages = "    - { name: a, after: [b], run: \"true\" }\n    \
                  - { name: b, after: [a], run: \"true\" }\n";
    sandbox.write("job.yaml", &long(stages));
    assert_told!(sandbox.told(&["run", "job.yaml"]));
}

#[test]
fn a_device_that_no_catalogue_knows() {
    let sandbox = Sandbox::new();
    assert_told!(sandbox.told(&["run", "--devices", "h10O:8", "--", "true"]));
}

#[test]
fn a_device_that_this_machine_lacks() {
    let sandbox = Sandbox::new();
    assert_told!(sandbox.told(&["run", "--devices", "mlu590:8", "--", "true"]));
}

#[test]
fn a_gang_larger_than_the_machine() {
    let sandbox = Sandbox::new();
    assert_told!(sandbox.told(&["run", "--devices", "cpu:4000", "--", "true"]));
}

#[test]
fn a_file_that_is_not_there() {
    let sandbox = Sandbox::new();
    assert_told!(sandbox.told(&["run", "jbo.yaml"]));
}

#[test]
fn a_program_that_is_not_there() {
    let sandbox = Sandbox::new();
    assert_told!(sandbox.told(&["run", "--", "torchrnu", "train.py"]));
}

#[test]
fn nothing_to_resume_and_nothing_to_explain() {
    let sandbox = Sandbox::new();
    assert_told!(sandbox.told(&["run", "--resume"]) + "\n" + &sandbox.told(&["explain", "7"]));
}

#[test]
fn a_policy_that_does_not_exist() {
    let sandbox = Sandbox::new();
    assert_told!(sandbox.told(&["run", "--policy", "clever", "--", "true"]));
}
