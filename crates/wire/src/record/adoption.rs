//! Jobs that were taken over, as they are stored.

use std::sync::Arc;

use het_core::{AdoptedJobs, JobId, LeaseId};
use serde::{Deserialize, Serialize};

use super::RecordError;
use super::kept_job::{KeptJobRecord, read_kept_job, write_kept_job};
use super::lease::{LeaseRecord, read_lease, write_lease};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdoptedJobsRecord {
    /// Pairs: an event is told apart by a field beside these, and maps by number are not read then.
    jobs: Vec<(u64, KeptJobRecord)>,
    leases: Vec<(u64, LeaseRecord)>,
    next_job: u64,
    next_lease: u64,
}

pub(super) fn write_adopted(adopted: &AdoptedJobs) -> AdoptedJobsRecord {
    let AdoptedJobs { jobs, leases, next_job, next_lease } = adopted;
    AdoptedJobsRecord {
        jobs: jobs.iter().map(|(id, job)| (id.0, write_kept_job(job))).collect(),
        leases: leases.iter().map(|(id, lease)| (id.0, write_lease(lease))).collect(),
        next_job: next_job.0,
        next_lease: next_lease.0,
    }
}

pub(super) fn read_adopted(record: &AdoptedJobsRecord) -> Result<AdoptedJobs, RecordError> {
    let AdoptedJobsRecord { jobs, leases, next_job, next_lease } = record;
    let job = |(id, job): &(u64, KeptJobRecord)| Ok((JobId(*id), Arc::new(read_kept_job(job)?)));
    Ok(AdoptedJobs {
        jobs: jobs.iter().map(job).collect::<Result<_, RecordError>>()?,
        leases: leases.iter().map(|(id, lease)| (LeaseId(*id), read_lease(lease))).collect(),
        next_job: JobId(*next_job),
        next_lease: LeaseId(*next_lease),
    })
}
