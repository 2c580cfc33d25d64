//! What a task costs that computes nothing: submission, dependencies, scheduling, coherence, the
//! performance model and the way to a thread and back.

use std::sync::Arc;
use std::time::Instant;

use het_core::Bytes;

use crate::drivers::cpu::{Code, Cpu, WAKE};
use crate::schedulers::SchedulerKind;
use crate::{
    Begin, Coordinator, Device, HandleId, KernelId, KernelInfo, Machine, Memory, MemoryId, Mode,
    Model, Runtime, Task,
};

/// Handles of independent tasks, each read by every so many-th task.
const HANDLES: usize = 256;

/// Bytes of each.
const BYTES: u64 = 1_024;

/// Tasks before those that are timed: threads are awake and durations known then.
const WARM: usize = 1_000;

/// Tasks that begin together.
const BATCH: u32 = 64;

/// How the tasks depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Each reads one of 256 handles.
    Independent,
    /// All change the same handle.
    Chain,
    /// One writes a handle, all but the last read it, the last changes it.
    Fan,
}

impl Shape {
    pub const ALL: [Self; 3] = [Self::Independent, Self::Chain, Self::Fan];

    pub fn name(self) -> &'static str {
        match self {
            Self::Independent => "independent",
            Self::Chain => "chain",
            Self::Fan => "fan",
        }
    }

    fn task(self, row: usize, count: usize, handles: &[HandleId]) -> Task {
        let access = match self {
            Self::Independent => (handles[row % handles.len()], Mode::Read),
            Self::Chain => (handles[0], Mode::ReadWrite),
            Self::Fan if row == 0 => (handles[0], Mode::Write),
            Self::Fan if row + 1 == count => (handles[0], Mode::ReadWrite),
            Self::Fan => (handles[0], Mode::Read),
        };
        Task::new(KernelId(0), [access])
    }
}

/// What is timed.
#[derive(Debug, Clone, Copy)]
pub struct Overhead {
    pub scheduler: SchedulerKind,
    pub shape: Shape,
    pub tasks: usize,
    pub workers: u16,
}

/// Microseconds a task, from the first submission until all have ended.
///
/// # Errors
/// What the system or the runtime refuses, in words.
pub fn overhead(what: &Overhead) -> Result<f64, String> {
    let device = |row: u16| Device {
        name: format!("cpu{row}"),
        class: "cpu".to_owned(),
        memory: MemoryId(0),
        wake: WAKE,
    };
    let memory = Memory { name: "host".to_owned(), capacity: Bytes(u64::MAX) };
    let devices = (0..what.workers).map(device).collect();
    let machine = Machine::new(devices, vec![memory], 0, Vec::new()).map_err(text)?;
    let machine = Arc::new(machine);
    let kernels = vec![KernelInfo { name: "empty".to_owned(), classes: Vec::new() }];
    let model = Model::new(vec!["empty".to_owned()], machine.classes().to_vec());
    let scheduler = (what.scheduler.make)();
    let coordinator = Coordinator::new(Arc::clone(&machine), kernels, model, scheduler);
    let empty: Code<()> = Box::new(|_| Ok(()));
    let driver = Cpu::new(&machine, vec![empty]).map_err(text)?;
    let mut runtime = Runtime::new(coordinator, driver, Begin::Every(BATCH));
    let handles = (0..HANDLES).map(|_| runtime.register(BYTES, Some(MemoryId(0))));
    let handles: Vec<HandleId> = handles.collect::<Result<_, _>>().map_err(text)?;
    run(&mut runtime, what.shape, WARM, &handles)?;
    let began = Instant::now();
    run(&mut runtime, what.shape, what.tasks, &handles)?;
    Ok(began.elapsed().as_secs_f64() * 1e6 / what.tasks as f64)
}

fn run(
    runtime: &mut Runtime<Cpu<()>>,
    shape: Shape,
    tasks: usize,
    handles: &[HandleId],
) -> Result<(), String> {
    for row in 0..tasks {
        runtime.submit(shape.task(row, tasks, handles)).map_err(text)?;
    }
    runtime.wait().map_err(text)
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}
