//! The state of one machine's execution, and everything that changes it. No input or output and no
//! clock: it is told what time it is and what happened, and says what a driver is to do.

mod loss;
mod recording;
mod streams;

use std::sync::Arc;

use thiserror::Error;

use crate::coherence::{Outcome, RegisterError, ReleaseError};
use crate::graph::{BACKGROUND, Details};
use crate::{
    Action, ClassId, Coherence, Completion, DeviceId, Graph, HandleId, KernelInfo, KernelTime,
    Machine, MemoryId, Mode, Model, Nanos, Scheduler, Stage, Stream, Task, TaskId, Timeline, View,
};

pub use loss::{Cause, Loss};

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubmitError {
    #[error("there is no kernel {0}")]
    NoKernel(usize),
    #[error("access {0} names a handle that does not exist (any more)")]
    NoHandle(usize),
    #[error("accesses {0} and {1} name the same handle\nhint: name it once, as `ReadWrite`")]
    Twice(usize, usize),
    #[error(
        "access {0} reads a handle that nothing has written\nhint: register it with its content, \
         or submit the task that writes it before"
    )]
    NoContent(usize),
    #[error(
        "no device that has kernel `{kernel}` has a memory of the {bytes} bytes that the task uses"
    )]
    NoDevice { kernel: String, bytes: u64 },
}

/// A task that waits for room that nothing will make.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "memory `{memory}` is full: kernel `{kernel}` needs {bytes} bytes of {capacity}, and there is \
     nowhere to put what lies there\nhint: release handles, or give another memory more room"
)]
pub struct MemoryFull {
    pub memory: String,
    pub kernel: String,
    pub bytes: u64,
    pub capacity: u64,
}

/// A link whose rate is within this part of what it is taken for is as it is taken for.
const RATE_TOLERANCE: f64 = 0.1;

#[derive(Debug)]
pub struct Coordinator {
    machine: Arc<Machine>,
    /// As it was said to be.
    declared: Arc<Machine>,
    /// Pairs of memories of which a third hands on what is copied between them.
    relayed: Vec<(MemoryId, MemoryId)>,
    kernels: Vec<KernelInfo>,
    /// Of each kernel.
    times: Vec<KernelTime>,
    /// Classes that have each kernel, as bits.
    kernel_classes: Vec<u64>,
    /// The most memory among devices of each class that are left; `None` where none is.
    class_capacity: Vec<Option<u64>>,
    graph: Graph,
    data: Coherence,
    model: Model,
    scheduler: Box<dyn Scheduler>,
    streams: Vec<Stream>,
    now: Nanos,
    losses: Vec<Loss>,
    /// Where it is recorded what streams do.
    timeline: Option<Box<Timeline>>,
    /// Kept from call to call for their memory.
    released: Vec<TaskId>,
    arrived: Vec<TaskId>,
    soon: Vec<TaskId>,
}

impl Coordinator {
    pub fn new(
        machine: Arc<Machine>,
        kernels: Vec<KernelInfo>,
        model: Model,
        scheduler: Box<dyn Scheduler>,
    ) -> Self {
        let bits = |kernel: &KernelInfo| {
            let classes = machine.classes().iter().enumerate();
            let has = |name: &String| kernel.classes.is_empty() || kernel.classes.contains(name);
            classes.fold(0, |bits, (row, name)| bits | u64::from(has(name)) << row)
        };
        let mut one = Self {
            kernel_classes: kernels.iter().map(bits).collect(),
            class_capacity: Vec::new(),
            times: vec![KernelTime::default(); kernels.len()],
            kernels,
            graph: Graph::default(),
            data: Coherence::new(Arc::clone(&machine)),
            model,
            scheduler,
            streams: vec![Stream::default(); machine.devices().len()],
            now: 0,
            losses: Vec::new(),
            timeline: None,
            released: Vec::new(),
            arrived: Vec::new(),
            soon: Vec::new(),
            declared: Arc::clone(&machine),
            relayed: Vec::new(),
            machine,
        };
        one.count_devices();
        one
    }

    /// What submissions are held against, of the devices that are left.
    fn count_devices(&mut self) {
        let mut capacities = vec![None; self.machine.classes().len()];
        for device in self.view().devices() {
            let most = &mut capacities[self.machine.class_of(device).row()];
            *most = Some(self.machine.capacity_of(device)).max(*most);
        }
        self.class_capacity = capacities;
    }

    /// A handle of so many bytes; with a home its content lies there.
    ///
    /// # Errors
    /// A home without room.
    pub fn register(
        &mut self,
        bytes: u64,
        home: Option<MemoryId>,
        actions: &mut Vec<Action>,
    ) -> Result<HandleId, RegisterError> {
        self.data.register(bytes, home, actions)
    }

    /// The handle and all its copies are gone.
    ///
    /// # Errors
    /// A handle that something still uses, or that does not exist.
    pub fn release(
        &mut self,
        handle: HandleId,
        actions: &mut Vec<Action>,
    ) -> Result<(), ReleaseError> {
        self.unused(handle)?;
        self.graph.forget(handle);
        self.data.release_handle(handle, actions);
        Ok(())
    }

    fn unused(&self, handle: HandleId) -> Result<(), ReleaseError> {
        if !self.data.exists(handle) {
            return Err(ReleaseError::Unknown);
        }
        if self.graph.uses(handle) || self.data.is_copied(handle) {
            return Err(ReleaseError::InUse);
        }
        Ok(())
    }

    /// Content was put into a memory, for a handle that has none or another one.
    ///
    /// # Errors
    /// A handle that something still uses, and a memory without room.
    pub fn provide(
        &mut self,
        handle: HandleId,
        memory: MemoryId,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProvideError> {
        self.unused(handle)?;
        self.data.restore(handle, memory, actions)?;
        Ok(())
    }

    /// Begins a copy in another memory, beside the one that there is: what keeps data when a
    /// device is lost. Without room to spare nothing begins.
    pub fn replicate(&mut self, handle: HandleId, memory: MemoryId, actions: &mut Vec<Action>) {
        if self.data.exists(handle) && memory.row() < self.machine.memories().len() {
            let access = crate::Access { handle, mode: Mode::Read };
            self.data.prefetch(&[access], memory, self.now, actions);
        }
    }

    /// Adds a task behind all that were submitted before.
    ///
    /// # Errors
    /// A task that could never run, by what is wrong with it.
    pub fn submit(&mut self, task: Task) -> Result<TaskId, SubmitError> {
        let Some(classes) = self.kernel_classes.get(task.kernel.row()).copied() else {
            return Err(SubmitError::NoKernel(task.kernel.row()));
        };
        let only = |class: ClassId| 1_u64.checked_shl(class.row() as u32).unwrap_or(0);
        let meant = task.class.map_or(u64::MAX, only);
        let mut bytes = 0;
        for (row, access) in task.accesses.iter().enumerate() {
            if !self.data.exists(access.handle) {
                return Err(SubmitError::NoHandle(row));
            }
            let before = &task.accesses[..row];
            if let Some(first) = before.iter().position(|other| other.handle == access.handle) {
                return Err(SubmitError::Twice(first, row));
            }
            if access.mode.reads()
                && !self.data.has_content(access.handle)
                && !self.graph.is_written(access.handle)
            {
                return Err(SubmitError::NoContent(row));
            }
            bytes = self.data.bytes(access.handle).saturating_add(bytes);
        }
        let classes = self.with_room(classes & meant, bytes);
        if classes == 0 {
            let kernel = self.kernels[task.kernel.row()].name.clone();
            return Err(SubmitError::NoDevice { kernel, bytes });
        }
        let row = self.model.row(task.kernel, bytes);
        let id = self.graph.add(task, Details { row, classes, bytes });
        if self.graph.get(id).is_some_and(|node| node.stage == Stage::Ready) {
            self.offer(id, None);
        }
        Ok(id)
    }

    /// Those classes of which a device that is left has so much memory.
    fn with_room(&self, classes: u64, bytes: u64) -> u64 {
        let capacities = self.class_capacity.iter().enumerate();
        let too_small = capacities.filter(|(_, capacity)| **capacity < Some(bytes));
        too_small.fold(classes, |classes, (row, _)| classes & !(1 << row))
    }

    /// Gives a ready task to the scheduler.
    fn offer(&mut self, task: TaskId, after: Option<DeviceId>) {
        let (scheduler, view) = self.parts();
        scheduler.ready(&view, task, after);
    }

    fn parts(&mut self) -> (&mut dyn Scheduler, View<'_>) {
        let view = View {
            now: self.now,
            machine: &self.machine,
            graph: &self.graph,
            data: &self.data,
            model: &self.model,
            streams: &self.streams,
        };
        (self.scheduler.as_mut(), view)
    }

    pub fn view(&self) -> View<'_> {
        View {
            now: self.now,
            machine: &self.machine,
            graph: &self.graph,
            data: &self.data,
            model: &self.model,
            streams: &self.streams,
        }
    }

    /// Takes in what happened.
    pub fn completed(&mut self, completion: Completion, actions: &mut Vec<Action>) {
        if self.timeline.is_some() {
            self.record_completion(&completion);
        }
        match completion {
            Completion::Ended { task, ran } => self.ended(task, ran.length(), actions),
            Completion::Failed { task, reason, .. } => self.failed(task, reason, actions),
            Completion::Copied { transfer, .. } => {
                let mut arrived = std::mem::take(&mut self.arrived);
                self.data.arrived(transfer, self.now, (&mut arrived, actions));
                self.arrived = self.launch_arrived(arrived, actions);
            }
            Completion::CopyFailed { transfer, reason } => {
                self.copy_failed(transfer, reason, actions);
            }
            Completion::DeviceLost { device, reason } => self.device_lost(device, reason, actions),
            Completion::MemoryLost { memory, reason } => self.memory_lost(memory, reason, actions),
        }
    }

    /// Returns the list, which is empty then, for the next time.
    fn launch_arrived(
        &mut self,
        mut arrived: Vec<TaskId>,
        actions: &mut Vec<Action>,
    ) -> Vec<TaskId> {
        for task in arrived.drain(..) {
            if let Some(node) = self.graph.get_mut(task) {
                node.arriving -= 1;
                let device = node.device;
                self.launch(device, actions);
            }
        }
        arrived
    }

    fn ended(&mut self, task: TaskId, took: Nanos, actions: &mut Vec<Action>) {
        let Some(device) = self.leave_stream(task) else { return };
        let class = self.machine.class_of(device);
        if let Some(node) = self.graph.get(task) {
            self.model.observe(node.row, class, took as f64);
            let time = &mut self.times[node.kernel.row()];
            *time = KernelTime { count: time.count + 1, total: time.total + took };
            if node.priority > BACKGROUND {
                self.streams[device.row()].busy += took;
            }
            let memory = self.machine.memory_of(device);
            let outcome = match node.is_cancelled {
                true => Outcome::Undefined,
                false => Outcome::Written,
            };
            self.data.release(&node.accesses, memory, outcome, actions);
        }
        let (scheduler, view) = self.parts();
        scheduler.ended(&view, task, device, took);
        self.finish(task, Some(device), actions);
    }

    /// Takes a task out of the graph, and offers those that waited for it alone.
    fn finish(&mut self, task: TaskId, device: Option<DeviceId>, actions: &mut Vec<Action>) {
        let mut released = std::mem::take(&mut self.released);
        self.take_out(task, &mut released, actions);
        let mut at = 0;
        while let Some(next) = released.get(at).copied() {
            at += 1;
            let Some(node) = self.graph.get(next) else { continue };
            if node.is_cancelled {
                // What the driver has is taken out when it ends.
                if node.stage != Stage::Launched {
                    self.take_out(next, &mut released, actions);
                }
            } else if node.stage == Stage::Ready {
                self.offer(next, device);
            }
        }
        released.clear();
        self.released = released;
    }

    /// What a cancelled task would have written has no content from its turn on: those before it
    /// have read what there was.
    fn take_out(&mut self, task: TaskId, released: &mut Vec<TaskId>, actions: &mut Vec<Action>) {
        let cancelled = self.graph.get(task).filter(|node| node.is_cancelled);
        let written = cancelled.into_iter().flat_map(|node| &node.accesses);
        let written = written.filter(|access| access.mode.writes()).map(|access| access.handle);
        let written: Vec<HandleId> = written.collect();
        self.graph.finish(task, released);
        written.into_iter().for_each(|handle| self.data.lose(handle, actions));
    }

    /// Sets the time, gives streams what they ask for and says what a driver is to do.
    pub fn advance(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        for device in 0..self.streams.len() {
            self.fill(DeviceId(device as u16), actions);
        }
        if self.timeline.is_some() {
            self.record_causes();
        }
    }

    /// Sets the time alone: before completions are taken in.
    pub fn set_time(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// How many tasks have not ended.
    pub fn unfinished(&self) -> usize {
        self.graph.unfinished()
    }

    /// How many of those tasks are in the background.
    pub fn background(&self) -> usize {
        self.graph.background()
    }

    /// Whether the driver has something that it will report.
    pub fn is_under_way(&self) -> bool {
        self.data.is_moving() || self.streams.iter().any(|stream| stream.launched > 0)
    }

    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// From now on links are as fast as copies over them were, and what goes between the memories
    /// of these pairs is handed on by a third.
    pub fn update_links(&mut self, relayed: &[(MemoryId, MemoryId)], by: MemoryId) {
        let rates = self.data.rates();
        let mut changes = self
            .machine
            .links()
            .iter()
            .enumerate()
            .filter_map(|(row, link)| Some((rates.get(row)? / link.bytes_per_s - 1.0).abs()));
        if changes.all(|change| change <= RATE_TOLERANCE) && relayed == self.relayed {
            return;
        }
        let machine = self.declared.with_rates(|row| rates.get(row));
        let relayed = relayed.to_vec();
        let machine = relayed.iter().fold(machine, |machine, pair| machine.with_relay(*pair, by));
        self.machine = Arc::new(machine);
        self.relayed = relayed;
        self.data.set_machine(Arc::clone(&self.machine), self.now);
    }

    pub fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }

    /// What each kernel took since the beginning, in the order of their ids.
    pub fn times(&self) -> &[KernelTime] {
        &self.times
    }

    pub fn data(&self) -> &Coherence {
        &self.data
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn scheduler_mut(&mut self) -> &mut dyn Scheduler {
        self.scheduler.as_mut()
    }

    /// What went wrong since it was asked last.
    pub fn take_losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }

    /// The task that can't get memory, where nothing is under way that would make room.
    pub fn memory_full(&self) -> Option<MemoryFull> {
        let streams = self.streams.iter().enumerate();
        let mut blocked = streams.filter_map(|(row, stream)| Some((row, stream.blocked?)));
        let (row, task) = blocked.find(|(_, task)| self.graph.get(*task).is_some())?;
        let node = self.graph.get(task)?;
        let memory = self.machine.memory_of(DeviceId(row as u16));
        let told = &self.machine.memories()[memory.row()];
        Some(MemoryFull {
            memory: told.name.clone(),
            kernel: self.kernels[node.kernel.row()].name.clone(),
            bytes: node.accesses.iter().map(|access| self.data.bytes(access.handle)).sum(),
            capacity: told.capacity.0,
        })
    }

    /// Breaks where a law of coherence does.
    pub fn check(&self) {
        self.data.check();
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProvideError {
    #[error(transparent)]
    Handle(#[from] ReleaseError),
    #[error(transparent)]
    Room(#[from] RegisterError),
}
