//! Copies of inputs on a disk of this machine, for those that lie on another.
//!
//! ```text
//! DIR/heterosis-inputs-UID/RUN      of one run directory, so of one engine
//!     copy-N/                       a directory, or a file below it by its name
//!     copy-N.manifest               what it was copied from; written last
//! ```
//!
//! The least recently used are removed where others need the space, but for those that somebody
//! holds. Which a lease holds is noted in its directory, for the next engine.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use het_files::{Kind, Links, kind, list, remove_tree, replace_private};
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::statfs::{FsType, statfs};
use nix::sys::statvfs::statvfs;
use nix::sys::time::TimeSpec;
use nix::unistd::getuid;
use serde::{Deserialize, Serialize};

use super::files::{InputFile, files_of};

const MANIFEST_SUFFIX: &str = ".manifest";
const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Bytes that are copied at once.
const BLOCK_BYTES: usize = 1 << 20;
/// Of the space that would be free without copies, the part that is left to others.
const LEFT_PART: u64 = 2;
/// Directories that are listed here.
const COPIES_MAX: usize = 10_000;

/// Magic numbers of file systems whose files lie on other machines: statfs(2), and the headers of
/// those that are no part of the kernel.
const REMOTE: [u32; 14] = [
    0x0000_517B, // SMB
    0x0000_564C, // NCP
    0x0000_6969, // NFS
    0x0102_1997, // 9P
    0x00C3_6400, // Ceph
    0x0BD0_0BD0, // Lustre
    0x1983_0326, // BeeGFS
    0x4750_4653, // GPFS
    0x5346_414F, // AFS
    0x6573_5546, // FUSE, virtiofs
    0x7375_7245, // Coda
    0xFE53_4D42, // SMB 2
    0xFF53_4D42, // CIFS
    0x6B41_4653, // kAFS
];

/// Which inputs are copied to a local disk while their stage waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum CopyInputs {
    #[default]
    Never,
    /// Those on file systems of other machines.
    Remote,
    Always,
}

/// What an operator says of copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputCopies {
    pub which: CopyInputs,
    /// Where every user who has jobs may make a directory.
    pub dir: PathBuf,
}

impl Default for InputCopies {
    fn default() -> Self {
        Self { which: CopyInputs::default(), dir: PathBuf::from("/var/tmp") }
    }
}

/// The copies of one engine.
#[derive(Debug, Clone)]
pub(crate) struct Copies {
    which: CopyInputs,
    dir: PathBuf,
    /// Locked while a copy is chosen and others are removed: for long.
    choice: Arc<Mutex<Choice>>,
    held: Held,
}

#[derive(Debug, Default)]
struct Choice {
    /// What an engine that died left half made is removed.
    is_cleared: bool,
    last: u64,
}

/// Copies that are not to be removed, once for each who holds it. Never locked for long.
#[derive(Debug, Clone, Default)]
struct Held(Arc<Mutex<Vec<PathBuf>>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy that stays until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldCopy {
    copy: CopyPaths,
    held: Held,
}

/// Where a copy lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyPaths {
    dir: PathBuf,
    /// What a program opens.
    pub(crate) path: PathBuf,
}

impl HeldCopy {
    pub(crate) fn paths(&self) -> &CopyPaths {
        &self.copy
    }
}

impl Drop for HeldCopy {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        if let Some(at) = held.iter().position(|held| *held == self.copy.dir) {
            held.swap_remove(at);
        }
    }
}

impl Copies {
    pub(crate) fn new(settings: &InputCopies, run_dir: &Path) -> Self {
        let of_run = run_dir.to_string_lossy().replace(['/', '.'], "-");
        let of_user = format!("heterosis-inputs-{}", getuid());
        Self {
            which: settings.which,
            dir: settings.dir.join(of_user).join(of_run.trim_matches('-')),
            choice: Arc::default(),
            held: Held::default(),
        }
    }

    /// Whether an input is to be copied. It is asked of the file system, which may not answer.
    pub(super) fn is_wanted(&self, input: &Path) -> bool {
        match self.which {
            CopyInputs::Never => false,
            CopyInputs::Remote => is_remote(input) && !is_remote(&self.base()),
            CopyInputs::Always => true,
        }
    }

    /// A copy that is as the input is now, made unless there is one; none where there is no room
    /// for it, or `is_over` says so meanwhile.
    ///
    /// # Errors
    /// When something cannot be read or written.
    pub(super) fn bring(&self, input: &Path, is_over: &AtomicBool) -> io::Result<Option<HeldCopy>> {
        let Ok(files) = files_of(input) else { return Ok(None) };
        let bytes: u64 = files.iter().map(|file| file.bytes).sum();
        if bytes == 0 {
            return Ok(None);
        }
        let manifest = manifest(input, &files);
        self.make_dir()?;
        let (held, is_there) = {
            let mut choice = self.choose();
            self.clear_once(&mut choice);
            let (dir, is_there) = match self.found(&manifest) {
                Some(dir) => (dir, true),
                None if !self.make_room(bytes) => return Ok(None),
                None => (self.unused(&mut choice), false),
            };
            let path = match files.as_slice() {
                [file] if file.below.as_os_str().is_empty() => dir.join(name_of(input)),
                _ => dir.clone(),
            };
            (self.hold(CopyPaths { dir, path }), is_there)
        };
        let dir = &held.copy.dir;
        if is_there {
            // When it was used last.
            let (now, links) = (TimeSpec::UTIME_NOW, UtimensatFlags::NoFollowSymlink);
            utimensat(AT_FDCWD, dir, &now, &now, links)?;
            return Ok(Some(held));
        }
        let copied = copy(&files, input, dir, is_over).and_then(|()| {
            if files_of(input).as_ref() != Ok(&files) {
                return Err(io::Error::other("a file changed while it was copied"));
            }
            replace_private(&beside(dir), manifest.as_bytes())
        });
        if copied.is_err() || is_over.load(Ordering::Relaxed) {
            remove_copy(dir);
            return copied.map(|()| None);
        }
        Ok(Some(held))
    }

    /// Holds a copy that an earlier engine held; none of what is no copy.
    pub(super) fn hold_again(&self, copy: CopyPaths) -> Option<HeldCopy> {
        let is_copy = copy.dir.parent() == Some(&self.dir) && copy.path.starts_with(&copy.dir);
        is_copy.then(|| self.hold(copy))
    }

    fn hold(&self, copy: CopyPaths) -> HeldCopy {
        self.held.lock().push(copy.dir.clone());
        HeldCopy { copy, held: self.held.clone() }
    }

    fn choose(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn base(&self) -> PathBuf {
        let base = self.dir.ancestors().nth(2).unwrap_or(&self.dir);
        base.to_owned()
    }

    /// A directory of this user that nobody else can enter: others may write beside it.
    fn make_dir(&self) -> io::Result<()> {
        let of_user = self.dir.parent().unwrap_or(&self.dir);
        for dir in [of_user, &self.dir] {
            match DirBuilder::new().mode(0o700).create(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let (kind, metadata) = kind(dir)?;
            let is_own = kind == Kind::Directory && metadata.uid() == getuid().as_raw();
            if !is_own || metadata.mode() & 0o077 != 0 {
                let text = format!("`{}` is no private directory of this user", dir.display());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
        }
        Ok(())
    }

    /// The copies that are whole.
    fn all(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let entries = list(&self.dir, COPIES_MAX).entries.into_iter();
        let dirs = entries.filter(|entry| entry.kind == Kind::Directory);
        dirs.map(|entry| entry.path).filter(|dir| het_files::is_file(&beside(dir)))
    }

    fn found(&self, manifest: &str) -> Option<PathBuf> {
        self.all().find(|dir| {
            let known = het_files::read(&beside(dir), Links::Refused, MANIFEST_BYTES_MAX);
            known.is_ok_and(|known| known == manifest.as_bytes())
        })
    }

    /// Removes what is half made: nobody makes it any more.
    fn clear_once(&self, choice: &mut Choice) {
        if std::mem::replace(&mut choice.is_cleared, true) {
            return;
        }
        let whole: BTreeSet<PathBuf> = self.all().collect();
        for entry in list(&self.dir, COPIES_MAX).entries {
            if entry.kind == Kind::Directory && !whole.contains(&entry.path) {
                remove_copy(&entry.path);
            }
        }
    }

    /// Whether there is room for so many bytes, perhaps after others are removed.
    fn make_room(&self, bytes: u64) -> bool {
        let last_used = |dir: &PathBuf| fs::metadata(dir).and_then(|it| it.modified()).ok();
        let mut copies: Vec<PathBuf> = self.all().collect();
        copies.sort_by_key(last_used);
        let is_free = |dir: &PathBuf| !self.held.lock().contains(dir);
        loop {
            let taken = het_files::usage(copies.clone(), u64::MAX).bytes;
            let Ok(disk) = statvfs(&self.dir) else { return false };
            let free = disk.blocks_available().saturating_mul(disk.fragment_size());
            if taken + bytes <= (free + taken) / LEFT_PART {
                return true;
            }
            let Some(at) = copies.iter().position(is_free) else { return false };
            remove_copy(&copies.remove(at));
        }
    }

    fn unused(&self, choice: &mut Choice) -> PathBuf {
        loop {
            choice.last += 1;
            let dir = self.dir.join(format!("copy-{}", choice.last));
            if kind(&dir).is_err() {
                return dir;
            }
        }
    }
}

/// The manifest goes first: what has none is no copy.
fn remove_copy(dir: &Path) {
    let _ = fs::remove_file(beside(dir));
    let _ = remove_tree(dir);
}

fn beside(dir: &Path) -> PathBuf {
    let mut path = dir.as_os_str().to_owned();
    path.push(MANIFEST_SUFFIX);
    path.into()
}

fn name_of(input: &Path) -> &Path {
    input.file_name().map_or(input, Path::new)
}

/// Two inputs with the same manifest have the same content.
fn manifest(input: &Path, files: &[InputFile]) -> String {
    let line = |file: &InputFile| {
        let (seconds, nanoseconds) = file.modified;
        format!("{} {seconds}.{nanoseconds:09} {:?}\n", file.bytes, file.below)
    };
    format!("{input:?}\n{}", files.iter().map(line).collect::<String>())
}

/// Copies files until it is over.
fn copy(files: &[InputFile], input: &Path, to: &Path, is_over: &AtomicBool) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(to)?;
    for file in files {
        let below = match file.below.as_os_str().is_empty() {
            true => name_of(input),
            false => &file.below,
        };
        let to = to.join(below);
        if let Some(parent) = to.parent() {
            private.create(parent)?;
        }
        // One that grows must not fill the disk.
        let mut from = het_files::open(&file.path, Links::Followed)?.take(file.bytes);
        let mut into = het_files::create_private(&to)?;
        while !is_over.load(Ordering::Relaxed) {
            let bytes = from.read(&mut block)?;
            if bytes == 0 {
                break;
            }
            into.write_all(&block[..bytes])?;
        }
        // A program that writes to its inputs by mistake would change those of the next one.
        let execute = if file.is_executable { 0o100 } else { 0 };
        into.set_permissions(Permissions::from_mode(0o400 | execute))?;
    }
    Ok(())
}

/// Whether a path lies on another machine.
fn is_remote(path: &Path) -> bool {
    // Numbers of 32 bits, whatever the type is.
    let of = |FsType(number): FsType| number as u32;
    statfs(path).is_ok_and(|found| REMOTE.contains(&of(found.filesystem_type())))
}
