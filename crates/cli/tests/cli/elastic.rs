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
use crate::support::{Sandbox, Served, has_torch, json_lines, serve_declared};

/// Shrinks and grows of a CI run.
const RESIZES: u64 = 4;

/// The same under PyTorch, which takes seconds to start.
const RESIZES_IN_TORCH: u64 = 2;

/// Kills in the middle of resizes, in a CI run.
const KILLS: u64 = 4;

/// Longest wait where programs are killed again and again: restarts rest ever longer. One that
/// takes long to start stays at its size for ten times as long.
const PATIENCE: Duration = Duration::from_secs(300);

/// Steps that are made at each size before it changes.
const STEPS_BETWEEN: u64 = 4;

/// Regression on 96 samples whose gradients are averaged through rank 0.
const COMMON: &str = r#"
import json, os, socket, struct, time, heterosis

notes, pace = os.environ["NOTES"], float(os.environ["PACE"])
job = heterosis.job()
size = 4
data = [[((i * 37 + k * 11) % 17) / 17 for k in range(size)] for i in range(96)]
# What no weights explain makes gradients noisy.
unexplained = [i * 13 % 7 - 3 for i in range(96)]
target = [sum(x * (k + 1) for k, x in enumerate(data[i])) + unexplained[i] for i in range(96)]
attempt = int(os.environ.get("HET_ATTEMPT", "0"))


def note(name, line):
    with open(os.path.join(notes, name), "ab", buffering=0) as file:
        file.write((json.dumps(line) + "\n").encode())


def begins(step):
    if job.rank == 0:
        note("starts", {"world": job.world, "step": step, "pid": os.getpid()})


def restored():
    return json.loads((job.resume_from / "state.json").read_text())


def save(step, **state):
    path = job.checkpoint_dir / f"checkpoint-{step}"
    path.mkdir(exist_ok=True)
    (path / "state.json").write_text(json.dumps({"step": step, **state}))
    job.saved(step, path)


def enough():
    return os.path.exists(os.path.join(notes, "enough"))


def ended(**result):
    if job.rank == 0:
        note("result", result)
        job.progress(done=True)


def is_over(step, weights, done):
    job.progress(step=step + 1, total=100000)
    stop = job.should_stop(step)
    if done:
        ended(step=step + 1, weights=weights)
    elif job.rank == 0 and (stop or job.should_save()):
        save(step + 1, weights=weights)
    if stop and not done:
        job.leave()
    return done


def gradient_of(weights, samples):
    sums = [0.0] * size
    for i in samples:
        error = sum(w * x for w, x in zip(weights, data[i])) - target[i]
        sums = [s + 2 * error * x / len(samples) for s, x in zip(sums, data[i])]
    return sums


def exact(peer, count):
    got = b""
    while len(got) < count:
        more = peer.recv(count - len(got))
        if not more:
            raise SystemExit(f"rank {job.rank}: a peer is gone")
        got += more
    return got


def connect():
    at = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    if job.rank == 0:
        door = socket.create_server(at)
        return [door.accept()[0] for _ in range(job.world - 1)]
    while True:
        try:
            return [socket.create_connection(at)]
        except ConnectionRefusedError:
            time.sleep(0.005)


peers = []


def mean(values):
    if job.world > 1 and not peers:
        peers.extend(connect())
    form = struct.Struct(f"<{len(values)}d")
    if job.rank > 0:
        peers[0].sendall(form.pack(*values))
        return list(form.unpack(exact(peers[0], form.size)))
    for peer in peers:
        values = [a + b for a, b in zip(values, form.unpack(exact(peer, form.size)))]
    values = [value / job.world for value in values]
    for peer in peers:
        peer.sendall(form.pack(*values))
    return values
"#;

/// In batches of 16 samples. It trains until somebody says `enough`, to the end of an epoch.
const KEEPS: &str = r#"
batches = heterosis.Batches(96, batch=16, epochs=100000, seed=7)
start, weights = 0, [0.0] * size
if job.resume_from:
    saved = restored()
    start, weights = saved["step"], saved["weights"]
begins(start)
for step in range(start, len(batches)):
    began, gradient = time.monotonic(), [0.0] * size
    for micro in batches.micro(step, size=2):
        weight = batches.weight(step, micro)
        gradient = [g + weight * own for g, own in zip(gradient, gradient_of(weights, micro))]
    own = batches.own(step)
    while time.monotonic() - began < pace * len(own):
        time.sleep(pace / 4)
    worked = time.monotonic() - began
    ends = (step + 1) % batches.steps_per_epoch == 0
    *gradient, done = mean(gradient + [float(ends and enough())])
    weights = [w - 0.05 * g for w, g in zip(weights, gradient)]
    note(f"seen-{job.rank}", {"attempt": attempt, "step": step, "samples": own, "worked_s": worked})
    if is_over(step, weights, done):
        break
"#;

/// The same under PyTorch; in longer steps, so that four ranks on few cores are faster than two.
const KEEPS_IN_TORCH: &str = r#"
import torch
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
if job.world > 1:
    torch.distributed.init_process_group("gloo")
batches = heterosis.Batches(96, batch=16, epochs=100000, seed=7)
network = torch.nn.Linear(size, 1, bias=False, dtype=torch.float64)
start = 0
with torch.no_grad():
    network.weight.zero_()
    if job.resume_from:
        saved = restored()
        start = saved["step"]
        network.weight.copy_(torch.tensor([saved["weights"]], dtype=torch.float64))
model = DistributedDataParallel(network) if job.world > 1 else network
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.tensor(data, dtype=torch.float64)
outputs = torch.tensor(target, dtype=torch.float64)
begins(start)
for step in range(start, len(batches)):
    began = time.monotonic()
    optimizer.zero_grad()
    parts = list(batches.micro(step, size=2))
    for number, micro in enumerate(parts):
        model.require_backward_grad_sync = number == len(parts) - 1
        loss = torch.nn.functional.mse_loss(model(inputs[micro]).squeeze(1), outputs[micro])
        (loss * batches.weight(step, micro)).backward()
    optimizer.step()
    own, ends = batches.own(step), (step + 1) % batches.steps_per_epoch == 0
    while time.monotonic() - began < 5 * pace * len(own):
        time.sleep(pace)
    worked = time.monotonic() - began
    done = torch.tensor(float(ends and enough()))
    if job.world > 1:
        torch.distributed.all_reduce(done)
    note(f"seen-{job.rank}", {"attempt": attempt, "step": step, "samples": own, "worked_s": worked})
    if is_over(step, network.weight.detach()[0].tolist(), done):
        break
"#;

/// In batches of 16 to 96 samples, as the noise of the gradient says.
const ADAPTS: &str = r#"
def square(vector):
    return sum(x * x for x in vector)


batches = heterosis.AdaptiveBatches(96, micro=4, epochs=1000000, seed=7, mean=mean)
weights = [0.0] * size
if job.resume_from:
    saved = restored()
    weights = saved["weights"]
    batches.restore(saved["batches"])
begins(batches.state()["steps"])
for step in batches:
    made, own, first = batches.state(), [0.0] * size, None
    for micro in step.micro():
        gradient = gradient_of(weights, micro)
        own = [o + g * len(micro) / len(step.own) for o, g in zip(own, gradient)]
        first = first or gradient
        time.sleep(pace * len(micro))
    time.sleep(10 * pace)
    counts = step.weight(step.own)
    *gradient, done = mean([counts * g for g in own] + [float(enough())])
    if step.is_measured:
        batches.observe(square(own if job.world > 1 else first), square(gradient))
    weights = [w - 0.05 * step.gain * g for w, g in zip(weights, gradient)]
    number = made["steps"]
    told = batches.progress()
    line = {"attempt": attempt, "step": number, "samples": step.own, "of": len(step.all)}
    note(f"seen-{job.rank}", line)
    job.progress(**told)
    stop = job.should_stop(number)
    if done:
        # What the last step counts is learned at the beginning of the next.
        ended(step=number, counts=batches.done, measured=told.get("measured"))
        break
    if job.rank == 0 and (stop or job.should_save()):
        save(told["step"], weights=weights, batches=batches.state())
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
    fn new(loop_over_steps: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("train.py", &[COMMON, loop_over_steps].concat());
        let notes = sandbox.path().join("notes");
        fs::create_dir(&notes).expect("the sandbox is writable");
        Self { served: serve_declared(sandbox, 4, &[]), notes }
    }

    fn submit(&self, stage: &Value, priority: &str) -> u64 {
        let name = stage["name"].as_str().expect("a name");
        self.served.submit_stage(name, priority, stage)
    }

    fn elastic(&self, batch: &Value) -> Value {
        json!({
            "name": "train", "kind": "train", "devices": "gpu:4", "ranks": "device",
            "elastic": { "min": 1, "max": 4, "batch": batch },
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
    let ends = KEEPS.replace("and enough()", &format!("and step + 1 >= {steps}"));
    let script = [COMMON, &ends].concat();
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

/// Makes it shrink for an urgent job and grow again, so many times.
fn resize(rig: &Rig, batch: &Value, resizes: u64) -> String {
    let id = rig.submit(&rig.elastic(batch), "normal").to_string();
    for turn in 0..resizes / 2 {
        rig.await_world(4);
        let urgent = rig.submit(&rig.urgent(turn, 2), "urgent").to_string();
        rig.await_world(2);
        assert!(rig.notes.join(format!("urgent-{turn}")).exists(), "it made room");
        rig.say(&format!("go-{turn}"));
        rig.wait_on(&urgent);
    }
    rig.await_world(4);
    id
}

/// Tells it to come to its end.
fn finish(rig: &Rig, id: &str) {
    rig.say("enough");
    rig.wait_on(id);
    let rows = rig.served.json(&["ps", "--all"]);
    let row = rows["items"].as_array().expect("a list").iter().find(|row| row["name"] == "train");
    assert_eq!(row.expect("it ran")["preemptions"], 0, "a shrink is none");
}

/// Whatever its sizes were, it saw what it would have seen alone, and learned the same.
fn check_keeps(loop_over_steps: &str, resizes: u64) {
    let rig = Rig::new(loop_over_steps);
    let id = resize(&rig, &json!("keep"), number("HET_RESIZES", resizes));
    finish(&rig, &id);
    assert_eq!(check_lineage(&rig), 0, "steps that were made twice");
    check_result(&rig);
    print_lost(&rig, &id);
}

#[test]
fn a_gang_shrinks_for_the_urgent_and_grows_again_and_learns_the_same() {
    if has_python() {
        check_keeps(KEEPS, RESIZES);
    }
}

#[test]
fn a_gang_of_pytorch_learns_the_same_at_any_size() {
    if has_torch() {
        check_keeps(KEEPS_IN_TORCH, RESIZES_IN_TORCH);
    }
}

#[test]
fn a_batch_follows_the_noise_and_each_sample_is_seen_once_an_epoch() {
    if !has_python() {
        return;
    }
    let rig = Rig::new(ADAPTS);
    let id = resize(&rig, &json!({ "min": 16, "max": 96 }), number("HET_RESIZES", 2));
    let is_large = |line: &Value| line["of"].as_u64() >= Some(32);
    rig.await_state("a larger batch that counts", || match &rig.lines("seen-0")[..] {
        [.., large, next] => is_large(large) && next["attempt"] == large["attempt"],
        _ => false,
    });
    finish(&rig, &id);
    let seen: Vec<Value> = (0..4).flat_map(|rank| rig.lines(&format!("seen-{rank}"))).collect();
    let mut steps: Vec<&Value> = seen.iter().collect();
    steps.sort_by_key(|line| line["step"].as_u64());
    let samples = steps.iter().flat_map(|line| line["samples"].as_array().expect("a list"));
    let samples: Vec<u64> = samples.map(|one| one.as_u64().expect("a number")).collect();
    for epoch in samples.chunks_exact(96) {
        let mut epoch = epoch.to_vec();
        epoch.sort_unstable();
        assert!(epoch.into_iter().eq(0..96), "each sample once an epoch");
    }
    let most = steps.iter().filter_map(|line| line["of"].as_u64()).max();
    assert!(most <= Some(96), "{most:?}");
    let [result] = &rig.lines("result")[..] else { panic!("one end") };
    // One of them may count for little more than a small one, where gradients hardly differ.
    assert!(
        result["counts"].as_f64() > result["step"].as_f64(),
        "larger steps count more: {result}"
    );
    assert!(result["measured"]["gradient_noise"].as_f64() > Some(0.0), "{result}");
}

#[test]
fn killed_in_the_middle_of_resizes_a_job_loses_nothing() {
    if !has_python() {
        return;
    }
    let rig = Rig::new(KEEPS);
    let id = rig.submit(&rig.elastic(&json!("keep")), "normal").to_string();
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
