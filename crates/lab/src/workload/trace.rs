//! Our own trace format: JSON Lines, one job a line.

use std::fmt::Write as _;
use std::path::Path;

use het_core::{Priority, StageKind};
use serde::{Deserialize, Serialize};

use super::source::{Spot, TraceError};

/// A submitted job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceJob {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Seconds since the beginning of the trace.
    pub arrival_s: f64,
    #[serde(default)]
    pub tenant: String,
    #[serde(default, with = "priority_word")]
    pub priority: Priority,
    /// Each waits for the one before it.
    pub stages: Vec<TraceStage>,
}

/// A stage of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StageRecord", into = "StageRecord")]
pub struct TraceStage {
    pub kind: StageKind,
    /// Key of its speed in a throughput table; without one it is equally fast everywhere.
    pub profile: Option<String>,
    /// Devices of one class that it needs together, or zero for any number that its profile has a
    /// speed for; of an elastic stage, those that its user would have chosen.
    pub units: u32,
    /// Device classes, or kinds of devices, that will do; where empty all that its profile has a
    /// speed for, and without a profile all accelerators.
    pub classes: Vec<String>,
    /// How much slower it is where its devices stand apart; not at all where absent.
    pub apart: Option<Apart>,
    /// Of a step on the best links of a node, the part in which its devices exchange.
    pub exchange: f64,
    /// CPU cores that it needs beside its devices, on each node where it has any.
    pub cores: u32,
    pub work: Work,
}

/// Speeds of a gang as parts of that in the best place for it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apart {
    /// Over nodes of one rack.
    pub rack: f64,
    /// Over racks of one pod.
    pub pod: f64,
    /// Over pods.
    pub any: f64,
}

/// How much there is to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Work {
    /// Steps at the speed of its profile.
    Steps(u64),
    /// Seconds, wherever it runs.
    Seconds(f64),
    /// All epochs of its application, on as many devices as it is given.
    Epochs,
}

/// A stage as it is written: exactly one of `steps`, `seconds` and `elastic`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageRecord {
    #[serde(default, with = "kind_word")]
    kind: StageKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    units: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    classes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    apart: Option<Apart>,
    #[serde(default, skip_serializing_if = "is_nothing")]
    exchange: f64,
    #[serde(default, skip_serializing_if = "is_zero")]
    cores: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "is_false")]
    elastic: bool,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn is_nothing(value: &f64) -> bool {
    *value == 0.0
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Apart {
    /// No slower anywhere.
    pub const NOWHERE: Self = Self { rack: 1.0, pod: 1.0, any: 1.0 };

    /// Each is a part, and wider is no faster.
    fn slows(self) -> bool {
        let Self { rack, pod, any } = self;
        1.0 >= rack && rack >= pod && pod >= any && any > 0.0
    }
}

impl TryFrom<StageRecord> for TraceStage {
    type Error = &'static str;

    fn try_from(record: StageRecord) -> Result<Self, Self::Error> {
        let work = match (record.steps, record.seconds, record.elastic) {
            (Some(steps), None, false) => Work::Steps(steps),
            (None, Some(seconds), false) => Work::Seconds(seconds),
            (None, None, true) => Work::Epochs,
            _ => return Err("a stage has exactly one of `steps`, `seconds` and `elastic: true`"),
        };
        if record.units == 0 && record.profile.is_none() {
            return Err("a stage without a profile needs `units`");
        }
        if record.apart.is_some_and(|apart| !apart.slows()) {
            return Err("`apart` names parts of a speed, from 1 down to above 0");
        }
        if !(0.0..=1.0).contains(&record.exchange) {
            return Err("`exchange` is a part of a step, from 0 to 1");
        }
        let StageRecord { kind, profile, units, classes, apart, exchange, cores, .. } = record;
        Ok(Self { kind, profile, units, classes, apart, exchange, cores, work })
    }
}

impl From<TraceStage> for StageRecord {
    fn from(stage: TraceStage) -> Self {
        let TraceStage { kind, profile, units, classes, apart, exchange, cores, work } = stage;
        let (steps, seconds) = match work {
            Work::Steps(steps) => (Some(steps), None),
            Work::Seconds(seconds) => (None, Some(seconds)),
            Work::Epochs => (None, None),
        };
        let elastic = work == Work::Epochs;
        Self { kind, profile, units, classes, apart, exchange, cores, steps, seconds, elastic }
    }
}

impl TraceJob {
    pub(super) fn of_one_stage(
        arrival_s: f64,
        priority: Priority,
        tenant: &str,
        profile: Option<String>,
        units: u32,
        work: Work,
    ) -> Self {
        let (kind, classes, apart) = (StageKind::Train, Vec::new(), None);
        let (exchange, cores) = (0.0, 0);
        let stage = TraceStage { kind, profile, units, classes, apart, exchange, cores, work };
        let (name, tenant) = (String::new(), tenant.to_owned());
        Self { name, arrival_s, tenant, priority, stages: vec![stage] }
    }

    /// Arrivals count from the first of them.
    pub(crate) fn from_zero(jobs: &mut [Self]) {
        let first = jobs.iter().map(|job| job.arrival_s).fold(f64::INFINITY, f64::min);
        jobs.iter_mut().for_each(|job| job.arrival_s -= first);
    }
}

/// Reads a trace.
///
/// # Errors
/// With the place of the first line that is no such job.
pub fn read_trace(path: &Path, text: &str) -> Result<Vec<TraceJob>, TraceError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let jobs = lines.map(|(index, line)| {
        let at = |column, reason| {
            let spot = Spot { path: path.to_owned(), line: index + 1, column };
            TraceError { spot, reason }
        };
        let job: TraceJob = serde_json::from_str(line).map_err(|error| {
            let reason = error.to_string();
            let reason = reason.split(" at line").next().unwrap_or_default().to_owned();
            at(error.column().max(1), reason)
        })?;
        if job.stages.is_empty() {
            return Err(at(1, "a job needs at least one stage".to_owned()));
        }
        Ok(job)
    });
    jobs.collect()
}

/// Writes a trace, one job a line.
pub fn write_trace(jobs: &[TraceJob]) -> String {
    let mut text = String::new();
    for job in jobs {
        let line = serde_json::to_string(job).expect("a job holds only text and finite numbers");
        writeln!(text, "{line}").expect("a string takes every write");
    }
    text
}

mod priority_word {
    use het_core::Priority;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Priority, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.word())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Priority, D::Error> {
        let word = String::deserialize(from)?;
        let known = Priority::ALL.into_iter().find(|priority| priority.word() == word);
        known.ok_or_else(|| D::Error::custom(format!("there is no priority `{word}`")))
    }
}

mod kind_word {
    use het_core::StageKind;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &StageKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.word())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<StageKind, D::Error> {
        let word = String::deserialize(from)?;
        let known = StageKind::ALL.into_iter().find(|kind| kind.word() == word);
        known.ok_or_else(|| D::Error::custom(format!("there is no stage kind `{word}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let profile = Some("LM (batch size 5)".to_owned());
        let work = Work::Steps(12);
        let job = TraceJob::of_one_stage(1.5, Priority::High, "a", profile, 2, work);
        let text = write_trace(std::slice::from_ref(&job));
        assert_eq!(read_trace(Path::new("t.jsonl"), &text), Ok(vec![job]));
    }

    #[test]
    fn a_gang_may_be_slower_apart_and_never_faster() {
        let read = |apart: &str| {
            let stage = format!("{{\"units\":2,\"seconds\":1,\"apart\":{apart}}}");
            let line = format!("{{\"arrival_s\":0,\"stages\":[{stage}]}}");
            read_trace(Path::new("t.jsonl"), &line).map(|jobs| jobs[0].stages[0].apart)
        };
        let apart = Apart { rack: 0.9, pod: 0.6, any: 0.6 };
        assert_eq!(read("{\"rack\":0.9,\"pod\":0.6,\"any\":0.6}"), Ok(Some(apart)));
        assert!(read("{\"rack\":0.9,\"pod\":1.2,\"any\":0.6}").is_err());
    }

    #[test]
    fn an_unknown_field_is_an_error_with_its_place() {
        let error = read_trace(Path::new("t.jsonl"), "\n{\"arrival_s\": 1, \"stagez\": []}")
            .expect_err("`stagez` is no field");
        assert!(error.to_string().starts_with("t.jsonl:2:"), "{error}");
        assert!(error.to_string().contains("stagez"), "{error}");
    }
}
