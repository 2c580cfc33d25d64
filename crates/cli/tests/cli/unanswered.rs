//! A file system that does not answer below a job's directories. Without root none can be mounted.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::commands::wait_for;
use crate::hostile::{end_healthy, healthy, see_it_end, see_it_go_on};
use crate::support::{Sandbox, Served};

/// Mounts a file system whose requests nobody reads, says whether it could, and stays.
const HANG: &str = "\
import ctypes, os, sys, time
fd = os.open('/dev/fuse', os.O_RDWR)
options = b'fd=%d,rootmode=40000,user_id=0,group_id=0' % fd
mounted = ctypes.CDLL(None).mount(b'hang', sys.argv[1].encode(), b'fuse', 0, options) == 0
print('mounted' if mounted else 'refused', flush=True)
time.sleep(1000 if mounted else 0)
";

/// A mounted file system that answers nothing, until it is dropped.
struct Hanging {
    at: PathBuf,
    program: Child,
}

impl Hanging {
    /// None where this machine does not let us mount one.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing says so")]
    fn mount(sandbox: &Sandbox) -> Option<Self> {
        let at = sandbox.path().join("hanging");
        std::fs::create_dir(&at).expect("it is ours");
        let mut program = sandbox.command("python3");
        let program = program.args(["-c", HANG]).arg(&at);
        let program = program.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut program = program.spawn().expect("python");
        let output = BufReader::new(program.stdout.take().expect("it is a pipe"));
        let mut said = String::new();
        output.take(10).read_line(&mut said).expect("it says something");
        let hanging = Self { at, program };
        if said != "mounted\n" {
            eprintln!("SKIPPED: no file system can be mounted here");
            return None;
        }
        Some(hanging)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // Whoever waits for it hears that it is gone.
        let _ = self.program.kill();
        let _ = self.program.wait();
        unmount(&self.at);
    }
}

fn unmount(path: &Path) {
    let _ = Command::new("umount").arg("-l").arg(path).stderr(Stdio::null()).status();
}

#[test]
fn a_job_at_whose_files_the_server_hangs_twice_is_quarantined_and_named() {
    let served = Served::new();
    if Hanging::mount(&served).is_none() {
        return;
    }
    let served = served.start(&["--stall-limit", "1s"]);
    let healthy = healthy(&served);
    served.write("hang.py", HANG);
    let script = "mkdir -p saved; test -e calm || exec python3 hang.py saved";
    served.write(
        "hang.yaml",
        &format!("name: hang\nrun: [sh, -c, '{script}']\ncheckpoint: {{ dir: saved }}\n"),
    );
    let told = served.json(&["submit", "hang.yaml"]);
    let job = told["id"].as_u64().expect("an id");
    let (id, state) = (job.to_string(), |wanted: &str| {
        // Between two servers nobody answers.
        let told = served.run(&["describe", &job.to_string(), "-o", "json"]);
        let report = serde_json::from_slice::<serde_json::Value>(&told.stdout).unwrap_or_default();
        report["state"] == wanted
    });
    wait_for("quarantine", || state("held"));
    let why = served.run(&["explain", &id]);
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("it is quarantined") && why.contains("het release"), "{why}");
    see_it_go_on(&served, healthy);

    unmount(&served.path().join("saved"));
    served.write("calm", "");
    assert_eq!(served.code(&["release", &id]), Some(0));
    assert_eq!(see_it_end(&served, job), "succeeded");
    end_healthy(&served, healthy);
}

#[test]
fn who_asks_for_files_of_a_hanging_disk_holds_nobody_up() {
    let served = Served::new().start(&[]);
    let Some(hanging) = Hanging::mount(&served) else { return };
    let mut asking = served.het(&["submit", "--workdir"]);
    let asking = asking.arg(hanging.at.join("inside")).args(["--", "true"]);
    let asking = asking.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it begins");
    let job = served.submit("true");
    assert_eq!(see_it_end(&served, job), "succeeded", "others are answered meanwhile");
    let told = asking.wait_with_output().expect("it ends");
    assert_ne!(told.status.code(), Some(0));
    let why = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(why.contains("does not answer"), "{why}");
}
