//! Law 9: no stage waits while devices idle that would do for it.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Companions, Device, DeviceId, Domain, NodeId, Reason, StageKey};

use super::{HANGS_SUSPECTED, Oracle, Strictness};

impl Oracle {
    /// Law 9: call when a turn is over. A stage that fits beside everybody and was not told why
    /// waiting is better may not be found idle twice in a row.
    pub fn turn_is_over(&mut self) {
        if self.strictness == Strictness::EveryPolicy {
            return;
        }
        let idle: BTreeSet<StageKey> = self.waiting().filter(|key| self.fits_now(*key)).collect();
        for key in idle.intersection(&self.idle_before.clone()) {
            self.blame(9, format!("{key} fits but waits"));
        }
        self.idle_before = idle;
    }

    fn fits_now(&self, key: StageKey) -> bool {
        let job = &self.jobs[&key.job];
        let stage = &job.stages[key.stage.index()];
        let deliberate = stage.reasons.iter().any(Reason::prefers_waiting);
        if deliberate || self.claims.contains_key(&key) {
            return false;
        }
        let spec = job.spec.stage(key.stage);
        if spec.companions != Companions::default() {
            return false;
        }
        spec.alternatives.iter().any(|alternative| {
            let mut by_node: BTreeMap<(String, NodeId), u32> = BTreeMap::new();
            let mut taken = self.taken.clone();
            for device in self.topology.device_ids() {
                // What cannot save may wait for devices on which programs do not hang.
                let is_risk = alternative.launch.checkpoint.is_none()
                    && self.hangs.get(&device).is_some_and(|hangs| *hangs >= HANGS_SUSPECTED);
                if !is_risk && alternative.selector.accepts(&self.topology, device) {
                    let Device { node, class, .. } = *self.topology.device(device);
                    let row = self.topology.node(node);
                    let domain = match spec.within {
                        Domain::Any => String::new(),
                        Domain::Node => row.name.to_string(),
                        Domain::Rack => row.rack.to_string(),
                        Domain::Pod => row.pod.to_string(),
                    };
                    let free = self.free_units(device);
                    // Nobody knows which devices others use: any that are free may be.
                    let mut none = 0;
                    let others = taken.get_mut(&(node, class)).unwrap_or(&mut none);
                    let theirs = others.div_ceil(10_000).min(u64::from(free));
                    *others = others.saturating_sub(theirs * 10_000);
                    *by_node.entry((domain, node)).or_default() += free - theirs as u32;
                }
            }
            let mut by_domain: BTreeMap<String, u32> = BTreeMap::new();
            for ((domain, _), units) in by_node {
                *by_domain.entry(domain).or_default() += spec.ranks.whole(units);
            }
            by_domain.values().any(|&units| units >= alternative.count)
        })
    }

    fn free_units(&self, device: DeviceId) -> u32 {
        if self.is_down(device) {
            return 0;
        }
        let held = self.holds.values().map(|hold| &hold.placement);
        let busy: u32 = held
            .chain(self.claims.values())
            .flat_map(|placement| placement.grants())
            .filter(|grant| grant.device == device)
            .map(|grant| grant.share.0)
            .sum();
        self.topology.device(device).capacity.0.saturating_sub(busy) / 10_000
    }
}
