//! What a gang holds while it runs, besides cores and a port: cgroups, its record and other files.

use std::fs;
use std::io;
use std::path::Path;

use het_core::Failure;

use super::verdict::MemoryRanOut;
use crate::cgroup::{Group, RankGrant};
use crate::context::{Cleanup, Context, RecordCleanup, ShimCleanup};
use crate::launch::{Devices, GangSpec, cannot_write};
use crate::process::{Identity, procfs};
use crate::recovery::{RECORD_VERSION, Record, RecordFile, boot_ticks};
use crate::resources::AssignedCores;
use crate::run_dir::discard_lease_files;

#[derive(Debug)]
pub(super) struct Holdings {
    /// By rank; empty where the machine allows none.
    pub(super) cgroups: Vec<Group>,
    /// The file of its record, once it is written.
    pub(super) record: Option<RecordFile>,
    pub(super) files: Files,
    /// OOM kills on the machine at the start; unknown for an adopted gang.
    oom_kills: Option<u64>,
}

/// What a gang has in the run directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    /// Nothing but its record, unless its programs have reported something.
    Record,
    More,
}

impl Holdings {
    pub(super) fn new(oom_kills: Option<u64>) -> Self {
        Self { cgroups: Vec::new(), record: None, files: Files::Record, oom_kills }
    }

    /// Those that a dead supervisor left.
    pub(super) fn adopted(cgroups: Vec<Group>, record: Option<RecordFile>) -> Self {
        Self { cgroups, record, files: Files::More, oom_kills: None }
    }

    /// Takes cgroups and records the lease, which this shim gets if there is one already.
    pub(super) fn write_record(
        &mut self,
        spec: &GangSpec,
        shim: Option<Identity>,
        context: &mut Context,
    ) -> Result<RecordFile, Failure> {
        let grant = |rank| RankGrant {
            memory: spec.rank(rank).host.memory,
            devices: match spec.devices {
                Devices::Granted => spec.device_names(rank).collect(),
                Devices::Awaited => Vec::new(),
            },
        };
        let grants: Vec<RankGrant<'_>> = (0..spec.world()).map(grant).collect();
        self.cgroups = context.cgroups.take(&grants);
        let record = Record {
            version: RECORD_VERSION,
            lease: spec.lease.0,
            job: spec.launch.job.to_string(),
            stage: spec.launch.stage.to_string(),
            boot_id: procfs::boot_id(),
            since_ticks: boot_ticks(),
            supervisor: Identity::own(),
            shim,
            port: spec.port,
            warm: spec.devices == Devices::Awaited,
            cores: spec.cores.iter().map(AssignedCores::record).collect(),
            cgroups: self.cgroups.iter().map(|group| group.dirs().to_vec()).collect(),
        };
        let file = record.write(&mut context.record_files);
        file.map_err(|error| cannot_write(0, &spec.lease_dir, &error))
    }

    /// Creates the directory that the programs share, where they may need it.
    pub(super) fn create_shared_dir(&mut self, spec: &GangSpec) -> Result<(), Failure> {
        if !spec.needs_shared_dir() {
            return Ok(());
        }
        self.files = Files::More;
        let dir = &spec.lease_dir;
        create_afresh(dir).map_err(|error| cannot_write(0, dir, &error))
    }

    /// Whether memory ran out for the rank that failed, or on the machine.
    pub(super) fn memory_ran_out(&self, spec: &GangSpec, culprit: Option<u32>) -> MemoryRanOut {
        let Some(rank) = culprit else { return MemoryRanOut::Unknown };
        let limit = spec.rank(rank).host.memory;
        match self.cgroups.get(rank as usize) {
            Some(group) if group.ran_out_of_memory() => MemoryRanOut::OfRank(limit),
            _ => MemoryRanOut::between(self.oom_kills, procfs::oom_kills()),
        }
    }

    pub(super) fn put_back_cgroups(&mut self, context: &mut Context) {
        for group in std::mem::take(&mut self.cgroups) {
            context.cgroups.put_back(group);
        }
    }

    /// What remains to be removed once the end of the lease is durable. `reported` are files that
    /// its programs may have written.
    pub(super) fn cleanup(
        &mut self,
        spec: &GangSpec,
        reported: Files,
        shim: ShimCleanup,
    ) -> Cleanup {
        let has_more = self.files == Files::More || reported == Files::More;
        let lease_dir = has_more.then(|| spec.lease_dir.clone());
        let record = self.record.take().map_or(RecordCleanup::None, |file| match &shim {
            ShimCleanup::Release(..) | ShimCleanup::Close(_) => RecordCleanup::Reuse(file),
            // One that is gone, or begins late, may still write to it.
            ShimCleanup::None => RecordCleanup::Discard(file),
        });
        Cleanup { lease_dir, record, shim }
    }
}

/// An existing directory is of a lease of the same number whose supervisor died.
fn create_afresh(lease_dir: &Path) -> io::Result<()> {
    match fs::create_dir(lease_dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            discard_lease_files(lease_dir);
            fs::create_dir(lease_dir)
        }
        created => created,
    }
}
