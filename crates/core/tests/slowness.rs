//! Devices on which programs become slower than they were.

use std::sync::Arc;

use het_core::{DeviceId, Event, LeaseId, Micro, Millis, Outcome, Priority, Progress, State, Time};
use het_testkit::build::{alternative, job, key, stage, started, submitted, topology};

/// A job of one accelerator, on a node with two.
struct World {
    state: State,
    now: Time,
    step: u64,
}

impl World {
    fn new() -> Self {
        let mut state = State::new(Arc::new(topology(&[(&[("h100", 2)], 8)])));
        let train = stage("train", vec![alternative("h100", 1)]);
        state.apply(Time::ZERO, &submitted(1, job(Priority::Normal, vec![train])));
        Self { state, now: Time::ZERO, step: 0 }
    }

    fn device(&self, row: usize) -> DeviceId {
        self.state.topology().accelerators().nth(row).expect("there are two")
    }

    fn start(&mut self, row: usize) -> LeaseId {
        let (lease, start) = started(&self.state, key(1, 0), &[self.device(row).0]);
        self.state.apply(self.now, &start);
        self.state.apply(self.now, &Event::StageStarted { lease });
        lease
    }

    /// Steps at this rate for so many seconds, each second reported.
    fn works(&mut self, lease: LeaseId, seconds: u64, rate: u64) {
        for _ in 0..seconds {
            self.now = self.now + Millis::seconds(1);
            self.step += rate;
            let progress = Progress { step: Some(self.step), ..Progress::default() };
            self.state.apply(self.now, &Event::Progressed { lease, progress });
        }
    }

    fn moves(&mut self, lease: LeaseId, row: usize) -> LeaseId {
        self.state.apply(self.now, &Event::StageEnded { lease, outcome: Outcome::Stopped });
        self.start(row)
    }

    #[track_caller]
    fn check(&self, expected: [Option<i64>; 2]) {
        let parts = [0, 1].map(|row| self.state.slowness(self.device(row)).map(|it| it.part.0));
        assert_eq!(parts, expected);
    }
}

#[test]
fn a_device_is_slow_after_three_slow_windows_until_one_is_not() {
    let mut world = World::new();
    let lease = world.start(0);
    world.works(lease, 33, 10);
    world.works(lease, 12, 5);
    world.check([None, None]);
    world.works(lease, 8, 5);
    world.check([Some(500_000), None]);
    assert_eq!(world.state.pace(world.device(1)), Micro(1_000_000));
    world.works(lease, 17, 10);
    world.check([None, None]);
}

#[test]
fn a_pause_to_save_or_to_evaluate_says_nothing() {
    let mut world = World::new();
    let lease = world.start(0);
    for _ in 0..5 {
        world.works(lease, 20, 10);
        world.now = world.now + Millis::seconds(45);
    }
    world.works(lease, 20, 10);
    world.check([None, None]);
}

#[test]
fn a_program_that_is_as_slow_elsewhere_was_slow_of_itself() {
    let mut world = World::new();
    let lease = world.start(0);
    world.works(lease, 33, 10);
    world.works(lease, 24, 5);
    world.check([Some(500_000), None]);
    let lease = world.moves(lease, 1);
    world.works(lease, 24, 5);
    world.check([None, None]);
    // That is usual now.
    world.works(lease, 30, 5);
    world.check([None, None]);
}

#[test]
fn a_program_that_is_fast_elsewhere_leaves_a_slow_device_behind_for_ten_minutes() {
    let mut world = World::new();
    let lease = world.start(0);
    world.works(lease, 33, 10);
    world.works(lease, 24, 5);
    let lease = world.moves(lease, 1);
    world.works(lease, 300, 10);
    world.check([Some(500_000), None]);
    world.works(lease, 300, 10);
    world.check([None, None]);
}

#[test]
fn who_puts_a_device_back_into_service_says_that_it_is_sound() {
    let mut world = World::new();
    let lease = world.start(0);
    world.works(lease, 33, 10);
    world.works(lease, 24, 5);
    let device = world.device(0);
    world.state.apply(world.now, &Event::DeviceUndrained { device });
    world.check([None, None]);
}
