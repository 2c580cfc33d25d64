//! How a gang ends.

use het_core::{Bytes, FailureCause, Millis, Outcome, StallRule};

use crate::rig::{CPU, LEASE, Rig, grant, is_alive, rank};

/// Long enough never to pass.
const LONG: Millis = Millis(60_000);

/// Reports where it is, so that a test does not stop it before it listens.
const READY: &str = r#"echo '{"step":1}' >> $HET_PROGRESS;"#;

#[test]
fn the_first_rank_to_fail_is_named_with_its_last_words() {
    let mut rig = Rig::new();
    let story = rig.run("[ $RANK = 1 ] && { echo boom; echo; exit 7; }; exec sleep 60", 3);
    let failure = story.failure();
    assert_eq!((failure.rank, failure.exit_code), (1, 7));
    assert_eq!(failure.message, "rank 1 exited with code 7: boom");
}

#[test]
fn a_signal_is_named() {
    let mut rig = Rig::new();
    let story = rig.run("kill -KILL $$", 1);
    assert_eq!(story.failure().exit_code, 137);
    assert!(story.failure().message.starts_with("rank 0 was killed by SIGKILL"));
}

#[test]
fn exit_75_is_a_stop_that_nobody_asked_for_where_something_new_is_saved() {
    let save = r#"echo '{"checkpoint":{"step":3,"path":"a"}}' >> $HET_PROGRESS; exit 75"#;
    assert_eq!(Rig::new().run(save, 2).outcome, Outcome::Stopped);
    let story = Rig::new().run("exit 75", 2);
    let failure = story.failure();
    assert_eq!((failure.exit_code, failure.cause), (75, FailureCause::Program));
    assert!(failure.message.contains("without a newer checkpoint"), "{}", failure.message);
}

#[test]
fn every_rank_gets_the_notice_and_its_file() {
    let mut rig = Rig::new();
    let script = format!(
        "[ -e $HET_NOTICE ] && echo too early; \
         trap 'cat $HET_NOTICE; echo; exit 75' USR1; [ $RANK = 0 ] || {{ sleep 60 & wait; }}; \
         until [ -e peer ]; do sleep 0.01; done; {READY} sleep 60 & wait"
    );
    // Rank 1 says when it listens; rank 0 then says that both do.
    let script = script.replace("|| {", "|| { : > peer;");
    let mut launch = rig.launch(&script);
    launch.checkpoint.as_mut().expect("the rig has checkpoints").notice = "SIGUSR1".into();
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[]); 2], None);
    rig.await_step(1);
    rig.stop(LONG);
    assert_eq!(rig.story().outcome, Outcome::Stopped);
    for rank in 0..2 {
        let log = rig.log(rank);
        assert!(log.starts_with("{\"deadline_ms\":"), "{log}");
        assert!(log.ends_with(",\"grace_ms\":60000,\"reason\":\"user\"}\n"), "{log}");
    }
}

#[track_caller]
fn check_exit_while_stopping(on_notice: &str, expected: &Outcome) {
    let mut rig = Rig::new();
    rig.start(
        &format!("notice() {{ {on_notice}; }}; trap notice TERM; {READY} sleep 60 & wait"),
        1,
    );
    rig.await_step(1);
    rig.stop(LONG);
    assert_eq!(&rig.story().outcome, expected, "{on_notice}");
}

#[test]
fn finishing_while_stopping_counts_only_when_said() {
    check_exit_while_stopping("exit 0", &Outcome::Stopped);
    check_exit_while_stopping("exit 1", &Outcome::Stopped);
    let done = "echo '{\"done\":true}' >> $HET_PROGRESS; exit 0";
    check_exit_while_stopping(done, &Outcome::Finished);
}

#[test]
fn a_shell_that_dies_of_the_notice_leaves_its_program_the_time_to_save() {
    let mut rig = Rig::new();
    let program = format!("trap \"echo saved; exit 75\" TERM; {READY} sleep 60 & wait");
    let program = program.replace(READY, ": > $HET_OUTPUT/ready;");
    let script = format!(
        "sh -c '{program}' & until [ -e $HET_OUTPUT/ready ]; do sleep 0.01; done; {READY} wait"
    );
    rig.start(&script, 1);
    rig.await_step(1);
    rig.stop(LONG);
    assert_eq!(rig.story().outcome, Outcome::Stopped);
    assert_eq!(rig.log(0), "saved\n");
}

#[test]
fn the_survivors_of_a_failure_are_killed_when_sigterm_is_not_enough() {
    let mut rig = Rig::new();
    let script = "[ $RANK = 0 ] && { until [ -e deaf ]; do sleep 0.01; done; exit 7; }; \
                  trap '' TERM; : > deaf; sleep 60";
    assert_eq!(rig.run(script, 2).failure().exit_code, 7);
}

#[test]
fn the_deaf_are_killed_at_the_deadline() {
    let mut rig = Rig::new();
    rig.start(&format!("trap '' TERM; {READY} sleep 60"), 2);
    rig.await_step(1);
    rig.stop(Millis(50));
    assert_eq!(rig.story().outcome, Outcome::Stopped);
}

#[test]
fn another_notice_is_followed_by_sigterm() {
    let mut rig = Rig::new();
    let script = format!(
        "trap '' USR1; trap 'echo terminated; exit 1' TERM; {READY} \
                          sleep 60 & wait"
    );
    let mut launch = rig.launch(&script);
    launch.checkpoint.as_mut().expect("the rig has checkpoints").notice = "USR1".into();
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[])], None);
    rig.await_step(1);
    rig.stop(Millis(50));
    assert_eq!(rig.story().outcome, Outcome::Stopped);
    assert_eq!(rig.log(0), "terminated\n");
}

#[test]
fn a_second_stop_brings_the_deadline_forward() {
    let mut rig = Rig::new();
    rig.start(&format!("trap '' TERM; {READY} sleep 60"), 1);
    rig.await_step(1);
    rig.stop(LONG);
    rig.stop(Millis(0));
    assert_eq!(rig.story().outcome, Outcome::Stopped);
}

#[test]
fn grandchildren_do_not_outlive_the_gang() {
    let mut rig = Rig::new();
    let script = "sleep 60 & echo $! > orphan; setsid sh -c 'echo $$ > session; exec sleep 60' & \
                  until [ -s session ]; do sleep 0.01; done";
    assert_eq!(rig.run(script, 1).outcome, Outcome::Finished);
    for name in ["orphan", "session"] {
        assert!(!is_alive(&rig.read(name)), "`{name}` is killed");
    }
}

#[test]
fn nothing_of_a_lease_stays_behind_but_its_logs() {
    let mut rig = Rig::new();
    rig.start(&format!("{READY} sleep 60"), 1);
    rig.await_step(1);
    assert!(rig.path("run/record-1").exists());
    rig.stop(LONG);
    rig.story();
    let Rig { node, dir, .. } = rig;
    drop(node);
    assert!(!dir.path().join("run").exists(), "nothing is left in it");
}

#[test]
fn a_dropped_engine_kills_its_gangs() {
    let mut rig = Rig::new();
    rig.start(&format!("echo $$ > pid; trap '' TERM; {READY} sleep 60"), 1);
    rig.await_step(1);
    let pid = rig.read("pid");
    drop(rig);
    assert!(!is_alive(&pid));
}

#[test]
fn a_gang_that_hangs_is_ended_and_what_it_did_is_kept() {
    let mut rig = Rig::new();
    let script = "for step in 1 2 3; do echo \"{\\\"step\\\":$step}\" >> $HET_PROGRESS; sleep 0.3; \
                  done; trap '' TERM; sleep 1000 & wait; sleep 1000";
    let mut launch = rig.launch(script);
    launch.stall = StallRule::After(Millis(2_000));
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[])], None);
    let story = rig.story();
    let failure = story.failure();
    assert_eq!(failure.cause, FailureCause::Stalled, "{failure:?}");
    let stacks = failure.message.split('`').nth(1).expect("it names the file of the stacks");
    let text = std::fs::read_to_string(stacks).expect("the stacks were kept");
    assert!(text.contains("comm: sleep"), "{text}");
}

#[test]
fn a_gang_whose_files_take_up_too_much_space_is_ended() {
    let mut rig = Rig::new();
    let script = "head -c 4194304 /dev/zero > $HET_OUTPUT/large; trap '' TERM; sleep 1000";
    let mut launch = rig.launch(script);
    launch.scratch = Some(Bytes(1 << 20));
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[])], None);
    let story = rig.story();
    let failure = story.failure();
    assert_eq!(failure.cause, FailureCause::ScratchLimit, "{failure:?}");
    assert!(failure.message.contains("more than the 1MiB of `scratch`"), "{failure:?}");
}
