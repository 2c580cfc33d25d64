//! Stores that earlier versions wrote. They open, and mean what they meant: `tests/golden` has one
//! of 15e361f, and one for each change of a record since.
//!
//! To add one: let a server of the new version run jobs that end in different ways in an empty
//! `HET_HOME`, stop it, and pack `server/events.redb`.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use het_control::Log;
use het_core::{
    DeviceId, Event, JobId, Millis, Name, Preemptible, StageIndex, StageKey, StageState, State,
};
use het_server::{EventStore, open_mending};
use redb::ReadableTable as _;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn unpacked(name: &str) -> (TempDir, PathBuf) {
    let packed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let packed = fs::read(&packed).unwrap_or_else(|error| panic!("{}: {error}", packed.display()));
    let mut store = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut store).expect("it is packed with gzip");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    fs::write(&path, store).expect("the disk has room");
    (dir, path)
}

fn summary(state: &State) -> String {
    let mut text = String::new();
    for (id, job) in state.jobs() {
        let stages = job.stages.iter().map(|stage| match &stage.state {
            StageState::Failed(failure) => format!("failed with {}", failure.exit_code),
            StageState::Active { .. } => format!("active, attempt {}", stage.attempts),
            _ => format!("attempt {}", stage.attempts),
        });
        let stages = stages.collect::<Vec<_>>().join("; ");
        let state = job.state(state.leases()).word();
        writeln!(text, "{id} {} {state}: {stages}", job.spec.name).expect("text has room");
    }
    text
}

/// What all stores tell: only how often `saves` was begun differs.
fn expected(attempts_of_saves: u32) -> String {
    format!(
        "1 ok succeeded: attempt 1
2 bad failed: failed with 3
3 never-mind cancelled: attempt 0
4 two succeeded: attempt 1; attempt 1
5 saves running: active, attempt {attempts_of_saves}
6 array-0 succeeded: attempt 1
7 array-1 succeeded: attempt 1
8 array-2 succeeded: attempt 1
9 urgent succeeded: attempt 1
"
    )
}

/// What it adds up to.
#[track_caller]
fn check(name: &str, attempts_of_saves: u32) -> State {
    let (_dir, path) = unpacked(name);
    let mut store = EventStore::open(&path).expect("it is a store");
    let past = store.recover().expect("every record can be read").past;
    assert_eq!(summary(&past.state), expected(attempts_of_saves));
    assert_eq!(past.state.topology().devices.len(), 1);
    assert!(past.state.is_up(DeviceId(0)));

    let event = (past.state.now(), Event::DeviceDrained { device: DeviceId(0) });
    store.append(std::slice::from_ref(&event)).expect("the disk has room");
    drop(store);
    let mut after = past.state;
    after.apply(event.0, &event.1);
    let again = EventStore::open(&path).expect("it is a store").replay().expect("it is sound");
    assert_eq!(again, after);
    again
}

#[test]
fn a_store_of_15e361f_opens() {
    let state = check("15e361f.redb.gz", 4);
    let saves = state.stage(StageKey { job: JobId(5), stage: StageIndex(0) });
    assert_eq!(saves.1.preemptible, Preemptible::default(), "as it was when nobody could say");
}

#[test]
fn a_store_opens_in_which_nodes_join_by_events() {
    check("nodes-joined.redb.gz", 3);
}

#[test]
fn a_store_opens_that_keeps_stops_and_says_who_may_be_stopped() {
    let state = check("stops-kept.redb.gz", 3);
    let saves = state.stage(StageKey { job: JobId(5), stage: StageIndex(0) });
    assert_eq!(saves.1.preemptible, Preemptible::After(Millis::seconds(1)));
    let preemptors = saves.2.stops.iter().map(|stop| stop.cause.preemptor().map(|key| key.job));
    assert_eq!(preemptors.collect::<Vec<_>>(), [6, 9].map(|id| Some(JobId(id))));
    let other = state.stage(StageKey { job: JobId(4), stage: StageIndex(1) });
    assert_eq!(other.1.preemptible, Preemptible::Never);
}

#[test]
fn a_store_opens_whose_jobs_wait_for_others_and_for_a_time() {
    let (_dir, path) = unpacked("start-conditions.redb.gz");
    let mut store = EventStore::open(&path).expect("it is a store");
    let mut past = store.recover().expect("every record can be read").past;
    let expected = "1 first succeeded: attempt 1
2 second succeeded: attempt 1
3 third cancelled: attempt 0
4 later queued: attempt 0
5 sweep-0 succeeded: attempt 1
6 sweep-1 succeeded: attempt 1
7 sweep-2 succeeded: attempt 1
8 kept succeeded: attempt 1
";
    assert_eq!(summary(&past.state), expected);
    let begin = past.state.next_eligible().expect("a job begins in another century");
    assert_eq!(past.state.eligibility_events(begin), [Event::JobEligible { job: JobId(4) }]);
    past.state.apply(begin, &Event::JobEligible { job: JobId(4) });
    assert!(past.state.is_waiting(StageKey { job: JobId(4), stage: StageIndex(0) }));
}

#[test]
fn a_store_opens_that_says_who_asked() {
    let (_dir, path) = unpacked("requests-kept.redb.gz");
    let mut store = EventStore::open(&path).expect("it is a store");
    let past = store.recover().expect("every record can be read").past;
    let requests = &past.state.jobs()[&JobId(2)].requests;
    let told = requests
        .iter()
        .map(|request| (request.what.word(), request.by.user.as_ref().map(Name::as_str)));
    let expected = ["submit", "hold", "release", "cancel"].map(|what| (what, Some("root")));
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

/// What a later version left: a store of another format, or one with a record of a kind that is not
/// known here.
fn of_a_later_version(spoil: impl FnOnce(&redb::WriteTransaction)) -> String {
    let (dir, path) = unpacked("start-conditions.redb.gz");
    let database = redb::Database::open(&path).expect("it is a store");
    let write = database.begin_write().expect("nobody else writes");
    let head = redb::TableDefinition::<&str, &[u8]>::new("head");
    let mut table = write.open_table(head).expect("it is there");
    table.insert("version", &b"9.1.0"[..]).expect("the disk works");
    drop(table);
    spoil(&write);
    write.commit().expect("the disk works");
    drop(database);
    let image = fs::read(&path).expect("it is there");
    let refused = open_mending(&path, &dir.path().join("copy"), &[1]);
    let refused = refused.expect_err("this version cannot read it").to_string();
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 1, "nothing was mended");
    assert_eq!(fs::metadata(&path).expect("it is there").len(), image.len() as u64);
    refused
}

#[test]
fn what_a_later_version_wrote_is_refused_with_both_versions() {
    let own = env!("CARGO_PKG_VERSION");
    let of_format = of_a_later_version(|write| {
        let head = redb::TableDefinition::<&str, &[u8]>::new("head");
        let mut table = write.open_table(head).expect("it is there");
        table.insert("format", &b"9"[..]).expect("the disk works");
    });
    let of_record = of_a_later_version(|write| {
        let events = redb::TableDefinition::<u64, &[u8]>::new("events");
        let mut table = write.open_table(events).expect("it is there");
        let (next, before) = {
            let (sequence, value) = table.last().expect("it reads").expect("there are some");
            (sequence.value() + 1, value.value()[..32].to_vec())
        };
        let record = br#"{"at_ms":99999999999999,"kind":"teleported","job":1}"#;
        let hash = Sha256::new().chain_update(&before).chain_update(record).finalize();
        let value = [hash.as_slice(), record].concat();
        table.insert(next, value.as_slice()).expect("the disk works");
    });
    for told in [of_format, of_record] {
        assert!(
            told.contains("version 9.1.0") && told.contains(&format!("version {own}")),
            "{told}"
        );
    }
}
