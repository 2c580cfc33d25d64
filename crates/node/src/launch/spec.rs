//! The specification of one gang: a checked `Start`, and the files that go with it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use het_core::{
    Checkpoint, ContainerRuntime, DeviceId, Elastic, Grant, Launch, LeaseId, Name, Placement, Rank,
    Topology,
};
use het_engine::{Placeholders, fill};
use nix::unistd::{User, getuid};

use super::launcher::{self, Pinning};
use super::output_directory::output_directories;
use crate::cgroup::RunMode;
use crate::checkpoint::SearchRoots;
use crate::inputs::LocalInputs;
use crate::resources::{AssignedCores, count_cores, is_cpu};
use crate::run_dir::{containers_path, grant_path, notice_path, progress_path, unhealthy_path};

/// Gives the environment variables that make these devices of a driver visible to a program, and no
/// others: `het_devices::visible_devices`. For the driver of a CPU they hide every accelerator.
pub type VisibleEnv = fn(driver: &str, ids: &[&str]) -> Vec<(Cow<'static, str>, String)>;

/// Gives the runtime arguments that let a container use these devices of a driver, or says why
/// there are none: `het_devices::container_access`.
pub type ContainerAccess =
    fn(ContainerRuntime, driver: &str, ids: &[&str]) -> Result<Vec<String>, String>;

/// Whether a gang has its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Devices {
    Granted,
    /// Its placement says where it is likely to have some.
    Awaited,
}

/// A `Start`, with everything that the engine chose for it.
#[derive(Debug, Clone)]
pub(crate) struct GangSpec {
    pub(crate) lease: LeaseId,
    pub(crate) attempt: u32,
    pub(crate) placement: Arc<Placement>,
    pub(crate) launch: Arc<Launch>,
    pub(crate) resume: Option<Checkpoint>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) visible_env: VisibleEnv,
    pub(crate) container_access: ContainerAccess,
    pub(crate) devices: Devices,
    pub(crate) port: u16,
    /// The directory that its programs share; its other files lie beside it.
    pub(crate) lease_dir: PathBuf,
    pub(crate) health_check: Option<PathBuf>,
    pub(crate) mode: RunMode,
    /// By rank.
    pub(crate) cores: Vec<AssignedCores>,
    /// Copies that its programs are told of.
    pub(crate) local_inputs: LocalInputs,
}

impl GangSpec {
    pub(crate) fn world(&self) -> u32 {
        self.placement.ranks.len() as u32
    }

    /// Its programs may be several, so they are told their ranks. A program that can only be one
    /// process must not be told: frameworks take a rank for the word of a launcher.
    pub(super) fn is_gang(&self) -> bool {
        self.world() > 1 || self.launch.ranks_max > 1
    }

    pub(crate) fn rank(&self, rank: u32) -> &Rank {
        &self.placement.ranks[rank as usize]
    }

    /// Whole CPU cores of a rank, requested and companion.
    pub(crate) fn core_count(&self, rank: u32) -> u32 {
        let rank = self.rank(rank);
        count_cores(&self.topology, all_grants(rank))
    }

    /// A rank that is not pinned to the cores it has may run on others too.
    pub(super) fn pinning(&self, rank: u32) -> Pinning {
        let pinned = self.cores[rank as usize].cores.len();
        match pinned > 0 && pinned == self.core_count(rank) as usize {
            true => Pinning::ToItsCores,
            false => Pinning::None,
        }
    }

    pub(super) fn accelerator_count(&self, rank: u32) -> usize {
        let grants = self.rank(rank).grants.iter();
        grants.filter(|grant| !is_cpu(&self.topology, grant.device)).count()
    }

    /// The devices of a rank that can fail: its accelerators, or its sockets if it has none.
    pub(crate) fn devices_of(&self, rank: u32) -> Vec<DeviceId> {
        let all = || self.rank(rank).grants.iter().map(|grant| grant.device);
        let accelerators = all().filter(|&device| !is_cpu(&self.topology, device));
        let accelerators: Vec<DeviceId> = accelerators.collect();
        if accelerators.is_empty() { all().collect() } else { accelerators }
    }

    /// Names of all devices that a rank holds.
    pub(crate) fn device_names(&self, rank: u32) -> impl Iterator<Item = &Name> + '_ {
        all_grants(self.rank(rank)).map(|grant| &self.topology.device(grant.device).name)
    }

    /// Ids of the devices that a rank sees, by driver: its accelerators, or its sockets if it has
    /// none. Not both, because vendors read each other's variables.
    pub(crate) fn visible_devices(&self, rank: u32) -> BTreeMap<&str, Vec<&str>> {
        let mut visible: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for id in self.devices_of(rank) {
            let device = self.topology.device(id);
            if let Some(driver) = device.drivers.first() {
                visible.entry(driver.as_str()).or_default().push(device.visible_id.as_str());
            }
        }
        visible
    }

    /// It has no accelerator, so processor time measures how busy it is.
    pub(crate) fn is_cpu_only(&self) -> bool {
        self.placement.devices().all(|grant| is_cpu(&self.topology, grant.device))
    }

    pub(crate) fn placeholders(&self, rank: u32) -> Placeholders<'_> {
        let checkpoint = self.resume.as_ref().map_or("", |checkpoint| &checkpoint.path);
        Placeholders {
            rank,
            world: self.world(),
            port: self.port,
            checkpoint,
            node: self.topology.node(self.rank(rank).node).name.as_str(),
            user: user_name(),
            restarts: self.attempt.saturating_sub(1),
        }
    }

    pub(crate) fn argv(&self, rank: u32) -> Vec<String> {
        let resume: &[String] = if self.resume.is_some() { &self.launch.resume } else { &[] };
        let values = self.placeholders(rank);
        let words = self.launch.argv.iter().chain(resume);
        let argv = words.map(|text| fill(text, values)).collect();
        match self.launch.elastic {
            Some(Elastic { reference, .. }) => {
                launcher::scaled(argv, (self.placement.units(), reference))
            }
            None => argv,
        }
    }

    fn workdir(&self) -> PathBuf {
        PathBuf::from(&self.launch.workdir)
    }

    pub(crate) fn notice_file(&self) -> PathBuf {
        notice_path(&self.lease_dir)
    }

    /// Its programs may need the shared directory before the notice: to agree after which step they
    /// stop, or to mount it in a container.
    pub(crate) fn needs_shared_dir(&self) -> bool {
        let launch = &self.launch;
        let shares = self.world() > 1 || launch.checkpoint.is_some();
        let is_noted = self.devices == Devices::Awaited || !self.local_inputs.is_empty();
        shares || launch.container.is_some() || is_noted
    }

    /// The file with the container id of a rank, once there is one.
    pub(crate) fn container_id_file(&self, rank: u32) -> PathBuf {
        containers_path(&self.lease_dir).join(rank.to_string())
    }

    /// The file that exists once the health check of a rank has failed.
    pub(crate) fn unhealthy_file(&self, rank: u32) -> PathBuf {
        unhealthy_path(&self.lease_dir, rank)
    }

    /// Where a rank is told its devices that was started before it had any.
    pub(crate) fn grant_file(&self, rank: u32) -> PathBuf {
        grant_path(&self.lease_dir, rank)
    }

    pub(crate) fn progress_file(&self) -> PathBuf {
        progress_path(&self.lease_dir)
    }

    pub(crate) fn output_dir(&self) -> PathBuf {
        self.workdir().join(self.launch.stage.as_str())
    }

    /// Logs of all attempts.
    fn logs_dir(&self) -> PathBuf {
        self.workdir().join("logs").join(self.launch.stage.as_str())
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        self.logs_dir().join(format!("attempt-{}", self.attempt))
    }

    /// Where its programs are told to write, and what is written for them.
    pub(crate) fn written_dirs(&self) -> Vec<PathBuf> {
        let dirs = [Some(self.output_dir()), Some(self.logs_dir()), self.checkpoint_dir()];
        dirs.into_iter().flatten().collect()
    }

    pub(crate) fn log_file(&self, rank: u32) -> PathBuf {
        self.log_dir().join(format!("rank-{rank}.log"))
    }

    /// Where PyTorch is told to write the exception that ends a rank.
    pub(crate) fn error_file(&self, rank: u32) -> PathBuf {
        self.log_dir().join(format!("rank-{rank}.error.json"))
    }

    /// Where standard error is looked for, where it goes to a file of its own.
    pub(crate) fn error_log(&self, rank: u32) -> PathBuf {
        self.log_dir().join(format!("rank-{rank}.err.log"))
    }

    /// What tells best how a rank failed.
    pub(crate) fn failure_log(&self, rank: u32) -> PathBuf {
        let files = self.launch.log_files.as_ref();
        match files.and_then(|files| files.stderr.as_ref()) {
            Some(_) => self.error_log(rank),
            None => self.log_file(rank),
        }
    }

    /// Where its programs may save.
    pub(crate) fn search_roots(&self) -> SearchRoots {
        let cwd = PathBuf::from(&self.launch.cwd);
        let told = output_directories(&self.argv(0)).into_iter().map(|dir| cwd.join(dir));
        let named = told.chain([self.output_dir()]).collect();
        SearchRoots { named, cwd: cwd.clone(), declared: self.checkpoint_dir() }
    }

    /// The directory of checkpoints; a relative path starts at the program's working directory.
    pub(crate) fn checkpoint_dir(&self) -> Option<PathBuf> {
        let spec = self.launch.checkpoint.as_ref()?;
        Some(PathBuf::from(&self.launch.cwd).join(&spec.dir))
    }
}

/// As the machine's user database has it.
fn user_name() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    let name = NAME.get_or_init(|| Some(User::from_uid(getuid()).ok()??.name));
    name.as_deref()
}

pub(crate) fn all_grants(rank: &Rank) -> impl Iterator<Item = Grant> + '_ {
    rank.grants.iter().chain(&rank.companions).copied()
}
