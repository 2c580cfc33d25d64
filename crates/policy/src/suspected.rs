//! Devices on which programs hang get only work that can afford it, and only what nothing else is
//! free for: stages that save, short ones, and those that no other device will do for.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use het_core::{DeviceId, Placement, Reason, StageKey};

use crate::placement::place_among;
use crate::speed::ends_soon;
use crate::tenants::Tenants;
use crate::{Decision, Pool, View, Want, place};

/// Waiting stages that are looked at.
const LOOKS_MAX: usize = 256;

/// What stages that a decision leaves waiting get of suspected devices, by priority and by the time
/// that they waited.
pub fn on_suspected(view: &View<'_>, decision: &Decision) -> Vec<(StageKey, Want)> {
    let state = view.state;
    let suspected: BTreeSet<DeviceId> = state.suspected_devices().map(|(id, _)| id).collect();
    if suspected.is_empty() {
        return Vec::new();
    }
    let mut pool = Pool::of(state).with_suspected();
    let mut tenants = Tenants::of(state);
    let mut served: BTreeSet<StageKey> = state.claims().keys().copied().collect();
    for (key, want) in &decision.wants {
        if let Want::Run { placement, .. } = want
            && served.insert(*key)
        {
            pool.take(placement);
            let tenant = &state.stage(*key).0.spec.tenant;
            tenants.iter_mut().for_each(|tenants| tenants.take(tenant, placement));
        }
    }
    let mut waiting: Vec<StageKey> = state.waiting().filter(|key| !served.contains(key)).collect();
    waiting.sort_by_key(|key| {
        let job = state.stage(*key).0;
        (Reverse(job.priority()), job.waiting_since(key.stage), *key)
    });
    let mut given = Vec::new();
    for key in waiting.into_iter().take(LOOKS_MAX) {
        let (job, spec, _) = state.stage(key);
        let tenant = &job.spec.tenant;
        let may_have = |placement: &Placement| {
            let refusal =
                |it: &Tenants<'_>| it.refusal(tenant, spec.preemptible, placement).is_some();
            !tenants.as_ref().is_some_and(refusal)
        };
        let found = (0..spec.alternatives.len()).find_map(|index| {
            let accepted = pool.accepted(&spec.alternatives[index].selector, None);
            let placement = place_among(&pool, spec, index, &accepted.among(&suspected)).ok()?;
            (may_have(&placement) && can_afford(view, key, &placement)).then_some(placement)
        });
        let Some(placement) = found else { continue };
        pool.take(&placement);
        tenants.iter_mut().for_each(|tenants| tenants.take(tenant, &placement));
        let (stage, word) = (state.stage_record(key), &spec.alternatives[placement.alternative]);
        let mut reasons = vec![Reason::OnSuspected { word: word.selector.word.clone() }];
        reasons.extend(stage.checkpoint.as_ref().map(|c| Reason::Resumed { step: c.step }));
        given.push((key, Want::Run { placement, reasons }));
    }
    given
}

/// Whether a stage loses little if its program hangs there, or has no other device.
fn can_afford(view: &View<'_>, key: StageKey, placement: &Placement) -> bool {
    let (_, spec, _) = view.state.stage(key);
    let has_other = || {
        let mut trusted = Pool::in_service(view.state);
        (0..spec.alternatives.len()).any(|index| place(&mut trusted, spec, index).is_ok())
    };
    spec.saves(placement.alternative) || ends_soon(view, key, placement) || !has_other()
}
