//! What one gang has to do: a checked `Start`, and the files that go with it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use het_core::{Checkpoint, DeviceId, Grant, Launch, LeaseId, Placement, Rank, Topology};

use crate::gang::verdict::Exit;
use crate::launch::container::ContainerAccess;
use crate::launch::template::{self, Words};
use crate::recovery::restarter::Exits;
use crate::resources::cores::{self, Picked};

/// Gives the environment variables that show a program these devices of a driver and no others:
/// `het_devices::visible_devices`. For the driver of a CPU they hide every accelerator.
pub type VisibleEnv = fn(driver: &str, ids: &[&str]) -> Vec<(Cow<'static, str>, String)>;

/// A `Start`, with everything the engine chose for it.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) lease: LeaseId,
    pub(crate) attempt: u32,
    pub(crate) placement: Arc<Placement>,
    pub(crate) launch: Arc<Launch>,
    pub(crate) resume: Option<Checkpoint>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) visible_env: VisibleEnv,
    pub(crate) container_access: ContainerAccess,
    pub(crate) port: u16,
    /// What its programs share; its other files lie beside it.
    pub(crate) lease_dir: PathBuf,
    pub(crate) health_check: Option<PathBuf>,
    /// What a keeper wrote down, where there is one, and since when the lease had processes.
    pub(crate) exits: Option<(Exits, u64)>,
    /// By rank.
    pub(crate) picked: Vec<Picked>,
}

impl Order {
    pub(crate) fn world(&self) -> u32 {
        self.placement.ranks.len() as u32
    }

    pub(crate) fn rank(&self, rank: u32) -> &Rank {
        &self.placement.ranks[rank as usize]
    }

    /// Whole CPU cores of a rank, requested and companion.
    pub(crate) fn cores(&self, rank: u32) -> u32 {
        let rank = self.rank(rank);
        cores::count(&self.topology, all_grants(rank))
    }

    /// What a rank has to itself that can fail: its accelerators, or its sockets where it has none.
    pub(crate) fn devices_of(&self, rank: u32) -> Vec<DeviceId> {
        let all = || self.rank(rank).grants.iter().map(|grant| grant.device);
        let accelerators = all().filter(|&device| !cores::is_cpu(&self.topology, device));
        let accelerators: Vec<DeviceId> = accelerators.collect();
        if accelerators.is_empty() { all().collect() } else { accelerators }
    }

    /// The visible ids that a rank is shown, by driver: its accelerators, or its sockets where it
    /// has none. Not both, because vendors read each other's variables.
    pub(crate) fn shown_devices(&self, rank: u32) -> BTreeMap<&str, Vec<&str>> {
        let mut shown: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for id in self.devices_of(rank) {
            let device = self.topology.device(id);
            if let Some(driver) = device.drivers.first() {
                shown.entry(driver.as_str()).or_default().push(device.visible_id.as_str());
            }
        }
        shown
    }

    /// No accelerator is held: processor time says how busy the gang is.
    pub(crate) fn is_cpu_only(&self) -> bool {
        self.placement.devices().all(|grant| cores::is_cpu(&self.topology, grant.device))
    }

    pub(crate) fn words(&self, rank: u32) -> Words<'_> {
        let checkpoint = self.resume.as_ref().map_or("", |checkpoint| &checkpoint.path);
        Words { rank, world: self.world(), checkpoint }
    }

    pub(crate) fn argv(&self, rank: u32) -> Vec<String> {
        let resume: &[String] = if self.resume.is_some() { &self.launch.resume } else { &[] };
        let words = self.words(rank);
        self.launch.argv.iter().chain(resume).map(|text| template::fill(text, words)).collect()
    }

    fn workdir(&self) -> PathBuf {
        PathBuf::from(&self.launch.workdir)
    }

    pub(crate) fn notice(&self) -> PathBuf {
        notice_path(&self.lease_dir)
    }

    /// Its programs may need the directory that they share before they are given notice: to settle
    /// after which step they stop, or to have it in a container.
    pub(crate) fn settles(&self) -> bool {
        let launch = &self.launch;
        self.world() > 1 || launch.checkpoint.is_some() || launch.container.is_some()
    }

    /// Names the container of a rank once there is one.
    pub(crate) fn container_id(&self, rank: u32) -> PathBuf {
        containers_path(&self.lease_dir).join(rank.to_string())
    }

    /// There once the health check of a rank has failed.
    pub(crate) fn sick(&self, rank: u32) -> PathBuf {
        self.lease_dir.with_extension(format!("sick-{rank}"))
    }

    pub(crate) fn progress(&self) -> PathBuf {
        progress_path(&self.lease_dir)
    }

    pub(crate) fn output_dir(&self) -> PathBuf {
        self.workdir().join(self.launch.stage.as_str())
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        let stage = self.workdir().join("logs").join(self.launch.stage.as_str());
        stage.join(format!("attempt-{}", self.attempt))
    }

    pub(crate) fn log(&self, rank: u32) -> PathBuf {
        self.log_dir().join(format!("rank-{rank}.log"))
    }

    /// How a process ended that is nobody's child any more; `None` while its keeper, which has it
    /// in a moment, does not say.
    pub(crate) fn orphan_exit(&self, pid: i32) -> Option<Exit> {
        match &self.exits {
            Some((exits, since)) => exits.of(pid, *since),
            None => Some(Exit::Unknown),
        }
    }

    /// Where checkpoints appear; a relative path starts where the program does.
    pub(crate) fn checkpoint_dir(&self) -> Option<PathBuf> {
        let spec = self.launch.checkpoint.as_ref()?;
        Some(PathBuf::from(&self.launch.cwd).join(&spec.dir))
    }
}

/// The directory that the programs of a lease share, in the run directory of its engine. Its other
/// files lie beside it.
pub(crate) fn lease_path(run_dir: &Path, lease: LeaseId) -> PathBuf {
    run_dir.join(format!("lease-{lease}"))
}

pub(crate) fn notice_path(lease_dir: &Path) -> PathBuf {
    lease_dir.join("notice")
}

/// Where the containers of a lease are named, by rank: no program of it may write there.
pub(crate) fn containers_path(lease_dir: &Path) -> PathBuf {
    lease_dir.with_extension("containers")
}

/// A directory of its own, which is watched: nothing else is written there.
pub(crate) fn progress_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("progress")
}

pub(crate) fn progress_path(lease_dir: &Path) -> PathBuf {
    let run_dir = lease_dir.parent().unwrap_or(lease_dir);
    progress_dir(run_dir).join(lease_dir.file_name().unwrap_or_default())
}

/// The lease whose progress file has this name.
pub(crate) fn lease_of_progress(name: &str) -> Option<LeaseId> {
    name.strip_prefix("lease-")?.parse().ok().map(LeaseId)
}

pub(crate) fn all_grants(rank: &Rank) -> impl Iterator<Item = Grant> + '_ {
    rank.grants.iter().chain(&rank.companions).copied()
}
