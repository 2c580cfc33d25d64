//! Machines in text files: expanded below a temporary directory that stands for `/`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Expands `tests/trees/NAME.txt`. The machine is gone when the value is dropped.
pub fn recorded(name: &str) -> TempDir {
    let trees = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../devices/tests/trees");
    let path = trees.join(format!("{name}.txt"));
    expand(&fs::read_to_string(path).expect("the tree exists"))
}

pub fn expand(text: &str) -> TempDir {
    // A tree is a thousand small files: in memory that takes milliseconds, on a disk seconds.
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let root = root.expect("a temporary directory");
    let mut directory = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            directory = section.to_owned();
            continue;
        }
        for line in repeated(line) {
            write(&root.path().join(&directory), &line);
        }
    }
    root
}

fn write(directory: &Path, line: &str) {
    let place = |path: &str| {
        let path = directory.join(path.trim());
        let parent = path.parent().expect("a file lies in a directory");
        fs::create_dir_all(parent).expect("the tree is writable");
        path
    };
    if let Some((path, target)) = line.split_once(" -> ") {
        symlink(target.trim(), place(path)).expect("the tree is writable");
    } else {
        let (path, content) = line.split_once(" =").expect("`path = content`");
        let content = content.trim_start().replace("\\n", "\n").replace("\\t", "\t");
        fs::write(place(path), content + "\n").expect("the tree is writable");
    }
}

/// `cpu{0-2}/x = {}` → three lines.
fn repeated(line: &str) -> Vec<String> {
    let range = || {
        let (before, rest) = line.split_once('{')?;
        let (range, after) = rest.split_once('}')?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let one =
            |number: u32| format!("{before}{number}{}", after.replace("{}", &number.to_string()));
        Some((first..=last).map(one).collect())
    };
    range().unwrap_or_else(|| vec![line.to_owned()])
}
