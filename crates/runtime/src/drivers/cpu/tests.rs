use super::*;

use het_core::Bytes;

use crate::schedulers::WorkStealing;
use crate::{Begin, Coordinator, Device, KernelInfo, Link, Memory, Model, RunError, Runtime, Task};
use crate::{KernelId, Mode};

/// So many threads, each with a memory of its own if there are several memories.
fn machine(threads: u16, memories: u16) -> Arc<Machine> {
    let device = |row: u16| Device {
        name: format!("cpu{row}"),
        class: "cpu".to_owned(),
        memory: MemoryId(row % memories),
        wake: lane::WAKE,
    };
    let memory = |row| Memory { name: format!("memory{row}"), capacity: Bytes(u64::MAX) };
    let links = (1..usize::from(memories)).flat_map(|row| Link::both(0, row, 1e9, 1_000));
    let devices = (0..threads).map(device).collect();
    let memories = (0..memories).map(memory).collect();
    Arc::new(Machine::new(devices, memories, 0, links.collect()).expect("a machine"))
}

fn add(arguments: &Arguments<'_, Vec<f32>>) -> Result<(), String> {
    let other = arguments.read(0, Vec::clone)?;
    arguments.write(1, |own| {
        for (own, other) in own.iter_mut().zip(other) {
            *own += other;
        }
    })
}

fn runtime(machine: &Arc<Machine>, code: Code<Vec<f32>>) -> Runtime<Cpu<Vec<f32>>> {
    let kernels = vec![KernelInfo { name: "kernel".to_owned(), classes: Vec::new() }];
    let model = Model::new(vec!["kernel".to_owned()], machine.classes().to_vec());
    let scheduler = Box::new(WorkStealing::default());
    let coordinator = Coordinator::new(Arc::clone(machine), kernels, model, scheduler);
    let driver = Cpu::new(machine, vec![code]).expect("threads");
    Runtime::new(coordinator, driver, Begin::Every(8))
}

fn put(runtime: &mut Runtime<Cpu<Vec<f32>>>, content: Vec<f32>) -> HandleId {
    let bytes = 4 * content.len() as u64;
    let handle = runtime.register(bytes, Some(MemoryId(0))).expect("room");
    runtime.driver().put(handle, MemoryId(0), content);
    handle
}

fn content(runtime: &Runtime<Cpu<Vec<f32>>>, handle: HandleId) -> Vec<f32> {
    let memory = runtime.coordinator().data().copies(handle).next().expect("a valid copy");
    runtime.driver().look(handle, memory, Vec::clone)
}

#[test]
fn kernels_compute_what_the_order_of_submission_says() {
    for (threads, memories) in [(1, 1), (2, 1), (3, 3)] {
        let machine = machine(threads, memories);
        let mut runtime = runtime(&machine, Box::new(add));
        let one = put(&mut runtime, vec![1.0; 3]);
        let sums: Vec<HandleId> = (0..4).map(|_| put(&mut runtime, vec![0.0; 3])).collect();
        for round in 0..400 {
            let accesses = [(one, Mode::Read), (sums[round % 4], Mode::ReadWrite)];
            runtime.submit(Task::new(KernelId(0), accesses)).expect("a task");
        }
        let all = [(sums[0], Mode::Read), (sums[1], Mode::ReadWrite)];
        runtime.submit(Task::new(KernelId(0), all)).expect("a task");
        runtime.wait().expect("all run");
        assert_eq!(content(&runtime, sums[0]), [100.0; 3]);
        assert_eq!(content(&runtime, sums[1]), [200.0; 3]);
        runtime.coordinator().check();
    }
}

#[test]
fn a_kernel_that_panics_fails_its_task_and_what_reads_it() {
    let machine = machine(2, 1);
    let code = |arguments: &Arguments<'_, Vec<f32>>| match arguments.parameter() {
        1 => panic!("no such luck"),
        _ => Ok(()),
    };
    let mut runtime = runtime(&machine, Box::new(code));
    let [a, b] = [0, 1].map(|_| put(&mut runtime, vec![1.0]));
    let task = |accesses: &[(HandleId, Mode)]| Task::new(KernelId(0), accesses.iter().copied());
    runtime.submit(task(&[(a, Mode::ReadWrite)]).parameter(1)).expect("a task");
    runtime.submit(task(&[(a, Mode::Read), (b, Mode::ReadWrite)])).expect("a task");
    let error = runtime.wait().expect_err("one fails");
    assert!(matches!(&error, RunError::Lost(losses) if losses[0].lost == [a, b]), "{error:?}");
    assert_eq!(
        error.to_string(),
        "kernel `kernel` failed: it panicked: no such luck; 2 tasks were not run and 2 handles \
         have no content"
    );
    runtime.provide(a, MemoryId(0)).expect("nobody uses it");
    runtime.submit(task(&[(a, Mode::ReadWrite)])).expect("it has content again");
    runtime.wait().expect("it runs");
}

#[test]
fn a_released_handle_is_gone() {
    let machine = machine(1, 1);
    let mut runtime = runtime(&machine, Box::new(add));
    let [a, b] = [0, 1].map(|_| put(&mut runtime, vec![1.0]));
    let task = Task::new(KernelId(0), [(a, Mode::Read), (b, Mode::ReadWrite)]);
    runtime.submit(task.clone()).expect("a task");
    runtime.release(a).expect("it is waited for");
    assert!(runtime.submit(task).is_err());
    assert_eq!(runtime.coordinator().data().used(MemoryId(0)), 4);
}
