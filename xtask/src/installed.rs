//! What a chore installs from a registry, once for each version.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// Whether a package is in a directory, which takes these commands in a directory that has nothing.
/// Where one of them fails it is said that the chore is skipped, and why.
pub fn is_there(chore: &str, package: &str, dir: &Path, commands: &mut [Command]) -> Result<bool> {
    let stamp = dir.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == package) {
        return Ok(true);
    }
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    for command in commands {
        let done = command.output();
        if !done.as_ref().is_ok_and(|output| output.status.success()) {
            let why = done.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            let why = why.unwrap_or_else(|error| error.to_string());
            eprintln!("SKIPPED {chore}: {package} cannot be installed: {}", why.trim());
            return Ok(false);
        }
    }
    fs::write(stamp, package)?;
    Ok(true)
}
