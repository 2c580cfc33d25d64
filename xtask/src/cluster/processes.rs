//! Processes that outlive this one, found again by a file.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Lines of process id and path of the program.
fn list(dir: &Path) -> PathBuf {
    dir.join("processes")
}

/// Starts a program that writes to `NAME.log` in `dir`, in a group of its own.
///
/// # Errors
/// When it cannot be started or noted.
pub fn start(dir: &Path, program: &Path, arguments: &[String]) -> Result<()> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let log = File::create(dir.join(format!("{name}.log"))).context("a log cannot be made")?;
    let child = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("a log cannot be shared")?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("`{}` does not start", program.display()))?;
    let mut known = fs::read_to_string(list(dir)).unwrap_or_default();
    known += &format!("{} {}\n", child.id(), program.display());
    fs::write(list(dir), known).context("processes cannot be noted")
}

/// Whether all that were started run.
pub fn first_dead(dir: &Path) -> Option<String> {
    let known = fs::read_to_string(list(dir)).unwrap_or_default();
    let mut lines = known.lines().filter_map(|line| line.split_once(' '));
    let (_, program) = lines.find(|(id, program)| !is_it(id, program))?;
    Some(program.to_owned())
}

/// Kills what was started; ids that belong to others by now are left alone.
///
/// # Errors
/// When `kill` is missing.
pub fn stop_all(dir: &Path) -> Result<()> {
    let known = fs::read_to_string(list(dir)).unwrap_or_default();
    let running: Vec<&str> = known
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(id, program)| is_it(id, program))
        .map(|(id, _)| id)
        .collect();
    if running.is_empty() {
        return Ok(());
    }
    let groups = running.iter().map(|id| format!("-{id}"));
    let status = Command::new("kill").args(["-KILL", "--"]).args(groups).status();
    status.context("`kill` does not start")?;
    while running.iter().any(|id| Path::new("/proc").join(id).join("exe").exists()) {
        std::thread::yield_now();
    }
    Ok(())
}

/// Kills one of them, as the kernel would.
///
/// # Errors
/// When `kill` is missing, or the list cannot be written.
pub fn kill(dir: &Path, program: &Path) -> Result<()> {
    let known = fs::read_to_string(list(dir)).unwrap_or_default();
    let name = program.display().to_string();
    let is_of_it = |line: &&str| line.split_once(' ').is_some_and(|(_, known)| known == name);
    let (of_it, others): (Vec<&str>, Vec<&str>) = known.lines().partition(is_of_it);
    let ids = of_it.iter().filter_map(|line| Some(line.split_once(' ')?.0));
    for id in ids.filter(|id| is_it(id, &name)) {
        signal("KILL", id)?;
        while Path::new("/proc").join(id).join("exe").exists() {
            std::thread::yield_now();
        }
    }
    let rest: String = others.iter().map(|line| format!("{line}\n")).collect();
    fs::write(list(dir), rest).context("processes cannot be noted")
}

/// # Errors
/// When `kill` is missing.
pub fn signal(name: &str, id: &str) -> Result<()> {
    let status = Command::new("kill").args([&format!("-{name}"), "--", id]).status();
    status.map(drop).context("`kill` does not start")
}

fn is_it(id: &str, program: &str) -> bool {
    fs::read_link(format!("/proc/{id}/exe")).is_ok_and(|path| path == Path::new(program))
}
