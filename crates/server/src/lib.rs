//! The composition root: this machine's engine, an event store and the service, tied together, and
//! the interface to it.
//!
//! Knows: which parts make a running system (`assembly`), for one job (`run`) or for many; the
//! event store on disk (`store`, `archive`), its backups (`restore`); who ends a server that stands
//! still (`watchdog`, `stalls`); the HTTP interface (`api`).
//! Must never know: the inside of a policy.

mod agent;
pub mod api;
mod archive;
mod assembly;
#[cfg(feature = "kubernetes")]
mod cluster;
mod planning;
mod privileged;
mod restore;
mod run;
mod served;
mod stalls;
mod store;
mod trainer;
mod watchdog;

pub use het_agent::{
    BecomeError, Members, Programs, SpawnError, SpawnRequests, UserDirs, become_user,
    drop_privileges, serve_requests,
};
pub use het_host::{
    CalibrationFault, Calibrations, Conflict, ControlGroupFinding, ControlLoopKind, DeviceChoice,
    DeviceLockError, DeviceLocks, ENVIRONMENT_BYTES_MAX, Home, HomeError, JobDir, LockHolder,
    Machine, MachineChanges, MachineLock, MachineUsers, Trainer, TrainerDriver, Unsupervised,
    control_groups, disk_size, forbid_core_dumps, forward_signal, free_space, keep_environment,
    keep_job_variables, keep_script, lock_dir, lock_dir_name, machine, machine_with,
    raise_descriptor_limit, run_restarter, take_devices, this_machine, unsupervised,
    wait_for_device,
};
#[cfg(feature = "kubernetes")]
pub use het_kubernetes::{
    Access, Binding, Cluster, ClusterError, Election, ElectionError, Leadership, ManifestOptions,
    NAMESPACE as SCHEDULER_NAMESPACE, OwnPod, PodName, ReportError, SCHEDULER, Standby, chart,
    manifests,
};
pub use het_node::{
    CopyInputs, InputCopies, NodeSettings, Rank, RankError, RankReport, RankSignals, run_rank,
    since_boot,
};
pub use het_planner::models;
pub use het_scheduler::{Impossible, Remedy, impossible};
pub use het_service::report::{Detail, explanation_of_record};
pub use het_service::{Handle, Scheduling};

pub use agent::agent_main;
pub use assembly::{MachineService, ServiceOptions, StartError, begin_store};
#[cfg(feature = "kubernetes")]
pub use cluster::{ClusterEnd, ClusterOptions, ClusterService, leader_identity};
pub use planning::plan;
pub use privileged::{AGENT_COMMAND, PrivilegeError, Privileged};
pub use restore::{Environments, Existing, RestoreError, Restored, back_up, copy, restore};
pub use run::{PreparedRun, Run, RunError};
pub use served::{JobMaker, Served, SubmitError, Submitting};
pub use store::{
    Checked, Draft, EventStore, Keeping, Lost, Mark, Mended, Opened, Recovered, SnapshotFault,
    StoreError, StoreReader, open_mending, store_check,
};
pub use trainer::{AskedTrainer, TrainerDrivers};
