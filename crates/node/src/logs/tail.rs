//! The end of a log, for messages.

use std::path::Path;

use het_files::Links;

/// How much of the end of a log is read: the stacks of a few workers, 9 kB each with Lightning.
const TAIL_BYTES: u64 = 64 * 1024;

/// The end of a log, which may be a link to a file of its user; empty if it cannot be read: it only
/// adds detail to a message.
pub(crate) fn tail(path: &Path) -> String {
    let bytes = het_files::tail(path, Links::Followed, TAIL_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
