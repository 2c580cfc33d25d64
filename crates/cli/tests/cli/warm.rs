//! Programs are started while their devices are still in use, and go on when those are free.
//!
//! `HET_WARM_PAIRS=10 cargo test -p het-cli --test cli warm -- --nocapture` prints how long a
//! device is idle between two jobs, cold and warm, of programs that sleep through imports of 2 s
//! and a load of 0.5 s.

use std::fs;
use std::path::PathBuf;

use het_testkit::has_python;
use serde_json::{Value, json};

use crate::commands::wait_for;
use crate::support::{Sandbox, Served, json_lines, serve_declared};

/// Jobs of a CI run, one after the other.
const JOBS: u64 = 3;

/// Writes down when it does what, and on which device.
const TRAINER: &str = r#"
import json, os, time

notes, name = os.environ["NOTES"], os.environ["HET_JOB"]


def note(what):
    line = {"at": time.time(), "job": name, "what": what, "device": os.environ.get("PHOTONS")}
    with open(os.path.join(notes, "story"), "ab", buffering=0) as file:
        file.write((json.dumps(line) + "\n").encode())


def until(what):
    while not os.path.exists(os.path.join(notes, what)):
        time.sleep(0.01)


note("begins")
time.sleep(float(os.environ["IMPORTS"]))
import heterosis
note("imported")
job = heterosis.job()
note("has devices")
time.sleep(float(os.environ["LOAD"]))
note("works")
until(os.environ["UNTIL"])
note("ends")
"#;

struct Rig {
    served: Served,
    notes: PathBuf,
}

impl Rig {
    /// One device.
    fn new() -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("train.py", TRAINER);
        let notes = sandbox.path().join("notes");
        fs::create_dir(&notes).expect("the sandbox is writable");
        Self { served: serve_declared(sandbox, 1, &[]), notes }
    }

    /// A job that works until there is a note of its name.
    fn submit(&self, name: &str, warm: bool, (imports, load): (&str, &str)) -> u64 {
        let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
        let trainer = self.served.path().join("train.py");
        let stage = json!({
            "name": "train", "kind": "train", "devices": "gpu:1", "warm": warm,
            "inputs": [trainer], "run": ["python3", trainer],
            "env": { "NOTES": self.notes, "IMPORTS": imports, "LOAD": load,
                "UNTIL": format!("go-{name}"),
                "PYTHONPATH": python, "PYTHONDONTWRITEBYTECODE": "1" },
        });
        self.served.submit_stage(name, "normal", &stage)
    }

    fn story(&self) -> Vec<Value> {
        json_lines(&self.notes.join("story"))
    }

    fn at(&self, name: &str, what: &str) -> Option<f64> {
        let story = self.story();
        let line = story.iter().find(|line| line["job"] == name && line["what"] == what);
        line.map(|line| line["at"].as_f64().expect("a time"))
    }

    fn await_note(&self, name: &str, what: &str) {
        wait_for(&format!("`{name}` {what}"), || self.at(name, what).is_some());
    }

    fn let_go(&self, name: &str) {
        fs::write(self.notes.join(format!("go-{name}")), "").expect("it is writable");
    }
}

#[test]
fn the_next_program_waits_for_its_devices_with_its_imports_done() {
    if !has_python() {
        return;
    }
    let rig = Rig::new();
    let name = |index: u64| format!("job-{index}");
    let mut ids = vec![rig.submit(&name(1), true, ("0", "0"))];
    for index in 1..=JOBS {
        rig.await_note(&name(index), "works");
        if index < JOBS {
            // While this one has the only device.
            ids.push(rig.submit(&name(index + 1), true, ("0", "0")));
            rig.await_note(&name(index + 1), "imported");
            assert_eq!(rig.at(&name(index + 1), "has devices"), None);
        }
        rig.let_go(&name(index));
    }
    for id in ids {
        assert_eq!(rig.served.code(&["wait", &id.to_string()]), Some(0));
    }
    let told: Vec<Value> = rig.story();
    let begun = told.iter().filter(|line| line["what"] == "begins").count() as u64;
    assert_eq!(begun, JOBS, "each was started once");
    let with_devices = told.iter().filter(|line| line["what"] == "works");
    assert!(with_devices.clone().all(|line| line["device"] == "0"), "{told:#?}");
    let early = told.iter().filter(|line| line["what"] == "imported" && line["job"] != "job-1");
    assert!(early.clone().all(|line| line["device"] != "0"), "{told:#?}");
}

#[test]
fn a_program_that_waits_is_killed_with_its_job() {
    if !has_python() {
        return;
    }
    let rig = Rig::new();
    rig.submit("first", true, ("0", "0"));
    rig.await_note("first", "works");
    let second = rig.submit("second", true, ("0", "0"));
    rig.await_note("second", "imported");
    let explained = rig.served.told(&["explain", &second.to_string()]);
    assert!(explained.contains("its program has been started"), "{explained}");
    assert_eq!(rig.served.code(&["cancel", &second.to_string()]), Some(0));
    let third = rig.submit("third", true, ("0", "0"));
    rig.await_note("third", "imported");
    rig.let_go("first");
    rig.await_note("third", "works");
    rig.let_go("third");
    assert_eq!(rig.served.code(&["wait", &third.to_string()]), Some(0));
    assert_eq!(rig.at("second", "has devices"), None);
}

#[test]
fn a_device_is_idle_for_no_longer_than_its_load() {
    let pairs = std::env::var("HET_WARM_PAIRS").ok().map(|text| text.parse::<u64>());
    let Some(Ok(pairs)) = pairs.filter(|_| has_python()) else { return };
    let rig = Rig::new();
    let mut idle = [Vec::new(), Vec::new()];
    for (row, warm) in [false, true].into_iter().enumerate() {
        let name = |index: u64| format!("{}-{index}", if warm { "warm" } else { "cold" });
        rig.submit(&name(0), warm, ("2", "0.5"));
        for index in 0..pairs {
            rig.submit(&name(index + 1), warm, ("2", "0.5"));
            rig.await_note(&name(index), "works");
            if warm {
                rig.await_note(&name(index + 1), "imported");
            }
            rig.let_go(&name(index));
            rig.await_note(&name(index + 1), "works");
            let ended = rig.at(&name(index), "ends").expect("it has ended");
            let works = rig.at(&name(index + 1), "works").expect("it works");
            idle[row].push(works - ended);
        }
        rig.let_go(&name(pairs));
    }
    for (word, mut idle) in ["cold", "warm"].into_iter().zip(idle) {
        idle.sort_by(f64::total_cmp);
        let (least, most) = (idle[0], idle[idle.len() - 1]);
        let (median, count) = (idle[idle.len() / 2], idle.len());
        println!("{word}: idle for {median:.3} s (median of {count}, {least:.3} to {most:.3})");
    }
}
