//! Stages that read what others are still writing.

use het_testkit::has_python;
use serde_json::Value;

use crate::support::Sandbox;

/// Its writer may be two shards ahead: it ends only if the reader reads beside it.
const STREAM: &str = r#"apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: stream }
spec:
  stages:
    - name: make
      kind: preprocess
      env: { PYTHONPATH: PACKAGE, PYTHONDONTWRITEBYTECODE: "1" }
      run:
        - python3
        - -c
        - |
          import heterosis
          from heterosis.stream import ShardWriter
          with ShardWriter(heterosis.job().output, ahead_max=2) as shards:
              for number in range(shards.number, 8):
                  shards.write(str(number).encode())
      devices: "cpu:1"
    - name: sum
      kind: train
      follows: [make]
      env: { PYTHONPATH: PACKAGE, PYTHONDONTWRITEBYTECODE: "1" }
      run:
        - python3
        - -c
        - |
          import sys, heterosis
          from heterosis.stream import acknowledge, read_shards
          total = 0
          for number, path in read_shards(sys.argv[1]):
              total += int(path.read_bytes())
              acknowledge(path.parent, number)
          heterosis.job().progress(result={"sum": total})
        - "{stage.make.output}"
      devices: "cpu:1"
"#;

#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn can_stream() -> bool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if !has_python() || cores < 2 {
        eprintln!("SKIPPED: two stages beside each other need `python3` and two cores");
        return false;
    }
    true
}

#[test]
fn a_stage_reads_what_another_is_still_writing() {
    if !can_stream() {
        return;
    }
    let sandbox = Sandbox::new();
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
    let file = sandbox.write("job.yaml", &STREAM.replace("PACKAGE", package));
    let output = sandbox.run(&["run", &file.to_string_lossy(), "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!((&report["state"], &report["result"]["sum"]), (&"succeeded".into(), &28.0.into()));
}

#[test]
fn a_stage_that_follows_a_silent_one_waits_for_its_end() {
    let sandbox = Sandbox::new();
    let job = r#"apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: silent }
spec:
  stages:
    - { name: make, run: "echo half > $HET_OUTPUT/.half", devices: "cpu:1" }
    - name: read
      follows: [make]
      run: "test -e {stage.make.output}/_SUCCESS"
      devices: "cpu:1"
"#;
    let file = sandbox.write("job.yaml", job);
    let output = sandbox.run(&["run", &file.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
