//! Files that appear under their name whole, in one rename, or not at all.

use crate::error::{IoContext, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Writes a file beside `path` by `fill`, and gives it its name once the disk has it.
pub fn write_with(path: &Path, fill: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let scratch = path.with_file_name(format!(".tmp-{name}-{}", std::process::id()));
    let mut file = File::create(&scratch).at("create", &scratch)?;
    let filled = fill(&mut file).and_then(|()| file.sync_all()).at("write", path);
    let written = filled.and_then(|()| fs::rename(&scratch, path).at("move into place", path));
    if written.is_err() {
        let _ = fs::remove_file(&scratch);
    }
    written
}

pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| file.write_all(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_what_was_there() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        write(&path, b"first").expect("written");
        let failed = write_with(&path, |file| {
            file.write_all(b"sec")?;
            Err(std::io::ErrorKind::StorageFull.into())
        });
        assert!(failed.expect_err("it failed").to_string().contains("file`"));
        assert_eq!(fs::read(&path).expect("it is there"), b"first");
        assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 1);
    }
}
