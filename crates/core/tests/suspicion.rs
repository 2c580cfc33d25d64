//! Devices on which programs hang are suspected until they have worked for as long.

use std::sync::Arc;

use het_core::{
    Checkpoint, DeviceId, Event, Failure, FailureCause, JobId, LeaseId, Millis, Outcome, Priority,
    State, Time,
};
use het_testkit::build::{alternative, job, key, stage, started, submitted, topology};

const MINUTE: u64 = 60;

/// Two jobs of one accelerator each, and one that takes two, on a node with four.
struct World {
    state: State,
    now: Time,
}

impl World {
    fn new() -> Self {
        let mut state = State::new(Arc::new(topology(&[(&[("h100", 4)], 8)])));
        for (id, count) in [(1, 1), (2, 1), (3, 2)] {
            let mut train = stage("train", vec![alternative("h100", count)]);
            train.restarts = 99;
            state.apply(Time::ZERO, &submitted(id, job(Priority::Low, vec![train])));
        }
        Self { state, now: Time::ZERO }
    }

    fn apply(&mut self, event: &Event) {
        self.state.apply(self.now, event);
    }

    /// The job runs on these accelerators.
    fn start(&mut self, job: u64, accelerators: &[u32]) -> LeaseId {
        self.now = self.state.next_eligible().unwrap_or(self.now).max(self.now);
        for event in self.state.eligibility_events(self.now) {
            self.apply(&event);
        }
        let devices: Vec<u32> = accelerators.iter().map(|row| self.device(*row).0).collect();
        let (lease, start) = started(&self.state, key(job, 0), &devices);
        self.apply(&start);
        lease
    }

    fn device(&self, row: u32) -> DeviceId {
        let topology = self.state.topology();
        let accelerators = topology.device_ids().filter(|id| topology.class_of(*id).id == "h100");
        accelerators.collect::<Vec<_>>()[row as usize]
    }

    fn end(&mut self, lease: LeaseId, minutes: u64, outcome: Outcome) {
        self.now = self.now + Millis::seconds(minutes * MINUTE);
        self.apply(&Event::StageEnded { lease, outcome });
    }

    /// The job runs for so long on these accelerators and hangs.
    fn hangs(&mut self, job: u64, accelerators: &[u32], minutes: u64) {
        let lease = self.start(job, accelerators);
        self.end(lease, minutes, failed(FailureCause::Stalled));
    }

    fn suspected(&self) -> Vec<u32> {
        let is_suspected = |row: &u32| self.state.suspected_since(self.device(*row)).is_some();
        (0..4).filter(is_suspected).collect()
    }
}

fn failed(cause: FailureCause) -> Outcome {
    Outcome::Failed(Failure { exit_code: 1, cause, ..Failure::default() })
}

#[test]
fn the_second_hang_makes_an_accelerator_suspected_and_takes_it_out_of_service() {
    let mut world = World::new();
    world.hangs(1, &[0], 20);
    assert!(world.suspected().is_empty(), "programs hang of themselves, too");
    world.hangs(2, &[1], 20);
    assert!(world.suspected().is_empty(), "another accelerator");
    world.hangs(2, &[0], 20);
    assert_eq!(world.suspected(), [0]);
    let device = world.device(0);
    assert!(!world.state.is_up(device) && world.state.is_only_suspected(device));
    assert_eq!(world.state.free().share(device).whole_units(), 0);
    assert_eq!(world.state, State::from_parts(world.state.clone().into_parts()).expect("parts"));
}

#[test]
fn a_job_that_hangs_everywhere_is_to_blame_itself() {
    let mut world = World::new();
    world.hangs(1, &[0], 20);
    world.hangs(1, &[0], 20);
    assert_eq!(world.suspected(), [0], "it may be the accelerator");
    world.hangs(1, &[1], 20);
    assert!(world.suspected().is_empty(), "it was not");
    assert!(world.state.is_up(world.device(0)));
}

#[test]
fn of_a_gang_the_accelerator_that_all_hangs_have_in_common_is_suspected() {
    let mut world = World::new();
    world.hangs(3, &[0, 1], 20);
    world.hangs(3, &[1, 2], 20);
    assert_eq!(world.suspected(), [1]);
}

#[test]
fn it_is_trusted_again_once_it_has_worked_for_as_long_as_it_took_to_hang() {
    for (outcome, is_work) in [
        (Outcome::Finished, true),
        (Outcome::Stopped, true),
        (failed(FailureCause::Program), false),
        (Outcome::Lost, false),
    ] {
        let mut world = World::new();
        world.hangs(1, &[0], 20);
        world.hangs(2, &[0], 30);
        let lease = world.start(3, &[0, 1]);
        world.end(lease, 29, Outcome::Stopped);
        assert_eq!(world.suspected(), [0], "a minute is missing");
        let lease = world.start(3, &[0, 1]);
        world.end(lease, 1, outcome.clone());
        assert_eq!(world.suspected().is_empty(), is_work, "{outcome:?}");
    }
}

#[test]
fn somebody_may_put_it_back_into_service() {
    for event in
        [|device| Event::DeviceUndrained { device }, |device| Event::DeviceRepaired { device }]
    {
        let mut world = World::new();
        world.hangs(1, &[0], 20);
        world.hangs(2, &[0], 20);
        let device = world.device(0);
        world.apply(&event(device));
        assert!(world.suspected().is_empty() && world.state.is_up(device));
        world.hangs(1, &[0], 20);
        assert!(world.suspected().is_empty(), "what was before does not count any more");
    }
}

#[test]
fn who_runs_there_should_leave_once_it_has_saved() {
    let mut world = World::new();
    world.hangs(1, &[0], 20);
    world.hangs(2, &[0], 20);
    let lease = world.start(1, &[0]);
    let should_leave = |world: &World| {
        let lease = &world.state.leases()[&lease];
        world.state.has_saved_on_suspected(lease)
    };
    assert!(!should_leave(&world));
    world.now = world.now + Millis(1);
    let checkpoint = Checkpoint { step: 10, path: "checkpoint-10".to_owned() };
    world.apply(&Event::Checkpointed { lease, checkpoint });
    assert!(should_leave(&world));
    assert_eq!(world.state.leases()[&lease].stage.job, JobId(1));
}
