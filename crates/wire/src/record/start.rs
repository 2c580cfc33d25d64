//! What must be so before a job may ask for devices, as it is stored.

use het_core::{
    ArrayMember, Dependencies, Dependency, DependencyCondition, DependencyRule, JobId, Millis,
    StartConditions, Time,
};
use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::words::by_word;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StartRecord {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<DependencyRecord>,
    /// One of them is enough.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    after_any: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    begin_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    array: Option<ArrayRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DependencyRecord {
    job: u64,
    condition: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    delay_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ArrayRecord {
    job: u64,
    index: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parallel_max: Option<u32>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

pub(super) fn write_start(start: &StartConditions) -> StartRecord {
    let dependency = |on: &Dependency| DependencyRecord {
        job: on.job.0,
        condition: on.condition.word().to_owned(),
        delay_ms: on.delay.0,
    };
    StartRecord {
        after: start.dependencies.on.iter().map(dependency).collect(),
        after_any: start.dependencies.rule == DependencyRule::Any,
        begin_ms: start.begin.map(|at| at.0),
        array: start.array.map(|array| ArrayRecord {
            job: array.array.0,
            index: array.index,
            parallel_max: array.parallel_max,
        }),
    }
}

pub(super) fn read_start(record: &StartRecord) -> Result<StartConditions, RecordError> {
    let dependency = |on: &DependencyRecord| {
        let condition = by_word(&DependencyCondition::ALL, |it| it.word(), &on.condition)?;
        Ok(Dependency { job: JobId(on.job), condition, delay: Millis(on.delay_ms) })
    };
    let on: Result<_, RecordError> = record.after.iter().map(dependency).collect();
    Ok(StartConditions {
        dependencies: Dependencies {
            rule: match record.after_any {
                true => DependencyRule::Any,
                false => DependencyRule::All,
            },
            on: on?,
        },
        begin: record.begin_ms.map(Time),
        array: record.array.map(|array| ArrayMember {
            array: JobId(array.job),
            index: array.index,
            parallel_max: array.parallel_max,
        }),
    })
}
