//! Stages of the built-in trainer get the devices that it has a driver for: the one beside `het` is
//! asked, and no other program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Sandbox, Served, serve_declared};

const HAS_CPU: &str = r#"{"kind": "DriverList", "items": [
    {"name": "cpu", "starts": true, "detail": "4 threads"},
    {"name": "photon", "starts": false, "detail": "no loader"}]}"#;

/// A script that notes how it was called, and answers to `drivers` with the file `answer`.
fn trainer(at: &Path, sandbox: &Path, called: &str) {
    let dir = sandbox.display();
    let script = format!(
        "#!/bin/sh\necho \"{called} $*\" >> {dir}/calls\n\
         [ \"$1\" != drivers ] || cat {dir}/answer\n"
    );
    fs::create_dir_all(at).expect("the sandbox is writable");
    let path = at.join("het-train");
    fs::write(&path, script).expect("the sandbox is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// A server with a GPU whose driver is `photon`, a trainer beside it that gives this answer, and
/// another one in `PATH`.
fn served(answer: &str) -> Served {
    let sandbox = Sandbox::with_program(|dir| {
        trainer(&dir.join("bin"), dir, "beside");
        trainer(&dir.join("path"), dir, "in PATH");
        let program = dir.join("bin/het");
        // By a program of its own: what this process has open to write, nobody can start.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_het")).arg(&program).status();
        assert!(copied.expect("cp starts").success());
        program
    });
    sandbox.write("answer", answer);
    serve_declared(sandbox, 1, &[])
}

fn submit(served: &Served, stage: &Value) -> Value {
    let file = served.write("job.yaml", &stage.to_string());
    let mut het = served.het(&["submit", &file.to_string_lossy(), "-o", "json"]);
    let path = served.path().join("path");
    het.env("PATH", format!("{}:/usr/bin:/bin", path.display()));
    let output = het.output().expect("het starts");
    let text = if output.status.success() { output.stdout } else { output.stderr };
    let text = String::from_utf8_lossy(&text).into_owned();
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

fn stage(run: &[&str], devices: &str) -> Value {
    json!({ "name": "one", "kind": "custom", "run": run, "devices": devices })
}

/// The devices that a job ran on, once it has ended.
fn ran_on(served: &Served, submitted: &Value) -> String {
    let id = submitted["id"].as_u64().unwrap_or_else(|| panic!("{submitted:#}")).to_string();
    assert_eq!(served.code(&["wait", &id]), Some(0));
    served.json(&["describe", &id])["stages"][0]["devices"].to_string()
}

fn calls(served: &Served) -> Vec<String> {
    let text = fs::read_to_string(served.path().join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn only_the_trainer_beside_het_is_asked_and_once() {
    let served = served(HAS_CPU);
    let job = stage(&["het-train", "finetune"], "gpu:1 | cpu:1");
    let (first, second) = (submit(&served, &job), submit(&served, &job));
    for submitted in [first, second] {
        assert!(ran_on(&served, &submitted).contains("cpu0"), "{submitted:#}");
    }
    let called = calls(&served);
    let asks = called.iter().filter(|call| *call == "beside drivers --output json");
    assert_eq!(asks.count(), 1, "{called:?}");
    assert!(called.iter().all(|call| call.starts_with("beside ")), "{called:?}");
    let told = served.told(&["explain"]);
    let passed = "`gpu` passes over `gpu0`, run by `photon`: its program has only the driver";
    assert!(told.contains(passed), "{told}");

    let refused = submit(&served, &stage(&["het-train", "finetune"], "gpu:1"));
    let told = refused.as_str().unwrap_or_else(|| panic!("{refused:#}"));
    let expected = "this machine cannot give it `gpu:1`, for its program has only the driver `cpu`";
    assert!(told.contains(expected) && told.contains("name in `drivers` what it has"), "{told}");
}

#[test]
fn a_file_says_better_what_its_program_has() {
    let served = served(HAS_CPU);
    let mut job = stage(&["het-train", "finetune"], "gpu:1 | cpu:1");
    job["drivers"] = json!(["photon", "cpu"]);
    let submitted = submit(&served, &job);
    assert!(ran_on(&served, &submitted).contains("gpu0"), "{submitted:#}");
    // A script is any program, also one that calls the trainer among others.
    for run in [&["true"][..], &["sh", "-c", "het-train finetune; true"]] {
        let submitted = submit(&served, &stage(run, "gpu:1 | cpu:1"));
        assert!(ran_on(&served, &submitted).contains("gpu0"), "{submitted:#}");
    }
    assert!(calls(&served).iter().all(|call| call == "beside finetune"), "{:?}", calls(&served));
}

#[test]
fn a_trainer_that_does_not_answer_is_told_of() {
    let served = served("no list");
    let submitted = submit(&served, &stage(&["het-train", "finetune"], "gpu:1 | cpu:1"));
    let warning = submitted["warnings"].to_string();
    let expected = "drivers` ended with exit status: 0 and listed no drivers: its stages may be";
    assert!(warning.contains(expected), "{submitted:#}");
    assert!(ran_on(&served, &submitted).contains("gpu0"), "{submitted:#}");
}
