//! What directories take up of a disk.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::{Kind, kind, list};

/// Unit of a file's allocated space (stat(2)), whatever the file system's.
const BLOCK_UNIT_BYTES: u64 = 512;

/// What lies in directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Directories and files; links count as what they are.
    pub files: u64,
    /// Allocated on the disk: holes of a file take up nothing, and a file with several names counts
    /// once.
    pub bytes: u64,
}

/// What these directories take up, themselves included, after at most so many files. None is to lie
/// in another.
pub fn usage(dirs: impl IntoIterator<Item = PathBuf>, files_max: u64) -> Usage {
    let mut usage = Usage::default();
    let mut linked = BTreeSet::new();
    let mut left: Vec<PathBuf> = dirs.into_iter().collect();
    while let Some(path) = left.pop() {
        if usage.files >= files_max {
            break;
        }
        let Ok((found, metadata)) = kind(&path) else { continue };
        usage.files += 1;
        let is_linked = found != Kind::Directory && metadata.nlink() > 1;
        if !is_linked || linked.insert((metadata.dev(), metadata.ino())) {
            usage.bytes += metadata.blocks() * BLOCK_UNIT_BYTES;
        }
        if found == Kind::Directory {
            let room = usize::try_from(files_max - usage.files).unwrap_or(usize::MAX);
            left.extend(list(&path, room).entries.into_iter().map(|entry| entry.path));
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_linked_counts_once_and_holes_take_up_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let deep = dir.path().join("a/b");
        fs::create_dir_all(&deep).expect("it can be made");
        let all = || usage([dir.path().to_owned()], u64::MAX);
        let empty = all();
        assert_eq!(empty.files, 3);
        fs::write(deep.join("data"), vec![1; 1 << 20]).expect("it can be written");
        fs::hard_link(deep.join("data"), dir.path().join("again")).expect("it can be linked");
        symlink("/", dir.path().join("root")).expect("it can be linked");
        let hole = fs::File::create(dir.path().join("hole")).expect("it can be made");
        hole.set_len(1 << 40).expect("it can be grown");
        let full = all();
        assert_eq!(full.files, empty.files + 4);
        let grown = full.bytes - empty.bytes;
        assert!((1 << 20..2 << 20).contains(&grown), "{grown} bytes");
        assert_eq!(usage([dir.path().join("nothing")], u64::MAX), Usage::default());
        assert_eq!(usage([dir.path().to_owned()], 2).files, 2);
    }
}
