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
fn what_each_kernel_took_is_counted() {
    let machine = machine(1, 1);
    let mut runtime = runtime(&machine, Box::new(add));
    let [a, b] = [0, 1].map(|_| put(&mut runtime, vec![1.0]));
    for _ in 0..3 {
        let task = Task::new(KernelId(0), [(a, Mode::Read), (b, Mode::ReadWrite)]);
        runtime.submit(task).expect("a task");
    }
    runtime.wait().expect("all run");
    let times = runtime.coordinator().times();
    assert_eq!(times.iter().map(|time| time.count).collect::<Vec<_>>(), [3]);
    assert!(times[0].total > 0);
}

#[test]
fn a_buffer_that_is_only_read_is_not_changed() {
    let machine = machine(1, 1);
    let code = |arguments: &Arguments<'_, Vec<f32>>| {
        let held = arguments.hold();
        *held.write(1)? = held.read(0)?.clone();
        held.write(0).map(|_| ())
    };
    let mut runtime = runtime(&machine, Box::new(code));
    let [a, b] = [2.0, 1.0].map(|value| put(&mut runtime, vec![value]));
    let task = Task::new(KernelId(0), [(a, Mode::Read), (b, Mode::ReadWrite)]);
    runtime.submit(task).expect("a task");
    let error = runtime.wait().expect_err("it asks for too much");
    assert!(error.to_string().contains("access 0 of the task only reads"), "{error}");
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

/// A content whose copies fail.
#[derive(Default)]
struct Brittle(f32);

impl Clone for Brittle {
    fn clone(&self) -> Self {
        assert!(self.0 < 7.0, "{} can't be copied", self.0);
        Self(self.0)
    }
}

#[test]
fn a_copy_that_panics_fails_what_reads_it_and_nothing_else() {
    let machine = machine(2, 2);
    let kernels = vec![KernelInfo { name: "kernel".to_owned(), classes: vec!["cpu".to_owned()] }];
    let model = Model::new(vec!["kernel".to_owned()], machine.classes().to_vec());
    let scheduler = Box::new(WorkStealing::default());
    let coordinator = Coordinator::new(Arc::clone(&machine), kernels, model, scheduler);
    let code: Code<Brittle> = Box::new(|_| Ok(()));
    let driver = Cpu::new(&machine, vec![code]).expect("threads");
    let mut runtime = Runtime::new(coordinator, driver, Begin::WhenFlushed);
    // One a device: the second has to have a copy.
    let mut read_by_both = |content| {
        let handle = runtime.register(4, Some(MemoryId(0))).expect("room");
        runtime.driver().put(handle, MemoryId(0), Brittle(content));
        for _ in 0..2 {
            runtime.submit(Task::new(KernelId(0), [(handle, Mode::Read)])).expect("a task");
        }
        runtime.wait()
    };
    let error = read_by_both(7.0).expect_err("one fails").to_string();
    assert!(error.contains("from memory 0 to 1 failed: it panicked: 7 can't be copied"), "{error}");
    read_by_both(1.0).expect("the thread that copies is still there");
}

#[test]
fn a_thread_that_can_not_be_had_ends_those_before_it() {
    let mut devices = machine(2, 1).devices().to_vec();
    devices[1].name = "cpu\0".to_owned();
    let memories = machine(2, 1).memories().to_vec();
    let machine = Machine::new(devices, memories, 0, Vec::new()).expect("a machine");
    let code: Code<Vec<f32>> = Box::new(add);
    let error = Cpu::new(&machine, vec![code]).expect_err("refused").to_string();
    assert_eq!(error, "device `cpu\\u{0}` has a zero byte in its name");
}

#[test]
fn what_has_ended_is_reported_before_what_may_take_long() {
    let machine = machine(1, 1);
    let (release, released) = std::sync::mpsc::channel();
    let released = std::sync::Mutex::new(released);
    let short: Code<Vec<f32>> = Box::new(|_| Ok(()));
    // The limit ends a test that fails.
    let long: Code<Vec<f32>> = Box::new(move |_| {
        let released = released.lock().map_err(|error| error.to_string())?;
        released.recv_timeout(std::time::Duration::from_secs(30)).map_err(|error| error.to_string())
    });
    let mut driver = Cpu::new(&machine, vec![short, long]).expect("threads");
    let launch = |row: u16, expected| Launch {
        task: crate::TaskId { row: u32::from(row), generation: 0 },
        device: DeviceId(0),
        class: crate::ClassId(0),
        memory: MemoryId(0),
        kernel: KernelId(row),
        parameter: 0,
        sequence: u64::from(row),
        expected,
        accesses: crate::Accesses::new(),
    };
    driver.launch(launch(0, 5_000));
    driver.launch(launch(1, Nanos::MAX));
    driver.flush();
    let mut found = Vec::new();
    driver.completions(Wait::ForOne, &mut found);
    assert!(matches!(found[..], [Completion::Ended { task, .. }] if task.row == 0), "{found:?}");
    release.send(()).expect("it waits");
    driver.completions(Wait::ForOne, &mut found);
    assert!(matches!(found[1..], [Completion::Ended { task, .. }] if task.row == 1), "{found:?}");
}
