//! A device becomes slow under a program, which goes on where it is not.
//!
//! The neighbour of a CI run is a file that makes steps on a device twice as long, for machines
//! that run tests are busy. `HET_SLOW_REAL=1` takes one processor core a device instead, and a busy
//! loop on the first, and prints what was lost; `HET_HEALTHY_RUNS=10` says that nobody moves for
//! nothing: runs of a minute without a neighbour.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use het_testkit::has_python;
use serde_json::{Value, json};

use crate::support::{Sandbox, Served, serve_declared};

/// Nothing takes so long that ends at all.
const PATIENCE: Duration = Duration::from_secs(120);

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Makes steps of twenty milliseconds, and writes down when each ended.
const TRAINER: &str = r#"
import json, os, time, heterosis

notes, device = os.environ["NOTES"], os.environ["PHOTONS"]
real = os.environ["REAL"] == "1"
if real:
    os.sched_setaffinity(0, {int(device)})
job = heterosis.job()
step = 0
if job.resume_from:
    step = int((job.resume_from / "step").read_text())
steps = open(os.path.join(notes, "steps"), "a", buffering=1)
while True:
    if real:
        for _ in range(400_000):
            pass
    else:
        slow = os.path.exists(os.path.join(notes, f"slow-{device}"))
        time.sleep(0.04 if slow else 0.02)
    step += 1
    steps.write(f"{time.time()} {step} {device}\n")
    job.progress(step=step, total=1_000_000)
    stop = job.should_stop(step)
    if stop or job.should_save():
        path = job.checkpoint_dir / f"checkpoint-{step}"
        path.mkdir()
        (path / "step").write_text(str(step))
        job.saved(step, path)
    if stop:
        job.leave()
"#;

struct Rig {
    served: Served,
    notes: PathBuf,
    job: String,
}

/// When it ended, seconds; its number; where it was made.
type Step = (f64, u64, String);

impl Rig {
    /// A job on one of two devices.
    fn new(real: bool) -> Self {
        let sandbox = Sandbox::new();
        let trainer = sandbox.write("train.py", TRAINER);
        let notes = sandbox.path().join("notes");
        fs::create_dir(&notes).expect("the sandbox is writable");
        let served = serve_declared(sandbox, 2, &[]);
        let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
        let stage = json!({
            "name": "train", "kind": "train", "devices": "gpu:1",
            "run": ["python3", trainer], "checkpoint": { "grace": "20s" },
            "env": { "NOTES": notes, "REAL": u8::from(real).to_string(),
                "PYTHONPATH": python, "PYTHONDONTWRITEBYTECODE": "1" },
        });
        let job = served.submit_stage("steps", "normal", &stage).to_string();
        Self { served, notes, job }
    }

    fn steps(&self) -> Vec<Step> {
        let text = fs::read_to_string(self.notes.join("steps")).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let read = |line: &str| {
            let mut words = line.split(' ');
            let mut next = || words.next().expect("a step has three words").to_owned();
            let (at, step) = (next(), next());
            (at.parse().expect("a time"), step.parse().expect("a number"), next())
        };
        whole.lines().map(read).collect()
    }

    fn last(&self) -> Option<Step> {
        self.steps().pop()
    }

    fn wait(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            let told = || self.served.json(&["explain", &self.job]);
            assert!(Instant::now() < deadline, "{what} did not happen: {:#}", told());
            // Who looks all the time is a neighbour himself.
            thread::park_timeout(LOOK_EVERY);
        }
    }

    fn explained(&self) -> Value {
        self.served.json(&["explain", &self.job])["stages"][0].clone()
    }

    /// Slows a device down for others.
    fn disturb(&self, device: &str, real: bool) -> Option<Busy> {
        if !real {
            fs::write(self.notes.join(format!("slow-{device}")), "").expect("it is writable");
            return None;
        }
        let script = format!("import os\nos.sched_setaffinity(0, {{{device}}})\nwhile True: pass");
        let child = Command::new("python3").args(["-c", &script]).spawn();
        Some(Busy(child.expect("python runs")))
    }
}

/// A busy loop.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn seconds(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_job_leaves_a_device_that_has_become_slow() {
    if !has_python() {
        return;
    }
    let real = seconds("HET_SLOW_REAL").is_some();
    let rig = Rig::new(real);
    // More than the window after which its pace is known.
    rig.wait("six hundred steps", |rig| rig.last().is_some_and(|(_, step, _)| step >= 600));
    let (begun, _, device) = rig.last().expect("it has made steps");
    let busy = rig.disturb(&device, real);
    rig.wait("the move to another device", |rig| rig.last().is_some_and(|(_, _, of)| of != device));
    let told = rig.explained();
    assert_eq!(told["stops"][0]["cause"], "slow", "{told:#}");
    let devices = rig.served.json(&["devices"]);
    let items = devices["items"].as_array().expect("a list").iter();
    let slow: Vec<&Value> = items.filter(|item| item["slow_cause"] == "steps").collect();
    assert_eq!(slow.len(), 1, "{devices:#}");
    let name = slow[0]["name"].as_str().expect("a name");
    assert!(name.ends_with(&format!("gpu{device}")), "{name} is not the device {device}");
    if real {
        measure(&rig, (begun, &device));
    }
    drop(busy);
    rig.served.run(&["cancel", &rig.job]);
}

/// What is made in two minutes from the moment on at which a device became slow, of what was made
/// before in as much time.
#[expect(clippy::print_stdout, reason = "it is what the run is for")]
fn measure(rig: &Rig, (begun, device): (f64, &str)) {
    const SPAN: f64 = 120.0;
    rig.wait("two minutes of steps", |rig| rig.last().is_some_and(|(at, ..)| at > begun + SPAN));
    let steps = rig.steps();
    let first = &steps[0];
    let sound: Vec<&Step> = steps.iter().filter(|(at, ..)| *at <= begun).collect();
    let usual = sound.len() as f64 / (begun - first.0);
    let numbers = |from: f64, to: f64| {
        let of = steps.iter().filter(|(at, ..)| (from..=to).contains(at));
        of.map(|(_, step, _)| *step).collect::<Vec<u64>>()
    };
    let after = numbers(begun, begun + SPAN);
    let made = after.iter().max().unwrap_or(&0) - after.first().unwrap_or(&0);
    let left =
        steps.iter().rev().find(|(_, _, of)| of == device).map_or(0.0, |(at, ..)| at - begun);
    let before = numbers(begun, begun + left).len() as f64 / left;
    println!(
        "{usual:.1} steps/s, {:.0} % of it beside the neighbour; left after {left:.1} s; {:.1} % \
         of the steps of two minutes",
        100.0 * before / usual,
        100.0 * made as f64 / (SPAN * usual)
    );
}

/// The CPU of the machine, as its server has it.
fn cpu(served: &Served) -> Value {
    let devices = served.json(&["devices"]);
    let mut items = devices["items"].as_array().expect("a list").iter();
    items.find(|item| item["kind"] == "cpu").expect("every machine has one").clone()
}

#[test]
fn who_works_beside_jobs_makes_a_cpu_slow_and_has_a_name() {
    let served = serve_declared(Sandbox::new(), 1, &[]);
    let cores = thread::available_parallelism().expect("there are some").get();
    let script = "while :; do :; done";
    let neighbours = (0..2 * cores).map(|_| Command::new("sh").args(["-c", script]).spawn());
    let neighbours: Vec<Busy> =
        neighbours.map(|child| Busy(child.expect("a shell runs"))).collect();
    let deadline = Instant::now() + PATIENCE;
    while cpu(&served)["slow_cause"] != "contention" {
        assert!(Instant::now() < deadline, "{:#}", cpu(&served));
        thread::park_timeout(LOOK_EVERY);
    }
    let told = cpu(&served);
    assert_eq!(told["state"], "slow", "{told:#}");
    assert!(told["pace_pct"].as_u64().is_some_and(|pace| pace < 80), "{told:#}");
    assert!(told["busy_pct"].as_u64().is_some_and(|busy| busy > 0), "{told:#}");
    assert!(told["occupant"].as_str().is_some_and(|by| by.contains(": ")), "{told:#}");
    drop(neighbours);
}

#[test]
fn nobody_moves_where_nothing_is_slow() {
    let Some(runs) = seconds("HET_HEALTHY_RUNS").filter(|_| has_python()) else { return };
    for _ in 0..runs {
        let rig = Rig::new(true);
        rig.wait("a minute of steps", |rig| {
            let steps = rig.steps();
            steps.last().zip(steps.first()).is_some_and(|(last, first)| last.0 - first.0 > 60.0)
        });
        let told = rig.explained();
        assert_eq!(told["stops"].as_array().map_or(0, Vec::len), 0, "{told:#}");
        rig.served.run(&["cancel", &rig.job]);
    }
}
