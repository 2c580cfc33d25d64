//! Whether a state directory is the one that its server made, or a copy of it: what runs belongs to
//! the original.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use het_files::replace_private;

/// What a state directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instance {
    /// The one that it says.
    Original,
    /// It says nothing yet.
    New,
    /// Its files came from another directory.
    Copy,
}

/// Looks at what a directory and its file of that name say. A directory that was moved within its
/// file system stays the same: it is known by its inode and the time at which it was made, where
/// the file system keeps that.
///
/// # Errors
/// When the directory cannot be looked at.
pub fn instance(dir: &Path, file: &Path) -> io::Result<Instance> {
    let known = fs::read_to_string(file);
    match known {
        Ok(known) if known == identity(dir)? => Ok(Instance::Original),
        Ok(_) => Ok(Instance::Copy),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Instance::New),
        Err(error) => Err(error),
    }
}

/// Says from now on that this directory is the original.
///
/// # Errors
/// When the file cannot be written.
pub fn claim_instance(dir: &Path, file: &Path) -> io::Result<()> {
    replace_private(file, identity(dir)?.as_bytes())
}

fn identity(dir: &Path) -> io::Result<String> {
    let found = fs::metadata(dir)?;
    let made = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{} {}", found.ino(), made.map_or(0, |since| since.as_nanos())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_told_from_the_original() {
        let root = tempfile::tempdir().expect("a directory can be made");
        let (dir, copy) = (root.path().join("dir"), root.path().join("copy"));
        for dir in [&dir, &copy] {
            fs::create_dir(dir).expect("it can be made");
        }
        let file = dir.join("instance");
        assert_eq!(instance(&dir, &file).expect("it is there"), Instance::New);
        claim_instance(&dir, &file).expect("it can be written");
        assert_eq!(instance(&dir, &file).expect("it is there"), Instance::Original);
        let copied = copy.join("instance");
        fs::copy(&file, &copied).expect("it can be copied");
        assert_eq!(instance(&copy, &copied).expect("it is there"), Instance::Copy);
        let moved = root.path().join("moved");
        fs::rename(&dir, &moved).expect("it can be moved");
        let file = moved.join("instance");
        assert_eq!(instance(&moved, &file).expect("it is there"), Instance::Original);
    }
}
