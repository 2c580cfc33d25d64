//! Whose a process is that somebody came upon.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use het_node::{LiveLeases, ProcessOwner};

use crate::rig::{Rig, is_alive};

/// A program, and a helper of it that is in another session and has no environment.
const SCRIPT: &str = "env -i setsid sleep 60 & echo $! > helper; echo $$ > pid; \
     echo '{\"step\":1}' >> $HET_PROGRESS; until [ -e go ]; do sleep 0.01; done";

fn owner(rig: &Rig, pid: &str) -> ProcessOwner {
    let pid = pid.trim().parse().expect("an id");
    LiveLeases::read(&rig.path("run")).owner_of(pid)
}

#[track_caller]
fn check(rig: &Rig, pid: &str, expected: ProcessOwner) {
    assert_eq!(owner(rig, pid), expected);
}

#[test]
fn what_descends_from_a_rank_is_its_leases() {
    let mut rig = Rig::new();
    rig.start(SCRIPT, 1);
    rig.await_step(1);
    check(&rig, &rig.read("pid"), ProcessOwner::Lease);
    let helper = rig.read("helper");
    await_program(&rig, &helper, "sleep");
    check(&rig, &helper, ProcessOwner::Lease);
    check(&rig, &std::process::id().to_string(), ProcessOwner::External);
    std::fs::write(rig.path("go"), "").expect("it is writable");
    rig.story();
    check(&rig, &rig.read("pid"), ProcessOwner::Unknown);
}

#[test]
fn who_bears_the_mark_of_a_lease_that_ended_is_a_stranger() {
    let rig = Rig::new();
    let mut left = begun(Command::new("cat").env("HET_NOTICE", rig.path("run/lease-9/notice")));
    let pid = left.id().to_string();
    check(&rig, &pid, ProcessOwner::External);
    left.kill().expect("it can be killed");
    while is_alive(&pid) {
        std::thread::yield_now();
    }
    // A zombie until it is waited for.
    check(&rig, &pid, ProcessOwner::Unknown);
    left.wait().expect("it is a child");
}

#[test]
fn what_descends_from_the_supervisor_of_agents_is_of_a_lease() {
    let rig = Rig::new();
    let mut child = begun(&mut Command::new("cat"));
    let leases = LiveLeases::read(&rig.path("run"));
    assert_eq!(leases.owner_of(child.id()), ProcessOwner::External);
    let leases = leases.with_agents_of(Some(std::process::id()));
    assert_eq!(leases.owner_of(child.id()), ProcessOwner::Lease);
    child.kill().expect("it can be killed");
    child.wait().expect("it is a child");
}

#[test]
fn an_empty_environment_alone_makes_nobody() {
    let rig = Rig::new();
    let mut bare = begun(Command::new("cat").env_clear());
    check(&rig, &bare.id().to_string(), ProcessOwner::External);
    bare.kill().expect("it can be killed");
    bare.wait().expect("it is a child");
}

/// Until a process has become this program: while it changes from one to the next it is nobody's,
/// also for a moment after it has the name of the next.
fn await_program(rig: &Rig, pid: &str, name: &str) {
    let path = format!("/proc/{}/comm", pid.trim());
    let is_another = || std::fs::read_to_string(&path).is_ok_and(|comm| comm.trim() != name);
    while is_another() || (is_alive(pid.trim()) && owner(rig, pid) == ProcessOwner::Unknown) {
        std::thread::yield_now();
    }
}

/// A `cat` that has answered: between fork and exec the owner of a process is unknown.
fn begun(cat: &mut Command) -> Child {
    let mut child =
        cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("`cat` is there");
    let (input, output) = (child.stdin.as_mut(), child.stdout.as_mut());
    input.expect("a pipe").write_all(b"?").expect("it listens");
    output.expect("a pipe").read_exact(&mut [0]).expect("it answers");
    child
}
