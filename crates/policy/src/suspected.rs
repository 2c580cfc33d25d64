//! Devices on which programs hang get only work that can afford it, and only what nothing else is
//! free for: stages that save, short ones, and those that no other device will do for.

use std::collections::BTreeSet;

use het_core::{DeviceId, Placement, Reason, StageKey};

use crate::placement::place_among;
use crate::speed::ends_soon;
use crate::{Decision, Pool, Remainder, View, Want, place};

/// What stages that a decision leaves waiting get of suspected devices, by priority and by the time
/// that they waited.
pub fn on_suspected(view: &View<'_>, decision: &Decision) -> Vec<(StageKey, Want)> {
    let state = view.state;
    let suspected: BTreeSet<DeviceId> = state.suspected_devices().map(|(id, _)| id).collect();
    if suspected.is_empty() {
        return Vec::new();
    }
    let mut remainder = Remainder::of(Pool::of(state).with_suspected(), decision);
    let mut trusted = None;
    let mut given = Vec::new();
    if !suspected.iter().any(|id| remainder.pool.free(*id).whole_units() > 0) {
        return given;
    }
    for key in remainder.waiting(|_| true) {
        let (job, spec, stage) = state.stage(key);
        let found = (0..spec.alternatives.len()).find_map(|index| {
            let accepted = remainder.pool.accepted(&spec.alternatives[index].selector, None);
            // A gang for which there are too few may have others besides.
            let alone = place_among(&remainder.pool, spec, index, &accepted.among(&suspected));
            let placement =
                alone.or_else(|_| place_among(&remainder.pool, spec, index, &accepted)).ok()?;
            let refusal = remainder.tenants.as_ref().and_then(|tenants| {
                tenants.refusal(&job.spec.tenant, spec.preemptible, &placement)
            });
            (refusal.is_none() && can_afford(view, key, &placement, &mut trusted))
                .then_some(placement)
        });
        let Some(placement) = found else { continue };
        remainder.give(key, &placement);
        let word = spec.alternatives[placement.alternative].selector.word.clone();
        let mut reasons = vec![Reason::OnSuspected { word }];
        reasons.extend(stage.checkpoint.as_ref().map(|c| Reason::Resumed { step: c.step }));
        given.push((key, Want::Run { placement, reasons }));
    }
    given
}

/// Whether a stage loses little if its program hangs there, or could have nothing else of what is
/// in service: a pool that is counted when it is first asked for.
fn can_afford<'a>(
    view: &View<'a>,
    key: StageKey,
    placement: &Placement,
    in_service: &mut Option<Pool<'a>>,
) -> bool {
    let (_, spec, _) = view.state.stage(key);
    if spec.saves(placement.alternative) || ends_soon(view, key, placement) {
        return true;
    }
    let trusted = in_service.get_or_insert_with(|| Pool::in_service(view.state));
    (0..spec.alternatives.len()).all(|index| place(trusted, spec, index).is_err())
}
