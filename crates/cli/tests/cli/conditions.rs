//! Jobs that wait for others, for a time, and for their turn; arrays by their name.

use serde_json::Value;

use crate::commands::wait_for;
use crate::support::{Served, states};

fn reason(served: &Served, job: &str) -> String {
    let rows = served.json(&["ps", "--all"]);
    let rows = rows["items"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["name"] == job).expect("the job is listed");
    row["reason"].as_str().unwrap_or_default().to_owned()
}

fn state(served: &Served, job: &str) -> Value {
    served.json(&["describe", job])["state"].clone()
}

fn submit(served: &Served, name: &str, more: &[&str], script: &str) -> String {
    let words = [&["submit", "--name", name], more, &["-o", "json", "--", "sh", "-c", script]];
    let output = served.run(&words.concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let job: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{told}"));
    job["id"].as_u64().expect("an id").to_string()
}

#[test]
fn jobs_wait_for_each_other() {
    let served = Served::new();
    let first = submit(&served, "first", &[], "until [ -e go ]; do sleep 0.02; done; exit 3");
    submit(&served, "on-success", &["--after", &first], "true");
    submit(&served, "on-failure", &["--after", &format!("{first}:fail")], "true");
    submit(&served, "at-the-end", &["--after", "on-failure:any"], "true");
    submit(&served, "at-the-start", &["--after", &format!("{first}:start")], "true");
    assert_eq!(reason(&served, "on-success"), "waits until job 1 has succeeded");
    assert_eq!(served.code(&["wait", "at-the-start"]), Some(0), "the first runs");
    let told = served.json(&["explain", "at-the-end"]);
    assert_eq!(told["stages"][0]["wait_reasons"][0], "waits until job 3 has ended");
    served.0.write("go", "");
    assert_eq!(served.code(&["wait", "first"]), Some(3));
    assert_eq!(served.code(&["wait", "at-the-end"]), Some(0));
    assert_eq!(served.code(&["wait", "on-success"]), Some(130), "a chain that broke ends");
    let why = "job 1 will never be where it was waited for: it did not succeed";
    assert_eq!(reason(&served, "on-success"), why);
    let refused = served.run(&["submit", "--after", &first, "--", "true"]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(6), "{told}");
    assert!(told.contains("job 1 failed already"), "{told}");
    assert_eq!(served.code(&["submit", "--after", "99", "--", "true"]), Some(3));
    assert_eq!(served.code(&["submit", "--after", "1:done", "--", "true"]), Some(2));
}

#[test]
fn a_job_begins_at_its_time_also_after_a_restart() {
    let served = Served::new();
    let later = submit(&served, "later", &["--begin", "now+1h"], "true");
    let soon = submit(&served, "soon", &["--begin", "now+1s"], "true");
    assert!(reason(&served, "later").starts_with("begins at 20"));
    assert_eq!(served.code(&["wait", &soon]), Some(0));
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    served.submit("true");
    assert_eq!(state(&served, &later), "queued");
    assert_eq!(served.code(&["submit", "--begin", "soon", "--", "true"]), Some(2));
}

#[test]
fn an_array_has_a_name_and_runs_as_many_at_a_time_as_it_may() {
    let served = Served::new();
    let words = ["submit", "--array", "0-3", "--max-parallel", "1", "--name", "sweep", "--"];
    let script = "until [ -e go ]; do sleep 0.02; done; echo $HET_ARRAY_INDEX of $HET_ARRAY_COUNT";
    let submitted = served.run(&[&words[..], &["sh", "-c", script]].concat());
    let told = String::from_utf8_lossy(&submitted.stderr).into_owned();
    assert!(told.contains("`het wait 1[]` waits for all of them"), "{told}");
    wait_for("the first", || state(&served, "1") == "running");
    assert_eq!(reason(&served, "sweep-2"), "as many of its array run as may, 1");
    assert_eq!(served.code(&["cancel", "1[3]"]), Some(0));
    served.0.write("go", "");
    assert_eq!(served.code(&["wait", "sweep"]), Some(130), "one was cancelled");
    assert_eq!(
        states(&served.json(&["ps", "--all"])),
        ["succeeded", "succeeded", "succeeded", "cancelled"]
    );
    let logs = served.run(&["logs", "sweep"]);
    let logs = String::from_utf8_lossy(&logs.stdout).into_owned();
    for index in 0..3 {
        assert!(logs.contains(&format!("{index} of 4\n")), "{logs}");
    }
    submit(&served, "report", &["--after", "sweep:any"], "true");
    assert_eq!(served.code(&["wait", "report"]), Some(0));
}
