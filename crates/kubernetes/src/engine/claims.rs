//! Claims on devices: which there are, whom they are of, and what they take of nodes.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Name, Placement, Topology};

use super::Kubernetes;
use super::listing::Listing;
use crate::device_table::DeviceTable;
use crate::dra::{
    ClaimAsk, ClaimRow, Claimable, DeviceBook, Dra, DraKind, DraNews, Place, PoolChange,
};
use crate::names::ObjectKey;
use crate::objects::PodRow;
use crate::pods::{Claim, resource_of, slot_of};
use crate::requests::Unsuitable;
use crate::resources::Requests;

/// What is known of claims and of what they are on.
#[derive(Debug)]
pub(super) struct Claims {
    dra: Dra,
    book: DeviceBook,
    slices: Listing<Name>,
    classes: Listing<String>,
    claims: Listing<ObjectKey>,
    taint_rules: Listing<String>,
    /// Kinds of which nobody says which there are: without claims no device is known to be free.
    unknown: BTreeSet<DraKind>,
    /// By uid: pods that have claims.
    pods: BTreeMap<String, ObjectKey>,
    pods_of: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    /// By uid: claims that are given back, and the version of their object by then.
    returning: BTreeMap<String, u64>,
    /// By claim: what of a node is taken by it, where that is not known otherwise.
    counted: BTreeMap<ObjectKey, (Name, Requests)>,
}

impl Claims {
    /// Of a scheduler that allocates them, or of one that does not and hears of none.
    pub fn new(table: DeviceTable, allocates: bool) -> Self {
        fn listing<K>(allocates: bool) -> Listing<K> {
            if allocates { Listing::Never } else { Listing::Done }
        }
        Self {
            dra: Dra::new(table),
            book: DeviceBook::default(),
            slices: listing(allocates),
            classes: listing(allocates),
            claims: listing(allocates),
            taint_rules: listing(allocates),
            unknown: BTreeSet::new(),
            pods: BTreeMap::new(),
            pods_of: BTreeMap::new(),
            returning: BTreeMap::new(),
            counted: BTreeMap::new(),
        }
    }

    pub fn dra(&self) -> &Dra {
        &self.dra
    }

    /// What writers choose devices by.
    pub fn book(&self) -> DeviceBook {
        self.book.clone()
    }

    pub fn are_listed(&self) -> bool {
        let are_known = matches!(
            (&self.slices, &self.classes, &self.claims),
            (Listing::Done, Listing::Done, Listing::Done)
        );
        are_known && matches!(self.taint_rules, Listing::Done)
    }

    /// The devices of a node that may be allocated.
    fn offered(&self, node: &Name) -> impl Iterator<Item = &Claimable> {
        let is_known = !self.unknown.contains(&DraKind::Claims);
        self.dra.of_node(node).filter(move |_| is_known)
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
            return Err(Unsuitable::Incomplete(format!(
                "its resource claim{name} is not there yet"
            )));
        };
        if claim.allocated.is_empty() {
            return Ok(claim);
        }
        match self.is_left(claim, row) {
            true => {
                let what = format!("its resource claim `{}` is given back", claim.key.name);
                Err(Unsuitable::Incomplete(what))
            }
            false => {
                let what = "a resource claim that is allocated already";
                Err(Unsuitable::NotSupported(what.to_owned()))
            }
        }
    }

    /// Whether a claim was allocated for a pod that got no node after all.
    fn is_left(&self, claim: &ClaimRow, row: &PodRow) -> bool {
        let mut holders = claim.reserved_for.iter();
        claim.is_ours && holders.len() == 1 && holders.all(|uid| *uid == row.uid)
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
            Unsuitable::NoNode(why) | Unsuitable::Incomplete(why) => why,
            Unsuitable::NotSupported(what) => format!("this scheduler does not consider {what}"),
        })?;
        let given = claim.asks.as_ref().ok().and_then(|ask| {
            let rank = placement.ranks.first()?;
            let resource = resource_of(topology.device(rank.grants.first()?.device));
            let node = topology.node(rank.node).name.clone();
            let place = Place { node, resource: resource.into() };
            let slots = rank.grants.iter().map(|grant| slot_of(topology.device(grant.device)));
            let wish = self.dra.wish(place, &slots.collect::<Vec<_>>());
            Claim::of(claim, ask, (&self.dra, &wish))
        });
        given
            .map(Some)
            .ok_or_else(|| "its resource claim asks for something else by now".to_owned())
    }
}

impl Kubernetes {
    pub(super) fn see_dra(&mut self, news: DraNews) {
        let claims = &mut self.claims;
        match news {
            DraNews::Begin(kind) => self.begin_list(kind),
            DraNews::End(kind) => {
                let is_new = claims.unknown.remove(&kind);
                self.end_list(kind);
                if is_new {
                    let nodes = self.claims.dra.nodes().cloned().collect();
                    self.devices_changed(PoolChange { nodes, ..PoolChange::default() });
                }
            }
            DraNews::None(kind) => {
                self.claims.unknown.insert(kind);
                self.begin_list(kind);
                self.end_list(kind);
            }
            DraNews::Slice(row) => {
                claims.slices.name(row.name.clone());
                let change = claims.dra.see_slice(row);
                self.devices_changed(change);
            }
            DraNews::SliceGone(name) => {
                let change = claims.dra.see_slice_gone(&name);
                self.devices_changed(change);
            }
            DraNews::TaintRule(name, rule) => {
                claims.taint_rules.name(name.clone());
                let change = claims.dra.see_taint_rule(name, rule);
                self.devices_changed(change);
            }
            DraNews::Class(name, row) => {
                claims.classes.name(name.clone());
                if claims.dra.class(&name) != Some(&row) {
                    claims.dra.see_class(name, row);
                    self.rules_changed();
                }
            }
            DraNews::ClassGone(name) => {
                claims.dra.see_class_gone(&name);
                self.rules_changed();
            }
            DraNews::Claim(row) => {
                claims.claims.name(row.key.clone());
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
            DraKind::TaintRules => claims.taint_rules = Listing::UnderWay(BTreeSet::new()),
        }
    }

    /// Those that a list did not name are gone.
    fn end_list(&mut self, kind: DraKind) {
        let claims = &mut self.claims;
        let gone: Vec<DraNews> = match kind {
            DraKind::Slices => {
                let gone = unnamed(claims.slices.end(), claims.dra.slice_names());
                gone.map(DraNews::SliceGone).collect()
            }
            DraKind::Classes => {
                let gone = unnamed(claims.classes.end(), claims.dra.class_names());
                gone.map(DraNews::ClassGone).collect()
            }
            DraKind::Claims => {
                let gone = unnamed(claims.claims.end(), claims.dra.claim_keys());
                gone.map(DraNews::ClaimGone).collect()
            }
            DraKind::TaintRules => {
                let gone = unnamed(claims.taint_rules.end(), claims.dra.taint_rule_names());
                gone.map(|name| DraNews::TaintRule(name, None)).collect()
            }
        };
        gone.into_iter().for_each(|gone| self.see_dra(gone));
        self.adopt_leases();
    }

    fn devices_changed(&mut self, PoolChange { nodes, claims }: PoolChange) {
        for node in &nodes {
            self.claims.book.offer(node, self.claims.offered(node));
            if let Some(inventory) = &mut self.inventory {
                inventory.see_claimable(node, self.claims.offered(node));
            }
        }
        // What is allocated may be on a node only now.
        claims.iter().for_each(|key| self.count_claim(key));
    }

    /// Other devices may do now for whoever asks.
    fn rules_changed(&mut self) {
        self.inventory.iter_mut().for_each(super::Inventory::revise);
    }

    fn see_claim(&mut self, row: ClaimRow) {
        let (key, uid) = (row.key.clone(), row.uid.clone());
        self.claims.book.allocated(&uid, row.version, &row.allocated);
        if row.allocated.is_empty() {
            self.claims.returning.remove(&uid);
        }
        let before = self.claims.dra.see_claim(row);
        if let Some(before) = before.filter(|before| before.uid != uid) {
            self.claim_gone(&before.uid);
        }
        self.count_claim(&key);
        self.see_requests_of(&key);
    }

    fn see_claim_gone(&mut self, key: &ObjectKey) {
        if let Some(row) = self.claims.dra.see_claim_gone(key) {
            self.claim_gone(&row.uid);
        }
        self.count_claim(key);
        self.see_requests_of(key);
    }

    fn claim_gone(&mut self, uid: &str) {
        self.claims.book.gone(uid);
        self.claims.returning.remove(uid);
    }

    /// Looks again at what pods ask for that have this claim.
    fn see_requests_of(&mut self, claim: &ObjectKey) {
        let pods = self.claims.pods_of.get(claim).into_iter().flatten();
        let rows = pods.filter_map(|key| self.pods.get(key)).map(|(row, _)| row);
        let waiting: Vec<PodRow> = rows.filter(|row| row.needs.is_some()).cloned().collect();
        waiting.iter().for_each(|row| self.see_request(row));
    }

    /// A pod with claims came, changed, or went, or its lease did.
    pub(super) fn count_claims_of(&mut self, row: &PodRow) {
        let is_there = self.pods.get(&row.key).is_some_and(|(known, _)| known.uid == row.uid);
        for name in row.claims.iter().flatten() {
            let namespace = row.key.namespace.clone();
            let claim = ObjectKey { namespace, name: name.clone() };
            let claims = &mut self.claims;
            if is_there {
                claims.pods.insert(row.uid.clone(), row.key.clone());
                claims.pods_of.entry(claim.clone()).or_default().insert(row.key.clone());
            } else {
                claims.pods.remove(&row.uid);
                if let Some(pods) = claims.pods_of.get_mut(&claim) {
                    pods.remove(&row.key);
                    if pods.is_empty() {
                        claims.pods_of.remove(&claim);
                    }
                }
            }
            self.count_claim(&claim);
        }
    }

    /// What was allocated for a pod that got no node after all is given back before it asks again.
    pub(super) fn return_claim_of(&mut self, row: &PodRow) {
        let Some(name) = row.claims.first().and_then(Option::as_ref) else { return };
        let key = ObjectKey { namespace: row.key.namespace.clone(), name: name.clone() };
        let claims = &mut self.claims;
        let Some(claim) = claims.dra.claim(&key) else { return };
        let is_left = !claim.allocated.is_empty() && claims.is_left(claim, row);
        let (uid, version) = (claim.uid.clone(), claim.version);
        if is_left && claims.returning.insert(uid, version) != Some(version) {
            let pod = (row.key.clone(), row.uid.clone());
            self.cluster.spawn(self.writer.clone().return_claim(pod, name.clone()));
        }
    }

    /// What a claim has of a node is taken, but for those of live leases, of which the loop knows
    /// what they have. Devices of pods that have ended are free once somebody gives them back.
    fn count_claim(&mut self, key: &ObjectKey) {
        let row = self.claims.dra.claim(key).filter(|row| {
            let pods = row.reserved_for.iter().filter_map(|uid| self.claims.pods.get(uid));
            let mut rows = pods.filter_map(|pod| self.pods.get(pod));
            !rows.any(|(row, _)| self.own_rank(row).is_some())
        });
        let mut after: Option<(Name, Requests)> = None;
        for device in row.into_iter().flat_map(|row| &row.allocated) {
            let Some(place) = self.claims.dra.place(device) else { continue };
            let (_, requests) = after.get_or_insert_with(|| (place.node.clone(), Requests::new()));
            *requests.entry(place.resource.to_string()).or_default() += 1_000;
        }
        let Some(inventory) = &mut self.inventory else { return };
        let before = match &after {
            Some(after) => self.claims.counted.insert(key.clone(), after.clone()),
            None => self.claims.counted.remove(key),
        };
        if before == after {
            return;
        }
        if let Some((node, before)) = before {
            inventory.others_change(&node, Some(&before), None);
        }
        if let Some((node, after)) = after {
            inventory.others_change(&node, None, Some(&after));
        }
    }
}

/// Those that a list did not name, where it was one.
fn unnamed<'a, K: Ord + Clone + 'a>(
    named: Option<BTreeSet<K>>,
    known: impl Iterator<Item = &'a K>,
) -> impl Iterator<Item = K> {
    let gone: Vec<K> = match named {
        Some(named) => known.filter(|name| !named.contains(*name)).cloned().collect(),
        None => Vec::new(),
    };
    gone.into_iter()
}
