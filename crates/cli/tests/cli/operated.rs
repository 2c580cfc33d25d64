//! What operators and users do to jobs and devices of a server while they run.

use std::sync::Arc;

use het_control::{Past, redecide};
use het_policy::{Cadence, by_name};
use het_server::EventStore;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::commands::wait_for;
use crate::support::{Served, states, whole_machine};

/// A stage that saves when it is told to stop, and says each time that it begins.
const SAVES: &str = r#"
name: saves
kind: train
devices: cpu:1
checkpoint: 1h
resume: ["{checkpoint}"]
run:
  - sh
  - -c
  - |
    save() {
      mkdir -p saved
      echo '{"checkpoint":{"step":1,"path":"saved"}}' >> $HET_PROGRESS
      exit 0
    }
    trap save TERM
    echo begun >> begun
    while :; do sleep 0.02; done
"#;

fn begun(served: &Served) -> usize {
    let text = std::fs::read_to_string(served.0.path().join("begun")).unwrap_or_default();
    text.lines().count()
}

fn device(served: &Served) -> String {
    served.json(&["devices"])["items"][0]["name"].as_str().expect("a name").to_owned()
}

fn state(served: &Served, job: &str) -> Value {
    served.json(&["ps"])["items"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["name"] == job))
        .map_or(Value::Null, |row| row["state"].clone())
}

#[test]
fn a_drained_device_is_emptied_and_takes_nobody_until_it_is_back() {
    let served = Served::new();
    served.0.write("saves.yaml", SAVES);
    let go = "until [ -e go ]; do sleep 0.02; done";
    let stays = served.submit(go).to_string();
    assert_eq!(served.code(&["submit", "saves.yaml"]), Some(0));
    wait_for("the job to begin", || begun(&served) == 1);
    let name = device(&served);
    let drained = served.json(&["devices", "drain", &name]);
    assert_eq!(drained["items"][0]["state"], "draining");
    wait_for("it to have saved", || state(&served, "saves") == "migrating");
    assert_eq!(state(&served, "sh"), "running", "what cannot save ends in peace");
    served.0.write("go", "");
    assert_eq!(served.code(&["wait", &stays]), Some(0));
    let listed = served.json(&["devices"]);
    assert_eq!(listed["items"][0]["state"], "drained");
    assert_eq!(begun(&served), 1, "nothing starts there");
    let told = served.run(&["explain", "saves"]).stdout;
    assert!(String::from_utf8_lossy(&told).contains("out of service, see `het devices"));
    let back = served.json(&["devices", "undrain", &name]);
    assert_eq!(back["items"][0]["state"], "up");
    wait_for("the job to go on", || begun(&served) == 2);
    assert_eq!(served.code(&["devices", "drain", "none"]), Some(3));
}

#[test]
fn a_job_that_becomes_urgent_makes_room_for_itself() {
    let served = Served::new();
    served.0.write("saves.yaml", SAVES);
    let saves = std::fs::read_to_string(served.0.path().join("saves.yaml")).expect("it is there");
    let whole = whole_machine(&served, "first", "normal", "[\"true\"]", "");
    let whole = std::fs::read_to_string(whole).expect("it is there");
    let units = whole.lines().find_map(|line| line.trim().strip_prefix("devices: "));
    let all = saves.replace("cpu:1", units.expect("a number of cores"));
    served.0.write("saves.yaml", &all);
    served.run(&["submit", "saves.yaml"]);
    wait_for("the job to begin", || begun(&served) == 1);
    let waits = served.submit("true").to_string();
    wait_for("the first to run", || states(&served.json(&["ps"])) == ["running", "queued"]);
    let equals = &served.json(&["preempt", "--dry-run", "saves"])["items"][0];
    assert_eq!((&equals["outlook"], &equals["preemptor"]), (&"goes_on".into(), &Value::Null));
    assert_eq!(equals["load_s"], 23.0, "what a stop would cost all the same");
    assert_eq!(served.code(&["preempt", "saves"]), Some(6));
    let set = served.json(&["set", &waits, "--priority", "urgent", "--time-limit", "1h"]);
    assert_eq!(set["items"][0]["priority"], "urgent");
    assert_eq!(served.code(&["wait", &waits]), Some(0));
    wait_for("the first to go on", || begun(&served) == 2);
    assert_eq!(served.json(&["ps"])["items"][0]["preemptions"], 1);
    assert_eq!(served.code(&["set", &waits, "--priority", "low"]), Some(6), "it has ended");
    assert_eq!(served.code(&["set", "saves", "--priority", "soon"]), Some(2));
    assert_eq!(served.code(&["set", "saves", "--time-limit", "long"]), Some(2));
}

#[test]
fn a_job_is_preempted_by_hand_where_no_policy_would() {
    let served = Served::under_policy("static");
    served.0.write("saves.yaml", SAVES);
    served.run(&["submit", "saves.yaml"]);
    wait_for("the job to begin", || begun(&served) == 1);
    let urgent = whole_machine(&served, "urgent", "urgent", "[\"true\"]", "");
    let id = served.json(&["submit", &urgent])["id"].as_u64().expect("an id");
    assert_eq!(state(&served, "urgent"), "queued");
    let weighed = &served.json(&["preempt", "--dry-run", "saves"])["items"][0];
    assert_eq!((&weighed["preemptor"], &weighed["pays"]), (&id.into(), &true.into()));
    assert_eq!(weighed["beneficiary"], weighed["preemptor"], "its name for one version more");
    assert_eq!(weighed["outlook"], "on_request");
    let waits = &served.json(&["preempt", "--dry-run", "urgent"])["items"][0];
    assert_eq!((&waits["outlook"], &waits["victim"]), (&"waits".into(), &Value::Null));
    assert_ne!(waits["reasons"], Value::Null, "it says why nobody is stopped for it");
    assert_eq!(state(&served, "saves"), "running", "nothing was done");
    assert_eq!(served.code(&["preempt", "saves"]), Some(0));
    assert_eq!(served.code(&["wait", &id.to_string()]), Some(0));
    wait_for("the first to go on", || begun(&served) == 2);
    let stop = &served.json(&["describe", "saves"])["stages"][0]["stops"][0];
    assert_eq!((&stop["cause"], &stop["preemptor"]), (&"priority".into(), &id.into()));
    assert_eq!(stop["preemptor_name"], "urgent");
    assert!(stop["expected"]["device_s"].is_number() && stop["lost"]["unsaved_s"].is_number());
    let told = served.run(&["explain", "saves"]).stdout;
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains(&format!("(priority) for job {id} `urgent`; lost")), "{told}");
}

#[test]
fn what_is_not_preemptible_is_left_alone() {
    let served = Served::under_policy("adaptive");
    let saves = format!("{SAVES}\npreemptible: false\n");
    served.0.write("saves.yaml", &saves);
    served.run(&["submit", "saves.yaml"]);
    wait_for("the job to begin", || begun(&served) == 1);
    let urgent = whole_machine(&served, "urgent", "urgent", "[\"true\"]", "");
    served.json(&["submit", &urgent]);
    let told = &served.json(&["preempt", "--dry-run", "saves"])["items"][0];
    assert_eq!(told["outlook"], "not_preemptible");
    let refused = served.run(&["preempt", "saves"]);
    assert_eq!(refused.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("may not be preempted now"));
    served.run(&["hold", "saves"]);
    assert_eq!(served.code(&["wait", "urgent"]), Some(0), "its user stops it all the same");
    wait_for("nothing to run", || state(&served, "saves") == "held");
    let held = &served.json(&["preempt", "--dry-run", "saves"])["items"][0];
    assert_eq!((&held["outlook"], &held["victim"]), (&"starts_once_released".into(), &Value::Null));
}

#[test]
fn quotas_hold_from_the_moment_they_are_set() {
    let served = Served::new();
    served.submit("true");
    let class = served.json(&["devices"])["items"][0]["class"].as_str().expect("one").to_owned();
    let text = format!(
        "apiVersion: heterosis.dev/v1alpha1\nkind: Quotas\ntenants:\n  lab:\n    \
         limit: {{ {class}: 1 }}\n"
    );
    served.0.write("quotas.yaml", &text);
    let set = served.json(&["quotas", "--set", "quotas.yaml"]);
    assert_eq!((&set["items"][0]["tenant"], &set["items"][0]["limit"]), (&"lab".into(), &1.into()));
    let submit = |script| {
        let of_lab = ["submit", "--tenant", "lab", "-o", "json", "--", "sh", "-c", script];
        served.run(&of_lab);
    };
    submit("until [ -e go ]; do sleep 0.02; done");
    submit("true");
    wait_for("the first to run", || states(&served.json(&["ps"])) == ["running", "queued"]);
    assert_eq!(served.json(&["quotas"])["items"][0]["held"], 1);
    let empty = "{ apiVersion: heterosis.dev/v1alpha1, kind: Quotas, tenants: {} }";
    served.0.write("quotas.yaml", empty);
    assert_eq!(served.code(&["quotas", "--set", "quotas.yaml"]), Some(0));
    assert_eq!(served.code(&["wait", "3"]), Some(0), "nobody is limited any more");
    served.0.write("quotas.yaml", "tenants: 7");
    assert_eq!(served.code(&["quotas", "--set", "quotas.yaml"]), Some(2));
    served.0.write("go", "");
}

#[test]
fn a_device_that_fails_its_health_check_is_used_no_more_until_somebody_takes_it_back() {
    let served = Served::new();
    let check = served.0.write("check.sh", "#!/bin/sh\necho looked at $HET_JOB\n[ ! -e sick ]\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(check, mode).expect("it is ours");
    let served = served.start(&["--health-check", "check.sh"]);
    served.0.write("sick", "");
    let id = served.submit("exit 4").to_string();
    let failed = || served.json(&["devices"])["items"][0]["state"] == "failed";
    wait_for("the device to fail", failed);
    assert_eq!(state(&served, "sh"), "restarting", "the job is not to blame");
    std::fs::remove_file(served.0.path().join("sick")).expect("it is there");
    assert_eq!(served.code(&["devices", "undrain", &device(&served)]), Some(0));
    assert_eq!(served.code(&["wait", &id]), Some(4), "its own code");
    let said = served.run(&["logs", &id]).stdout;
    assert_eq!(String::from_utf8_lossy(&said), "looked at sh\n", "before its program began");
    let refused = served.run(&["server", "--health-check", "no-such-program"]);
    assert_ne!(refused.status.code(), Some(0));
}

#[test]
fn a_token_is_listed_without_its_secret_until_it_is_revoked() {
    let served = Served::new();
    let made = served.run(&["server", "token", "--role", "viewer", "--tenant", "lab"]).stdout;
    assert!(made.starts_with(b"het_"));
    let listed = served.json(&["server", "tokens"]);
    let row = &listed["items"][0];
    assert_eq!((&row["role"], &row["tenant"]), (&"viewer".into(), &"lab".into()));
    let id = row["id"].as_str().expect("an id");
    assert_eq!(served.code(&["server", "revoke", id]), Some(0));
    assert_eq!(served.code(&["server", "revoke", id]), Some(3), "it is gone");
}

#[test]
fn what_it_took_to_come_back_from_a_fault_is_told_by_its_parts() {
    let served = Served::new();
    let text = r#"
name: mends
kind: train
devices: cpu:1
retries: 1
run:
  - sh
  - -c
  - |
    say() { echo "{\"step\":$1}" >> $HET_PROGRESS; sleep 0.3; }
    say 1; say 2
    [ $HET_ATTEMPT = 1 ] && exit 9
    say 3
"#;
    served.0.write("mends.yaml", text);
    assert_eq!(served.code(&["submit", "--wait", "mends.yaml"]), Some(0));
    let told = &served.json(&["describe", "mends"])["stages"][0]["recoveries"];
    assert_eq!(told["count"], 1, "{told}");
    assert!(told["recompute_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "{told}");
    let summary = served.run(&["describe", "mends"]).stdout;
    assert!(String::from_utf8_lossy(&summary).contains("came back from 1 fault: "));
}

/// Kills the server, which its keeper starts again.
fn kill_server(served: &Served) {
    let pid = served.json(&["server", "status"])["pid"].as_i64().expect("a process id");
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("it runs");
    wait_for("the next server", || served.code(&["server", "status"]) == Some(0));
}

#[test]
fn every_decision_follows_from_the_log() {
    let served = Served::new();
    served.0.write("saves.yaml", SAVES);
    let whole = whole_machine(&served, "whole", "normal", "[\"true\"]", "");
    let whole = std::fs::read_to_string(whole).expect("it is there");
    let units = whole.lines().find_map(|line| line.trim().strip_prefix("devices: "));
    served.0.write("saves.yaml", &SAVES.replace("cpu:1", units.expect("a number of cores")));
    served.run(&["submit", "saves.yaml"]);
    wait_for("the job to begin", || begun(&served) == 1);
    let crashes = served.submit("exit 7").to_string();
    let waits = served.submit("sleep 0.2").to_string();
    served.run(&["set", &waits, "--priority", "urgent"]);
    assert_eq!(served.code(&["wait", &waits]), Some(0));
    kill_server(&served);
    wait_for("the first to go on", || begun(&served) == 2);
    let name = device(&served);
    served.run(&["devices", "drain", &name]);
    wait_for("it to have left", || state(&served, "saves") != "running");
    kill_server(&served);
    served.run(&["devices", "undrain", &name]);
    wait_for("the job to go on", || begun(&served) == 3);
    served.run(&["set", &crashes, "--priority", "high"]);
    assert_ne!(served.code(&["wait", &crashes]), Some(0));
    served.run(&["server", "stop"]);
    assert_decided_again(&served, 8);
    // What still runs is ended by a server.
    served.start(&[]);
}

/// Whether every decision of a server that has ended follows from its log: made anew it comes out
/// the same. It made more than so many.
#[track_caller]
pub fn assert_decided_again(served: &Served, count: usize) {
    let path = served.0.path().join("home/server/events.redb");
    let mut store = None;
    wait_for("the store to be closed", || {
        store = EventStore::open(&path).ok();
        store.is_some()
    });
    let store = store.expect("it was opened").reader();
    let past = Past::new(Arc::new(store.topology().expect("it is there")));
    let events = store.events().expect("all of them are there");
    let policy = by_name("adaptive").expect("the table has it");
    let (decisions, differences) = redecide(past, &events, policy, Cadence::default());
    assert!(decisions > count, "{decisions} decisions");
    assert_eq!(differences, []);
}
