//! What control groups hold a gang to. Skipped, loudly, where this process may make none.

use std::path::{Path, PathBuf};

use het_core::{Bytes, DeviceId, Grant, LeaseId, Rank};
use het_node::{ControlGroupFinding, control_groups};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::rig::{CPU, GPU, LEASE, Rig, grant, is_alive, rank};

/// Whether groups can be made here, and can limit memory.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn usable() -> bool {
    let finding = control_groups();
    let limits = matches!(finding, ControlGroupFinding::Usable { limits_memory: true, .. });
    if !limits {
        eprintln!("SKIPPED: {finding}");
    }
    limits
}

#[test]
fn a_rank_that_uses_up_its_memory_is_told_so() {
    if !usable() {
        return;
    }
    let mut rig = Rig::new();
    // `tail` keeps what it may have to print.
    let launch = rig.launch("head -c 300m /dev/zero | tail -c 250m > /dev/null || exit 9");
    let rank = Rank { memory: Bytes(64 << 20), ..rank(&[grant(CPU, 1)], &[]) };
    rig.start_with(LEASE, launch, vec![rank], None);
    let story = rig.story();
    let message = &story.failure().message;
    assert!(message.contains("it used all of its 64MiB of memory"), "{message}");
}

#[test]
fn nobody_leaves_by_cleaning_its_environment() {
    if !usable() {
        return;
    }
    let mut rig = Rig::new();
    rig.run("env -i setsid sleep 60 & echo $! > escaped; sleep 0.1", 1);
    let pid = std::fs::read_to_string(rig.dir.path().join("escaped")).expect("it was written");
    assert!(!is_alive(pid.trim()));
}

/// Nodes of `/dev/zero` and `/dev/full` under other names, for two devices; none where this process
/// may not make any or cannot keep ranks from them.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn nodes(dir: &Path) -> Option<[PathBuf; 2]> {
    let finding = control_groups();
    let confines = matches!(finding, ControlGroupFinding::Usable { confines_devices: true, .. });
    let node = |name: &str, minor| {
        let path = dir.join(name);
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&path, SFlag::S_IFCHR, mode, makedev(1, minor)).ok()?;
        std::fs::File::open(&path).ok().map(|_| path)
    };
    let made = node("zero", 5).zip(node("full", 7)).filter(|_| confines);
    if made.is_none() {
        eprintln!("SKIPPED: no device nodes, or {finding}");
    }
    made.map(|(zero, full)| [zero, full])
}

#[test]
fn a_rank_opens_its_own_devices_and_no_others() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let Some([zero, full]) = nodes(dir.path()) else { return };
    let script = format!(
        "for node in {} {}; do (: < $node) && echo opened >> seen; done; touch seen",
        zero.display(),
        full.display()
    );
    let nodes = [("cuda0".into(), vec![zero]), ("cuda1".into(), vec![full])];
    let mut rig = Rig::with_device_nodes(nodes.into());
    let mut opened = |lease: u64, grants: &[Grant]| {
        let launch = rig.launch(&format!("rm -f seen; {script}"));
        rig.start_with(LeaseId(lease), launch, vec![rank(grants, &[])], None);
        rig.story();
        rig.read("seen").lines().count()
    };
    let other = DeviceId(2);
    assert_eq!(opened(1, &[grant(GPU, 1)]), 1);
    assert_eq!(opened(2, &[grant(GPU, 1), grant(other, 1)]), 2);
    assert_eq!(opened(3, &[grant(CPU, 1)]), 0);
}
