//! The execution tier: one step of a program as a graph of tasks over unlike devices.
//!
//! Knows: tasks, the data that they read and write, devices, memories, links, and how long kernels
//! take. Must never know: models, tenants, queues, what a kernel computes; sockets only where a
//! driver reaches its workers by them.
//!
//! [`Coordinator`] is the state of it all and has neither clock nor threads: [`Graph`] is what
//! waits for what, [`Coherence`] which memory has which data, [`Model`] what kernels take, and a
//! [`Scheduler`] says what each device does next. [`Runtime`] is the loop between it and a
//! [`Driver`], the same in virtual time (`drivers::dummy`), in real time (`drivers::cpu`) and with
//! workers in other processes (`drivers::process`). A [`Timeline`] is what they all did.

mod action;
mod bounds;
mod coherence;
mod coordinator;
mod driver;
pub mod drivers;
mod graph;
mod ids;
mod kernel;
mod link_rates;
mod machine;
pub mod measure;
mod model;
mod queue;
mod reduction;
mod runtime;
mod scheduler;
pub mod schedulers;
mod timeline;

pub use action::{Action, Completion, CopyOrder, Launch};
pub use bounds::Bounds;
pub use coherence::{Coherence, RegisterError, ReleaseError, Traffic};
pub use coordinator::{Cause, Coordinator, Loss, MemoryFull, ProvideError, SubmitError};
pub use driver::{Driver, Wait};
pub use graph::{Access, Accesses, BACKGROUND, Graph, Mode, Node, Stage, Task};
pub use ids::{ClassId, DeviceId, HandleId, KernelId, MemoryId, TaskId, TransferId};
pub use kernel::{KernelInfo, KernelTime};
pub use machine::{
    CLASSES_MAX, Device, Interval, Link, MEMORIES_MAX, Machine, MachineError, Memory, Nanos,
    Reservations,
};
pub use model::{CALIBRATED, Estimate, Model, ModelError, Prior, SizeClass, size_class};
pub use reduction::{Addition, Reduction, ReductionShape};
pub use runtime::{Begin, RunError, Runtime};
pub use scheduler::{Candidate, Choice, Scheduler, Stream, View};
pub use timeline::{Idle, Piece, StreamId, Timeline, Track, Work};
