//! What a running system learns about speed from its own events.

use het_core::{Event, Phase, State, Time};
use het_perf::{Gang, Rates};

/// Steps a lease must have made since its start before its rate says anything.
const STEPS_MIN: u64 = 3;

/// Adds the rate that a lease shows to the history. Called before the event is applied.
pub(crate) fn from_event(rates: &mut Rates, state: &State, at: Time, event: &Event) {
    let Event::Progressed { lease, progress } = event else { return };
    let Some(lease) = state.leases().get(lease) else { return };
    let measured = progress.measured.as_deref();
    if let (Some(measured), Some(device)) = (measured, lease.placement.devices().next()) {
        let profile = &state.stage(lease.stage).1.profile;
        let class = &state.topology().class_of(device.device).id;
        let shape = (lease.placement.nodes(), lease.placement.units());
        rates.observe_step(profile, class, shape, measured);
    }
    let Some(step) = progress.step else { return };
    let Phase::Running { since } = lease.phase else { return };
    let (_, spec, stage) = state.stage(lease.stage);
    let resumed_at = stage.checkpoint.as_ref().map_or(0, |checkpoint| {
        if stage.checkpoint_at.is_none_or(|saved| saved < lease.since) {
            checkpoint.step
        } else {
            0
        }
    });
    let steps = step.saturating_sub(resumed_at);
    let seconds = at.since(since).as_seconds();
    let Some(device) = lease.placement.devices().next() else { return };
    if steps >= STEPS_MIN && seconds > 0.0 {
        let class = state.topology().class_of(device.device);
        let within = spec.spread(state.topology(), &lease.placement);
        let gang = Gang { class, units: lease.placement.units(), within };
        rates.observe(&spec.profile, &spec.planned, gang, steps as f64 / seconds);
    }
}
