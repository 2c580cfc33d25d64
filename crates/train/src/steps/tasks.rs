//! The runtime that a step's tasks go to: this process's cores as one device, and a device of each
//! worker.

use super::content::Content;
use super::kernels::{Kernel, Kernels};
use super::machine::machine;
use super::vulkan;
use crate::drivers::CPU;
use crate::error::{Error, Result};
use het_runtime::drivers::process::{Limits, Peer, Process};
use het_runtime::{
    BACKGROUND, Begin, Cause, ClassId, Coordinator, HandleId, KernelInfo, KernelTime, Loss,
    Machine, MemoryId, Mode, Model, Reduction, RunError, Runtime, Task, schedulers::SCHEDULERS,
};
use std::fmt::Display;
use std::sync::Arc;

/// The memory of this process.
const HOST: MemoryId = MemoryId(0);

/// What a device's memory is taken for where sums are added: two are read and one is written.
const MEMORY_BYTES_PER_NS: f64 = 10.0;

#[derive(Debug)]
pub(super) struct Tasks {
    runtime: Runtime<Process<Content>>,
    lost: Vec<LostWorker>,
    /// Why something in the background failed.
    failed: Option<String>,
}

/// Which device a task is for, and what it is before and behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub class: ClassId,
    pub urgency: Urgency,
}

/// How urgent a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Where the device has nothing else to do; no step waits for it.
    Background,
    /// Where nothing usual is ready.
    Low,
    Usual,
    /// Before all of those, the greater the sooner.
    Urgent(u16),
}

impl Urgency {
    fn priority(self) -> i32 {
        match self {
            Self::Background => BACKGROUND,
            Self::Low => -1,
            Self::Usual => 0,
            Self::Urgent(sooner) => 1 + i32::from(sooner),
        }
    }
}

impl Place {
    pub fn usual(class: ClassId) -> Self {
        Self { class, urgency: Urgency::Usual }
    }
}

/// A worker that is not there any more, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LostWorker {
    pub class: ClassId,
    pub name: String,
    pub reason: String,
}

/// What all tasks of one kernel took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskTime {
    pub kernel: &'static str,
    pub count: u64,
    pub seconds: f64,
}

impl TaskTime {
    /// What was added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let (count, seconds) = (self.count - before.count, self.seconds - before.seconds);
        Self { kernel: self.kernel, count, seconds }
    }
}

fn failed(error: impl Display) -> Error {
    Error::DriverFailed { driver: CPU.to_owned(), what: error.to_string() }
}

/// The kernels, each with the classes that have it: this process's, and those of workers whose
/// driver computes it.
fn infos(machine: &Machine, workers: &[Peer]) -> Vec<KernelInfo> {
    let drivers = [CPU].into_iter().chain(workers.iter().map(|own| own.offer().class.as_str()));
    let classes: Vec<(&String, &str)> = machine.classes().iter().zip(drivers).collect();
    let info = |(kernel, name): (Kernel, &str)| {
        let able = classes.iter().filter(|(_, own)| *own == CPU || vulkan::computes(kernel));
        let classes = able.map(|(class, _)| (*class).clone()).collect();
        KernelInfo { name: name.to_owned(), classes }
    };
    Kernel::ALL.into_iter().map(info).collect()
}

impl Tasks {
    pub fn new(kernels: &Arc<Kernels>, workers: Vec<Peer>) -> Result<Self> {
        let machine = Arc::new(machine(&workers).map_err(failed)?);
        let infos = infos(&machine, &workers);
        let names = infos.iter().map(|info| info.name.clone()).collect();
        let model = Model::new(names, machine.classes().to_vec());
        let workers = (1..).map(MemoryId).zip(workers).collect();
        let code = (&infos[..], kernels.code());
        let driver = Process::new(&machine, code, workers, Limits::default()).map_err(failed)?;
        let scheduler = (SCHEDULERS[0].make)();
        let coordinator = Coordinator::new(machine, infos, model, scheduler);
        let runtime = Runtime::new(coordinator, driver, Begin::WhenFlushed);
        Ok(Self { runtime, lost: Vec::new(), failed: None })
    }

    /// Which class takes in the sums of which other one, such that the first has all of them
    /// soonest by what links were so far. All have sums as large as these handles.
    pub fn reduction(&mut self, classes: &[ClassId], sums: &[HandleId]) -> Vec<(ClassId, ClassId)> {
        let relayed = self.runtime.driver().relayed();
        self.runtime.coordinator_mut().update_links(&relayed, HOST);
        let coordinator = self.runtime.coordinator();
        let sums: Vec<u64> = sums.iter().map(|sum| coordinator.data().bytes(*sum)).collect();
        let memories: Vec<MemoryId> = classes.iter().map(|class| MemoryId(class.0)).collect();
        let infos = coordinator.kernels();
        let add = |memory: MemoryId, bytes: u64| {
            let class = &coordinator.machine().classes()[memory.row()];
            match infos[Kernel::Add as usize].classes.contains(class) {
                true => 3.0 * bytes as f64 / MEMORY_BYTES_PER_NS,
                false => f64::INFINITY,
            }
        };
        let planned = Reduction::plan(coordinator.machine(), &memories, &sums, add);
        let additions = planned.additions.into_iter();
        additions.map(|own| (ClassId(own.into.0), ClassId(own.from.0))).collect()
    }

    /// How long contents of this process would be on their way to a class, were nothing else.
    pub fn copy_seconds(&self, class: ClassId, handles: &[HandleId]) -> f64 {
        let coordinator = self.runtime.coordinator();
        let bytes = handles.iter().map(|handle| coordinator.data().bytes(*handle)).sum();
        let nanos = coordinator.machine().transfer_time(HOST, MemoryId(class.0), bytes);
        nanos.unwrap_or(0) as f64 / 1e9
    }

    /// The classes of this process's device, and of each worker's.
    pub fn classes(&self) -> impl Iterator<Item = ClassId> + use<> {
        (0..self.runtime.coordinator().machine().classes().len() as u16).map(ClassId)
    }

    /// The name of the device of a class, and the seconds that it has computed.
    pub fn device(&self, class: ClassId) -> (&str, f64) {
        let view = self.runtime.coordinator().view();
        let busy = view.streams[class.row()].busy();
        (&view.machine.devices()[class.row()].name, busy as f64 / 1e9)
    }

    /// A handle that a task writes first.
    pub fn register(&mut self, bytes: u64) -> Result<HandleId> {
        self.runtime.register(bytes, None).map_err(failed)
    }

    /// Handles as large as others, which tasks write first.
    pub fn register_like(&mut self, others: &[HandleId]) -> Result<Vec<HandleId>> {
        let bytes = |handle: &HandleId| self.runtime.coordinator().data().bytes(*handle);
        let all: Vec<u64> = others.iter().map(bytes).collect();
        all.into_iter().map(|bytes| self.register(bytes)).collect()
    }

    /// The contents of handles.
    pub fn copies(&mut self, handles: &[HandleId]) -> Result<Vec<Content>> {
        handles.iter().map(|handle| self.look(*handle, Content::clone)).collect()
    }

    /// A handle with content.
    pub fn hold(&mut self, content: impl Into<Content>) -> Result<HandleId> {
        let content = content.into();
        let handle = self.runtime.register(content.bytes(), Some(HOST)).map_err(failed)?;
        self.runtime.driver().put(handle, HOST, content);
        Ok(handle)
    }

    /// Waits for the tasks that use it.
    pub fn release(&mut self, handle: HandleId) -> Result<()> {
        let released = self.runtime.release(handle);
        released.or_else(|error| self.refused(error))
    }

    pub fn submit(
        &mut self,
        Place { class, urgency }: Place,
        (kernel, parameter): (Kernel, usize),
        accesses: impl IntoIterator<Item = (HandleId, Mode)>,
    ) -> Result<()> {
        let task = Task::new(kernel.id(), accesses).parameter(parameter as u64).class(class);
        let submitted = self.runtime.submit(task.priority(urgency.priority())).map(|_| ());
        submitted.or_else(|error| self.refused(error))
    }

    /// Why something was refused: by what was lost before, where there is such a thing.
    fn refused(&mut self, error: impl Display) -> Result<()> {
        self.wait()?;
        Err(failed(error))
    }

    /// What was submitted begins.
    pub fn flush(&mut self) {
        self.runtime.flush();
    }

    /// Waits for all tasks but those in the background.
    ///
    /// # Errors
    /// What a kernel said that failed, or its panic, and work that was lost with a worker. A worker
    /// that is lost while it has nothing else to do is no error.
    pub fn wait(&mut self) -> Result<()> {
        let waited = self.runtime.wait();
        self.waited(waited)
    }

    /// Waits for all tasks.
    ///
    /// # Errors
    /// As [`Tasks::wait`].
    pub fn wait_for_all(&mut self) -> Result<()> {
        let waited = self.runtime.wait_for_all();
        self.waited(waited)
    }

    /// Whether something goes on in the background.
    pub fn has_background(&self) -> bool {
        self.runtime.coordinator().background() > 0
    }

    fn waited(&mut self, waited: std::result::Result<(), RunError>) -> Result<()> {
        let losses = match &waited {
            Err(RunError::Lost(losses)) => losses.clone(),
            _ => self.runtime.take_mended(),
        };
        losses.iter().for_each(|loss| self.note(loss));
        // A worker that is lost takes contents with it which a step can do without.
        let took_no_task = |loss: &Loss| {
            let is_elsewhere = loss.background > 0 || matches!(loss.cause, Cause::Memory { .. });
            is_elsewhere && loss.cancelled.is_empty()
        };
        match waited {
            Err(RunError::Lost(_)) if losses.iter().all(took_no_task) => Ok(()),
            waited => waited.map_err(failed),
        }
    }

    /// Why something in the background failed since this was asked last.
    pub fn take_failed(&mut self) -> Option<String> {
        self.failed.take()
    }

    fn note(&mut self, loss: &Loss) {
        let Cause::Memory { memory, reason } = &loss.cause else {
            if loss.background > 0 {
                let why = || RunError::Lost(vec![loss.clone()]).to_string();
                self.failed.get_or_insert_with(why);
            }
            return;
        };
        let class = ClassId(memory.0);
        let (name, reason) = (self.device(class).0.to_owned(), reason.clone());
        self.lost.push(LostWorker { class, name, reason });
    }

    /// Another worker in the place of one that was lost.
    ///
    /// # Errors
    /// One that can't be driven; the place stays empty.
    pub fn replace(&mut self, class: ClassId, worker: Peer) -> Result<()> {
        let (machine, memory) =
            (Arc::clone(self.runtime.coordinator().machine()), MemoryId(class.0));
        self.runtime.driver_mut().replace(&machine, memory, worker).map_err(failed)?;
        self.runtime.coordinator_mut().restore_memory(memory);
        Ok(())
    }

    /// Workers that were lost since this was asked last.
    pub fn take_lost(&mut self) -> Vec<LostWorker> {
        std::mem::take(&mut self.lost)
    }

    /// Waits for what is not in the background, and takes the content of a handle out of this
    /// process's memory.
    pub fn take(&mut self, handle: HandleId) -> Result<Content> {
        self.bring(handle)?;
        Ok(self.runtime.driver().put(handle, HOST, Content::Empty))
    }

    /// Gives a handle new content.
    pub fn give(&mut self, handle: HandleId, content: impl Into<Content>) -> Result<()> {
        self.runtime.provide(handle, HOST).map_err(failed)?;
        self.runtime.driver().put(handle, HOST, content.into());
        Ok(())
    }

    /// Waits for what is not in the background, and takes a look at a handle's content.
    pub fn look<R>(&mut self, handle: HandleId, look: impl FnOnce(&Content) -> R) -> Result<R> {
        self.bring(handle)?;
        Ok(self.runtime.driver().look(handle, HOST, look))
    }

    fn bring(&mut self, handle: HandleId) -> Result<()> {
        self.wait()?;
        match self.runtime.bring(handle, HOST) {
            true => Ok(()),
            // What was lost with it is told first.
            false => self.refused("a content is nowhere"),
        }
    }

    /// Begins to note what every stream does.
    pub fn record(&mut self) {
        self.runtime.coordinator_mut().record();
    }

    /// Ends that, with all of it as Perfetto reads it.
    pub fn take_trace(&mut self) -> Option<String> {
        let trace = self.runtime.coordinator().trace();
        self.runtime.coordinator_mut().take_timeline();
        trace
    }

    /// What ended, by kernel.
    pub fn times(&self) -> impl Iterator<Item = TaskTime> {
        let times = self.runtime.coordinator().times().iter().zip(Kernel::ALL);
        times.filter(|(time, _)| time.count > 0).map(
            |(KernelTime { count, total }, (_, kernel))| TaskTime {
                kernel,
                count: *count,
                seconds: *total as f64 / 1e9,
            },
        )
    }
}
