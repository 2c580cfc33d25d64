//! A server whose disk has no room or no files left, hangs or cannot be written: a small file
//! system in memory or on an image, which root can mount; skipped loudly elsewhere.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
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

/// Room of a file system on an image.
const IMAGE_BYTES: u64 = 128 << 20;

impl Disk {
    /// In memory.
    fn mount(options: &str) -> Option<Self> {
        let options = format!("mode=0700,{options}");
        Self::mounted(|_, home| succeeds(&["mount", "-t", "tmpfs", "-o", &options, "tmpfs", home]))
    }

    /// On an image beside it, which turns read-only at the first damage.
    fn image() -> Option<Self> {
        let disk = Self::mounted(|image, home| {
            let file = File::create(image).expect("the sandbox is writable");
            file.set_len(IMAGE_BYTES).expect("it can be grown");
            // What the tests need besides.
            succeeds(&["fsfreeze", "--version"])
                && succeeds(&["e2fsck", "-V"])
                && succeeds(&["mkfs.ext4", "-q", image])
                && succeeds(&["mount", "-o", "loop,errors=remount-ro", image, home])
        });
        disk.inspect(|disk| succeeds_surely(&["chmod", "0700", text(&disk.home)]))
    }

    #[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
    fn mounted(mount: impl FnOnce(&str, &str) -> bool) -> Option<Self> {
        let sandbox = Sandbox::new();
        let home = sandbox.path().join("home");
        fs::create_dir(&home).expect("the sandbox is writable");
        if !mount(text(&image_of(&home)), text(&home)) {
            eprintln!("SKIPPED: no file system can be mounted here");
            return None;
        }
        Some(Self { served: Some(Served(sandbox).start(&[])), home })
    }

    /// Until the end of what is returned no write to it comes back.
    fn freeze(&self) -> Frozen<'_> {
        succeeds_surely(&["fsfreeze", "--freeze", text(&self.home)]);
        Frozen(&self.home)
    }

    /// Ends the server, and takes the file system away.
    fn unmount(&self) {
        assert_eq!(self.served().code(&["server", "stop"]), Some(0));
        wait_for("the end of its server", || succeeds(&["umount", text(&self.home)]));
    }

    /// Whether one of the server's threads waits for a disk.
    fn is_stuck(&self) -> bool {
        let pid = self.served().json(&["server", "status"])["pid"].clone();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the server runs");
        tasks.flatten().any(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
        })
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
        refused(&self.submit())
    }

    /// A call whose client has nothing on the disk.
    fn remote(&self, arguments: &[&str]) -> Command {
        let mut command = self.served().het(arguments);
        let socket = format!("unix:{}", self.served().socket().display());
        let home = self.served().path().join("home-of-clients");
        command.env("HET_HOME", home).env("HET_SERVER", socket).stdout(Stdio::null());
        command
    }

    fn submit_held(&self) -> u64 {
        let held = self.served().json(&["submit", "--hold", "-o", "json", "--", "true"]);
        held["id"].as_u64().expect("an id")
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
            for arguments in
                [&["cancel", "all"][..], &["wait", "--timeout", "30s", "all"], &["server", "stop"]]
            {
                sandbox.run(arguments);
            }
        }
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.home).status();
        drop((unmounted, served));
    }
}

/// A file system on which no write comes back.
struct Frozen<'a>(&'a Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        succeeds_surely(&["fsfreeze", "--unfreeze", text(self.0)]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary names are text")
}

fn image_of(home: &Path) -> PathBuf {
    home.with_extension("image")
}

fn succeeds(command: &[&str]) -> bool {
    let mut program = Command::new(command[0]);
    let quiet = program.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[track_caller]
fn succeeds_surely(command: &[&str]) {
    assert!(succeeds(command), "{command:?}");
}

/// What a call was refused with for the sake of the disk.
#[track_caller]
fn refused(call: &Output) -> String {
    let told = String::from_utf8_lossy(&call.stderr).into_owned();
    assert_eq!(call.status.code(), Some(5), "{told}");
    told
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
    let held = disk.submit_held();
    let filled = (0..).take_while(|n: &u32| File::create(fillers.join(n.to_string())).is_ok());
    assert!(filled.count() > 10);
    assert_eq!(disk.served().code(&["release", &held.to_string()]), Some(0));
    wait_for("a try to begin it", || {
        let told = disk.served().run(&["explain", &held.to_string()]);
        String::from_utf8_lossy(&told.stdout).contains("the machine could not begin it")
    });
    refused(&disk.submit());
    fs::remove_dir_all(fillers).expect("they are there");
    wait_for("the job to run", || disk.state(held) == "succeeded");
    disk.check_resumed();
}

#[test]
fn a_disk_that_hangs_holds_changes_up_and_no_answers() {
    let Some(disk) = Disk::image() else { return };
    let held = disk.submit_held();
    let frozen = disk.freeze();
    let release = disk.remote(&["release", &held.to_string()]).spawn();
    let mut release = release.expect("it starts");
    wait_for("a write that does not come back", || disk.is_stuck());
    for _ in 0..20 {
        assert_eq!(disk.state(held), "held", "questions are answered");
    }
    let told = refused(
        &disk.remote(&["submit", "--clean-env", "--", "true"]).output().expect("it starts"),
    );
    assert!(told.contains("does not answer") && told.contains("hint:"), "{told}");
    assert!(disk.is_stuck() && disk.state(held) == "held", "the server waits for its disk");
    drop(frozen);
    assert!(release.wait().expect("it ends").success(), "the change was only held up");
    wait_for("the job to run", || disk.state(held) == "succeeded");
    disk.check_resumed();
}

#[test]
fn a_disk_that_turns_read_only_is_read_and_nothing_on_it_is_lost() {
    let Some(mut disk) = Disk::image() else { return };
    let before = disk.served().submit("true");
    assert_eq!(disk.served().code(&["wait", "--timeout", "30s", &before.to_string()]), Some(0));
    let held = disk.submit_held();
    succeeds_surely(&["mount", "-o", "remount,abort", text(&disk.home)]);
    let told = refused(&disk.submit());
    assert!(told.contains("Read-only file system") && told.contains("hint:"), "{told}");
    refused(&disk.served().run(&["release", &held.to_string()]));
    assert!(disk.trouble().is_some_and(|why| why.contains("Read-only file system")));
    assert_eq!([before, held].map(|job| disk.state(job)), ["succeeded", "held"]);
    disk.unmount();
    let image = image_of(&disk.home);
    let mount =
        |options| succeeds_surely(&["mount", "-o", options, text(&image), text(&disk.home)]);
    // Its exit code says that something was repaired.
    succeeds(&["e2fsck", "-y", text(&image)]);
    mount("loop,ro");
    let refused = disk.served().run(&["server"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(told.contains("Read-only file system") && told.contains("hint:"), "{told}");
    succeeds_surely(&["umount", text(&disk.home)]);
    mount("loop");
    disk.served = disk.served.take().map(|served| served.start(&[]));
    assert_eq!([before, held].map(|job| disk.state(job)), ["succeeded", "held"]);
    assert_eq!(disk.served().code(&["release", &held.to_string()]), Some(0));
    disk.check_resumed();
}
