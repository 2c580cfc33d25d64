//! Reading the kernel's files below a root. An error of any kind reads as absence: sysfs files come
//! and go.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

/// `/proc/cpuinfo` of 1,024 cores is about 1.5 MiB; no other file read here is longer.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// May this process use a device node?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Granted,
    Denied,
    Absent,
}

/// Files below a directory that stands for `/`.
#[derive(Debug, Clone)]
pub(crate) struct SystemFiles {
    root: PathBuf,
}

impl SystemFiles {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The file's text without surrounding white space; bytes that are not UTF-8 are replaced.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let path = self.root.join(path);
        // Opening a pipe or a device could wait for ever or act on it.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub(crate) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// A number as sysfs writes PCI ids: `0x10de`.
    pub(crate) fn hex(&self, path: &str) -> Option<u32> {
        u32::from_str_radix(self.text(path)?.strip_prefix("0x")?, 16).ok()
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Where a symbolic link points, as written.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.root.join(path)).ok()?.into_os_string().into_string().ok()
    }

    /// The last component of a symbolic link's target.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        self.link(path)?.rsplit('/').next().map(str::to_owned)
    }

    /// Whether this process may read and write `path`.
    pub(crate) fn access(&self, path: &str) -> Access {
        match access(&self.root.join(path), AccessFlags::R_OK | AccessFlags::W_OK) {
            Ok(()) => Access::Granted,
            Err(Errno::EACCES | Errno::EPERM | Errno::EROFS) => Access::Denied,
            Err(_) => Access::Absent,
        }
    }
}
