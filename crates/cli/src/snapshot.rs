//! What state the files are in that a job is submitted from, and a copy of them that nobody
//! changes any more.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fail::{Fail, code};

/// Files and bytes of one copy.
const FILES_MAX: usize = 100_000;
const BYTES_MAX: u64 = 1 << 30;

/// The commit that a directory is at; nothing where it is of no repository.
pub fn commit(dir: &Path) -> Option<String> {
    dir.ancestors().find(|dir| dir.join(".git").exists())?;
    let hash = git(dir, &["rev-parse", "HEAD"])?;
    let hash = String::from_utf8(hash).ok()?.trim().to_owned();
    let changed = git(dir, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(match changed.is_empty() {
        true => hash,
        false => format!("{hash} and uncommitted changes"),
    })
}

/// Copies the files of a directory into a new one below `into`; gives the directory there that
/// stands for `dir`. Of a git work tree all of it is copied but what it ignores.
pub fn copy(dir: &Path, into: &Path) -> Result<PathBuf, Fail> {
    let (root, files) = match tracked(dir) {
        Some(found) => found,
        None => (dir.to_path_buf(), all_files(dir)?),
    };
    let total = check_size(&root, &files)?;
    debug_assert!(total <= BYTES_MAX);
    for file in &files {
        let (from, to) = (root.join(file), into.join(file));
        copy_one(&from, &to).map_err(|error| Fail::file(&from, error))?;
    }
    let below = dir.strip_prefix(&root).unwrap_or(Path::new(""));
    let stands_for = into.join(below);
    fs::create_dir_all(&stands_for).map_err(|error| Fail::file(&stands_for, error))?;
    Ok(stands_for)
}

/// The work tree that a directory is in, and its files below that.
fn tracked(dir: &Path) -> Option<(PathBuf, Vec<PathBuf>)> {
    let root = String::from_utf8(git(dir, &["rev-parse", "--show-toplevel"])?).ok()?;
    let root = PathBuf::from(root.trim_end_matches('\n'));
    let list = git(&root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut files: Vec<PathBuf> =
        names.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name))).collect();
    // Those that were deleted and not committed are listed, and are not there.
    files.retain(|file| root.join(file).symlink_metadata().is_ok_and(|file| !file.is_dir()));
    files.sort();
    files.dedup();
    Some((root, files))
}

fn git(dir: &Path, args: &[&str]) -> Option<Vec<u8>> {
    let command = Command::new("git")
        .arg("--no-optional-locks")
        .arg("-C")
        .arg(dir)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    command.ok().filter(|output| output.status.success()).map(|output| output.stdout)
}

/// Every file below a directory. Links are taken as they are and not followed.
fn all_files(dir: &Path) -> Result<Vec<PathBuf>, Fail> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(below) = open.pop() {
        let path = dir.join(&below);
        let entries = fs::read_dir(&path).map_err(|error| Fail::file(&path, error))?;
        for entry in entries.filter_map(Result::ok) {
            let file = below.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(file),
                Ok(kind) if kind.is_file() || kind.is_symlink() => found.push(file),
                _ => {}
            }
        }
        if found.len() > FILES_MAX {
            break;
        }
    }
    found.sort();
    Ok(found)
}

fn check_size(root: &Path, files: &[PathBuf]) -> Result<u64, Fail> {
    let hint = "keep data elsewhere, or list it in `.gitignore`";
    if files.len() > FILES_MAX {
        let text = format!("`{}` has more than {FILES_MAX} files to copy", root.display());
        return Err(Fail::new(code::USAGE, text).hint(hint));
    }
    let size = |file: &PathBuf| root.join(file).symlink_metadata().map_or(0, |file| file.len());
    let total: u64 = files.iter().map(size).sum();
    if total <= BYTES_MAX {
        return Ok(total);
    }
    let largest = files.iter().max_by_key(|file| size(file)).cloned().unwrap_or_default();
    let text = format!(
        "`{}` has {:.1} GiB to copy, and a snapshot at most 1; the largest file is `{}`",
        root.display(),
        total as f64 / BYTES_MAX as f64,
        largest.display()
    );
    Err(Fail::new(code::USAGE, text).hint(hint))
}

fn copy_one(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    match from.symlink_metadata()?.is_symlink() {
        true => std::os::unix::fs::symlink(fs::read_link(from)?, to),
        false => fs::copy(from, to).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_repository_is_copied_whole() {
        let from = tempfile::tempdir().expect("a directory can be made");
        let into = tempfile::tempdir().expect("a directory can be made");
        fs::create_dir(from.path().join("a")).expect("a directory can be made");
        fs::write(from.path().join("a/b"), "1").expect("a file can be written");
        std::os::unix::fs::symlink("a/b", from.path().join("link")).expect("a link can be made");
        let files = all_files(from.path()).unwrap_or_default();
        assert_eq!(files, [PathBuf::from("a/b"), PathBuf::from("link")]);
        let copied = copy(&from.path().join("a"), into.path());
        assert!(copied.is_ok_and(|dir| dir.join("b").is_file()));
    }
}
