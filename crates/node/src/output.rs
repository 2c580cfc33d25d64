//! The output of a stage that others follow: when the first shard of it is complete, and that no
//! further one will come.
//!
//! A shard is a regular file in the stage's directory that was closed after writing or renamed into
//! place. Names that begin with `.` or `_`, or end in `.tmp` or `.part`, are of what is being
//! written and of notes about it, as Hadoop and its readers have it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// There once the stage has succeeded: what it published is all there is.
pub(crate) const END: &str = "_SUCCESS";

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

    /// Whether a shard lies there: one of an earlier attempt counts, for its readers read it.
    pub(crate) fn holds_any(&self) -> bool {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .any(|entry| is_shard(&entry.file_name()))
    }

    /// Whether one was completed since this was asked last.
    pub(crate) fn heard_of_any(&self) -> bool {
        let Ok(events) = self.inotify.read_events() else { return false };
        events.iter().any(|event| {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                return self.holds_any();
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

/// The stage begins, perhaps again: there may be more to come.
///
/// # Errors
/// When the mark of an earlier end cannot be removed.
pub(crate) fn reopen(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(END)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Tells readers that no further shard will come.
///
/// # Errors
/// When the mark cannot be written.
pub(crate) fn close(dir: &Path) -> io::Result<()> {
    fs::write(dir.join(END), "")
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
        check(END, false);
    }

    #[test]
    fn a_shard_counts_once_it_is_complete() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let output_watch = OutputWatch::open(dir.path().to_owned()).expect("inotify works");
        let file = fs::File::create(dir.path().join("a")).expect("a file can be made");
        fs::create_dir(dir.path().join("checkpoints")).expect("a directory can be made");
        assert!(!output_watch.heard_of_any(), "it is being written");
        drop(file);
        assert!(output_watch.heard_of_any());
        assert!(!output_watch.heard_of_any(), "it was told");
        fs::write(dir.path().join(".b"), "").expect("a file can be written");
        assert!(!output_watch.heard_of_any(), "it is hidden");
        fs::rename(dir.path().join(".b"), dir.path().join("b")).expect("a file can be renamed");
        assert!(output_watch.heard_of_any());
        assert!(output_watch.holds_any());
    }

    #[test]
    fn the_end_is_written_down_and_taken_back() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        reopen(dir.path()).expect("nothing is there to be removed");
        close(dir.path()).expect("the mark can be written");
        assert!(dir.path().join(END).exists());
        reopen(dir.path()).expect("the mark can be removed");
        assert!(!dir.path().join(END).exists());
    }
}
