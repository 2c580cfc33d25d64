//! What a running system learns from its own events about speeds, and about the time that starts
//! and saves take.

use std::collections::BTreeMap;

use het_core::{
    BatchRange, DeviceClass, Event, HostResources, Lease, MeasuredNeeds, Micro, Millis, NodeId,
    Outcome, Phase, Progress, Stage, State, Time, Topology,
};
use het_perf::{ElasticClass, ElasticProfile, Gang, RateSource, Rates, Timed};

/// Steps a lease must have made since its start before its rate says anything.
const STEPS_MIN: u64 = 3;

/// Adds what an event shows. Called before it is applied.
pub(crate) fn from_event(rates: &mut Rates, state: &State, at: Time, event: &Event) {
    let found = |lease| state.leases().get(lease);
    match event {
        Event::Progressed { lease, progress } => {
            if let Some(lease) = found(lease) {
                from_measured(rates, state, lease, progress);
                from_needs(rates, state, lease, progress);
                from_step(rates, state, at, lease, progress);
            }
        }
        Event::StageEnded { lease, outcome: Outcome::Stopped } => {
            if let Some(lease) = found(lease) {
                from_stop(rates, state, at, lease);
            }
        }
        _ => {}
    }
}

/// What a rank needs beside devices, as its engine saw it.
fn from_needs(rates: &mut Rates, state: &State, lease: &Lease, progress: &Progress) {
    let (job, spec, _) = state.stage(lease.stage);
    let Some(MeasuredNeeds { demand, inputs }) = progress.needs.as_deref() else { return };
    if *demand != HostResources::NONE {
        rates.observe_demand(&spec.profile, *demand);
    }
    if !inputs.is_empty() {
        // An agent may say anything.
        let short = inputs.iter().filter(|path| path.len() <= MeasuredNeeds::INPUT_BYTES_MAX);
        let inputs = short.take(MeasuredNeeds::INPUTS_MAX).cloned().collect();
        rates.observe_inputs(&job.spec.tenant, &spec.profile, inputs);
    }
}

/// The first step that a lease reports says how long it took to begin. Steps that it has made by
/// then are no part of that; more than one only where their rate is known.
fn from_start(rates: &mut Rates, state: &State, at: Time, lease: &Lease, steps: u64) {
    let (_, spec, _) = state.stage(lease.stage);
    let Some(gang) = gang(state, lease) else { return };
    let working = match rates.rate(&spec.profile, &spec.planned, gang) {
        Some((rate, RateSource::Table | RateSource::History)) => steps as f64 / rate,
        _ if steps <= 1 => 0.0,
        _ => return,
    };
    let took = at.since(lease.since).as_seconds() - working;
    let took = Millis((took.max(0.0) * 1e3) as u64);
    rates.observe_time(&spec.profile, Timed::Load, gang.units, took);
}

/// A gang that saved after the notice shows how long that takes.
fn from_stop(rates: &mut Rates, state: &State, at: Time, lease: &Lease) {
    let (_, spec, stage) = state.stage(lease.stage);
    let noticed = stage.stops.last().filter(|stop| stop.at >= lease.since).map(|stop| stop.at);
    let (Some(noticed), Phase::Stopping { .. }) = (noticed, lease.phase) else { return };
    if stage.checkpoint_at.is_some_and(|saved| saved >= noticed) {
        let took = at.since(noticed);
        rates.observe_time(&spec.profile, Timed::Save, lease.placement.units(), took);
    }
}

fn gang<'a>(state: &'a State, lease: &Lease) -> Option<Gang<'a>> {
    let device = lease.placement.devices().next()?;
    let class = state.topology().class_of(device.device);
    let locality = state.locality(state.stage(lease.stage).1, &lease.placement);
    Some(Gang { class, units: lease.placement.units(), locality })
}

/// What the program measured of a step itself. That of one whose batch is fixed says nothing that
/// its steps do not say.
fn from_measured(rates: &mut Rates, state: &State, lease: &Lease, progress: &Progress) {
    let Some(measured) = progress.measured.as_deref() else { return };
    let (Some(gang), (_, spec, _)) = (gang(state, lease), state.stage(lease.stage)) else { return };
    if is_slowed(state, lease) {
        return;
    }
    let launch = &spec.alternatives[lease.placement.alternative].launch;
    if let Some(range) = launch.elastic.and_then(|elastic| elastic.batch) {
        let topology = state.topology();
        let covers = |known: &ElasticProfile| {
            let has = |class: &DeviceClass| known.classes.contains_key(&class.id);
            known.batches() == range && topology.classes.iter().all(has)
        };
        if !rates.elastic(&spec.profile).is_some_and(covers) {
            rates.declare_elastic(&spec.profile, elastic_profile(topology, range));
        }
    }
    let shape = (lease.placement.nodes(), gang.units);
    rates.observe_step(&spec.profile, &gang.class.id, shape, measured);
}

/// What somebody else slows down says nothing about the program.
fn is_slowed(state: &State, lease: &Lease) -> bool {
    state.pace_for(lease) < Micro::ONE || state.stage_record(lease.stage).step_rate.slow > 0
}

/// A job of such batches on the classes at hand: each takes as many samples at once as was seen,
/// and is as fast as its peak says until it was seen.
fn elastic_profile(topology: &Topology, range: BatchRange) -> ElasticProfile {
    let mut on_nodes: BTreeMap<(usize, NodeId), u32> = BTreeMap::new();
    for device in &topology.devices {
        *on_nodes.entry((device.class, device.node)).or_default() += device.capacity.whole_units();
    }
    let classes = topology.classes.iter().enumerate().map(|(row, class)| {
        let on_nodes = on_nodes.range((row, NodeId(0))..=(row, NodeId(u32::MAX)));
        let class_on = ElasticClass {
            local_min: 1,
            local_max: 1,
            devices_per_node: on_nodes.map(|(_, units)| *units).max().unwrap_or(1),
            relative_speed: class.peak_gflops.map_or(1.0, |peak| peak.max(1) as f64),
        };
        (class.id.clone(), class_on)
    });
    ElasticProfile { batch_initial: range.min, batch_max: range.max, classes: classes.collect() }
}

/// The rate of the steps since the first that was reported. That one itself tells when work began,
/// and only where there were several before it, a rate.
fn from_step(rates: &mut Rates, state: &State, at: Time, lease: &Lease, progress: &Progress) {
    let (Some(step), Phase::Running { since }) = (progress.step, lease.phase) else { return };
    let (_, spec, stage) = state.stage(lease.stage);
    let (from, begun) = match stage.attempt.first_report {
        Some((at, step)) => (step, at),
        None => (resumed_at(stage, lease), since),
    };
    let steps = step.saturating_sub(from);
    if stage.attempt.first_report.is_none() {
        from_start(rates, state, at, lease, steps);
    }
    let seconds = at.since(begun).as_seconds();
    let Some(gang) = gang(state, lease) else { return };
    if steps >= STEPS_MIN && seconds > 0.0 && !is_slowed(state, lease) {
        rates.observe(&spec.profile, &spec.planned, gang, steps as f64 / seconds);
    }
}

/// The step from which a lease went on.
fn resumed_at(stage: &Stage, lease: &Lease) -> u64 {
    // It may have begun in the millisecond in which the one before it had saved.
    let before = stage.checkpoint_at.is_none_or(|saved| saved <= lease.since);
    stage.checkpoint.as_ref().filter(|_| before).map_or(0, |checkpoint| checkpoint.step)
}
