//! Schedulers, ours and those that it is measured against.

mod adaptive;
mod dmdas;
mod eager;
mod heft;
mod plan;
mod work_stealing;

use crate::Scheduler;

pub use adaptive::Adaptive;
pub use dmdas::Dmdas;
pub use eager::Eager;
pub use heft::Heft;
pub use work_stealing::WorkStealing;

/// A row of the table of schedulers.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerKind {
    pub name: &'static str,
    pub about: &'static str,
    pub make: fn() -> Box<dyn Scheduler>,
}

/// All there are, the default first.
pub const SCHEDULERS: &[SchedulerKind] = &[
    SchedulerKind {
        name: "adaptive",
        about: "plans long tasks and plans again when they depart from the model; short ones go \
                where they end first and are stolen",
        make: || Box::new(Adaptive::default()),
    },
    SchedulerKind {
        name: "dmdas",
        about: "earliest finish with transfers when a task is ready, queues by priority and data",
        make: || Box::new(Dmdas::default()),
    },
    SchedulerKind {
        name: "work-stealing",
        about: "a queue a device, idle ones take from the longest",
        make: || Box::new(WorkStealing::default()),
    },
    SchedulerKind {
        name: "eager",
        about: "one queue, first come first served",
        make: || Box::new(Eager::default()),
    },
    SchedulerKind {
        name: "heft",
        about: "a plan of all tasks when the first device asks, kept whatever happens",
        make: || Box::new(Heft::default()),
    },
];

/// By name.
pub fn scheduler_named(name: &str) -> Option<SchedulerKind> {
    SCHEDULERS.iter().copied().find(|kind| kind.name == name)
}
