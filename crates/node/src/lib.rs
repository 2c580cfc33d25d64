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
//! one epoll(7) set (`poller`) for all gangs, and each gang (`gang`) is a machine of states that
//! says until when it has nothing to do. Pure parts (`environment`, `template`, `progress`,
//! `saves`, `exit`, `ending`, `pace`, `cores`) decide; thin ones (`spawn`, `report`, `watch`,
//! `listener`, `ports`, `sweep`, `trim`, `record`, `slip`, `variables`, `procfs`, `cgroup`, `sys`)
//! touch the machine. A supervisor may die: `keeper` starts it again, and [`Node::adopt`] takes up
//! what it left (`adoption`).

mod adoption;
mod cgroup;
mod clock;
mod container;
mod cores;
mod ending;
mod environment;
mod exit;
mod gang;
mod inlet;
mod keeper;
mod leaders;
mod listener;
mod node;
mod order;
mod outlet;
mod owner;
mod pace;
mod poller;
mod ports;
mod procfs;
mod progress;
mod record;
mod report;
mod saves;
mod site;
mod slip;
mod spawn;
mod sweep;
mod sys;
mod template;
mod trim;
mod variables;
mod watch;

pub use cgroup::{ControlGroupFinding, ControlGroups, control_groups};
pub use container::ContainerAccess;
pub use inlet::Inlet;
pub use keeper::{keep, pass_on};
pub use node::{Config, Node, NodeError};
pub use order::VisibleEnv;
pub use owner::{LiveLeases, Owner};
pub use record::Reaped;
pub use sys::{give_memory_back, raise_descriptor_limit, share_one_heap};
