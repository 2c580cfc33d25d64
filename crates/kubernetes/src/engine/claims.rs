//! Claims on devices: which there are, whom they are of, and what they take of nodes.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Name, Placement, Topology};

use super::listing::Listing;
use super::{Kubernetes, Whose};
use crate::device_table::DeviceTable;
use crate::dra::{ClaimAsk, ClaimRow, DeviceBook, Dra, DraKind, DraNews, Place};
use crate::inventory::Requests;
use crate::names::ObjectKey;
use crate::objects::PodRow;
use crate::pods::{Claim, resource_of};
use crate::requests::Unsuitable;

/// What is known of claims and of what they are on.
#[derive(Debug)]
pub(super) struct Claims {
    dra: Dra,
    book: DeviceBook,
    slices: Listing<Name>,
    classes: Listing<String>,
    claims: Listing<ObjectKey>,
    /// By uid: pods that have claims.
    pods: BTreeMap<String, ObjectKey>,
    /// By claim: what of a node is taken by it, where that is not known otherwise.
    counted: BTreeMap<ObjectKey, (Name, Requests)>,
}

impl Claims {
    /// Of a scheduler that allocates them, or of one that does not and hears of none.
    pub fn new(table: DeviceTable, allocates: bool) -> Self {
        let (dra, book) = (Dra::new(table), DeviceBook::default());
        let (pods, counted) = (BTreeMap::new(), BTreeMap::new());
        let (slices, classes, claims) = match allocates {
            true => (Listing::Never, Listing::Never, Listing::Never),
            false => (Listing::Done, Listing::Done, Listing::Done),
        };
        Self { dra, book, slices, classes, claims, pods, counted }
    }

    pub fn dra(&self) -> &Dra {
        &self.dra
    }

    /// What writers choose devices by.
    pub fn book(&self) -> DeviceBook {
        self.book.clone()
    }

    pub fn are_listed(&self) -> bool {
        matches!(
            (&self.slices, &self.classes, &self.claims),
            (Listing::Done, Listing::Done, Listing::Done)
        )
    }

    /// What the claim of a pod asks for, or why nothing would do; `None` of a pod without.
    pub fn ask_of(&self, row: &PodRow) -> Option<Result<&ClaimAsk, Unsuitable>> {
        let name = row.claims.first()?;
        Some(self.claim_of(row, name.as_deref()).and_then(|claim| {
            claim.asks.as_ref().map_err(|what| Unsuitable::NotSupported(what.clone()))
        }))
    }

    fn claim_of(&self, row: &PodRow, name: Option<&str>) -> Result<&ClaimRow, Unsuitable> {
        let named = name
            .map(|name| ObjectKey { namespace: row.key.namespace.clone(), name: name.to_owned() });
        let claim = named.as_ref().and_then(|key| self.dra.claim(key));
        let Some(claim) = claim else {
            let name = named.map(|key| format!(" `{}`", key.name)).unwrap_or_default();
            return Err(Unsuitable::Awaits(format!("its resource claim{name} is not there yet")));
        };
        let is_own = claim.reserved_for.iter().all(|uid| *uid == row.uid);
        // What was allocated for this pod and is not used is allocated anew.
        match claim.allocated.is_empty() || claim.is_ours && is_own {
            true => Ok(claim),
            false => {
                let what = "a resource claim that is allocated already";
                Err(Unsuitable::NotSupported(what.to_owned()))
            }
        }
    }

    /// How the claim of a pod gets what was given; `None` of a pod without.
    ///
    /// # Errors
    /// When it will not do for the claim: one sentence for people.
    pub fn given(
        &self,
        row: &PodRow,
        topology: &Topology,
        placement: &Placement,
    ) -> Result<Option<Claim>, String> {
        let Some(name) = row.claims.first() else { return Ok(None) };
        let claim = self.claim_of(row, name.as_deref()).map_err(|why| match why {
            Unsuitable::NoNode(why) | Unsuitable::Awaits(why) => why,
            Unsuitable::NotSupported(what) => format!("this scheduler does not consider {what}"),
        })?;
        let given = claim.asks.as_ref().ok().and_then(|ask| {
            let rank = placement.ranks.first()?;
            let resource = resource_of(topology.device(rank.grants.first()?.device));
            let node = topology.node(rank.node).name.clone();
            let place = Place { node, resource: resource.into() };
            let count = rank.grants.iter().map(|grant| grant.share.whole_units()).sum();
            Claim::of(claim, ask, (&self.dra, &place, count))
        });
        given
            .map(Some)
            .ok_or_else(|| "its resource claim asks for something else by now".to_owned())
    }
}

impl Kubernetes {
    pub(super) fn see_dra(&mut self, news: DraNews) {
        match news {
            DraNews::Begin(kind) => self.begin_list(kind),
            DraNews::End(kind) => self.end_list(kind),
            DraNews::Slice(row) => {
                self.claims.slices.name(row.name.clone());
                let nodes = self.claims.dra.see_slice(row);
                self.devices_changed(&nodes);
            }
            DraNews::SliceGone(name) => {
                let nodes = self.claims.dra.see_slice_gone(&name);
                self.devices_changed(&nodes);
            }
            DraNews::Class(name, row) => {
                self.claims.classes.name(name.clone());
                if self.claims.dra.class(&name) != Some(&row) {
                    self.claims.dra.see_class(name, row);
                    self.rules_changed();
                }
            }
            DraNews::ClassGone(name) => {
                self.claims.dra.see_class_gone(&name);
                self.rules_changed();
            }
            DraNews::Claim(row) => {
                self.claims.claims.name(row.key.clone());
                self.see_claim(row);
            }
            DraNews::ClaimGone(key) => self.see_claim_gone(&key),
        }
    }

    fn begin_list(&mut self, kind: DraKind) {
        let claims = &mut self.claims;
        match kind {
            DraKind::Slices => claims.slices = Listing::UnderWay(BTreeSet::new()),
            DraKind::Classes => claims.classes = Listing::UnderWay(BTreeSet::new()),
            DraKind::Claims => claims.claims = Listing::UnderWay(BTreeSet::new()),
        }
    }

    /// Those that a list did not name are gone.
    fn end_list(&mut self, kind: DraKind) {
        let claims = &mut self.claims;
        match kind {
            DraKind::Slices => {
                let Some(named) = claims.slices.end() else { return };
                let gone = claims.dra.slice_names().filter(|name| !named.contains(*name));
                let gone: Vec<Name> = gone.cloned().collect();
                gone.into_iter().for_each(|name| self.see_dra(DraNews::SliceGone(name)));
            }
            DraKind::Classes => {
                let Some(named) = claims.classes.end() else { return };
                let gone = claims.dra.class_names().filter(|name| !named.contains(*name));
                let gone: Vec<String> = gone.cloned().collect();
                gone.into_iter().for_each(|name| self.see_dra(DraNews::ClassGone(name)));
            }
            DraKind::Claims => {
                let Some(named) = claims.claims.end() else { return };
                let gone = claims.dra.claim_keys().filter(|key| !named.contains(*key));
                let gone: Vec<ObjectKey> = gone.cloned().collect();
                gone.into_iter().for_each(|key| self.see_dra(DraNews::ClaimGone(key)));
            }
        }
        self.take_up();
    }

    fn devices_changed(&mut self, nodes: &BTreeSet<Name>) {
        for node in nodes {
            self.claims.book.offer(node, self.claims.dra.of_node(node));
            if let Some(inventory) = &mut self.inventory {
                inventory.see_claimable(node, self.claims.dra.of_node(node));
            }
        }
        // What is allocated may be on a node only now.
        if !nodes.is_empty() {
            let allocated: Vec<ObjectKey> = self.claims.dra.allocated_keys().cloned().collect();
            allocated.iter().for_each(|key| self.count_claim(key));
        }
    }

    /// Other devices may do now for whoever asks.
    fn rules_changed(&mut self) {
        self.inventory.iter_mut().for_each(super::Inventory::revise);
    }

    fn see_claim(&mut self, row: ClaimRow) {
        let key = row.key.clone();
        self.claims.book.allocated(&row.uid, &row.allocated);
        let before = self.claims.dra.see_claim(row);
        if let Some(before) = before
            && self.claims.dra.claim(&key).is_some_and(|row| row.uid != before.uid)
        {
            self.claims.book.allocated(&before.uid, &[]);
        }
        self.count_claim(&key);
        self.see_requests_of(&key);
    }

    fn see_claim_gone(&mut self, key: &ObjectKey) {
        if let Some(row) = self.claims.dra.see_claim_gone(key) {
            self.claims.book.allocated(&row.uid, &[]);
            self.claims.book.forget(&row.uid);
        }
        self.count_claim(key);
        self.see_requests_of(key);
    }

    /// Looks again at what pods ask for that have this claim.
    fn see_requests_of(&mut self, claim: &ObjectKey) {
        let first = ObjectKey { namespace: claim.namespace.clone(), name: String::new() };
        let there = self.pods.range(first..);
        let there = there.take_while(|(key, _)| key.namespace == claim.namespace);
        let has_it = |row: &PodRow| row.claims.iter().flatten().any(|name| *name == claim.name);
        let waiting = there.filter(|(_, (row, _))| row.needs.is_some() && has_it(row));
        let waiting: Vec<PodRow> = waiting.map(|(_, (row, _))| row.clone()).collect();
        waiting.iter().for_each(|row| self.see_request(row));
    }

    /// A pod with claims came, changed, or went.
    pub(super) fn count_claims_of(&mut self, row: &PodRow) {
        if row.claims.is_empty() {
            return;
        }
        match self.pods.get(&row.key).is_some_and(|(known, _)| known.uid == row.uid) {
            true => drop(self.claims.pods.insert(row.uid.clone(), row.key.clone())),
            false => drop(self.claims.pods.remove(&row.uid)),
        }
        for name in row.claims.iter().flatten() {
            let namespace = row.key.namespace.clone();
            self.count_claim(&ObjectKey { namespace, name: name.clone() });
        }
    }

    /// What a claim of somebody else has of a node is taken. What pods of leases have is known by
    /// their leases.
    fn count_claim(&mut self, key: &ObjectKey) {
        let Some(inventory) = &mut self.inventory else { return };
        let claims = &mut self.claims;
        let pods = &self.pods;
        let whose = |uid: &String| Some(pods.get(claims.pods.get(uid)?)?.1);
        let row = claims.dra.claim(key).filter(|row| {
            let mut holders = row.reserved_for.iter().filter_map(whose).peekable();
            match holders.peek() {
                Some(_) => holders.all(|whose| whose == Whose::Others),
                // The pods are gone for which this scheduler allocated it, so it is given back.
                None => !row.is_ours,
            }
        });
        let mut after: Option<(Name, Requests)> = None;
        for place in row.into_iter().flat_map(|row| &row.allocated) {
            let Some(place) = claims.dra.place(place) else { continue };
            let (_, requests) = after.get_or_insert_with(|| (place.node.clone(), Requests::new()));
            *requests.entry(place.resource.to_string()).or_default() += 1_000;
        }
        let before = match &after {
            Some(after) => claims.counted.insert(key.clone(), after.clone()),
            None => claims.counted.remove(key),
        };
        match (before, after) {
            (Some((node, before)), Some((other, after))) if node == other => {
                inventory.others_change(&node, Some(&before), Some(&after));
            }
            (before, after) => {
                if let Some((node, before)) = before {
                    inventory.others_change(&node, Some(&before), None);
                }
                if let Some((node, after)) = after {
                    inventory.others_change(&node, None, Some(&after));
                }
            }
        }
    }
}
