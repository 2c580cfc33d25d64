//! Failures: whose doing they are decides whether a stage goes on, when, and from where.

use std::sync::Arc;

use het_core::{
    CHECKPOINTS_KEPT, Checkpoint, DeviceId, Event, Failure, FailureCause, JobId, JobState, LeaseId,
    Millis, Outcome, Priority, Progress, StageSpec, StageState, State, Time,
};
use het_testkit::build::{alternative, job, key, stage, started, submitted, topology};

const JOB: JobId = JobId(1);

struct World {
    state: State,
    now: Time,
}

impl World {
    fn new() -> Self {
        let mut state = State::new(Arc::new(topology(&[(&[("h100", 1)], 0)])));
        let spec = job(Priority::Low, vec![stage("train", vec![alternative("h100", 1)])]);
        state.apply(Time::ZERO, &submitted(1, spec));
        Self { state, now: Time::ZERO }
    }

    fn apply(&mut self, event: &Event) {
        self.now = self.now + Millis(1);
        self.state.apply(self.now, event);
    }

    /// Starts the stage, once facts that are due have made it ready; what it resumes from.
    fn start(&mut self) -> (LeaseId, Option<u64>) {
        for event in self.state.eligibility_events(self.now) {
            self.apply(&event);
        }
        let from = self.state.stage_record(key(1, 0)).checkpoint.as_ref().map(|c| c.step);
        let (lease, start) = started(&self.state, key(1, 0), &[0]);
        self.apply(&start);
        (lease, from)
    }

    fn report(&mut self, lease: LeaseId, step: u64) {
        let progress = Progress { step: Some(step), ..Progress::default() };
        self.apply(&Event::Progressed { lease, progress });
    }

    fn save(&mut self, lease: LeaseId, step: u64) {
        let checkpoint = Checkpoint { step, path: format!("checkpoint-{step}") };
        self.apply(&Event::Checkpointed { lease, checkpoint });
    }

    fn fail(&mut self, lease: LeaseId, cause: FailureCause) {
        let failure = Failure { exit_code: 1, cause, ..Failure::default() };
        self.apply(&Event::StageEnded { lease, outcome: Outcome::Failed(failure) });
    }

    fn word(&self) -> JobState {
        self.state.jobs()[&JOB].state(self.state.leases())
    }

    /// Lets the rest pass that the stage has; how long it was.
    fn rest(&mut self) -> u64 {
        let Some(at) = self.state.next_eligible() else { return 0 };
        assert!(!self.state.is_waiting(key(1, 0)), "it may not start before");
        let span = at.since(self.now).0.div_ceil(1_000);
        self.now = at;
        span
    }
}

#[test]
fn what_is_not_its_doing_restarts_it_ever_later_and_at_last_holds_its_job() {
    let is_retried = |cause: &FailureCause| !cause.is_own() && *cause != FailureCause::Quarantined;
    for cause in FailureCause::ALL.into_iter().filter(is_retried) {
        let mut world = World::new();
        let mut rests = Vec::new();
        for _ in 0..StageSpec::RESTARTS_DEFAULT {
            let (lease, _) = world.start();
            world.fail(lease, cause);
            rests.push(world.rest());
        }
        assert_eq!(rests, [0, 5, 10, 20, 40], "{cause:?}");
        let (lease, _) = world.start();
        world.fail(lease, cause);
        assert_eq!(world.word(), JobState::Held);
        let (_, failure) = world.state.jobs()[&JOB].given_up().expect("it says why");
        assert_eq!(failure.cause, cause);
        world.apply(&Event::JobReleased { job: JOB });
        assert_eq!(world.rest(), 0, "it starts anew when somebody says so");
        world.start();
    }
}

#[test]
fn who_is_quarantined_waits_for_somebody_to_let_it_go_on() {
    let mut world = World::new();
    let (lease, _) = world.start();
    world.fail(lease, FailureCause::Quarantined);
    assert_eq!(world.word(), JobState::Held);
    world.apply(&Event::JobReleased { job: JOB });
    assert_eq!(world.rest(), 0);
    let (lease, _) = world.start();
    world.fail(lease, FailureCause::Killed);
    assert_ne!(world.word(), JobState::Held, "the next failure is one as any other");
}

#[test]
fn new_progress_makes_failures_forgotten_and_old_does_not() {
    let mut world = World::new();
    for step in 1..=20 {
        let (lease, _) = world.start();
        world.report(lease, step);
        world.fail(lease, FailureCause::Killed);
        assert_eq!(world.rest(), 0, "step {step} is new");
    }
    let mut rests = Vec::new();
    for _ in 0..4 {
        let (lease, _) = world.start();
        world.report(lease, 20);
        world.fail(lease, FailureCause::Killed);
        rests.push(world.rest());
    }
    assert_eq!(rests, [5, 10, 20, 40]);
}

#[test]
fn a_failure_of_its_own_is_final() {
    let own = [FailureCause::Program, FailureCause::CannotRun, FailureCause::MemoryLimit];
    for cause in own {
        let mut world = World::new();
        let (lease, _) = world.start();
        world.fail(lease, cause);
        assert!(matches!(world.state.stage(key(1, 0)).2.state, StageState::Failed(_)), "{cause:?}");
    }
}

#[test]
fn a_program_whose_device_failed_did_not_fail_of_itself() {
    let mut world = World::new();
    let (lease, _) = world.start();
    world.apply(&Event::DeviceFailed { device: DeviceId(0) });
    world.fail(lease, FailureCause::Program);
    assert_eq!(world.word(), JobState::Restarting);
    let last = world.state.stage(key(1, 0)).2.faults.last.clone().expect("it failed");
    assert_eq!(last.cause, FailureCause::Device);
}

#[test]
fn checkpoints_that_it_cannot_go_on_from_are_rejected_one_by_one() {
    let mut world = World::new();
    let (lease, _) = world.start();
    for step in 1..=6 {
        world.save(lease, step * 10);
    }
    world.fail(lease, FailureCause::Killed);
    let mut tried = Vec::new();
    for _ in 0..CHECKPOINTS_KEPT {
        let (lease, from) = world.start();
        tried.extend(from);
        world.fail(lease, FailureCause::Program);
        assert_eq!(world.word(), JobState::Restarting);
        assert!(!world.state.is_waiting(key(1, 0)), "the checkpoint is rejected first");
    }
    assert_eq!(tried, [60, 50, 40, 30]);
    let (lease, from) = world.start();
    assert_eq!(from, None, "it starts anew");
    world.fail(lease, FailureCause::Program);
    assert_eq!(world.word(), JobState::Ended(het_core::JobEnd::Failed));
}

#[test]
fn other_failures_reject_nothing_and_neither_do_failures_after_progress() {
    let mut world = World::new();
    let (lease, _) = world.start();
    world.save(lease, 10);
    world.fail(lease, FailureCause::Killed);
    for cause in [FailureCause::Killed, FailureCause::Unseen, FailureCause::Device] {
        let (lease, from) = world.start();
        assert_eq!(from, Some(10));
        world.fail(lease, cause);
        world.rest();
    }
    let (lease, _) = world.start();
    world.report(lease, 11);
    world.fail(lease, FailureCause::Program);
    assert_eq!(world.word(), JobState::Ended(het_core::JobEnd::Failed));
    assert_eq!(world.state.stage(key(1, 0)).2.checkpoint.as_ref().map(|it| it.step), Some(10));
}

#[test]
fn a_rejected_checkpoint_that_is_found_again_stays_rejected_until_it_is_written_anew() {
    let mut world = World::new();
    let (lease, _) = world.start();
    world.save(lease, 10);
    world.save(lease, 20);
    world.fail(lease, FailureCause::Killed);
    let (lease, _) = world.start();
    world.fail(lease, FailureCause::Program);
    let (lease, from) = world.start();
    assert_eq!(from, Some(10));
    world.save(lease, 20);
    assert_eq!(world.state.stage(key(1, 0)).2.checkpoint.as_ref().map(|it| it.step), Some(10));
    world.report(lease, 20);
    world.save(lease, 20);
    assert_eq!(world.state.stage(key(1, 0)).2.checkpoint.as_ref().map(|it| it.step), Some(20));
}

#[test]
fn failures_without_a_cause_mean_what_they_meant() {
    let mut world = World::new();
    let (lease, _) = world.start();
    world.save(lease, 10);
    world.fail(lease, FailureCause::Untold);
    assert_eq!(world.word(), JobState::Ended(het_core::JobEnd::Failed));
}
