//! What a program says of its work, as it is stored.

use std::collections::BTreeMap;

use het_core::{HostResources, Measured, MeasuredNeeds, Micro, Millis, Progress};
use serde::{Deserialize, Serialize};

use super::host::HostRecord;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProgressRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_micro: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    useful_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    busy_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    demand: Option<HostRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<MeasuredRecord>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    results_micro: BTreeMap<String, i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ran_on: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredRecord {
    batch: u32,
    accumulation: u32,
    step_us: i64,
    exchange_us: i64,
    gradient_noise_micro: i64,
}

pub(super) fn write_progress(progress: &Progress) -> ProgressRecord {
    let demand = progress.needs.as_ref().map(|needs| needs.demand);
    let demand = demand.filter(|demand| *demand != HostResources::NONE);
    ProgressRecord {
        step: progress.step,
        total: progress.total,
        loss_micro: progress.loss.map(|loss| loss.0),
        samples: progress.samples,
        tokens: progress.tokens,
        useful_ms: progress.useful.map(|span| span.0),
        busy_ms: progress.busy.map(|span| span.0),
        demand: demand.map(HostRecord::from),
        inputs: progress.needs.as_ref().map(|needs| needs.inputs.clone()).unwrap_or_default(),
        measured: progress.measured.as_deref().map(|measured| MeasuredRecord {
            batch: measured.batch,
            accumulation: measured.accumulation,
            step_us: measured.step.0,
            exchange_us: measured.exchange.0,
            gradient_noise_micro: measured.gradient_noise.0,
        }),
        results_micro: progress.results.iter().map(|(k, v)| (k.to_string(), v.0)).collect(),
        ran_on: progress.ran_on.as_ref().map(ToString::to_string),
        message: progress.message.clone(),
    }
}

pub(super) fn read_progress(record: &ProgressRecord) -> Progress {
    let demand = record.demand.map(Into::into).unwrap_or_default();
    let needs = MeasuredNeeds { demand, inputs: record.inputs.clone() };
    Progress {
        step: record.step,
        total: record.total,
        loss: record.loss_micro.map(Micro),
        samples: record.samples,
        tokens: record.tokens,
        useful: record.useful_ms.map(Millis),
        busy: record.busy_ms.map(Millis),
        needs: (needs != MeasuredNeeds::default()).then(|| Box::new(needs)),
        measured: record.measured.map(|measured| {
            Box::new(Measured {
                batch: measured.batch,
                accumulation: measured.accumulation,
                step: Micro(measured.step_us),
                exchange: Micro(measured.exchange_us),
                gradient_noise: Micro(measured.gradient_noise_micro),
            })
        }),
        results: record.results_micro.iter().map(|(k, v)| (k.as_str().into(), Micro(*v))).collect(),
        ran_on: record.ran_on.as_deref().map(Into::into),
        message: record.message.clone(),
    }
}
