//! Replacing a file as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Readers see the file before or the new one, whole. Whatever lies at the draft's path is removed,
/// never written to.
///
/// # Errors
/// When it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, 0o644, Sync::No)
}

/// As [`replace`]; only the owner may read the file, and it is on the disk afterwards.
///
/// # Errors
/// As [`replace`].
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, 0o600, Sync::Yes)
}

/// A new file for its owner alone, to read and write.
///
/// # Errors
/// When there is anything at its path, or it cannot be made.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    Yes,
    No,
}

fn write(path: &Path, bytes: &[u8], mode: u32, sync: Sync) -> io::Result<()> {
    let draft = path.with_extension("tmp");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    file.write_all(bytes)?;
    if sync == Sync::Yes {
        file.sync_all()?;
    }
    fs::rename(draft, path)
}
