//! Graphs to schedule: tiled factorisations, and steps of training.

use crate::drivers::dummy::{Noise, Span, Speed, Truth};
use crate::{
    Begin, Coordinator, Device, HandleId, KernelId, KernelInfo, Link, Machine, MachineError,
    Memory, MemoryId, Mode, Model, Runtime, Scheduler, Task,
};

use std::sync::Arc;

use het_core::Bytes;

use crate::drivers::dummy::Dummy;

/// Nanoseconds of a published unit of time.
const UNIT: f64 = 1e6;

/// Milliseconds of the four kernels of a factorisation on a CPU and on a GPU, as READYS has them
/// (Grinsztajn, Beaumont, Jeannot and Preux 2021): factor, update of the diagonal or of a row,
/// solve, product.
pub const READYS: [[f64; 4]; 2] = [[18.0, 57.0, 52.0, 95.0], [11.0, 2.0, 8.0, 3.0]];

/// A tile of 960 × 960 double precision numbers, of which such durations are.
const TILE: u64 = 960 * 960 * 8;

/// Bytes a second of a PCIe 4.0 slot with 16 lanes, and the latency of a copy.
const PCIE: f64 = 24e9;
const PCIE_LATENCY: u64 = 10_000;

/// Whether data has to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfers {
    /// All devices compute in one memory, as READYS has it.
    Free,
    /// Each GPU has a memory of its own behind a switch that all of them share.
    Linked,
}

impl Transfers {
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Linked => "linked",
        }
    }
}

/// A kernel, and accesses by place of the handle.
type Drawn = (u16, Vec<(usize, Mode)>);

/// Tasks with their data, and what is true of the devices.
#[derive(Debug, Clone)]
pub struct Workload {
    pub name: String,
    kernels: Vec<String>,
    /// Kernel by kernel, CPU and GPU (or one class more).
    speeds: Vec<Vec<Option<Speed>>>,
    /// Bytes of each handle.
    handles: Vec<u64>,
    tasks: Vec<Drawn>,
}

/// A factorisation of a matrix of so many by so many tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factorisation {
    Cholesky,
    Lu,
    Qr,
}

impl Workload {
    /// Durations of the four kernels, in milliseconds, class by class.
    pub fn factorisation(kind: Factorisation, tiles: usize, durations: &[[f64; 4]]) -> Self {
        let at = |row: usize, column: usize| row * tiles + column;
        let (read, both) = (Mode::Read, Mode::ReadWrite);
        let mut tasks = Vec::new();
        for k in 0..tiles {
            tasks.push((0, vec![(at(k, k), both)]));
            let later = k + 1..tiles;
            match kind {
                Factorisation::Cholesky => {
                    for i in later.clone() {
                        tasks.push((2, vec![(at(k, k), read), (at(i, k), both)]));
                    }
                    for i in later.clone() {
                        tasks.push((1, vec![(at(i, k), read), (at(i, i), both)]));
                        for j in k + 1..i {
                            let accesses = [(at(i, k), read), (at(j, k), read), (at(i, j), both)];
                            tasks.push((3, accesses.to_vec()));
                        }
                    }
                }
                Factorisation::Lu => {
                    for i in later.clone() {
                        tasks.push((1, vec![(at(k, k), read), (at(i, k), both)]));
                        tasks.push((2, vec![(at(k, k), read), (at(k, i), both)]));
                    }
                    for i in later.clone() {
                        for j in later.clone() {
                            let accesses = [(at(i, k), read), (at(k, j), read), (at(i, j), both)];
                            tasks.push((3, accesses.to_vec()));
                        }
                    }
                }
                Factorisation::Qr => {
                    for j in later.clone() {
                        tasks.push((1, vec![(at(k, k), read), (at(k, j), both)]));
                    }
                    for i in later.clone() {
                        tasks.push((2, vec![(at(k, k), both), (at(i, k), both)]));
                        for j in later.clone() {
                            let accesses = [(at(i, k), read), (at(k, j), both), (at(i, j), both)];
                            tasks.push((3, accesses.to_vec()));
                        }
                    }
                }
            }
        }
        let (name, kernels) = match kind {
            Factorisation::Cholesky => ("cholesky", ["potrf", "syrk", "trsm", "gemm"]),
            Factorisation::Lu => ("lu", ["getrf", "trsm-lower", "trsm-upper", "gemm"]),
            Factorisation::Qr => ("qr", ["geqrt", "ormqr", "tsqrt", "tsmqr"]),
        };
        let speed = |kernel: usize| {
            let of =
                |row: &[f64; 4]| Some(Speed { nanos: row[kernel] * UNIT, nanos_per_byte: 0.0 });
            durations.iter().map(of).collect()
        };
        Self {
            name: format!("{name}-{tiles}"),
            kernels: kernels.map(str::to_owned).to_vec(),
            speeds: (0..4).map(speed).collect(),
            handles: vec![TILE; tiles * tiles],
            tasks,
        }
    }

    /// A step of so many layers and microbatches, whose gradients are summed in so many groups and
    /// then reduced; classes differ by these factors of the time on the first one.
    pub fn training(layers: usize, microbatches: usize, groups: usize, factors: &[f64]) -> Self {
        const ACTIVATION: u64 = 8 << 20;
        const WEIGHT: u64 = 28 << 20;
        let mut handles = vec![WEIGHT; layers];
        let mut new = |bytes: u64| {
            handles.push(bytes);
            handles.len() - 1
        };
        let (read, write, both) = (Mode::Read, Mode::Write, Mode::ReadWrite);
        let gradients: Vec<Vec<usize>> =
            (0..groups).map(|_| (0..layers).map(|_| new(WEIGHT)).collect()).collect();
        let mut tasks: Vec<Drawn> = Vec::new();
        for microbatch in 0..microbatches {
            let outputs: Vec<usize> = (0..=layers).map(|_| new(ACTIVATION)).collect();
            for layer in 0..layers {
                let accesses = [(layer, read), (outputs[layer], read), (outputs[layer + 1], write)];
                tasks.push((0, accesses.to_vec()));
            }
            for layer in (0..layers).rev() {
                let sum = gradients[microbatch % groups][layer];
                let begins = microbatch < groups;
                let accesses = [
                    (layer, read),
                    (outputs[layer], read),
                    (outputs[layer + 1], both),
                    (sum, if begins { write } else { both }),
                ];
                tasks.push((1, accesses.to_vec()));
            }
        }
        for layer in (0..layers).rev() {
            for group in gradients.iter().skip(1) {
                tasks.push((2, vec![(group[layer], read), (gradients[0][layer], both)]));
            }
            tasks.push((3, vec![(gradients[0][layer], read), (layer, both)]));
        }
        let speed = |base: f64| {
            let of =
                |factor: &f64| Some(Speed { nanos: base * factor * UNIT, nanos_per_byte: 0.0 });
            factors.iter().map(of).collect::<Vec<_>>()
        };
        Self {
            name: format!("training-{layers}x{microbatches}"),
            kernels: ["forward", "backward", "reduce", "update"].map(str::to_owned).to_vec(),
            speeds: [4.0, 8.0, 0.5, 1.0].map(speed).to_vec(),
            handles,
            tasks,
        }
    }

    /// So many tasks of eight kernels with durations that differ up to thirty times between a CPU
    /// and a GPU, over handles of different sizes: all from a seed.
    pub fn random(tasks: usize, seed: u64) -> Self {
        const KERNELS: usize = 8;
        let mut drawn = 0;
        let mut draw = |below: usize| {
            drawn += 1;
            let unit = Noise { deviation: 0.0, seed }.unit(drawn);
            (unit * below as f64) as usize
        };
        let speeds = (0..KERNELS).map(|_| {
            let cpu = (2 + draw(80)) as f64 * UNIT;
            let gpu = cpu / (1 + draw(30)) as f64;
            [cpu, gpu].map(|nanos| Some(Speed { nanos, nanos_per_byte: 0.0 })).to_vec()
        });
        let speeds: Vec<Vec<Option<Speed>>> = speeds.collect();
        let handles: Vec<u64> =
            (0..tasks.div_ceil(4)).map(|_| (1 + draw(32) as u64) << 20).collect();
        let tasks = (0..tasks).map(|_| {
            let kernel = draw(KERNELS) as u16;
            let mut accesses: Vec<(usize, Mode)> = Vec::new();
            for row in 0..1 + draw(3) {
                let handle = draw(handles.len());
                let mode = if row == 0 { Mode::ReadWrite } else { Mode::Read };
                if accesses.iter().all(|(other, _)| *other != handle) {
                    accesses.push((handle, mode));
                }
            }
            (kernel, accesses)
        });
        let tasks: Vec<Drawn> = tasks.collect();
        let kernels = (0..KERNELS).map(|row| format!("kernel{row}")).collect();
        let name = format!("random-{}", tasks.len());
        Self { name, kernels, speeds, handles, tasks }
    }

    pub fn count(&self) -> usize {
        self.tasks.len()
    }

    /// The same with a kernel for every task, which takes exactly what the task will take: what
    /// one knows who knows the future.
    fn foreseen(&self, noise: Noise) -> Self {
        let truth = Truth { speeds: self.speeds.clone(), noise };
        let of = |(place, (kernel, _)): (usize, &Drawn)| {
            let classes = 0..self.speeds[usize::from(*kernel)].len() as u16;
            let took = classes.map(|class| {
                let key = (KernelId(*kernel), crate::ClassId(class));
                let nanos = truth.duration(place as u64, key, 0) as f64;
                Some(Speed { nanos, nanos_per_byte: 0.0 })
            });
            took.collect()
        };
        let tasks = self.tasks.iter().enumerate();
        Self {
            kernels: (0..self.tasks.len()).map(|place| format!("task{place}")).collect(),
            speeds: tasks.clone().map(of).collect(),
            tasks: tasks.map(|(place, (_, accesses))| (place as u16, accesses.clone())).collect(),
            ..self.clone()
        }
    }

    /// A runtime on devices of virtual time to which all tasks were submitted.
    fn submitted(
        &self,
        machine: &Arc<Machine>,
        scheduler: Box<dyn Scheduler>,
        noise: Noise,
    ) -> Result<Runtime<Dummy>, String> {
        let truth = Truth { speeds: self.speeds.clone(), noise };
        let declared = Truth { noise: Noise::default(), ..truth.clone() };
        let model = Model::new(self.kernels.clone(), machine.classes().to_vec())
            .with_prior(Box::new(move |kernel, class, _| declared.declared(kernel, class, 0)));
        let kernels =
            self.kernels.iter().map(|name| KernelInfo { name: name.clone(), classes: Vec::new() });
        let coordinator =
            Coordinator::new(Arc::clone(machine), kernels.collect(), model, scheduler);
        let dummy = Dummy::new(Arc::clone(machine), truth);
        let mut runtime = Runtime::new(coordinator, dummy, Begin::WhenFlushed);
        let handles = self.handles.iter().map(|bytes| runtime.register(*bytes, Some(MemoryId(0))));
        let handles: Vec<HandleId> =
            handles.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        for (kernel, accesses) in &self.tasks {
            let accesses = accesses.iter().map(|(place, mode)| (handles[*place], *mode));
            let task = Task::new(KernelId(*kernel), accesses);
            runtime.submit(task).map_err(|error| error.to_string())?;
        }
        Ok(runtime)
    }

    /// What each device did when.
    ///
    /// # Errors
    /// What the runtime refuses.
    pub fn spans(
        &self,
        machine: &Arc<Machine>,
        scheduler: Box<dyn Scheduler>,
        noise: Noise,
    ) -> Result<Vec<Span>, String> {
        let mut runtime = self.submitted(machine, scheduler, noise)?;
        runtime.wait().map_err(|error| error.to_string())?;
        Ok(runtime.driver().spans().to_vec())
    }

    /// Nanoseconds from the first task to the last.
    ///
    /// # Errors
    /// What the runtime refuses.
    pub fn makespan(
        &self,
        machine: &Arc<Machine>,
        scheduler: Box<dyn Scheduler>,
        noise: Noise,
    ) -> Result<f64, String> {
        let spans = self.spans(machine, scheduler, noise)?;
        Ok(spans.iter().map(|span| span.end).max().unwrap_or(0) as f64)
    }

    /// The makespan of a scheduler that knows beforehand what every task will take, and the bounds
    /// of those durations.
    ///
    /// # Errors
    /// What the runtime refuses.
    pub fn foreseen_makespan(
        &self,
        machine: &Arc<Machine>,
        make: fn() -> Box<dyn Scheduler>,
        noise: Noise,
    ) -> Result<(f64, crate::Bounds), String> {
        let foreseen = self.foreseen(noise);
        let runtime = foreseen.submitted(machine, make(), Noise::default())?;
        let bounds = crate::Bounds::of(&runtime.coordinator().view());
        Ok((foreseen.makespan(machine, make(), Noise::default())?, bounds))
    }
}

/// So many devices of each class, CPUs first; accelerators have a memory of this size.
///
/// # Errors
/// A machine that can't be.
pub fn machine(
    counts: &[u16],
    transfers: Transfers,
    memory: Bytes,
) -> Result<Machine, MachineError> {
    let mut devices = Vec::new();
    let mut memories = vec![Memory { name: "host".to_owned(), capacity: Bytes(u64::MAX) }];
    for (class, count) in counts.iter().enumerate() {
        for row in 0..*count {
            let class = if class == 0 { "cpu".to_owned() } else { format!("gpu-{class}") };
            let mut own = MemoryId(0);
            if class != "cpu" && transfers == Transfers::Linked {
                own = MemoryId(memories.len() as u16);
                memories.push(Memory { name: format!("{class}.{row}"), capacity: memory });
            }
            devices.push(Device { name: format!("{class}.{row}"), class, memory: own, wake: 0 });
        }
    }
    let switch = memories.len();
    let mut links: Vec<Link> = Link::both(0, switch, PCIE, PCIE_LATENCY).to_vec();
    for own in 1..memories.len() {
        links.extend(Link::both(switch, own, PCIE, 0));
    }
    Machine::new(devices, memories, 1, links)
}
