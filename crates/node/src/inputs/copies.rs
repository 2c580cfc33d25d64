//! Copies of inputs on a disk of this machine, for those that lie on another.
//!
//! ```text
//! DIR/heterosis-inputs-UID/RUN      of one run directory, so of one engine
//!     copy-N/NAME                   a directory or a file, by its name; N is never used again
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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use het_files::{Kind, Links, kind, list, remove_tree, replace_private};
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::statfs::{FsType, statfs};
use nix::sys::statvfs::statvfs;
use nix::sys::time::TimeSpec;
use nix::unistd::getuid;
use serde::{Deserialize, Serialize};

use super::BLOCK_BYTES;
use super::files::{InputFile, files_of};

const MANIFEST_SUFFIX: &str = ".manifest";
const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Of the space that would be free without copies, the part that is left to others.
const LEFT_PART: u64 = 2;
/// Directories that are listed here.
const COPIES_MAX: usize = 10_000;
/// Of a copy, more than it has.
const FILES_MAX: u64 = 100_000;
/// How often who waits for somebody else's copy looks whether that is still of use.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
    /// A copy is being made no more.
    made: Arc<Condvar>,
    held: Held,
}

#[derive(Debug, Default)]
struct Choice {
    /// What an engine that died left half made is removed.
    is_cleared: bool,
    /// Manifests and sizes of copies that are being made.
    pending: Vec<(String, u64)>,
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
        // No two run directories have the same.
        let of_run = run_dir.to_string_lossy().replace('%', "%25").replace('/', "%2F");
        let of_user = format!("heterosis-inputs-{}", getuid());
        Self {
            which: settings.which,
            dir: settings.dir.join(of_user).join(of_run),
            choice: Arc::default(),
            made: Arc::default(),
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
    /// for it, it cannot be copied as a whole, or `is_over` says so meanwhile.
    ///
    /// # Errors
    /// When something cannot be read or written.
    pub(super) fn bring(&self, input: &Path, is_over: &AtomicBool) -> io::Result<Option<HeldCopy>> {
        let Ok(files) = files_of(input) else { return Ok(None) };
        let bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
        if bytes == 0 {
            return Ok(None);
        }
        let manifest = manifest(input, &files);
        self.make_dir()?;
        let mut choice = self.choose();
        self.clear_once(&mut choice);
        while choice.pending.iter().any(|(pending, _)| *pending == manifest) {
            if is_over.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let waited = self.made.wait_timeout(choice, LOOK_EVERY);
            choice = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(dir) = self.found(&manifest, input, &files) {
            let held = self.hold(dir, input);
            // When it was used last.
            let (now, links) = (TimeSpec::UTIME_NOW, UtimensatFlags::NoFollowSymlink);
            utimensat(AT_FDCWD, &held.copy.dir, &now, &now, links)?;
            return Ok(Some(held));
        }
        if !self.make_room(bytes, &choice) {
            return Ok(None);
        }
        choice.pending.push((manifest.clone(), bytes));
        let held = self.hold(self.unused(), input);
        drop(choice);
        let made = self.make(&held.copy, &files, (input, &manifest), is_over);
        self.choose().pending.retain(|(pending, _)| *pending != manifest);
        self.made.notify_all();
        Ok(made?.then_some(held))
    }

    /// Whether a copy was made, and is whole.
    fn make(
        &self,
        to: &CopyPaths,
        files: &[InputFile],
        (input, manifest): (&Path, &str),
        is_over: &AtomicBool,
    ) -> io::Result<bool> {
        let made = copy(files, &to.path, is_over).and_then(|()| {
            if files_of(input).as_deref() != Ok(files) {
                return Err(io::Error::other("a file changed while it was copied"));
            }
            if is_over.load(Ordering::Relaxed) {
                return Ok(false);
            }
            replace_private(&beside(&to.dir), manifest.as_bytes()).map(|()| true)
        });
        if !matches!(made, Ok(true)) {
            remove_copy(&to.dir);
        }
        made
    }

    /// Holds a copy that an earlier engine held; none of what is no copy.
    pub(super) fn hold_again(&self, copy: CopyPaths) -> Option<HeldCopy> {
        let is_copy = copy.dir.parent() == Some(&self.dir) && copy.path.starts_with(&copy.dir);
        is_copy.then(|| self.hold_paths(copy))
    }

    fn hold(&self, dir: PathBuf, input: &Path) -> HeldCopy {
        self.hold_paths(CopyPaths { path: dir.join(name_of(input)), dir })
    }

    fn hold_paths(&self, copy: CopyPaths) -> HeldCopy {
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

    /// One of which nothing was removed since.
    fn found(&self, manifest: &str, input: &Path, files: &[InputFile]) -> Option<PathBuf> {
        self.all().find(|dir| {
            let known = het_files::read(&beside(dir), Links::Refused, MANIFEST_BYTES_MAX);
            let is_there = |file: &InputFile| {
                kind(&place(&dir.join(name_of(input)), file))
                    .is_ok_and(|(kind, it)| kind == Kind::File && it.len() == file.bytes)
            };
            known.is_ok_and(|known| known == manifest.as_bytes()) && files.iter().all(is_there)
        })
    }

    /// Removes what is half made or half removed: nobody works at it any more.
    fn clear_once(&self, choice: &mut Choice) {
        if std::mem::replace(&mut choice.is_cleared, true) {
            return;
        }
        let whole: BTreeSet<PathBuf> = self.all().flat_map(|dir| [beside(&dir), dir]).collect();
        for entry in list(&self.dir, COPIES_MAX).entries {
            if !whole.contains(&entry.path) {
                let _ = remove_tree(&entry.path);
            }
        }
    }

    /// Whether there is room for so many bytes, perhaps after others are removed.
    fn make_room(&self, bytes: u64, choice: &Choice) -> bool {
        let last_used = |dir: &PathBuf| fs::metadata(dir).and_then(|it| it.modified()).ok();
        let mut copies: Vec<PathBuf> = self.all().collect();
        copies.sort_by_key(last_used);
        let held = self.held.lock().clone();
        let size = |dir: &PathBuf| het_files::usage([dir.clone()], FILES_MAX).bytes;
        let (held, unused): (Vec<_>, Vec<_>) = copies
            .into_iter()
            .map(|dir| (size(&dir), dir))
            .partition(|(_, dir)| held.contains(dir));
        let pending = choice.pending.iter().map(|(_, bytes)| *bytes);
        let staying = held.iter().map(|(bytes, _)| *bytes).chain(pending).chain([bytes]);
        let staying = staying.fold(0_u64, u64::saturating_add);
        let Ok(disk) = statvfs(&self.dir) else { return false };
        let free = disk.blocks_available().saturating_mul(disk.fragment_size());
        let there = held.iter().chain(&unused).map(|(bytes, _)| *bytes).sum::<u64>();
        let Some(removed) = to_remove(staying, &unused, free.saturating_add(there)) else {
            return false;
        };
        unused[..removed].iter().for_each(|(_, dir)| remove_copy(dir));
        true
    }

    fn unused(&self) -> PathBuf {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut number = since.unwrap_or_default().as_nanos();
        loop {
            let dir = self.dir.join(format!("copy-{number}"));
            if kind(&dir).is_err() {
                return dir;
            }
            number += 1;
        }
    }
}

/// How many copies, the first ones of `unused`, are to be removed so that the others and what stays
/// take up no more than their part of what would be free without copies; none where that does not
/// help.
fn to_remove(staying: u64, unused: &[(u64, PathBuf)], free: u64) -> Option<usize> {
    let room = (free / LEFT_PART).checked_sub(staying)?;
    let mut left = unused.iter().map(|(bytes, _)| *bytes).sum::<u64>();
    let mut removed = 0;
    while left > room {
        left -= unused[removed].0;
        removed += 1;
    }
    Some(removed)
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
    // One such as `..` has none.
    Path::new(input.file_name().unwrap_or("input".as_ref()))
}

/// Which files an input has, where they really lie, and when they changed.
fn manifest(input: &Path, files: &[InputFile]) -> String {
    let line = |file: &InputFile| {
        let InputFile { path, below, bytes, modified, changed, id: (_, number), .. } = file;
        format!("{bytes} {modified:?} {changed:?} {number} {below:?} {path:?}\n")
    };
    format!("{input:?}\n{}", files.iter().map(line).collect::<String>())
}

/// Where a copy has a file.
fn place(copy: &Path, file: &InputFile) -> PathBuf {
    match file.below.as_os_str().is_empty() {
        true => copy.to_owned(),
        false => copy.join(&file.below),
    }
}

/// Copies files until it is over. They are on the disk afterwards.
fn copy(files: &[InputFile], to: &Path, is_over: &AtomicBool) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o700);
    for file in files {
        let to = place(to, file);
        if let Some(parent) = to.parent() {
            private.create(parent)?;
        }
        // One that grows must not fill the disk.
        let mut from = het_files::open(&file.path, Links::Followed)?.take(file.bytes);
        let mut into = het_files::create_private(&to)?;
        loop {
            if is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            let bytes = from.read(&mut block)?;
            if bytes == 0 {
                break;
            }
            into.write_all(&block[..bytes])?;
        }
        // A program that writes to its inputs by mistake would change those of the next one.
        let execute = if file.is_executable { 0o100 } else { 0 };
        into.set_permissions(Permissions::from_mode(0o400 | execute))?;
        into.sync_all()?;
    }
    Ok(())
}

/// Whether a path lies on another machine.
fn is_remote(path: &Path) -> bool {
    // Numbers of 32 bits, whatever the type is.
    let of = |FsType(number): FsType| number as u32;
    statfs(path).is_ok_and(|found| REMOTE.contains(&of(found.filesystem_type())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_are_removed_and_nothing_in_vain() {
        let unused: Vec<_> = [10, 20, 30].map(|bytes| (bytes, PathBuf::new())).into();
        let check = |staying: u64, free: u64| to_remove(staying, &unused, free);
        assert_eq!(check(40, 200), Some(0));
        assert_eq!(check(45, 200), Some(1));
        assert_eq!(check(51, 200), Some(2));
        assert_eq!(check(100, 200), Some(3));
        assert_eq!(check(101, 200), None);
        assert_eq!(check(u64::MAX, 200), None);
    }
}
