//! A server whose disk has no room or no files left: a small file system in memory, which root can
//! mount; skipped loudly elsewhere.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::commands::wait_for;
use crate::support::{Sandbox, Served};

/// A job that waits for its user.
const WAITS: &str = "until [ -e go ]; do sleep 0.02; done";

/// A state directory on a file system of its own.
struct Disk {
    served: Option<Served>,
    home: PathBuf,
}

impl Disk {
    #[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
    fn mount(options: &str) -> Option<Self> {
        let sandbox = Sandbox::new();
        let home = sandbox.path().join("home");
        fs::create_dir(&home).expect("the sandbox is writable");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("mode=0700,{options}"), "tmpfs"]).arg(&home);
        if !mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no file system can be mounted here");
            return None;
        }
        Some(Self { served: Some(Served(sandbox).start(&[])), home })
    }

    fn served(&self) -> &Served {
        self.served.as_ref().expect("only the end takes it")
    }

    /// Why the server changes nothing.
    fn trouble(&self) -> Option<String> {
        let status = self.served().json(&["server", "status"]);
        status["storage"].as_str().map(str::to_owned)
    }

    fn submit(&self) -> Output {
        self.served().run(&["submit", "--clean-env", "--", "true"])
    }

    /// Submits until the server notices that it cannot write.
    fn until_noticed(&self) -> String {
        wait_for("the server to notice", || {
            drop(self.submit());
            self.trouble().is_some()
        });
        let refused = self.submit();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(5), "{told}");
        told
    }

    fn state(&self, job: u64) -> String {
        let job = self.served().json(&["describe", &job.to_string()]);
        job["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Everything goes on by itself.
    fn check_resumed(&self) {
        wait_for("the server to go on", || self.trouble().is_none());
        let job = self.served().submit("true").to_string();
        assert_eq!(self.served().code(&["wait", "--timeout", "30s", &job]), Some(0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Ends the server; the sandbox is removed with it, but for what is mounted.
        let mut served = self.served.take();
        if let Some(Served(sandbox)) = &mut served {
            for arguments in [&["cancel", "all"][..], &["wait", "all"], &["server", "stop"]] {
                sandbox.run(arguments);
            }
        }
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.home).status();
        drop((unmounted, served));
    }
}

#[test]
fn a_full_disk_stops_changes_until_there_is_room() {
    let Some(disk) = Disk::mount("size=24m") else { return };
    let running = disk.served().submit(WAITS);
    wait_for("the job to run", || disk.state(running) == "running");
    let filler = disk.home.join("filler");
    let mut file = File::create(&filler).expect("there is room for it");
    while file.write_all(&[1; 4096]).is_ok() {}
    // As long as it is open, its room stays taken.
    drop(file);
    let told = disk.until_noticed();
    assert!(told.contains("nothing can be changed at present") && told.contains("hint:"), "{told}");
    assert_eq!(disk.served().code(&["ps"]), Some(0), "questions are answered");
    // There is room for how things end.
    disk.served().0.write("go", "");
    wait_for("the end of the job", || disk.state(running) == "succeeded");
    assert!(disk.trouble().is_some(), "the disk is still full");
    fs::remove_file(filler).expect("it is there");
    disk.check_resumed();
}

#[test]
fn a_disk_without_files_left_keeps_jobs_waiting_and_fails_none() {
    let Some(disk) = Disk::mount("size=64m,nr_inodes=256") else { return };
    let fillers = disk.home.join("fillers");
    fs::create_dir(&fillers).expect("there is a file left");
    let held = disk.served().json(&["submit", "--hold", "-o", "json", "--", "true"]);
    let held = held["id"].as_u64().expect("an id");
    let filled = (0..).take_while(|n: &u32| File::create(fillers.join(n.to_string())).is_ok());
    assert!(filled.count() > 10);
    assert_eq!(disk.served().code(&["release", &held.to_string()]), Some(0));
    wait_for("a try to begin it", || {
        let told = disk.served().run(&["explain", &held.to_string()]);
        String::from_utf8_lossy(&told.stdout).contains("the machine could not begin it")
    });
    let refused = disk.submit();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{told}");
    fs::remove_dir_all(fillers).expect("they are there");
    wait_for("the job to run", || disk.state(held) == "succeeded");
    disk.check_resumed();
}
