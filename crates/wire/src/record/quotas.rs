//! Quotas as they are stored.

use std::collections::BTreeMap;

use het_core::{Bytes, ClassQuota, Priority, Quota, Quotas, Share};
use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::words::by_word;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QuotasRecord {
    tenants: BTreeMap<String, QuotaRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority_max: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scratch_max_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct QuotaRecord {
    weight: u32,
    /// By device class id.
    classes: BTreeMap<String, ClassQuotaRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority_max: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scratch_max_bytes: Option<u64>,
}

/// Shares in 1/10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ClassQuotaRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entitled: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
}

pub(super) fn write_quotas(quotas: &Quotas) -> QuotasRecord {
    let class = |quota: &ClassQuota| ClassQuotaRecord {
        entitled: quota.entitled.map(|share| share.0),
        limit: quota.limit.map(|share| share.0),
    };
    let priority = |priority: Priority| priority.word().to_owned();
    let row = |quota: &Quota| QuotaRecord {
        weight: quota.weight,
        classes: quota.classes.iter().map(|(id, of)| (id.to_string(), class(of))).collect(),
        priority_max: quota.priority_max.map(priority),
        scratch_max_bytes: quota.scratch_max.map(|bytes| bytes.0),
    };
    let tenants = quotas.tenants.iter().map(|(name, quota)| (name.to_string(), row(quota)));
    QuotasRecord {
        tenants: tenants.collect(),
        priority_max: quotas.priority_max.map(priority),
        scratch_max_bytes: quotas.scratch_max.map(|bytes| bytes.0),
    }
}

pub(super) fn read_quotas(record: &QuotasRecord) -> Result<Quotas, RecordError> {
    let class = |quota: &ClassQuotaRecord| ClassQuota {
        entitled: quota.entitled.map(Share),
        limit: quota.limit.map(Share),
    };
    let priority = |word: &Option<String>| {
        let word = word.as_deref();
        word.map(|word| by_word(&Priority::ALL, Priority::word, word)).transpose()
    };
    let row = |(name, quota): (&String, &QuotaRecord)| {
        let classes = quota.classes.iter().map(|(id, of)| (id.as_str().into(), class(of)));
        let priority_max = priority(&quota.priority_max)?;
        let scratch_max = quota.scratch_max_bytes.map(Bytes);
        let (weight, classes) = (quota.weight, classes.collect());
        let quota = Quota { weight, classes, priority_max, scratch_max };
        Ok((name.as_str().into(), quota))
    };
    Ok(Quotas {
        tenants: record.tenants.iter().map(row).collect::<Result<_, RecordError>>()?,
        priority_max: priority(&record.priority_max)?,
        scratch_max: record.scratch_max_bytes.map(Bytes),
    })
}
