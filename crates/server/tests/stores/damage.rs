//! Stores with flipped bits and torn sectors: what is damaged is named, and nothing panics.

use std::sync::Arc;

use het_control::{Log, Past};
use het_server::{Draft, EventStore};

use crate::disk::{Handle, Sync, drawn};
use crate::snapshots::{Events, history};

const PLACES: u64 = 1_000;
const SECTOR: usize = 512;

/// A store with snapshots, as it lies on the disk.
fn image() -> (Vec<u8>, Events) {
    let (topology, mut events) = history(11);
    events.truncate(400);
    let disk = Handle::new(Vec::new(), Sync::Works, u64::MAX);
    let mut store = EventStore::create_on(disk.clone(), &topology).expect("the disk works");
    let mut past = Past::new(Arc::clone(&topology));
    for (number, batch) in events.chunks(20).enumerate() {
        batch.iter().for_each(|(at, event)| past.apply(*at, event));
        store.append(batch).expect("the disk works");
        if number == 5 {
            store.put_snapshot(Draft::new(store.mark(), past.clone()));
        }
    }
    drop(store);
    (disk.now(), events)
}

/// One bit is another, or a sector holds nothing.
fn damaged(image: &[u8], written: &[usize], seed: u64) -> Vec<u8> {
    let mut image = image.to_vec();
    let at = written[drawn(seed, 1) as usize % written.len()];
    match seed % 2 {
        0 => image[at] ^= 1 << (drawn(seed, 2) % 8),
        _ => image[at - at % SECTOR..][..SECTOR].fill(0),
    }
    image
}

#[test]
fn damage_at_any_place_is_named_or_changes_nothing() {
    let (image, events) = image();
    let written: Vec<usize> = (0..image.len()).filter(|&at| image[at] != 0).collect();
    let mut named = 0;
    for seed in 0..PLACES {
        let disk = Handle::new(damaged(&image, &written, seed), Sync::Works, u64::MAX);
        let Ok(mut store) = EventStore::open_on(disk) else {
            named += 1;
            continue;
        };
        // Whether it goes on or not, it says so.
        let _ = store.recover();
        if !store.check().damage.is_empty() {
            named += 1;
            continue;
        }
        let found = store.reader().events().expect("nothing is damaged");
        assert!(found == events, "seed {seed}: {} of {} events", found.len(), events.len());
    }
    assert!(named > PLACES / 4, "only {named} of {PLACES} were noticed");
}

#[test]
fn what_is_whole_is_not_called_damaged() {
    let (image, events) = image();
    let store = EventStore::open_on(Handle::new(image, Sync::Works, u64::MAX));
    let checked = store.expect("it is a store").check();
    assert_eq!((checked.events, checked.snapshots), (events.len() as u64, 1));
    assert!(checked.damage.is_empty(), "{:?}", checked.damage);
}
