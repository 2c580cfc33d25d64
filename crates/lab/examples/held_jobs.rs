//! What jobs that stand by cost a turn: the same turns without them, beside held ones, and beside
//! waiting ones.
//!
//! `cargo run --release -p het-lab --example held_jobs [-- JOBS]`

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use het_control::Controller;
use het_core::{Event, JobId, State, Time};
use het_lab::mixed_cluster;
use het_perf::Rates;
use het_policy::by_name;
use het_sim::Sim;
use het_testkit::build::{alternative, job, stage, submitted};

/// Turns that are timed, each with one job that comes and goes.
const TURNS: u64 = 200;

/// What the jobs that stand by do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standby {
    Held,
    Waiting,
}

/// Milliseconds of a turn that takes in a job and starts it: median and longest.
fn measure(jobs: u64, standby: Standby) -> (f64, f64) {
    let topology = Arc::new(mixed_cluster(8, 8));
    let mut state = State::new(Arc::clone(&topology));
    let word = if standby == Standby::Held { "fast" } else { "slow" };
    // Those that wait ask for more than there is of a class that nobody else wants.
    let count = if standby == Standby::Held { 1 } else { 32 };
    for id in 1..=jobs {
        let spec =
            job(het_core::Priority::Normal, vec![stage("s", vec![alternative(word, count)])]);
        state.apply(Time::ZERO, &submitted(id, spec));
        if standby == Standby::Held {
            state.apply(Time::ZERO, &Event::JobHeld { job: JobId(id) });
        }
    }
    let engine = Sim::new(topology, Default::default(), [], []);
    let policy = by_name("adaptive").expect("the table has it");
    let mut control = Controller::new(state, Rates::default(), policy, engine, ());
    let mut times: Vec<Duration> = Vec::new();
    for turn in 0..TURNS {
        let alone = stage("short", vec![alternative("fast", 1)]);
        control.accept(submitted(jobs + 1 + turn, job(het_core::Priority::High, vec![alone])));
        let start = Instant::now();
        let turn = control.turn(Some(Time(turn))).expect("the policy keeps the laws");
        times.push(start.elapsed());
        assert!(turn.decisions > 0, "nothing was decided");
    }
    // The first turns look at all that is new.
    let mut times = times.split_off(TURNS as usize / 10);
    times.sort_unstable();
    let milliseconds = |time: Duration| time.as_secs_f64() * 1_000.0;
    (milliseconds(times[times.len() / 2]), milliseconds(times[times.len() - 1]))
}

fn main() {
    let jobs = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let mut told = std::io::stdout().lock();
    writeln!(told, "milliseconds of a turn: median, longest").expect("somebody reads");
    for (name, jobs, standby) in [
        ("alone", 0, Standby::Held),
        ("beside held jobs", jobs, Standby::Held),
        ("beside waiting jobs", jobs, Standby::Waiting),
    ] {
        let (median, longest) = measure(jobs, standby);
        writeln!(told, "{name:>20}, {jobs:>7}: {median:8.3} {longest:8.3}")
            .expect("somebody reads");
    }
}
