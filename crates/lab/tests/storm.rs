//! Very many, very short jobs of mixed sizes and priorities: the load that brings other schedulers
//! down. Every law holds after every event, and devices stay busy.

use std::sync::Arc;

use het_control::{Controller, MemoryLog, Retention};
use het_core::{JobId, Launch, Millis, Priority, StageIndex, StageKey, State, Time};
use het_engine::{Fake, Script};
use het_perf::Rates;
use het_policy::by_name;
use het_testkit::build;
use het_testkit::oracle::{Oracle, Strictness};

/// Jobs of a storm.
const JOBS: u64 = 100_000;
/// Jobs that wait or run at a time: as one ends, the next comes.
const OPEN: usize = 300;
const NODES: usize = 8;
const DEVICES: u32 = 8;

/// Sizes and priorities by number, all sixteen pairs in turn.
fn shape(number: u64) -> (u32, Priority) {
    (1 << (number % 4), Priority::ALL[(number / 4 % 4) as usize])
}

/// Plays a storm of jobs that last `span(number)` each; the virtual time it took.
fn storm(policy: &str, span: impl Fn(u64) -> Millis) -> Millis {
    let node: (&[(&str, u32)], u32) = (&[("gpu", DEVICES)], 16);
    let topology = Arc::new(build::topology(&[node; NODES]));
    let key = |number| StageKey { job: JobId(number), stage: StageIndex(0) };
    let scripts = (1..=JOBS).map(|number| (key(number), Script::Finish(span(number))));
    let policy = by_name(policy).expect("the table has it");
    let state = State::new(Arc::clone(&topology));
    let mut oracle = Oracle::new(topology, Strictness::EveryPolicy);
    let fake = Fake::new(scripts);
    let mut control = Controller::new(state, Rates::default(), policy, fake, MemoryLog::default())
        .with_retention(Retention::Newest(0));
    let mut next = 1;
    let mut log = MemoryLog::default();
    loop {
        let open = control.state().jobs().values().filter(|job| job.end.is_none()).count();
        for number in (next..=JOBS).take(OPEN.saturating_sub(open)) {
            let (size, priority) = shape(number);
            let mut stage = build::stage("work", vec![build::alternative("gpu", size)]);
            // Nothing is saved: who is stopped begins anew.
            stage.alternatives[0].launch = Arc::new(Launch::default());
            control.accept(build::submitted(number, build::job(priority, vec![stage])));
            next = number + 1;
        }
        let turn = control.turn(None).expect("no plan breaks a law");
        for (at, event) in &turn.events {
            oracle.see(*at, event);
        }
        oracle.turn_is_over();
        assert_eq!(oracle.violations(), Vec::<String>::new());
        // Only what the oracle saw has to be kept.
        std::mem::swap(control.log_mut(), &mut log);
        log.0.clear();
        if turn.events.is_empty() && next > JOBS {
            oracle.all_ended();
            assert_eq!(oracle.violations(), Vec::<String>::new());
            return control.now().since(Time::ZERO);
        }
    }
}

#[test]
fn a_storm_of_very_short_jobs_breaks_no_law() {
    storm("adaptive", |number| Millis(number * 7 % 5));
}

#[test]
fn a_storm_of_short_jobs_keeps_devices_busy() {
    let span = Millis(1_500);
    let took = storm("adaptive", |_| span);
    let device_time: u64 = (1..=JOBS).map(|number| u64::from(shape(number).0) * span.0).sum();
    let bound = device_time as f64 / f64::from(NODES as u32 * DEVICES);
    let packing = bound / took.0 as f64;
    assert!(packing >= 0.95, "the area bound is {packing:.3} of the time it took");
}
