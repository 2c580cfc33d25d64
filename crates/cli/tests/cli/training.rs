//! The built-in trainer under `het run`, on a tiny model: killed and resumed, bad corpora, broken
//! weights, full disks. Needs `het-train` beside `het`; skipped loudly without it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Sandbox, has_torch};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The trainer beside the `het` under test.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
pub fn trainer() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_het")).with_file_name("het-train");
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: `{}` is not built, see `cargo xtask ci`", path.display());
    None
}

/// A sandbox with a tiny model in `model` and its tokens in `tokens`.
pub fn prepared(trainer: &Path) -> Sandbox {
    let sandbox = Sandbox::new();
    let text: String = (0..400).map(|n| format!("line {n} of a small corpus\n")).collect();
    sandbox.write("corpus.txt", &text);
    for arguments in [
        &["tiny", "--output", "model"][..],
        &["tokenize", "--input", "corpus.txt", "--output", "tokens", "--weights", "model"],
    ] {
        let output = Command::new(trainer).args(arguments).current_dir(sandbox.path()).output();
        let output = output.expect("the trainer starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    sandbox
}

fn job(output: &str, steps: u32) -> String {
    format!(
        "name: tiny\nrun: [het-train, finetune, --data, tokens, --weights, model, \
         --output, {output}, --steps, \"{steps}\", --batch, \"2\", --seq, \"128\", \
         --checkpoint-every, \"5\"]\n\
         devices: cpu:1\ncheckpoint: {{ every: 1s, grace: 20s }}\n\
         resume: [--resume, \"{{checkpoint}}\"]\n"
    )
}

pub fn adapter(sandbox: &Sandbox, output: &str) -> Vec<u8> {
    let path = sandbox.path().join(output).join("adapter_model.safetensors");
    std::fs::read(path).expect("the adapter was written")
}

/// The process id of the trainer that runs in the sandbox.
fn running_trainer(sandbox: &Sandbox) -> Option<i32> {
    let entries = std::fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let here = std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd == sandbox.path());
        let words = std::fs::read(proc.join("cmdline")).unwrap_or_default();
        here && String::from_utf8_lossy(&words).starts_with("het-train\0finetune")
    })
}

#[test]
fn a_killed_trainer_resumes_to_the_same_bits() {
    let Some(trainer) = trainer() else { return };
    let sandbox = prepared(&trainer);
    let whole = sandbox.write("whole.yaml", &job("whole", 300));
    let output = sandbox.run(&["run", &whole.to_string_lossy(), "--quiet"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));

    let cut = sandbox.write("cut.yaml", &job("cut", 300));
    let mut run = sandbox.het(&["run", &cut.to_string_lossy(), "-o", "json", "--quiet"]);
    let child = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("het starts");
    let saved = sandbox.path().join("home/jobs/2/work/train/checkpoints/checkpoint-20");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !saved.exists() {
        assert!(Instant::now() < deadline, "no checkpoint came within 60 s");
        std::thread::yield_now();
    }
    let pid = running_trainer(&sandbox).expect("the trainer runs");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it lives");
    let killed = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&killed.stdout);
    assert!(killed.status.success(), "a kill from outside is not the program's doing: {told}");
    assert_eq!(adapter(&sandbox, "cut"), adapter(&sandbox, "whole"), "bit for bit");
    let reasons = sandbox.run(&["explain", "-o", "json"]);
    assert!(String::from_utf8_lossy(&reasons.stdout).contains("continues from the checkpoint"));
}

/// The message that a failed stage leaves in the report.
fn message(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let output = sandbox.run(arguments);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["state"], "failed", "{report:#}");
    let logs = sandbox.run(&["logs"]);
    let text = String::from_utf8_lossy(&logs.stdout).into_owned();
    sandbox.steady(&format!("exit code: {}\n{text}", report["exit_code"]))
}

#[test]
fn an_unreadable_corpus() {
    let Some(trainer) = trainer() else { return };
    let sandbox = prepared(&trainer);
    let arguments = ["run", "-o", "json", "--", "het-train", "tokenize", "--weights", "model"];
    let arguments = [&arguments[..], &["--input", "corpse.txt", "--output", "t"]].concat();
    insta::assert_snapshot!(message(&sandbox, &arguments));
}

#[test]
fn truncated_weights() {
    let Some(trainer) = trainer() else { return };
    let sandbox = prepared(&trainer);
    let path = sandbox.path().join("model/model.safetensors");
    let bytes = std::fs::read(&path).expect("the tiny model");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("writable");
    let arguments = ["run", "-o", "json", "--", "het-train", "load", "--weights", "model"];
    insta::assert_snapshot!(message(&sandbox, &arguments));
}

#[test]
fn a_full_disk_while_checkpointing_loses_nothing() {
    let Some(trainer) = trainer() else { return };
    let sandbox = prepared(&trainer);
    // A limit on file sizes fails the write as a full disk does.
    let limited = "ulimit -f 8; trap '' XFSZ; exec het-train finetune --data tokens --weights \
                   model --output out --steps 12 --batch 2 --seq 64 --checkpoint-every 5 \
                   --rank 8 --checkpoint-dir ckpt";
    let output = sandbox.run(&["run", "-o", "json", "--", "sh", "-c", limited]);
    let logs = sandbox.run(&["logs"]);
    let text = String::from_utf8_lossy(&logs.stdout).into_owned();
    assert_ne!(output.status.code(), Some(0), "the adapter itself cannot be written either");
    assert!(text.contains("training goes on"), "{text}");
    assert!(text.contains("hint:"), "{text}");
    let left = std::fs::read_dir(sandbox.path().join("ckpt")).into_iter().flatten().count();
    assert_eq!(left, 0, "no half checkpoint is left");
}

#[test]
fn a_users_own_script_runs_under_torchrun_unchanged() {
    if !has_torch() {
        return;
    }
    let sandbox = Sandbox::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let copied = sandbox.path().join("examples");
    std::fs::create_dir(&copied).expect("the sandbox is writable");
    for name in ["torchrun.yaml", "train_torch.py"] {
        std::fs::copy(examples.join(name), copied.join(name)).expect("an example is copied");
    }
    let output = sandbox.run(&["run", "examples/torchrun.yaml", "-o", "json", "--quiet"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(report["state"], "succeeded", "{}", String::from_utf8_lossy(&output.stderr));
}
