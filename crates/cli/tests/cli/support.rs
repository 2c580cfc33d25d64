//! The real binary in a directory of its own, and what it said, without what changes from run to
//! run.

use std::fs;
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use nix::unistd::User;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A home directory and a working directory that nobody else uses.
pub struct Sandbox {
    dir: Arc<TempDir>,
    program: PathBuf,
    /// As whom `het` is called, and asks the server of several users.
    user: Option<User>,
}

impl Sandbox {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir: Arc::new(dir), program: env!("CARGO_BIN_EXE_het").into(), user: None }
    }

    /// The same with a program in another place.
    pub fn with_program(program: impl FnOnce(&Path) -> PathBuf) -> Self {
        let mut sandbox = Self::new();
        sandbox.program = program(sandbox.path());
        sandbox
    }

    /// The same directory, used by another user.
    pub fn of(&self, user: &User) -> Self {
        let user = Some(user.clone());
        Self { dir: Arc::clone(&self.dir), program: self.program.clone(), user }
    }

    /// Where jobs of its user have their directories, each a `work` of its own where the server is
    /// this user's.
    pub fn workdir(&self, job: u64) -> PathBuf {
        let home = self.path().join("home");
        match &self.user {
            Some(user) => home.join("users").join(&user.name).join(format!("jobs/{job}")),
            None => home.join(format!("jobs/{job}/work")),
        }
    }

    pub fn socket(&self) -> PathBuf {
        let home = self.path().join("home");
        if self.user.is_some() { home.join("socket") } else { home.join("server/socket") }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).expect("the sandbox is writable");
        path
    }

    /// The text of a file that a command wrote.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).expect("the command wrote it")
    }

    pub fn het(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.program);
        command.args(arguments);
        command
    }

    /// A program called by its user.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Some(user) = &self.user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
            command.env("HET_SERVER", format!("unix:{}", self.socket().display()));
        }
        let home = match &self.user {
            Some(user) => format!("home-of-{}", user.name),
            None => "home".to_owned(),
        };
        command
            .current_dir(self.path())
            .env("HET_HOME", self.path().join(home))
            // Servers of other sandboxes hold the same devices.
            .env("HET_LOCK_DIR", self.path().join("home"))
            .env("HET_LANG", "en")
            .env("NO_COLOR", "1")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.het(arguments).output().expect("het starts")
    }

    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Queues a shell script on one core; its id.
    #[track_caller]
    pub fn submit(&self, script: &str) -> u64 {
        let submitted = self.json(&["submit", "-o", "json", "--", "sh", "-c", script]);
        submitted["id"].as_u64().expect("an id")
    }

    pub fn code(&self, arguments: &[&str]) -> Option<i32> {
        self.run(arguments).status.code()
    }

    /// Exit code and both streams as one text for a snapshot.
    pub fn told(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        let told = format!(
            "$ het {}\nexit code: {}\n--- stdout ---\n{}\n--- stderr ---\n{}",
            arguments.join(" "),
            output.status.code().unwrap_or(-1),
            text(&output.stdout),
            text(&output.stderr)
        );
        self.steady(&told)
    }

    /// The text with this sandbox's and this machine's names taken out.
    pub fn steady(&self, text: &str) -> String {
        let here = self.path().to_string_lossy().into_owned();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let text = text.replace(&here, "[sandbox]");
        text.replace(&format!("{}/cpu", host.trim()), "[host]/cpu")
    }
}

/// Replaces what a clock or a process table decides.
macro_rules! assert_told {
    ($told:expr) => {
        insta::with_settings!({ filters => vec![
            (r"\d+\.\d+ device-seconds", "[time] device-seconds"),
            (r"\b\d+\.\d+ s\b", "[time]"),
            (r"process \d+", "process [pid]"),
            (r"allocated \d+ %, busy \d+ %", "allocated [part], busy [part]"),
            (r"`cpu:\d+`", "`cpu:[n]`"),
            (r#"cpu:\d+""#, r#"cpu:[n]""#),
            (r"(?m) +\d+\.\d +\d+\.\d +(\d)", " [time] [time] $1"),
        ]}, { insta::assert_snapshot!($told); });
    };
}

/// A sandbox whose server is stopped at the end, with all that it runs.
pub struct Served(pub Sandbox);

impl Served {
    /// The server is started by the first that needs it.
    pub fn new() -> Self {
        Self(Sandbox::new())
    }

    pub fn under_policy(policy: &str) -> Self {
        Self::new().start(&["--policy", policy])
    }

    /// Queues a job of one stage; its id.
    #[track_caller]
    pub fn submit_stage(&self, name: &str, priority: &str, stage: &Value) -> u64 {
        let file = json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": { "name": name },
            "spec": { "priority": priority, "stages": [stage] },
        });
        let file = self.write(&format!("{name}.yaml"), &file.to_string());
        let submitted = self.json(&["submit", &file.to_string_lossy()]);
        submitted["id"].as_u64().unwrap_or_else(|| panic!("{submitted:#}"))
    }

    /// Starts the server in a sandbox that was prepared.
    pub fn start(self, arguments: &[&str]) -> Self {
        let served = self;
        let mut server = served.0.het(&[&["server"], arguments].concat());
        let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        drop(server.expect("the server can be started"));
        crate::commands::wait_for("the server", || served.code(&["ps"]) == Some(0));
        served
    }
}

impl Deref for Served {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.0
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.run(&["cancel", "all"]);
        self.0.run(&["wait", "--timeout", "30s", "all"]);
        self.0.run(&["server", "stop"]);
    }
}

/// A server of a machine with so many photons.
pub fn serve_declared(sandbox: Sandbox, photons: u64, options: &[String]) -> Served {
    let declared = json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "Devices",
        "devices": [{ "kind": "gpu", "class": "photon", "count": photons,
            "memory": "1GiB", "variable": "PHOTONS" }],
    });
    let declared = sandbox.write("devices.yaml", &declared.to_string());
    let mut server = sandbox.het(&["server", "--declare", &declared.to_string_lossy()]);
    let log = fs::File::create(sandbox.path().join("log")).expect("a file can be made");
    server.args(options).stdout(Stdio::null()).stderr(log);
    drop(server.spawn().expect("the server can be started"));
    // A client that comes before would start a server of its own.
    let socket = sandbox.path().join("home/server/socket");
    crate::commands::wait_for("the server", || UnixStream::connect(&socket).is_ok());
    Served(sandbox)
}

/// The whole lines of JSON that a program wrote so far.
pub fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

pub fn states(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("a list");
    items.iter().filter_map(|item| item["state"].as_str()).collect()
}

/// A job file of one stage that takes every core of the machine.
pub fn whole_machine(served: &Served, name: &str, priority: &str, run: &str, more: &str) -> String {
    let devices = served.json(&["devices"]);
    let items = devices["items"].as_array().expect("a list");
    let sockets = items.iter().filter(|item| item["kind"] == "cpu");
    let cores: u64 = sockets.filter_map(|item| item["units"].as_u64()).sum();
    let text = format!(
        "apiVersion: heterosis.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{ name: {name} }}\n\
         spec:\n  priority: {priority}\n  stages:\n    - name: train\n      kind: train\n      \
         run: {run}\n      devices: cpu:{cores}\n{more}"
    );
    served.0.write(&format!("{name}.yaml"), &text).to_string_lossy().into_owned()
}

/// Whether a user's PyTorch could run here.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
pub fn has_torch() -> bool {
    let asked = Command::new("torchrun").arg("--help").output();
    let found = asked.is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("SKIPPED: `torchrun` is not installed, see `pip install torch`");
    }
    found
}
