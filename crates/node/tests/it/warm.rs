//! Programs that are started before they have devices, and wait for them.

use std::sync::Arc;

use het_core::{
    Action, DeviceId, Event, JobId, Launch, LeaseId, Outcome, Placement, PreparationEnd, Rank,
    StageIndex, StageKey,
};
use het_engine::Engine;
use het_node::Node;

use crate::rig::{CPU, GPU, LEASE, PATIENCE, Rig, config, grant, is_alive, rank};

const OTHER_GPU: DeviceId = DeviceId(2);

/// Imports, and then needs its devices.
const WAITS: &str = "echo $$ > pid; echo imports:$CUDA_VISIBLE_DEVICES >> story; touch imported; \
                     until [ -e \"$HET_WARM\" ]; do sleep 0.01; done; . \"$HET_WARM\"; \
                     echo devices:$CUDA_VISIBLE_DEVICES >> story";

fn warm(rig: &Rig, script: &str) -> Launch {
    Launch { warm: true, ..rig.launch(script) }
}

fn key() -> StageKey {
    StageKey { job: JobId(1), stage: StageIndex(0) }
}

fn prepare(launch: Launch, ranks: Vec<Rank>) -> Action {
    Action::Prepare {
        lease: LEASE,
        stage: key(),
        attempt: 3,
        placement: Arc::new(Placement { alternative: 0, ranks }),
        launch: Arc::new(launch),
        resume: None,
    }
}

/// Why a program that was started early is not there any more.
fn ended_early(rig: &mut Rig) -> String {
    match rig.next().1 {
        Event::PreparationEnded { lease: LEASE, end: PreparationEnd::Failed { reason } } => reason,
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_program_waits_for_its_devices_and_goes_on_with_those_that_it_gets() {
    let mut rig = Rig::new();
    let launch = warm(&rig, WAITS);
    let likely = rank(&[grant(GPU, 1)], &[grant(CPU, 1)]);
    let given = rank(&[grant(OTHER_GPU, 1)], &[grant(CPU, 1)]);
    rig.submit(prepare(launch.clone(), vec![likely]));
    rig.await_file("imported");
    rig.start_with(LEASE, launch, vec![given], None);
    let story = rig.story();
    assert_eq!((story.outcome, story.started), (Outcome::Finished, 1));
    assert_eq!(rig.read("story"), "imports:\ndevices:1\n");
}

#[test]
fn every_rank_is_told_its_own_devices() {
    let mut rig = Rig::new();
    let script = "until [ -e \"$HET_WARM\" ]; do sleep 0.01; done; . \"$HET_WARM\"; \
                  echo $RANK of $WORLD_SIZE: $CUDA_VISIBLE_DEVICES > rank-$RANK";
    let launch = Launch { ranks_max: 2, ..warm(&rig, script) };
    let ranks = vec![rank(&[grant(OTHER_GPU, 1)], &[]), rank(&[grant(GPU, 1)], &[])];
    rig.submit(prepare(launch.clone(), ranks.clone()));
    rig.start_with(LEASE, launch, ranks, None);
    let story = rig.story();
    assert_eq!((story.outcome, story.started), (Outcome::Finished, 1));
    let told = [rig.read("rank-0"), rig.read("rank-1")];
    assert_eq!(told, ["0 of 2: 1\n", "1 of 2: 0\n"]);
}

#[test]
fn a_program_that_removed_the_directory_hears_of_its_devices_all_the_same() {
    let mut rig = Rig::new();
    let launch = warm(&rig, &format!("rm -r \"$(dirname \"$HET_WARM\")\"; {WAITS}"));
    let ranks = vec![rank(&[grant(OTHER_GPU, 1)], &[])];
    rig.submit(prepare(launch.clone(), ranks.clone()));
    rig.await_file("imported");
    rig.start_with(LEASE, launch, ranks, None);
    assert_eq!(rig.story().outcome, Outcome::Finished);
    assert_eq!(rig.read("story"), "imports:\ndevices:1\n");
}

#[test]
fn a_program_that_is_given_up_is_killed_and_nothing_is_reported() {
    let mut rig = Rig::new();
    rig.submit(prepare(warm(&rig, WAITS), vec![rank(&[grant(GPU, 1)], &[])]));
    rig.await_file("imported");
    let pid = rig.read("pid");
    rig.submit(Action::Unprepare { stage: key(), lease: LEASE });
    rig.quiet_until("it is gone", |_| !is_alive(&pid));
    let bystander = rig.launch("true");
    rig.start_with(LeaseId(2), bystander, vec![rank(&[grant(GPU, 1)], &[])], None);
    assert_eq!(rig.story().outcome, Outcome::Finished);
}

#[test]
fn a_program_that_does_not_wait_is_started_again_with_devices() {
    let mut rig = Rig::new();
    let launch = warm(&rig, "echo ran >> story");
    let ranks = vec![rank(&[grant(GPU, 1)], &[])];
    rig.submit(prepare(launch.clone(), ranks.clone()));
    assert_eq!(ended_early(&mut rig), "it ended with 0 before it had devices");
    rig.start_with(LEASE, launch, ranks, None);
    let story = rig.story();
    assert_eq!((story.outcome, story.started), (Outcome::Finished, 1));
    assert_eq!(rig.read("story"), "ran\nran\n");
}

#[test]
fn what_cannot_be_begun_early_is_reported_and_starts_as_ever() {
    let mut rig = Rig::new();
    let nowhere = Launch { argv: vec!["/nowhere".to_owned()], ..warm(&rig, "") };
    let counts = Launch { argv: vec!["deepspeed".to_owned()], ..warm(&rig, "") };
    let both = [(nowhere, "`/nowhere` does not exist"), (counts, "counts devices first")];
    for (launch, why) in both {
        rig.submit(prepare(launch, vec![rank(&[grant(GPU, 1)], &[])]));
        let reason = ended_early(&mut rig);
        assert!(reason.contains(why), "{reason}");
    }
    assert_eq!(rig.run("true", 1).outcome, Outcome::Finished);
}

/// A supervisor dies after it gave a program its devices, and before the program was told.
#[test]
fn the_next_supervisor_tells_a_program_its_devices() {
    let mut rig = Rig::new();
    let script = format!("{WAITS}; echo '{{\"done\":true}}' >> $HET_PROGRESS");
    let launch = warm(&rig, &script);
    let ranks = vec![rank(&[grant(OTHER_GPU, 1)], &[])];
    rig.submit(prepare(launch.clone(), ranks.clone()));
    rig.await_file("imported");
    let live = rig.live_lease(launch, ranks);
    let (dir, node) = rig.into_parts();
    node.abandon();
    let mut node = Node::new(config(Default::default(), &dir.path().join("run"))).expect("it fits");
    node.adopt_leases([(live, None)].into_iter());
    let outcome = loop {
        let until = node.now() + PATIENCE;
        let (_, event) = node.next_event(Some(until)).expect("it ends in time");
        if let Event::StageEnded { outcome, .. } = event {
            break outcome;
        }
    };
    assert_eq!(outcome, Outcome::Finished);
    let story = std::fs::read_to_string(dir.path().join("story")).expect("it ran");
    assert_eq!(story, "imports:\ndevices:1\n", "the same process went on");
}

/// A supervisor dies while a program waits: nobody will give it devices.
#[test]
fn the_next_supervisor_kills_a_program_that_has_no_lease() {
    let mut rig = Rig::new();
    rig.submit(prepare(warm(&rig, WAITS), vec![rank(&[grant(GPU, 1)], &[])]));
    rig.await_file("imported");
    let pid = rig.read("pid");
    let (dir, node) = rig.into_parts();
    node.abandon();
    let mut node = Node::new(config(Default::default(), &dir.path().join("run"))).expect("it fits");
    assert!(is_alive(&pid));
    node.adopt_leases(std::iter::empty());
    assert!(!is_alive(&pid));
    assert!(!dir.path().join(format!("run/lease-{}", LeaseId(1))).exists());
}
