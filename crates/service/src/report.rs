//! From state to what people and programs read of it: a line, a report, an explanation.

mod explain;
mod resource;
mod row;
mod run;
mod stops;
mod waiting;

use std::collections::BTreeMap;

use het_core::Topology;
use het_core::{DeviceId, Job, JobEnd, JobState, Placement, Share, Stage, StageState, Time};
use jiff::Timestamp;

pub use explain::{Detail, explanation, explanation_of_record};
pub use resource::resource_status;
pub use row::row;
pub use run::report;

/// Exit code of a run that its user stopped, as shells give it for an interrupt.
const INTERRUPTED: i32 = 130;

/// RFC 3339, UTC.
pub fn stamp(at: Time) -> String {
    let stamp = Timestamp::from_millisecond(at.0 as i64);
    stamp.map_or_else(|_| format!("{} ms", at.0), |stamp| stamp.to_string())
}

/// The job's own code: that of its first failed stage.
fn exit_code(job: &Job, state: JobState) -> Option<i32> {
    match state {
        JobState::Ended(JobEnd::Succeeded) => Some(0),
        JobState::Ended(JobEnd::Failed) => {
            let codes = job.stages.iter().filter_map(stage_exit_code);
            Some(codes.max_by_key(|code| *code != 0).unwrap_or(1))
        }
        JobState::Held => {
            Some(job.given_up().map_or(INTERRUPTED, |(_, failure)| failure.exit_code))
        }
        JobState::Ended(JobEnd::Cancelled) => Some(INTERRUPTED),
        _ => None,
    }
}

fn stage_exit_code(stage: &Stage) -> Option<i32> {
    match &stage.state {
        StageState::Succeeded => Some(0),
        StageState::Failed(failure) => Some(failure.exit_code),
        _ => None,
    }
}

/// `NODE/DEVICE`, with `:UNITS` for parts of a CPU.
fn devices(topology: &Topology, placement: &Placement) -> Vec<String> {
    let mut units: BTreeMap<DeviceId, u32> = BTreeMap::new();
    for grant in placement.devices() {
        *units.entry(grant.device).or_default() += grant.share.whole_units();
    }
    let name = |(id, units): (DeviceId, u32)| {
        let device = topology.device(id);
        let node = &topology.node(device.node).name;
        match device.capacity {
            Share::WHOLE => format!("{node}/{}", device.name),
            _ => format!("{node}/{}:{units}", device.name),
        }
    };
    units.into_iter().map(name).collect()
}
