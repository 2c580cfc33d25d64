//! The loop: events in, decisions, commit, submit.
//!
//! Knows: the order in which facts, decisions and durability follow each other.
//! Must never know: HTTP, Kubernetes, the simulator, or how a log is stored.

mod learn;
mod log;
mod past;
mod redecide;
mod turn;

pub use het_policy::Cadence;
pub use log::{Log, LogError, MemoryLog};
pub use past::Past;
pub use redecide::{Commit, Difference, redecide};
pub use turn::{ControlError, Controller, Retention, Turn};
