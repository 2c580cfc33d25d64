//! In every queue the more urgent is first, whatever is planned, short, or stands behind others.

use std::sync::Arc;

use het_core::Bytes;
use het_runtime::schedulers::{SCHEDULERS, SchedulerKind};
use het_runtime::{
    Action, Completion, Coordinator, Device, DeviceId, HandleId, Interval, KernelId, KernelInfo,
    Machine, Memory, MemoryId, Mode, Model, Stage, Task, TaskId,
};
use proptest::prelude::*;

/// Nanoseconds of the kernels: too short to be planned, at the border, and long.
const DURATIONS: [u64; 3] = [1_000, 8_000, 400_000];

/// Row of the longest of them.
const LONG: usize = 2;

/// Those that heed priorities: HEFT, as published, ranks tasks by what is behind them.
fn schedulers() -> Vec<SchedulerKind> {
    SCHEDULERS.iter().copied().filter(|kind| kind.name != "heft").collect()
}

/// Devices, each of a class of its own, that know what their kernels take, and the last of them not
/// at all. Only the first has long ones.
fn coordinator(scheduler: SchedulerKind, devices: &[&str]) -> Coordinator {
    let device = |name: &&str| Device {
        name: (*name).to_owned(),
        class: (*name).to_owned(),
        memory: MemoryId(0),
        wake: 1_000,
    };
    let devices: Vec<Device> = devices.iter().map(device).collect();
    let memory = Memory { name: "host".to_owned(), capacity: Bytes(u64::MAX) };
    let machine = Arc::new(Machine::new(devices, vec![memory], 0, vec![]).expect("a machine"));
    let names: Vec<String> = (0..=DURATIONS.len()).map(|row| format!("kernel{row}")).collect();
    let kernel = |(row, name): (usize, &String)| KernelInfo {
        name: name.clone(),
        classes: if row == LONG { vec!["a".to_owned()] } else { Vec::new() },
    };
    let kernels = names.iter().enumerate().map(kernel).collect();
    let prior = |kernel: KernelId, _, _| DURATIONS.get(kernel.row()).map(|nanos| *nanos as f64);
    let model = Model::new(names, machine.classes().to_vec()).with_prior(Box::new(prior));
    Coordinator::new(machine, kernels, model, (scheduler.make)())
}

#[derive(Debug, Clone)]
struct Given {
    kernel: u16,
    priority: i32,
    /// Handles that it changes: tasks of the same handle wait for each other.
    handles: Vec<usize>,
    /// Tasks that end before it is submitted.
    ended: usize,
}

fn given() -> impl Strategy<Value = Given> {
    let handles = proptest::collection::btree_set(0_usize..12, 1..3);
    (0_u16..4, -2_i32..3, handles, 0_usize..3).prop_map(|(kernel, priority, handles, ended)| {
        Given { kernel, priority, handles: handles.into_iter().collect(), ended }
    })
}

/// The device's tasks in the order in which it has them.
struct Run {
    coordinator: Coordinator,
    now: u64,
    launched: Vec<(TaskId, u16)>,
}

impl Run {
    /// What is ready after the device was given what it asked for is no more urgent than what it
    /// was given.
    fn advance(&mut self) {
        let before: Vec<TaskId> = self.committed().map(|(task, _)| task).collect();
        let mut actions = Vec::new();
        self.coordinator.advance(self.now, &mut actions);
        let given = self.committed().filter(|(task, _)| !before.contains(task));
        let given = given.map(|(_, priority)| priority).min();
        let graph = self.coordinator.view().graph;
        let left = graph.tasks().filter(|(_, node)| node.stage() == Stage::Ready);
        let left = left.map(|(_, node)| node.priority()).max();
        if let (Some(given), Some(left)) = (given, left) {
            assert!(left <= given, "one of priority {given} is before one of {left}");
        }
        for action in actions {
            let Action::Launch(launch) = action else { panic!("one memory: {action:?}") };
            self.launched.push((launch.task, launch.kernel.0));
        }
    }

    fn committed(&self) -> impl Iterator<Item = (TaskId, i32)> + '_ {
        let tasks = self.coordinator.view().graph.tasks();
        let committed = tasks.filter(|(_, node)| node.device().is_some());
        committed.map(|(task, node)| (task, node.priority()))
    }

    /// The first task of the device ends, later than expected now and then.
    fn end_one(&mut self) {
        let (task, kernel) = self.launched.remove(0);
        let expected = DURATIONS.get(usize::from(kernel)).copied().unwrap_or(50_000);
        let took = expected * (1 + u64::from(self.now.is_multiple_of(3)));
        let ran = Interval { start: self.now, end: self.now + took };
        self.now = ran.end;
        let mut actions = Vec::new();
        self.coordinator.completed(Completion::Ended { task, ran }, &mut actions);
        assert!(actions.is_empty(), "one memory: nothing moves");
        self.advance();
    }
}

fn check(scheduler: SchedulerKind, tasks: &[Given]) {
    let mut run = Run { coordinator: coordinator(scheduler, &["a"]), now: 0, launched: Vec::new() };
    let mut actions = Vec::new();
    let handles: Vec<HandleId> = (0..12)
        .map(|_| run.coordinator.register(8, Some(MemoryId(0)), &mut actions).expect("room"))
        .collect();
    for Given { kernel, priority, handles: own, ended } in tasks {
        for _ in 0..*ended {
            run.advance();
            if !run.launched.is_empty() {
                run.end_one();
            }
        }
        let accesses = own.iter().map(|row| (handles[*row], Mode::ReadWrite));
        let task = Task::new(KernelId(*kernel), accesses).priority(*priority);
        run.coordinator.submit(task).expect("a task");
    }
    run.advance();
    while run.coordinator.unfinished() > 0 {
        assert!(!run.launched.is_empty(), "{} tasks are left", run.coordinator.unfinished());
        run.end_one();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn no_ready_task_is_behind_a_less_urgent_one(
        tasks in proptest::collection::vec(given(), 1..60),
    ) {
        for scheduler in schedulers() {
            check(scheduler, &tasks);
        }
    }
}

#[test]
fn an_update_is_before_all_that_is_planned_and_all_that_is_short() {
    let task =
        |kernel, priority, handle| Given { kernel, priority, handles: vec![handle], ended: 0 };
    let short = (0..6).map(|row| task(0, 0, row));
    let long = (6..11).map(|row| task(2, 0, row));
    let mut tasks: Vec<Given> = long.chain(short).collect();
    tasks.push(Given { ended: 2, ..task(2, 1, 11) });
    for scheduler in schedulers() {
        check(scheduler, &tasks);
    }
}

fn submit(
    coordinator: &mut Coordinator,
    (kernel, priority): (usize, i32),
    accesses: &[(HandleId, Mode)],
) -> TaskId {
    let task = Task::new(KernelId(kernel as u16), accesses.iter().copied()).priority(priority);
    coordinator.submit(task).expect("a task")
}

fn launched(actions: &[Action], device: DeviceId) -> Vec<TaskId> {
    let launches = actions.iter().filter_map(|action| match action {
        Action::Launch(launch) if launch.device == device => Some(launch.task),
        _ => None,
    });
    launches.collect()
}

#[test]
fn nothing_is_stolen_that_is_less_urgent_than_what_the_device_has() {
    for is_planned in [false, true] {
        let mut one = coordinator(SCHEDULERS[0], &["a", "b"]);
        let first_device = DeviceId(0);
        let mut actions = Vec::new();
        let mut handle = || one.register(8, Some(MemoryId(0)), &mut actions).expect("room");
        let handles: Vec<HandleId> = (0..103).map(|_| handle()).collect();
        let write = |row: usize| [(handles[row], Mode::ReadWrite)];
        let running = submit(&mut one, (LONG, 3), &write(0));
        let mut own = is_planned.then(|| submit(&mut one, (LONG, 1), &write(1)));
        one.advance(0, &mut actions);
        assert_eq!(launched(&actions, first_device), [running]);
        // They are queued for the other device, which ends them first.
        for row in 2..102 {
            submit(&mut one, (0, 0), &write(row));
        }
        submit(&mut one, (0, 2), &write(102));
        let own = *own.get_or_insert_with(|| submit(&mut one, (LONG, 1), &write(1)));

        actions.clear();
        let ran = Interval { start: 0, end: DURATIONS[LONG] };
        one.completed(Completion::Ended { task: running, ran }, &mut actions);
        one.advance(ran.end, &mut actions);
        assert_eq!(launched(&actions, first_device), [own], "planned before: {is_planned}");
    }
}

#[test]
fn of_those_that_stand_behind_a_task_the_most_urgent_is_next() {
    for scheduler in schedulers() {
        let mut one = coordinator(scheduler, &["a"]);
        let mut actions = Vec::new();
        let [read, a, b, c] =
            [(); 4].map(|()| one.register(8, Some(MemoryId(0)), &mut actions).expect("room"));
        let first = submit(&mut one, (0, 0), &[(read, Mode::ReadWrite)]);
        let [_, urgent, _] = [(a, 0), (b, 2), (c, 1)].map(|(own, priority)| {
            submit(&mut one, (0, priority), &[(read, Mode::Read), (own, Mode::ReadWrite)])
        });
        one.advance(0, &mut actions);
        assert_eq!(launched(&actions, DeviceId(0)), [first, urgent], "{}", scheduler.name);
    }
}
