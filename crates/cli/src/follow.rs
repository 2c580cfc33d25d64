//! Following a log while its program writes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anstream::eprintln;

/// The log of the only rank of a command's only stage.
pub fn first_log(workdir: &str) -> PathBuf {
    Path::new(workdir).join("logs/main/attempt-1/rank-0.log")
}

/// Copies what a program writes to standard output, from where the last copy ended.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    file: Option<File>,
}

impl Follower {
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    /// Copies what is new; a file that does not exist yet has nothing new.
    ///
    /// # Errors
    /// When reading or writing fails.
    pub fn copy(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        // A log that grew too long loses its beginning: what is new then nobody can tell.
        if file.metadata()?.len() < file.stream_position()? {
            file.seek(SeekFrom::End(0))?;
            eprintln!("… the log was cut at its beginning: `het logs` has what is left of it");
        }
        let mut new = Vec::new();
        file.read_to_end(&mut new)?;
        let mut out = io::stdout().lock();
        out.write_all(&new)?;
        out.flush()
    }
}
