//! A program with devices of its own and workers; workers are this test binary, called again.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use het_core::Bytes;
use het_runtime::drivers::cpu::{Arguments, Code};
use het_runtime::drivers::process::{
    Connection, Limits, Listener, Peer, Process, StartError, Token, serve,
};
use het_runtime::schedulers::WorkStealing;
use het_runtime::{
    Begin, Coordinator, Device, HandleId, KernelId, KernelInfo, Link, Machine, Memory, MemoryId,
    Model, Runtime,
};

pub const HOST: MemoryId = MemoryId(0);

/// Bytes of every handle.
pub const BYTES: usize = 64;

pub const MIX: KernelId = KernelId(0);

/// Only devices of the program have it: what it reads is there afterwards.
pub const HOLD: KernelId = KernelId(1);

/// Only workers have it.
pub const FAR: KernelId = KernelId(2);

/// Of a worker, in bytes.
pub const CAPACITY: u64 = 1 << 24;

/// Where a worker finds its program; the variable is set for workers alone.
const ADDRESS: &str = "HET_TEST_WORKER";

/// What the last access writes follows from the parameter and what the others read.
pub fn mix(arguments: &Arguments<'_, Vec<u8>>) -> Result<(), String> {
    let mut state = arguments.parameter() | 1;
    let last = arguments.count() - 1;
    for row in 0..last {
        for byte in arguments.read(row, Vec::clone)? {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        }
    }
    arguments.write(last, |content| {
        *content = (0..BYTES).map(|row| (state >> (row % 8 * 8)) as u8 ^ row as u8).collect();
    })
}

pub fn kernels() -> Vec<KernelInfo> {
    let kernel = |name: &str, classes: &[&str]| KernelInfo {
        name: name.to_owned(),
        classes: classes.iter().map(|class| (*class).to_owned()).collect(),
    };
    vec![kernel("mix", &[]), kernel("hold", &["host"]), kernel("far", &["far"])]
}

/// One thread of the program, and workers with memories of their own.
pub fn machine(workers: u16) -> Arc<Machine> {
    let device = |row: u16| Device {
        name: format!("device{row}"),
        class: if row == 0 { "host" } else { "far" }.to_owned(),
        memory: MemoryId(row),
        wake: 20_000,
    };
    let memory = |row: u16| Memory {
        name: format!("memory{row}"),
        capacity: if row == 0 { Bytes(u64::MAX) } else { Bytes(CAPACITY) },
    };
    let links = (1..=usize::from(workers)).flat_map(|row| Link::both(0, row, 1e9, 20_000));
    let devices = (0..=workers).map(device).collect();
    let memories = (0..=workers).map(memory).collect();
    Arc::new(Machine::new(devices, memories, 0, links.collect()).expect("a machine"))
}

pub type Program = Runtime<Process<Vec<u8>>>;

pub fn program(peers: Vec<Peer>, host: Code<Vec<u8>>, limits: Limits) -> Program {
    let machine = machine(peers.len() as u16);
    let kernels = kernels();
    let names = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    let model = Model::new(names, machine.classes().to_vec());
    let scheduler = Box::new(WorkStealing::default());
    let coordinator = Coordinator::new(Arc::clone(&machine), kernels.clone(), model, scheduler);
    let code: Vec<Code<Vec<u8>>> = vec![host, Box::new(|_| Ok(()))];
    let driver = start(&machine, &kernels, code, peers, limits).expect("a driver");
    Runtime::new(coordinator, driver, Begin::WhenFlushed)
}

pub fn start(
    machine: &Machine,
    kernels: &[KernelInfo],
    code: Vec<Code<Vec<u8>>>,
    peers: Vec<Peer>,
    limits: Limits,
) -> Result<Process<Vec<u8>>, StartError> {
    let memories = (1..).map(MemoryId);
    Process::new(machine, (kernels, code), memories.zip(peers).collect(), limits)
}

pub fn register(program: &mut Program, content: Option<Vec<u8>>) -> HandleId {
    let home = content.as_ref().map(|_| HOST);
    let handle = program.register(BYTES as u64, home).expect("room");
    if let Some(content) = content {
        program.driver().put(handle, HOST, content);
    }
    handle
}

/// A worker that is killed when the test ends, however it does.
#[derive(Debug)]
pub struct Worker(pub Child);

impl Worker {
    pub fn start(address: &str) -> Self {
        let program = std::env::current_exe().expect("this test binary");
        let started = Command::new(program)
            .args(["support::worker", "--exact", "--nocapture"])
            .env(ADDRESS, address)
            .stdout(Stdio::null())
            .spawn();
        Self(started.expect("a process"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended is waited for all the same.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No test: what workers run. In the tests themselves it does nothing.
#[test]
fn worker() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let connection = match address.split_once('#') {
        Some((address, token)) => {
            Connection::tcp(address, &Token::from_text(token).expect("a token"))
        }
        None => Connection::unix(Path::new(&address)),
    };
    let kernels: Vec<(String, Code<Vec<u8>>)> =
        vec![("far".to_owned(), Box::new(mix)), ("mix".to_owned(), Box::new(mix))];
    let served = serve(connection.expect("a program"), ("worker", "far", CAPACITY), kernels);
    served.expect("the program keeps to the protocol");
}

/// A socket in a directory of its own.
pub fn listener() -> (tempfile::TempDir, String, Listener) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let listener = Listener::unix(&path).expect("a socket");
    (directory, path.display().to_string(), listener)
}
