//! Removes what programs left in directories of their leases, which may be a million files, on a
//! thread of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use het_files::{Kind, list, remove_tree};

/// Most entries of a directory that is removed at once.
const AT_ONCE_MAX: usize = 16;
/// How the names of directories begin that are to be removed.
const PREFIX: &str = "removed-";

/// A thread that is started when there is something to remove.
#[derive(Debug, Default)]
pub(crate) struct Remover {
    thread: Option<Sender<PathBuf>>,
    number: u64,
}

impl Remover {
    /// Removes what an engine that died had still to remove.
    pub(crate) fn new(run_dir: &Path) -> Self {
        let mut remover = Self::default();
        let left = list(run_dir, usize::MAX).entries.into_iter();
        let left = left.filter(|entry| entry.name.to_string_lossy().starts_with(PREFIX));
        left.for_each(|entry| remover.send(entry.path));
        remover
    }

    /// Removes a directory of `run_dir`, or a file: at once where it is small. Another may have its
    /// name at once.
    pub(crate) fn remove(&mut self, run_dir: &Path, path: &Path) {
        let listing = list(path, AT_ONCE_MAX);
        let is_small = listing.entries.iter().all(|entry| entry.kind != Kind::Directory);
        if is_small && !listing.is_cut {
            // A later engine tries again.
            let _ = remove_tree(path);
            return;
        }
        self.number += 1;
        let aside = run_dir.join(format!("{PREFIX}{}-{}", std::process::id(), self.number));
        match fs::rename(path, &aside) {
            Ok(()) => self.send(aside),
            Err(_) => drop(remove_tree(path)),
        }
    }

    fn send(&mut self, path: PathBuf) {
        let thread = self.thread.get_or_insert_with(|| {
            let (sender, paths) = channel();
            let run = move || paths.iter().for_each(|path: PathBuf| drop(remove_tree(&path)));
            // Without a thread the next engine removes it.
            let _ = thread::Builder::new().name("remover".to_owned()).spawn(run);
            sender
        });
        let _ = thread.send(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_directory_is_out_of_the_way_at_once_and_gone_in_the_end() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let lease = dir.path().join("lease-1");
        let fill = || {
            let make = |number: u32| fs::create_dir_all(lease.join(number.to_string()));
            (0..100).try_for_each(make).expect("directories can be made");
        };
        fill();
        let mut remover = Remover::new(dir.path());
        remover.remove(dir.path(), &lease);
        assert!(!lease.exists());
        fill();
        fs::rename(&lease, dir.path().join("removed-1-1")).expect("it can be moved");
        drop((remover, Remover::new(dir.path())));
        while fs::read_dir(dir.path()).expect("it is there").next().is_some() {
            thread::yield_now();
        }
    }
}
