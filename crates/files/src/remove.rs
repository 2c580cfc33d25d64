//! Removing what somebody else made, however deep, wide and locked up.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Removes a directory with all that is in it, or a file. Links are removed, not followed. What is
/// not there counts as removed. It takes no more memory and no longer paths for what is deep: full
/// directories are moved up before they are emptied.
///
/// # Errors
/// When something cannot be removed; all else is.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match remove_one(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        removed => return removed,
    }
    let mut full = vec![path.to_owned()];
    let (mut moved, mut failed) = (0, None);
    while let Some(dir) = full.pop() {
        for entry in entries(&dir) {
            let removed = match remove_one(&entry) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    move_up(&entry, path, &mut moved).map(|up| full.push(up))
                }
                removed => removed,
            };
            failed = failed.or(removed.err());
        }
        if dir != path {
            failed = failed.or(remove_one(&dir).err());
        }
    }
    failed = failed.or(remove_one(path).err());
    failed.map_or(Ok(()), Err)
}

/// A file, a link or an empty directory.
fn remove_one(path: &Path) -> io::Result<()> {
    let removed = match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        removed => removed,
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// All of them at once, for the directory changes while they are removed.
fn entries(dir: &Path) -> Vec<PathBuf> {
    // Its owner may have locked it, and what is in it too.
    let _ = fs::set_permissions(dir, Permissions::from_mode(0o700));
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Into `top`, if it does not lie there.
fn move_up(dir: &Path, top: &Path, moved: &mut u64) -> io::Result<PathBuf> {
    if dir.parent() == Some(top) {
        return Ok(dir.to_owned());
    }
    // A directory that is moved is written to: its own entry `..` changes.
    let _ = fs::set_permissions(dir, Permissions::from_mode(0o700));
    loop {
        let up = top.join(format!(".removed-{moved}"));
        *moved += 1;
        match fs::rename(dir, &up) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            renamed => return renamed.map(|()| up),
        }
    }
}
