//! A run that was stopped, killed or short of disk ends as one that never was.

use het_train::checkpoint;
use het_train::lora::TENSORS_FILE;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_het-train");

/// A directory with a tiny model and tokenised data.
struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        let path = |name| scene.path(name).display().to_string();
        succeed(&["tiny", "--output", &path("model")]);
        succeed(&["dataset", "--train", "40", "--heldout", "4", "--output", &path("pairs")]);
        let (pairs, tokens, model) = (path("pairs"), path("tokens"), path("model"));
        succeed(&["tokenize", "--input", &pairs, "--output", &tokens, "--weights", &model]);
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `finetune` into `output`, with more arguments.
    fn finetune(&self, output: &str, more: &[&str]) -> Command {
        let weights = self.path("model").display().to_string();
        let own = ["--weights", &weights, "--rank", "2"];
        self.train("finetune", output, &[&own, more].concat())
    }

    /// As [`Scene::finetune`], for all parameters.
    fn full(&self, output: &str, more: &[&str]) -> Command {
        let weights = self.path("model").display().to_string();
        let own = ["--weights", &weights, "--method", "full"];
        self.train("finetune", output, &[&own, more].concat())
    }

    /// `pretrain` of the model that `described` describes.
    fn pretrain(&self, described: &str, output: &str, more: &[&str]) -> Command {
        let model = self.path(described).display().to_string();
        self.train("pretrain", output, &[&["--model", &model], more].concat())
    }

    fn train(&self, name: &str, output: &str, more: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg(name).arg("--data").arg(self.path("tokens"));
        command.arg("--output").arg(self.path(output));
        command.args(["--seed", "3"]).args(more);
        for (name, default) in [("--steps", "8"), ("--batch", "2")] {
            if !more.contains(&name) {
                command.args([name, default]);
            }
        }
        for name in ["HET_NOTICE", "HET_RESUME_FROM", "HET_CHECKPOINT_DIR", "HET_DEVICES"] {
            command.env_remove(name);
        }
        command.env("RAYON_NUM_THREADS", "2");
        command
    }
}

fn succeed(arguments: &[&str]) {
    let output = Command::new(BINARY).args(arguments).output().expect("the binary starts");
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
}

fn run(mut command: Command) -> Output {
    command.output().expect("the binary starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn adapter(directory: &Path) -> Vec<u8> {
    fs::read(directory.join(TENSORS_FILE)).expect("the adapter was written")
}

fn model(directory: &Path) -> Vec<u8> {
    fs::read(directory.join("model.safetensors")).expect("the model was written")
}

#[test]
fn a_resumed_run_writes_the_same_bytes() {
    let scene = Scene::new();
    assert!(run(scene.finetune("whole", &[])).status.success());
    // The notice is already there, so the run saves after its first step and stops.
    let notice = scene.path("notice");
    fs::write(&notice, r#"{"deadline_ms": 1000, "reason": "priority"}"#).expect("written");
    let progress = scene.path("progress");
    let mut first = scene.finetune("parts", &[]);
    let stopped = run(first.env("HET_NOTICE", &notice).env("HET_PROGRESS", &progress).take());
    assert_eq!(stopped.status.code(), Some(75), "{}", stderr(&stopped));
    let text = fs::read_to_string(&progress).expect("progress was written");
    let saved = scene.path("parts/checkpoints/checkpoint-1");
    assert!(text.contains(&format!(r#""path":"{}""#, saved.display())), "{text}");
    assert!(text.contains(r#""tokens_per_s":"#) && text.contains(r#""left_s":"#), "{text}");
    let saved = saved.display().to_string();
    let resumed = run(scene.finetune("parts", &["--resume", &saved, "--checkpoint-every", "3"]));
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_eq!(adapter(&scene.path("whole")), adapter(&scene.path("parts")));
    let page = fs::read_to_string(scene.path("parts/report.html")).expect("it was written");
    assert!(scene.path("parts/timeline.json").exists() && page.contains("ui.perfetto.dev"));
    let parts = ["training loss, steps 1 to 8", "<th>before</th>", "<th>after</th>"];
    for part in parts.into_iter().chain(["<th>tasks</th>", "layer_backward"]) {
        assert!(page.contains(part), "{page}");
    }
    // A run that was killed resumes from its newest periodic checkpoint.
    let newest = scene.path("parts/checkpoints/checkpoint-6").display().to_string();
    assert!(run(scene.finetune("again", &["--resume", &newest])).status.success());
    assert_eq!(adapter(&scene.path("whole")), adapter(&scene.path("again")));
}

#[test]
fn a_run_in_bf16_resumes_to_the_same_bytes_and_in_nothing_else() {
    let scene = Scene::new();
    let bf16 = ["--precision", "bf16"];
    let train = |output: &str, trains_all: bool, more: &[&str]| match trains_all {
        false => run(scene.finetune(output, more)),
        true => run(scene.full(output, more)),
    };
    for trains_all in [false, true] {
        let result = if trains_all { model } else { adapter };
        let whole = train("whole", trains_all, &[&bf16[..], &["--checkpoint-every", "3"]].concat());
        assert!(stderr(&whole).contains("bf16 products"), "{}", stderr(&whole));
        let saved = scene.path("whole/checkpoints/checkpoint-6").display().to_string();
        let resume = ["--resume", &saved];
        let again = train("again", trains_all, &[&bf16[..], &resume].concat());
        assert!(again.status.success(), "{}", stderr(&again));
        assert_eq!(result(&scene.path("whole")), result(&scene.path("again")));
        let other = train("other", trains_all, &resume);
        assert!(!other.status.success() && stderr(&other).contains("precision"));
    }
}

/// Seven sequences in batches of two, so that epochs begin within steps.
#[test]
fn a_run_stopped_after_every_step_reads_the_very_next_samples() {
    let scene = Scene::new();
    let input = scene.path("texts");
    fs::create_dir(&input).expect("created");
    let record = |words: usize| format!("{{\"text\": \"{}\"}}\n", "a spider ".repeat(words));
    let records: String = [1, 9, 2, 17, 4, 30, 6].map(record).concat();
    fs::write(input.join("train.jsonl"), records).expect("written");
    fs::write(input.join("heldout.jsonl"), record(3)).expect("written");
    let (input, tokens, model) = (input, scene.path("tokens"), scene.path("model"));
    let paths = [input, tokens, model].map(|path| path.display().to_string());
    succeed(&["tokenize", "--input", &paths[0], "--output", &paths[1], "--weights", &paths[2]]);
    assert!(run(scene.finetune("whole", &[])).status.success());
    // The notice is always there, so every run saves after one step and stops.
    let notice = scene.path("notice");
    fs::write(&notice, r#"{"deadline_ms": 1000, "reason": "priority"}"#).expect("written");
    let mut more: Vec<String> = Vec::new();
    for step in 1..=8 {
        let more_now: Vec<&str> = more.iter().map(String::as_str).collect();
        let stopped = run(scene.finetune("parts", &more_now).env("HET_NOTICE", &notice).take());
        assert_eq!(stopped.status.code(), Some(75), "{step}: {}", stderr(&stopped));
        let saved = scene.path("parts/checkpoints").join(format!("checkpoint-{step}"));
        more = vec!["--resume".to_owned(), saved.display().to_string()];
    }
    let resumed = run(scene.finetune("parts", &["--resume", &more[1]]));
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_eq!(adapter(&scene.path("whole")), adapter(&scene.path("parts")));
}

#[test]
fn another_runs_checkpoint_is_refused_by_name() {
    let scene = Scene::new();
    assert!(run(scene.finetune("one", &["--checkpoint-every", "4"])).status.success());
    let saved = scene.path("one/checkpoints/checkpoint-4").display().to_string();
    let output = run(scene.finetune("two", &["--resume", &saved, "--lr", "0.5"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`lr` is 0.5, was 0.003"), "{}", stderr(&output));
    assert!(stderr(&output).contains("hint: "), "{}", stderr(&output));
}

#[test]
fn a_checkpoint_of_another_configuration_is_refused() {
    let scene = Scene::new();
    assert!(run(scene.finetune("one", &["--checkpoint-every", "4"])).status.success());
    let saved = scene.path("one/checkpoints/checkpoint-4").display().to_string();
    let config = scene.path("model/config.json");
    let text = fs::read_to_string(&config).expect("it was written");
    assert!(text.contains("10000.0"), "{text}");
    fs::write(&config, text.replace("10000.0", "20000.0")).expect("written");
    let output = run(scene.finetune("two", &["--resume", &saved]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`configuration` is"), "{}", stderr(&output));
}

#[test]
fn sizes_that_nothing_computes_with_are_refused() {
    let scene = Scene::new();
    let huge = usize::MAX.to_string();
    let check = |mut command: Command, what: &str| {
        let output = command.output().expect("the binary starts");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(said.contains(what) && said.contains("hint:"), "{said}");
    };
    let finetune = |key: &str, value: &str| {
        let mut command = Command::new(BINARY);
        command.args(["finetune", key, value]).arg("--data").arg(scene.path("tokens"));
        command.arg("--weights").arg(scene.path("model")).arg("--output").arg(scene.path("out"));
        command.env_remove("HET_RESUME_FROM").env_remove("HET_DEVICES");
        command
    };
    check(finetune("--rank", &huge), "above 64, the most a matrix here has");
    check(finetune("--batch", &huge), "a forward pass of");
    check(finetune("--seq", "3"), "40 of 40 sequences are cut to 3 tokens");
    let on_model = |name: &str, more: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg(name).arg("--weights").arg(scene.path("model")).args(more);
        command
    };
    check(on_model("bench-step", &["--seq", "0"]), "seq at least 2");
    check(on_model("generate", &["--prompt", "a", "--new-max", &huge]), "positions");
    let tokens = scene.path("tokens").display().to_string();
    let evaluate = on_model("evaluate", &["--data", &tokens, "--seq", "3"]);
    check(evaluate, "4 of 4 sequences are cut to 3 tokens");
}

#[test]
fn a_full_disk_leaves_the_last_checkpoint_and_the_run_whole() {
    let scene = Scene::new();
    assert!(run(scene.finetune("whole", &[])).status.success());
    assert!(run(scene.finetune("out", &["--checkpoint-every", "4"])).status.success());
    let checkpoints = scene.path("out/checkpoints");
    let before = adapter(&checkpoints.join("checkpoint-4"));
    fs::remove_dir_all(checkpoints.join("checkpoint-8")).expect("removed");
    // No file may pass 8 KiB, as on a disk with that much left; the moments need more.
    let finetune = scene.finetune("out", &["--checkpoint-every", "1"]);
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -f 8; exec \"$0\" \"$@\""]).arg(finetune.get_program());
    limited.args(finetune.get_args()).env("RAYON_NUM_THREADS", "2");
    let resume = checkpoints.join("checkpoint-4");
    let output = run(limited.arg("--resume").arg(&resume).take());
    let said = stderr(&output);
    assert!(said.contains("cannot write the checkpoint for step 5"), "{said}");
    assert!(said.contains("step 8/8"), "training went on: {said}");
    assert_eq!(before, adapter(&checkpoints.join("checkpoint-4")));
    let left: Vec<_> = fs::read_dir(&checkpoints).expect("it is there").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

trait Take {
    fn take(&mut self) -> Command;
}

impl Take for Command {
    /// An owned copy, so that a command can be built in one expression.
    fn take(&mut self) -> Command {
        std::mem::replace(self, Command::new("true"))
    }
}

#[test]
fn a_driver_this_binary_lacks_is_named() {
    let scene = Scene::new();
    let mut command = scene.finetune("out", &["--driver", "npu-ort"]);
    let output = run(command.take());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no driver `npu-ort`"), "{}", stderr(&output));
}

#[test]
fn all_parameters_learn_and_resume_to_the_same_bits() {
    let scene = Scene::new();
    let saving = ["--checkpoint-every", "3"];
    assert!(run(scene.full("whole", &saving)).status.success());
    let whole = model(&scene.path("whole"));
    assert_ne!(whole, model(&scene.path("model")));
    let newest = scene.path("whole/checkpoints/checkpoint-6").display().to_string();
    let resumed = run(scene.full("resumed", &["--resume", &newest, "--recompute"]));
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_eq!(whole, model(&scene.path("resumed")));
    // An adapter's checkpoint is none of this run, nor the other way round.
    let output = run(scene.finetune("other", &["--resume", &newest]));
    assert!(stderr(&output).contains("`method` is \"lora\", was \"full\""), "{}", stderr(&output));
    // The result is a model like any other.
    let tokens = scene.path("tokens").display().to_string();
    let whole = scene.path("whole").display().to_string();
    succeed(&["evaluate", "--weights", &whole, "--data", &tokens]);
    let exported = scene.path("exported").display().to_string();
    succeed(&["export", "--weights", &whole, "--merged", "--output", &exported]);
    assert_eq!(model(&scene.path("whole")), model(&scene.path("exported")));
}

#[test]
fn a_model_is_trained_from_its_description_alone() {
    let scene = Scene::new();
    let described = scene.path("described");
    fs::create_dir(&described).expect("created");
    let tokenizer = scene.path("model/tokenizer.json");
    fs::copy(tokenizer, described.join("tokenizer.json")).expect("copied");
    let gpt2 = r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4,
                   "vocab_size": 259, "n_positions": 1024}"#;
    fs::write(described.join("config.json"), gpt2).expect("written");
    let arguments = ["--pack", "--seq", "512", "--checkpoint-every", "4"];
    let output = run(scene.pretrain("described", "whole", &arguments));
    assert!(output.status.success(), "{}", stderr(&output));
    let newest = scene.path("whole/checkpoints/checkpoint-4").display().to_string();
    let resumed = [&arguments[..], &["--resume", &newest]].concat();
    assert!(run(scene.pretrain("described", "resumed", &resumed)).status.success());
    assert_eq!(model(&scene.path("whole")), model(&scene.path("resumed")));
    let whole = scene.path("whole").display().to_string();
    succeed(&["load", "--weights", &whole]);
    // What only describes a model has no weights.
    let output = Command::new(BINARY).args(["load", "--weights"]).arg(&described).output();
    let said = stderr(&output.expect("the binary starts"));
    assert!(said.contains("it has no `model.safetensors`"), "{said}");
}

#[test]
fn what_an_adapter_changes_is_what_was_asked_for() {
    let scene = Scene::new();
    let arguments = ["--target", "q_proj,mlp.down_proj", "--rslora", "--accumulate", "2"];
    assert!(run(scene.finetune("part", &arguments)).status.success());
    let config = fs::read_to_string(scene.path("part/adapter_config.json")).expect("written");
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    let targets = serde_json::json!(["mlp.down_proj", "self_attn.q_proj"]);
    assert_eq!((&config["target_modules"], &config["use_rslora"]), (&targets, &true.into()));
    let (adapter, weights) = (scene.path("part"), scene.path("model"));
    let (adapter, weights) = (adapter.display().to_string(), weights.display().to_string());
    let tokens = scene.path("tokens").display().to_string();
    succeed(&["evaluate", "--weights", &weights, "--adapter", &adapter, "--data", &tokens]);
    let refused = |mut command: Command, says: &str| {
        let output = command.output().expect("the binary starts");
        assert!(!output.status.success() && stderr(&output).contains(says), "{}", stderr(&output));
    };
    refused(scene.finetune("x", &["--target", "proj"]), "no matrix of a layer is called `proj`");
    refused(scene.full("x", &["--rank", "4"]), "`--method full` trains none");
    refused(
        scene.finetune("x", &["--precision", "int8"]),
        "computes in f32 or bf16, and `int8` is asked for",
    );
    refused(scene.finetune("x", &["--beta2", "1"]), "`--beta2` must be from 0 to below 1");
    refused(scene.full("x", &["--memory", "1MiB"]), "this run needs about");
    assert!(!scene.path("x").exists());
}

/// Kills of each run; `HET_KILLS=100` is what is done by hand.
fn kills() -> u32 {
    std::env::var("HET_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Steps of a run for each time that it is killed.
const STEPS_A_KILL: u32 = 3;
const STEPS_MIN: u32 = 30;

#[test]
fn a_run_that_is_killed_at_any_instant_ends_with_the_same_bits() {
    let scene = Scene::new();
    killed(&scene, "adapter", adapter, |output, more| scene.finetune(output, more));
    killed(&scene, "model", model, |output, more| scene.full(output, more));
}

fn killed(
    scene: &Scene,
    what: &str,
    result: fn(&Path) -> Vec<u8>,
    command: impl Fn(&str, &[&str]) -> Command,
) {
    let steps = (kills() * STEPS_A_KILL).max(STEPS_MIN);
    let words = steps.to_string();
    let arguments = ["--steps", &words, "--checkpoint-every", "1"];
    let whole = format!("{what}-whole");
    let timed = |output: &str, arguments: &[&str]| {
        let began = Instant::now();
        assert!(run(command(output, arguments)).status.success());
        began.elapsed()
    };
    let one = timed(&format!("{what}-one"), &["--steps", "1", "--checkpoint-every", "1"]);
    let step = timed(&whole, &arguments).saturating_sub(one) / (steps - 1);
    // One life of a run is killed at every instant of its start and of some steps.
    let span = one + step * (2 * STEPS_A_KILL);
    let expected = result(&scene.path(&whole));
    let mut random = ChaCha8Rng::seed_from_u64(23);
    let (parts, mut left) = (format!("{what}-parts"), kills());
    let checkpoints = scene.path(&parts).join("checkpoints");
    let next = || {
        let newest = checkpoint::list(&checkpoints).pop().map(|(_, path)| path);
        let newest = newest.map(|path| path.display().to_string());
        let resume = newest.iter().flat_map(|path| ["--resume", path.as_str()]);
        command(&parts, &arguments.into_iter().chain(resume).collect::<Vec<_>>())
    };
    let check = |left: u32| {
        let same = result(&scene.path(&parts)) == expected;
        assert!(same, "{what}: other bits, {left} kills are left");
    };
    while left > 0 {
        let share = f64::from(random.next_u32()) / f64::from(u32::MAX);
        let child = next().stderr(Stdio::piped()).spawn().expect("the binary starts");
        if kill_after(child, span.mul_f64(share)) {
            left -= 1;
        } else {
            check(left);
            fs::remove_dir_all(scene.path(&parts)).expect("removed");
        }
    }
    let last = run(next());
    assert!(last.status.success(), "{}", stderr(&last));
    check(0);
    let names = fs::read_dir(&checkpoints).expect("it is there").flatten();
    let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert!(names.all(|name| name.starts_with("checkpoint-")), "unfinished ones are left");
}

/// Kills a program once `span` has passed; whether it was still there, and not done with success.
fn kill_after(mut child: Child, span: Duration) -> bool {
    let mut said = child.stderr.take().expect("it is piped");
    let (sender, receiver) = channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = said.read_to_string(&mut text);
        let _ = sender.send(());
        text
    });
    let lives = receiver.recv_timeout(span) == Err(RecvTimeoutError::Timeout);
    if lives {
        child.kill().expect("it is ours");
    }
    let status = child.wait().expect("it is ours");
    let said = reader.join().expect("it only reads");
    assert!(lives || status.success(), "{said}");
    !status.success()
}

/// The loss of every step that a run told of.
fn losses(progress: &Path) -> Vec<f64> {
    let text = fs::read_to_string(progress).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.filter_map(|line: serde_json::Value| line["loss"].as_f64()).collect()
}

fn children(process: u32) -> Vec<i32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = fs::read_to_string(path).expect("it runs");
    text.split_whitespace().map(|id| id.parse().expect("a process")).collect()
}

/// Sums over parts of a batch round otherwise than those over all of it.
fn check_losses(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-3 * expected, "{found}, not {expected}");
    }
}

/// A run with so many workers, which trains all or an adapter, and the file of its progress.
fn shared(
    scene: &Scene,
    trains_all: bool,
    (name, workers, steps): (&str, &str, &str),
) -> (Command, PathBuf) {
    let more = ["--steps", steps, "--batch", "8", "--accumulate", "2"];
    let mut command = match trains_all {
        true => scene.full(name, &more),
        false => scene.finetune(name, &more),
    };
    let progress = scene.path(&format!("{name}-progress"));
    let _ = fs::remove_file(&progress);
    command.args(["--workers", workers]).env("HET_PROGRESS", &progress).stderr(Stdio::piped());
    (command, progress)
}

fn sorted(mut losses: Vec<f64>) -> Vec<f64> {
    losses.sort_by(f64::total_cmp);
    losses
}

#[test]
fn workers_change_no_loss() {
    let scene = Scene::new();
    for trains_all in [false, true] {
        let train = |name, workers| shared(&scene, trains_all, (name, workers, "10"));
        let (mut command, progress) = train("alone", "0");
        command.args(["--validate-every", "1"]);
        let output = run(command);
        assert!(output.status.success());
        let validated = sorted(held_out(&stderr(&output), "cpu0"));
        let alone = losses(&progress);
        assert_eq!((alone.len(), validated.len()), (10, 10));
        // Where nobody asks, what is cheap, and in any case the last.
        let anywhere = ["cpu0", "worker1", "worker2"];
        let (command, _) = train("unasked", "2");
        let told = stderr(&run(command));
        let unasked: Vec<f64> = anywhere.iter().flat_map(|own| held_out(&told, own)).collect();
        assert!(told.contains("held-out loss after step 10: "), "{told}");
        let is_known = |loss: &f64| validated.iter().any(|own| (own - loss).abs() < 1e-3);
        assert!(unasked.iter().all(is_known), "{unasked:?}, not of {validated:?}");
        let (mut command, progress) = train("shared", "2");
        let output = run(command.args(["--validate-every", "1"]).take());
        let told = stderr(&output);
        assert!(output.status.success(), "{told}");
        assert!(told.contains("devices: cpu0 ") && told.contains("; worker2 "), "{told}");
        check_losses(&losses(&progress), &alone);
        let beside = anywhere.iter().flat_map(|own| held_out(&told, own));
        check_losses(&sorted(beside.collect()), &validated);
        // What is computed in bf16 is so in workers, too.
        let rounded = |name, workers| {
            let (mut command, progress) = train(name, workers);
            let told = stderr(&run(command.args(["--precision", "bf16"]).take()));
            assert!(told.contains("bf16 products"), "{told}");
            losses(&progress)
        };
        check_losses(&rounded("shared-bf16", "2"), &rounded("alone-bf16", "0"));
        // Integers round, here as in a worker.
        for workers in ["0", "1"] {
            let (mut command, _) = train("rounded", workers);
            command.args(["--validate-every", "1", "--validate-precision", "int8"]);
            let told = stderr(&run(command));
            let places = ["cpu0 in int8", "worker1 in int8"];
            let rounded = sorted(places.iter().flat_map(|own| held_out(&told, own)).collect());
            assert_eq!(rounded.len(), 10, "{told}");
            assert_ne!(rounded, validated);
            for (rounded, exact) in rounded.iter().zip(&validated) {
                assert!((rounded - exact).abs() < 0.02 * exact, "{rounded}, not {exact}");
            }
        }
    }
}

/// On whatever Vulkan device is here; Mesa's lavapipe, one in software, is enough.
#[test]
fn a_worker_on_a_vulkan_device_changes_no_loss() {
    match het_vulkan::Device::open(0) {
        Ok(device) => say(&format!("a worker computes on {}", device.name())),
        Err(why) => return say(&format!("SKIPPED: {why}")),
    }
    let scene = Scene::new();
    for trains_all in [false, true] {
        let train = |name, workers, more: &[&str]| {
            let (mut command, progress) = shared(&scene, trains_all, (name, workers, "8"));
            let output = run(command.args(["--validate-every", "2"]).args(more).take());
            let told = stderr(&output);
            assert!(output.status.success(), "{told}");
            (told, losses(&progress))
        };
        let (told, alone) = train("alone", "0", &[]);
        let validated = held_out(&told, "cpu0");
        for (workers, drivers, more) in [
            ("1", "vulkan", &[][..]),
            ("1", "vulkan:0", &["--recompute"]),
            // This process, another one, and a device.
            ("2", "cpu,vulkan", &[]),
        ] {
            let more = [&["--worker-driver", drivers][..], more].concat();
            let (told, found) = train("vulkan", workers, &more);
            assert!(told.contains("-vulkan ") && told.contains("vulkan)\n"), "{told}");
            assert!(!told.contains("is lost"), "{told}");
            check_losses(&found, &alone);
            let names = ["cpu0", "worker1", "worker1-vulkan", "worker2", "worker2-vulkan"];
            let beside = names.iter();
            let beside = beside.flat_map(|own| held_out(&told, own));
            check_losses(&sorted(beside.collect()), &sorted(validated.clone()));
        }
    }
    let refused = |more: &[&str], says: &str| {
        let output =
            run(scene.finetune("none", &[more, &["--worker-driver", "vulkan:77"]].concat()));
        assert!(!output.status.success() && stderr(&output).contains(says), "{}", stderr(&output));
    };
    refused(&["--workers", "1"], "there is no Vulkan device 77");
    for more in [["--precision", "bf16"], ["--validate-precision", "int8"]] {
        refused(&[&["--workers", "1"][..], &more].concat(), "the driver `vulkan` computes in f32");
    }
    refused(&[], "`--worker-driver` says what workers compute with, and there are none");
}

/// The output of a test that passes is not shown, but for what goes past the macros for printing.
fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").expect("standard error is open");
}

#[test]
fn workers_that_are_killed_and_come_back_change_no_loss() {
    let scene = Scene::new();
    for trains_all in [false, true] {
        // Runs that go on until they are told to stop.
        let train = |name, workers| shared(&scene, trains_all, (name, workers, "100000"));
        let (mut command, progress) = train("alone", "0");
        let child = command.spawn().expect("it starts");
        wait_until(|| losses(&progress).len() >= 20);
        stop(child);
        let alone = losses(&progress);
        let (mut command, progress) = train("killed", "2");
        command.args(["--validate-every", "1"]);
        let child = command.spawn().expect("it starts");
        wait_until(|| losses(&progress).len() >= 3);
        let workers = children(child.id());
        assert_eq!(workers.len(), 2);
        let said = || fs::read_to_string(&progress).unwrap_or_default();
        for (row, worker) in workers.into_iter().enumerate() {
            kill(Pid::from_raw(worker), Signal::SIGKILL).expect("it runs");
            wait_until(|| said().matches("is there again").count() == row + 1);
            let then = losses(&progress).len();
            wait_until(|| losses(&progress).len() > then + 3);
        }
        let told = stop(child);
        assert!(told.contains("is lost: ") && told.contains(", started again after"), "{told}");
        let found = losses(&progress);
        let both = found.len().min(alone.len());
        check_losses(&found[..both], &alone[..both]);
    }
}

#[test]
fn a_worker_that_is_killed_before_it_comes_is_started_again() {
    let scene = Scene::new();
    let (mut command, _) = shared(&scene, false, ("killed-at-once", "1", "3"));
    let child = command.spawn().expect("it starts");
    wait_until(|| !children(child.id()).is_empty());
    kill(Pid::from_raw(children(child.id())[0]), Signal::SIGKILL).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Held-out losses that a device is said to have computed.
fn held_out(told: &str, device: &str) -> Vec<f64> {
    let lines = told.lines().filter(|line| line.contains("held-out loss after step"));
    let own = lines.filter_map(|line| line.strip_suffix(&format!(", by {device}")));
    own.map(|line| line.rsplit(' ').next().and_then(|loss| loss.parse().ok()).expect("a loss"))
        .collect()
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Has a run save and end; what it said.
fn stop(child: Child) -> String {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
    stderr(&child.wait_with_output().expect("it ends"))
}

#[test]
fn the_ranks_of_a_gang_are_one_run() {
    let scene = Scene::new();
    let more = ["--steps", "6", "--batch", "8"];
    let progress = scene.path("alone-progress");
    let mut alone = scene.finetune("alone", &more);
    assert!(run(alone.env("HET_PROGRESS", &progress).take()).status.success());
    let alone = losses(&progress);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|own| own.local_addr());
    let port = free.expect("a port").port().to_string();
    let progress = scene.path("gang-progress");
    let rank = |rank: &str| {
        let mut command = scene.finetune("gang", &more);
        let variables = [("WORLD_SIZE", "2"), ("RANK", rank), ("MASTER_ADDR", "127.0.0.1")];
        command.envs(variables).env("MASTER_PORT", &port).env("HET_PROGRESS", &progress);
        command.stderr(Stdio::piped());
        command
    };
    let second = rank("1").spawn().expect("it starts");
    let first = run(rank("0"));
    assert!(first.status.success(), "{}", stderr(&first));
    let told = stderr(&first);
    assert!(told.contains("devices: cpu0 ") && told.contains("; worker1 "), "{told}");
    let second = second.wait_with_output().expect("it ends");
    assert!(second.status.success(), "{}", stderr(&second));
    check_losses(&losses(&progress), &alone);
    let left = fs::read_dir(scene.path("gang/checkpoints")).expect("it is there");
    let names: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with(".ranks")), "{names:?}");
}
