//! Real processes: results are those of one device, whoever is killed and when.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use het_runtime::drivers::cpu::Code;
use het_runtime::drivers::process::{ConnectError, Limits, Listener, Token};
use het_runtime::{HandleId, MemoryId, Mode, RunError, Task};

use super::support::{FAR, HOLD, HOST, MIX, Program, Worker, listener, mix, program, register};

const STEPS: usize = 5;

/// Of the one worker.
const FAR_MEMORY: MemoryId = MemoryId(1);

/// Handles that go from step to step.
const WEIGHTS: usize = 4;

const LAYERS: usize = 6;

/// Tasks of one step but for those that hold its results.
const TASKS: usize = WEIGHTS * LAYERS + WEIGHTS;

/// One step: tasks of several layers from the weights, new weights from all of that. The old ones
/// stay until the new ones lie with the program, so that a step can be begun again.
fn submit(
    program: &mut Program,
    step: usize,
    (old, new, between): (&[HandleId], &[HandleId], &[HandleId]),
) {
    let mut send = |kernel, row: usize, accesses: Vec<(HandleId, Mode)>| {
        let parameter = (step * 1_000 + row) as u64;
        program.submit(Task::new(kernel, accesses).parameter(parameter)).expect("a task");
    };
    for layer in 0..LAYERS {
        for place in 0..WEIGHTS {
            let mut accesses = vec![(old[place], Mode::Read)];
            if layer > 0 {
                let before = (layer - 1) * WEIGHTS;
                accesses.push((between[before + place], Mode::Read));
                accesses.push((between[before + (place + 1) % WEIGHTS], Mode::Read));
            }
            accesses.push((between[layer * WEIGHTS + place], Mode::Write));
            send(MIX, layer * WEIGHTS + place, accesses);
        }
    }
    for place in 0..WEIGHTS {
        let last = between[(LAYERS - 1) * WEIGHTS + place];
        let accesses =
            vec![(old[place], Mode::Read), (last, Mode::Read), (new[place], Mode::Write)];
        send(MIX, TASKS - WEIGHTS + place, accesses);
        send(HOLD, 0, vec![(new[place], Mode::Read)]);
    }
}

/// All steps; one that lost something is begun again. Returns the last weights, and how many
/// steps were.
fn train(program: &mut Program) -> (Vec<Vec<u8>>, usize) {
    let first = |row: usize| Some(vec![row as u8; super::support::BYTES]);
    let mut old: Vec<HandleId> = (0..WEIGHTS).map(|row| register(program, first(row))).collect();
    let mut new: Vec<HandleId> = (0..WEIGHTS).map(|_| register(program, None)).collect();
    let between: Vec<HandleId> = (0..WEIGHTS * LAYERS).map(|_| register(program, None)).collect();
    let mut again = 0;
    for step in 0..STEPS {
        loop {
            submit(program, step, (&old, &new, &between));
            match program.wait() {
                Ok(()) => break,
                Err(RunError::Lost(_)) => again += 1,
                Err(error) => panic!("{error}"),
            }
        }
        std::mem::swap(&mut old, &mut new);
        program.coordinator().check();
    }
    let content = |handle: &HandleId| {
        assert!(program.coordinator().data().is_valid(*handle, HOST));
        program.driver().look(*handle, HOST, Vec::clone)
    };
    (old.iter().map(content).collect(), again)
}

fn on_one_device() -> Vec<Vec<u8>> {
    train(&mut program(Vec::new(), Box::new(mix), Limits::default())).0
}

fn with_workers(address: &str, listener: &Listener, count: usize) -> (Vec<Worker>, Program) {
    let workers: Vec<Worker> = (0..count).map(|_| Worker::start(address)).collect();
    let peers = (0..count).map(|_| listener.accept(&Limits::default()).expect("a worker"));
    let peers: Vec<_> = peers.collect();
    assert!(peers.iter().all(|peer| peer.offer().kernels == ["far", "mix"]));
    (workers, program(peers, Box::new(mix), Limits::default()))
}

#[test]
fn workers_compute_what_one_device_does() {
    let (_directory, address, listener) = listener();
    for count in [1, 2] {
        let (_workers, mut program) = with_workers(&address, &listener, count);
        let (weights, again) = train(&mut program);
        assert_eq!((weights, again), (on_one_device(), 0));
        let traffic = program.coordinator().data().traffic();
        assert!(traffic.transfers > 0, "workers had their part");
    }
}

#[test]
fn the_same_over_tcp_and_only_with_the_token() {
    let token = Token::random().expect("random numbers");
    let listener = Listener::tcp("127.0.0.1:0", token.clone()).expect("a port");
    let address = listener.address().expect("of TCP");
    let other = Token::random().expect("random numbers");
    let _stranger = Worker::start(&format!("{address}#{}", other.to_text()));
    let refused = listener.accept(&Limits::default());
    assert!(matches!(refused, Err(ConnectError::Token)), "{refused:?}");
    let address = format!("{address}#{}", token.to_text());
    let (_workers, mut program) = with_workers(&address, &listener, 1);
    assert_eq!(train(&mut program), (on_one_device(), 0));
}

/// Kernels of the program kill workers at points that follow from the seed.
#[test]
fn killed_workers_cost_a_step_at_most_and_change_nothing() {
    let (_directory, address, listener) = listener();
    let expected = on_one_device();
    for seed in 0..12_usize {
        let workers: Vec<Worker> = (0..2).map(|_| Worker::start(&address)).collect();
        let peers = workers.iter().map(|_| listener.accept(&Limits::default()).expect("a worker"));
        let peers: Vec<_> = peers.collect();
        // One of them, or each at a point of its own.
        let points: Vec<usize> = match seed % 3 {
            0 => vec![1 + seed * 5 % 17],
            _ => vec![1 + seed * 7 % 13, 2 + seed * 11 % 31],
        };
        let kills = points.len();
        let victims = Mutex::new(workers.into_iter().zip(points).collect::<Vec<_>>());
        let ran = AtomicUsize::new(0);
        let host: Code<Vec<u8>> = Box::new(move |arguments| {
            let count = 1 + ran.fetch_add(1, Ordering::SeqCst);
            // Dropping a worker kills it.
            victims.lock().expect("no panic").retain(|(_, point)| *point > count);
            mix(arguments)
        });
        let mut program = program(peers, host, Limits::default());
        let (weights, again) = train(&mut program);
        assert_eq!(weights, expected, "seed {seed}");
        assert!(again <= kills, "seed {seed}: {again} steps were begun again");
    }
}

#[test]
fn a_worker_that_ends_is_told_and_what_only_it_can_do_is_refused_after() {
    let (_directory, address, listener) = listener();
    let (mut workers, mut program) = with_workers(&address, &listener, 1);
    let handle = register(&mut program, Some(vec![1; super::support::BYTES]));
    let task = Task::new(FAR, [(handle, Mode::ReadWrite)]);
    program.submit(task.clone()).expect("a task");
    program.wait().expect("the worker has the kernel");
    drop(workers.remove(0));
    program.submit(task.clone()).expect("nobody has heard of the end yet");
    let error = program.wait().expect_err("nobody else has the kernel").to_string();
    assert!(error.contains("memory 1 was lost: it closed the connection"), "{error}");
    assert!(program.submit(task.clone()).is_err());

    // Until another one has its place.
    let _worker = Worker::start(&address);
    let peer = listener.accept(&Limits::default()).expect("a worker");
    let machine = Arc::clone(program.coordinator().machine());
    program.driver_mut().replace(&machine, FAR_MEMORY, peer).expect("threads");
    assert!(program.coordinator_mut().restore_memory(FAR_MEMORY));
    assert!(!program.coordinator_mut().restore_memory(FAR_MEMORY), "it is not lost");
    program.provide(handle, HOST).expect("room");
    program.driver().put(handle, HOST, vec![1; super::support::BYTES]);
    program.submit(task).expect("a device has the kernel");
    program.wait().expect("the worker is there");
    program.coordinator().check();
}

#[test]
fn a_kernel_that_fails_there_fails_here() {
    let (_directory, address, listener) = listener();
    let (_workers, mut program) = with_workers(&address, &listener, 1);
    let handle = register(&mut program, Some(vec![1; super::support::BYTES]));
    program.submit(Task::new(FAR, [(handle, Mode::Read)])).expect("a task");
    let error = program.wait().expect_err("it writes what it may only read").to_string();
    assert!(error.starts_with("kernel `far` failed: access 0 of the task only reads"), "{error}");
    // The worker goes on.
    let task = Task::new(FAR, [(handle, Mode::ReadWrite)]);
    program.submit(task).expect("a task");
    program.wait().expect("it runs");
}

#[test]
fn a_content_of_another_length_than_its_handle_fails_the_copy() {
    let (_directory, address, listener) = listener();
    let (_workers, mut program) = with_workers(&address, &listener, 1);
    let handle = register(&mut program, Some(vec![1; 3]));
    program.submit(Task::new(FAR, [(handle, Mode::ReadWrite)])).expect("a task");
    let error = program.wait().expect_err("it can't be copied").to_string();
    let told = "a copy from memory 0 to 1 failed: its content has 3 bytes, and the handle 64";
    assert!(error.starts_with(told), "{error}");
}

#[test]
fn contents_go_from_worker_to_worker() {
    let (_directory, address, listener) = listener();
    let (_workers, mut program) = with_workers(&address, &listener, 2);
    let shared: Vec<HandleId> = (0..20).map(|_| register(&mut program, None)).collect();
    let other = register(&mut program, Some(vec![9; super::support::BYTES]));
    for (row, handle) in shared.iter().enumerate() {
        let accesses = [(other, Mode::Read), (*handle, Mode::Write)];
        program.submit(Task::new(FAR, accesses).parameter(row as u64)).expect("a task");
    }
    // Half of what a task reads lies with the other worker, whichever has it.
    for pair in shared.windows(2) {
        let accesses = [(pair[0], Mode::Read), (pair[1], Mode::ReadWrite)];
        program.submit(Task::new(FAR, accesses)).expect("a task");
    }
    let last = *shared.last().expect("twenty");
    program.submit(Task::new(HOLD, [(last, Mode::Read)])).expect("a task");
    program.wait().expect("all run");
    program.coordinator().check();
    assert!(program.coordinator().data().is_valid(last, HOST));
}
