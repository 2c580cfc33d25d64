//! The composition root: this machine's devices, the node engine, the event store and the control
//! loop, tied together. Today it runs embedded in `het run`; a service comes later.
//!
//! Knows: which parts make a running system, and where they keep their files.
//! Must never know: the inside of a policy.

mod embedded;
mod home;
mod machine;
mod report;
mod store;
mod turnstile;

pub use embedded::{Embedded, Impossible, RunError, impossible};
pub use het_scheduler::{Blocker, Explanation, WhatIf, explain};
pub use home::{Home, HomeError, JobDir};
pub use machine::{Machine, this_machine};
pub use report::report;
pub use store::{EventStore, StoreError};
pub use turnstile::{Busy, Turnstile};
