//! Reads and removes the directory of a cgroup and of those inside it.

use std::fs;
use std::path::{Path, PathBuf};

/// Most directories of a tree that are looked at: whoever made more is not waited for.
const TREE_MAX: usize = 100_000;

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

/// A cgroup and those inside it, each before those inside it. Their owner decides how deep they
/// are: nothing here recurses.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut next = 0;
    while next < all.len() && all.len() < TREE_MAX {
        all.extend(children(&all[next]).take(TREE_MAX));
        next += 1;
    }
    all
}

/// Removes a cgroup and those inside it. What is in use is left to the next supervisor.
pub(super) fn remove_tree(dir: &Path) {
    for inside in tree(dir).into_iter().rev() {
        let _ = fs::remove_dir(inside);
    }
}

pub(super) fn members_of_tree(dir: &Path) -> Vec<i32> {
    tree(dir).iter().flat_map(|dir| members(dir)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_as_deep_as_paths_may_be_is_read_and_removed() {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        let top = root.path().join("top");
        let deepest: PathBuf = top.join(["d"; 1_900].iter().collect::<PathBuf>());
        fs::create_dir_all(&deepest).expect("the path is short enough");
        fs::write(deepest.join(PROCS), "7\n").expect("it is ours");
        assert_eq!(members_of_tree(&top), [7]);
        fs::remove_file(deepest.join(PROCS)).expect("it is ours");
        remove_tree(&top);
        assert!(!top.exists());
    }
}
