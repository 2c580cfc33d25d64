//! What a snapshot costs: `cargo run --release -p het-server --example snapshot_cost`.
//!
//! For jobs that ended, of which a server keeps the newest thousand, and for as many that wait:
//! what the control loop pays (a copy of the state), what the thread beside it does, what is
//! written, and how long the way back takes, beside that from all events.

#![expect(clippy::print_stdout, reason = "that is what it is for")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use het_control::{Log, Past};
use het_core::{
    Action, Event, JobId, JobSpec, Launch, Outcome, Plan, Priority, Progress, Time, Topology,
};
use het_perf::Rates;
use het_policy::{Cache, Cadence, View, by_name};
use het_server::{Draft, EventStore, Keeping};
use het_testkit::build;

/// As many as a server keeps.
const KEPT: u64 = 1_000;
const BATCH: usize = 64;
/// Batches that are timed while events leave.
const REMOVALS: usize = 30;

type Events = Vec<(Time, Event)>;

/// A job as people submit it: with a command line, and an environment of some length.
fn job() -> JobSpec {
    let mut shape = build::alternative("h100", 1);
    let words = ["python", "train.py", "--config", "configs/base.yaml", "--seed", "1"];
    shape.launch = Arc::new(Launch {
        argv: words.map(str::to_owned).to_vec(),
        cwd: "/home/somebody/project".to_owned(),
        workdir: "/home/somebody/.local/share/heterosis/jobs/1/work".to_owned(),
        env: [("PATH".to_owned(), "/usr/local/bin:".repeat(12))].into(),
        ..Launch::clone(&shape.launch)
    });
    build::job(Priority::Normal, vec![build::stage("train", vec![shape])])
}

struct Story {
    past: Past,
    at: u64,
    events: Events,
}

impl Story {
    fn tell(&mut self, event: Event) {
        self.at += 1;
        self.past.apply(Time(self.at), &event);
        self.events.push((Time(self.at), event));
    }

    /// One job from its submission to its end; the oldest that is kept leaves.
    fn finish(&mut self, id: u64) {
        self.tell(build::submitted(id, job()));
        let policy = by_name("fifo").expect("the table has it");
        let (state, rates) = (&self.past.state, Rates::default());
        let view = View { state, rates: &rates, now: Time(self.at), cadence: Cadence::default() };
        let plan: Plan = het_scheduler::propose(&view, policy, &mut Cache::default()).plan;
        let lease = plan.actions.iter().find_map(|action| match action {
            Action::Start { lease, .. } => Some(*lease),
            _ => None,
        });
        self.tell(Event::PlanCommitted { plan: Arc::new(plan) });
        let lease = lease.expect("the device is free");
        self.tell(Event::StageStarted { lease });
        let progress = Progress { step: Some(10), total: Some(10), ..Progress::default() };
        self.tell(Event::Progressed { lease, progress });
        self.tell(Event::StageEnded { lease, outcome: Outcome::Finished });
        if id > KEPT {
            self.tell(Event::JobRetired { job: JobId(id - KEPT) });
        }
    }
}

fn ended(topology: &Arc<Topology>, count: u64) -> Story {
    let past = Past::new(Arc::clone(topology));
    let mut story = Story { past, at: 0, events: Events::new() };
    (1..=count).for_each(|id| story.finish(id));
    story
}

fn waiting(topology: &Arc<Topology>, count: u64) -> Story {
    let past = Past::new(Arc::clone(topology));
    let mut story = Story { past, at: 0, events: Events::new() };
    (1..=count).for_each(|id| story.tell(build::submitted(id, job())));
    story
}

fn timed<T>(act: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let made = act();
    (began.elapsed().as_secs_f64() * 1e3, made)
}

fn measure(what: &str, story: Story) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("events.redb");
    let topology = Arc::clone(story.past.state.topology());
    let keeping = Keeping { snapshot_every: 1, events: u64::MAX, ..Keeping::default() };
    let mut store = EventStore::create(&path, &topology)?.with_keeping(keeping);
    let mut appends = Vec::new();
    for batch in story.events.chunks(BATCH) {
        appends.push(timed(|| store.append(batch)).0);
    }
    let (all_ms, replayed) = timed(|| store.replay());
    assert!(replayed? == story.past.state);
    let (copy_ms, copy) = timed(|| story.past.clone());
    let (made_ms, draft) = timed(|| Draft::new(store.mark(), copy));
    let mib = draft.bytes() as f64 / f64::from(1 << 20);
    store.put_snapshot(draft);
    let mut with_parts = Vec::new();
    let idle = Event::JobReleased { job: JobId(u64::MAX) };
    while store.newest_snapshot().is_none() {
        let batch: Events = vec![(Time(story.at), idle.clone()); BATCH];
        with_parts.push(timed(|| store.append(&batch)).0);
    }
    let (back_ms, recovered) = timed(|| store.recover());
    assert!(recovered?.past.state == story.past.state);
    let mut with_removal = removing(store, &path, &story)?;
    println!(
        "{what}: {} events · copied in {copy_ms:.1} ms · made in {made_ms:.0} ms · {mib:.1} MiB, \
         written with {} batches · back in {back_ms:.0} ms, from all events in {all_ms:.0} ms",
        story.events.len(),
        with_parts.len(),
    );
    println!(
        "    a batch of {BATCH} takes {:.1} ms, with a part {:.1} ms, while events leave {:.1} ms",
        median(&mut appends),
        median(&mut with_parts),
        median(&mut with_removal),
    );
    Ok(())
}

/// Batches while all events that may leave do so.
fn removing(store: EventStore, path: &Path, story: &Story) -> Result<Vec<f64>, Box<dyn Error>> {
    drop(store);
    let keeping = Keeping { snapshot_every: 1, events: 0, ..Keeping::default() };
    let mut store = EventStore::open(path)?.with_keeping(keeping);
    let first = store.newest_snapshot();
    store.put_snapshot(Draft::new(store.mark(), story.past.clone()));
    let idle = (Time(story.at), Event::JobReleased { job: JobId(u64::MAX) });
    let batch: Events = vec![idle; BATCH];
    while store.newest_snapshot() == first {
        store.append(&batch)?;
    }
    Ok((0..REMOVALS).map(|_| timed(|| store.append(&batch)).0).collect())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let topology = Arc::new(build::topology(&[(&[("h100", 1)], 4)]));
    for count in [10_000, 100_000] {
        measure(&format!("{count} ended jobs"), ended(&topology, count))?;
    }
    for count in [10_000, 100_000] {
        measure(&format!("{count} waiting jobs"), waiting(&topology, count))?;
    }
    Ok(())
}
