//! What fails, is cancelled or lost, and what of the data counts after that: completions by hand.

use std::sync::Arc;

use het_core::Bytes;
use het_runtime::schedulers::Adaptive;
use het_runtime::{
    Action, Cause, Completion, Coordinator, CopyOrder, Device, DeviceId, HandleId, Interval,
    KernelId, KernelInfo, Link, Machine, Memory, MemoryId, Mode, Model, ProvideError,
    RegisterError, SubmitError, Task, TaskId, TransferId,
};

const HOST: MemoryId = MemoryId(0);
const FAR: MemoryId = MemoryId(1);

fn memory(name: &str, bytes: u64) -> Memory {
    Memory { name: name.to_owned(), capacity: Bytes(bytes) }
}

fn device(name: &str, memory: MemoryId) -> Device {
    Device { name: name.to_owned(), class: name.to_owned(), memory, wake: 0 }
}

fn ended(task: TaskId) -> Completion {
    Completion::Ended { task, ran: Interval { start: 0, end: 1_000 } }
}

fn copied(transfer: TransferId) -> Completion {
    Completion::Copied { transfer, ran: Interval { start: 0, end: 0 } }
}

/// A coordinator, and what it asked for last.
struct Rig {
    coordinator: Coordinator,
    actions: Vec<Action>,
}

impl Rig {
    /// One kernel that all devices have.
    fn new(devices: Vec<Device>, memories: Vec<Memory>) -> Self {
        let links = (1..memories.len()).flat_map(|row| Link::both(0, row, 1e9, 0)).collect();
        let machine = Arc::new(Machine::new(devices, memories, 0, links).expect("a machine"));
        let kernels = vec![KernelInfo { name: "kernel".to_owned(), classes: Vec::new() }];
        let model = Model::new(vec!["kernel".to_owned()], machine.classes().to_vec())
            .with_prior(Box::new(|_, _, _| Some(1_000.0)));
        let scheduler = Box::new(Adaptive::default());
        let coordinator = Coordinator::new(machine, kernels, model, scheduler);
        Self { coordinator, actions: Vec::new() }
    }

    fn register(&mut self, bytes: u64, home: Option<MemoryId>) -> Result<HandleId, RegisterError> {
        self.coordinator.register(bytes, home, &mut self.actions)
    }

    fn submit(&mut self, accesses: &[(HandleId, Mode)]) -> Result<TaskId, SubmitError> {
        self.coordinator.submit(Task::new(KernelId(0), accesses.iter().copied()))
    }

    fn advance(&mut self) {
        self.coordinator.advance(0, &mut self.actions);
    }

    fn completed(&mut self, completion: Completion) {
        self.coordinator.completed(completion, &mut self.actions);
        self.advance();
    }

    /// The last copy of a handle that was asked for.
    fn copy_of(&self, handle: HandleId) -> CopyOrder {
        let mut actions = self.actions.iter().rev();
        let found = actions.find_map(|action| match action {
            Action::Copy(copy) if copy.handle == handle => Some(*copy),
            _ => None,
        });
        found.expect("it is copied")
    }

    fn has_launched(&self, task: TaskId) -> bool {
        let mut actions = self.actions.iter();
        actions.any(|action| matches!(action, Action::Launch(launch) if launch.task == task))
    }
}

#[test]
fn what_a_cancelled_task_would_have_written_has_no_content() {
    let devices = vec![device("a", HOST), device("b", HOST)];
    let mut rig = Rig::new(devices, vec![memory("host", u64::MAX)]);
    let [a, b, old] = [(); 3].map(|()| rig.register(8, Some(HOST)).expect("room"));
    let new = rig.register(8, None).expect("room");
    let first = rig.submit(&[(a, Mode::Write)]).expect("a task");
    let second = rig.submit(&[(b, Mode::Write)]).expect("a task");
    let reads = [(a, Mode::Read), (b, Mode::Read)];
    let writes = [(new, Mode::Write), (old, Mode::ReadWrite)];
    rig.submit(&[&reads[..], &writes].concat()).expect("a task");
    rig.advance();
    assert!(rig.has_launched(first) && rig.has_launched(second));

    let ran = Interval { start: 0, end: 1_000 };
    rig.completed(Completion::Failed { task: second, ran, reason: "it broke".to_owned() });
    assert_eq!(rig.submit(&[(new, Mode::Read)]), Err(SubmitError::NoContent(0)));
    rig.completed(ended(first));
    assert_eq!(rig.coordinator.unfinished(), 0, "the cancelled one's turn came");
    for handle in [b, old, new] {
        assert_eq!(rig.submit(&[(handle, Mode::Read)]), Err(SubmitError::NoContent(0)));
    }
    let lost = rig.coordinator.take_losses().remove(0).lost;
    assert_eq!(lost.len(), 3);
    // Whoever writes it whole brings it back.
    let again = rig.submit(&[(old, Mode::Write)]).expect("a task");
    rig.submit(&[(old, Mode::Read)]).expect("a task");
    rig.advance();
    assert!(rig.has_launched(again));
}

#[test]
fn a_cancelled_task_goes_with_the_device_that_it_was_given_to() {
    let devices = ["a", "b"].map(|name| Device { wake: 1_000, ..device(name, HOST) });
    let mut rig = Rig::new(devices.to_vec(), vec![memory("host", u64::MAX)]);
    let [a, b] = [(); 2].map(|()| rig.register(8, Some(HOST)).expect("room"));
    let first = rig.submit(&[(a, Mode::ReadWrite)]).expect("a task");
    let behind = rig.submit(&[(a, Mode::Read), (b, Mode::ReadWrite)]).expect("a task");
    rig.advance();
    assert!(rig.has_launched(first) && rig.has_launched(behind), "on one device");
    let device = rig.coordinator.view().graph.get(behind).and_then(het_runtime::Node::device);
    let device = device.expect("it was launched");

    let ran = Interval { start: 0, end: 1_000 };
    rig.completed(Completion::Failed { task: first, ran, reason: "it broke".to_owned() });
    assert_eq!(rig.coordinator.unfinished(), 1, "the device has it");
    rig.completed(Completion::DeviceLost { device, reason: String::new() });
    assert_eq!(rig.coordinator.unfinished(), 0);
    let losses = rig.coordinator.take_losses();
    assert_eq!(losses.len(), 2);
    assert_eq!(losses[0].cancelled, [first, behind]);
    assert!(losses[1].is_mended() && losses[1].again.is_empty(), "{:?}", losses[1]);
    rig.coordinator.check();
}

#[test]
fn a_task_for_devices_that_are_all_lost_is_refused() {
    let mut rig = Rig::new(vec![device("a", HOST)], vec![memory("host", u64::MAX)]);
    let handle = rig.register(8, Some(HOST)).expect("room");
    rig.completed(Completion::DeviceLost { device: DeviceId(0), reason: String::new() });
    let refused = rig.submit(&[(handle, Mode::Read)]);
    assert!(matches!(refused, Err(SubmitError::NoDevice { .. })), "{refused:?}");
    assert_eq!(rig.coordinator.unfinished(), 0);
}

#[test]
fn new_content_takes_the_place_of_all_old_copies() {
    let memories = vec![memory("host", 100), memory("far", 100)];
    let mut rig = Rig::new(vec![device("a", HOST)], memories);
    let handle = rig.register(8, Some(HOST)).expect("room");
    let provide = |rig: &mut Rig, memory| rig.coordinator.provide(handle, memory, &mut rig.actions);
    provide(&mut rig, FAR).expect("room");
    let copies: Vec<MemoryId> = rig.coordinator.data().copies(handle).collect();
    assert_eq!((copies, rig.coordinator.data().used(HOST)), (vec![FAR], 0));
    let refused = provide(&mut rig, MemoryId(2));
    assert!(matches!(refused, Err(ProvideError::Room(RegisterError::NoMemory(2)))));
}

#[test]
fn a_copy_that_is_being_overwritten_is_no_second_copy() {
    let memories = vec![memory("host", 100), memory("far", 100)];
    let mut rig = Rig::new(vec![device("a", FAR)], memories);
    let handle = rig.register(60, Some(HOST)).expect("room");
    let task = rig.submit(&[(handle, Mode::ReadWrite)]).expect("a task");
    rig.advance();
    let copy = rig.copy_of(handle);
    rig.completed(copied(copy.transfer));
    assert!(rig.has_launched(task));
    assert!(matches!(rig.register(60, Some(HOST)), Err(RegisterError::NoRoom { .. })));
    // So the task would run again where its device is lost, had it another.
    assert!(rig.coordinator.data().is_valid(handle, HOST));
}

#[test]
fn a_copy_of_which_there_are_others_makes_room_for_the_only_one_of_another() {
    let memories = vec![memory("host", 100), memory("near", 100), memory("far", 100)];
    let [near, far] = [1, 2].map(MemoryId);
    let mut rig = Rig::new(vec![device("a", far)], memories);
    let twice = rig.register(100, Some(HOST)).expect("room");
    rig.coordinator.replicate(twice, near, &mut rig.actions);
    let copy = rig.copy_of(twice);
    rig.completed(copied(copy.transfer));
    let once = rig.register(100, None).expect("room");
    rig.coordinator.provide(once, far, &mut rig.actions).expect("room");

    let task = rig.submit(&[(twice, Mode::Read)]).expect("a task");
    rig.advance();
    let written_back = rig.copy_of(once);
    rig.completed(copied(written_back.transfer));
    let copy = rig.copy_of(twice);
    assert_eq!(copy.to, far);
    rig.completed(copied(copy.transfer));
    assert!(rig.has_launched(task));
    assert!(rig.coordinator.data().has_content(once));
}

#[test]
fn a_copy_that_fails_cancels_what_reads_it_and_tells_why() {
    let memories = vec![memory("host", 100), memory("far", 100)];
    let mut rig = Rig::new(vec![device("a", FAR)], memories);
    let [read, written] = [(); 2].map(|()| rig.register(8, Some(HOST)).expect("room"));
    let first = rig.submit(&[(read, Mode::Read), (written, Mode::Write)]).expect("a task");
    let behind = rig.submit(&[(written, Mode::Read)]).expect("a task");
    rig.advance();
    let CopyOrder { transfer, .. } = rig.copy_of(read);
    rig.completed(Completion::CopyFailed { transfer, reason: "it broke".to_owned() });
    assert_eq!(rig.coordinator.unfinished(), 0);
    let losses = rig.coordinator.take_losses();
    let cause = Cause::Copy { handle: read, from: HOST, to: FAR, reason: "it broke".to_owned() };
    assert_eq!(losses.len(), 1);
    assert_eq!((&losses[0].cause, &losses[0].lost), (&cause, &vec![written]));
    assert_eq!(losses[0].cancelled, [first, behind]);
    // The source is as it was, and whoever needs it asks for it again.
    let again = rig.submit(&[(read, Mode::Read)]).expect("it has content");
    rig.advance();
    let copy = rig.copy_of(read);
    rig.completed(copied(copy.transfer));
    assert!(rig.has_launched(again));
    rig.coordinator.check();
}

#[test]
fn a_copy_that_can_not_be_written_back_is_tried_once() {
    let memories = vec![memory("host", 1_000), memory("far", 100)];
    let mut rig = Rig::new(vec![device("a", FAR)], memories);
    let only = rig.register(80, Some(FAR)).expect("room");
    let other = rig.register(80, Some(HOST)).expect("room");
    rig.submit(&[(other, Mode::Read)]).expect("a task");
    rig.advance();
    let CopyOrder { transfer, from, .. } = rig.copy_of(only);
    assert_eq!(from, FAR);
    rig.completed(Completion::CopyFailed { transfer, reason: "it broke".to_owned() });
    assert_eq!(rig.copy_of(only).transfer, transfer, "it is not asked for again");
    assert!(!rig.coordinator.is_under_way());
    assert!(rig.coordinator.memory_full().is_some(), "which is told");
    assert!(rig.coordinator.data().is_valid(only, FAR));
}

#[test]
fn devices_of_a_class_may_have_unlike_memories() {
    let memories = vec![memory("host", 1_000), memory("small", 100), memory("large", 600)];
    let [small, large] = [1, 2].map(MemoryId);
    let alike = |memory| Device { class: "gpu".to_owned(), ..device("gpu", memory) };
    let mut rig = Rig::new(vec![alike(small), alike(large)], memories);
    let handles = [(); 2].map(|()| rig.register(400, Some(HOST)).expect("room"));
    for handle in handles {
        let task = rig.submit(&[(handle, Mode::ReadWrite)]).expect("one of them has room");
        rig.advance();
        let copy = rig.copy_of(handle);
        assert_eq!(copy.to, large);
        rig.completed(copied(copy.transfer));
        assert!(rig.has_launched(task));
        rig.completed(ended(task));
        rig.coordinator.replicate(handle, HOST, &mut rig.actions);
        let copy = rig.copy_of(handle);
        rig.completed(copied(copy.transfer));
    }
    rig.completed(Completion::MemoryLost { memory: large, reason: String::new() });
    let refused = rig.submit(&[(handles[0], Mode::Read)]);
    assert!(matches!(refused, Err(SubmitError::NoDevice { .. })), "{refused:?}");
}

#[test]
fn a_lost_memory_holds_not_even_what_has_no_bytes() {
    let memories = vec![memory("host", 1_000), memory("far", 100), memory("other", 100)];
    let mut rig = Rig::new(vec![device("a", MemoryId(2))], memories);
    let empty = rig.register(0, Some(HOST)).expect("room");
    rig.completed(Completion::MemoryLost { memory: FAR, reason: String::new() });
    rig.coordinator.replicate(empty, FAR, &mut rig.actions);
    assert!(!rig.coordinator.is_under_way(), "{:?}", rig.actions);
    assert!(matches!(rig.register(0, Some(FAR)), Err(RegisterError::NoRoom { .. })));
    let provided = rig.coordinator.provide(empty, FAR, &mut rig.actions);
    assert!(matches!(provided, Err(ProvideError::Room(_))), "{provided:?}");
    assert!(rig.coordinator.data().is_valid(empty, HOST));
    rig.coordinator.release(empty, &mut rig.actions).expect("nobody uses it");
    rig.coordinator.check();
}
