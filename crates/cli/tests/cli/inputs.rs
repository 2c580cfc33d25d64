//! What a stage reads is brought near while it waits: named inputs onto a disk of this machine, and
//! what its program read before into memory.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::commands::wait_for;
use crate::support::{Sandbox, Served, serve_declared};

/// A job that has the only device until there is a file of its name.
fn occupy(served: &Served, name: &str) -> u64 {
    let wait = format!("until [ -e {name} ]; do sleep 0.05; done");
    let stage = json!({
        "name": "train", "kind": "train", "devices": "gpu:1", "run": wait, "inputs": ["nothing"],
    });
    let id = served.submit_stage(name, "normal", &stage);
    wait_for(&format!("`{name}` runs"), || {
        served.told(&["ps"]).lines().any(|line| line.contains(name) && line.contains("running"))
    });
    id
}

/// An input that is older than every job.
fn write_input(dir: &Path, name: &str, bytes: usize) {
    let mut file = File::create(dir.join(name)).expect("the sandbox is writable");
    std::io::Write::write_all(&mut file, &vec![7; bytes]).expect("the sandbox is writable");
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    file.set_modified(yesterday).expect("it is a file of ours");
}

fn let_go(served: &Served, name: &str) {
    fs::write(served.path().join(name), "").expect("the sandbox is writable");
}

#[test]
fn inputs_are_copied_to_a_local_disk_while_their_stage_waits() {
    let sandbox = Sandbox::new();
    write_input(sandbox.path(), "tokens.bin", 3_000_000);
    let local = sandbox.path().join("local");
    fs::create_dir(&local).expect("the sandbox is writable");
    let options = ["--copy-inputs", "always", "--inputs-dir", &local.to_string_lossy()];
    let served = serve_declared(sandbox, 1, &options.map(str::to_owned));
    occupy(&served, "first");
    let stage = json!({
        "name": "train", "kind": "train", "devices": "gpu:1", "inputs": ["tokens.bin", "org/none"],
        "run": "printf '%s' \"$HET_INPUTS\" > told; cat \"$(sed -n 1p told)\" | wc -c > read",
    });
    let second = served.submit_stage("second", "normal", &stage);
    let explained = served.told(&["explain", &second.to_string()]);
    wait_for("the copy", || {
        het_files::usage([local.clone()], 100).bytes >= 3_000_000
            && walk(&local).iter().any(|path| path.ends_with(".manifest"))
    });
    let_go(&served, "first");
    assert_eq!(served.code(&["wait", &second.to_string()]), Some(0), "{explained}");
    let told = served.read("told");
    let lines: Vec<&str> = told.lines().collect();
    assert!(Path::new(lines[0]).starts_with(&local), "{told}");
    assert_eq!((lines[1], served.read("read").trim()), ("org/none", "3000000"));
}

/// All paths below a directory.
fn walk(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let inside = entries.flat_map(|entry| {
        let path = entry.path();
        let mut all = walk(&path);
        all.push(path.to_string_lossy().into_owned());
        all
    });
    inside.collect()
}

#[test]
fn what_a_program_read_on_its_first_run_is_read_ahead_of_the_next() {
    let sandbox = Sandbox::new();
    write_input(sandbox.path(), "tokens.bin", 40_000_000);
    write_input(sandbox.path(), "small.bin", 30);
    let served = serve_declared(sandbox, 1, &[]);
    let stage = json!({
        "name": "train", "kind": "train", "devices": "gpu:1",
        "run": "exec 3< tokens.bin 4< small.bin 5>> written; sleep 1",
    });
    // Until one was looked at while it had the file open.
    wait_for("a run that was looked at", || {
        let id = served.submit_stage("finetune", "normal", &stage);
        assert_eq!(served.code(&["wait", &id.to_string()]), Some(0));
        served.told(&["export"]).contains("/tokens.bin\"")
    });
    occupy(&served, "other");
    let second = served.submit_stage("finetune", "normal", &stage);
    wait_for("the preparation", || {
        let explained = served.told(&["explain", &second.to_string()]);
        explained.contains("its inputs are read into the memory")
    });
    let_go(&served, "other");
    assert_eq!(served.code(&["wait", &second.to_string()]), Some(0));
}
