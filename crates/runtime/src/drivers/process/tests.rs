//! What goes between a program and its workers, whose ends are played by hand.

use std::io::Write;
use std::os::unix::net::UnixStream;

use het_core::Bytes;

use super::protocol::{CHUNK, ChannelId, Chunk, Hello, Order, RemoteCopy, Report, TOKEN};
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
    Expect(ChannelId),
    Await(ChannelId, TransferId),
    Open(ChannelId, String),
    Send(ChannelId, TransferId),
    Close(ChannelId),
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
            Order::Fetch(copy) => Heard::Fetch(copy.transfer),
            Order::Drop(handle) => Heard::Drop(handle),
            Order::End => Heard::End,
            Order::Expect(channel, _) => Heard::Expect(channel),
            Order::Await(channel, copy) => Heard::Await(channel, copy.transfer),
            Order::Open(channel, place, _) => Heard::Open(channel, place),
            Order::Send(channel, copy) => Heard::Send(channel, copy.transfer),
            Order::Close(channel) => Heard::Close(channel),
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

/// Workers that have said who they are, and that nobody can come to.
fn workers(count: u16) -> (Vec<Hand>, Vec<(MemoryId, Peer)>) {
    workers_with(count, |_| None)
}

/// Workers that listen where the rows of their memories say.
fn workers_with(
    count: u16,
    place: impl Fn(u16) -> Option<String>,
) -> (Vec<Hand>, Vec<(MemoryId, Peer)>) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let listener = Listener::unix(&path).expect("a socket");
    let worker = |row| {
        let stream = UnixStream::connect(&path).expect("a program");
        let mut hand = Hand(Frames::new(Socket::Unix(stream)));
        let name = || "any".to_owned();
        let (token, capacity) = ([0; TOKEN], 1 << 30);
        let door = place(row);
        let (device, class, kernels) = (name(), name(), Vec::new());
        hand.say(&Report::Hello(Hello { token, device, class, capacity, kernels, door }));
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

const CHANNEL: ChannelId = ChannelId(0);

const CHANNEL_TOKEN: [u8; TOKEN] = [5; TOKEN];

/// Two workers played by hand, with an open channel from the first to the second.
fn channel() -> (Process<Vec<u8>>, Hand, Hand) {
    let (mut hands, peers) = workers_with(2, |row| Some(format!("door{row}")));
    let mut driver = driver(peers);
    let (mut second, mut first) = (hands.remove(1), hands.remove(0));
    driver.copy(copy(9, (1, 2), 8));
    driver.flush();
    assert_eq!([(); 2].map(|()| second.hear()), [Heard::Welcome, Heard::Expect(CHANNEL)]);
    let open = Heard::Open(CHANNEL, "door2".to_owned());
    let heard = [(); 3].map(|()| first.hear());
    assert_eq!(heard, [Heard::Welcome, open, Heard::Fetch(transfer(9))]);
    first.say(&Report::Opened(CHANNEL));
    first.send_content(9, &[7; 8]);
    assert_eq!(second.hear(), Heard::Part(handle(9), 0));
    second.say(&Report::Stored { transfer: transfer(9) });
    assert!(matches!(completions(&mut driver, 1)[..], [Completion::Copied { .. }]));
    (driver, first, second)
}

#[test]
fn a_content_goes_over_an_open_channel() {
    let (mut driver, mut first, mut second) = channel();
    driver.copy(copy(1, (1, 2), 8));
    driver.flush();
    assert_eq!(first.hear(), Heard::Send(CHANNEL, transfer(1)));
    assert_eq!(second.hear(), Heard::Await(CHANNEL, transfer(1)));
    second.say(&Report::Progress(CHANNEL));
    second.say(&Report::Stored { transfer: transfer(1) });
    assert!(matches!(completions(&mut driver, 1)[..], [Completion::Copied { .. }]));
    check_idle(&mut driver);
}

#[test]
fn what_a_channel_that_is_given_up_does_not_bring_comes_through_the_program() {
    let (mut driver, mut first, mut second) = channel();
    for row in [1, 2] {
        driver.copy(copy(row, (1, 2), 8));
    }
    driver.flush();
    for row in [1, 2] {
        assert_eq!(first.hear(), Heard::Send(CHANNEL, transfer(row)));
        assert_eq!(second.hear(), Heard::Await(CHANNEL, transfer(row)));
    }
    first.say(&Report::Closed { channel: CHANNEL, reason: "it took nothing".to_owned() });
    assert_eq!([first.hear(), second.hear()], [(); 2].map(|()| Heard::Close(CHANNEL)));
    // One more is asked for before the second end has heard of it.
    driver.copy(copy(3, (1, 2), 8));
    driver.flush();
    second.say(&Report::Stored { transfer: transfer(1) });
    second.say(&Report::Closed { channel: CHANNEL, reason: "it is told to".to_owned() });
    let mut asked = [first.hear(), first.hear()];
    asked.sort_by_key(|heard| matches!(heard, Heard::Fetch(of) if of.row == 3));
    assert_eq!(asked, [2, 3].map(|row| Heard::Fetch(transfer(row))));
    for row in [2, 3] {
        first.send_content(row, &[7; 8]);
        assert_eq!(second.hear(), Heard::Part(handle(row), 0));
        second.say(&Report::Stored { transfer: transfer(row) });
    }
    let ended = completions(&mut driver, 3);
    assert!(ended.iter().all(|one| matches!(one, Completion::Copied { .. })), "{ended:?}");
    check_idle(&mut driver);
    // It is not opened again between the same two.
    assert_eq!(driver.relayed(), [(MemoryId(1), MemoryId(2))]);
    driver.copy(copy(4, (1, 2), 8));
    driver.flush();
    assert_eq!(first.hear(), Heard::Fetch(transfer(4)));
}

#[test]
fn nothing_comes_over_a_channel_of_a_lost_worker_into_a_buffer_that_is_used_again() {
    let (mut driver, mut first, mut second) = channel();
    driver.copy(copy(1, (1, 2), 8));
    driver.flush();
    assert_eq!(first.hear(), Heard::Send(CHANNEL, transfer(1)));
    drop(first);
    let lost = completions(&mut driver, 1);
    assert!(matches!(lost[..], [Completion::MemoryLost { memory: MemoryId(1), .. }]), "{lost:?}");
    driver.drop_buffer(handle(1), MemoryId(2));
    driver.launch(launch(2, 1));
    driver.flush();
    let heard = [(); 4].map(|()| second.hear());
    let awaited = Heard::Await(CHANNEL, transfer(1));
    let closed = Heard::Close(CHANNEL);
    assert_eq!(heard, [awaited, closed, Heard::Drop(handle(1)), Heard::Launch(TASK)]);
    // It was there before the second end heard that it is of no use.
    second.say(&Report::Stored { transfer: transfer(1) });
    second.say(&Report::Closed { channel: CHANNEL, reason: "it is told to".to_owned() });
    second.say(&Report::Ended { task: TASK, ran: Interval { start: 0, end: 0 } });
    let ended = completions(&mut driver, 1);
    assert!(matches!(ended[..], [Completion::Ended { .. }]), "{ended:?}");
    check_idle(&mut driver);
}

#[test]
fn a_worker_that_speaks_of_the_channels_of_others_is_cut_off() {
    for report in [
        Report::Opened(ChannelId(7)),
        Report::Opened(CHANNEL),
        Report::Progress(ChannelId(1)),
        Report::Closed { channel: ChannelId(7), reason: String::new() },
    ] {
        let (mut driver, _first, mut second) = channel();
        second.say(&report);
        let lost = completions(&mut driver, 1);
        let is_lost = matches!(lost[..], [Completion::MemoryLost { memory: MemoryId(2), .. }]);
        assert!(is_lost, "{report:?}: {lost:?}");
    }
}

/// A worker that serves a program played by hand, which knows where others may come to.
struct Served {
    program: Hand,
    door: std::path::PathBuf,
    worker: JoinHandle<Result<(), WorkerError>>,
    _directory: tempfile::TempDir,
}

impl Served {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = Listener::unix(&path).expect("a socket");
        let worker = std::thread::spawn(move || {
            let connection = Connection::unix(&path).expect("a program");
            serve::<Vec<u8>>(connection, ("any", "any", 1 << 30), Vec::new())
        });
        let Peer { frames, neighbour, .. } = listener.accept(&LONG).expect("a worker");
        let door = directory.path().join(neighbour.expect("it listens").place);
        let mut own = Self { program: Hand(frames), door, worker, _directory: directory };
        own.order(&Order::Welcome { silence_ms: 60_000, kernels: Vec::new() });
        own
    }

    fn order(&mut self, order: &Order<'_>) {
        let mut frame = Vec::new();
        order.write(&mut frame);
        let mut socket = self.program.0.socket().try_clone().expect("a clone");
        socket.write_all(&frame).expect("the worker listens");
    }

    /// What the worker says next, but for signs of life.
    fn said(&mut self) -> String {
        loop {
            let frame = self.program.0.next(|_| Ok(())).expect("a frame");
            match Report::read(frame).expect("a report") {
                Report::Alive => {}
                report => return format!("{report:?}"),
            }
        }
    }

    /// Another worker that comes with a channel, and its token.
    fn neighbour(&self, channel: ChannelId) -> Hand {
        self.stranger(channel, CHANNEL_TOKEN)
    }

    fn stranger(&self, channel: ChannelId, token: [u8; TOKEN]) -> Hand {
        let stream = UnixStream::connect(&self.door).expect("the worker listens");
        let mut hand = Hand(Frames::new(Socket::Unix(stream)));
        hand.say(&Report::Greeting { token, channel });
        hand
    }

    fn end(mut self) {
        self.order(&Order::End);
        self.worker.join().expect("it does not panic").expect("the program keeps to the protocol");
    }
}

fn awaited(row: u32, bytes: u64) -> Order<'static> {
    let copy = RemoteCopy { transfer: transfer(row), handle: handle(row), bytes };
    Order::Await(CHANNEL, copy)
}

#[test]
fn a_worker_takes_what_it_awaits_and_nothing_else() {
    let mut served = Served::start();
    let mut strangers =
        [served.stranger(CHANNEL, [6; TOKEN]), served.stranger(ChannelId(7), CHANNEL_TOKEN)];
    // What is longer than any greeting is not read.
    let mut long = UnixStream::connect(&served.door).expect("the worker listens");
    long.write_all(&1_000_u32.to_le_bytes()).expect("it listens");
    assert_eq!(std::io::Read::read(&mut long, &mut [0]).expect("it is let go"), 0);
    // The program may say later that somebody comes.
    let mut first = served.neighbour(CHANNEL);
    served.order(&Order::Expect(CHANNEL, CHANNEL_TOKEN));
    let frame = first.0.next(|_| Ok(())).expect("it is let in");
    assert_eq!(Report::read(frame), Ok(Report::Opened(CHANNEL)));
    assert!(matches!(strangers[0].0.next(|_| Ok(())), Err(ReadError::Closed)));
    first.send_content(1, &vec![7; 3 * CHUNK]);
    served.order(&awaited(1, 3 * CHUNK as u64));
    assert_eq!(served.said(), format!("{:?}", Report::Stored { transfer: transfer(1) }));
    let fetched = RemoteCopy { transfer: transfer(5), handle: handle(1), bytes: 3 * CHUNK as u64 };
    served.order(&Order::Fetch(fetched));
    for _ in 0..3 {
        assert!(served.said().starts_with("Content"));
    }

    // A second one with the same channel is a stranger.
    let mut stranger = served.neighbour(CHANNEL);
    assert!(matches!(stranger.0.next(|_| Ok(())), Err(ReadError::Closed)));
    // Less than is awaited, and something after it.
    served.order(&awaited(2, 8));
    first.say(&Report::Content(Chunk { transfer: transfer(2), total: 9, offset: 0, bytes: &[1] }));
    let said = served.said();
    assert!(said.starts_with("Closed") && said.contains("9 bytes, where 8 are"), "{said}");
    served.order(&Order::Close(CHANNEL));
    served.order(&awaited(3, 8));
    served.end();
}

#[test]
fn a_channel_that_the_program_closes_stores_nothing_more() {
    let mut served = Served::start();
    served.order(&Order::Expect(CHANNEL, CHANNEL_TOKEN));
    let mut first = served.neighbour(CHANNEL);
    first.0.next(|_| Ok(())).expect("it is let in");
    served.order(&awaited(1, 2 * CHUNK as u64));
    let half =
        Chunk { transfer: transfer(1), total: 2 * CHUNK as u64, offset: 0, bytes: &[7; CHUNK] };
    first.say(&Report::Content(half));
    served.order(&Order::Close(CHANNEL));
    assert!(served.said().starts_with("Closed"));
    assert!(matches!(first.0.next(|_| Ok(())), Err(ReadError::Closed)), "it is let go");
    // One that waits for nothing keeps no worker from ending.
    served.order(&Order::Expect(ChannelId(1), CHANNEL_TOKEN));
    let mut idle = served.neighbour(ChannelId(1));
    idle.0.next(|_| Ok(())).expect("it is let in");
    first = served.neighbour(ChannelId(2));
    served.end();
    drop((first, idle));
}

#[test]
fn workers_bring_each_other_contents() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let by_token = Token::random().expect("random numbers");
    let doors = [
        Listener::unix(&path).expect("a socket"),
        Listener::tcp("127.0.0.1:0", by_token.clone()).expect("a port"),
    ];
    for listener in doors {
        let address = listener.address();
        let worker = || {
            let (path, token) = (path.clone(), by_token.clone());
            std::thread::spawn(move || {
                let connection = match address {
                    Some(address) => Connection::tcp(address, &token),
                    None => Connection::unix(&path),
                };
                let fill: Code<Vec<u8>> = Box::new(|arguments| {
                    arguments
                        .write(0, |buffer| *buffer = vec![arguments.parameter() as u8; 200_000])
                });
                let kernels = vec![("fill".to_owned(), fill)];
                serve(connection.expect("a program"), ("any", "any", 1 << 30), kernels)
            })
        };
        let threads = [worker(), worker()];
        let peers = [1, 2].map(|row| (MemoryId(row), listener.accept(&LONG).expect("a worker")));
        assert!(peers[0].1.reaches(&peers[1].1));
        let kernels = [KernelInfo { name: "fill".to_owned(), classes: Vec::new() }];
        let fill = |_: &crate::drivers::cpu::Arguments<'_, Vec<u8>>| Ok(());
        let code: Vec<Code<Vec<u8>>> = vec![Box::new(fill)];
        let peers = Vec::from(peers);
        let mut driver =
            Process::new(&machine(2), (&kernels, code), peers, LONG).expect("a driver");
        for row in 0..20 {
            let parameter = u64::from(row);
            driver.launch(Launch { parameter, ..launch(1, row) });
            driver.flush();
            assert!(matches!(completions(&mut driver, 1)[..], [Completion::Ended { .. }]));
            driver.copy(copy(row, (1, 2), 200_000));
            driver.flush();
            let copied = completions(&mut driver, 1);
            assert!(matches!(copied[..], [Completion::Copied { .. }]), "{copied:?}");
            driver.copy(copy(100 + row, (2, 0), 200_000));
            // The buffer of that copy is of this handle.
            let back = CopyOrder { handle: handle(row), ..copy(200 + row, (2, 0), 200_000) };
            driver.copy(back);
            driver.flush();
            completions(&mut driver, 2);
            let is_whole = |content: &Vec<u8>| *content == vec![row as u8; 200_000];
            assert!(driver.look(handle(row), MemoryId(0), is_whole), "{row}");
            while driver.network.between(MemoryId(1), MemoryId(2)).expect("one").1 == Stage::Opening
            {
                std::thread::yield_now();
            }
        }
        let (_, stage) = driver.network.between(MemoryId(1), MemoryId(2)).expect("a channel");
        assert_eq!(stage, Stage::Open);
        drop(driver);
        for thread in threads {
            thread.join().expect("no panic").expect("the program keeps to the protocol");
        }
    }
}
