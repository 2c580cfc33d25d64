//! Keeping one machine: what it has, who else uses it, and where its state lies on disk.
//!
//! Knows: this machine's devices and how they change between starts, processes at devices that are
//! of no job, what takes speed from devices, programs that nobody supervises, the lock that one
//! control loop holds, the state directory, and which checkpoints on disk are complete.
//! Must never know: HTTP, policies, or how a job is decided.

mod calibrations;
mod checkpoints;
mod clock;
mod declared;
mod disk;
mod external;
mod home;
mod instance;
pub mod inventory;
mod kept;
mod load;
mod lock;
mod machine;
mod monitor;
mod reserve;
mod trainer;
mod unsupervised;

pub use het_node::{
    ControlGroupFinding, control_groups, forbid_core_dumps, forward_signal, raise_descriptor_limit,
    run_restarter,
};

pub use calibrations::{CalibrationFault, Calibrations};
pub use checkpoints::{missed_facts, newest_checkpoint};
pub use clock::{Activity, StartTime, start_time};
pub use disk::{disk_size, free_space};
pub use home::{Home, HomeError, JobDir};
pub use instance::{Instance, claim_instance, instance};
pub use kept::{
    ENVIRONMENT_BYTES_MAX, environment_bytes, is_variable, keep_environment, keep_job_variables,
    keep_script, remove_unused,
};
pub use load::LatestLoad;
pub use lock::{
    Conflict, ControlLoopKind, DeviceChoice, DeviceHolder, DeviceLockError, DeviceLocks, Holder,
    LockHolder, MachineLock, lock_dir, lock_dir_name, share_lock_dir, take_devices,
    wait_for_device,
};
pub use machine::{Machine, MachineChanges, MachineUsers, machine, machine_with, this_machine};
pub use monitor::{Monitor, OwnProcesses, Repairs, monitor};
pub use reserve::Reserve;
pub use trainer::{Trainer, TrainerDriver, TrainerFault, TrainerVersion};
pub use unsupervised::{Unsupervised, unsupervised};
