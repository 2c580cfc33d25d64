//! Stores with flipped bits and torn sectors: what is damaged is named, and nothing panics.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use het_control::{Log, Past};
use het_core::{State, Topology};
use het_server::{Draft, EventStore, Lost, Mended, StoreError, open_mending};

use crate::disk::{Handle, Sync, drawn};
use crate::snapshots::{Events, history};

const PLACES: u64 = 1_000;
const SECTOR: usize = 512;

/// Appends events in batches, with a snapshot between them; what they add up to.
fn fill(store: &mut EventStore, topology: &Arc<Topology>, events: &Events) -> Past {
    let mut past = Past::new(Arc::clone(topology));
    for (number, batch) in events.chunks(20).enumerate() {
        batch.iter().for_each(|(at, event)| past.apply(*at, event));
        store.append(batch).expect("the disk works");
        if number == 5 {
            store.put_snapshot(Draft::new(store.mark(), past.clone()));
        }
    }
    past
}

/// A store with snapshots, as it lies on the disk.
fn image() -> (Vec<u8>, Events) {
    let (topology, mut events) = history(11);
    events.truncate(400);
    let disk = Handle::new(Vec::new(), Sync::Works, u64::MAX);
    let mut store = EventStore::create_on(disk.clone(), &topology).expect("the disk works");
    fill(&mut store, &topology, &events);
    drop(store);
    (disk.now(), events)
}

/// One bit is another, or a sector holds nothing.
fn damaged(image: &[u8], written: &[usize], seed: u64) -> Vec<u8> {
    let mut image = image.to_vec();
    let at = written[drawn(seed, 1) as usize % written.len()];
    match seed % 2 {
        0 => image[at] ^= 1 << (drawn(seed, 2) % 8),
        _ => image.chunks_mut(SECTOR).nth(at / SECTOR).expect("it was written").fill(0),
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

/// A store on the disk with its second copy, and what was acknowledged.
fn with_copy(dir: &Path) -> (Events, State) {
    let (topology, mut events) = history(11);
    events.truncate(400);
    let mut store = EventStore::create(&dir.join(STORE), &topology).expect("it can be made");
    store.keep_copy(&dir.join(COPY)).expect("it can be made");
    let past = fill(&mut store, &topology, &events);
    (events, past.state)
}

const STORE: &str = "events.redb";
const COPY: &str = "copy";

/// Jobs of a state that another does not have.
fn missing(before: &State, after: &State) -> Vec<u64> {
    before.jobs().keys().filter(|id| after.job(**id).is_none()).map(|id| id.0).collect()
}

/// Spoils the store, the copy or both at a place each; what was acknowledged is there, or named.
#[test]
fn what_was_acknowledged_is_restored_or_named() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let (_, state) = with_copy(dir.path());
    let image = fs::read(dir.path().join(STORE)).expect("it is closed");
    let written: Vec<usize> = (0..image.len()).filter(|&at| image[at] != 0).collect();
    let copied: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(dir.path().join(COPY))
        .expect("it is there")
        .map(|entry| entry.expect("it can be read").path())
        // A snapshot may still be on its way.
        .filter_map(|path| Some((path.clone(), fs::read(&path).ok()?)))
        .collect();
    let jobs: Vec<u64> = state.jobs().keys().map(|id| id.0).collect();
    let (mut mended, mut lost) = (0, 0);
    for seed in 0..PLACES {
        fs::write(dir.path().join(STORE), damaged(&image, &written, seed)).expect("it is closed");
        fs::remove_dir_all(dir.path().join(COPY)).expect("it is there");
        fs::create_dir(dir.path().join(COPY)).expect("it is gone");
        for (path, text) in &copied {
            fs::write(path, text).expect("the disk works");
        }
        let spoils_copy = seed.is_multiple_of(5);
        if spoils_copy {
            let (path, text) = &copied[drawn(seed, 3) as usize % copied.len()];
            let places: Vec<usize> = (0..text.len()).collect();
            fs::write(path, damaged(text, &places, seed)).expect("the disk works");
        }
        let opened = open_mending(&dir.path().join(STORE), &dir.path().join(COPY), &jobs);
        let opened = match opened {
            Ok(opened) => opened,
            Err(StoreError::Format { .. }) => continue,
            Err(error) if spoils_copy => panic!("seed {seed}, both copies: {error:?}"),
            Err(error) => panic!("seed {seed}: {error:?}"),
        };
        let named = opened.mended.iter().flat_map(|mended| &mended.lost);
        let named: Vec<&Lost> = named.collect();
        mended += usize::from(opened.mended.is_some());
        lost += usize::from(!named.is_empty());
        let after = &opened.recovered.past.state;
        for job in missing(&state, after) {
            let is_named = |it: &&&Lost| matches!(it, Lost::Job { job: id, .. } if id.0 == job);
            assert!(named.iter().any(|it| is_named(&it)), "seed {seed}: job {job} is not named");
        }
        assert!(!named.is_empty() || *after == state, "seed {seed}: something is lost unnamed");
        assert!(spoils_copy || named.is_empty(), "seed {seed}: {named:?}, and the copy is sound");
        if let Some(Mended { aside, .. }) = &opened.mended {
            fs::remove_file(aside).expect("it is kept");
        }
    }
    assert!(mended > PLACES as usize / 20, "only {mended} of {PLACES} were mended");
    assert!(lost < mended / 5, "{lost} of {mended} lost something");
}

#[test]
fn what_is_whole_is_not_called_damaged() {
    let (image, events) = image();
    let store = EventStore::open_on(Handle::new(image, Sync::Works, u64::MAX));
    let checked = store.expect("it is a store").check();
    assert_eq!((checked.events, checked.snapshots), (events.len() as u64, 1));
    assert!(checked.damage.is_empty(), "{:?}", checked.damage);
}
