//! What is committed to the stream of a device, and when.

use crate::coherence::{Acquired, Outcome};
use crate::graph::BACKGROUND;
use crate::{Access, Accesses, Action, DeviceId, Launch, Nanos, Stage, TaskId};

use super::Coordinator;

/// Tasks whose copies are begun before their device asks for them.
const PREFETCHED: usize = 4;

/// Most tasks that a stream is ahead.
const AHEAD_MAX: usize = 1_024;

/// A device is given one task ahead where the time until it is given the next one would be more
/// than one part in so many of the task.
const WAKE_PARTS: f64 = 100.0;

impl Coordinator {
    /// Commits tasks to a stream as long as it asks for more, then prefetches.
    pub(super) fn fill(&mut self, device: DeviceId, actions: &mut Vec<Action>) {
        let row = device.row();
        if self.streams[row].is_lost {
            return;
        }
        self.streams[row].lacks_room = false;
        while self.asks(device) {
            let Some(task) = self.next_of(device) else { break };
            if !self.commit(task, device, actions) {
                match self.graph.get_mut(task) {
                    // It may be offered to the scheduler before there is room.
                    Some(node) if node.stage == Stage::Waiting => {
                        let priority = node.priority;
                        self.streams[row].following.put_back(priority, task);
                    }
                    Some(node) => {
                        node.stage = Stage::Blocked;
                        self.streams[row].blocked = Some(task);
                    }
                    None => {}
                }
                self.streams[row].lacks_room = true;
                break;
            }
        }
        self.launch(device, actions);
        if self.machine.memories().len() > 1 {
            self.prefetch(device, actions);
        }
    }

    /// Whether a stream takes one more: it has none, what it has takes no longer than waking it,
    /// or it has one that is short.
    fn asks(&self, device: DeviceId) -> bool {
        let stream = &self.streams[device.row()];
        let wake = self.machine.devices()[device.row()].wake as f64;
        match stream.committed.len() {
            0 => true,
            1 => stream.work < WAKE_PARTS * wake,
            count => count < AHEAD_MAX && stream.work < wake,
        }
    }

    fn next_of(&mut self, device: DeviceId) -> Option<TaskId> {
        let row = device.row();
        if let Some(task) = self.streams[row].blocked.take()
            && let Some(node) = self.graph.get_mut(task).filter(|node| !node.is_cancelled)
        {
            let priority = node.priority;
            if !self.has_more_urgent(device, priority) {
                return Some(task);
            }
            if let Some(node) = self.graph.get_mut(task) {
                node.stage = Stage::Ready;
            }
            self.offer(task, None);
        }
        while let Some(task) = self.streams[row].following.get(0).copied() {
            // One that is ready by now was offered to the scheduler.
            let node = self.graph.get(task);
            let node = node.filter(|node| node.stage == Stage::Waiting && !node.is_cancelled);
            let priority = node.map(|node| node.priority);
            if priority.is_some_and(|priority| self.has_more_urgent(device, priority)) {
                break;
            }
            self.streams[row].following.pop();
            if priority.is_some() {
                return Some(task);
            }
        }
        loop {
            let (scheduler, view) = self.parts();
            let task = scheduler.next(&view, device)?;
            // What was cancelled meanwhile is passed over.
            if view.is_ready(task) {
                return Some(task);
            }
        }
    }

    /// Whether the scheduler has a task for the device that has to be before one of this priority.
    fn has_more_urgent(&mut self, device: DeviceId, priority: i32) -> bool {
        let (scheduler, view) = self.parts();
        scheduler.next_priority(&view, device) > Some(priority)
    }

    /// Whether there is memory for the task; it takes its place in the stream then.
    fn commit(&mut self, task: TaskId, device: DeviceId, actions: &mut Vec<Action>) -> bool {
        let memory = self.machine.memory_of(device);
        let next = self.next_accesses(task, device);
        let Some(node) = self.graph.get(task) else { return true };
        let estimate = self.model.estimate(node.row, self.machine.class_of(device));
        // Of what is not known nothing is begun behind it.
        let expected = estimate.map_or(f64::INFINITY, |estimate| estimate.mean);
        let asked = (task, node.accesses.as_slice());
        let Acquired::Granted { arriving } =
            self.data.acquire(asked, memory, (self.now, &next), actions)
        else {
            return false;
        };
        let Some(node) = self.graph.get_mut(task) else { return true };
        node.stage = Stage::Committed;
        node.device = device;
        node.arriving = arriving;
        node.expected = expected;
        let stream = &mut self.streams[device.row()];
        if stream.committed.is_empty() {
            stream.since = self.now;
            stream.work = 0.0;
        }
        stream.committed.push_back(task);
        stream.work += expected;
        let wake = self.machine.devices()[device.row()].wake as f64;
        if expected < WAKE_PARTS * wake {
            self.follow(task, device);
        }
        true
    }

    /// What is likely to run next in the same memory, where memory is scarce.
    fn next_accesses(&mut self, task: TaskId, device: DeviceId) -> Accesses {
        let memory = self.machine.memory_of(device);
        let mut accesses = Accesses::new();
        if self.machine.memories()[memory.row()].capacity.0 == u64::MAX {
            return accesses;
        }
        let mut soon = std::mem::take(&mut self.soon);
        for device in self.machine.device_ids() {
            if self.machine.memory_of(device) == memory {
                let (scheduler, view) = self.parts();
                scheduler.upcoming(&view, device, &mut soon);
                soon.truncate(PREFETCHED);
                let others = soon.iter().filter(|other| **other != task);
                let nodes = others.filter_map(|other| self.graph.get(*other));
                accesses.extend(nodes.flat_map(|node| node.accesses.iter().copied()));
                soon.clear();
            }
        }
        self.soon = soon;
        accesses
    }

    /// Tasks that wait for this one alone may stand behind it in the same stream, where no other
    /// device would have them sooner.
    fn follow(&mut self, task: TaskId, device: DeviceId) {
        let Some(first) = self.graph.successors(task).next() else { return };
        let waits_for_it_alone = |task: &TaskId| {
            self.graph.get(*task).is_some_and(|node| {
                node.waiting() == 1 && node.stage == Stage::Waiting && !node.is_cancelled
            })
        };
        let classes = self.machine.classes().len();
        let own = self.machine.class_of(device);
        let wake = self.machine.devices()[device.row()].wake as f64;
        let is_best_here = |task: &TaskId| {
            let Some(node) = self.graph.get(*task) else { return false };
            let mean = |class| Some(self.model.estimate(node.row, class)?.mean);
            let others = (0..classes as u16)
                .map(crate::ClassId)
                .filter(|class| *class != own && node.classes >> class.0 & 1 == 1);
            self.view().can_run(node, device)
                && others.map(mean).all(|other| mean(own) <= other.map(|other| other + wake))
        };
        let successors: smallvec::SmallVec<[TaskId; 8]> = match self.graph.successors(task).nth(1) {
            None => smallvec::smallvec![first],
            Some(_) => self.graph.successors(task).collect(),
        };
        let following = successors
            .into_iter()
            .rev()
            .filter(|task| waits_for_it_alone(task) && (classes == 1 || is_best_here(task)));
        let following = following.filter_map(|task| Some((self.graph.get(task)?.priority, task)));
        let following: smallvec::SmallVec<[(i32, TaskId); 8]> = following.collect();
        for (priority, task) in following {
            self.streams[device.row()].following.add(priority, task);
        }
    }

    /// Gives the driver what is next in a stream and has its data.
    pub(super) fn launch(&mut self, device: DeviceId, actions: &mut Vec<Action>) {
        let memory = self.machine.memory_of(device);
        let class = self.machine.class_of(device);
        let stream = &mut self.streams[device.row()];
        while let Some(task) = stream.committed.get(stream.launched).copied() {
            let Some(node) = self.graph.get_mut(task) else { break };
            if node.arriving > 0 {
                break;
            }
            node.stage = Stage::Launched;
            if stream.launched == 0 {
                stream.since = self.now;
            }
            stream.launched += 1;
            actions.push(Action::Launch(Launch {
                task,
                device,
                class,
                memory,
                kernel: node.kernel,
                parameter: node.parameter,
                sequence: node.sequence,
                expected: node.expected as Nanos,
                accesses: node.accesses.clone(),
            }));
        }
    }

    fn prefetch(&mut self, device: DeviceId, actions: &mut Vec<Action>) {
        if self.machine.memories().len() == 1 {
            return;
        }
        let memory = self.machine.memory_of(device);
        let mut of_memory = self.machine.device_ids();
        // What is fetched for later would take the room that a task waits for now.
        if of_memory.any(|other| {
            self.machine.memory_of(other) == memory && self.streams[other.row()].lacks_room
        }) {
            return;
        }
        let mut soon = std::mem::take(&mut self.soon);
        let (scheduler, view) = self.parts();
        scheduler.upcoming(&view, device, &mut soon);
        let tasks = soon.drain(..).take(PREFETCHED).filter_map(|task| self.graph.get(task));
        // What is copied for the background is in the way of all other copies.
        let tasks = tasks.filter(|node| node.priority > BACKGROUND);
        // What another task is still to write would be copied in vain.
        let next: Vec<Access> = tasks.flat_map(|node| self.graph.settled_reads(node)).collect();
        self.data.prefetch(&next, memory, self.now, actions);
        self.soon = soon;
    }

    /// Takes a task that ended out of its stream.
    pub(super) fn leave_stream(&mut self, task: TaskId) -> Option<DeviceId> {
        let node = self.graph.get(task)?;
        let (device, expected) = (node.device()?, node.expected);
        let stream = &mut self.streams[device.row()];
        let place = stream.committed.iter().position(|other| *other == task)?;
        stream.committed.remove(place);
        stream.launched -= usize::from(place < stream.launched);
        stream.since = self.now;
        if stream.committed.is_empty() || expected.is_infinite() {
            let work = self.work_of(device);
            self.streams[device.row()].work = work;
        } else {
            stream.work = (stream.work - expected).max(0.0);
        }
        Some(device)
    }

    fn work_of(&self, device: DeviceId) -> f64 {
        let committed = self.streams[device.row()].committed.iter();
        committed.filter_map(|task| Some(self.graph.get(*task)?.expected)).sum()
    }

    /// Takes back what is committed from a place in the stream on. What the driver has is
    /// undefined afterwards, the rest as it was.
    pub(super) fn uncommit(
        &mut self,
        device: DeviceId,
        from: usize,
        (back, actions): (&mut Vec<TaskId>, &mut Vec<Action>),
    ) {
        let memory = self.machine.memory_of(device);
        let row = device.row();
        let launched = self.streams[row].launched;
        let taken = self.streams[row].committed.split_off(from);
        for (place, task) in taken.into_iter().enumerate() {
            let Some(node) = self.graph.get_mut(task) else { continue };
            let began = from + place < launched;
            let outcome = if began { Outcome::Undefined } else { Outcome::Untouched };
            node.stage = if node.waiting() == 0 { Stage::Ready } else { Stage::Waiting };
            if std::mem::take(&mut node.arriving) > 0 {
                self.data.stop_waiting(task);
            }
            if let Some(node) = self.graph.get(task) {
                self.data.release(&node.accesses, memory, outcome, actions);
            }
            if self.graph.get(task).is_some_and(|node| node.stage == Stage::Ready) {
                back.push(task);
            }
        }
        self.streams[row].launched = launched.min(from);
        self.streams[row].following.clear();
        let work = self.work_of(device);
        self.streams[row].work = work;
    }

    /// The time at which nothing runs any more, by what is expected.
    pub fn expected_end(&self) -> Nanos {
        let view = self.view();
        let busy = view.devices().filter(|device| !self.streams[device.row()].is_idle());
        busy.map(|device| view.free_at(device)).max().unwrap_or(self.now)
    }
}
