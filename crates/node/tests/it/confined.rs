//! What control groups hold a gang to. Skipped, loudly, where this process may make none.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use het_core::{Bytes, DeviceId, Grant, HostResources, LeaseId, Rank};
use het_node::{
    ControlGroupFinding, DeviceAccess, DeviceNumber, UserCgroup, control_groups, kill_processes_of,
};
use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};
use nix::unistd::User;

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
    let host = HostResources { memory: Bytes(64 << 20), ..HostResources::NONE };
    let rank = Rank { host, ..rank(&[grant(CPU, 1)], &[]) };
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

#[test]
fn what_runs_for_a_user_opens_what_it_has_and_is_ended_as_a_whole() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let Some([zero, full]) = nodes(dir.path()) else { return };
    let user = User::from_name("games").expect("users can be read").expect("there is one");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).expect("it is ours");
    let number = |path: &Path| {
        let device = std::fs::metadata(path).expect("it is there").rdev();
        DeviceNumber { major: major(device) as u32, minor: minor(device) as u32 }
    };
    let numbers = [number(&zero), number(&full)];
    let script = "read begin; (setsid sleep 600 &); while read path; do \
                  (: < $path) 2>/dev/null && echo opened || echo denied; done";
    let mut command = Command::new("sh");
    command.args(["-c", script]).uid(user.uid.as_raw()).gid(user.gid.as_raw());
    let shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut shell = shell.expect("it starts");
    let mut cgroup = UserCgroup::make(&user);
    cgroup.take(shell.id()).expect("root may");
    let mut asked = shell.stdin.take().expect("it is ours");
    let mut told = BufReader::new(shell.stdout.take().expect("it is ours")).lines();
    writeln!(asked, "begin").expect("it reads");
    let mut opened = |cgroup: &mut UserCgroup, denied: &[DeviceNumber]| {
        let denied = denied.iter().copied().collect::<BTreeSet<_>>();
        let allowed = numbers.iter().copied().filter(|it| !denied.contains(it)).collect();
        cgroup.set_access(&DeviceAccess { denied, allowed }).expect("root may");
        [&zero, &full].map(|path| {
            writeln!(asked, "{}", path.display()).expect("it reads");
            told.next().expect("it answers").expect("it is text") == "opened"
        })
    };
    assert_eq!(opened(&mut cgroup, &numbers), [false, false]);
    assert_eq!(opened(&mut cgroup, &numbers[..1]), [false, true]);
    assert_eq!(opened(&mut cgroup, &[]), [true, true]);
    assert_eq!(opened(&mut cgroup, &numbers[1..]), [true, false]);
    // Whoever takes over does not know what was denied.
    let mut cgroup = UserCgroup::make(&user);
    assert_eq!(opened(&mut cgroup, &[]), [true, true]);
    assert!(kill_processes_of(user.uid, &cgroup), "what left its session is killed too");
    shell.wait().expect("it is a child");
}
