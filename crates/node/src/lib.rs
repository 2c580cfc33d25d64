//! The engine for this machine: plans in, real processes and facts out.
//!
//! Knows: how the processes of a gang are started, told, watched and ended on one Linux machine:
//! the environment contract, process groups, the preemption notice, progress files, checkpoint
//! directories, and what an engine that died left behind.
//! Must never know: other nodes, queues, tenants, priorities, or why a plan says what it says.
//!
//! ```text
//! plan ──▶ node ──▶ gang ──▶ processes        submit: starts and stops, at once
//! fact ◀── node ◀── gang ◀── poller           next_event: exits, files, deadlines, others' facts
//! ```
//!
//! There is no thread: whoever calls [`Node::next_event`](het_engine::Engine::next_event) waits in
//! one epoll(7) set (`poller`) for all gangs, and each gang (`gang`) is a state machine that says
//! until when it has nothing to do. `launch` makes processes of a placement (environment, command
//! line, container), `process` finds and ends them, `progress` and `checkpoint` read what programs
//! report and save, `logs` rotates what they print, `cgroup` and `resources` give them their part
//! of the machine. A supervisor may die: `recovery` has the records that outlive it and the process
//! that starts it again, and `node::adoption` takes up what it left.

mod cgroup;
mod checkpoint;
mod clock;
mod context;
mod event_channel;
mod gang;
mod launch;
mod logs;
mod node;
mod output;
mod poller;
mod process;
mod progress;
mod recovery;
mod resources;

pub use cgroup::{ControlGroupFinding, ControlGroups, control_groups};
pub use event_channel::EventSender;
pub use launch::container::ContainerAccess;
pub use launch::spec::VisibleEnv;
pub use node::{Config, Node, NodeError};
pub use process::sys::{give_memory_back, raise_descriptor_limit, share_one_heap};
pub use recovery::owner::{LiveLeases, Owner};
pub use recovery::record::Reaped;
pub use recovery::restarter::{keep, pass_on};
