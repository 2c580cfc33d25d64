//! Programs in images, with a real podman where there is one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use het_core::{Container, ContainerRuntime, Launch, Millis, Outcome, Rank};
use het_node::{LiveLeases, ProcessOwner};

use crate::rig::{CPU, LEASE, Rig, grant, rank};

const IMAGE: &str = "localhost/het-test";

/// Runtimes of podman that may work here, best first: not every kernel suits every one.
const RUNTIMES: [&str; 2] = ["crun", "runc"];

/// Images of its own and a runtime that works, by files that podman reads.
struct Podman {
    env: Vec<(String, String)>,
}

impl Podman {
    /// `None`, and loudly, where podman does not work.
    #[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
    fn find(dir: &Path) -> Option<Self> {
        let found = RUNTIMES.iter().find_map(|runtime| Self::with(dir, runtime));
        if found.is_none() {
            eprintln!("SKIPPED: no podman works here, or there is no static `busybox`");
        }
        found
    }

    fn with(dir: &Path, runtime: &str) -> Option<Self> {
        let (settings, storage) = (dir.join("containers.conf"), dir.join("storage.conf"));
        // Limits that podman may set also where it may not raise any.
        let limits =
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n";
        fs::write(&settings, format!("{limits}[engine]\nruntime = \"{runtime}\"\n")).ok()?;
        let (graph, run) = (dir.join("graph"), dir.join("graph-run"));
        let text = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
            graph.display(),
            run.display()
        );
        fs::write(&storage, text).ok()?;
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let env = vec![
            ("CONTAINERS_CONF".to_owned(), path(&settings)),
            ("CONTAINERS_STORAGE_CONF".to_owned(), path(&storage)),
        ];
        let podman = Self { env };
        let root = dir.join("rootfs");
        fs::create_dir_all(root.join("bin")).ok()?;
        for directory in ["proc", "sys", "dev", "tmp", "etc"] {
            fs::create_dir_all(root.join(directory)).ok()?;
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).ok()?;
        for tool in ["sh", "sleep", "cat", "touch"] {
            let _ = std::os::unix::fs::symlink("busybox", root.join("bin").join(tool));
        }
        let archive = dir.join("rootfs.tar");
        let mut pack = Command::new("tar");
        pack.arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".");
        pack.status().ok().filter(|status| status.success())?;
        podman.run(&["import", &path(&archive), IMAGE])?;
        podman.run(&["run", "--rm", "--network=host", IMAGE, "/bin/sh", "-c", "exit 0"])?;
        Some(podman)
    }

    /// What it printed, if it went well.
    fn run(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new("podman");
        command.args(arguments).envs(self.env.iter().cloned()).stderr(Stdio::null());
        let output = command.output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[track_caller]
    fn check_empty(&self) {
        let left = self.run(&["ps", "--all", "--quiet"]);
        assert_eq!(left.as_deref(), Some(""), "no container is left");
    }

    fn launch(&self, rig: &Rig, script: &str) -> Launch {
        let mut launch = rig.launch(script);
        launch.env.extend(self.env.iter().cloned());
        let runtime = Some(ContainerRuntime::Podman);
        launch.container = Some(Container {
            image: IMAGE.to_owned(),
            runtime,
            mounts: Vec::new(),
            volumes: Vec::new(),
        });
        launch
    }
}

fn one() -> Vec<Rank> {
    vec![rank(&[grant(CPU, 1)], &[])]
}

/// One after the other: podman's images and settings are made once.
#[test]
fn a_program_in_an_image_keeps_the_contract() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(podman) = Podman::find(dir.path()) else { return };
    it_is_told_who_it_is(&podman);
    each_rank_hears_the_notice(&podman);
    it_is_killed_whole(&podman);
    it_is_killed_while_it_is_started(&podman);
    it_is_no_stranger_and_sees_no_other_lease(&podman);
}

fn it_is_told_who_it_is(podman: &Podman) {
    let mut rig = Rig::new();
    let script = r#"test -e /bin/busybox && echo "$HET_JOB $RANK of $WORLD_SIZE" > seen"#;
    let mut launch = podman.launch(&rig, script);
    launch.ranks_max = 2;
    rig.start_with(LEASE, launch, one(), None);
    assert_eq!(rig.story().outcome, Outcome::Finished);
    assert_eq!(rig.read("seen").trim(), "demo 0 of 1");
}

fn each_rank_hears_the_notice(podman: &Podman) {
    let mut rig = Rig::new();
    let script = r#"
        trap 'echo saved > saved-$RANK; exit 75' TERM
        touch here-$RANK
        until [ -e here-0 ] && [ -e here-1 ]; do sleep 0.05; done
        [ $RANK = 0 ] && echo '{"step":1}' >> $HET_PROGRESS
        while :; do sleep 0.05; done"#;
    rig.start_with(LEASE, podman.launch(&rig, script), [one(), one()].concat(), None);
    rig.await_step(1);
    rig.stop(Millis(30_000));
    assert_eq!(rig.story().outcome, Outcome::Stopped);
    assert_eq!([rig.read("saved-0"), rig.read("saved-1")], ["saved\n"; 2]);
}

fn it_is_killed_whole(podman: &Podman) {
    let mut rig = Rig::new();
    let script =
        r#"trap '' TERM; echo '{"step":1}' >> $HET_PROGRESS; while :; do sleep 0.05; done"#;
    rig.start_with(LEASE, podman.launch(&rig, script), one(), None);
    rig.await_step(1);
    rig.stop(Millis(500));
    assert_eq!(rig.story().outcome, Outcome::Stopped);
    assert_eq!(living(&rig.path("run")), [0; 0], "nothing of it lives once its end is told");
    podman.check_empty();
}

fn it_is_killed_while_it_is_started(podman: &Podman) {
    let mut rig = Rig::new();
    rig.start_with(LEASE, podman.launch(&rig, "while :; do :; done"), one(), None);
    let named = rig.path("run/lease-1.containers/0");
    while fs::read_to_string(&named).unwrap_or_default().is_empty() {
        std::thread::yield_now();
    }
    rig.stop(Millis(0));
    assert_eq!(rig.story().outcome, Outcome::Stopped);
    podman.check_empty();
}

fn it_is_no_stranger_and_sees_no_other_lease(podman: &Podman) {
    let run = tempfile::tempdir().expect("a temporary directory can be made");
    let mut rig = Rig::with_run_dir(run.path());
    let script = r#"
        i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done
        echo '{"step":1}' >> $HET_PROGRESS
        echo mine > ${HET_NOTICE%/*}/mine
        [ -e ${HET_NOTICE%/*/*}/record-1 ] && exit 3
        until [ -e go ]; do sleep 0.05; done"#;
    rig.start_with(LEASE, podman.launch(&rig, script), one(), None);
    let busy = rig.await_step(1).busy.expect("nothing but a processor is held");
    assert!(busy >= Millis(50), "a loop in a container takes processor time: {busy:?}");
    let leases = LiveLeases::read(run.path());
    let found = living(run.path());
    assert!(found.len() > 1, "the runtime and the program");
    assert!(found.iter().all(|&pid| leases.owner_of(pid) == ProcessOwner::Lease), "{found:?}");
    fs::write(rig.path("go"), "").expect("it is writable");
    assert_eq!(rig.story().outcome, Outcome::Finished);
}

/// Processes with a variable that names this run directory.
fn living(run_dir: &Path) -> Vec<u32> {
    let here = run_dir.to_string_lossy().into_owned();
    let processes = fs::read_dir("/proc").expect("it can be listed").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_of_rig = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&here)
    };
    ids.filter(is_of_rig).collect()
}

#[test]
fn without_a_runtime_it_is_said_what_is_missing() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("true");
    let runtime = Some(ContainerRuntime::Apptainer);
    let image = "/images/train.sif".to_owned();
    launch.container = Some(Container { image, runtime, mounts: Vec::new(), volumes: Vec::new() });
    if ["apptainer", "singularity"]
        .iter()
        .any(|name| Command::new(name).arg("--version").output().is_ok())
    {
        return;
    }
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[])], None);
    let story = rig.story();
    assert_eq!(story.failure().exit_code, 127);
    let told = &story.failure().message;
    assert!(told.contains("`apptainer` or `singularity`"), "{told}");
}
