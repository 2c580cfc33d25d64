//! What becomes of a gang whose shim, launcher or engine is killed or stopped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use het_core::{Event, Millis, Outcome};
use het_engine::Engine;
use het_node::Node;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::rig::{Rig, is_alive};

const READY: &str = "echo '{\"step\":1}' >> $HET_PROGRESS;";
const WAITS: &str = "until [ -e go ]; do sleep 0.01; done;";

/// Engines of one process would adopt each other's orphans: one test that makes some at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The id that the shim of the only gang has noted.
#[track_caller]
fn shim(rig: &Rig) -> String {
    let record = rig.read("run/record-1");
    let noted = record.lines().find_map(|line| line.strip_prefix("shim "));
    noted.expect("it has noted itself").trim().to_owned()
}

#[track_caller]
fn launcher(rig: &Rig) -> String {
    let text = rig.read("run/launcher");
    text.split(' ').nth(1).expect("boot, id, ticks").to_owned()
}

#[track_caller]
fn signal(pid: &str, signal: Signal) {
    kill(Pid::from_raw(pid.parse().expect("a number")), signal).expect("it is there");
}

/// A gang whose ranks wait for the file `go`.
#[track_caller]
fn waiting(then: &str, ranks: usize) -> Rig {
    let mut rig = Rig::new();
    rig.start(&format!("{READY} {WAITS} {then}"), ranks);
    rig.await_step(1);
    rig
}

#[track_caller]
fn let_go(rig: &Rig) {
    std::fs::write(rig.path("go"), "").expect("a file can be written");
}

#[track_caller]
fn exit_code(rig: &mut Rig) -> Option<i32> {
    match rig.story().outcome {
        Outcome::Failed(failure) => Some(failure.exit_code),
        Outcome::Finished => Some(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gang_goes_on_when_its_shim_is_killed() {
    let _alone = alone();
    let mut rig = waiting("exit 5", 2);
    let shim = shim(&rig);
    signal(&shim, Signal::SIGKILL);
    let_go(&rig);
    assert_eq!(exit_code(&mut rig), Some(5), "this process adopted its ranks");
    assert!(!is_alive(&shim));
}

#[test]
fn a_shim_that_is_stopped_goes_on() {
    let mut rig = waiting("exit 4", 1);
    signal(&shim(&rig), Signal::SIGSTOP);
    let_go(&rig);
    assert_eq!(exit_code(&mut rig), Some(4));
}

#[test]
fn a_gang_is_stopped_although_its_shim_was_killed() {
    let _alone = alone();
    let mut rig = waiting("true", 2);
    signal(&shim(&rig), Signal::SIGKILL);
    rig.stop(Millis(10_000));
    assert_eq!(rig.story().outcome, Outcome::Stopped);
}

#[test]
fn another_launcher_takes_the_place_of_one_that_was_killed() {
    let _alone = alone();
    let mut rig = waiting("exit 3", 1);
    let first = launcher(&rig);
    signal(&first, Signal::SIGKILL);
    let_go(&rig);
    assert_eq!(exit_code(&mut rig), Some(3));
    assert_eq!(rig.run("exit 6", 1).started, 1);
    assert_ne!(launcher(&rig), first);
}

#[test]
fn a_launcher_that_is_stopped_is_replaced() {
    let _alone = alone();
    let mut rig = Rig::new();
    signal(&launcher(&rig), Signal::SIGSTOP);
    rig.start("exit 3", 1);
    assert_eq!(exit_code(&mut rig), Some(3));
}

#[test]
fn an_end_is_known_that_no_engine_saw() {
    let rig = waiting("exit 7", 2);
    let (shim, pid) = (shim(&rig), launcher(&rig));
    let (dir, node) = rig.into_parts();
    node.detach();
    assert!(!is_alive(&pid), "a launcher ends with its engine");
    std::fs::write(dir.path().join("go"), "").expect("a file can be written");
    while is_alive(&shim) {
        std::thread::yield_now();
    }
    let record = std::fs::read_to_string(dir.path().join("run/record-1")).expect("it is there");
    assert_eq!(record.lines().filter(|line| line.starts_with("code 7 ")).count(), 2, "{record}");
}

#[test]
fn nothing_is_left_of_engines_that_ended() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        rig.run("true", 2);
    }
    let events = |node: &mut Node| {
        let now = node.now();
        let found: Arc<[Event]> =
            std::iter::from_fn(|| node.next_event(Some(now))).map(|(_, event)| event).collect();
        found
    };
    assert!(events(&mut rig.node).is_empty());
    let pid = launcher(&rig);
    let (dir, node) = rig.into_parts();
    drop(node);
    assert!(!is_alive(&pid) && !dir.path().join("run").exists());
}
