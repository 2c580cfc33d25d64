//! What programs report, and what is seen of those that report nothing.

use het_core::{Micro, Outcome};

use crate::rig::{CPU, LEASE, Rig, grant, rank};

fn steps(rig: &mut Rig, script: &str) -> Vec<u64> {
    let story = rig.run(script, 1);
    story.checkpoints.iter().map(|checkpoint| checkpoint.step).collect()
}

#[test]
fn nothing_is_lost_at_the_exit() {
    let mut rig = Rig::new();
    let script = r#"i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo "{\"step\":$i}"; done \
        >> $HET_PROGRESS
        echo '{"checkpoint":{"step":1,"path":"a"},"result":{"loss_after":0.5}}' >> $HET_PROGRESS
        echo '{"checkpoint":{"step":2,"path":"/b"},"driver":"cuda","detail":"H200"}' \
            >> $HET_PROGRESS
        printf '{"message":"bye","done":true}' >> $HET_PROGRESS"#;
    let story = rig.run(script, 1);
    assert_eq!(story.outcome, Outcome::Finished);
    assert_eq!(story.progress.step, Some(2000));
    assert_eq!(story.progress.results["loss_after"], Micro(500_000));
    assert_eq!(story.progress.message.as_deref(), Some("bye"));
    assert_eq!(story.progress.ran_on, Some("cuda (H200)".into()));
    let paths: Vec<&str> = story.checkpoints.iter().map(|saved| saved.path.as_str()).collect();
    assert_eq!(paths, [rig.path("a").to_str().expect("the path is text"), "/b"]);
    assert!(story.reports < 20, "2000 lines became {} reports", story.reports);
}

#[test]
fn malformed_lines_harm_nothing() {
    let mut rig = Rig::new();
    let story =
        rig.run("echo 'step two' >> $HET_PROGRESS; echo '{\"step\":3}' >> $HET_PROGRESS", 1);
    assert_eq!(story.outcome, Outcome::Finished);
    assert_eq!(story.progress.step, Some(3));
    let message = story.progress.message.expect("the trouble is told");
    assert_eq!(message, "1 progress line(s) not understood, first line 1: `step two`");
}

#[test]
fn processor_time_is_counted_with_children() {
    let mut rig = Rig::new();
    let script = "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; exit 0";
    let busy = rig.run(script, 1).progress.busy.expect("a gang on the CPU is measured");
    assert!(busy.0 > 0);
}

#[test]
fn a_checkpoint_that_is_renamed_into_place_is_complete() {
    let mut rig = Rig::new();
    rig.start(
        "mkdir ckpt/tmp-checkpoint-5; mv ckpt/tmp-checkpoint-5 ckpt/checkpoint-5; \
               sleep 60",
        1,
    );
    let checkpoint = loop {
        if let (_, het_core::Event::Checkpointed { checkpoint, .. }) = rig.next() {
            break checkpoint;
        }
    };
    assert_eq!(checkpoint.step, 5);
    assert_eq!(checkpoint.path, rig.path("ckpt/checkpoint-5").to_string_lossy());
}

#[test]
fn a_checkpoint_made_in_place_is_complete_with_the_next_or_an_orderly_exit() {
    let two = "mkdir ckpt/checkpoint-5; mkdir ckpt/checkpoint-10; mkdir ckpt/other";
    assert_eq!(steps(&mut Rig::new(), two), [5, 10]);
    assert_eq!(steps(&mut Rig::new(), &format!("{two}; kill -KILL $$")), [5]);
}

#[test]
fn a_trainer_state_completes_a_checkpoint_and_is_progress() {
    let mut rig = Rig::new();
    let state = r#"{"global_step":5,"max_steps":20,"log_history":[{"loss":2.5},{"eval":1}]}"#;
    rig.start(&format!(
        "mkdir ckpt/checkpoint-5; echo '{state}' > ckpt/checkpoint-5/trainer_state.json; sleep 60"
    ), 1);
    rig.await_step(5);
    let (_, event) = rig.next();
    assert!(matches!(event, het_core::Event::Checkpointed { .. }), "{event:?}");
}

#[test]
fn a_truncated_checkpoint_is_told_and_not_reported() {
    let mut rig = Rig::new();
    let script = "for step in 5 10; do mkdir t; printf '\\002\\0\\0\\0\\0\\0\\0\\0{}' \
                  > t/model.safetensors; [ $step = 5 ] || truncate -s 9 t/model.safetensors; \
                  mv t ckpt/checkpoint-$step; done";
    let story = rig.run(script, 1);
    let steps: Vec<u64> = story.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!(steps, [5]);
    let message = story.progress.message.expect("the damage is told");
    assert!(message.contains("step 10 does not count"), "{message}");
    assert!(message.ends_with("model.safetensors` is truncated"), "{message}");
}

#[test]
fn checkpoints_of_earlier_attempts_are_not_reported() {
    let mut rig = Rig::new();
    std::fs::create_dir_all(rig.path("ckpt/checkpoint-5")).expect("a directory can be made");
    assert_eq!(steps(&mut rig, "mkdir ckpt/checkpoint-10"), [10]);
}

#[test]
fn a_checkpoint_is_reported_once_however_it_is_seen() {
    let mut rig = Rig::new();
    let script = r#"mkdir t; mv t ckpt/checkpoint-5
        echo "{\"checkpoint\":{\"step\":5,\"path\":\"$HET_CHECKPOINT_DIR/checkpoint-5\"}}" \
            >> $HET_PROGRESS"#;
    assert_eq!(steps(&mut rig, script), [5]);
}

#[test]
fn a_program_that_writes_often_and_then_rests_is_read_to_the_last_line() {
    let mut rig = Rig::new();
    let script = "for step in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do \
                  echo \"{\\\"step\\\":$step}\" >> $HET_PROGRESS; sleep 0.05; done; \
                  until [ -e go ]; do sleep 0.01; done; \
                  echo '{\"step\":16}' >> $HET_PROGRESS; until [ -e end ]; do sleep 0.01; done";
    rig.start(script, 1);
    rig.await_step(15);
    std::fs::write(rig.path("go"), "").expect("a file can be written");
    rig.await_step(16);
    std::fs::write(rig.path("end"), "").expect("a file can be written");
    rig.story();
}

/// Steps that are found of a program without a `checkpoint:` line.
#[track_caller]
fn undeclared_steps(script: &str) -> Vec<u64> {
    let mut rig = Rig::new();
    let mut launch = rig.launch(script);
    launch.checkpoint = None;
    let ranks = vec![rank(&[grant(CPU, 1)], &[])];
    rig.start_with(LEASE, launch, ranks, None);
    rig.story().checkpoints.iter().map(|checkpoint| checkpoint.step).collect()
}

#[test]
fn checkpoints_of_frameworks_are_found_without_being_declared() {
    let trainer = "mkdir -p out/checkpoint-5; \
                   echo '{\"global_step\":5}' > out/checkpoint-5/trainer_state.json";
    // One that is so short is looked at where it may go on.
    let saved = |script: &str| undeclared_steps(&format!("{script}; exit 75"));
    assert_eq!(saved(trainer), [5]);
    assert_eq!(undeclared_steps(&format!("{trainer}; kill -KILL $$")), [5]);
    let lightning = "mkdir -p lightning_logs/version_0/checkpoints; \
                     { printf 'PK..global_stepq\\002K\\012'; printf 'PK\\005\\006'; \
                       head -c 18 /dev/zero; } > lightning_logs/version_0/checkpoints/last.ckpt";
    assert_eq!(saved(lightning), [10]);
    let deepspeed = "mkdir -p ds/global_step40; : > ds/global_step40/mp_rank_00_model_states.pt; \
                     echo global_step40 > ds/latest";
    assert_eq!(saved(deepspeed), [40]);
    let accelerate = "mkdir -p run/step_20; { printf 'PK\\005\\006'; head -c 18 /dev/zero; } \
                      > run/step_20/random_states_0.pkl";
    assert_eq!(saved(accelerate), [20]);
}
