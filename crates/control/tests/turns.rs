//! What a turn commits, and what the engine sees of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use het_control::{Controller, Log, LogError, MemoryLog, Past, Retention, redecide};
use het_core::{Event, JobId, Millis, NodeId, Plan, Priority, StageState, State, Time, Topology};
use het_engine::{Engine, Fake, Script};
use het_perf::Rates;
use het_policy::{Cadence, by_name};
use het_testkit::build::{alternative, job, key, stage, submitted, topology};

/// A fake that notes what it was shown, in a list that the log shares.
#[derive(Default)]
struct Noting {
    fake: Fake,
    notes: Rc<RefCell<Vec<&'static str>>>,
}

impl Engine for Noting {
    fn adopt(&mut self, state: &State) {
        self.fake.adopt(state);
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        self.notes.borrow_mut().push("topology");
        self.fake.topology_changed(topology);
    }

    fn submit(&mut self, plan: &Plan) {
        self.notes.borrow_mut().push("submit");
        self.fake.submit(plan);
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        self.fake.next_event(until)
    }

    fn now(&self) -> Time {
        self.fake.now()
    }
}

struct NotingLog {
    notes: Rc<RefCell<Vec<&'static str>>>,
    is_full: bool,
}

impl Log for NotingLog {
    fn append(&mut self, _: &[(Time, Event)]) -> Result<(), LogError> {
        if self.is_full {
            return Err(LogError("no space left".into()));
        }
        self.notes.borrow_mut().push("commit");
        Ok(())
    }
}

/// A log that can be made to fail.
#[derive(Debug, Default)]
struct Failing {
    written: MemoryLog,
    fails: bool,
}

impl Log for Failing {
    fn append(&mut self, batch: &[(Time, Event)]) -> Result<(), LogError> {
        match self.fails {
            true => Err(LogError(Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull)))),
            false => self.written.append(batch),
        }
    }
}

fn cluster() -> Arc<Topology> {
    Arc::new(topology(&[(&[("h100", 1)], 0)]))
}

fn one_device_job(id: u64) -> Event {
    submitted(id, job(Priority::Normal, vec![stage("train", vec![alternative("h100", 1)])]))
}

fn noting(is_full: bool) -> (Controller<Noting, NotingLog>, Rc<RefCell<Vec<&'static str>>>) {
    let notes = Rc::<RefCell<Vec<_>>>::default();
    let engine = Noting { notes: Rc::clone(&notes), ..Noting::default() };
    let log = NotingLog { notes: Rc::clone(&notes), is_full };
    let policy = by_name("fifo").expect("the table has it");
    (Controller::new(State::new(cluster()), Rates::default(), policy, engine, log), notes)
}

fn control(scripts: &[(u64, Script)]) -> Controller<Fake, MemoryLog> {
    let scripts = scripts.iter().map(|(id, script)| (key(*id, 0), *script));
    let policy = by_name("fifo").expect("the table has it");
    let state = State::new(cluster());
    Controller::new(state, Rates::default(), policy, Fake::new(scripts), MemoryLog::default())
}

#[test]
fn an_engine_sees_a_plan_after_its_commit() {
    let (mut control, notes) = noting(false);
    control.accept(one_device_job(1));
    control.turn(Some(Time::ZERO)).expect("the log takes it");
    assert_eq!(*notes.borrow(), ["topology", "commit", "submit"]);
}

#[test]
fn a_log_that_takes_nothing_keeps_the_engine_from_acting() {
    let (mut control, notes) = noting(true);
    control.accept(one_device_job(1));
    control.turn(Some(Time::ZERO)).expect_err("the disk is full");
    assert_eq!(*notes.borrow(), ["topology"]);
}

#[test]
fn a_turn_that_was_not_durable_never_was_but_for_its_facts() {
    let script = Script::Finish(Millis(5));
    let scripts = [(key(1, 0), script), (key(2, 0), script)];
    let policy = by_name("fifo").expect("the table has it");
    let log = Failing::default();
    let state = State::new(cluster());
    let mut control = Controller::new(state, Rates::default(), policy, Fake::new(scripts), log);
    control.request(one_device_job(1));
    control.turn(Some(Time::ZERO)).expect("the disk works");
    let mut past = Past::new(cluster());
    control.log().written.0.iter().for_each(|(at, event)| past.apply(*at, event));
    control.log_mut().fails = true;
    control.request(one_device_job(2));
    // The first job starts and ends meanwhile.
    control.turn(Some(Time(10))).expect_err("the disk is full");
    control.roll_back(past.clone());
    assert_eq!(*control.state(), past.state);
    control.listen(Time(20));
    assert!(control.has_heard());
    control.record().expect_err("the disk is full");
    assert_eq!(*control.state(), past.state);
    control.log_mut().fails = false;
    control.record().expect("the disk works again");
    let ended = |id| control.state().job(JobId(id)).map(|job| job.end.is_some());
    assert_eq!((ended(1), ended(2)), (Some(true), None));
    let mut replayed = Past::new(cluster());
    control.log().written.0.iter().for_each(|(at, event)| replayed.apply(*at, event));
    assert_eq!(replayed.state, *control.state());
}

#[test]
fn an_engine_is_shown_nodes_before_plans_that_name_them() {
    let (mut control, notes) = noting(false);
    let mut node = Topology::clone(&cluster());
    node.nodes[0].name = "other".into();
    control.accept(Event::NodesJoined { nodes: Arc::new(node) });
    [1, 2].into_iter().for_each(|id| control.accept(one_device_job(id)));
    control.turn(Some(Time::ZERO)).expect("the log takes it");
    assert_eq!(*notes.borrow(), ["topology", "topology", "commit", "submit"]);
    let placed = control.state().leases().values().map(|lease| lease.placement.ranks[0].node);
    assert_eq!(placed.collect::<Vec<_>>(), [NodeId(0), NodeId(1)]);
}

#[test]
fn what_was_committed_gives_the_same_state() {
    let mut control = control(&[(1, Script::Finish(Millis(5))), (2, Script::Fail(Millis(5), 3))]);
    [1, 2].into_iter().for_each(|id| control.accept(one_device_job(id)));
    while control.state().jobs().values().any(|job| job.end.is_none())
        || control.state().jobs().is_empty()
    {
        control.turn(None).expect("the log is in memory");
    }
    let mut past = Past::new(cluster());
    control.log().0.iter().for_each(|(at, event)| past.apply(*at, event));
    assert_eq!(past.state, *control.state());
    let (decisions, differences) = redecide(
        Past::new(cluster()),
        &control.log().0,
        by_name("fifo").expect("the table has it"),
        Cadence::default(),
    );
    assert_eq!((decisions > 0, differences), (true, Vec::new()));
}

#[test]
fn ended_jobs_leave_the_state_one_turn_later() {
    let mut control = control(&[]).with_retention(Retention::Newest(1));
    for id in 1..=3 {
        control.accept(one_device_job(id));
        for _ in 0..3 {
            let now = control.now();
            control.turn(Some(now)).expect("the log is in memory");
        }
    }
    let kept: Vec<JobId> = control.state().jobs().keys().copied().collect();
    assert_eq!(kept, [JobId(3)]);
    let job = &control.state().jobs()[&JobId(3)];
    assert_eq!(job.stages[0].state, StageState::Succeeded);
}
