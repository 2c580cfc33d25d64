//! Quotas as they are stored.

use std::collections::BTreeMap;

use het_core::{ClassQuota, Quota, Quotas, Share};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QuotaRecord {
    weight: u32,
    /// By device class id.
    classes: BTreeMap<String, ClassQuotaRecord>,
}

/// Shares in 1/10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ClassQuotaRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entitled: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
}

pub(super) fn write_quotas(quotas: &Quotas) -> BTreeMap<String, QuotaRecord> {
    let class = |quota: &ClassQuota| ClassQuotaRecord {
        entitled: quota.entitled.map(|share| share.0),
        limit: quota.limit.map(|share| share.0),
    };
    let row = |quota: &Quota| QuotaRecord {
        weight: quota.weight,
        classes: quota.classes.iter().map(|(id, of)| (id.to_string(), class(of))).collect(),
    };
    quotas.tenants.iter().map(|(name, quota)| (name.to_string(), row(quota))).collect()
}

pub(super) fn read_quotas(record: &BTreeMap<String, QuotaRecord>) -> Quotas {
    let class = |quota: &ClassQuotaRecord| ClassQuota {
        entitled: quota.entitled.map(Share),
        limit: quota.limit.map(Share),
    };
    let row = |quota: &QuotaRecord| Quota {
        weight: quota.weight,
        classes: quota.classes.iter().map(|(id, of)| (id.as_str().into(), class(of))).collect(),
    };
    Quotas {
        tenants: record.iter().map(|(name, quota)| (name.as_str().into(), row(quota))).collect(),
    }
}
