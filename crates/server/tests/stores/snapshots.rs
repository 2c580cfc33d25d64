//! Snapshots: with the events after them they are worth all events; damaged or torn they are never
//! taken for whole; and beside them the log stays small.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use het_control::{Log, MemoryLog, Past, Retention};
use het_core::{
    Action, Degradation, DegradationCause, Device, DeviceClass, DeviceId, Event, JobId, JobSpec,
    LeaseId, Micro, Millis, Occupant, Outcome, Phase, Plan, Priority, Progress, RecoveryPhase,
    StageState, StateParts, Time, Topology,
};
use het_lab::{Scenario, play, random_scenario};
use het_perf::Rates;
use het_policy::{Cache, Cadence, View, by_name};
use het_server::{Draft, EventStore, Keeping, Recovered, SnapshotFault, StoreError};
use het_testkit::build;
use redb::{Database, ReadableTable, TableDefinition};

use crate::disk::{Handle, Sync, drawn};

const POLICIES: [&str; 6] = ["adaptive", "fifo", "dynamic", "hybrid", "feedback", "fgd"];

/// As many as [`traits`] tells apart.
const TRAITS: usize = 24;

pub type Events = Vec<(Time, Event)>;

/// What happens in a random scenario: gangs, faults, tenants, people who change their minds.
pub fn history(seed: u64) -> (Arc<Topology>, Events) {
    let retention = match seed % 3 {
        0 => Retention::All,
        kept => Retention::Newest(kept as usize * 2),
    };
    let cadence = match seed % 5 {
        0 => Cadence::Rounds(Millis::seconds(10)),
        _ => Cadence::default(),
    };
    let scenario = Scenario { retention, cadence, ..random_scenario(seed) };
    let policy = by_name(POLICIES[seed as usize % POLICIES.len()]).expect("the table has it");
    let control = play(&scenario, policy, MemoryLog::default(), |_, _| ()).expect("it ends");
    // Simulated gangs say nothing before they are where the one before had failed.
    let told = |(at, event): &(Time, Event)| {
        let first = Progress { step: Some(1), ..Progress::default() };
        let first = match event {
            Event::StageStarted { lease } => {
                Some((*at, Event::Progressed { lease: *lease, progress: first }))
            }
            _ => None,
        };
        [(*at, event.clone())].into_iter().chain(first)
    };
    let mut events: Events = control.log().0.iter().flat_map(told).collect();
    // And nobody else is there. Plans that were made stay as they are.
    let by = Occupant { process: 7, user: "somebody".into(), command: "notebook".into() };
    let cause = DegradationCause::Contention { by: Some(by.clone()) };
    let degradation = Degradation { left: Micro(700_000), cause };
    events.insert(2, (events[1].0, Event::DeviceOccupied { device: DeviceId(0), by }));
    events.insert(3, (events[1].0, Event::DeviceDegraded { device: DeviceId(0), degradation }));
    (Arc::new(scenario.topology.clone()), events)
}

/// What a state may have that others have not.
fn traits(past: &Past) -> Vec<&'static str> {
    let parts = past.state.clone().into_parts();
    let stages = || parts.jobs.values().flat_map(|job| &job.stages);
    let phase = |wanted: fn(Phase) -> bool| parts.leases.values().any(|it| wanted(it.phase));
    let under_way = |wanted: fn(RecoveryPhase) -> bool| {
        stages().any(|it| it.recoveries.under_way.is_some_and(|it| wanted(it.phase)))
    };
    let all = [
        ("waits", !parts.waiting.is_empty()),
        ("claims", !parts.claims.is_empty()),
        ("starting", phase(|phase| phase == Phase::Starting)),
        ("running", phase(|phase| matches!(phase, Phase::Running { .. }))),
        ("stopping", phase(Phase::is_stopping)),
        ("yielding", !parts.yielding.is_empty()),
        ("degraded", !parts.degraded.is_empty()),
        ("quotas", !parts.quotas.tenants.is_empty()),
        ("lost", parts.lost.contains(&true)),
        ("suspected", parts.suspected.contains(&true)),
        ("failed", parts.failed.contains(&true)),
        ("drained", !parts.drained.is_empty()),
        ("occupied", !parts.occupied.is_empty()),
        ("held", parts.jobs.values().any(|job| job.held)),
        ("ending", parts.jobs.values().any(|job| job.ending.is_some() && job.end.is_none())),
        ("ended", parts.jobs.values().any(|job| job.end.is_some())),
        ("stopped", stages().any(|it| matches!(it.state, StageState::Stopped { .. }))),
        ("failure", stages().any(|it| matches!(it.state, StageState::Failed(_)))),
        ("checkpoint", stages().any(|it| it.checkpoint.is_some())),
        ("waits after a fault", under_way(|it| matches!(it, RecoveryPhase::Waits { .. }))),
        ("loads after a fault", under_way(|it| matches!(it, RecoveryPhase::Loads { .. }))),
        ("repeats after a fault", under_way(|it| matches!(it, RecoveryPhase::Repeats { .. }))),
        ("useful", parts.useful.iter().any(|it| it.0 > 0) && parts.useful != parts.busy),
        ("charged", parts.charged.iter().any(|it| it.0 > 0)),
    ];
    all.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect()
}

const fn keep(snapshot_every: u64, events: u64) -> Keeping {
    Keeping { snapshot_every, events, jobs: usize::MAX }
}

fn store(topology: &Topology, keeping: Keeping) -> (EventStore, Handle) {
    let disk = Handle::new(Vec::new(), Sync::Works, u64::MAX);
    let store = EventStore::create_on(disk.clone(), topology).expect("the disk works");
    (store.with_keeping(keeping), disk)
}

fn reopened(image: Vec<u8>) -> EventStore {
    EventStore::open_on(Handle::new(image, Sync::Works, u64::MAX)).expect("it is a store")
}

/// Batches of one to some events, as a loop makes them.
fn batches(seed: u64, events: &Events) -> Vec<&[(Time, Event)]> {
    let mut batches = Vec::new();
    let mut rest = events.as_slice();
    while !rest.is_empty() {
        let size = 1 + drawn(seed, batches.len() as u64) as usize % 12;
        let (batch, after) = rest.split_at(size.min(rest.len()));
        batches.push(batch);
        rest = after;
    }
    batches
}

fn take_snapshot(store: &mut EventStore, past: &Past) {
    if store.snapshot_is_due() {
        store.put_snapshot(Draft::new(store.mark(), past.clone()));
    }
}

fn assert_same(seed: u64, at: usize, found: &Past, whole: &Past) {
    assert!(found.state == whole.state, "seed {seed}: another state after batch {at}");
    let (found, whole) = (found.rates.learned(), whole.rates.learned());
    assert_eq!(found, whole, "seed {seed}: other speeds after batch {at}");
}

#[test]
fn a_snapshot_and_the_events_after_it_are_worth_all_events() {
    let (mut from_snapshots, mut shortened, mut learned, mut restarts) = (0, 0, 0, 0);
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 1..=250 {
        let (topology, events) = history(seed);
        let keeping = keep(5 + drawn(seed, 1) % 80, seed % 50);
        let (mut store, disk) = store(&topology, keeping);
        let mut whole = Past::new(topology);
        for (at, batch) in batches(seed, &events).into_iter().enumerate() {
            batch.iter().for_each(|(at, event)| whole.apply(*at, event));
            store.append(batch).expect("the disk works");
            if store.snapshot_is_due() {
                traits(&whole).into_iter().for_each(|name| *seen.entry(name).or_default() += 1);
            }
            take_snapshot(&mut store, &whole);
            if drawn(seed * 7, at as u64).is_multiple_of(8) {
                let mut again = reopened(disk.now());
                let Recovered { past, refused } = again.recover().expect("nothing is damaged");
                assert!(refused.is_empty(), "{refused:?}");
                assert_same(seed, at, &past, &whole);
                from_snapshots += u32::from(again.newest_snapshot().is_some());
                shortened += u32::from(again.reader().chain().expect("it reads").sequence > 0);
                restarts += 1;
            }
        }
        learned += whole.rates.learned().history.len();
    }
    println!("{restarts} restarts, {from_snapshots} from a snapshot, {shortened} of a shorter log");
    println!("{learned} speeds learned, in snapshots {seen:?}");
    assert_eq!(seen.len(), TRAITS, "something was in no snapshot");
    assert!(from_snapshots > 500 && shortened > 300 && learned > 50);
}

#[test]
fn what_was_recovered_goes_on_as_if_nothing_had_been() {
    for seed in 200..240 {
        let (topology, events) = history(seed);
        let keeping = keep(40, 0);
        let (mut store, disk) = store(&topology, keeping);
        let mut past = Past::new(Arc::clone(&topology));
        let (first, second) = events.split_at(events.len() / 2);
        for batch in first.chunks(5) {
            batch.iter().for_each(|(at, event)| past.apply(*at, event));
            store.append(batch).expect("the disk works");
            take_snapshot(&mut store, &past);
        }
        let mut again = reopened(disk.now()).with_keeping(keeping);
        let mut past = again.recover().expect("nothing is damaged").past;
        for batch in second.chunks(5) {
            batch.iter().for_each(|(at, event)| past.apply(*at, event));
            again.append(batch).expect("the disk works");
            take_snapshot(&mut again, &past);
        }
        let mut whole = Past::new(topology);
        events.iter().for_each(|(at, event)| whole.apply(*at, event));
        assert_same(seed, events.len(), &past, &whole);
        assert_same(seed, events.len(), &again.recover().expect("it is sound").past, &whole);
    }
}

/// A store in a file with two snapshots, and what it adds up to.
fn with_two_snapshots(path: &Path, keeping: Keeping) -> Past {
    let (topology, events) = history(4);
    let store = EventStore::create(path, &topology).expect("a new store");
    let mut store = store.with_keeping(keeping);
    let mut whole = Past::new(topology);
    for batch in events.chunks(3) {
        batch.iter().for_each(|(at, event)| whole.apply(*at, event));
        store.append(batch).expect("the disk has room");
        take_snapshot(&mut store, &whole);
    }
    assert!(store.newest_snapshot() > Some(keeping.snapshot_every), "there were two");
    whole
}

const PARTS: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("snapshot_parts");

/// Changes one byte in each of the newest snapshots.
fn damage(path: &Path, newest: usize) {
    let database = Database::open(path).expect("nobody has it open");
    let write = database.begin_write().expect("it can be written");
    {
        let mut parts = write.open_table(PARTS).expect("it is there");
        let rows = parts.iter().expect("it reads").rev().take(newest);
        let rows: BTreeMap<(u64, u32), Vec<u8>> = rows
            .map(|row| row.expect("it reads"))
            .map(|(key, value)| (key.value(), value.value().to_vec()))
            .collect();
        assert_eq!(rows.len(), newest, "small snapshots have one part");
        for (key, mut part) in rows {
            let middle = part.len() / 2;
            part[middle] ^= 1;
            parts.insert(key, part.as_slice()).expect("it can be written");
        }
    }
    write.commit().expect("it can be written");
}

fn is_refused_for_its_checksum(refused: &StoreError) -> bool {
    matches!(refused, StoreError::Snapshot { source: SnapshotFault::Checksum, .. })
}

#[test]
fn an_older_snapshot_stands_in_for_a_damaged_one() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    let whole = with_two_snapshots(&path, keep(40, 0));
    damage(&path, 1);
    let mut store = EventStore::open(&path).expect("it is a store");
    let newest = store.newest_snapshot();
    let Recovered { past, refused } = store.recover().expect("the older one is sound");
    assert!(refused.iter().all(is_refused_for_its_checksum) && refused.len() == 1, "{refused:?}");
    assert_same(4, 0, &past, &whole);
    let later = Event::JobHeld { job: JobId(1) };
    store.append(&[(whole.state.now(), later)]).expect("the disk has room");
    drop(store);
    let mut store = EventStore::open(&path).expect("it is a store");
    assert!(store.newest_snapshot() < newest, "the damaged one is gone");
    assert!(store.recover().expect("it is sound").refused.is_empty());
}

#[test]
fn all_events_stand_in_for_damaged_snapshots() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    let whole = with_two_snapshots(&path, keep(40, 1_000_000));
    damage(&path, 2);
    let mut store = EventStore::open(&path).expect("it is a store");
    let Recovered { past, refused } = store.recover().expect("no event was removed");
    assert!(refused.iter().all(is_refused_for_its_checksum) && refused.len() == 2, "{refused:?}");
    assert_same(4, 0, &past, &whole);
}

#[test]
fn without_snapshots_a_shortened_log_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    with_two_snapshots(&path, keep(40, 0));
    damage(&path, 2);
    let refused = EventStore::open(&path).expect("it is a store").recover();
    assert!(matches!(refused, Err(StoreError::NothingToGoOnFrom { .. })), "{refused:?}");
}

#[test]
fn a_machine_may_get_more_devices() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    let before = with_two_snapshots(&path, keep(40, 100_000));
    let mut topology = Topology::clone(before.state.topology());
    let class = DeviceClass { id: "new".into(), ..topology.classes[0].clone() };
    topology.classes.push(class);
    let class = topology.classes.len() - 1;
    topology.devices.push(Device { name: "new0".into(), class, ..topology.devices[0].clone() });
    let added = DeviceId(topology.devices.len() as u32 - 1);
    let mut store = EventStore::open(&path).expect("it is a store");
    let mut after = store.recover().expect("it is sound").past;
    let now = after.state.now();
    let joined = (now, Event::NodesJoined { nodes: Arc::new(topology) });
    let drained = (now, Event::DeviceDrained { device: added });
    let events = [joined, drained];
    events.iter().for_each(|(at, event)| after.apply(*at, event));
    assert_eq!(after.state.topology().devices.len(), added.index() + 1);
    assert!(after.state.is_drained(added));
    let (old, new) = (before.state.into_parts(), after.state.clone().into_parts());
    assert_eq!((old.jobs, old.leases, old.waiting), (new.jobs, new.leases, new.waiting));
    store.append(&events).expect("the disk has room");
    drop(store);
    damage(&path, 2);
    let whole = EventStore::open(&path).expect("it is a store").recover().expect("from all events");
    let same_release =
        |past: &Past| StateParts { failed: vec![], ..past.state.clone().into_parts() };
    assert_eq!(same_release(&whole.past), same_release(&after));
}

#[test]
fn a_store_of_the_time_before_snapshots_is_taken_over() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    let (topology, events) = history(7);
    let mut store = EventStore::create(&path, &topology).expect("a new store");
    store.append(&events).expect("the disk has room");
    drop(store);
    let head: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("head");
    let tables: [TableDefinition<'_, u64, &[u8]>; 2] =
        [TableDefinition::new("gaps"), TableDefinition::new("snapshots")];
    let database = Database::open(&path).expect("nobody has it open");
    let write = database.begin_write().expect("it can be written");
    let format: &[u8] = b"2";
    write.open_table(head).expect("it is there").insert("format", format).expect("written");
    for table in tables {
        assert!(write.delete_table(table).expect("it can be written"));
    }
    assert!(write.delete_table(PARTS).expect("it can be written"));
    write.commit().expect("it can be written");
    drop(database);
    let mut whole = Past::new(topology);
    events.iter().for_each(|(at, event)| whole.apply(*at, event));
    let mut store = EventStore::open(&path).expect("it is taken over");
    assert_same(7, 0, &store.recover().expect("it reads").past, &whole);
    let later = (whole.state.now(), Event::JobHeld { job: JobId(1) });
    store.append(&[later]).expect("it goes on");
}

/// A loop's events where one job after the other runs on the only device.
struct Line {
    past: Past,
    at: u64,
    next_job: u64,
    kept: u64,
}

impl Line {
    fn tell(&mut self, events: &mut Events, event: Event) {
        self.at += 1;
        self.past.apply(Time(self.at), &event);
        events.push((Time(self.at), event));
    }

    fn submit(&mut self, events: &mut Events, spec: JobSpec) {
        let submitted = build::submitted(self.next_job, spec);
        self.next_job += 1;
        self.tell(events, submitted);
    }

    fn start(&mut self, events: &mut Events) -> LeaseId {
        let policy = by_name("fifo").expect("the table has it");
        let (state, rates) = (&self.past.state, Rates::default());
        let view = View { state, rates: &rates, now: Time(self.at), cadence: Cadence::default() };
        let plan: Plan = het_scheduler::propose(&view, policy, &mut Cache::default()).plan;
        let started = plan.actions.iter().find_map(|action| match action {
            Action::Start { lease, .. } => Some(*lease),
            _ => None,
        });
        self.tell(events, Event::PlanCommitted { plan: Arc::new(plan) });
        let lease = started.expect("the device is free");
        self.tell(events, Event::StageStarted { lease });
        lease
    }

    /// One job from its submission to its end, and an older one leaves.
    fn job(&mut self) -> Events {
        let mut events = Events::new();
        let stage = build::stage("train", vec![build::alternative("h100", 1)]);
        self.submit(&mut events, build::job(Priority::Normal, vec![stage]));
        let lease = self.start(&mut events);
        for step in [10, 20, 30] {
            let progress = Progress { step: Some(step), ..Progress::default() };
            self.tell(&mut events, Event::Progressed { lease, progress });
        }
        self.tell(&mut events, Event::StageEnded { lease, outcome: Outcome::Finished });
        if let Some(old) = self.next_job.checked_sub(self.kept).filter(|old| *old > 1) {
            self.tell(&mut events, Event::JobRetired { job: JobId(old) });
        }
        events
    }
}

#[test]
fn however_much_happens_the_log_stays_small() {
    const KEPT_JOBS: u64 = 50;
    const KEEPING: Keeping = keep(500, 2_000);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("events.redb");
    let topology = build::topology(&[(&[("h100", 1)], 4)]);
    let store = EventStore::create(&path, &topology).expect("a new store");
    let mut store = store.with_keeping(KEEPING);
    let past = Past::new(Arc::new(topology));
    let mut line = Line { past, at: 0, next_job: 1, kept: KEPT_JOBS };
    // A job that is there all the time: it was submitted, and runs on the processor.
    let mut events = Events::new();
    let stage = build::stage("train", vec![build::alternative("cpu", 1)]);
    line.submit(&mut events, build::job(Priority::Normal, vec![stage]));
    let lasting = line.start(&mut events);
    store.append(&events).expect("the disk has room");
    let (mut most, mut sizes) = (0, Vec::new());
    for round in 0..40 {
        for _ in 0..10 {
            let mut batch = Events::new();
            for _ in 0..6 {
                batch.extend(line.job());
                let progress = Progress { step: Some(line.at), ..Progress::default() };
                line.tell(&mut batch, Event::Progressed { lease: lasting, progress });
            }
            store.append(&batch).expect("the disk has room");
            take_snapshot(&mut store, &line.past);
        }
        let stored = store.reader().events().expect("they read").len();
        if round >= 10 {
            most = most.max(stored);
        }
        sizes.push(std::fs::metadata(&path).expect("it is there").len());
    }
    let length = store.length();
    println!("{length} events, at most {most} of them there, {sizes:?} bytes");
    // Of each job that is kept: submitted, planned, started, ended; and what two snapshots and a
    // walk are behind.
    let bound = KEEPING.events + 4 * (KEPT_JOBS + 1) + 2 * KEEPING.snapshot_every;
    assert!(length > 5 * bound && most as u64 <= bound, "{most} of {length}, bound {bound}");
    assert!(sizes[39] <= sizes[10] * 5 / 4, "the file still grows: {sizes:?}");
    let Recovered { past, refused } = store.recover().expect("it is sound");
    assert!(refused.is_empty());
    assert_same(0, 0, &past, &line.past);
    what_is_kept(&store, lasting);
}

/// The lasting job's submission, plan and start are still there, each with the hash before it.
fn what_is_kept(store: &EventStore, lasting: LeaseId) {
    let page = store.reader().page(0, 4).expect("it reads");
    let words: Vec<_> = page.iter().map(|row| row.record["event"].clone()).collect();
    assert_eq!(words[..3], ["job_submitted", "plan_committed", "stage_started"]);
    assert_eq!(page[2].record["lease"], lasting.0);
    assert!(page[..3].iter().all(|row| row.before.is_none()), "nothing before them is gone");
    assert!(page[3].sequence > 3 && page[3].before.is_some(), "{:?}", page[3]);
    let chain = store.reader().chain().expect("it reads");
    let first = &store.reader().page(chain.sequence, 1).expect("it reads")[0];
    assert_eq!((first.sequence, first.before.as_ref()), (chain.sequence, Some(&chain.before)));
}

/// A history whose snapshots have several parts.
fn heavy_history(seed: u64) -> (Arc<Topology>, Vec<Events>) {
    let (topology, mut events) = history(seed);
    for (_, event) in &mut events {
        if let Event::JobSubmitted { job: JobId(1), spec, .. } = event {
            let mut heavy = JobSpec::clone(spec);
            heavy.workdir = "w".repeat(300_000);
            *spec = Arc::new(heavy);
        }
    }
    let batches = batches(seed, &events).into_iter().take(60).map(<[_]>::to_vec).collect();
    (topology, batches)
}

/// What the log adds up to after each batch.
fn pasts(topology: &Arc<Topology>, batches: &[Events]) -> Vec<Past> {
    let mut past = Past::new(Arc::clone(topology));
    let mut pasts = vec![past.clone()];
    for batch in batches {
        batch.iter().for_each(|(at, event)| past.apply(*at, event));
        pasts.push(past.clone());
    }
    pasts
}

#[test]
fn power_loss_leaves_the_old_snapshot_or_the_new_one() {
    let (mut images, mut cut, mut with, mut shortened) = (0, 0, 0, 0);
    for seed in 1..=60 {
        let (topology, batches) = heavy_history(seed);
        let pasts = pasts(&topology, &batches);
        let keeping = keep(20, 10);
        let (mut store, disk) = store(&topology, keeping);
        disk.turn_off_after(drawn(seed, 3) % 450);
        let mut acknowledged = 0;
        for (batch, past) in batches.iter().zip(&pasts[1..]) {
            if store.append(batch).is_err() {
                break;
            }
            acknowledged += 1;
            take_snapshot(&mut store, past);
        }
        disk.turn_off();
        drop(store);
        cut += u32::from(acknowledged < batches.len());
        for image in 0..5 {
            let mut found = reopened(disk.image(seed * 31 + image));
            let Recovered { past, refused } = found.recover().expect("nothing is lost");
            assert!(refused.is_empty(), "seed {seed}, image {image}: {refused:?}");
            // What was not acknowledged may be there or not, as a whole.
            let next = (acknowledged + 1).min(batches.len());
            let known = pasts[acknowledged..=next].iter().any(|known| known.state == past.state);
            assert!(known, "seed {seed}, image {image}: not what was written");
            images += 1;
            with += u32::from(found.newest_snapshot().is_some());
            shortened += u32::from(found.reader().chain().expect("it reads").sequence > 0);
        }
    }
    println!(
        "{images} images, {with} with a snapshot, {shortened} of a shorter log, {cut} runs cut"
    );
    assert!(images >= 300 && cut > 40 && with > images / 3 && shortened > 30);
}
