//! Runs on devices of virtual time: transfers behind compute, devices that are lost, and the log
//! of choices.

use std::sync::Arc;

use het_core::Bytes;
use het_runtime::drivers::dummy::{Dummy, Noise, Speed, Truth};
use het_runtime::schedulers::{Adaptive, SCHEDULERS};
use het_runtime::{
    BACKGROUND, Begin, Coordinator, Device, DeviceId, Driver, HandleId, KernelId, KernelInfo, Link,
    Machine, Memory, MemoryId, Mode, Model, Nanos, RunError, Runtime, Scheduler, Stream, Task,
};

const MS: u64 = 1_000_000;

/// Accelerators with memories of their own, 1 GB/s from the host each.
fn machine(accelerators: u16) -> Arc<Machine> {
    let device = |row: u16| Device {
        name: format!("gpu{row}"),
        class: "gpu".to_owned(),
        memory: MemoryId(row + 1),
        wake: 0,
    };
    let memory = |row: u16| Memory { name: format!("memory{row}"), capacity: Bytes(1 << 40) };
    let links = (1..=usize::from(accelerators)).flat_map(|row| Link::both(0, row, 1e9, 0));
    let devices = (0..accelerators).map(device).collect();
    let memories = (0..=accelerators).map(memory).collect();
    Arc::new(Machine::new(devices, memories, 0, links.collect()).expect("a machine"))
}

/// One kernel of ten milliseconds.
fn runtime(machine: &Arc<Machine>, scheduler: Box<dyn Scheduler>) -> Runtime<Dummy> {
    let kernels = vec![KernelInfo { name: "kernel".to_owned(), classes: Vec::new() }];
    let model = Model::new(vec!["kernel".to_owned()], machine.classes().to_vec())
        .with_prior(Box::new(|_, _, _| Some(10.0 * MS as f64)));
    let coordinator = Coordinator::new(Arc::clone(machine), kernels, model, scheduler);
    let speed = Speed { nanos: 10.0 * MS as f64, nanos_per_byte: 0.0 };
    let truth = Truth { speeds: vec![vec![Some(speed)]], noise: Noise::default() };
    Runtime::new(coordinator, Dummy::new(Arc::clone(machine), truth), Begin::WhenFlushed)
}

fn handles(runtime: &mut Runtime<Dummy>, count: usize, bytes: u64) -> Vec<HandleId> {
    let host = Some(MemoryId(0));
    (0..count).map(|_| runtime.register(bytes, host).expect("room")).collect()
}

fn task(handle: HandleId) -> Task {
    Task::new(KernelId(0), [(handle, Mode::ReadWrite)])
}

#[test]
fn transfers_hide_behind_compute() {
    let machine = machine(1);
    for kind in SCHEDULERS {
        let mut runtime = runtime(&machine, (kind.make)());
        // Eight milliseconds each to copy, ten to compute on.
        for handle in handles(&mut runtime, 20, 8 << 20) {
            runtime.submit(task(handle)).expect("a task");
        }
        runtime.wait().expect("all run");
        let end = runtime.driver().spans().last().expect("tasks ran").end;
        // Only the first copy is seen.
        assert!(end < (8 + 200 + 2) * MS, "{}: {} ms", kind.name, end / MS);
    }
}

#[test]
fn what_is_in_the_background_costs_the_others_nothing() {
    let machine = machine(2);
    for kind in SCHEDULERS.iter().filter(|kind| kind.name != "heft") {
        let end = |background: usize| {
            let mut runtime = runtime(&machine, (kind.make)());
            let handles = handles(&mut runtime, 12 + background, 1_000);
            let (own, rest) = handles.split_at(12);
            for handle in rest {
                runtime.submit(task(*handle).priority(BACKGROUND)).expect("a task");
            }
            for _ in 0..3 {
                for handle in own {
                    runtime.submit(task(*handle)).expect("a task");
                }
            }
            runtime.wait().expect("all run");
            let (left, end) = (runtime.coordinator().background(), runtime.driver().now());
            assert_eq!(left, background, "{}: the devices were never idle", kind.name);
            runtime.wait_for_all().expect("the rest, too");
            assert_eq!(runtime.coordinator().unfinished(), 0);
            let streams = runtime.coordinator().view().streams.iter();
            (end, streams.map(Stream::busy).sum::<Nanos>())
        };
        assert_eq!(end(20), end(0), "{}", kind.name);
    }
}

#[test]
fn tasks_in_the_background_that_are_lost_are_no_loss_of_the_others() {
    let machine = machine(2);
    let mut runtime = runtime(&machine, Box::new(Adaptive::default()));
    let [first, second] = handles(&mut runtime, 2, 1_000)[..] else { panic!("two") };
    for _ in 0..4 {
        runtime.submit(task(first)).expect("a task");
        runtime.submit(task(second).priority(BACKGROUND)).expect("a task");
    }
    runtime.driver_mut().lose_memory(MemoryId(2), 15 * MS);
    let lost = match runtime.wait_for_all() {
        Err(RunError::Lost(losses)) => losses,
        other => panic!("{other:?}"),
    };
    let [loss] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!((loss.background, loss.cancelled.len()), (3, 0));
}

#[test]
fn tasks_of_a_lost_device_run_elsewhere() {
    let machine = machine(2);
    for kind in SCHEDULERS {
        let mut runtime = runtime(&machine, (kind.make)());
        let handles = handles(&mut runtime, 20, 1_000);
        for handle in &handles {
            runtime.submit(task(*handle)).expect("a task");
        }
        // It is in the first task then, whose data lies with the host, too.
        runtime.driver_mut().lose_memory(MemoryId(1), 5 * MS);
        runtime.wait().unwrap_or_else(|error| panic!("{}: {error}", kind.name));
        for handle in handles {
            let mut copies = runtime.coordinator().data().copies(handle);
            assert_eq!(copies.next(), Some(MemoryId(2)), "{}", kind.name);
        }
    }
}

#[test]
fn what_only_a_lost_memory_had_is_named() {
    let machine = machine(2);
    let mut runtime = runtime(&machine, Box::new(Adaptive::default()));
    let handles = handles(&mut runtime, 2, 1_000);
    for _ in 0..4 {
        for handle in &handles {
            runtime.submit(task(*handle)).expect("a task");
        }
    }
    runtime.driver_mut().lose_memory(MemoryId(1), 15 * MS);
    let error = runtime.wait().expect_err("one chain is lost");
    let RunError::Lost(losses) = error else { panic!("{error}") };
    assert_eq!(losses.len(), 1);
    assert_eq!((losses[0].lost.len(), losses[0].cancelled.len()), (1, 3));
}

#[test]
fn a_copy_is_brought_where_it_is_asked_for() {
    let machine = machine(1);
    let mut runtime = runtime(&machine, Box::new(Adaptive::default()));
    let handle = handles(&mut runtime, 1, 8 << 20)[0];
    runtime.submit(task(handle)).expect("a task");
    runtime.wait().expect("it runs");
    let host = MemoryId(0);
    assert!(!runtime.coordinator().data().is_valid(handle, host));
    assert!(runtime.bring(handle, host));
    assert!(runtime.coordinator().data().is_valid(handle, host));
    runtime.driver_mut().lose_memory(MemoryId(1), 0);
    let empty = runtime.register(8, None).expect("room");
    assert!(!runtime.bring(empty, host), "there is none");
}

#[test]
fn a_second_copy_survives() {
    let machine = machine(2);
    let mut runtime = runtime(&machine, Box::new(Adaptive::default()));
    let handles = handles(&mut runtime, 2, 1_000);
    runtime.submit(task(handles[0])).expect("a task");
    runtime.wait().expect("it runs");
    let own = runtime.coordinator().data().copies(handles[0]).next().expect("written");
    runtime.replicate(handles[0], MemoryId(0));
    // It is copied beside the next task, during which the first memory is lost.
    runtime.driver_mut().lose_memory(own, 15 * MS);
    runtime.submit(task(handles[1])).expect("a task");
    runtime.wait().expect("it runs, if need be again");
    let copies: Vec<MemoryId> = runtime.coordinator().data().copies(handles[0]).collect();
    assert_eq!(copies, [MemoryId(0)]);
    runtime.submit(task(handles[0])).expect("a task");
    runtime.wait().expect("the other device has the host's copy");
}

#[test]
fn choices_are_logged_with_their_terms_and_outcomes() {
    let machine = machine(2);
    let mut runtime = runtime(&machine, Box::new(Adaptive::logged()));
    for handle in handles(&mut runtime, 6, 1_000) {
        runtime.submit(task(handle)).expect("a task");
    }
    runtime.wait().expect("all run");
    let log = runtime.coordinator_mut().scheduler_mut().take_log();
    assert_eq!(log.len(), 6);
    for choice in log {
        assert_eq!(choice.candidates.len(), 2);
        assert!(choice.chosen == DeviceId(0) || choice.chosen == DeviceId(1));
        assert_eq!(choice.took, Some(10 * MS));
    }
}

#[test]
fn for_one_device_nothing_is_planned() {
    let machine = machine(1);
    let mut runtime = runtime(&machine, Box::new(Adaptive::logged()));
    for (handle, priority) in handles(&mut runtime, 6, 1_000).into_iter().zip([0, 0, 1, 0, 1, 2]) {
        runtime.submit(task(handle).priority(priority)).expect("a task");
    }
    runtime.wait().expect("all run");
    let log = runtime.coordinator_mut().scheduler_mut().take_log();
    let order: Vec<u64> = log.iter().map(|choice| choice.sequence).collect();
    assert_eq!(order, [5, 2, 4, 0, 1, 3], "by priority and arrival");
    assert!(log.iter().all(|choice| choice.reason != "plan"), "{log:?}");
}
