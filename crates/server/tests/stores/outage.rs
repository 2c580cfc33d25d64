//! A disk that is full, read-only or broken for a while: a batch that was refused never was, all
//! others are there, and the store goes on by itself.

use het_control::Log;
use het_core::{Event, Time};
use het_server::EventStore;
use het_testkit::build;
use nix::errno::Errno;

use crate::disk::{Handle, Sync, drawn};
use crate::torn::batch;

const RUNS: u64 = 300;
const BATCHES: u64 = 60;

/// The disk fails and is mended again and again.
fn check(seed: u64) -> usize {
    let errno = [Errno::ENOSPC, Errno::EDQUOT, Errno::EROFS, Errno::EIO][seed as usize % 4];
    let disk = Handle::new(Vec::new(), Sync::Works, u64::MAX);
    let topology = build::topology(&[(&[("h100", 2)], 4)]);
    let mut store = EventStore::create_on(disk.clone(), &topology).expect("the disk works");
    let mut written: Vec<(Time, Event)> = Vec::new();
    let mut refused = 0;
    for number in 0..BATCHES {
        let batch = batch(seed, number);
        match drawn(seed, number + 1_000) % 4 {
            0 => disk.fail_after(drawn(seed, number + 2_000) % 30, errno),
            1 => disk.mend(),
            _ => {}
        }
        match store.append(&batch) {
            Ok(()) => written.extend(batch),
            Err(_) => refused += 1,
        }
    }
    disk.mend();
    store.append(&batch(seed, BATCHES)).expect("the disk works again");
    written.extend(batch(seed, BATCHES));
    assert!(store.reader().events().expect("it reads") == written, "seed {seed}");
    drop(store);
    let store = EventStore::open_on(disk).expect("it is a store");
    assert!(store.reader().events().expect("it reads") == written, "seed {seed}, opened again");
    refused
}

#[test]
fn a_refused_batch_never_was_and_the_others_are_there() {
    let refused: usize = (0..RUNS).map(check).sum();
    assert!(refused as u64 > RUNS, "the disk failed only {refused} times");
}

/// What happens to the file of a store in use, and what the next batch is refused with.
fn check_file(spoil: impl FnOnce(&std::path::Path), expected: &str) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let path = dir.path().join("events.redb");
    let topology = build::topology(&[(&[("h100", 2)], 4)]);
    let mut store = EventStore::create(&path, &topology).expect("it can be made");
    store.append(&batch(1, 1)).expect("the disk works");
    let aside = dir.path().join("aside");
    std::fs::hard_link(&path, &aside).expect("it can be linked");
    spoil(&path);
    let error = store.append(&batch(1, 2)).expect_err("its file is not what it was");
    let source = std::error::Error::source(&error).expect("there is a reason").to_string();
    assert!(source.contains(expected), "{source}");
    if expected.contains("cut") {
        return;
    }
    std::fs::rename(&aside, &path).expect("it can be put back");
    store.append(&batch(1, 2)).expect("it is back");
    let events = [batch(1, 1), batch(1, 2)].concat();
    assert!(store.reader().events().expect("it reads") == events);
}

#[test]
fn a_file_that_is_gone_replaced_or_cut_is_noticed_at_the_next_batch() {
    check_file(|path| std::fs::remove_file(path).expect("it is there"), "is missing");
    check_file(
        |path| {
            std::fs::remove_file(path).expect("it is there");
            std::fs::write(path, "another").expect("it can be written");
        },
        "another file stands",
    );
    check_file(
        |path| {
            let file = std::fs::OpenOptions::new().write(true).open(path).expect("it is there");
            file.set_len(4096).expect("it can be cut");
        },
        "was cut from",
    );
}
