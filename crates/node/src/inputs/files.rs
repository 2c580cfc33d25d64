//! The files of an input.

use std::collections::VecDeque;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use het_files::{Kind, kind, list};

/// Entries of directories that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// One file of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InputFile {
    pub(super) path: PathBuf,
    /// Below the input; empty for an input that is a file.
    pub(super) below: PathBuf,
    pub(super) bytes: u64,
    pub(super) is_executable: bool,
    /// When it was last written, and when that or anything else of it changed, in seconds and
    /// nanoseconds.
    pub(super) modified: (i64, i64),
    pub(super) changed: (i64, i64),
    /// Device and number: a cache has several names for each file.
    pub(super) id: (u64, u64),
}

/// The files of an input, also those that links lead to, in the order of their paths.
///
/// # Errors
/// What was found, where that is not all of it: there are more than 10,000 entries, something
/// cannot be looked at, or is neither a directory nor a file. A link to a directory is neither,
/// unless it is the input itself.
pub(super) fn files_of(input: &Path) -> Result<Vec<InputFile>, Vec<InputFile>> {
    let Ok(top) = input.canonicalize() else { return Err(Vec::new()) };
    let (mut found, mut entries, mut is_whole) = (Vec::new(), 0, true);
    let mut left: VecDeque<(PathBuf, PathBuf)> = [(top, PathBuf::new())].into();
    while let Some((path, below)) = left.pop_front() {
        if let Ok((Kind::Directory, _)) = kind(&path) {
            let listing = list(&path, ENTRIES_MAX - entries);
            entries += listing.entries.len();
            is_whole &= !listing.is_cut && !listing.is_partial;
            let inside = listing.entries.into_iter();
            left.extend(inside.map(|entry| (entry.path, below.join(entry.name))));
        } else if let Some(metadata) = fs::metadata(&path).ok().filter(Metadata::is_file) {
            found.push(file(path, below, &metadata));
        } else {
            is_whole = false;
        }
    }
    found.sort_by(|one, other| one.below.cmp(&other.below));
    if is_whole { Ok(found) } else { Err(found) }
}

fn file(path: PathBuf, below: PathBuf, metadata: &Metadata) -> InputFile {
    InputFile {
        path,
        below,
        bytes: metadata.len(),
        is_executable: metadata.mode() & 0o100 != 0,
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        id: (metadata.dev(), metadata.ino()),
    }
}
