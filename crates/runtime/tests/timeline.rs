//! What is recorded of streams: every moment of each of them once, and the cause of what is idle.

use std::sync::Arc;

use het_core::Bytes;
use het_runtime::drivers::dummy::{Dummy, Noise, Speed, Truth};
use het_runtime::schedulers::{Adaptive, SCHEDULERS};
use het_runtime::{
    Begin, Coordinator, Device, HandleId, Idle, KernelId, KernelInfo, Link, Machine, Memory,
    MemoryId, Mode, Model, Piece, Runtime, Scheduler, StreamId, Task, Track, Work,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const HOST: MemoryId = MemoryId(0);

/// A host, whose device is slow, and accelerators 1 GB/s from it.
fn machine(accelerators: u16, capacity: u64) -> Arc<Machine> {
    let device = |row: u16| Device {
        name: format!("device \"{row}\""),
        class: if row == 0 { "cpu" } else { "gpu" }.to_owned(),
        memory: MemoryId(row),
        wake: 0,
    };
    let memory = |row: u16| Memory {
        name: format!("memory{row}"),
        capacity: Bytes(if row == 0 { 1 << 40 } else { capacity }),
    };
    let links = (1..=usize::from(accelerators)).flat_map(|row| Link::both(0, row, 1e9, 5_000));
    let devices = (0..=accelerators).map(device).collect();
    let memories = (0..=accelerators).map(memory).collect();
    Arc::new(Machine::new(devices, memories, 0, links.collect()).expect("a machine"))
}

/// Kernels of ten milliseconds, the second only of accelerators; the host takes four times as
/// long.
fn runtime(machine: &Arc<Machine>, scheduler: Box<dyn Scheduler>, noise: Noise) -> Runtime<Dummy> {
    let kernel = |name: &str, classes: &[&str]| KernelInfo {
        name: name.to_owned(),
        classes: classes.iter().map(|class| (*class).to_owned()).collect(),
    };
    let kernels = vec![kernel("any", &[]), kernel("gpu", &["gpu"])];
    let nanos = |class: u16| if class == 0 { 40.0 } else { 10.0 } * MS as f64;
    let names = vec!["any".to_owned(), "gpu".to_owned()];
    let model = Model::new(names, machine.classes().to_vec())
        .with_prior(Box::new(move |_, class, _| Some(nanos(class.0))));
    let coordinator = Coordinator::new(Arc::clone(machine), kernels, model, scheduler);
    let speed = |class| Some(Speed { nanos: nanos(class), nanos_per_byte: 0.0 });
    let speeds = vec![vec![speed(0), speed(1)], vec![None, speed(1)]];
    let driver = Dummy::new(Arc::clone(machine), Truth { speeds, noise });
    Runtime::new(coordinator, driver, Begin::WhenFlushed)
}

fn tracks(runtime: &Runtime<Dummy>) -> Vec<Track> {
    use het_runtime::Driver;
    runtime.coordinator().timeline().expect("it is recorded").tracks(runtime.driver().now())
}

/// Every moment is in one piece of each track.
fn check(tracks: &[Track], end: u64) {
    let causes = [Idle::Nothing, Idle::Data, Idle::Transfer, Idle::Memory, Idle::Handover];
    for track in tracks {
        let mut at = 0;
        for Piece { span, .. } in &track.pieces {
            assert!(span.start == at && span.end > at, "{:?} at {at}: {span:?}", track.stream);
            at = span.end;
        }
        let idle: u64 = causes.iter().map(|cause| track.idle(*cause)).sum();
        assert_eq!((at, track.busy() + idle), (end, end), "{:?}", track.stream);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn streams_are_recorded_without_gaps_and_overlaps(
        scheduler in 0..SCHEDULERS.len(),
        seed in any::<u64>(),
        megabytes in 9_u64..60,
        tasks in proptest::collection::vec((0_usize..8, 0_usize..8, 0_u16..2), 1..60),
    ) {
        let machine = machine(2, megabytes << 20);
        let noise = Noise { deviation: 0.3, seed };
        let mut runtime = runtime(&machine, (SCHEDULERS[scheduler].make)(), noise);
        runtime.coordinator_mut().record();
        let handles: Vec<HandleId> =
            (0..8).map(|_| runtime.register(3 << 20, Some(HOST)).expect("room")).collect();
        for (read, written, kernel) in tasks {
            let read = (read != written).then_some((handles[read], Mode::Read));
            let accesses = read.into_iter().chain([(handles[written], Mode::ReadWrite)]);
            runtime.submit(Task::new(KernelId(kernel), accesses)).expect("a task");
        }
        runtime.wait().expect("all run");
        let tracks = tracks(&runtime);
        let end = het_runtime::Driver::now(runtime.driver());
        check(&tracks, end);
        for device in machine.device_ids() {
            let own = tracks.iter().find(|track| track.stream == StreamId::Compute(device));
            let spans = runtime.driver().spans().iter().filter(|span| span.device == device);
            let ran: u64 = spans.map(|span| span.end - span.start).sum();
            assert_eq!(own.map(Track::busy), Some(ran), "nothing was cut off");
        }
        let copies = |is_in: bool| {
            let own = tracks.iter().filter(|track| match track.stream {
                StreamId::CopyIn(..) => is_in,
                StreamId::CopyOut(..) => !is_in,
                StreamId::Compute(_) => false,
            });
            own.map(Track::busy).sum::<u64>()
        };
        assert_eq!(copies(true), copies(false), "what leaves a memory gets to another");
    }
}

fn compute(tracks: &[Track], row: usize) -> Vec<(u64, Work)> {
    let pieces = tracks[row].pieces.iter();
    pieces.map(|piece| ((piece.span.end + MS / 2) / MS, piece.work)).collect()
}

#[test]
fn what_a_device_waits_for_is_told() {
    let machine = machine(2, 9 << 20);
    let mut runtime = runtime(&machine, Box::new(Adaptive::default()), Noise::default());
    assert!(runtime.coordinator().timeline().is_none(), "nobody asked for it");
    runtime.coordinator_mut().record();
    let handles = [(); 2].map(|()| runtime.register(8 << 20, Some(HOST)).expect("room"));
    // One after the other: eight milliseconds to copy, ten to run.
    runtime.submit(Task::new(KernelId(1), [(handles[0], Mode::ReadWrite)])).expect("a task");
    let behind = [(handles[0], Mode::Read)];
    runtime.submit(Task::new(KernelId(1), behind)).expect("a task");
    runtime.wait().expect("all run");
    let tracks = tracks(&runtime);
    let task = |sequence| Work::Task { kernel: KernelId(1), sequence, has_failed: false };
    let first = compute(&tracks, 1);
    assert_eq!(first, [(8, Work::Idle(Idle::Transfer)), (18, task(0)), (28, task(1))]);
    assert_eq!(compute(&tracks, 2)[0].1, Work::Idle(Idle::Data), "it might have the second");
    assert_eq!(compute(&tracks, 0), [(28, Work::Idle(Idle::Nothing))], "it has no such kernel");
}

#[test]
fn a_device_without_room_waits_for_memory() {
    let machine = machine(1, 9 << 20);
    let mut runtime = runtime(&machine, Box::new(Adaptive::default()), Noise::default());
    runtime.coordinator_mut().record();
    // What the first leaves has to be written back before the second has room.
    for _ in 0..2 {
        let handle = runtime.register(8 << 20, Some(HOST)).expect("room");
        runtime.submit(Task::new(KernelId(1), [(handle, Mode::ReadWrite)])).expect("a task");
    }
    runtime.wait().expect("all run");
    let tracks = tracks(&runtime);
    assert!(tracks[1].idle(Idle::Memory) > 7 * MS, "{:?}", tracks[1].pieces);
}

#[test]
fn a_trace_is_json_with_a_track_a_stream() {
    let machine = machine(1, 60 << 20);
    let mut runtime = runtime(&machine, Box::new(Adaptive::default()), Noise::default());
    assert!(runtime.coordinator().trace().is_none());
    runtime.coordinator_mut().record();
    let handle = runtime.register(8 << 20, Some(HOST)).expect("room");
    for _ in 0..3 {
        runtime.submit(Task::new(KernelId(1), [(handle, Mode::ReadWrite)])).expect("a task");
    }
    runtime.wait().expect("all run");
    let trace = runtime.coordinator().trace().expect("it is recorded");
    let trace: serde_json::Value = serde_json::from_str(&trace).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let of = |kind: &str| events.iter().filter(|event| event["cat"] == *kind).count();
    assert_eq!((of("task"), of("copy")), (3, 2), "a copy is in both memories' tracks");
    let named = events.iter().filter(|event| event["name"] == "thread_name");
    let names: Vec<&str> = named.filter_map(|event| event["args"]["name"].as_str()).collect();
    assert_eq!(
        names,
        ["device \"0\": compute", "device \"1\": compute", "memory1: copy in", "memory0: copy out"]
    );
    let task = events.iter().find(|event| event["cat"] == "task").expect("three");
    assert_eq!(task["dur"].as_f64(), Some(10_000.0));
}
