//! The end of a log, for messages.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// How much of the end of a log is read: the stacks of a few workers, 9 kB each with Lightning.
const TAIL_BYTES: u64 = 64 * 1024;

/// The end of a log; empty if it cannot be read.
pub(crate) fn tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    // It only adds detail to a message.
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}
