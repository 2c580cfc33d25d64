//! The engine for one machine: it executes plans with real processes and returns events.
//!
//! Knows: how the processes of a gang are started, given notice, observed and ended on one Linux
//! machine: the environment contract, process groups, the preemption notice, progress files,
//! checkpoint directories, and what an engine that died left behind.
//! Must never know: other nodes, queues, tenants, priorities, or why a plan says what it says.
//!
//! ```text
//! plan  ──▶ node ──▶ gang ──▶ processes       submit: starts and stops, at once
//! event ◀── node ◀── gang ◀── poller          next_event: exits, files, deadlines, others' events
//! ```
//!
//! There is no thread but those that remove what programs left and read what they will need: the
//! caller of
//! [`Node::next_event`](het_engine::Engine::next_event) waits in one epoll(7) set (`poller`) for
//! all gangs, and each gang is a state machine with a deadline. A supervisor may die: a restarter
//! starts it again, and [`Engine::adopt`](het_engine::Engine::adopt) takes over what it left. The
//! ranks of a gang are children of a process of its own, the shim, which outlives them all and
//! notes how they ended.
//!
//! Each of these uses only what stands below it:
//!
//! ```text
//! node         the engine: plans in, events out; adoption of what a dead engine left
//! rank         one rank inside of a pod, without an engine
//! gang         the supervisor of one gang: startup, observation, shutdown, verdict, reports
//! launch       from a specification to a running program: environment, containers, lookup
//! context      what all gangs share: clock, poller, queue of events, pools
//! recovery     records on disk, who owns a process, killing leftovers, the restarter
//! process      the launcher and the shims, system calls, /proc, signals
//! progress, checkpoint, logs, output    files that programs write
//! inputs       bringing near what programs will read, while their stages wait
//! cgroup, resources, remover            control groups; cores and ports; removal of what is left
//! run_dir, poller, event_channel, heartbeat, clock, config, error
//! ```

mod cgroup;
mod checkpoint;
mod clock;
mod config;
mod context;
mod device_holds;
mod error;
mod event_channel;
mod gang;
mod heartbeat;
mod inputs;
mod launch;
mod logs;
mod node;
mod output;
mod poller;
mod process;
mod progress;
mod rank;
mod recovery;
mod remover;
mod resources;
mod run_dir;

pub use cgroup::{
    ControlGroupFinding, ControlGroups, DeviceAccess, DeviceNumber, RunMode, UserCgroup,
    control_groups, delegate_own_cgroup,
};
pub use checkpoint::{Damage, verify};
pub use clock::{since_boot, wall_time};
pub use config::{Config, NodeSettings};
pub use device_holds::HoldDevices;
pub use error::NodeError;
pub use event_channel::EventSender;
pub use heartbeat::{Heartbeat, LoopTask};
pub use inputs::{CopyInputs, InputCopies};
pub use launch::{ContainerAccess, VisibleEnv};
pub use node::{LiveLease, Node};
pub use process::{
    boot_id, forbid_core_dumps, kill_processes_of, launcher_main, messages, name_process,
    raise_descriptor_limit,
};
pub use rank::{Rank, RankError, RankReport, RankSignals, run_rank};
pub use recovery::{
    LiveLeases, ProcessOwner, ProcessorTime, Reaped, SessionTime, forward_signal, run_restarter,
};
pub use resources::GangResources;
