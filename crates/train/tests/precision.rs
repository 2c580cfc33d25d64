//! `--precision`: what it computes with, what it says of that, and what it refuses.

use serde_json::Value as Json;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_het-train");

/// A directory with a tiny model and tokenised data.
struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        let path = |name| scene.path(name).display().to_string();
        let (model, pairs, tokens) = (path("model"), path("pairs"), path("tokens"));
        for arguments in [
            &["tiny", "--output", &model][..],
            &["dataset", "--train", "4", "--heldout", "4", "--output", &pairs],
            &["tokenize", "--input", &pairs, "--output", &tokens, "--weights", &model],
        ] {
            let output = Command::new(BINARY).args(arguments).output().expect("the binary starts");
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `evaluate`, with a precision that its stage has, and more arguments.
    fn evaluate(&self, precision: &str, more: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command.arg("evaluate").arg("--weights").arg(self.path("model"));
        command.arg("--data").arg(self.path("tokens")).args(["--generate", "2", "--new-max", "4"]);
        command.args(more).env("HET_PRECISION", precision).env_remove("HET_DEVICES");
        command.env("HET_PROGRESS", self.path("progress")).env("RAYON_NUM_THREADS", "2");
        command.output().expect("the binary starts")
    }

    /// The loss, and what the scheduler was told of the driver.
    fn judged(&self, precision: &str, more: &[&str]) -> (f64, String) {
        let _ = fs::remove_file(self.path("progress"));
        let output = self.evaluate(precision, more);
        assert!(output.status.success(), "{output:?}");
        let progress = fs::read_to_string(self.path("progress")).expect("it was written");
        let lines = progress.lines().map(|line| serde_json::from_str(line).expect("it is JSON"));
        let lines: Vec<Json> = lines.collect();
        let loss = lines.iter().find_map(|line| line["result"]["loss"].as_f64());
        let detail = lines.iter().find_map(|line| line["detail"].as_str());
        (loss.expect("a loss"), detail.expect("a driver").to_owned())
    }
}

#[test]
fn a_stage_computes_in_its_precision_and_says_so() {
    let scene = Scene::new();
    let (exact, detail) = scene.judged("fp32", &[]);
    assert!(detail.contains("f32 arithmetic, products by "), "{detail}");
    assert!(detail.contains(" on 2 cpu threads"), "{detail}");
    let check = |precision: &str, more: &[&str], says: &str, off: f64| {
        let (loss, detail) = scene.judged(precision, more);
        assert!(detail.contains(says), "{detail}");
        assert!(loss != exact && (loss / exact - 1.0).abs() < off, "{loss}, not {exact}");
    };
    check("bf16", &[], "bf16 products by", 0.001);
    check("int8", &[], "int8 products by", 0.01);
    check("int8", &["--instructions", "portable"], "by portable code, other", 0.01);
    check("int4", &[], "int4 weights", 0.05);
    // What is typed counts more than what the stage says.
    check("fp32", &["--precision", "int8"], "int8 products by", 0.01);
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let scene = Scene::new();
    let check = |output: Output, words: [&str; 2]| {
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    check(scene.evaluate("fp8", &[]), ["fp8", "int8"]);
    let portable = ["--instructions", "portable"];
    check(scene.evaluate("fp32", &portable), ["`--instructions` is of integer products", "f32"]);
    let mut training = Command::new(BINARY);
    training.arg("finetune").arg("--weights").arg(scene.path("model"));
    training.arg("--data").arg(scene.path("tokens")).arg("--output").arg(scene.path("adapter"));
    training.args(["--steps", "1"]).env("HET_PRECISION", "int8").env_remove("HET_DEVICES");
    for name in ["HET_NOTICE", "HET_RESUME_FROM", "HET_CHECKPOINT_DIR", "HET_PROGRESS"] {
        training.env_remove(name);
    }
    let output = training.output().expect("the binary starts");
    check(output, ["training computes in f32 or bf16, and `int8` is asked for", "hint: "]);
    assert!(!scene.path("adapter").exists());
    let output = training.env("HET_PRECISION", "fp32").output().expect("the binary starts");
    assert!(output.status.success(), "{output:?}");
}
