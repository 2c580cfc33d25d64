//! The streamed output of a stage: when its first shard is complete, and that no further one will
//! follow.
//!
//! A shard is a regular file in the stage's directory that was closed after writing or renamed into
//! place. Names that begin with `.` or `_`, or end in `.tmp` or `.part`, are incomplete files and
//! metadata, by the convention of Hadoop and its readers.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use het_files::{Kind, list, remove_tree, replace};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Exists once the stage has succeeded and its output is complete.
const SUCCESS_FILE: &str = "_SUCCESS";

/// Most entries among which one is looked for.
const ENTRIES_MAX: usize = 10_000;

/// Watches for the first shard.
#[derive(Debug)]
pub(crate) struct OutputWatch {
    dir: PathBuf,
    inotify: Inotify,
}

impl OutputWatch {
    /// # Errors
    /// When the directory cannot be watched.
    pub(crate) fn open(dir: PathBuf) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let complete = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
        inotify.add_watch(&dir, complete | AddWatchFlags::IN_ONLYDIR)?;
        Ok(Self { dir, inotify })
    }

    /// Whether there is a shard. Those of earlier attempts count, because readers read them.
    pub(crate) fn has_shard(&self) -> bool {
        let mut entries = list(&self.dir, ENTRIES_MAX).entries.into_iter();
        entries.any(|entry| entry.kind == Kind::File && is_shard(&entry.name))
    }

    /// Whether a shard was completed since the last call.
    pub(crate) fn shard_completed(&self) -> bool {
        let Ok(events) = self.inotify.read_events() else { return false };
        events.iter().any(|event| {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                return self.has_shard();
            }
            let is_file = !event.mask.contains(AddWatchFlags::IN_ISDIR);
            is_file && event.name.as_deref().is_some_and(is_shard)
        })
    }
}

impl AsFd for OutputWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Marks the output as incomplete, when the stage begins, perhaps again.
///
/// # Errors
/// When the marker of an earlier end cannot be removed.
pub(crate) fn mark_incomplete(dir: &Path) -> io::Result<()> {
    remove_tree(&dir.join(SUCCESS_FILE))
}

/// Marks the output as complete: readers stop waiting for shards.
///
/// # Errors
/// When the marker cannot be written.
pub(crate) fn mark_complete(dir: &Path) -> io::Result<()> {
    replace(&dir.join(SUCCESS_FILE), b"")
}

fn is_shard(name: &OsStr) -> bool {
    name.to_str().is_none_or(|name| {
        let hidden = name.starts_with('.') || name.starts_with('_');
        let partial = name.ends_with(".tmp") || name.ends_with(".part");
        !hidden && !partial
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_a_shard() {
        let check = |name: &str, expected: bool| {
            assert_eq!(is_shard(OsStr::new(name)), expected, "{name}");
        };
        check("shard-00001.bin", true);
        check(".shard-00001.bin", false);
        check("shard-00001.tmp", false);
        check("shard-00001.part", false);
        check(SUCCESS_FILE, false);
    }

    #[test]
    fn a_shard_counts_once_it_is_complete() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let watch = OutputWatch::open(dir.path().to_owned()).expect("inotify works");
        let file = fs::File::create(dir.path().join("a")).expect("a file can be made");
        fs::create_dir(dir.path().join("checkpoints")).expect("a directory can be made");
        assert!(!watch.shard_completed(), "it is being written");
        drop(file);
        assert!(watch.shard_completed());
        assert!(!watch.shard_completed(), "it was reported");
        fs::write(dir.path().join(".b"), "").expect("a file can be written");
        assert!(!watch.shard_completed(), "it is hidden");
        fs::rename(dir.path().join(".b"), dir.path().join("b")).expect("a file can be renamed");
        assert!(watch.shard_completed());
        assert!(watch.has_shard());
    }

    #[test]
    fn the_marker_is_written_and_removed() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        mark_incomplete(dir.path()).expect("nothing is there to be removed");
        mark_complete(dir.path()).expect("the marker can be written");
        assert!(dir.path().join(SUCCESS_FILE).exists());
        mark_incomplete(dir.path()).expect("the marker can be removed");
        assert!(!dir.path().join(SUCCESS_FILE).exists());
    }
}
