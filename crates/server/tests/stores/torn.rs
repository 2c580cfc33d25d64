//! The event store on a disk that loses power at a random instant: unsynced writes are kept, lost,
//! or torn sector by sector. What was acknowledged is there, nothing else is.

use std::sync::atomic::{AtomicU64, Ordering};

use het_control::Log;
use het_core::{Event, LeaseId, Micro, Progress, Time, Topology};
use het_server::{EventStore, StoreError};
use het_testkit::build;

use crate::disk::{Handle, Sync, drawn};

/// Images of the disk, five of them from each run.
const IMAGES: u64 = 2_000;
const IMAGES_A_RUN: u64 = 5;
/// Batches of a run, each acknowledged when it is synced.
const BATCHES: u64 = 40;

fn topology() -> Topology {
    build::topology(&[(&[("h100", 2)], 4)])
}

/// Batch number `number` of a run: one to seven events that say where they belong.
pub(crate) fn batch(seed: u64, number: u64) -> Vec<(Time, Event)> {
    let event = |index| {
        let step = Some(number * 100 + index);
        let loss = Some(Micro(drawn(seed, number) as i64));
        let progress = Progress { step, loss, ..Progress::default() };
        (Time(number), Event::Progressed { lease: LeaseId(index), progress })
    };
    (0..1 + drawn(seed, number) % 7).map(event).collect()
}

/// Writes batches until the power goes off; what was acknowledged, and the disk.
fn run(seed: u64, sync: Sync) -> (Vec<(Time, Event)>, Handle) {
    let disk = Handle::new(Vec::new(), sync, u64::MAX);
    let mut store = EventStore::create_on(disk.clone(), &topology()).expect("the disk works");
    // The topology was written before: only events are at stake.
    disk.turn_off_after(drawn(seed, 7) % 400);
    let mut acknowledged = Vec::new();
    for number in 0..BATCHES {
        let batch = batch(seed, number);
        if store.append(&batch).is_err() {
            break;
        }
        acknowledged.extend(batch);
    }
    // Power off means that nothing is tidied up either.
    disk.turn_off();
    drop(store);
    (acknowledged, disk)
}

/// What is wrong with what an image holds, if anything.
fn fault(seed: u64, image: Vec<u8>, acknowledged: &[(Time, Event)]) -> Option<String> {
    let disk = Handle::new(image, Sync::Works, u64::MAX);
    let store = match EventStore::open_on(disk) {
        Ok(store) => store,
        Err(error) => return Some(format!("it does not open: {error:?}")),
    };
    let found = match store.reader().events() {
        Ok(found) => found,
        Err(error) => return Some(format!("it does not read: {error}")),
    };
    let all: Vec<_> = (0..BATCHES).map(|number| batch(seed, number)).collect();
    let mut ends = vec![0];
    for batch in &all {
        ends.push(ends[ends.len() - 1] + batch.len());
    }
    let written: Vec<_> = all.into_iter().flatten().collect();
    if found.len() < acknowledged.len() {
        return Some(format!("{} of {} events are lost", found.len(), acknowledged.len()));
    }
    if !ends.contains(&found.len()) {
        return Some(format!("{} events are no whole number of batches", found.len()));
    }
    (found != written[..found.len()]).then(|| "events were changed".to_owned())
}

#[test]
fn power_loss_loses_nothing_that_was_acknowledged() {
    let commits = AtomicU64::new(0);
    for seed in 0..IMAGES / IMAGES_A_RUN {
        let (acknowledged, disk) = run(seed, Sync::Works);
        commits.fetch_add(acknowledged.len() as u64, Ordering::Relaxed);
        for image in 0..IMAGES_A_RUN {
            let wrong = fault(seed, disk.image(seed * 31 + image), &acknowledged);
            assert_eq!(wrong, None, "seed {seed}, image {image}");
        }
    }
    assert!(commits.into_inner() > IMAGES, "the runs come far enough to mean something");
}

#[test]
fn a_sync_that_does_nothing_is_noticed() {
    let caught = (0..40).filter(|&seed| {
        let (acknowledged, disk) = run(seed, Sync::Lies);
        (0..5).any(|image| fault(seed, disk.image(seed * 31 + image), &acknowledged).is_some())
    });
    let caught = caught.count();
    assert!(caught >= 30, "only {caught} of 40 runs on a lying disk were noticed");
}

#[test]
fn a_record_that_was_changed_is_named() {
    let disk = Handle::new(Vec::new(), Sync::Works, u64::MAX);
    let mut store = EventStore::create_on(disk.clone(), &topology()).expect("the disk works");
    for number in 0..5 {
        store.append(&batch(3, number)).expect("the disk works");
    }
    let events = store.reader().events().expect("it reads").len() as u64;
    drop(store);
    let image = disk.now();
    let mut noticed = 0;
    for (at, _) in image.windows(9).enumerate().filter(|(_, bytes)| bytes == b"\"at_ms\":2") {
        let mut changed = image.clone();
        changed[at + 8] = b'3';
        let store = EventStore::open_on(Handle::new(changed, Sync::Works, u64::MAX));
        // redb's own checksum may refuse the page first.
        let Ok(store) = store else { continue };
        match store.reader().events() {
            Err(StoreError::Tampered { sequence }) => {
                assert!(sequence < events);
                noticed += 1;
            }
            Err(StoreError::Redb(_)) => {}
            other => {
                assert_eq!(other.expect("a page that is not used any more").len() as u64, events)
            }
        }
    }
    assert!(noticed > 0, "no change reached the chain of hashes");
}
