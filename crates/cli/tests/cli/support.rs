//! The real binary in a directory of its own, and what it said, without what changes from run to
//! run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A home directory and a working directory that nobody else uses.
pub struct Sandbox {
    pub dir: TempDir,
}

impl Sandbox {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("the sandbox is writable");
        path
    }

    /// The text of a file that a command wrote.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).expect("the command wrote it")
    }

    pub fn het(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_het"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env("HET_HOME", self.path().join("home"))
            .env("HET_LANG", "en")
            .env("NO_COLOR", "1")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.het(arguments).output().expect("het starts")
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
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
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
