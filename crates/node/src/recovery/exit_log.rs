//! How processes ended whose supervisor had died, a line each: `BOOT PID START_TICKS code 3`.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::process::{Exit, procfs};

/// Appends to the log.
#[derive(Debug)]
pub(super) struct ExitLogWriter(File);

impl ExitLogWriter {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        clear_earlier_boots(path)?;
        OpenOptions::new().create(true).append(true).open(path).map(Self)
    }

    /// Records the end of a process that is a zombie.
    pub(super) fn append(&mut self, pid: i32, exit: Exit) -> io::Result<()> {
        let start_ticks = procfs::stat(pid).map_or(0, |stat| stat.start_ticks);
        let line = format!("{} {pid} {start_ticks} {}", procfs::boot_id(), ExitField(exit));
        writeln!(self.0, "{line}")
    }
}

/// Process ids start over with every boot.
fn clear_earlier_boots(path: &Path) -> io::Result<()> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let boot = procfs::boot_id();
    if text.lines().all(|line| line.starts_with(&boot)) {
        return Ok(());
    }
    File::create(path).map(drop)
}

/// `code 3`, `signal 15`.
struct ExitField(Exit);

impl fmt::Display for ExitField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Exit::Code(code) => write!(f, "code {code}"),
            Exit::Signal(signal) => write!(f, "signal {}", signal as i32),
            Exit::Unknown => f.write_str("unknown 0"),
        }
    }
}

/// The ends that a restarter recorded.
#[derive(Debug, Clone)]
pub(crate) struct ExitLog(pub(crate) PathBuf);

impl ExitLog {
    /// How the process with this id ended that started at this time or later; the latest if there
    /// were several.
    pub(crate) fn of(&self, pid: i32, since_ticks: u64) -> Option<Exit> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let boot_now = procfs::boot_id();
        text.lines().rev().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [boot, id, start, kind, number] = words[..] else { return None };
            let fits = boot == boot_now
                && id.parse() == Ok(pid)
                && start.parse::<u64>().ok()? >= since_ticks;
            let number: i32 = number.parse().ok()?;
            let exit = match kind {
                "code" => Exit::Code(number),
                "signal" => Signal::try_from(number).map_or(Exit::Unknown, Exit::Signal),
                _ => Exit::Unknown,
            };
            fits.then_some(exit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_end_of_an_id_counts() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("exits");
        let boot = procfs::boot_id();
        let lines = ["7 100 code 3", "8 100 signal 15", "7 500 code 0"];
        let text: String = lines.map(|line| format!("{boot} {line}\n")).concat();
        fs::write(&path, text + "another 9 900 code 0\n").expect("it can be made");
        let log = ExitLog(path);
        assert_eq!(log.of(7, 50), Some(Exit::Code(0)));
        assert_eq!(log.of(8, 50), Some(Exit::Signal(Signal::SIGTERM)));
        assert_eq!(log.of(8, 200), None, "an earlier process had the id");
        assert_eq!(log.of(9, 0), None, "that was before a reboot");
    }
}
