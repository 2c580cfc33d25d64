//! Reads and removes the directory of a cgroup and of those inside it.

use std::fs;
use std::path::{Path, PathBuf};

/// The file of a cgroup that lists its processes, and to which one writes `0` to enter.
pub(super) const PROCS: &str = "cgroup.procs";

pub(super) fn members(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join(PROCS)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Cgroups directly inside a cgroup.
pub(super) fn children(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path())
}

/// Removes a cgroup and those inside it. What is in use is left to the next supervisor.
pub(super) fn remove_tree(dir: &Path) {
    children(dir).for_each(|inside| remove_tree(&inside));
    let _ = fs::remove_dir(dir);
}

pub(super) fn members_of_tree(dir: &Path) -> Vec<i32> {
    let mut all = members(dir);
    children(dir).for_each(|inside| all.extend(members_of_tree(&inside)));
    all
}
