//! Workers that do not keep to the protocol are cut off with a reason, and nothing else suffers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use het_runtime::drivers::process::{ConnectError, Limits, Peer};
use het_runtime::{HandleId, Mode, Task};

use super::support::{
    BYTES, CAPACITY, FAR, HOLD, HOST, Program, kernels, listener, machine, mix, program, register,
    start,
};

/// The version and kinds of frames, as the protocol has them.
const VERSION: u8 = 3;
const HELLO: u8 = 0;
const ENDED: u8 = 1;
const FAILED: u8 = 2;
const STORED: u8 = 3;
const COPY_FAILED: u8 = 4;
const CONTENT: u8 = 5;
const ALIVE: u8 = 6;

/// Nobody comes near these. Tests shorten the one that they wait for.
const LONG: Limits = Limits {
    handshake: Duration::from_secs(60),
    silence: Duration::from_secs(60),
    taking: Duration::from_secs(60),
    task: Duration::from_secs(60),
    copy: Duration::from_secs(60),
};

const SHORT: Duration = Duration::from_millis(300);

fn frame(kind: u8, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    let length = (body.len() + 2) as u32;
    [&length.to_le_bytes()[..], &[VERSION, kind], &body].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn hello(capacity: u64) -> Vec<u8> {
    let count = 2_u32.to_le_bytes();
    let kernels = [&count[..], &text("far"), &text("mix")].concat();
    let no_door = [0];
    let capacity = capacity.to_le_bytes();
    frame(HELLO, &[&[0; 32], &text("worker"), &text("far"), &capacity, &kernels, &no_door])
}

/// A worker's end, by hand.
struct Hand(UnixStream);

impl Hand {
    fn say(&mut self, bytes: &[u8]) {
        // Whoever is cut off in the middle is no news.
        let _ = self.0.write_all(bytes);
    }

    /// What is sent may be lost with a connection that is closed at once.
    fn say_and_wait(&mut self, bytes: &[u8]) {
        self.say(bytes);
        self.wait_for_the_end();
    }

    /// Kind and fields of the next frame.
    fn hear(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut frame).ok()?;
        Some((frame[1], frame.split_off(2)))
    }

    /// The next frame of this kind.
    fn wait_for(&mut self, kind: u8) -> Vec<u8> {
        loop {
            match self.hear() {
                Some((found, fields)) if found == kind => return fields,
                Some(_) => {}
                None => return vec![0; 64],
            }
        }
    }

    /// Takes the content of a handle, and says so; then a task, whose name it returns.
    fn take_task(&mut self) -> Vec<u8> {
        let stored = self.wait_for(2);
        self.say(&frame(STORED, &[&stored[8..16]]));
        self.wait_for(1)[..8].to_vec()
    }

    /// Reads until it is cut off.
    fn wait_for_the_end(&mut self) {
        while self.hear().is_some() {}
    }
}

/// A worker that does this once it is let in.
fn peer(behave: impl FnOnce(&mut Hand) + Send + 'static) -> (Peer, JoinHandle<()>) {
    let (directory, address, listener) = listener();
    let worker = std::thread::spawn(move || {
        let mut hand = Hand(UnixStream::connect(address).expect("a program"));
        hand.say(&hello(CAPACITY));
        hand.wait_for(0);
        behave(&mut hand);
    });
    let peer = listener.accept(&Limits::default()).expect("a worker");
    drop(directory);
    (peer, worker)
}

fn task(program: &mut Program) -> HandleId {
    let handle = register(program, Some(vec![1; BYTES]));
    program.submit(Task::new(FAR, [(handle, Mode::ReadWrite)])).expect("a task");
    handle
}

/// What a program is told of a worker with one task, and then a copy of what that wrote.
fn check(told: &str, behave: impl FnOnce(&mut Hand) + Send + 'static) {
    check_within(LONG, told, behave);
}

fn check_within(limits: Limits, told: &str, behave: impl FnOnce(&mut Hand) + Send + 'static) {
    let (peer, worker) = peer(behave);
    let mut program = program(vec![peer], Box::new(mix), limits);
    let handle = task(&mut program);
    program.submit(Task::new(HOLD, [(handle, Mode::Read)])).expect("a task");
    let error = program.wait().expect_err("it is cut off").to_string();
    assert!(error.contains(told), "{told}: {error}");
    // What the program does by itself goes on.
    program.coordinator().check();
    let own = register(&mut program, Some(vec![1; BYTES]));
    program.submit(Task::new(HOLD, [(own, Mode::Read)])).expect("a task");
    program.wait().expect("the program has it");
    drop(program);
    worker.join().expect("the worker is done");
}

#[test]
fn frames_that_are_none_end_the_connection() {
    let check_frame = |told: &str, bytes: Vec<u8>| {
        check(told, move |hand| hand.say_and_wait(&bytes));
    };
    check_frame("it sent a frame of 4294967295 bytes", vec![0xff; 64]);
    check_frame("it sent a frame of version 9, and not 3", vec![2, 0, 0, 0, 9, ALIVE]);
    check_frame("it sent a frame of kind 77", frame(77, &[]));
    check_frame("it sent a frame that ends in the middle", frame(ENDED, &[&[0; 9]]));
    check_frame("it sent a frame with 3 bytes after", frame(ALIVE, &[&[0; 3]]));
    let time = frame(ENDED, &[&[0; 8], &[9; 8], &[0; 8]]);
    check_frame("it sent a frame with a time that is none", time);
    check_frame("it said who it is a second time", hello(9));
    check("it closed the connection", |hand| hand.say(&[100, 0, 0, 0, VERSION, ALIVE]));
}

#[test]
fn what_was_never_asked_for_ends_it() {
    let not_next = "it ended a task that is not the next of those that it was given";
    let nowhere = [&99_u32.to_le_bytes()[..], &[0; 4]].concat();
    check(not_next, |hand| {
        let task = hand.take_task();
        let ended = frame(ENDED, &[&task, &[0; 16]]);
        hand.say_and_wait(&[&ended[..], &ended].concat());
    });
    for (told, said) in [
        (not_next, frame(ENDED, &[&nowhere, &[0; 16]])),
        (not_next, frame(FAILED, &[&nowhere, &[0; 16], &text("so")])),
        ("it has a content that it was not sent", frame(STORED, &[&nowhere])),
        (
            "it failed at a copy that it was not asked for",
            frame(COPY_FAILED, &[&nowhere, &text("so")]),
        ),
        (
            "it sent a content that it was not asked for",
            frame(CONTENT, &[&nowhere, &[0; 16], &[0; 4]]),
        ),
    ] {
        check(told, move |hand| hand.say_and_wait(&said));
    }
}

#[test]
fn contents_of_wrong_lengths_end_it() {
    let content = |total: u64, offset: u64, bytes: &[u8]| {
        let length = (bytes.len() as u32).to_le_bytes();
        [&total.to_le_bytes()[..], &offset.to_le_bytes(), &length, bytes].concat()
    };
    let of = BYTES as u64;
    for (told, content) in [
        (
            "it sent a content of 1000000000000 bytes, where 64 are",
            content(1_000_000_000_000, 0, b"a"),
        ),
        ("it sent 1 bytes at 5, after 0 of 64", content(of, 5, b"a")),
        ("it sent 65 bytes at 0, after 0 of 64", content(of, 0, &[0; 65])),
        ("it sent a part without bytes", content(of, 0, &[])),
    ] {
        check(told, move |hand| {
            let task = hand.take_task();
            hand.say(&frame(ENDED, &[&task, &[0; 16]]));
            let asked = hand.wait_for(3);
            hand.say_and_wait(&frame(CONTENT, &[&asked[..8], &content]));
        });
    }
}

#[test]
fn whoever_hangs_is_cut_off() {
    let silence = Limits { silence: SHORT, ..LONG };
    check_within(silence, "it gave no sign of life for 300ms", Hand::wait_for_the_end);
    let alive = |hand: &mut Hand| {
        let mut other = Hand(hand.0.try_clone().expect("a clone"));
        let stop = std::thread::spawn(move || other.wait_for_the_end());
        while !stop.is_finished() {
            hand.say(&frame(ALIVE, &[]));
            std::thread::park_timeout(Duration::from_millis(20));
        }
    };
    // It takes nothing of what it has to do: neither a content nor a task goes on.
    let copy = Limits { copy: SHORT, ..LONG };
    check_within(copy, "no copy went on for 300ms", alive);
    let task = Limits { task: SHORT, ..LONG };
    check_within(task, "it has had the same task for 300ms", move |hand| {
        hand.take_task();
        alive(hand);
    });
}

#[test]
fn whoever_takes_nothing_is_cut_off() {
    let (peer, worker) = peer(|hand| {
        let mut hand = Hand(hand.0.try_clone().expect("a clone"));
        // Signs of life, and no ear: until writing fails, since it is cut off.
        while hand.0.write_all(&frame(ALIVE, &[])).is_ok() {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    });
    let limits = Limits { taking: SHORT, ..LONG };
    let mut program = program(vec![peer], Box::new(mix), limits);
    // More than a socket takes that nobody reads.
    let large = 1 << 23;
    let handle = program.register(large, Some(HOST)).expect("room");
    program.driver().put(handle, HOST, vec![7; large as usize]);
    for _ in 0..2 {
        program.submit(Task::new(FAR, [(handle, Mode::Read)])).expect("a task");
    }
    let error = program.wait().expect_err("it is cut off").to_string();
    assert!(error.contains("it took nothing for 300ms"), "{error}");
    drop(program);
    worker.join().expect("the worker is done");
}

#[test]
fn what_the_machine_says_otherwise_is_refused() {
    let refused = |capacity: u64, count: usize| {
        let (_directory, address, listener) = listener();
        let peers: Vec<Peer> = (0..count)
            .map(|_| {
                let mut hand = Hand(UnixStream::connect(&address).expect("a program"));
                hand.say(&hello(capacity));
                listener.accept(&Limits::default()).expect("a worker")
            })
            .collect();
        let started = start(&machine(1), &kernels(), Vec::new(), peers, LONG);
        started.expect_err("refused").to_string()
    };
    assert_eq!(refused(9, 1), "memory `memory1` is of 16777216 bytes, and its worker offers 9");
    assert_eq!(refused(CAPACITY, 2), "there is no memory 2");
}

#[test]
fn whoever_does_not_say_who_it_is_is_not_let_in() {
    let short = Limits { handshake: Duration::from_millis(200), ..LONG };
    let refused = |limits: &Limits, bytes: &[u8]| {
        let (_directory, address, listener) = listener();
        let mut hand = Hand(UnixStream::connect(&address).expect("a program"));
        hand.say(bytes);
        listener.accept(limits).expect_err("refused").to_string()
    };
    let let_in = |told: &str| format!("a worker came and was not let in: {told}");
    assert_eq!(refused(&short, b""), let_in("it did not say who it is in time"));
    assert_eq!(refused(&short, &hello(9)[..20]), let_in("it did not say who it is in time"));
    let no_hello = "a worker came and did not say who it is";
    assert_eq!(refused(&LONG, &frame(ALIVE, &[])), no_hello);
    assert_eq!(
        refused(&LONG, b"GET / HTTP/1.1\r\n"),
        let_in("it sent a frame of 542393671 bytes: 2 to 1048576 are allowed")
    );
    let (_directory, _, listener) = listener();
    assert!(matches!(listener.accept(&short), Err(ConnectError::Nobody(_))));
}
