//! Jobs of several users on one machine: an engine that has each job run by an agent, a process of
//! the user whose job it is.
//!
//! Knows: which user's agent a lease belongs to, what is said between the server and an agent, how
//! an agent is started by whoever has the privilege, and what of its word is believed.
//! Must never know: tenants, tokens, why a plan says what it says, or how a gang is supervised.
//!
//! ```text
//! supervisor (root) ─┬─ server (unprivileged): API, store, scheduler, `Agents`
//!                    │     │ spawn(alice) ──▶ supervisor        (`spawner`)
//!                    │     │ plans ──▶ │ ◀── events              (`messages`, one JSON line each)
//!                    ├─ agent of alice: `Node`, her shims, her programs
//!                    └─ agent of bob:   `Node`, his shims, his programs
//! ```
//!
//! Whatever is done with files and processes of a user is done by a process of that user, so that
//! the kernel checks it. An agent may lie, for its user can end it and change its files: it is
//! believed about its own leases alone, and what it says never makes the server wait.
//!
//! Each of these uses only what stands below it:
//!
//! ```text
//! agents       the engine: plans in, events out; which lease is whose
//! user         one user's leases and the connection to the agent; when to try again
//! link         a connection: two threads, queues with bounds
//! serve        the agent's process: messages in, a `Node`, events out
//! spawner      how an agent is asked for, and started with another user's rights
//! kept         scripts and variables that travel to the agent
//! messages     what is said
//! ```

mod agents;
mod kept;
mod link;
mod messages;
mod serve;
mod spawner;
mod user;

pub use agents::{Agents, Users};
pub use serve::{AgentError, Programs, serve};
pub use spawner::{
    BecomeError, Members, SpawnAgents, SpawnError, SpawnRequests, UserDirs, become_user,
    drop_privileges, serve_requests,
};
pub use user::Patience;
