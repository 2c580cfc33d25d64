//! Opening and reading.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;
use thiserror::Error;

use crate::list::{Kind, kind_of};

/// Whether the last part of a path may be a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Refused,
    /// The link is ours, or whoever made it could read its target anyway.
    Followed,
}

/// What is not opened or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    #[error("it is {0}, not a regular file")]
    NotRegular(Kind),
    #[error("it has more than {bytes_max} bytes")]
    TooLong { bytes_max: u64 },
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        Self::new(io::ErrorKind::InvalidInput, refused)
    }
}

/// Opens a regular file for reading. Neither a FIFO nor a device holds it up.
///
/// # Errors
/// When it cannot be opened, or is anything else ([`Refused`]).
pub fn open(path: &Path, links: Links) -> io::Result<File> {
    regular(OpenOptions::new().read(true), path, links)
}

/// As [`open`], for reading and writing.
///
/// # Errors
/// As [`open`].
pub fn modify(path: &Path, links: Links) -> io::Result<File> {
    regular(OpenOptions::new().read(true).write(true), path, links)
}

/// The whole content.
///
/// # Errors
/// As [`open`], and where there is more.
pub fn read(path: &Path, links: Links, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, links)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(Refused::TooLong { bytes_max }.into()),
        false => Ok(bytes),
    }
}

/// So many bytes of the beginning.
///
/// # Errors
/// As [`open`].
pub fn head(path: &Path, links: Links, bytes: u64) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    open(path, links)?.take(bytes).read_to_end(&mut head)?;
    Ok(head)
}

/// So many bytes of the end.
///
/// # Errors
/// As [`open`].
pub fn tail(path: &Path, links: Links, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path, links)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut tail = Vec::new();
    file.take(bytes).read_to_end(&mut tail)?;
    Ok(tail)
}

fn regular(options: &mut OpenOptions, path: &Path, links: Links) -> io::Result<File> {
    let follow = match links {
        Links::Refused => libc::O_NOFOLLOW,
        Links::Followed => 0,
    };
    // A regular file is read as without the flag.
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | follow).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) if links == Links::Refused => Refused::NotRegular(Kind::Link).into(),
        // Of a socket, or a FIFO that nobody reads.
        Some(libc::ENXIO) => Refused::NotRegular(Kind::Other).into(),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    match kind_of(metadata.file_type()) {
        Kind::File => Ok(file),
        other => Err(Refused::NotRegular(other).into()),
    }
}
