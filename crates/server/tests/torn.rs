//! The event store on a disk that loses power at a random instant: unsynced writes are kept, lost,
//! or torn sector by sector. What was acknowledged is there, nothing else is.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use het_control::Log;
use het_core::{Event, LeaseId, Micro, Progress, Time, Topology};
use het_lab::Draw;
use het_server::{EventStore, StoreError};
use het_testkit::build;
use redb::StorageBackend;

/// Images of the disk, five of them from each run.
const IMAGES: u64 = 2_000;
const IMAGES_A_RUN: u64 = 5;
/// What a disk writes as a whole.
const SECTOR: usize = 512;
/// Batches of a run, each acknowledged when it is synced.
const BATCHES: u64 = 40;

/// A number, the same for the same seed and index.
fn drawn(seed: u64, index: u64) -> u64 {
    Draw::new(seed, index).between(0, u64::MAX - 1)
}

/// Whether the disk does what it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    Works,
    /// Says that it has synced, and has not: the test has to notice.
    Lies,
}

#[derive(Debug, Clone)]
enum Unsynced {
    Write(u64, Vec<u8>),
    Length(u64),
}

/// A disk in memory that knows what has reached the platter.
#[derive(Debug)]
struct Disk {
    now: Vec<u8>,
    safe: Vec<u8>,
    unsynced: Vec<Unsynced>,
    sync: Sync,
    operations: u64,
    /// Power goes off at this operation; from then on everything fails.
    off_at: u64,
}

#[derive(Debug, Clone)]
struct Handle(Arc<Mutex<Disk>>);

impl Handle {
    fn new(image: Vec<u8>, sync: Sync, off_at: u64) -> Self {
        let safe = image.clone();
        let disk = Disk { now: image, safe, unsynced: Vec::new(), sync, operations: 0, off_at };
        Self(Arc::new(Mutex::new(disk)))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Disk) -> T) -> io::Result<T> {
        let mut disk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        disk.operations += 1;
        if disk.operations > disk.off_at {
            return Err(io::Error::other("the power is off"));
        }
        Ok(act(&mut disk))
    }

    /// What may be found after the power comes back.
    fn image(&self, seed: u64) -> Vec<u8> {
        let disk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut image = disk.safe.clone();
        for (index, change) in (0..).zip(&disk.unsynced) {
            let fate = drawn(seed, index);
            match change {
                Unsynced::Length(length) if fate.is_multiple_of(2) => {
                    image.resize(*length as usize, 0)
                }
                Unsynced::Length(_) => {}
                Unsynced::Write(at, bytes) => {
                    for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                        let kept = match fate % 3 {
                            0 => true,
                            1 => false,
                            _ => drawn(fate, number as u64).is_multiple_of(2),
                        };
                        let from = *at as usize + number * SECTOR;
                        if kept && from + sector.len() <= image.len() {
                            image[from..from + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
            }
        }
        image
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        self.with(|disk| disk.now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|disk| {
            let from = offset as usize;
            let found = disk.now.get(from..from + out.len());
            found.map(|bytes| out.copy_from_slice(bytes)).ok_or(io::ErrorKind::UnexpectedEof.into())
        })?
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.with(|disk| {
            disk.now.resize(length as usize, 0);
            disk.unsynced.push(Unsynced::Length(length));
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|disk| {
            if disk.sync == Sync::Works {
                disk.safe.clone_from(&disk.now);
                disk.unsynced.clear();
            }
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|disk| {
            let from = offset as usize;
            disk.now[from..from + data.len()].copy_from_slice(data);
            disk.unsynced.push(Unsynced::Write(offset, data.to_vec()));
        })
    }
}

fn topology() -> Topology {
    build::topology(&[(&[("h100", 2)], 4)])
}

/// Batch number `number` of a run: one to seven events that say where they belong.
fn batch(seed: u64, number: u64) -> Vec<(Time, Event)> {
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
    let sofar = disk.with(|disk| {
        // The topology was written before: only events are at stake.
        disk.safe.clone_from(&disk.now);
        disk.unsynced.clear();
        disk.operations
    });
    let off_at = sofar.expect("the disk works") + drawn(seed, 7) % 400;
    disk.with(|disk| disk.off_at = off_at).expect("the disk works");
    let mut acknowledged = Vec::new();
    for number in 0..BATCHES {
        let batch = batch(seed, number);
        if store.append(&batch).is_err() {
            break;
        }
        acknowledged.extend(batch);
    }
    // Power off means that nothing is tidied up either.
    disk.0.lock().unwrap_or_else(PoisonError::into_inner).off_at = 0;
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
    let image = disk.0.lock().unwrap_or_else(PoisonError::into_inner).now.clone();
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
