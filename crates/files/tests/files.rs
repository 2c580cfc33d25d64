//! What is opened, and what is removed, of what a hostile program can make.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use het_files::{Links, Listing, head, list, modify, open, read, remove_tree, replace, tail};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

fn refusal(error: io::Error) -> String {
    error.to_string()
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

#[test]
fn only_regular_files_are_opened() {
    let dir = dir();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "text").expect("it can be written");
    mkfifo(&at("fifo"), Mode::S_IRWXU).expect("it can be made");
    symlink(at("file"), at("link")).expect("it can be made");
    symlink("/dev/zero", at("endless")).expect("it can be made");
    symlink(at("loop"), at("loop")).expect("it can be made");
    fs::create_dir(at("dir")).expect("it can be made");
    let _socket = UnixListener::bind(at("socket")).expect("it can be made");
    let check = |name: &str, links, expected: &str| {
        for opened in [open(&at(name), links), modify(&at(name), links)] {
            let text = opened.map_or_else(refusal, |_| "opened".to_owned());
            assert!(text.contains(expected), "{name}: {text}");
        }
    };
    check("file", Links::Refused, "opened");
    check("link", Links::Followed, "opened");
    check("link", Links::Refused, "it is a symbolic link, not a regular file");
    check("loop", Links::Followed, "symbolic links");
    check("fifo", Links::Refused, "it is a FIFO, socket or device, not a regular file");
    check("endless", Links::Followed, "it is a FIFO, socket or device, not a regular file");
    check("socket", Links::Refused, "it is a FIFO, socket or device, not a regular file");
    check("dir", Links::Refused, "irectory");
    check("nothing", Links::Refused, "No such file");
}

#[test]
fn no_more_is_read_than_was_asked_for() {
    let dir = dir();
    let path = dir.path().join("sparse");
    let file = File::create(&path).expect("it can be made");
    file.set_len(1 << 40).expect("it takes no space");
    assert_eq!(head(&path, Links::Refused, 3).expect("it is a file"), [0; 3]);
    assert_eq!(tail(&path, Links::Refused, 3).expect("it is a file"), [0; 3]);
    let refused = read(&path, Links::Refused, 10).expect_err("it is long");
    assert_eq!(refused.to_string(), "it has more than 10 bytes");
    for index in 0..5 {
        fs::write(dir.path().join(index.to_string()), "").expect("it can be written");
    }
    let Listing { entries, is_cut, is_partial } = list(dir.path(), 4);
    assert!(!is_partial);
    assert_eq!((entries.len(), is_cut), (4, true));
    assert!(!list(dir.path(), 6).is_cut);
}

#[test]
fn what_lies_where_a_draft_goes_is_not_written_to() {
    let dir = dir();
    let (path, victim) = (dir.path().join("report.json"), dir.path().join("victim"));
    fs::write(&victim, "kept").expect("it can be written");
    symlink(&victim, dir.path().join("report.tmp")).expect("it can be made");
    replace(&path, b"new").expect("it can be written");
    mkfifo(&dir.path().join("report.tmp"), Mode::S_IRWXU).expect("it can be made");
    replace(&path, b"newer").expect("it can be written");
    assert_eq!(fs::read(&path).expect("it is there"), b"newer");
    assert_eq!(fs::read(&victim).expect("it is there"), b"kept");
}

/// Directories in directories, whose paths are longer than paths can be.
fn deep(top: &Path, levels: usize) {
    let mut dir = top.to_owned();
    for level in 0..levels {
        // From the inside out: the longest path is that of two levels.
        let next = top.join(format!("level-{level}"));
        fs::create_dir(&next).expect("it can be made");
        if level > 0 {
            fs::rename(&dir, next.join("d")).expect("it can be moved");
        }
        dir = next;
    }
}

#[test]
fn everything_is_removed_and_nothing_outside() {
    let dir = dir();
    let (top, outside) = (dir.path().join("top"), dir.path().join("outside"));
    fs::create_dir_all(top.join("a/b/c")).expect("it can be made");
    fs::create_dir_all(outside.join("kept")).expect("it can be made");
    symlink(&outside, top.join("a/link")).expect("it can be made");
    mkfifo(&top.join("a/b/fifo"), Mode::S_IRWXU).expect("it can be made");
    fs::write(top.join("a/b/c/.removed-0"), "").expect("it can be written");
    deep(&top, 5_000);
    fs::set_permissions(top.join("a/b"), Permissions::from_mode(0o0)).expect("it is ours");
    remove_tree(&top).expect("all of it is ours");
    assert!(!top.exists() && outside.join("kept").exists());
    remove_tree(&top).expect("nothing is there");
}
