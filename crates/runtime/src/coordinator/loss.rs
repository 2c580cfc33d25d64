//! Kernels that fail, and devices and memories that are lost: what of the data is left, which
//! tasks run again and which can't.

use std::collections::BTreeSet;

use crate::coherence::{FailedCopy, Outcome};
use crate::graph::BACKGROUND;
use crate::{Action, DeviceId, HandleId, MemoryId, Stage, Stream, TaskId, TransferId};

use super::Coordinator;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    Device {
        device: DeviceId,
        reason: String,
    },
    Memory {
        memory: MemoryId,
        reason: String,
    },
    /// A kernel, by name, and what it said.
    Kernel {
        kernel: String,
        reason: String,
    },
    /// A copy, and what was said.
    Copy {
        handle: HandleId,
        from: MemoryId,
        to: MemoryId,
        reason: String,
    },
}

/// The tasks that a fault hit.
#[derive(Debug, Default)]
struct Hit {
    /// They had begun and run again.
    again: Vec<TaskId>,
    /// They were cancelled, and would have gone when they ended.
    stopped: Vec<TaskId>,
    /// They ran and failed.
    failed: Vec<TaskId>,
    /// They have not begun and can't get what they read.
    starved: Vec<TaskId>,
}

/// What a fault took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub cause: Cause,
    /// Tasks that had begun and run again elsewhere.
    pub again: Vec<TaskId>,
    /// Tasks that are not run: what they read is lost, or no device that is left can run them.
    pub cancelled: Vec<TaskId>,
    /// As many in the background.
    pub background: usize,
    /// Handles without the content that they should have by now. They may be provided again.
    pub lost: Vec<HandleId>,
}

impl Loss {
    /// Whether all that was to be done is done all the same.
    pub fn is_mended(&self) -> bool {
        self.cancelled.is_empty() && self.background == 0 && self.lost.is_empty()
    }
}

impl Coordinator {
    pub(super) fn failed(&mut self, task: TaskId, reason: String, actions: &mut Vec<Action>) {
        let Some(device) = self.leave_stream(task) else { return };
        let memory = self.machine.memory_of(device);
        let Some(node) = self.graph.get(task) else { return };
        let kernel = self.kernels[node.kernel.row()].name.clone();
        let accesses = node.accesses.clone();
        let was_cancelled = node.is_cancelled;
        self.data.release(&accesses, memory, Outcome::Undefined, actions);
        if was_cancelled {
            // It had begun before it was known that what it reads is lost.
            self.finish(task, None, actions);
            return;
        }
        let written = accesses.iter().filter(|access| access.mode.writes());
        let lost = written.map(|access| access.handle).collect();
        if let Some(node) = self.graph.get_mut(task) {
            node.is_cancelled = true;
        }
        let cause = Cause::Kernel { kernel, reason };
        self.settle_loss(cause, Hit { failed: vec![task], ..Hit::default() }, lost, actions);
        self.finish(task, None, actions);
    }

    pub(super) fn copy_failed(
        &mut self,
        transfer: TransferId,
        reason: String,
        actions: &mut Vec<Action>,
    ) {
        let mut arrived = std::mem::take(&mut self.arrived);
        let failed = self.data.copy_failed(transfer, self.now, (&mut arrived, actions));
        self.arrived = self.launch_arrived(arrived, actions);
        let Some(FailedCopy { handle, from, to, starved }) = failed else { return };
        let cause = Cause::Copy { handle, from, to, reason };
        if starved.is_empty() {
            let (again, cancelled, background, lost) = Default::default();
            self.losses.push(Loss { cause, again, cancelled, background, lost });
            return;
        }
        self.settle_loss(cause, Hit { starved, ..Hit::default() }, BTreeSet::new(), actions);
    }

    pub(super) fn device_lost(
        &mut self,
        device: DeviceId,
        reason: String,
        actions: &mut Vec<Action>,
    ) {
        if device.row() >= self.streams.len() || self.streams[device.row()].is_lost {
            return;
        }
        let (mut hit, mut back, mut lost) = (Hit::default(), Vec::new(), BTreeSet::new());
        self.take_from(device, (&mut hit, &mut back, &mut lost), actions);
        self.count_devices();
        self.reoffer(back);
        self.settle_loss(Cause::Device { device, reason }, hit, lost, actions);
    }

    /// Adds what it was doing, what is ready again, and handles that have no valid copy any more.
    fn take_from(
        &mut self,
        device: DeviceId,
        (hit, back, lost): (&mut Hit, &mut Vec<TaskId>, &mut BTreeSet<HandleId>),
        actions: &mut Vec<Action>,
    ) {
        let stream = &mut self.streams[device.row()];
        stream.is_lost = true;
        let begun: Vec<TaskId> = stream.committed.iter().take(stream.launched).copied().collect();
        if let Some(task) = stream.blocked.take() {
            back.push(task);
            if let Some(node) = self.graph.get_mut(task) {
                node.stage = Stage::Ready;
            }
        }
        self.uncommit(device, 0, (&mut *back, actions));
        for task in begun {
            let Some(node) = self.graph.get(task) else { continue };
            if node.is_cancelled {
                hit.stopped.push(task);
                continue;
            }
            hit.again.push(task);
            let written = node.accesses.iter().filter(|access| access.mode.writes());
            let written = written.map(|access| access.handle);
            lost.extend(written.filter(|handle| !self.data.has_content(*handle)));
        }
        let (scheduler, view) = self.parts();
        scheduler.device_lost(&view, device, back);
    }

    pub(super) fn memory_lost(
        &mut self,
        memory: MemoryId,
        reason: String,
        actions: &mut Vec<Action>,
    ) {
        if memory.row() >= self.machine.memories().len() {
            return;
        }
        let (mut hit, mut back, mut lost) = (Hit::default(), Vec::new(), BTreeSet::new());
        for device in self.machine.device_ids() {
            let of_memory = self.machine.memory_of(device) == memory;
            if of_memory && !self.streams[device.row()].is_lost {
                self.take_from(device, (&mut hit, &mut back, &mut lost), actions);
            }
        }
        let mut interrupted = Vec::new();
        lost.extend(self.data.lose_memory(memory, self.now, &mut interrupted, actions));
        for task in interrupted {
            let Some(device) = self.graph.get(task).and_then(|node| node.device()) else {
                continue;
            };
            let committed = &self.streams[device.row()].committed;
            if let Some(place) = committed.iter().position(|other| *other == task) {
                self.uncommit(device, place, (&mut back, actions));
            }
        }
        self.count_devices();
        lost.retain(|handle| !self.data.has_content(*handle));
        self.reoffer(back);
        self.settle_loss(Cause::Memory { memory, reason }, hit, lost, actions);
    }

    /// A memory that was lost is there again, and empty, with its devices: they are given tasks
    /// from now on. False of a memory that was not lost.
    pub fn restore_memory(&mut self, memory: MemoryId) -> bool {
        if memory.row() >= self.machine.memories().len() || !self.data.restore_memory(memory) {
            return false;
        }
        for device in self.machine.device_ids() {
            if self.machine.memory_of(device) == memory {
                let stream = &mut self.streams[device.row()];
                *stream = Stream { busy: stream.busy, ..Stream::default() };
            }
        }
        self.count_devices();
        true
    }

    fn reoffer(&mut self, mut back: Vec<TaskId>) {
        back.sort_unstable();
        back.dedup();
        for task in back {
            if self.view().is_ready(task) {
                self.offer(task, None);
            }
        }
    }

    /// Cancels what can't run any more. Tasks are looked at in the order of submission: one that
    /// reads what is lost is cancelled and loses what it would have written; one that writes it
    /// anew, without reading it, brings it back. After a task that failed those are looked at that
    /// wait for it, after the loss of a device all.
    fn settle_loss(
        &mut self,
        cause: Cause,
        Hit { again, stopped: gone, failed, starved }: Hit,
        mut lost: BTreeSet<HandleId>,
        actions: &mut Vec<Action>,
    ) {
        let mut cancelled = [&failed[..], &starved].concat();
        let concerned: Vec<TaskId> = match cancelled.as_slice() {
            [] => self.graph.tasks().map(|(id, _)| id).collect(),
            hit => self.graph.reachable(hit),
        };
        cancelled.truncate(failed.len());
        let nodes = concerned.into_iter().filter_map(|id| Some((self.graph.get(id)?.sequence, id)));
        let mut tasks: Vec<(u64, TaskId)> = nodes.collect();
        tasks.sort_unstable();
        let mut stopped = Vec::new();
        for (_, id) in tasks {
            let Some(node) = self.graph.get(id) else { continue };
            if node.is_cancelled {
                continue;
            }
            let reads = node.accesses.iter().filter(|access| access.mode.reads());
            let view = self.view();
            let can_run = node.stage == Stage::Launched
                || view.devices().any(|device| view.can_run(node, device));
            let is_cancelled = !can_run
                || starved.contains(&id)
                || reads.into_iter().any(|read| lost.contains(&read.handle));
            for access in node.accesses.iter().filter(|access| access.mode.writes()) {
                match is_cancelled {
                    true => lost.insert(access.handle),
                    false => lost.remove(&access.handle),
                };
            }
            if is_cancelled {
                stopped.push(id);
            }
        }
        for id in &stopped {
            self.cancel(*id, actions);
        }
        cancelled.extend(&stopped);
        let is_waited_for =
            |task: &TaskId| self.graph.get(*task).is_none_or(|node| node.priority != BACKGROUND);
        let told: Vec<TaskId> = cancelled.iter().copied().filter(is_waited_for).collect();
        let background = cancelled.len() - told.len();
        // Those that nothing is waited for go now, the others when their turn comes.
        for id in stopped.into_iter().chain(gone) {
            let node = self.graph.get(id);
            if node.is_some_and(|node| {
                node.is_cancelled && node.waiting() == 0 && node.stage != Stage::Launched
            }) {
                self.finish(id, None, actions);
            }
        }
        let again = again.into_iter().filter(|task| !cancelled.contains(task)).collect();
        let (cancelled, lost) = (told, lost.into_iter().collect());
        self.losses.push(Loss { cause, again, cancelled, background, lost });
    }

    fn cancel(&mut self, id: TaskId, actions: &mut Vec<Action>) {
        let Some(node) = self.graph.get_mut(id) else { return };
        node.is_cancelled = true;
        if node.stage != Stage::Committed {
            return;
        }
        let device = node.device;
        let committed = &self.streams[device.row()].committed;
        if let Some(place) = committed.iter().position(|other| *other == id) {
            let mut back = Vec::new();
            self.uncommit(device, place, (&mut back, actions));
            self.reoffer(back);
        }
    }
}
