//! What becomes of a claim until it is free.

use std::sync::Arc;

use het_core::{
    Action, ClassQuota, DeviceId, Event, Grant, HostResources, Millis, NodeId, Placement, Priority,
    Quota, Quotas, Rank, Share, State, StopCause, Time,
};
use het_perf::Rates;
use het_testkit::build::{alternative, committed, job, key, stage, started, submitted, topology};
use het_testkit::scene;

/// A tenant may have eight of eight accelerators. Its first job gives up six of them for five of
/// its second, and has not ended yet.
fn swapping() -> State {
    let mut state = State::new(Arc::new(topology(&[(&[("h100", 8)], 0)])));
    let limit = ClassQuota { entitled: None, limit: Some(Share::units(8)) };
    let of_team = Quota { classes: [("h100".into(), limit)].into(), ..Quota::new(1) };
    let quotas = Quotas { tenants: [("team".into(), of_team)].into(), ..Quotas::default() };
    state.apply(Time::ZERO, &Event::QuotasSet { quotas: Arc::new(quotas) });
    for (id, units) in [(1, 6), (2, 5)] {
        let train = stage("train", vec![alternative("h100", units)]);
        state.apply(Time::ZERO, &submitted(id, job(Priority::Normal, vec![train])));
    }
    let (lease, start) = started(&state, key(1, 0), &[0, 1, 2, 3, 4, 5]);
    state.apply(Time::ZERO, &start);
    state.apply(Time::ZERO, &Event::StageStarted { lease });
    let (cause, grace) = (StopCause::Quantum, Millis::seconds(30));
    let stop = Action::Stop { lease, cause, grace, cost: None };
    state.apply(Time::ZERO, &committed(&state, stop));
    let grants = (0..5).map(|id| Grant { device: DeviceId(id), share: Share::WHOLE });
    let rank = Rank {
        node: NodeId(0),
        grants: grants.collect(),
        companions: Vec::new(),
        host: HostResources::NONE,
    };
    let placement = Arc::new(Placement { alternative: 0, ranks: vec![rank] });
    let claim = Action::Claim { stage: key(2, 0), placement, reasons: Vec::new() };
    state.apply(Time::ZERO, &committed(&state, claim));
    state
}

#[test]
fn a_limit_counts_what_stops_as_gone_for_whoever_waits_for_it() {
    let plan = scene::proposed(&swapping(), &Rates::default(), "adaptive");
    assert_eq!(plan.actions, [], "the claim stands, and nothing starts beyond the limit");
}
