//! Taking up what a supervisor left.

use std::path::Path;
use std::sync::Arc;

use het_core::{
    Action, Event, Failure, Generation, JobId, LeaseId, Outcome, Placement, Plan, Priority,
    StageIndex, StageKey, State, Time,
};
use het_engine::Engine;
use het_node::Node;
use het_testkit::build;

use crate::rig::{self, CPU, Rig, config, grant, is_alive, rank};

/// A state in which one stage has a lease, and its plan.
fn state(rig: &Rig, script: &str) -> (State, Plan) {
    let config = config(Default::default(), &rig.path("run"));
    let mut state = State::new(Arc::clone(&config.found));
    let mut spec = build::job(
        Priority::Normal,
        vec![build::stage("train", vec![build::alternative("cpu", 1)])],
    );
    let launch = Arc::new(rig.launch(script));
    spec.stages[0].alternatives[0].launch = Arc::clone(&launch);
    state.apply(Time(1), &build::submitted(1, spec));
    let key = StageKey { job: JobId(1), stage: StageIndex(0) };
    let ranks = vec![rank(&[grant(CPU, 1)], &[])];
    let start = Action::Start {
        lease: LeaseId(1),
        stage: key,
        attempt: 1,
        placement: Arc::new(Placement { alternative: 0, ranks }),
        launch,
        resume: None,
        reasons: Vec::new(),
    };
    let plan = Plan { generation: Generation(1), actions: vec![start], waits: Vec::new() };
    let committed = Event::PlanCommitted { plan: Arc::new(plan.clone()) };
    state.apply(Time(2), &committed);
    (state, plan)
}

#[test]
fn a_first_report_to_nobody_is_heard_by_the_next() {
    let mut rig = Rig::new();
    let waits = "until [ -e go ]; do sleep 0.01; done";
    let script = format!("{waits}; echo '{{\"step\":7}}' >> $HET_PROGRESS || exit 3");
    let (state, plan) = state(&rig, &script);
    rig.node.submit(&plan);
    let (dir, node) = rig.into_parts();
    node.detach();
    std::fs::write(dir.path().join("go"), "").expect("it is writable");
    let mut next = successor(&state, dir.path());
    let mut step = None;
    let outcome = loop {
        let until = next.now() + het_core::Millis(20_000);
        match next.next_event(Some(until)).expect("it ends in time").1 {
            Event::Progressed { progress, .. } => step = step.or(progress.step),
            Event::StageEnded { outcome, .. } => break outcome,
            _ => {}
        }
    };
    assert_eq!(step, Some(7));
    assert_eq!(outcome, Outcome::Finished);
}

/// Another supervisor of the same directory, which has no restarter.
fn successor(state: &State, dir: &Path) -> Node {
    let config = config(Default::default(), &dir.join("run"));
    let mut node = Node::new(config).expect("the rig fits");
    node.adopt(state);
    node
}

#[track_caller]
fn end(node: &mut Node) -> Outcome {
    loop {
        let until = node.now() + het_core::Millis(20_000);
        let (_, event) = node.next_event(Some(until)).expect("it ends in time");
        if let Event::StageEnded { outcome, .. } = event {
            node.committed();
            return outcome;
        }
    }
}

#[test]
fn a_program_that_runs_goes_on_and_its_reports_are_read() {
    let mut rig = Rig::new();
    let script = "echo $$ > pid; echo '{\"step\":1}' >> $HET_PROGRESS; \
                  until [ -e go ]; do sleep 0.01; done; \
                  echo '{\"step\":2}' >> $HET_PROGRESS; echo '{\"done\":true}' >> $HET_PROGRESS";
    let (state, plan) = state(&rig, script);
    rig.node.submit(&plan);
    rig.await_step(1);
    let pid = rig.read("pid");
    let (dir, node) = rig.into_parts();
    node.detach();
    let mut node = successor(&state, dir.path());
    assert!(is_alive(&pid), "it was not restarted");
    std::fs::write(dir.path().join("go"), "").expect("a file can be written");
    assert_eq!(end(&mut node), Outcome::Finished);
}

#[test]
fn what_was_planned_but_never_began_begins() {
    let rig = Rig::new();
    let (state, _) = state(&rig, "echo started > mark");
    let mut node = successor(&state, rig.dir.path());
    assert_eq!(end(&mut node), Outcome::Finished);
    assert_eq!(rig.read("mark").trim(), "started");
}

#[test]
fn nobody_saw_the_end_of_a_gang_of_an_earlier_boot() {
    let rig = Rig::new();
    let (state, _) = state(&rig, "true");
    let record = r#"{"lease":1,"job":"a","stage":"b","boot_id":"another","since_ticks":0,
        "supervisor":{"pid":1,"start_ticks":0},"port":0,"cores":[]}"#;
    let file = rig.path("run/record-1");
    std::fs::write(&file, record.replace('\n', "")).expect("a file can be written");
    let mut node = successor(&state, rig.dir.path());
    assert_eq!(end(&mut node), Outcome::Failed(Failure::unseen()));
    drop(node);
    assert!(!file.exists());
}

#[test]
fn what_a_supervisor_had_no_time_to_forget_is_forgotten() {
    let mut rig = Rig::new();
    let (before, plan) = state(&rig, "true");
    rig.node.submit(&plan);
    while !matches!(rig.next().1, Event::StageEnded { .. }) {}
    let (dir, node) = rig.into_parts();
    node.detach();
    assert!(dir.path().join("run/record-1").exists());
    let run = dir.path().join("run");
    std::fs::write(run.join("record-2"), " blank").expect("a file can be written");
    // The end is durable: the log's state has no such lease any more.
    let after = State::new(Arc::clone(before.topology()));
    drop(successor(&after, dir.path()));
    assert!(!run.exists());
}

#[test]
fn nobody_saw_the_end_of_what_ran_before_a_reboot() {
    let rig = Rig::new();
    let (mut state, _) = state(&rig, "true");
    state.apply(Time(3), &Event::StageStarted { lease: LeaseId(1) });
    let mut node = successor(&state, rig.dir.path());
    let unseen = Outcome::Failed(Failure::unseen());
    assert_eq!(end(&mut node), unseen, "nothing of it is in the run directory");
}

#[test]
fn the_groups_of_one_that_was_taken_up_are_nobody_elses() {
    let mut rig = Rig::new();
    let (state, plan) = state(&rig, "until [ -e go ]; do sleep 0.01; done");
    rig.node.submit(&plan);
    let (dir, node) = rig.into_parts();
    node.detach();
    let mut next = successor(&state, dir.path());
    std::fs::write(dir.path().join("go"), "").expect("it is writable");
    end(&mut next);
    next.committed();
    let mut start = |lease: u64, script: &str| {
        let mut launch = rig::launch(dir.path(), script);
        launch.stage = format!("stage-{lease}").as_str().into();
        let action = Action::Start {
            lease: LeaseId(lease),
            stage: StageKey { job: JobId(lease), stage: StageIndex(0) },
            attempt: 1,
            placement: Arc::new(Placement {
                alternative: 0,
                ranks: vec![rank(&[grant(CPU, 1)], &[])],
            }),
            launch: Arc::new(launch),
            resume: None,
            reasons: Vec::new(),
        };
        next.submit(&Plan {
            generation: Generation(lease),
            actions: vec![action],
            waits: Vec::new(),
        });
    };
    start(2, "until [ -e first ]; do sleep 0.01; done");
    start(3, "until [ -e second ]; do sleep 0.01; done; exit 5");
    std::fs::write(dir.path().join("first"), "").expect("it is writable");
    assert_eq!(end(&mut next), Outcome::Finished);
    std::fs::write(dir.path().join("second"), "").expect("it is writable");
    let last = end(&mut next);
    assert!(matches!(&last, Outcome::Failed(f) if f.exit_code == 5), "its own end: {last:?}");
}
