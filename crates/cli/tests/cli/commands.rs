//! `het run` and its neighbours on real processes.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::Sandbox;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| {
        panic!("{error} in {}", String::from_utf8_lossy(bytes));
    })
}

/// Waits for a condition that another process brings about.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen within 30 s");
        std::thread::yield_now();
    }
}

#[test]
fn a_command_runs_and_its_output_is_its_own() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&["run", "--devices", "cpu:1", "--", "sh", "-c", "echo $HET_JOB"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "sh\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_exit_code_of_the_job_is_the_exit_code_of_the_run() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&["run", "-o", "json", "--quiet", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    let report = json(&output.stdout);
    assert_eq!((&report["state"], &report["exit_code"]), (&"failed".into(), &7.into()));
    assert!(output.stderr.is_empty(), "--quiet says nothing");
}

const PIPELINE: &str = r#"apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: pipeline }
spec:
  stages:
    - name: make
      kind: preprocess
      run: "seq 1 100 > $HET_OUTPUT/numbers"
      devices: "cpu:1"
    - name: sum
      kind: train
      after: [make]
      run: |
        awk '{ s += $1 } END { print s }' {stage.make.output}/numbers > $HET_OUTPUT/sum
        echo "{\"result\": {\"sum\": $(cat $HET_OUTPUT/sum), \"wall_s\": -1}}" >> $HET_PROGRESS
      devices: "gpu:4 | cpu:1"
"#;

#[test]
fn the_summary_tells_how_much_was_computed_and_how_fast() {
    let sandbox = Sandbox::new();
    let line = r#"{"step": 3, "total": 3, "samples": 24, "tokens": 3000, "useful_ms": 1}"#;
    let job = format!(
        "name: told\nkind: train\ndevices: cpu:1\nrun: |\n  echo '{line}' >> $HET_PROGRESS\n"
    );
    let file = sandbox.write("job.yaml", &job);
    let output = sandbox.run(&["run", &file.to_string_lossy()]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("train: 24 samples (") && told.contains("/s), 3000 tokens ("), "{told}");
}

#[test]
fn stages_run_in_order_and_report_results() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("job.yaml", PIPELINE);
    let output = sandbox.run(&["run", &file.to_string_lossy(), "-o", "json"]);
    let report = json(&output.stdout);
    assert_eq!(report["state"], "succeeded");
    assert_eq!(report["result"]["sum"], 5050.0);
    assert_eq!(report["result"]["wall_s"], -1.0);
    assert!(report["wall_s"].as_f64() > Some(0.0), "no figure of a program changes it: {report}");
    let names: Vec<_> = report["stages"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|stage| stage["name"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(names, ["make", "sum"]);
    let explained = sandbox.run(&["explain", "pipeline", "-o", "json"]);
    let reasons = &json(&explained.stdout)["stages"][1]["start_reasons"];
    assert!(reasons[0].as_str().expect("a sentence").contains("cpu"), "{reasons}");
}

#[test]
fn a_failed_stage_ends_the_job_and_resume_keeps_what_succeeded() {
    let sandbox = Sandbox::new();
    let job = PIPELINE.replace("awk '", "test -e fixed || exit 3; awk '");
    let file = sandbox.write("job.yaml", &job);
    let first = sandbox.run(&["run", &file.to_string_lossy(), "-o", "json"]);
    assert_eq!(first.status.code(), Some(3));
    sandbox.write("fixed", "");
    let second = sandbox.run(&["run", "--resume", "-o", "json"]);
    let report = json(&second.stdout);
    assert_eq!((&report["state"], &report["resumes"]), (&"succeeded".into(), &1.into()));
    assert_eq!(report["stages"][0]["attempts"], 0, "`make` was not run again");
    let third = sandbox.run(&["run", "--resume"]);
    assert_eq!(third.status.code(), Some(6), "nothing is left to resume");
}

const SLOW: &str = r#"name: slow
kind: custom
run: |
  trap 'echo saved > saved; exit 75' TERM
  touch started
  if test -e saved; then exit 0; fi
  while :; do read -t 60 x < blocker || sleep 0.01; done
devices: cpu:1
checkpoint: { grace: 10s }
"#;

#[test]
fn an_interrupt_saves_and_stops_and_resume_goes_on() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("job.yaml", SLOW);
    let mut run = sandbox.het(&["run", &file.to_string_lossy(), "-o", "json"]);
    let child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("het starts");
    wait_for("the start", || sandbox.path().join("started").exists());
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it lives");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(json(&output.stdout)["state"], "held");
    assert!(String::from_utf8_lossy(&output.stderr).contains("het run --resume 1"));
    let resumed = sandbox.run(&["run", "--resume", "1", "-o", "json"]);
    let report = json(&resumed.stdout);
    assert_eq!((&report["state"], &report["id"]), (&"succeeded".into(), &1.into()));
    assert_eq!(report["stages"][0]["attempts"], 2);
}

#[test]
fn a_killed_supervisor_leaves_nothing_running_and_resume_goes_on() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("job.yaml", SLOW);
    let mut run = sandbox.het(&["run", &file.to_string_lossy()]);
    let mut child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("het starts");
    wait_for("the start", || sandbox.path().join("started").exists());
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    assert_told!(sandbox.told(&["run", "--devices", "cpu:1", "--", "true"]));
    let submitted = sandbox.run(&["submit", "--", "true"]);
    assert_eq!(submitted.status.code(), Some(6), "{submitted:?}");
    sandbox.write("saved", "by hand");
    let resumed = sandbox.run(&["run", "--resume", "-o", "json"]);
    let report = json(&resumed.stdout);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let waiting = std::fs::read_dir("/proc").expect("procfs").filter_map(Result::ok);
    let here = sandbox.path().to_string_lossy().into_owned();
    let orphans = waiting.filter(|entry| {
        std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&here))
    });
    assert_eq!(orphans.count(), 0, "processes of the killed run are gone");
}

#[test]
fn a_second_run_on_busy_devices_is_told_for_whom() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("job.yaml", SLOW);
    let mut run = sandbox.het(&["run", &file.to_string_lossy()]);
    let mut child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("het starts");
    wait_for("the start", || sandbox.path().join("started").exists());
    assert_told!(sandbox.told(&["run", "--no-wait", "--", "true"]));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it lives");
    child.wait().expect("it ends");
    let waited = sandbox.told(&["run", "--", "true"]);
    assert!(waited.contains("exit code: 0"), "{waited}");
}

#[test]
fn history_lists_the_newest_first() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "--name", "one", "--", "true"]);
    sandbox.run(&["run", "--name", "two", "--", "false"]);
    let output = sandbox.run(&["history", "-o", "name"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2\n1\n");
    let list = json(&sandbox.run(&["history", "-o", "json"]).stdout);
    assert_eq!(list["items"][0]["state"], "failed");
}

#[test]
fn logs_are_kept_by_stage_and_rank() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "--", "sh", "-c", "echo out; echo err >&2"]);
    let output = sandbox.run(&["logs"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\nerr\n");
    let none = sandbox.run(&["logs", "--stage", "trian"]);
    assert_eq!(none.status.code(), Some(3));
}

#[test]
fn devices_and_topology_are_machine_readable() {
    let sandbox = Sandbox::new();
    let devices = json(&sandbox.run(&["devices", "-o", "json"]).stdout);
    assert_eq!(devices["kind"], "DeviceList");
    assert!(devices["items"].as_array().is_some_and(|items| !items.is_empty()));
    let topology = json(&sandbox.run(&["topo", "-o", "json"]).stdout);
    assert_eq!(topology["kind"], "Topology");
}

#[test]
fn the_schema_and_a_completion_script_are_printed() {
    let sandbox = Sandbox::new();
    let schema = json(&sandbox.run(&["schema", "job"]).stdout);
    assert_eq!(schema["title"], "Heterosis training job");
    let script = sandbox.run(&["completion", "bash"]);
    assert!(String::from_utf8_lossy(&script.stdout).contains("_het()"));
}

#[test]
fn every_command_has_a_manual_page() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&["man", "man1"]).status.code(), Some(0));
    for page in ["het.1", "het-submit.1", "het-sim-compare.1"] {
        let text = std::fs::read_to_string(sandbox.path().join("man1").join(page));
        assert!(text.is_ok_and(|text| text.contains(".SH SYNOPSIS")), "{page}");
    }
}

#[test]
fn bench_sim_prints_its_contract() {
    let sandbox = Sandbox::new();
    let arguments = ["bench", "sim", "--nodes", "4", "--jobs", "20", "--rounds", "5", "-o", "json"];
    let value = json(&sandbox.run(&arguments).stdout);
    for field in ["round_p50_ms", "round_p99_ms", "jobs", "nodes", "devices"] {
        assert!(value[field].is_number(), "{field} in {value}");
    }
}
