//! Real gangs that shrink for others and grow again: every sample is seen once an epoch, and what
//! was learned is what an uninterrupted run learns.
//!
//! `HET_RESIZES=20 HET_RESIZE_KILLS=100 cargo test -p het-cli --test cli elastic` resizes and kills
//! more often than a CI run does; `HET_RESIZE_STEPS=1500` leaves about two minutes between resizes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use het_lab::Draw;
use het_testkit::has_python;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::commands::wait_for;
use crate::support::{Sandbox, Served, json_lines, serve_declared};

/// Shrinks and grows of a CI run.
const RESIZES: u64 = 4;

/// Kills in the middle of resizes, in a CI run.
const KILLS: u64 = 4;

/// Longest wait where programs are killed again and again: restarts rest ever longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Steps that are made at each size before it changes.
const STEPS_BETWEEN: u64 = 4;

/// Data-parallel regression on 96 samples in batches of 16: gradients are averaged through rank 0.
/// It trains until somebody says `enough`, to the end of an epoch.
const TRAINER: &str = r#"
import json, os, socket, struct, time, heterosis

notes, pace = os.environ["NOTES"], float(os.environ["PACE"])
job = heterosis.job()
batches = heterosis.Batches(96, batch=16, epochs=100000, seed=7)
size = 4
data = [[((i * 37 + k * 11) % 17) / 17 for k in range(size)] for i in range(96)]
target = [sum(x * (k + 1) for k, x in enumerate(row)) for row in data]


def note(name, line):
    with open(os.path.join(notes, name), "ab", buffering=0) as file:
        file.write((json.dumps(line) + "\n").encode())


def exact(peer, count):
    got = b""
    while len(got) < count:
        more = peer.recv(count - len(got))
        if not more:
            raise SystemExit(f"rank {job.rank}: a peer is gone")
        got += more
    return got


form = struct.Struct(f"<{size + 1}d")
peers, root = [], None
if job.world > 1 and job.rank == 0:
    door = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    peers = [door.accept()[0] for _ in range(job.world - 1)]
elif job.world > 1:
    while root is None:
        try:
            root = socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        except ConnectionRefusedError:
            time.sleep(0.005)


def mean(values):
    if root is not None:
        root.sendall(form.pack(*values))
        return list(form.unpack(exact(root, form.size)))
    for peer in peers:
        values = [a + b for a, b in zip(values, form.unpack(exact(peer, form.size)))]
    values = [value / job.world for value in values]
    for peer in peers:
        peer.sendall(form.pack(*values))
    return values


start, weights = 0, [0.0] * size
if job.resume_from:
    saved = json.loads((job.resume_from / "state.json").read_text())
    start, weights = saved["step"], saved["weights"]
attempt = int(os.environ.get("HET_ATTEMPT", "0"))
if job.rank == 0:
    note("starts", {"world": job.world, "step": start, "pid": os.getpid()})
for step in range(start, len(batches)):
    began, gradient = time.monotonic(), [0.0] * size
    for micro in batches.micro(step, size=2):
        weight = batches.weight(step, micro) / len(micro)
        for i in micro:
            error = sum(w * x for w, x in zip(weights, data[i])) - target[i]
            gradient = [g + 2 * error * x * weight for g, x in zip(gradient, data[i])]
    own = batches.own(step)
    while time.monotonic() - began < pace * len(own):
        time.sleep(pace / 4)
    worked = time.monotonic() - began
    ends = (step + 1) % batches.steps_per_epoch == 0
    enough = ends and os.path.exists(os.path.join(notes, "enough"))
    *gradient, done = mean(gradient + [float(enough)])
    weights = [w - 0.05 * g for w, g in zip(weights, gradient)]
    note(f"seen-{job.rank}", {"attempt": attempt, "step": step, "samples": own, "worked_s": worked})
    job.progress(step=step + 1, total=100000)
    stop = job.should_stop(step)
    if done:
        if job.rank == 0:
            note("result", {"step": step + 1, "weights": weights})
            job.progress(done=True)
        break
    if job.rank == 0 and (stop or job.should_save()):
        path = job.checkpoint_dir / f"checkpoint-{step + 1}"
        path.mkdir()
        (path / "state.json").write_text(json.dumps({"step": step + 1, "weights": weights}))
        job.saved(step + 1, path)
    if stop:
        job.leave()
"#;

/// A program that wants devices for a while.
const URGENT: &str = r#": > "$NOTES/urgent-$N"; until [ -e "$NOTES/go-$N" ]; do sleep 0.02; done"#;

struct Rig {
    served: Served,
    notes: PathBuf,
}

impl Rig {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("train.py", TRAINER);
        let notes = sandbox.path().join("notes");
        fs::create_dir(&notes).expect("the sandbox is writable");
        Self { served: serve_declared(sandbox, 4, &[]), notes }
    }

    fn submit(&self, stage: &Value, priority: &str) -> u64 {
        let name = stage["name"].as_str().expect("a name");
        self.served.submit_stage(name, priority, stage)
    }

    fn elastic(&self) -> Value {
        json!({
            "name": "train", "kind": "train", "devices": "gpu:4", "ranks": "device",
            "elastic": { "min": 1, "max": 4, "batch": "keep" },
            "run": ["python3", self.served.path().join("train.py")],
            "checkpoint": { "every": "1s", "grace": "20s" },
            "env": { "NOTES": self.notes, "PACE": "0.01", "PYTHONPATH": python(),
                "PYTHONDONTWRITEBYTECODE": "1" },
        })
    }

    fn urgent(&self, number: u64, devices: u32) -> Value {
        json!({
            "name": format!("urgent-{number}"), "devices": format!("gpu:{devices}"),
            "run": ["sh", "-c", URGENT],
            "env": { "NOTES": self.notes, "N": number.to_string() },
        })
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        json_lines(&self.notes.join(name))
    }

    /// Submits, whoever was killed meanwhile.
    fn submit_on(&self, stage: &Value, key: &str) -> String {
        let file = self.served.0.write(&format!("{key}.yaml"), &stage.to_string());
        let file = file.to_string_lossy().into_owned();
        let mut id = String::new();
        wait_for("a server that takes a job", || {
            let told = self.served.run(&["submit", "--priority", "urgent", "--key", key, &file]);
            id = String::from_utf8_lossy(&told.stdout).trim().to_owned();
            told.status.success()
        });
        id
    }

    /// Waits for the good end of a job, whoever is killed meanwhile.
    fn wait_on(&self, id: &str) {
        self.await_state("the end of a job", || {
            match self.served.code(&["wait", "--timeout", "5s", id]) {
                Some(0) => true,
                // Nobody answers, or it still runs.
                Some(5 | 124) => false,
                code => panic!("{code:?}: {}", self.explained()),
            }
        });
    }

    /// Patient enough for restarts after several kills in a row.
    fn await_state(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what} did not happen: {}", self.explained());
            thread::yield_now();
        }
    }

    /// What becomes of the elastic job, which is the first.
    fn explained(&self) -> String {
        String::from_utf8_lossy(&self.served.run(&["explain", "1"]).stdout).into_owned()
    }

    /// Kills the server, rank 0 of the gang, or both.
    fn kill(&self, draw: &mut Draw) {
        let server = || {
            let told = self.served.run(&["server", "status", "-o", "json"]).stdout;
            serde_json::from_slice::<Value>(&told).ok()?["pid"].as_i64()
        };
        let rank = || self.lines("starts").last()?["pid"].as_i64();
        let victims = match draw.between(0, 2) {
            0 => vec![server()],
            1 => vec![rank()],
            _ => vec![server(), rank()],
        };
        for pid in victims.into_iter().flatten() {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
    }

    fn say(&self, word: &str) {
        fs::write(self.notes.join(word), "").expect("the sandbox is writable");
    }

    /// The last step that rank 0 made.
    fn step(&self) -> u64 {
        let Ok(mut file) = fs::File::open(self.notes.join("seen-0")) else { return 0 };
        let length = file.metadata().expect("it is open").len();
        file.seek(SeekFrom::Start(length.saturating_sub(LINE_BYTES_MAX))).expect("it is a file");
        let mut end = String::new();
        file.read_to_string(&mut end).expect("it is text");
        let whole = end.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let last = whole.rsplit('\n').next().map(serde_json::from_str::<Value>);
        last.and_then(Result::ok).and_then(|line| line["step"].as_u64()).unwrap_or(0)
    }

    /// The last step that the server heard of.
    fn reported_step(&self) -> Option<u64> {
        let told = self.served.run(&["describe", "1", "-o", "json"]).stdout;
        serde_json::from_slice::<Value>(&told).ok()?["stages"][0]["step"].as_u64()
    }

    /// Waits until it has so many ranks, and has made steps there.
    fn await_world(&self, world: u64) {
        let from = || {
            let starts = self.lines("starts");
            starts.last().filter(|last| last["world"] == world)?["step"].as_u64()
        };
        self.await_state(&format!("{world} ranks"), || from().is_some());
        let until = from().unwrap_or(0) + number("HET_RESIZE_STEPS", STEPS_BETWEEN);
        while self.step() < until {
            let made = self.step();
            self.await_state("a step", || self.step() > made);
        }
    }
}

/// More than two lines of what a rank notes.
const LINE_BYTES_MAX: u64 = 4096;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python")
}

/// What the same program learns without anybody else.
fn alone(rig: &Rig, steps: u64) -> Vec<f64> {
    let notes = rig.served.path().join("alone");
    fs::create_dir(&notes).expect("the sandbox is writable");
    fs::write(notes.join("enough"), "").expect("the sandbox is writable");
    let script = TRAINER.replace("and os.path", &format!("and step + 1 >= {steps} and os.path"));
    let mut python_alone = Command::new("python3");
    python_alone.args(["-c", &script]).env("NOTES", &notes).env("PACE", "0");
    python_alone.env("PYTHONPATH", python()).env("PYTHONDONTWRITEBYTECODE", "1");
    assert!(python_alone.stdout(Stdio::null()).status().expect("it starts").success());
    let text = fs::read_to_string(notes.join("result")).expect("it came to its end");
    weights(&serde_json::from_str(&text).expect("JSON"))
}

fn weights(result: &Value) -> Vec<f64> {
    let weights = result["weights"].as_array().expect("a list").iter();
    weights.map(|weight| weight.as_f64().expect("a number")).collect()
}

#[test]
fn a_gang_shrinks_for_the_urgent_and_grows_again_and_learns_the_same() {
    if !has_python() {
        return;
    }
    let rig = Rig::new();
    let id = rig.submit(&rig.elastic(), "normal").to_string();
    for turn in 0..number("HET_RESIZES", RESIZES) / 2 {
        rig.await_world(4);
        let urgent = rig.submit(&rig.urgent(turn, 2), "urgent").to_string();
        rig.await_world(2);
        assert!(rig.notes.join(format!("urgent-{turn}")).exists(), "it made room");
        rig.say(&format!("go-{turn}"));
        rig.wait_on(&urgent);
    }
    rig.await_world(4);
    rig.say("enough");
    rig.wait_on(&id);
    assert_eq!(check_lineage(&rig), 0, "steps that were made twice");
    check_result(&rig);
    let rows = rig.served.json(&["ps", "--all"]);
    let row = rows["items"].as_array().expect("a list").iter().find(|row| row["name"] == "train");
    assert_eq!(row.expect("it ran")["preemptions"], 0, "a shrink is none");
    print_lost(&rig, &id);
}

#[test]
fn killed_in_the_middle_of_resizes_a_job_loses_nothing() {
    if !has_python() {
        return;
    }
    let rig = Rig::new();
    let id = rig.submit(&rig.elastic(), "normal").to_string();
    let mut draw = Draw::new(21, 0);
    let (kills, mut farthest) = (number("HET_RESIZE_KILLS", KILLS), None);
    for turn in 0..kills / 2 {
        let urgent = rig.submit_on(&rig.urgent(turn, 2), &format!("urgent-{turn}"));
        thread::sleep(Duration::from_millis(draw.between(0, 400)));
        rig.kill(&mut draw);
        rig.say(&format!("go-{turn}"));
        rig.wait_on(&urgent);
        thread::sleep(Duration::from_millis(draw.between(0, 2_000)));
        rig.kill(&mut draw);
        // A job that gets nowhere between two kills would rest ever longer.
        rig.await_state("a new step", || rig.reported_step() > farthest);
        farthest = rig.reported_step();
    }
    rig.say("enough");
    rig.wait_on(&id);
    let again = check_lineage(&rig);
    check_result(&rig);
    println!("{kills} kills, {} starts, {again} steps made twice", rig.lines("starts").len());
}

/// It learned what it would have learned alone.
fn check_result(rig: &Rig) {
    let [result] = &rig.lines("result")[..] else { panic!("one end") };
    let expected = alone(rig, result["step"].as_u64().expect("a number"));
    let found = weights(result);
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
    }
}

/// Says how much of the device time was no work on samples.
#[expect(clippy::print_stdout, reason = "it is a figure of a longer run")]
fn print_lost(rig: &Rig, id: &str) {
    let report = rig.served.json(&["describe", id]);
    let held = report["device_seconds"].as_f64().expect("a number");
    let seen = (0..4).flat_map(|rank| rig.lines(&format!("seen-{rank}")));
    let worked: f64 = seen.map(|line| line["worked_s"].as_f64().expect("a number")).sum();
    let (starts, lost) = (rig.lines("starts").len(), 100.0 * (1.0 - worked / held));
    println!("{starts} starts, {lost:.1} % of {held:.0} device-seconds lost");
}

/// No step is left out, and of the attempts that stand each sample was seen once an epoch, by
/// whatever rank. How many steps were made twice.
fn check_lineage(rig: &Rig) -> usize {
    let seen: Vec<Value> = (0..4).flat_map(|rank| rig.lines(&format!("seen-{rank}"))).collect();
    let results = rig.lines("result");
    let end = results.last().and_then(|line| line["step"].as_u64()).expect("it has ended");
    let mut by_step: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    // An attempt that was killed may have got further than the one that ended.
    for line in seen.iter().filter(|line| line["step"].as_u64() < Some(end)) {
        by_step.entry(line["step"].as_u64().expect("a number")).or_default().push(line);
    }
    let (mut again, mut epoch): (usize, Vec<u64>) = (0, Vec::new());
    assert!(by_step.keys().copied().eq(0..by_step.len() as u64), "no step is left out");
    for (step, lines) in by_step {
        let attempt = |line: &Value| line["attempt"].as_u64();
        let newest = lines.iter().map(|line| attempt(line)).max().flatten();
        again += usize::from(lines.iter().any(|line| attempt(line) != newest));
        let standing = lines.iter().filter(|line| attempt(line) == newest);
        let samples = standing.flat_map(|line| line["samples"].as_array().expect("a list"));
        epoch.extend(samples.map(|sample| sample.as_u64().expect("a number")));
        if (step + 1) % 6 == 0 {
            epoch.sort_unstable();
            assert!(epoch.iter().copied().eq(0..96), "each sample once an epoch, step {step}");
            epoch.clear();
        }
    }
    assert!(epoch.is_empty(), "it ended with an epoch");
    again
}
