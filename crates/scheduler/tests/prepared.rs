//! What waits is begun early: who, where, how much of it, and what becomes of that.

use std::sync::Arc;

use het_core::{
    Action, Bytes, Event, JobSpec, LeaseId, Millis, Outcome, Plan, PreparationEnd, Priority, State,
    Time,
};
use het_perf::Rates;
use het_testkit::build::{alternative, job, key, stage, submitted, topology};
use het_testkit::scene;

fn warm(priority: Priority) -> JobSpec {
    let mut spec = job(priority, vec![stage("train", vec![alternative("h100", 1)])]);
    Arc::make_mut(&mut spec.stages[0].alternatives[0].launch).warm = true;
    spec
}

struct Rig(State);

impl Rig {
    /// One node with so many accelerators.
    fn new(accelerators: u32) -> Self {
        Self(State::new(Arc::new(topology(&[(&[("h100", accelerators)], 0)]))))
    }

    fn submit(&mut self, id: u64, spec: JobSpec) {
        self.0.apply(self.0.now() + Millis(1), &submitted(id, spec));
    }

    /// Commits what is proposed until nothing is; tells of it.
    fn decide(&mut self, policy: &str) -> Vec<String> {
        let mut told = Vec::new();
        for _ in 0..4 {
            let plan = proposed(&self.0, policy);
            if plan.is_empty() {
                return told;
            }
            told.extend(words(&plan));
            self.0.apply(self.0.now(), &Event::PlanCommitted { plan: Arc::new(plan) });
        }
        panic!("it does not settle: {told:?}");
    }

    fn end(&mut self, lease: u64) {
        let outcome = Outcome::Finished;
        self.0.apply(self.0.now(), &Event::StageEnded { lease: LeaseId(lease), outcome });
    }
}

fn proposed(state: &State, policy: &str) -> Plan {
    scene::proposed(state, &Rates::default(), policy)
}

/// The number of a lease where it has one.
fn words(plan: &Plan) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Start { stage, lease, .. } => format!("start {} as {lease}", stage.job),
        Action::Stop { lease, .. } => format!("stop {lease}"),
        Action::Claim { stage, .. } => format!("claim {}", stage.job),
        Action::Unclaim { stage } => format!("unclaim {}", stage.job),
        Action::Prepare { stage, lease, .. } => format!("prepare {} as {lease}", stage.job),
        Action::Unprepare { stage, lease } => format!("unprepare {} as {lease}", stage.job),
    };
    plan.actions.iter().map(word).collect()
}

const POLICIES: [&str; 6] = ["static", "dynamic", "hybrid", "adaptive", "fifo", "best-fit"];

#[test]
fn the_next_is_prepared_and_starts_with_what_it_has() {
    for policy in POLICIES {
        let mut rig = Rig::new(1);
        rig.submit(1, warm(Priority::Normal));
        assert_eq!(rig.decide(policy), ["start 1 as 1"], "{policy}");
        rig.submit(2, warm(Priority::Normal));
        assert_eq!(rig.decide(policy), ["prepare 2 as 2"], "{policy}");
        rig.end(1);
        assert_eq!(rig.decide(policy), ["start 2 as 2"], "{policy}");
        assert_eq!(rig.0.preparations().count(), 0);
    }
}

#[test]
fn two_of_a_node_are_prepared_in_the_order_in_which_they_come() {
    let mut rig = Rig::new(1);
    for (id, priority) in [(1, Priority::High), (2, Priority::Low), (3, Priority::Normal)] {
        rig.submit(id, warm(priority));
    }
    assert_eq!(rig.decide("adaptive"), ["start 1 as 1", "prepare 3 as 2", "prepare 2 as 3"]);
    // One that comes before takes the place of the last.
    rig.submit(4, warm(Priority::High));
    assert_eq!(rig.decide("adaptive"), ["unprepare 2 as 3", "prepare 4 as 4"]);
}

#[test]
fn a_stage_whose_program_does_not_wait_is_not_prepared() {
    let mut rig = Rig::new(1);
    let mut cold = warm(Priority::Normal);
    Arc::make_mut(&mut cold.stages[0].alternatives[0].launch).warm = false;
    rig.submit(1, cold.clone());
    rig.submit(2, cold.clone());
    assert_eq!(rig.decide("adaptive"), ["start 1 as 1"]);
    Arc::make_mut(&mut cold.stages[0].alternatives[0].launch).inputs = vec!["data".to_owned()];
    rig.submit(3, cold);
    assert_eq!(rig.decide("adaptive"), ["prepare 3 as 2"], "its inputs can be read");
}

#[test]
fn what_is_prepared_has_memory_that_nobody_else_wants() {
    let mut rig = Rig::new(2);
    let memory = rig.0.topology().nodes[0].host.memory;
    let asks = |part: u64| {
        let mut spec = warm(Priority::Normal);
        spec.stages[0].companions.host.memory = Bytes(memory.0 / 100 * part);
        spec
    };
    rig.submit(1, asks(30));
    rig.submit(2, asks(40));
    rig.submit(3, asks(20));
    rig.submit(4, asks(20));
    // Thirty percent are left: enough for one of the two.
    let told = ["start 1 as 1", "start 2 as 2", "prepare 3 as 3"];
    assert_eq!(rig.decide("fifo"), told);
    // The first ends, and one that asks for nearly all that is left comes at once.
    rig.end(1);
    assert_eq!(rig.decide("fifo"), ["start 3 as 3", "prepare 4 as 4"]);
}

#[test]
fn what_came_to_nothing_is_not_begun_again_and_starts_without() {
    let mut rig = Rig::new(1);
    rig.submit(1, warm(Priority::Normal));
    rig.submit(2, warm(Priority::Normal));
    assert_eq!(rig.decide("adaptive"), ["start 1 as 1", "prepare 2 as 2"]);
    let end = PreparationEnd::Failed { reason: "it ended".to_owned() };
    rig.0.apply(rig.0.now(), &Event::PreparationEnded { lease: LeaseId(2), end });
    assert_eq!(rig.decide("adaptive"), Vec::<String>::new());
    rig.end(1);
    assert_eq!(rig.decide("adaptive"), ["unprepare 2 as 2", "start 2 as 3"]);
}

#[test]
fn what_is_lost_is_begun_again() {
    let mut rig = Rig::new(1);
    rig.submit(1, warm(Priority::Normal));
    rig.submit(2, warm(Priority::Normal));
    assert_eq!(rig.decide("adaptive"), ["start 1 as 1", "prepare 2 as 2"]);
    let end = PreparationEnd::Lost;
    rig.0.apply(rig.0.now(), &Event::PreparationEnded { lease: LeaseId(2), end });
    assert_eq!(rig.decide("adaptive"), ["prepare 2 as 3"]);
}

#[test]
fn nobody_who_comes_next_is_given_up_when_others_start() {
    for policy in POLICIES {
        let mut rig = Rig::new(2);
        for id in 1..=8 {
            let priority = if id % 3 == 0 { Priority::High } else { Priority::Normal };
            rig.submit(id, warm(priority));
        }
        rig.decide(policy);
        for _ in 0..4 {
            let next: Vec<_> = rig.0.preparations().map(|(key, it)| (key, it.lease)).collect();
            assert_eq!(next.len(), 2, "{policy}");
            let lease = *rig.0.leases().keys().next().expect("two run");
            rig.end(lease.0);
            let told = rig.decide(policy);
            assert!(!told.iter().any(|word| word.starts_with("unprepare")), "{policy}: {told:?}");
        }
    }
}

#[test]
fn what_is_begun_for_a_job_goes_with_it() {
    let events: [fn() -> Event; 2] =
        [|| Event::JobCancelled { job: key(2, 0).job }, || Event::JobHeld { job: key(2, 0).job }];
    for event in events {
        let mut rig = Rig::new(1);
        rig.submit(1, warm(Priority::Normal));
        rig.submit(2, warm(Priority::Normal));
        assert_eq!(rig.decide("adaptive"), ["start 1 as 1", "prepare 2 as 2"]);
        rig.0.apply(Time(9), &event());
        assert_eq!(rig.decide("adaptive"), ["unprepare 2 as 2"]);
    }
}

#[test]
fn one_for_whom_others_are_stopped_is_prepared_meanwhile() {
    let mut rig = Rig::new(1);
    let lease = LeaseId(1);
    rig.submit(1, warm(Priority::Low));
    assert_eq!(rig.decide("adaptive"), ["start 1 as 1"]);
    rig.0.apply(Time(1_000), &Event::StageStarted { lease });
    rig.submit(2, warm(Priority::Urgent));
    let told = rig.decide("adaptive");
    assert_eq!(told, ["stop 1", "claim 2", "prepare 2 as 2"]);
}
