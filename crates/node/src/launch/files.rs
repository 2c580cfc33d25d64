//! The files that a rank begins with: what it reads as standard input, and what its output goes to.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use het_core::{Failure, LogFiles, LogRule, WriteMode};
use het_engine::fill;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::failure::{cannot_write, failure};
use super::spec::GangSpec;

/// What a rank's output goes to.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) stdout: OwnedFd,
    /// The same as `stdout` where there is none.
    pub(super) stderr: Option<OwnedFd>,
}

/// Opens what a rank writes to; nothing where its output is discarded.
pub(super) fn output(spec: &GangSpec, rank: u32) -> Result<Option<Output>, Failure> {
    match (&spec.launch.log_files, spec.launch.log) {
        (Some(files), _) => files_of_user(spec, files, rank).map(Some),
        (None, LogRule::EachRank) => {
            let path = spec.log_file(rank);
            let log = OpenOptions::new().create(true).append(true).open(&path);
            let stdout = log.map_err(|error| cannot_write(rank, &path, &error))?.into();
            Ok(Some(Output { stdout, stderr: None }))
        }
        (None, LogRule::Discard) => Ok(None),
    }
}

/// The user's own files, and links to them where logs are looked for.
fn files_of_user(spec: &GangSpec, files: &LogFiles, rank: u32) -> Result<Output, Failure> {
    let open = |pattern: &str, link: PathBuf| -> Result<OwnedFd, Failure> {
        let name = fill(pattern, spec.placeholders(rank));
        let path = Path::new(&spec.launch.cwd).join(name);
        // Ranks may share it, and a later attempt goes on where an earlier one ended.
        let is_first = rank == 0 && spec.attempt == 1;
        let truncates = is_first && files.mode == WriteMode::Truncate;
        let file = create(&path, truncates).map_err(|error| cannot_write(rank, &path, &error))?;
        place_link(&path, &link).map_err(|error| cannot_write(rank, &link, &error))?;
        Ok(file.into())
    };
    Ok(Output {
        stdout: open(&files.stdout, spec.log_file(rank))?,
        stderr: files.stderr.as_ref().map(|file| open(file, spec.error_log(rank))).transpose()?,
    })
}

/// A FIFO of that name must not make the engine wait for its reader.
fn create(path: &Path, truncates: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path)?;
    if truncates && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    blocking(file)
}

fn place_link(path: &Path, link: &Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(path, link)
}

/// Opens what a rank reads as standard input; nothing where there is nothing to read. A pipe has
/// one reader: the first rank.
pub(super) fn input(spec: &GangSpec, rank: u32) -> Result<Option<OwnedFd>, Failure> {
    let Some(path) = &spec.launch.stdin else { return Ok(None) };
    let path = Path::new(&spec.launch.cwd).join(path);
    let open = || -> io::Result<Option<OwnedFd>> {
        let flags = OFlag::O_NONBLOCK.bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        let is_plain = file.metadata()?.is_file();
        if rank > 0 && !is_plain {
            return Ok(None);
        }
        Ok(Some(blocking(file)?.into()))
    };
    match open() {
        Ok(file) => Ok(file),
        // It was the standard input of a command that is gone.
        Err(_) if path.starts_with("/proc") => Ok(None),
        Err(error) => {
            let text = format!(
                "standard input `{}` cannot be read: {error}, hint: name a file that is there",
                path.display()
            );
            Err(failure(rank, Failure::CANNOT_RUN, text))
        }
    }
}

fn blocking(file: File) -> io::Result<File> {
    let flags = OFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK))?;
    Ok(file)
}
