//! What goes between a program and its workers, whose ends are played by hand.

use std::io::Write;
use std::os::unix::net::UnixStream;

use het_core::Bytes;

use super::protocol::{CHUNK, Chunk, Hello, Order, Report, TOKEN};
use super::socket::{Frames, Socket};
use super::*;
use crate::machine::Interval;
use crate::{Access, ClassId, Device, DeviceId, KernelId, Memory, Mode, TaskId, TransferId};

/// Nobody comes near these.
const LONG: Limits = Limits {
    handshake: Duration::from_secs(60),
    silence: Duration::from_secs(60),
    taking: Duration::from_secs(60),
    task: Duration::from_secs(60),
    copy: Duration::from_secs(60),
};

const TASK: TaskId = TaskId { row: 0, generation: 0 };

fn handle(row: u32) -> HandleId {
    HandleId { row, generation: 0 }
}

fn transfer(row: u32) -> TransferId {
    TransferId { row, generation: 0 }
}

fn copy(row: u32, (from, to): (u16, u16), bytes: u64) -> CopyOrder {
    let (from, to) = (MemoryId(from), MemoryId(to));
    CopyOrder { transfer: transfer(row), handle: handle(row), from, to, bytes }
}

/// It writes a handle.
fn launch(memory: u16, row: u32) -> Launch {
    Launch {
        task: TASK,
        device: DeviceId(memory),
        class: ClassId(0),
        memory: MemoryId(memory),
        kernel: KernelId(0),
        parameter: 0,
        sequence: 0,
        expected: 0,
        accesses: [Access { handle: handle(row), mode: Mode::Write }].into_iter().collect(),
    }
}

/// What a worker is sent.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Welcome,
    Launch(TaskId),
    /// A part of a content, and where it begins.
    Part(HandleId, u64),
    Fetch(TransferId),
    Drop(HandleId),
    End,
}

struct Hand(Frames);

impl Hand {
    fn say(&mut self, report: &Report<'_>) {
        let mut frame = Vec::new();
        report.write(&mut frame);
        let mut socket = self.0.socket().try_clone().expect("a clone");
        socket.write_all(&frame).expect("the program listens");
    }

    fn hear(&mut self) -> Heard {
        let frame = self.0.next(|_| Ok(())).expect("a frame");
        match Order::read(frame).expect("an order") {
            Order::Welcome { .. } => Heard::Welcome,
            Order::Launch(launch) => Heard::Launch(launch.task),
            Order::Store(handle, chunk) => Heard::Part(handle, chunk.offset),
            Order::Fetch { transfer, .. } => Heard::Fetch(transfer),
            Order::Drop(handle) => Heard::Drop(handle),
            Order::End => Heard::End,
        }
    }

    fn send_content(&mut self, row: u32, content: &[u8]) {
        for (part, bytes) in content.chunks(CHUNK).enumerate() {
            let (total, offset) = (content.len() as u64, (part * CHUNK) as u64);
            self.say(&Report::Content(Chunk { transfer: transfer(row), total, offset, bytes }));
        }
    }
}

/// A host, and so many workers beside it.
fn machine(workers: u16) -> Machine {
    let device = |row: u16| Device {
        name: format!("device{row}"),
        class: "any".to_owned(),
        memory: MemoryId(row),
        wake: 0,
    };
    let memory = |row: u16| Memory { name: format!("memory{row}"), capacity: Bytes(1 << 30) };
    let links = (1..=usize::from(workers)).flat_map(|row| crate::Link::both(0, row, 1e9, 0));
    let devices = (0..=workers).map(device).collect();
    let memories = (0..=workers).map(memory).collect();
    Machine::new(devices, memories, 0, links.collect()).expect("a machine")
}

/// Workers that have said who they are.
fn workers(count: u16) -> (Vec<Hand>, Vec<(MemoryId, Peer)>) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let listener = Listener::unix(&path).expect("a socket");
    let worker = |row| {
        let stream = UnixStream::connect(&path).expect("a program");
        let mut hand = Hand(Frames::new(Socket::Unix(stream)));
        let name = || "any".to_owned();
        let (token, capacity) = ([0; TOKEN], 1 << 30);
        let kernels = Vec::new();
        hand.say(&Report::Hello(Hello { token, device: name(), class: name(), capacity, kernels }));
        (hand, (MemoryId(row), listener.accept(&LONG).expect("a worker")))
    };
    (1..=count).map(worker).unzip()
}

fn driver(peers: Vec<(MemoryId, Peer)>) -> Process<Vec<u8>> {
    let machine = machine(peers.len() as u16);
    Process::new(&machine, (&[], Vec::new()), peers, LONG).expect("a driver")
}

/// Waits for so many completions.
fn completions(driver: &mut Process<Vec<u8>>, count: usize) -> Vec<Completion> {
    let mut found = Vec::new();
    while found.len() < count {
        driver.completions(Wait::ForOne, &mut found);
    }
    found
}

/// Nothing is under way: waiting for it would otherwise never end.
fn check_idle(driver: &mut Process<Vec<u8>>) {
    let mut found = Vec::new();
    driver.completions(Wait::ForOne, &mut found);
    assert_eq!(found, []);
}

#[test]
fn nothing_of_a_lost_source_lands_in_a_buffer_that_is_used_again() {
    let (mut hands, peers) = workers(2);
    let mut driver = driver(peers);
    let (mut second, mut first) = (hands.remove(1), hands.remove(0));
    let parts = 8;
    let large = parts * CHUNK;
    // Of the first a part will be sent on, of the second none, and the third will not have come.
    for (row, bytes) in [(1, large as u64), (2, 8), (3, 8)] {
        driver.copy(copy(row, (1, 2), bytes));
    }
    driver.flush();
    assert_eq!(first.hear(), Heard::Welcome);
    assert_eq!([(); 3].map(|()| first.hear()), [1, 2, 3].map(|row| Heard::Fetch(transfer(row))));
    first.send_content(1, &vec![7; large]);
    first.send_content(2, &[7; 8]);
    drop(first);
    let lost = completions(&mut driver, 1);
    assert!(matches!(lost[..], [Completion::MemoryLost { memory: MemoryId(1), .. }]), "{lost:?}");
    assert_eq!([(); 2].map(|()| second.hear()), [Heard::Welcome, Heard::Part(handle(1), 0)]);

    for row in 1..=3 {
        driver.drop_buffer(handle(row), MemoryId(2));
    }
    driver.launch(launch(2, 1));
    driver.flush();
    let rest = (1..parts).map(|part| Heard::Part(handle(1), (part * CHUNK) as u64));
    let dropped = (1..=3).map(|row| Heard::Drop(handle(row)));
    for expected in rest.chain(dropped).chain([Heard::Launch(TASK)]) {
        assert_eq!(second.hear(), expected);
    }
    second.say(&Report::Stored { transfer: transfer(1) });
    second.say(&Report::Ended { task: TASK, ran: Interval { start: 0, end: 0 } });
    let ended = completions(&mut driver, 2);
    assert!(matches!(ended[0], Completion::Copied { .. }), "{ended:?}");
    assert!(matches!(ended[1], Completion::Ended { .. }), "{ended:?}");
    check_idle(&mut driver);
}

#[test]
fn a_copy_between_workers_ends_once() {
    let (mut hands, peers) = workers(2);
    let mut driver = driver(peers);
    let (mut second, mut first) = (hands.remove(1), hands.remove(0));
    for row in [1, 2] {
        driver.copy(copy(row, (1, 2), 8));
    }
    driver.flush();
    first.say(&Report::CopyFailed { transfer: transfer(1), reason: "it broke".to_owned() });
    first.send_content(2, &[7; 8]);
    assert_eq!([(); 2].map(|()| second.hear()), [Heard::Welcome, Heard::Part(handle(2), 0)]);
    second.say(&Report::Stored { transfer: transfer(2) });
    let ended = completions(&mut driver, 2);
    assert!(matches!(ended[0], Completion::CopyFailed { .. }), "{ended:?}");
    assert!(matches!(ended[1], Completion::Copied { .. }), "{ended:?}");
    check_idle(&mut driver);

    // Whichever end of it is lost.
    driver.copy(copy(3, (2, 1), 8));
    driver.flush();
    drop(first);
    assert!(matches!(completions(&mut driver, 1)[..], [Completion::MemoryLost { .. }]));
    assert_eq!(second.hear(), Heard::Fetch(transfer(3)));
    second.send_content(3, &[7; 8]);
    driver.launch(launch(2, 1));
    driver.flush();
    assert_eq!(second.hear(), Heard::Launch(TASK));
    second.say(&Report::Ended { task: TASK, ran: Interval { start: 0, end: 0 } });
    assert!(matches!(completions(&mut driver, 1)[..], [Completion::Ended { .. }]));
    check_idle(&mut driver);
}

#[test]
fn a_worker_that_ends_before_it_is_welcomed_is_a_lost_memory_like_others() {
    let (mut hands, peers) = workers(2);
    drop(hands.remove(0));
    let mut driver = driver(peers);
    let reason = "it closed the connection".to_owned();
    let lost = Completion::MemoryLost { memory: MemoryId(1), reason };
    assert_eq!(completions(&mut driver, 1), [lost]);
    driver.launch(launch(2, 1));
    driver.flush();
    let mut second = hands.remove(0);
    assert_eq!([(); 2].map(|()| second.hear()), [Heard::Welcome, Heard::Launch(TASK)]);
    second.say(&Report::Ended { task: TASK, ran: Interval { start: 0, end: 0 } });
    assert!(matches!(completions(&mut driver, 1)[..], [Completion::Ended { .. }]));
    check_idle(&mut driver);
}

#[test]
fn a_worker_reports_what_has_ended_before_what_may_take_long() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let listener = Listener::unix(&path).expect("a socket");
    let (release, released) = std::sync::mpsc::channel();
    let released = std::sync::Mutex::new(released);
    let short: Code<Vec<u8>> = Box::new(|_| Ok(()));
    // The limit ends a test that fails.
    let long: Code<Vec<u8>> = Box::new(move |_| {
        let released = released.lock().map_err(|error| error.to_string())?;
        released.recv_timeout(Duration::from_secs(30)).map_err(|error| error.to_string())
    });
    let worker = std::thread::spawn(move || {
        let connection = Connection::unix(&path).expect("a program");
        let named = |name: &str, code| (name.to_owned(), code);
        let kernels = vec![named("short", short), named("long", long)];
        serve(connection, ("any", "any", 1 << 30), kernels)
    });
    let peer = listener.accept(&LONG).expect("a worker");
    let kernel = |name: &str| KernelInfo { name: name.to_owned(), classes: Vec::new() };
    let kernels = [kernel("short"), kernel("long")];
    let peers = vec![(MemoryId(1), peer)];
    let mut driver = Process::new(&machine(1), (&kernels, Vec::new()), peers, LONG);
    let driver = driver.as_mut().expect("a driver");
    let second = TaskId { row: 1, generation: 0 };
    driver.launch(launch(1, 1));
    let long = Launch { task: second, kernel: KernelId(1), expected: Nanos::MAX, ..launch(1, 2) };
    driver.launch(long);
    driver.flush();
    let found = completions(driver, 1);
    assert!(matches!(found[..], [Completion::Ended { task: TASK, .. }]), "{found:?}");
    release.send(()).expect("it waits");
    let found = completions(driver, 1);
    assert!(matches!(found[..], [Completion::Ended { task, .. }] if task == second), "{found:?}");
    drop(std::mem::replace(driver, self::driver(Vec::new())));
    worker.join().expect("it does not panic").expect("the program keeps to the protocol");
}

#[test]
fn a_worker_tells_the_end_of_a_run_from_a_program_that_is_gone() {
    let (mut hands, peers) = workers(1);
    drop(driver(peers));
    assert_eq!([(); 2].map(|()| hands[0].hear()), [Heard::Welcome, Heard::End]);

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let listener = Listener::unix(&path).expect("a socket");
    for has_said in [true, false] {
        let path = path.clone();
        let worker = std::thread::spawn(move || {
            let connection = Connection::unix(&path).expect("a program");
            serve::<Vec<u8>>(connection, ("any", "any", 1 << 30), Vec::new())
        });
        let peer = listener.accept(&LONG).expect("a worker");
        let mut program = Vec::new();
        Order::Welcome { silence_ms: 10_000, kernels: Vec::new() }.write(&mut program);
        if has_said {
            Order::End.write(&mut program);
        }
        let mut socket = peer.frames.socket().try_clone().expect("a clone");
        socket.write_all(&program).expect("it listens");
        socket.shutdown();
        let served = worker.join().expect("it does not panic");
        assert_eq!(matches!(served, Err(WorkerError::Gone)), !has_said, "{served:?}");
    }
}

#[test]
fn who_left_while_it_waited_is_seen() {
    let (mut hands, peers) = workers(2);
    drop(hands.remove(0));
    assert_eq!(peers.iter().map(|(_, peer)| peer.is_gone()).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_worker_of_another_version_is_not_let_in() {
    let (_hands, peers) = workers(1);
    let kernels = [KernelInfo { name: "new".to_owned(), classes: Vec::new() }];
    let refused = Process::<Vec<u8>>::new(&machine(1), (&kernels, Vec::new()), peers, LONG);
    let error = refused.expect_err("it lacks a kernel").to_string();
    assert!(error.contains("has no kernel `new`"), "{error}");
}
