//! Tasks and what they wait for, inferred from the order of their submission: a reader waits for
//! the writer before it, a writer for the readers since the writer before it, or for that writer.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::{ClassId, DeviceId, HandleId, KernelId, TaskId};

/// What a task does with the data of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Read,
    /// All of it, whatever was there before.
    Write,
    ReadWrite,
}

impl Mode {
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub handle: HandleId,
    pub mode: Mode,
}

/// Most tasks have few; those need no memory of their own.
pub type Accesses = SmallVec<[Access; 4]>;

/// The priority of tasks that run where a device has nothing else to do. [`crate::Runtime::wait`]
/// does not wait for them.
pub const BACKGROUND: i32 = i32::MIN;

/// One run of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub kernel: KernelId,
    /// In the order in which the kernel takes them, no handle twice.
    pub accesses: Accesses,
    /// The greater is the more urgent.
    pub priority: i32,
    /// For the kernel to interpret.
    pub parameter: u64,
    /// The class of devices that it is meant for; all that have the kernel where it is `None`.
    pub class: Option<ClassId>,
}

impl Task {
    pub fn new(kernel: KernelId, accesses: impl IntoIterator<Item = (HandleId, Mode)>) -> Self {
        let accesses = accesses.into_iter().map(|(handle, mode)| Access { handle, mode });
        Self { kernel, accesses: accesses.collect(), priority: 0, parameter: 0, class: None }
    }

    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    #[must_use]
    pub fn parameter(self, parameter: u64) -> Self {
        Self { parameter, ..self }
    }

    /// Meant for devices of this class alone.
    #[must_use]
    pub fn class(self, class: ClassId) -> Self {
        Self { class: Some(class), ..self }
    }
}

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The row holds no task.
    Free,
    /// Tasks before it have not ended.
    Waiting,
    /// The scheduler has it.
    Ready,
    /// Next on its device, where there is no room for its data yet.
    Blocked,
    /// In the order of a device's stream: memory is taken, copies are under way.
    Committed,
    /// Given to the driver.
    Launched,
}

const NONE: u32 = u32::MAX;

/// Readers of a handle after which those that ended are looked for, again whenever twice as many.
const READERS_KEPT: usize = 32;

/// A task and its place in the graph.
#[derive(Debug, Clone)]
pub struct Node {
    generation: u32,
    /// Tasks before it that have not ended.
    waiting: u32,
    /// Head of its list of edges.
    successors: u32,
    pub(crate) stage: Stage,
    /// The device of a committed or launched task.
    pub(crate) device: DeviceId,
    pub(crate) kernel: KernelId,
    /// Row of the performance model.
    pub(crate) row: u32,
    /// Copies that a committed task waits for.
    pub(crate) arriving: u32,
    pub(crate) priority: i32,
    pub(crate) parameter: u64,
    /// Classes that may run it, as bits.
    pub(crate) classes: u64,
    /// Of all its handles.
    pub(crate) bytes: u64,
    /// Nanoseconds that its device was expected to take when it was committed.
    pub(crate) expected: f64,
    /// Place in the order of submission.
    pub(crate) sequence: u64,
    /// It will not run: what it reads is lost.
    pub(crate) is_cancelled: bool,
    pub(crate) accesses: Accesses,
    /// By their handles, the tasks that had not written yet what it reads when it was submitted.
    writers: SmallVec<[(HandleId, TaskId); 1]>,
}

impl Node {
    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn kernel(&self) -> KernelId {
        self.kernel
    }

    pub fn priority(&self) -> i32 {
        self.priority
    }

    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// Where it was committed, if it was.
    pub fn device(&self) -> Option<DeviceId> {
        matches!(self.stage, Stage::Committed | Stage::Launched).then_some(self.device)
    }

    /// How many tasks before it have not ended.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }
}

/// What a new task brings beside its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Details {
    pub row: u32,
    pub classes: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    to: u32,
    next: u32,
}

/// The tasks that use a handle last.
#[derive(Debug, Clone, Default)]
struct Users {
    writer: Option<TaskId>,
    readers: SmallVec<[TaskId; 2]>,
    /// Readers at which those that ended are dropped next.
    prune_at: usize,
}

#[derive(Debug, Clone)]
pub struct Graph {
    nodes: Vec<Node>,
    free: Vec<u32>,
    edges: Vec<Edge>,
    free_edge: u32,
    /// By row of the handle.
    users: Vec<Users>,
    unfinished: usize,
    /// Those of them that are in the background.
    background: usize,
    submitted: u64,
}

impl Default for Graph {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            edges: Vec::new(),
            free_edge: NONE,
            users: Vec::new(),
            unfinished: 0,
            background: 0,
            submitted: 0,
        }
    }
}

impl Graph {
    /// Adds a task whose handles exist, each at most once among its accesses.
    pub(crate) fn add(&mut self, task: Task, details: Details) -> TaskId {
        let id = self.place(task, details);
        let mut waiting = 0;
        for at in 0..self.nodes[id.index()].accesses.len() {
            let Access { handle, mode } = self.nodes[id.index()].accesses[at];
            if self.users.len() <= handle.index() {
                self.users.resize_with(handle.index() + 1, Users::default);
            }
            let users = &mut self.users[handle.index()];
            if mode.reads()
                && let Some(writer) = users.writer
                && self.nodes[writer.index()].generation == writer.generation
            {
                self.nodes[id.index()].writers.push((handle, writer));
            }
            if mode == Mode::Read {
                let writer = users.writer;
                users.readers.push(id);
                if users.readers.len() >= users.prune_at.max(READERS_KEPT) {
                    users.readers.retain(|reader| {
                        self.nodes[reader.index()].generation == reader.generation
                    });
                    users.prune_at = 2 * users.readers.len();
                }
                waiting += writer.map_or(0, |writer| self.depend(id, writer));
                continue;
            }
            let readers = std::mem::take(&mut users.readers);
            let writer = users.writer.replace(id);
            users.prune_at = 0;
            if readers.is_empty() {
                waiting += writer.map_or(0, |writer| self.depend(id, writer));
            }
            for reader in readers {
                waiting += self.depend(id, reader);
            }
        }
        let node = &mut self.nodes[id.index()];
        node.waiting = waiting;
        node.stage = if waiting == 0 { Stage::Ready } else { Stage::Waiting };
        self.unfinished += 1;
        self.background += usize::from(node.priority == BACKGROUND);
        id
    }

    fn place(&mut self, task: Task, Details { row, classes, bytes }: Details) -> TaskId {
        let sequence = self.submitted;
        self.submitted += 1;
        let Task { kernel, accesses, priority, parameter, class: _ } = task;
        let mut node = Node {
            generation: 0,
            waiting: 0,
            successors: NONE,
            stage: Stage::Waiting,
            device: DeviceId(0),
            kernel,
            row,
            arriving: 0,
            priority,
            parameter,
            classes,
            bytes,
            expected: 0.0,
            sequence,
            is_cancelled: false,
            accesses,
            writers: SmallVec::new(),
        };
        if let Some(row) = self.free.pop() {
            let place = &mut self.nodes[row as usize];
            node.generation = place.generation;
            *place = node;
            return TaskId { row, generation: place.generation };
        }
        self.nodes.push(node);
        TaskId { row: self.nodes.len() as u32 - 1, generation: 0 }
    }

    /// How many more tasks the later one waits for: one, or none where the earlier has ended or is
    /// waited for already.
    fn depend(&mut self, later: TaskId, earlier: TaskId) -> u32 {
        let node = &mut self.nodes[earlier.index()];
        if node.generation != earlier.generation {
            return 0;
        }
        let head = node.successors;
        // Edges are prepended: another one to the same task stands first.
        if head != NONE && self.edges[head as usize].to == later.row {
            return 0;
        }
        let edge = Edge { to: later.row, next: head };
        node.successors = match self.free_edge {
            NONE => {
                self.edges.push(edge);
                self.edges.len() as u32 - 1
            }
            free => {
                self.free_edge = self.edges[free as usize].next;
                self.edges[free as usize] = edge;
                free
            }
        };
        1
    }

    /// Takes a task out and adds those to `released` that waited for it alone.
    pub(crate) fn finish(&mut self, id: TaskId, released: &mut Vec<TaskId>) {
        let node = &mut self.nodes[id.index()];
        let mut edge = std::mem::replace(&mut node.successors, NONE);
        node.stage = Stage::Free;
        node.generation = node.generation.wrapping_add(1);
        node.accesses.clear();
        node.writers.clear();
        self.free.push(id.row);
        self.unfinished -= 1;
        self.background -= usize::from(node.priority == BACKGROUND);
        while edge != NONE {
            let Edge { to, next } = self.edges[edge as usize];
            self.edges[edge as usize].next = self.free_edge;
            self.free_edge = edge;
            edge = next;
            let later = &mut self.nodes[to as usize];
            later.waiting -= 1;
            if later.waiting == 0 {
                if later.stage == Stage::Waiting {
                    later.stage = Stage::Ready;
                }
                released.push(TaskId { row: to, generation: later.generation });
            }
        }
    }

    /// Those accesses of a task that read what nobody writes before it any more.
    pub fn settled_reads(&self, node: &Node) -> impl Iterator<Item = Access> {
        let is_settled = |access: &&Access| {
            let mut writers = node.writers.iter().filter(|(handle, _)| *handle == access.handle);
            access.mode.reads() && writers.all(|(_, writer)| self.get(*writer).is_none())
        };
        node.accesses.iter().filter(is_settled).copied()
    }

    pub fn get(&self, id: TaskId) -> Option<&Node> {
        let node = self.nodes.get(id.index())?;
        (node.generation == id.generation && node.stage != Stage::Free).then_some(node)
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut Node> {
        let node = self.nodes.get_mut(id.index())?;
        (node.generation == id.generation && node.stage != Stage::Free).then_some(node)
    }

    /// Tasks that wait for it, the one that was submitted last first.
    pub fn successors(&self, id: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        let mut edge = self.get(id).map_or(NONE, |node| node.successors);
        std::iter::from_fn(move || {
            let Edge { to, next } = *self.edges.get(edge as usize)?;
            edge = next;
            Some(TaskId { row: to, generation: self.nodes[to as usize].generation })
        })
    }

    /// Tasks that have not ended, in no order.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &Node)> {
        let rows = self.nodes.iter().enumerate().filter(|(_, node)| node.stage != Stage::Free);
        rows.map(|(row, node)| (TaskId { row: row as u32, generation: node.generation }, node))
    }

    /// How many have not ended.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// How many of those are in the background.
    pub fn background(&self) -> usize {
        self.background
    }

    /// How many were ever submitted.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// The tasks and all that wait for them, directly or not, in no order.
    pub(crate) fn reachable(&self, from: &[TaskId]) -> Vec<TaskId> {
        let mut seen: BTreeSet<TaskId> = from.iter().copied().collect();
        let mut found = from.to_vec();
        let mut at = 0;
        while let Some(id) = found.get(at).copied() {
            at += 1;
            found.extend(self.successors(id).filter(|next| seen.insert(*next)));
        }
        found
    }

    /// Rows of tasks, taken or not: whatever is kept by task has so many.
    pub fn rows(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a task that has not ended uses the handle.
    pub(crate) fn uses(&self, handle: HandleId) -> bool {
        let Some(users) = self.users.get(handle.index()) else { return false };
        users.writer.iter().chain(&users.readers).any(|task| self.get(*task).is_some())
    }

    /// Whether a task that has not ended will have written it.
    pub(crate) fn is_written(&self, handle: HandleId) -> bool {
        let users = self.users.get(handle.index());
        let writer = users.and_then(|users| users.writer).and_then(|writer| self.get(writer));
        writer.is_some_and(|node| !node.is_cancelled)
    }

    /// Nobody uses the handle any more.
    pub(crate) fn forget(&mut self, handle: HandleId) {
        if let Some(users) = self.users.get_mut(handle.index()) {
            *users = Users::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DETAILS: Details = Details { row: 0, classes: 1, bytes: 0 };

    fn handle(row: u32) -> HandleId {
        HandleId { row, generation: 0 }
    }

    fn add(graph: &mut Graph, accesses: &[(u32, Mode)]) -> TaskId {
        let accesses = accesses.iter().map(|(row, mode)| (handle(*row), *mode));
        graph.add(Task::new(KernelId(0), accesses), DETAILS)
    }

    fn finish(graph: &mut Graph, task: TaskId) -> Vec<TaskId> {
        let mut released = Vec::new();
        graph.finish(task, &mut released);
        released
    }

    #[test]
    fn readers_wait_for_the_writer_and_the_next_writer_for_them() {
        let mut graph = Graph::default();
        let writer = add(&mut graph, &[(0, Mode::Write)]);
        let readers = [0; 3].map(|_| add(&mut graph, &[(0, Mode::Read)]));
        let next = add(&mut graph, &[(0, Mode::ReadWrite)]);
        let mut released = finish(&mut graph, writer);
        released.sort();
        assert_eq!(released, readers);
        assert_eq!(finish(&mut graph, readers[0]), []);
        assert_eq!(finish(&mut graph, readers[1]), []);
        assert_eq!(finish(&mut graph, readers[2]), [next]);
    }

    #[test]
    fn two_handles_of_the_same_two_tasks_are_one_dependency() {
        let mut graph = Graph::default();
        let first = add(&mut graph, &[(0, Mode::Write), (1, Mode::Write)]);
        let second = add(&mut graph, &[(0, Mode::Read), (1, Mode::ReadWrite)]);
        assert_eq!(graph.get(second).expect("waits").waiting(), 1);
        assert_eq!(finish(&mut graph, first), [second]);
    }

    #[test]
    fn a_read_is_settled_once_nobody_writes_before_it() {
        let mut graph = Graph::default();
        let writer = add(&mut graph, &[(0, Mode::Write)]);
        let reader = add(&mut graph, &[(0, Mode::Read), (1, Mode::Read), (2, Mode::Write)]);
        add(&mut graph, &[(1, Mode::Write)]);
        let settled = |graph: &Graph| -> Vec<u32> {
            let node = graph.get(reader).expect("is there");
            graph.settled_reads(node).map(|access| access.handle.row).collect()
        };
        assert_eq!(settled(&graph), [1]);
        finish(&mut graph, writer);
        assert_eq!(settled(&graph), [0, 1]);
    }

    #[test]
    fn the_name_of_a_task_that_ended_finds_nothing() {
        let mut graph = Graph::default();
        let first = add(&mut graph, &[(0, Mode::Write)]);
        finish(&mut graph, first);
        let second = add(&mut graph, &[(0, Mode::Read)]);
        assert_eq!(second.row, first.row);
        assert!(graph.get(first).is_none());
        assert_eq!(graph.get(second).expect("is there").stage(), Stage::Ready);
    }

    #[test]
    fn readers_without_a_writer_do_not_add_up() {
        let mut graph = Graph::default();
        for _ in 0..1_000 {
            let reader = add(&mut graph, &[(0, Mode::Read)]);
            finish(&mut graph, reader);
        }
        assert!(graph.users[0].readers.len() <= READERS_KEPT);
    }
}
