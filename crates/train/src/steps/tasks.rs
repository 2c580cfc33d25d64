//! The runtime that a step's tasks go to: one device of all processors' cores, and its memory.

use super::content::Content;
use super::kernels::{Kernel, Kernels};
use crate::drivers::CPU;
use crate::error::{Error, Result};
use het_core::Bytes;
use het_runtime::drivers::cpu::{self, Cpu};
use het_runtime::{
    Begin, Coordinator, Device, HandleId, KernelInfo, KernelTime, Machine, Memory, MemoryId, Mode,
    Model, Runtime, Task, schedulers::SCHEDULERS,
};
use std::fmt::Display;
use std::sync::Arc;

/// The memory of this process.
const HOST: MemoryId = MemoryId(0);

#[derive(Debug)]
pub(super) struct Tasks {
    runtime: Runtime<Cpu<Content>>,
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

impl Tasks {
    pub fn new(kernels: &Arc<Kernels>) -> Result<Self> {
        let class = CPU.to_owned();
        let device = Device { name: "cpu0".to_owned(), class, memory: HOST, wake: cpu::WAKE };
        let memory = Memory { name: "host".to_owned(), capacity: Bytes(u64::MAX) };
        let machine = Machine::new(vec![device], vec![memory], 0, Vec::new()).map_err(failed)?;
        let machine = Arc::new(machine);
        let names = || Kernel::ALL.into_iter().map(|(_, name)| name.to_owned());
        let infos = names().map(|name| KernelInfo { name, classes: Vec::new() }).collect();
        let model = Model::new(names().collect(), machine.classes().to_vec());
        let scheduler = (SCHEDULERS[0].make)();
        let coordinator = Coordinator::new(Arc::clone(&machine), infos, model, scheduler);
        let driver = Cpu::new(&machine, kernels.code()).map_err(failed)?;
        Ok(Self { runtime: Runtime::new(coordinator, driver, Begin::WhenFlushed) })
    }

    /// A handle that a task writes first.
    pub fn register(&mut self, bytes: u64) -> Result<HandleId> {
        self.runtime.register(bytes, None).map_err(failed)
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
        kernel: Kernel,
        parameter: usize,
        accesses: impl IntoIterator<Item = (HandleId, Mode)>,
    ) -> Result<()> {
        let task = Task::new(kernel.id(), accesses).parameter(parameter as u64);
        let submitted = self.runtime.submit(task).map(|_| ());
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

    /// Waits for all tasks.
    ///
    /// # Errors
    /// What a kernel said that failed, or its panic.
    pub fn wait(&mut self) -> Result<()> {
        self.runtime.wait().map_err(failed)
    }

    /// Waits for all tasks, and takes the content of a handle out of this process's memory.
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

    /// Waits for all tasks, and takes a look at a handle's content.
    pub fn look<R>(&mut self, handle: HandleId, look: impl FnOnce(&Content) -> R) -> Result<R> {
        self.bring(handle)?;
        Ok(self.runtime.driver().look(handle, HOST, look))
    }

    fn bring(&mut self, handle: HandleId) -> Result<()> {
        self.wait()?;
        self.runtime.replicate(handle, HOST);
        self.wait()
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
