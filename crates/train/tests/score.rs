//! `het-train score`: losses of lines, and lines that are refused.

use het_train::export;
use het_train::tiny;
use serde_json::{Value as Json, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(directory: &Path, lines: &str, more: &[&str]) -> Output {
    let (model, input) = (directory.join("model"), directory.join("lines.jsonl"));
    if !model.exists() {
        let tokenizer = tiny::tokenizer().expect("built in");
        export::hub(&tiny::weights(1), &tokenizer, &model).expect("written");
    }
    fs::write(&input, lines).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_het-train"));
    command.arg("score").arg("--weights").arg(model).arg("--input").arg(input).args(more);
    command.env_remove("HET_DEVICES").output().expect("the binary starts")
}

fn items(output: &Output) -> Vec<Json> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Json = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(json["kind"], "ScoreList");
    json["items"].as_array().expect("a list").clone()
}

#[test]
fn text_and_its_tokens_have_the_same_loss() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokens = tiny::tokenizer().expect("built in").encode("abc, abc").expect("it encodes");
    let lines = format!(
        "{}\n\n{}\n{}\n",
        json!({"text": "abc, abc"}),
        json!({"tokens": tokens}),
        json!({"tokens": [5, 6]})
    );
    let items = items(&run(directory.path(), &lines, &["-o", "json"]));
    let of = |key: &str| items.iter().map(|item| item[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("line"), [json!(1), json!(3), json!(4)]);
    assert_eq!(of("tokens"), [json!(8), json!(8), json!(2)]);
    assert_eq!(items[0]["loss"], items[1]["loss"]);
    let loss = items[0]["loss"].as_f64().expect("a number");
    assert!((loss - 259f64.ln()).abs() < 1.5, "{loss} of a random model");
}

#[test]
fn a_table_is_what_people_get() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = run(directory.path(), "{\"tokens\": [3, 4, 5]}\n", &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[..5], ["LINE", "TOKENS", "LOSS", "1", "3"], "{text}");
}

#[test]
fn a_broken_line_is_named_before_anything_is_computed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let good = "{\"tokens\": [3, 4]}\n";
    let long = json!({"tokens": vec![7; 1025]}).to_string();
    let check = |line: &str, what: &str| {
        let output = run(directory.path(), &format!("{good}{line}\n"), &["-o", "json"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
        assert!(said.contains("line 2 of `") && said.contains("lines.jsonl"), "{said}");
        assert!(said.contains(what) && said.contains("hint:"), "{said}");
    };
    check("{\"text\": \"a", "EOF");
    check("[1, 2]", "not a JSON object");
    check("[null, [1, 2]]", "not a JSON object");
    check("{\"text\": \"ab\", \"tokens\": [1, 2]}", "not one of");
    check("{\"words\": \"ab\"}", "unknown field `words`");
    check("{\"tokens\": [1]}", "1 tokens leave nothing to predict");
    check("{\"text\": \"\"}", "nothing to predict");
    check("{\"tokens\": [1, 259]}", "token 259 is beyond the vocabulary of 259");
    check("{\"tokens\": [1, -2]}", "invalid value");
    check(&long, "1025 tokens are more than the 1024 positions");
}

#[test]
fn a_loss_that_is_no_number_is_an_error_of_its_line() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut weights = tiny::weights(1);
    let embedding = &mut std::sync::Arc::make_mut(&mut weights.parameters.outer).embedding;
    embedding[5 * weights.architecture.hidden] = f32::NAN;
    let model = directory.path().join("model");
    export::hub(&weights, &tiny::tokenizer().expect("built in"), &model).expect("written");
    let output = run(directory.path(), "\n{\"tokens\": [5, 6]}\n", &["-o", "json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the loss of line 2 of `") && said.contains("hint:"), "{said}");
    let mut generate = Command::new(env!("CARGO_BIN_EXE_het-train"));
    generate.args(["generate", "--raw", "--prompt", "a", "--weights"]).arg(&model);
    let said = generate.output().expect("the binary starts");
    assert_eq!(said.status.code(), Some(1), "a head of NaN has no likeliest token");
}

#[test]
fn an_output_that_nobody_takes_is_no_panic() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    run(directory.path(), "{\"tokens\": [5, 6]}\n", &[]);
    let to = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_het-train"));
        command.arg("score").arg("--weights").arg(directory.path().join("model"));
        command.arg("--input").arg(directory.path().join("lines.jsonl")).stdout(stdout);
        command.stderr(Stdio::piped()).output().expect("the binary starts")
    };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = to(writer.into());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let full = fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let output = to(full.into());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write to standard output") && said.contains("hint:"), "{said}");
}

#[test]
fn an_empty_or_absent_file_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let said = String::from_utf8_lossy(&run(directory.path(), "\n", &[]).stderr).into_owned();
    assert!(said.contains("lines.jsonl") && said.contains("holds no lines to score"), "{said}");
}
