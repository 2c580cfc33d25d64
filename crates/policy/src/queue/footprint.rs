//! Groups of waiting stages between which no device can tell: all of them fit, or none does. So
//! what does not fit is settled once for all of them, and they are told together.

use std::collections::{BTreeMap, BTreeSet};

use het_core::Reason;

use super::group::{FootprintId, Group, GroupId, QuotaOf};
use crate::placement::AskId;

/// What decides whether any of them fits: what each alternative asks for, the only one that will do
/// where the policy binds them to one, and where tenants have quotas, whose they are.
type Words = (Vec<AskId>, Option<usize>, Option<QuotaOf>);

/// One or more groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Footprint {
    pub groups: BTreeSet<GroupId>,
    /// What was told last to all of them.
    pub told: Vec<Reason>,
}

impl Footprint {
    /// One of its groups.
    pub fn one(&self) -> GroupId {
        self.groups.first().copied().unwrap_or_default()
    }
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Footprints {
    ids: BTreeMap<Words, FootprintId>,
    rows: Vec<Footprint>,
    /// Rows without groups.
    vacant: Vec<FootprintId>,
}

impl Footprints {
    /// Adds a group.
    pub fn join(&mut self, id: GroupId, group: &Group) -> FootprintId {
        let Self { ids, rows, vacant } = self;
        let row = *ids.entry(words(group)).or_insert_with(|| {
            vacant.pop().unwrap_or_else(|| {
                rows.push(Footprint::default());
                FootprintId::new(rows.len() - 1)
            })
        });
        self.rows[row.index()].groups.insert(id);
        row
    }

    /// Takes a group out.
    pub fn leave(&mut self, id: GroupId, group: &Group) {
        let row = group.footprint;
        let footprint = &mut self.rows[row.index()];
        footprint.groups.remove(&id);
        if footprint.groups.is_empty() {
            footprint.told.clear();
            self.ids.remove(&words(group));
            self.vacant.push(row);
        }
    }

    /// Those with groups.
    pub fn iter(&self) -> impl Iterator<Item = (FootprintId, &Footprint)> {
        let rows = self.rows.iter().enumerate().filter(|(_, row)| !row.groups.is_empty());
        rows.map(|(index, row)| (FootprintId::new(index), row))
    }

    pub fn get(&self, id: FootprintId) -> &Footprint {
        &self.rows[id.index()]
    }

    pub fn get_mut(&mut self, id: FootprintId) -> &mut Footprint {
        &mut self.rows[id.index()]
    }
}

fn words(group: &Group) -> Words {
    let asks = group.asks.iter().map(|ask| ask.id).collect();
    (asks, group.bound(), group.quota_of().cloned())
}
