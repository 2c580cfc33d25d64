//! What a server does about its event store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use het_server::EventStore;

use crate::commands::wait_for;
use crate::support::{Sandbox, Served};

/// Ends the server and waits until nobody has its store open.
fn close(served: &Served) -> PathBuf {
    served.run(&["server", "stop"]);
    let path = served.0.path().join("home/server/events.redb");
    wait_for("the store to be closed", || EventStore::open(&path).is_ok());
    path
}

#[test]
fn a_store_that_is_missing_beside_jobs_is_begun_anew_only_when_told() {
    let served = Served::new();
    let job = served.submit("true").to_string();
    assert_eq!(served.code(&["wait", &job]), Some(0));
    let store = close(&served);
    let aside = store.with_extension("aside");
    fs::rename(&store, &aside).expect("it is closed");

    let refused = served.run(&["server"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(6), "{told}");
    assert!(told.contains("is missing, but 1 of its jobs left directories"), "{told}");
    assert!(told.contains("`het server --new-store`"), "{told}");
    assert!(!store.exists(), "nothing was begun");

    fs::rename(&aside, &store).expect("nobody took its place");
    let served = served.start(&[]);
    assert_eq!(served.json(&["describe", &job])["state"], "succeeded");
    fs::remove_file(close(&served)).expect("it is closed");

    let served = served.start(&["--new-store"]);
    assert_eq!(served.json(&["ps", "--all"])["items"], serde_json::json!([]));
    assert!(served.submit("true") > job.parse().expect("an id"), "no directory gets a second job");
}

#[test]
fn a_check_names_the_event_that_is_damaged() {
    let served = Served::new();
    let job = served.submit("true").to_string();
    assert_eq!(served.code(&["wait", &job]), Some(0));
    assert_eq!(served.code(&["server", "check"]), Some(0), "a server looks at its own");
    let store = close(&served);
    assert_eq!(served.code(&["server", "check"]), Some(0));

    let mut image = fs::read(&store).expect("it is closed");
    let places: Vec<usize> =
        (0..image.len()).filter(|&at| image[at..].starts_with(b"job_submitted")).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| image[at] = b'J');
    fs::write(&store, image).expect("it is closed");
    let checked = served.run(&["server", "check", "-o", "json"]);
    assert_eq!(checked.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&checked.stdout).expect("it is JSON");
    let damage = told["items"][0]["damage"][0].as_str().expect("one is damaged");
    assert!(damage.starts_with("event ") && damage.contains("hash does not fit"), "{damage}");

    let served = served.start(&[]);
    assert_eq!(served.json(&["describe", &job])["state"], "succeeded", "the copy has it");
    let next = served.submit("true").to_string();
    assert_eq!(served.code(&["wait", &next]), Some(0));
    close(&served);
    assert_eq!(served.code(&["server", "check"]), Some(0), "it is sound again");
    assert!(store.with_extension("damaged-1").exists(), "what was damaged is kept");
}

#[test]
fn a_directory_of_live_leases_that_was_removed_is_made_again() {
    let served = Served::new();
    let first = served.submit("true").to_string();
    assert_eq!(served.code(&["wait", &first]), Some(0));
    fs::remove_dir_all(served.0.path().join("home/run")).expect("it is there");
    let script = r#"echo '{"step": 3, "total": 5}' >> "$HET_PROGRESS""#;
    let second = served.submit(script).to_string();
    assert_eq!(served.code(&["wait", &second]), Some(0), "{}", served.json(&["describe", &second]));
    let told = served.json(&["describe", &second]);
    assert!(told.to_string().contains("\"step\":3"), "{told}");
}

#[test]
fn a_store_that_was_removed_under_a_server_is_noticed_and_taken_back() {
    let served = Served::new();
    let job = served.submit("true").to_string();
    assert_eq!(served.code(&["wait", &job]), Some(0));
    let store = served.0.path().join("home/server/events.redb");
    let aside = store.with_extension("aside");
    fs::rename(&store, &aside).expect("it is there");
    let refused = served.run(&["submit", "--", "true"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{told}");
    assert!(told.contains("events.redb` is missing"), "{told}");
    assert_eq!(served.json(&["describe", &job])["state"], "succeeded");
    fs::rename(&aside, &store).expect("nobody took its place");
    wait_for("the server to go on", || {
        served.json(&["server", "status"])["storage"] == serde_json::Value::Null
    });
    let job = served.submit("true").to_string();
    assert_eq!(served.code(&["wait", &job]), Some(0));
}

/// A job that has ended, and one that runs until its user lets it go.
fn one_ended_and_one_running(served: &Served) -> (String, String) {
    let ended = served.submit("true").to_string();
    assert_eq!(served.code(&["wait", &ended]), Some(0));
    let running = served.submit("until [ -e go ]; do sleep 0.02; done").to_string();
    wait_for("the job to run", || served.json(&["describe", &running])["state"] == "running");
    (ended, running)
}

/// The original's job goes on, and the other server holds it.
fn check_parted(original: &Served, other: Served, (ended, running): (&str, &str)) {
    let other = other.start(&[]);
    assert_eq!(other.json(&["describe", ended])["state"], "succeeded");
    assert_eq!(other.json(&["describe", running])["state"], "held");
    assert_eq!(original.json(&["describe", running])["state"], "running");
    original.0.write("go", "");
    assert_eq!(original.code(&["wait", running]), Some(0), "nobody killed it");
    other.0.write("go", "");
    assert_eq!(other.code(&["release", running]), Some(0));
}

#[test]
fn a_backup_of_a_running_server_is_another_state_that_holds_what_had_not_ended() {
    let served = Served::new();
    let (ended, running) = one_ended_and_one_running(&served);
    let file = served.0.path().join("backup");
    let name = file.to_string_lossy().into_owned();
    assert_eq!(served.code(&["server", "backup", &name]), Some(0));
    let mode = fs::metadata(&file).expect("it was written").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(served.code(&["server", "backup", &name]), Some(6), "nothing is overwritten");

    let other = Served(Sandbox::new());
    assert_eq!(other.code(&["server", "restore", &name]), Some(0));
    assert_eq!(other.code(&["server", "restore", &name]), Some(6), "there is a state");
    assert_eq!(other.code(&["server", "restore", "--force", &name]), Some(0));
    check_parted(&served, other, (&ended, &running));
}

#[test]
fn a_copy_of_a_state_directory_takes_up_nothing_and_kills_nothing() {
    let served = Served::new();
    let (ended, running) = one_ended_and_one_running(&served);
    let other = Served(Sandbox::new());
    let copied = Command::new("cp")
        .arg("-a")
        .args([served.0.path().join("home"), other.0.path().join("home")])
        .status();
    assert!(copied.expect("there is cp(1)").success());
    check_parted(&served, other, (&ended, &running));
}

#[test]
fn pruning_removes_files_of_ended_jobs_and_nothing_that_others_need() {
    let served = Served::new();
    let own = served.0.path().join("own");
    let own_text = own.to_string_lossy().into_owned();
    let named = ["submit", "--workdir", &own_text, "-o", "json", "--", "touch", "mine"];
    let named = served.json(&named)["id"].to_string();
    let failed = served.submit("exit 3").to_string();
    let plain = served.submit("true").to_string();
    for job in [&named, &failed, &plain] {
        served.run(&["wait", job]);
    }
    // It works where the one before did.
    let script = "until [ -e go ]; do sleep 0.02; done";
    let before = served.submit(&format!("[ -e again ] || {{ touch again; exit 3; }}; {script}"));
    served.run(&["wait", &before.to_string()]);
    assert_eq!(served.code(&["requeue", &before.to_string()]), Some(0));

    let dir = |job: &str| served.0.path().join("home/jobs").join(job);
    assert_eq!(served.code(&["prune"]), Some(2), "it is said what goes");
    let list = served.json(&["prune", "--keep", "0", "--dry-run"]);
    assert!(dir(&plain).exists(), "nothing was removed: {list}");
    assert_eq!(served.code(&["prune", "--keep", "0"]), Some(0));
    for job in [&named, &failed, &plain] {
        assert!(!dir(job).exists(), "job {job}");
    }
    assert!(own.exists(), "a user's directory stays");
    assert!(dir(&before.to_string()).join("work").exists(), "another job works there");
    assert_eq!(served.json(&["describe", &plain])["state"], "succeeded");
    served.0.write("go", "");
}
