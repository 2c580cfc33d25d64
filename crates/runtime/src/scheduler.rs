//! What a scheduler is asked, and what it may look at.

use std::collections::VecDeque;
use std::fmt::Debug;

use crate::graph::Node;
use crate::queue::PriorityQueue;
use crate::{
    Coherence, DeviceId, Estimate, Graph, KernelId, Machine, MemoryId, Model, Nanos, Stage, TaskId,
};

/// The compute stream of a device: what was committed to it, in order.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    pub(crate) committed: VecDeque<TaskId>,
    /// How many of them the driver has.
    pub(crate) launched: usize,
    /// Expected nanoseconds of all of them.
    pub(crate) work: f64,
    /// Since when the first of them runs.
    pub(crate) since: Nanos,
    pub(crate) is_lost: bool,
    /// Waits for room in the memory.
    pub(crate) blocked: Option<TaskId>,
    /// Whether the task that is next found no room.
    pub(crate) lacks_room: bool,
    /// Nanoseconds of all tasks that ended here but those in the background.
    pub(crate) busy: Nanos,
    /// Tasks that wait for nothing but one that is committed here.
    pub(crate) following: PriorityQueue<TaskId>,
}

impl Stream {
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Nanoseconds of all tasks that ended here but those in the background.
    pub fn busy(&self) -> Nanos {
        self.busy
    }

    pub fn is_idle(&self) -> bool {
        self.committed.is_empty() && self.blocked.is_none()
    }
}

/// What is so at the moment.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub now: Nanos,
    pub machine: &'a Machine,
    pub graph: &'a Graph,
    pub data: &'a Coherence,
    pub model: &'a Model,
    pub streams: &'a [Stream],
}

impl<'a> View<'a> {
    /// A task that has not ended.
    pub fn task(&self, task: TaskId) -> Option<&'a Node> {
        self.graph.get(task)
    }

    pub fn is_ready(&self, task: TaskId) -> bool {
        self.task(task).is_some_and(|node| node.stage == Stage::Ready && !node.is_cancelled)
    }

    /// Devices that are there.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + use<'a> {
        let streams = self.streams;
        self.machine.device_ids().filter(move |device| !streams[device.row()].is_lost)
    }

    /// Whether the device is there, has the kernel, and a memory in which the task's data fits.
    pub fn can_run(&self, node: &Node, device: DeviceId) -> bool {
        node.classes >> self.machine.class_of(device).0 & 1 == 1
            && node.bytes <= self.machine.capacity_of(device)
            && !self.streams[device.row()].is_lost
    }

    /// `None` before anything is known.
    pub fn estimate(&self, node: &Node, device: DeviceId) -> Option<Estimate> {
        self.model.estimate(node.row, self.machine.class_of(device))
    }

    /// When a device will have done all that is committed to it.
    pub fn free_at(&self, device: DeviceId) -> Nanos {
        let stream = &self.streams[device.row()];
        if stream.committed.is_empty() {
            return self.now + self.machine.devices()[device.row()].wake;
        }
        self.now.max(stream.since.saturating_add(stream.work as Nanos))
    }

    /// When all that a task reads may be where a device computes.
    pub fn available_at(&self, node: &Node, device: DeviceId) -> Option<Nanos> {
        let memory = self.machine.memory_of(device);
        self.data.available_at(&node.accesses, memory, self.now)
    }

    /// Whether all that a task reads is where a device computes.
    pub fn has_data(&self, node: &Node, device: DeviceId) -> bool {
        let memory = self.machine.memory_of(device);
        let mut read = node.accesses.iter().filter(|access| access.mode.reads());
        read.all(|access| self.data.is_valid(access.handle, memory))
    }

    pub fn memory_of(&self, device: DeviceId) -> MemoryId {
        self.machine.memory_of(device)
    }
}

/// A device that a task might have had, and what spoke for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub device: DeviceId,
    /// When the device is free.
    pub free_at: Nanos,
    /// When the data is there.
    pub available_at: Nanos,
    /// Expected nanoseconds, and their standard deviation.
    pub duration: Estimate,
    /// What was compared: the least wins.
    pub score: f64,
}

/// One choice, for the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    pub at: Nanos,
    /// Place in the order of submission.
    pub sequence: u64,
    pub kernel: KernelId,
    pub chosen: DeviceId,
    /// Why, in one word: `earliest-finish`, `plan`, `stolen`.
    pub reason: &'static str,
    pub candidates: Vec<Candidate>,
    /// Nanoseconds that it took, once it ended.
    pub took: Option<Nanos>,
}

/// Says which device runs which task next. A task that it was given by `ready` is its own until
/// `next` hands it out.
pub trait Scheduler: Debug + Send {
    fn name(&self) -> &'static str;

    /// Nothing has to be waited for any more; `after` is the device whose task was the last.
    fn ready(&mut self, view: &View<'_>, task: TaskId, after: Option<DeviceId>);

    /// What the device, which asks for more, does next.
    fn next(&mut self, view: &View<'_>, device: DeviceId) -> Option<TaskId>;

    /// The priority of what `next` would hand out to the device from what is meant for it; `None`
    /// where there is nothing, or where priorities are not heeded. Less urgent tasks that may
    /// stand behind a committed one give way to it.
    fn next_priority(&self, _view: &View<'_>, _device: DeviceId) -> Option<i32> {
        None
    }

    /// What `next` will return as far as can be said, soonest first: its data is copied before.
    fn upcoming(&self, view: &View<'_>, device: DeviceId, soon: &mut Vec<TaskId>);

    /// A task has ended on a device, earlier or later than expected.
    fn ended(&mut self, _view: &View<'_>, _task: TaskId, _device: DeviceId, _took: Nanos) {}

    /// Gives back what was meant for a device that is gone.
    fn device_lost(&mut self, view: &View<'_>, device: DeviceId, back: &mut Vec<TaskId>);

    /// Choices since they were taken last; none unless they are kept.
    fn take_log(&mut self) -> Vec<Choice> {
        Vec::new()
    }
}
