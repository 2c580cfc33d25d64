//! Programs that mean harm, beside one that does not, under a real server: whatever they make of
//! the files and processes that they reach, the server answers, goes on with the others, and starts
//! again.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, yield_now};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Sandbox, Served};

/// Longest that an answer may take: far more than any takes, far less than for ever.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Rest between two questions whether the control loop takes turns.
const PROBE_EVERY: Duration = Duration::from_millis(5);

/// What a program does, by name. `$W` is its own working directory, `$OUT` that of its logs.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("progress-fifo", "rm -f $HET_PROGRESS; mkfifo $HET_PROGRESS; sleep 0.5"),
    ("progress-fifo-at-once", "mkfifo $HET_PROGRESS; exit 0"),
    ("progress-zero", "ln -sf /dev/zero $HET_PROGRESS; sleep 0.5"),
    ("progress-link-loop", "ln -sf $HET_PROGRESS $HET_PROGRESS; sleep 0.3"),
    ("progress-directory", "rm -f $HET_PROGRESS; mkdir $HET_PROGRESS; sleep 0.3"),
    ("progress-sparse", "truncate -s 1T $HET_PROGRESS; echo '{}' >> $HET_PROGRESS; sleep 0.5"),
    ("progress-long-line", "head -c 20000000 /dev/zero | tr '\\0' x >> $HET_PROGRESS; sleep 0.5"),
    ("progress-garbage", "head -c 3000000 /dev/urandom >> $HET_PROGRESS; sleep 0.5"),
    ("progress-secrets", "ln -sf /etc/shadow $HET_PROGRESS; sleep 0.3"),
    (
        "progress-socket",
        "python3 -c \"import socket,os; os.path.exists('$HET_PROGRESS') and \
        os.remove('$HET_PROGRESS'); socket.socket(socket.AF_UNIX).bind('$HET_PROGRESS')\"; \
        sleep 0.3",
    ),
    (
        "notice-fifo",
        "D=${HET_NOTICE%/*}; mkdir -p $D; mkfifo $HET_NOTICE $D/notice.tmp; \
        trap '' TERM; touch $W/ready; sleep 600",
    ),
    (
        "notice-directory",
        "mkdir -p $HET_NOTICE/x; mkdir -p ${HET_NOTICE%/*}/notice.tmp/y; \
        trap '' TERM; touch $W/ready; sleep 600",
    ),
    ("lease-many", "D=${HET_NOTICE%/*}; mkdir -p $D; cd $D && seq 20000 | xargs touch"),
    (
        "lease-deep",
        "D=${HET_NOTICE%/*}; mkdir -p $D; cd $D; python3 -c \"import os
for i in range(3000): os.mkdir('d'); os.chdir('d')\"",
    ),
    ("lease-locked", "D=${HET_NOTICE%/*}; mkdir -p $D/a/b; chmod 000 $D/a; chmod 500 $D"),
    ("lease-link", "D=${HET_NOTICE%/*}; rm -rf $D; ln -s /usr/share $D; sleep 0.3"),
    ("sick", "touch ${HET_NOTICE%/*}.sick-0; exit 3"),
    ("log-fifo", "rm -f $OUT/rank-0.log; mkfifo $OUT/rank-0.log; exit 3"),
    ("log-zero", "ln -sf /dev/zero $OUT/rank-0.log; exit 3"),
    ("log-directory", "rm -f $OUT/rank-0.log; mkdir $OUT/rank-0.log; exit 3"),
    ("log-sparse", "truncate -s 1T $OUT/rank-0.log; exit 3"),
    ("log-control", "printf '\\033]0;owned\\007\\033[2J\\0\\377'; exit 3"),
    ("log-gone", "rm -rf $OUT; exit 3"),
    (
        "checkpoint-fifo",
        "mkdir -p $HET_CHECKPOINT_DIR/checkpoint-1; \
        mkfifo $HET_CHECKPOINT_DIR/checkpoint-1/trainer_state.json; sleep 0.5",
    ),
    (
        "checkpoint-zero",
        "mkdir -p $HET_CHECKPOINT_DIR/checkpoint-1; \
        ln -s /dev/zero $HET_CHECKPOINT_DIR/checkpoint-1/trainer_state.json; sleep 0.5",
    ),
    ("checkpoint-link", "ln -s /usr $HET_CHECKPOINT_DIR/checkpoint-1; sleep 0.5"),
    (
        "checkpoint-sparse",
        "mkdir -p $HET_CHECKPOINT_DIR/checkpoint-1; \
        truncate -s 1T $HET_CHECKPOINT_DIR/checkpoint-1/trainer_state.json; sleep 0.5",
    ),
    ("checkpoint-many", "cd $HET_CHECKPOINT_DIR; seq -f checkpoint-%g 3000 | xargs mkdir"),
    (
        "checkpoint-named",
        "echo '{\"checkpoint\":{\"step\":1,\"path\":\"/dev/zero\"}}' >> \
        $HET_PROGRESS; sleep 0.3",
    ),
    ("checkpoint-dir-fifo", "rmdir $HET_CHECKPOINT_DIR; mkfifo $HET_CHECKPOINT_DIR; sleep 0.5"),
    ("lightning-fifo", "mkfifo $W/last.ckpt; mkfifo $W/latest; sleep 4"),
    ("workdir-gone", "cd /; rm -rf ${W%/work}; sleep 0.3"),
    ("workdir-swapped", "mv $W $W.moved; ln -s /usr/share $W; sleep 0.3"),
    (
        "report-fifo",
        "rm -f $W/../report.json; mkfifo $W/../report.json $W/../report.tmp; sleep 0.3",
    ),
    ("report-zero", "ln -sf /dev/zero $W/../report.json; exit 3"),
    ("success-fifo", "mkfifo $W/_SUCCESS; exit 0"),
    ("away", "setsid sleep 600 & sleep 0.2"),
    ("away-unmarked", "env -i setsid sleep 600 & sleep 0.2"),
    ("shim-killed", "kill -9 $PPID; sleep 0.3; exit 3"),
    ("shim-stopped", "for i in $(seq 50); do kill -STOP $PPID; done; exit 3"),
    ("shim-flooded", "for s in 1 2 10 12 14 15 17 20 23; do kill -$s $PPID; done; exit 3"),
    ("shim-traced", "(sleep 0.3; exit 3) & wait $!; exec 3</proc/$PPID/mem; exit 3"),
    ("launcher-killed", "kill -9 $(cut -d' ' -f2 ${HET_NOTICE%/*}/../launcher); sleep 0.3"),
    ("launcher-stopped", "kill -STOP $(cut -d' ' -f2 ${HET_NOTICE%/*}/../launcher); sleep 0.1"),
    (
        "server-stopped",
        "S=$(cat ${HET_NOTICE%/run/*}/server/ready); for i in $(seq 50); do kill -STOP $S; done",
    ),
    ("record-gone", "rm -f ${HET_NOTICE%/*}/../record-*; sleep 0.2"),
    (
        "record-garbage",
        "for r in ${HET_NOTICE%/*}/../record-*; do head -c 99999 /dev/urandom > $r; done",
    ),
    ("both-killed", "K=$(cut -d' ' -f2 ${HET_NOTICE%/*}/../launcher); kill -9 $K $PPID; sleep 0.2"),
    ("launcher-fifo", "L=${HET_NOTICE%/*}/../launcher; rm -f $L; mkfifo $L; sleep 0.1"),
    ("stopped", "touch $W/ready; kill -STOP $$"),
    ("deaf", "trap '' TERM INT HUP USR1; touch $W/ready; while :; do sleep 0.2; done"),
];

/// A program that does not know where it is does nothing.
const PROLOGUE: &str = "case $HET_CHECKPOINT_DIR in */home/*/ckpt) ;; *) exit 9;; esac; \
    cd ${HET_CHECKPOINT_DIR%/ckpt} || exit 9; W=$PWD; : ${HET_NOTICE:?}; \
    OUT=$(dirname $(readlink /proc/$$/fd/1)); ";

/// Asks, and expects an answer of any kind in time.
#[track_caller]
fn answered(served: &Sandbox, arguments: &[&str]) -> Duration {
    let began = Instant::now();
    let mut child = served.het(arguments);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("het starts");
    while child.try_wait().expect("it is a child").is_none() {
        if began.elapsed() > ANSWER_LIMIT {
            child.kill().expect("it runs");
            child.wait().expect("it was killed");
            panic!("no answer to {arguments:?}");
        }
        yield_now();
    }
    began.elapsed()
}

pub fn submit(served: &Sandbox, name: &str, script: &str) -> u64 {
    let text = format!(
        "apiVersion: heterosis.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{ name: {name} }}\n\
         spec:\n  stages:\n    - name: main\n      run: [sh, -c, {script}]\n      \
         devices: \"cpu:1\"\n      restarts: 1\n      \
         checkpoint: {{ dir: \"{{workdir}}/ckpt\", grace: 300ms }}\n",
        script = serde_json::to_string(&format!("{PROLOGUE}{script}")).expect("it is text"),
    );
    let file = format!("{name}.yaml");
    served.write(&file, &text);
    let told = served.json(&["submit", &file]);
    told["id"].as_u64().unwrap_or_else(|| panic!("{told}"))
}

fn row(served: &Sandbox, id: u64) -> Value {
    let list = served.json(&["ps", "--all"]);
    let rows = list["items"].as_array().expect("a list");
    rows.iter().find(|row| row["id"] == id).cloned().unwrap_or_else(|| panic!("{id} in {list}"))
}

/// Waits for the end of a job, and ends one that says it would not end by itself.
pub fn see_it_end(served: &Sandbox, id: u64) -> String {
    let mut cancelled = false;
    loop {
        let row = row(served, id);
        let state = row["state"].as_str().expect("a word").to_owned();
        if ["succeeded", "failed", "cancelled"].contains(&state.as_str()) {
            return state;
        }
        // One whose end nobody saw, again and again, is held.
        let waits = state == "held" || served.workdir(id).join("ready").exists();
        if !cancelled && waits {
            served.run(&["cancel", &id.to_string()]);
            cancelled = true;
        }
        yield_now();
    }
}

/// Runs one program after another; how long the slowest answer took after each, sorted.
fn attack(served: &Sandbox, programs: &[(&'static str, &str)]) -> Vec<(Duration, &'static str)> {
    let mut slowest = Vec::new();
    for (name, script) in programs {
        let id = submit(served, name, script).to_string();
        see_it_end(served, id.parse().expect("a number"));
        let questions: [&[&str]; 5] = [
            &["ps", "--all"],
            &["describe", &id],
            &["explain", &id],
            &["logs", &id, "--tail", "5"],
            &["devices"],
        ];
        let took = questions.iter().map(|question| answered(served, question)).max();
        slowest.push((took.expect("there are some"), *name));
    }
    slowest.sort();
    slowest
}

/// Asks again and again whether the control loop takes turns, until told to stop; how long the
/// answers took.
fn probe(socket: &Path, stop: &AtomicBool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let began = Instant::now();
        let mut stream = UnixStream::connect(socket).expect("the server listens");
        stream.set_read_timeout(Some(ANSWER_LIMIT)).expect("it can be set");
        let request = "GET /readyz HTTP/1.1\r\nHost: het\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server answers in time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        took.push(began.elapsed());
        thread::sleep(PROBE_EVERY);
    }
    took.sort();
    took
}

/// A program that does its work until it is told to end, and the steps that are known of it.
pub fn healthy(served: &Sandbox) -> u64 {
    submit(
        served,
        "healthy",
        "i=0; while [ ! -e $W/end ]; do i=$((i+1)); echo \"{\\\"step\\\":$i}\" >> $HET_PROGRESS; \
         sleep 0.1; done",
    )
}

/// Waits until a program makes a step.
pub fn see_it_go_on(served: &Sandbox, id: u64) {
    let steps = || row(served, id)["step"].as_u64().unwrap_or(0);
    let seen = steps();
    while steps() <= seen {
        yield_now();
    }
}

/// Tells a program to end.
pub fn end_healthy(served: &Sandbox, id: u64) {
    fs::write(served.workdir(id).join("end"), "").expect("it is there");
    assert_eq!(see_it_end(served, id), "succeeded");
}

/// Runs these programs, one after another, while it is asked all the time whether the control loop
/// takes turns.
#[expect(clippy::print_stdout, reason = "figures for who asks for them")]
pub fn hold_nobody_up(served: &Sandbox, programs: &[(&'static str, &str)]) {
    let (stop, socket) = (AtomicBool::new(false), served.socket());
    thread::scope(|scope| {
        let prober = scope.spawn(|| probe(&socket, &stop));
        let slowest = attack(served, programs);
        stop.store(true, Ordering::SeqCst);
        let turns = prober.join().expect("every question was answered");
        println!("slowest answers: {:?}", slowest.iter().rev().take(3).collect::<Vec<_>>());
        let p99 = turns[turns.len() * 99 / 100];
        println!("{} turns asked for: p99 {p99:?}, slowest {:?}", turns.len(), turns.last());
    });
}

#[test]
fn programs_that_mean_harm_hold_nobody_up() {
    let served = Served::new();
    let healthy = healthy(&served);
    let before = served.json(&["server", "status"])["pid"].clone();
    hold_nobody_up(&served, PROGRAMS);
    assert_eq!(served.json(&["server", "status"])["pid"], before, "it never died");
    see_it_go_on(&served, healthy);
    served.run(&["server", "stop"]);
    served.submit("exit 0");
    end_healthy(&served, healthy);
}
