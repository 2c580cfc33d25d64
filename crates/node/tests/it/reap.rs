//! What a supervisor that was killed leaves behind.

use std::path::PathBuf;
use std::process::Command;

use het_core::LeaseId;
use het_node::Node;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::rig::{LEASE, Rig, is_alive};

const SCRIPT: &str = "setsid sh -c 'echo $$ > daemon; exec sleep 60' & \
     until [ -s daemon ]; do sleep 0.01; done; \
     echo $$ > pid; trap '' TERM; echo '{\"step\":1}' >> $HET_PROGRESS; sleep 60";
const WORKDIR: &str = "HET_TEST_REAP_WORKDIR";

/// Not a test of its own: the process that `reap_after_a_supervisor_was_killed` starts.
#[test]
fn supervisor_that_dies() {
    let Some(workdir) = std::env::var_os(WORKDIR).map(PathBuf::from) else { return };
    let mut rig = Rig::with_run_dir(&workdir.join("run"));
    let launch = crate::rig::launch(&workdir, SCRIPT);
    let rank = crate::rig::rank(&[crate::rig::grant(crate::rig::CPU, 1)], &[]);
    rig.start_with(LEASE, launch, vec![rank], None);
    rig.await_step(1);
    kill(Pid::this(), Signal::SIGKILL).expect("a process may kill itself");
}

#[test]
fn reap_after_a_supervisor_was_killed() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let status = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", "reap::supervisor_that_dies"])
        .env(WORKDIR, dir.path())
        .status()
        .expect("this program can be started");
    assert!(!status.success(), "it was killed");
    let read = |name| std::fs::read_to_string(dir.path().join(name)).expect("it was written");
    let pids = [read("pid"), read("daemon")];
    assert!(pids.iter().all(|pid| is_alive(pid)), "the gang outlives its supervisor");

    let reaped = Node::reap(&dir.path().join("run")).expect("what is left can be killed");
    assert_eq!(reaped.len(), 1);
    assert_eq!((reaped[0].lease, reaped[0].job.as_str()), (LeaseId(1), "demo"));
    assert!(reaped[0].processes >= 3, "{reaped:?}");
    assert!(!pids.iter().any(|pid| is_alive(pid)), "nothing of it is left");
    assert_eq!(Node::reap(&dir.path().join("run")).expect("nothing is left"), []);
}

#[test]
fn a_detached_gang_can_be_reaped() {
    let mut rig = Rig::new();
    rig.start(SCRIPT, 1);
    rig.await_step(1);
    let pid = rig.read("pid");
    let (dir, node) = rig.into_parts();
    node.detach();
    assert!(is_alive(&pid));
    assert_eq!(Node::reap(&dir.path().join("run")).expect("it can be killed").len(), 1);
    assert!(!is_alive(&pid));
}

#[test]
fn a_directory_without_leases_has_nothing_to_reap() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    assert_eq!(Node::reap(dir.path()).expect("there is nothing"), []);
}
