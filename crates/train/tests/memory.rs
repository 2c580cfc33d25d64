//! What a run is said to need before it starts is what it takes.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

/// Runs the trainer; what it said.
fn run(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_het-train"));
    for name in ["HET_NOTICE", "HET_RESUME_FROM", "HET_CHECKPOINT_DIR", "HET_DEVICES"] {
        command.env_remove(name);
    }
    let command = command.args(arguments).current_dir(directory).env("RAYON_NUM_THREADS", "2");
    let output = command.output().expect("the binary starts");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {told}");
    told
}

/// A model of ten million parameters with the tokenizer of the tiny one.
fn describe_model(directory: &Path) {
    run(directory, &["tiny", "--output", "tiny"]);
    let model = directory.join("model");
    fs::create_dir(&model).expect("created");
    let tokenizer = |folder: &str| directory.join(folder).join("tokenizer.json");
    fs::copy(tokenizer("tiny"), tokenizer("model")).expect("it is there");
    let path = |folder: &str| directory.join(folder).join("config.json");
    let text = fs::read_to_string(path("tiny")).expect("it is there");
    let mut configuration: Map<String, Value> = serde_json::from_str(&text).expect("an object");
    for (key, value) in [
        ("hidden_size", 256),
        ("intermediate_size", 704),
        ("num_hidden_layers", 4),
        ("head_dim", 64),
        ("vocab_size", 24_576),
    ] {
        configuration.insert(key.to_owned(), json!(value));
    }
    fs::write(path("model"), Value::Object(configuration).to_string()).expect("written");
}

/// GiB after a word in a line such as `memory: peak 0.52 GiB, estimated 0.50 GiB`.
fn figure(told: &str, word: &str) -> f64 {
    let line = told.lines().find(|line| line.contains("memory: peak")).expect("it is told");
    let rest = line.split_once(word).expect("it is in the line").1.trim_start();
    let (number, unit) = rest.split_once(' ').expect("a unit");
    assert!(unit.starts_with("GiB"), "{line}");
    number.parse().expect("a number")
}

fn check(told: &str, what: &[&str]) {
    let (peak, estimated) = (figure(told, "peak"), figure(told, "estimated"));
    // Two digits are told.
    let off = (peak - estimated).abs() - 0.005;
    assert!(off <= 0.1 * estimated, "{what:?}: {peak} GiB, estimated {estimated} GiB");
}

#[test]
fn runs_take_what_they_are_said_to_need() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    describe_model(directory);
    run(directory, &["dataset", "--train", "120", "--heldout", "4", "--output", "pairs"]);
    run(directory, &["tokenize", "--input", "pairs", "--output", "tokens", "--weights", "tiny"]);
    let sizes = ["--data", "tokens", "--steps", "2", "--batch", "12", "--seq", "512"];
    let pretrain = ["pretrain", "--model", "model", "--output", "base"];
    check(&run(directory, &[&pretrain[..], &sizes].concat()), &pretrain);
    let finetune = ["finetune", "--weights", "base", "--output", "result"];
    for more in [
        &[][..],
        &["--precision", "bf16"],
        &["--recompute"],
        &["--recompute", "--precision", "bf16"],
        &["--method", "full", "--accumulate", "2"],
        &["--method", "full", "--precision", "bf16"],
    ] {
        check(&run(directory, &[&finetune[..], &sizes, more].concat()), more);
    }
}
