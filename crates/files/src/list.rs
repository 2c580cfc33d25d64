//! What lies in a directory, without opening it.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, FileType, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// What a path leads to; a link is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
    /// A FIFO, a socket or a device.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a file",
            Self::Directory => "a directory",
            Self::Link => "a symbolic link",
            Self::Other => "a FIFO, socket or device",
        })
    }
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub path: PathBuf,
    pub kind: Kind,
}

/// What lies in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// There are more.
    pub is_cut: bool,
    /// Something in it could not be read.
    pub is_partial: bool,
}

/// At most so many entries of a directory, in no order; none of one that cannot be read.
pub fn list(dir: &Path, entries_max: usize) -> Listing {
    let mut listing = Listing::default();
    let Ok(entries) = fs::read_dir(dir) else {
        return Listing { is_partial: true, ..listing };
    };
    for entry in entries {
        if listing.entries.len() == entries_max {
            listing.is_cut = true;
            break;
        }
        match entry.and_then(|entry| Ok((entry.file_type()?, entry))) {
            Ok((kind, entry)) => {
                let (name, path, kind) = (entry.file_name(), entry.path(), kind_of(kind));
                listing.entries.push(Entry { name, path, kind });
            }
            Err(_) => listing.is_partial = true,
        }
    }
    listing
}

/// What a path leads to, with its metadata.
///
/// # Errors
/// When nothing is there, or it cannot be looked at.
pub fn kind(path: &Path) -> io::Result<(Kind, Metadata)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((kind_of(metadata.file_type()), metadata))
}

pub fn is_file(path: &Path) -> bool {
    kind(path).is_ok_and(|(kind, _)| kind == Kind::File)
}

pub fn is_directory(path: &Path) -> bool {
    kind(path).is_ok_and(|(kind, _)| kind == Kind::Directory)
}

pub(crate) fn kind_of(kind: FileType) -> Kind {
    match (kind.is_file(), kind.is_dir(), kind.is_symlink()) {
        (true, ..) => Kind::File,
        (_, true, _) => Kind::Directory,
        (.., true) => Kind::Link,
        _ => Kind::Other,
    }
}
