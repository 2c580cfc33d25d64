//! What control groups hold a gang to. Skipped, loudly, where this process may make none.

use het_core::{Bytes, Rank};
use het_node::{ControlGroupFinding, control_groups};

use crate::rig::{CPU, LEASE, Rig, grant, is_alive, rank};

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
