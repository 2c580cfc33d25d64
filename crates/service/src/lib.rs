//! The service: many jobs under one control loop, for any engine and any store.
//!
//! Knows: the control loop's thread, what waits for it, the published views, who may do what, and
//! the calls that change or explain jobs, devices and quotas.
//! Must never know: processes, this machine, HTTP, or which engine runs.
//!
//! ```text
//! caller ──change──▶ queue ──▶ control loop: changes · turn · publish · acknowledge
//!    ▲                              │ committed batches
//!    ├──── rows ◀──── job table ◀───┤
//!    └── answers ◀──── replica ◀────┘   questions are answered beside the loop, never on it
//! ```

mod access;
pub mod calls;
mod carried;
mod control_loop;
mod error;
mod handle;
mod job_table;
pub mod redaction;
mod replica;
pub mod report;
mod scheduling;
mod store;
mod touched;

pub use access::{Caller, Role, Verb, Whose, may};
pub use carried::{Carried, carried};
pub use control_loop::{Service, ServiceError, Setup};
pub use error::{CallError, Code, Unavailable};
pub use handle::{Change, Handle};
pub use job_table::{JobTable, Selection, Which};
pub use replica::{Decisions, Observer, Replica};
pub use scheduling::Scheduling;
pub use store::{MakeSnapshot, MemoryStore, Store};
pub use touched::Touched;
