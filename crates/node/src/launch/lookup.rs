//! Finds a program as a shell does.

use std::io;
use std::path::Path;

use nix::unistd::{AccessFlags, access};

/// Where programs are looked up without `PATH` (execvp(3)).
pub(super) const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// The path of a program: a name without `/` is looked up in `PATH`.
pub(super) fn find(program: &str, path: Option<&str>, cwd: &str) -> io::Result<String> {
    if program.contains('/') {
        return Ok(program.to_owned());
    }
    let path = path.unwrap_or(PATH_DEFAULT);
    let mut denied = None;
    for dir in path.split(':') {
        let dir = Path::new(cwd).join(dir);
        let candidate = dir.join(program);
        if !candidate.is_file() {
            continue;
        }
        match access(&candidate, AccessFlags::X_OK) {
            Ok(()) => return Ok(candidate.to_string_lossy().into_owned()),
            Err(errno) => denied = Some(errno.into()),
        }
    }
    Err(denied.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}
