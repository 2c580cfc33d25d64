//! Reductions and broadcasts as tasks on devices of virtual time: what is planned is what it takes.

use std::sync::Arc;

use het_core::Bytes;
use het_runtime::drivers::dummy::{Dummy, Noise, Speed, Truth};
use het_runtime::schedulers::SCHEDULERS;
use het_runtime::{
    Addition, Begin, ClassId, Coordinator, Device, HandleId, KernelId, KernelInfo, Link, Machine,
    Memory, MemoryId, Mode, Model, Reduction, ReductionShape, Runtime, Task,
};

/// Of adding so many bytes, which reads two and writes one at 10 GB/s.
const NANOS_PER_BYTE: f64 = 0.3;

/// Two nodes of four devices, 20 GB/s within a node and 1 GB/s between them.
fn two_nodes() -> Arc<Machine> {
    const EACH: usize = 4;
    let device = |row: usize| Device {
        name: format!("d{row}"),
        class: format!("d{row}"),
        memory: MemoryId(row as u16),
        wake: 0,
    };
    let memory = |row: usize| Memory { name: format!("m{row}"), capacity: Bytes(u64::MAX) };
    let rows = || 0..2 * EACH;
    let within = rows().flat_map(|row| Link::both(row, 2 * EACH + row / EACH, 20e9, 1_000));
    let links = within.chain(Link::both(2 * EACH, 2 * EACH + 1, 1e9, 10_000)).collect();
    let machine =
        Machine::new(rows().map(device).collect(), rows().map(memory).collect(), 2, links);
    Arc::new(machine.expect("a machine"))
}

/// With one kernel that takes so long everywhere.
fn runtime(machine: &Arc<Machine>, nanos: f64) -> Runtime<Dummy> {
    runtime_on((machine, machine), nanos)
}

/// The same where the machine is taken for the first, and is the second.
fn runtime_on((machine, real): (&Arc<Machine>, &Arc<Machine>), nanos: f64) -> Runtime<Dummy> {
    let kernels = vec![KernelInfo { name: "add".to_owned(), classes: Vec::new() }];
    let classes = machine.classes().len();
    let model = Model::new(vec!["add".to_owned()], machine.classes().to_vec())
        .with_prior(Box::new(move |_, _, _| Some(nanos)));
    let scheduler = (SCHEDULERS[0].make)();
    let coordinator = Coordinator::new(Arc::clone(machine), kernels, model, scheduler);
    let speed = Speed { nanos, nanos_per_byte: 0.0 };
    let truth = Truth { speeds: vec![vec![Some(speed); classes]], noise: Noise::default() };
    let dummy = Dummy::new(Arc::clone(real), truth);
    Runtime::new(coordinator, dummy, Begin::WhenFlushed)
}

/// Waits for all; when the last of it ended.
fn end(runtime: &mut Runtime<Dummy>) -> f64 {
    runtime.wait().expect("all run");
    runtime.coordinator().check();
    runtime.driver().spans().iter().map(|span| span.end).max().unwrap_or(0) as f64
}

/// Nanoseconds until the first memory has all sums, which are alike.
fn run(machine: &Arc<Machine>, additions: &[Addition], sums: &[u64]) -> f64 {
    let mut runtime = runtime(machine, NANOS_PER_BYTE * sums[0] as f64);
    let own = |memory, runtime: &mut Runtime<Dummy>| -> Vec<HandleId> {
        sums.iter().map(|sum| runtime.register(*sum, Some(memory)).expect("room")).collect()
    };
    let held: Vec<Vec<HandleId>> =
        machine.memory_ids().map(|memory| own(memory, &mut runtime)).collect();
    for (row, left) in (0..sums.len()).zip((0..sums.len()).rev()) {
        for Addition { into, from } in additions {
            let (sum, more) = (held[into.row()][row], held[from.row()][row]);
            let accesses = [(sum, Mode::ReadWrite), (more, Mode::Read)];
            let task = Task::new(KernelId(0), accesses).class(ClassId(into.0));
            let task = task.priority(1 + left as i32);
            runtime.submit(task).expect("a task");
        }
    }
    let took = end(&mut runtime);
    // Nothing is copied that is still to be added to.
    let transfers = runtime.coordinator().data().traffic().transfers;
    assert_eq!(transfers, (additions.len() * sums.len()) as u64);
    took
}

const VALUE: u64 = 32 << 20;

/// Has every device read twelve values of the first memory.
fn broadcast(runtime: &mut Runtime<Dummy>) {
    let values: Vec<HandleId> =
        (0..12).map(|_| runtime.register(VALUE, Some(MemoryId(0))).expect("room")).collect();
    for value in &values {
        for class in 0..runtime.coordinator().machine().classes().len() as u16 {
            let task = Task::new(KernelId(0), [(*value, Mode::Read)]).class(ClassId(class));
            runtime.submit(task).expect("a task");
        }
    }
}

/// What it would take if each value crossed between the nodes once.
fn once(machine: &Machine) -> f64 {
    12.0 * machine.transfer_time(MemoryId(0), MemoryId(4), VALUE).expect("a route") as f64
}

#[test]
fn what_all_devices_need_crosses_between_nodes_about_once() {
    let machine = two_nodes();
    let mut runtime = runtime(&machine, 1e6);
    broadcast(&mut runtime);
    let (took, once) = (end(&mut runtime), once(&machine));
    assert!(took < 1.5 * once, "{took} ns, where one of four takes {once}");
}

#[test]
fn links_are_as_fast_as_they_were() {
    let real = two_nodes();
    let guess = Arc::new(real.with_rates(|_| Some(500e9)));
    let mut runtime = runtime_on((&guess, &real), 1e6);
    broadcast(&mut runtime);
    let first = end(&mut runtime);
    runtime.coordinator_mut().update_links(&[], MemoryId(0));
    // The one between the nodes, which is in the way.
    let slow = real.links().len() - 2;
    let learned = runtime.coordinator().machine().links()[slow].bytes_per_s;
    assert!((learned / 1e9 - 1.0).abs() < 0.1, "{learned} bytes/s");
    broadcast(&mut runtime);
    let took = end(&mut runtime) - first;
    let once = once(&real);
    assert!(took < 1.5 * once && first > 2.0 * once, "{first} ns, then {took}, once {once}");
}

#[test]
fn gradients_of_two_nodes_cross_between_them_once() {
    let machine = two_nodes();
    let memories: Vec<MemoryId> = machine.memory_ids().collect();
    let sums = [32 << 20; 12];
    let add = |_, bytes: u64| NANOS_PER_BYTE * bytes as f64;
    let planned = Reduction::plan(&machine, &memories, &sums, add);
    assert_ne!(planned.shape, ReductionShape::Star);
    let crosses = |own: &&Addition| (own.into.0 < 4) != (own.from.0 < 4);
    assert_eq!(planned.additions.iter().filter(crosses).count(), 1);
    let took = run(&machine, &planned.additions, &sums);
    let apart = (took / planned.nanos - 1.0).abs();
    assert!(apart < 0.1, "{took} ns, and {} were planned", planned.nanos);
    let star: Vec<Addition> =
        memories[1..].iter().map(|from| Addition { into: memories[0], from: *from }).collect();
    let star = run(&machine, &star, &sums);
    assert!(took < 0.4 * star, "{took} ns, and {star} by a star");
}
