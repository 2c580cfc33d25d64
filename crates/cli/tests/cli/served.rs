//! The daily verbs against a server that `het submit` starts on demand.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::process::Stdio;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::commands::wait_for;
use crate::support::{Sandbox, Served, states, whole_machine};
use crate::training::{adapter, prepared, trainer};

#[test]
fn a_job_is_queued_waited_for_and_described() {
    let served = Served::new();
    let id = served.submit("echo spoken; exit 7");
    assert_eq!(served.code(&["wait", "last"]), Some(7), "the job's own code");
    let report = served.json(&["describe", &id.to_string()]);
    assert_eq!((&report["state"], &report["exit_code"]), (&"failed".into(), &7.into()));
    assert_eq!(String::from_utf8_lossy(&served.run(&["logs", "last"]).stdout), "spoken\n");
    let told = served.json(&["explain", "sh"]);
    assert!(told["stages"][0]["failure"].as_str().expect("a sentence").contains("spoken"));
}

#[test]
fn selectors_name_ids_ranges_and_all() {
    let served = Served::new();
    let hold = |script| served.json(&["submit", "--hold", "-o", "json", "--", "sh", "-c", script]);
    (0..4).for_each(|_| drop(hold("true")));
    assert_eq!(states(&served.json(&["ps"])), ["held"; 4]);
    assert_eq!(states(&served.json(&["cancel", "2-3"])), ["cancelled"; 2]);
    assert_eq!(served.code(&["release", "1", "4"]), Some(0));
    assert_eq!(served.code(&["wait", "1", "4"]), Some(0));
    let all = served.json(&["ps", "--all"]);
    assert_eq!(states(&all), ["succeeded", "cancelled", "cancelled", "succeeded"]);
    assert_eq!(served.code(&["cancel", "2"]), Some(6), "it has ended");
    assert_eq!(served.code(&["describe", "9"]), Some(3));
    assert_eq!(served.code(&["cancel", "7-9"]), Some(3));
}

#[test]
fn a_wait_gives_up_and_the_job_goes_on() {
    let served = Served::new();
    let id = served.submit("sleep 60").to_string();
    assert_eq!(served.code(&["wait", "--timeout", "50ms", &id]), Some(124));
    assert_eq!(states(&served.json(&["ps"])), ["running"]);
}

#[test]
fn a_key_submits_once() {
    let served = Served::new();
    let once = || served.json(&["submit", "--key", "k", "-o", "json", "--", "true"])["id"].clone();
    let first = once();
    assert_eq!(once(), first);
    let other = || served.code(&["submit", "--key", "k", "--", "false"]);
    assert_eq!(other(), Some(6), "it stands for one request");
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_eq!(once(), first, "the next server knows it");
    assert_eq!(other(), Some(6), "and which request it was");
}

#[test]
fn a_run_beside_a_server_is_the_servers_job() {
    let served = Served::new();
    served.submit("true");
    let output = served.run(&["run", "--", "sh", "-c", "echo here; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "here\n");
    assert_eq!(served.json(&["ps", "--all"])["items"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_stopped_server_leaves_jobs_running_for_the_next() {
    let served = Served::new();
    let script = "until [ -e go ]; do sleep 0.02; done; exit 5";
    let id = served.submit(script).to_string();
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_eq!(served.code(&["ps"]), Some(5), "nobody answers");
    served.0.write("go", "");
    served.submit("true");
    assert_eq!(served.code(&["wait", &id]), Some(5), "its code was not lost");
    let report = served.json(&["describe", &id]);
    assert_eq!(report["stages"][0]["attempts"], 1, "it was not started again");
}

#[test]
fn a_removed_socket_is_made_again() {
    let served = Served::new();
    let id = served.submit("exit 0");
    let dir = served.0.path().join("home/server");
    let before = served.json(&["server", "status"])["pid"].clone();
    let removals: [&dyn Fn(); 3] = [
        &|| fs::remove_file(dir.join("socket")).expect("it is there"),
        &|| fs::rename(dir.join("socket"), dir.join("moved")).expect("it is there"),
        &|| {
            fs::write(dir.join("other"), "something else").expect("it can be written");
            fs::rename(dir.join("other"), dir.join("socket")).expect("it takes its place");
        },
    ];
    for remove in removals {
        remove();
        while !dir.join("socket").metadata().is_ok_and(|found| found.file_type().is_socket()) {
            std::thread::yield_now();
        }
        served.run(&["wait", &id.to_string()]);
    }
    assert_eq!(served.json(&["server", "status"])["pid"], before);
}

#[test]
fn a_second_server_takes_what_it_is_given() {
    let (first, second) = (Sandbox::new(), Sandbox::new());
    let locks = first.path().join("home");
    let serve = |sandbox: &Sandbox, arguments: &[&str]| {
        let mut command = sandbox.het(&[&["server"], arguments].concat());
        command.env("HET_LOCK_DIR", &locks).stderr(Stdio::piped());
        command.spawn().expect("het starts")
    };
    let first = Served(first);
    let mut holder = serve(&first.0, &["--devices", "cpu0:1"]);
    while first.code(&["server", "status"]) != Some(0) {
        std::thread::yield_now();
    }
    let mut refused = serve(&second, &[]);
    let code = refused.wait().expect("it ends").code();
    let mut text = String::new();
    refused.stderr.take().expect("a pipe").read_to_string(&mut text).expect("it is text");
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("`cpu0` belongs to a server (process "), "{text}");
    first.run(&["server", "stop"]);
    assert!(holder.wait().expect("it ends").success());
}

#[test]
fn an_urgent_job_goes_first_and_the_low_one_goes_on_to_the_same_bits() {
    let Some(trainer) = trainer() else { return };
    let served = Served(prepared(&trainer));
    let train = |output: &str| {
        format!(
            "[het-train, finetune, --data, tokens, --weights, model, --output, {output}, --steps, \
             \"2000\", --batch, \"2\", --seq, \"128\", --checkpoint-every, \"5\"]"
        )
    };
    let saves = "      checkpoint: { every: 1s, grace: 20s }\n      \
                 resume: [--resume, \"{checkpoint}\"]\n";
    let whole = whole_machine(&served, "whole", "low", &train("whole"), saves);
    assert_eq!(served.code(&["submit", "--wait", &whole]), Some(0));
    let low = whole_machine(&served, "cut", "low", &train("cut"), saves);
    let low = served.json(&["submit", &low])["id"].as_u64().expect("an id");
    let saved = format!("home/jobs/{low}/work/train/checkpoints/checkpoint-20");
    let saved = served.0.path().join(saved);
    crate::commands::wait_for("a checkpoint", || saved.exists());
    let urgent = whole_machine(&served, "urgent", "urgent", "[\"true\"]", "");
    assert_eq!(served.code(&["submit", "--wait", &urgent]), Some(0));
    assert_eq!(served.code(&["wait", &low.to_string()]), Some(0));
    let rows = served.json(&["ps", "--all"])["items"].clone();
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["id"] == low));
    let row = row.expect("the low job is still told of");
    assert_eq!(row["preemptions"], 1, "the low job made room: {row}");
    assert_eq!(adapter(&served.0, "cut"), adapter(&served.0, "whole"), "bit for bit");
}

#[test]
fn a_script_says_itself_what_it_needs() {
    let served = Served::new();
    let script = "#!/bin/sh\n#SBATCH --job-name=Tune -c 1 -p long\n#HET --priority high\n\
                  echo $1 on $HET_DEVICES\nexit 3\n";
    served.0.write("tune.sh", script);
    let submitted = served.run(&["submit", "tune.sh", "-o", "json", "--", "seven"]);
    let warned = String::from_utf8_lossy(&submitted.stderr);
    assert!(warned.contains("`-p` is not acted on here"), "{warned}");
    assert_eq!(served.code(&["wait", "tune"]), Some(3));
    let said = served.run(&["logs", "tune"]).stdout;
    assert!(String::from_utf8_lossy(&said).starts_with("seven on [{"), "its argument and devices");
    assert_eq!(served.json(&["ps", "--all"])["items"][0]["priority"], "high");
    served.0.write("bad.sh", "#!/bin/sh\n#HET --device cuda:1\n");
    let refused = served.run(&["submit", "bad.sh"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("bad.sh:2:1"));
}

#[test]
fn an_array_is_a_job_for_each_index() {
    let served = Served::new();
    let array = ["submit", "--array", "0,3-5:2", "--key", "k", "-o", "json"];
    let command = ["--name", "sweep", "--", "sh", "-c", "exit $HET_ARRAY_INDEX"];
    let submit = || served.run(&[&array[..], &command].concat());
    let list: Value = serde_json::from_slice(&submit().stdout).expect("a list");
    let names: Vec<_> =
        list["items"].as_array().expect("a list").iter().map(|i| &i["name"]).collect();
    assert_eq!(names, ["sweep-0", "sweep-3", "sweep-5"]);
    assert_eq!(served.code(&["wait", "sweep-5"]), Some(5));
    submit();
    assert_eq!(served.json(&["ps", "--all"])["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(served.code(&["run", "--devices", "cpu:1", "missing.yaml"]), Some(3));
}

#[test]
fn a_failed_job_goes_on_as_a_new_one() {
    let served = Served::new();
    let text = r#"
name: mend
kind: train
devices: cpu:1
checkpoint: 1m
resume: ["{checkpoint}"]
run:
  - sh
  - -c
  - |
    [ -e mended ] && echo $0 > went-on-from && exit 0
    mkdir saved
    echo '{"checkpoint":{"step":7,"path":"saved"}}' >> $HET_PROGRESS
    exit 4
"#;
    served.0.write("mend.yaml", text);
    served.run(&["submit", "mend.yaml"]);
    assert_eq!(served.code(&["wait", "1"]), Some(4));
    served.0.write("mended", "");
    let again = served.json(&["requeue", "mend"]);
    assert_eq!(again["items"][0]["id"], 2);
    assert_eq!(served.code(&["wait", "2"]), Some(0));
    assert_eq!(served.code(&["requeue", "2"]), Some(6), "it has succeeded");
    assert_eq!(served.code(&["requeue", "9"]), Some(3));
    let from = std::fs::read_to_string(served.0.path().join("went-on-from")).expect("it went on");
    assert!(from.ends_with("/saved\n"), "{from}");
}

#[test]
fn a_program_keeps_the_descriptor_limit_of_the_user() {
    let served = Served::new();
    let own = std::process::Command::new("sh").args(["-c", "ulimit -n"]).output();
    let own = own.expect("`sh` is there").stdout;
    served.submit("ulimit -n");
    assert_eq!(served.code(&["wait", "last"]), Some(0));
    assert_eq!(served.run(&["logs", "last"]).stdout, own);
}

/// The events of an export, each held against the hash before it; where one is gone, the event
/// after it says what that hash was.
fn verified(exported: &[u8]) -> Vec<Value> {
    let lines = String::from_utf8_lossy(exported);
    let events: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let (mut before, mut next) = ("0".repeat(64), 0);
    for event in &events {
        if event["sequence"] != next {
            before = event["before"].as_str().expect("what was before it is told").to_owned();
        }
        let bytes: Vec<u8> = (0..32)
            .map(|byte| u8::from_str_radix(&before[2 * byte..2 * byte + 2], 16).expect("digits"))
            .collect();
        let chained = Sha256::new().chain_update(bytes).chain_update(event["record"].to_string());
        before = chained.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(event["hash"], before.as_str(), "{event}");
        next = event["sequence"].as_u64().expect("a number") + 1;
    }
    events
}

#[test]
fn the_log_is_exported_with_its_chain() {
    let served = Served::new();
    served.submit("true");
    assert_eq!(served.code(&["wait", "last"]), Some(0));
    let events = verified(&served.run(&["export"]).stdout);
    assert_eq!(events[0]["record"]["event"], "nodes_joined");
    assert_eq!(events[1]["record"]["event"], "job_submitted");
    let table = served.run(&["export", "--from", "1", "-o", "csv"]).stdout;
    assert_eq!(String::from_utf8_lossy(&table).lines().count(), events.len(), "a header, one less");
}

#[test]
fn a_log_that_lost_its_beginning_still_tells_of_the_jobs_that_are_kept() {
    let served = Served::new().start(&["--snapshot-every", "10", "--keep-events", "10"]);
    served.submit("echo spoken; exit 7");
    assert_eq!(served.code(&["wait", "1"]), Some(7));
    let mut exported = served.run(&["export"]);
    wait_for("the log to be shortened", || {
        assert_eq!(served.code(&["devices", "drain", "cpu0"]), Some(0));
        assert_eq!(served.code(&["devices", "undrain", "cpu0"]), Some(0));
        exported = served.run(&["export"]);
        String::from_utf8_lossy(&exported.stderr).contains("the chain begins at event")
    });
    let events = verified(&exported.stdout);
    let of_the_job = |event: &&Value| event["record"]["job"] == 1 || event["record"]["lease"] == 1;
    let words: Vec<_> = events.iter().filter(of_the_job).map(|it| &it["record"]["event"]).collect();
    assert_eq!(
        (words.first(), words.last()),
        (Some(&&"job_submitted".into()), Some(&&"stage_ended".into()))
    );
    // The next server goes on from a snapshot.
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_eq!(served.submit("true"), 2);
    let told = served.json(&["explain", "1"]);
    assert!(told["stages"][0]["failure"].as_str().expect("a sentence").contains("spoken"));
    assert_eq!(served.json(&["describe", "1"])["exit_code"], 7);
    assert_eq!(served.code(&["wait", "2"]), Some(0));
    assert_eq!(states(&served.json(&["ps", "--all"])), ["failed", "succeeded"]);
}

#[test]
fn lines_of_jobs_that_ended_first_go_and_what_jobs_wrote_stays() {
    let served = Served::new().start(&["--keep-jobs", "2"]);
    for word in ["one", "two", "three"] {
        served.submit(&format!("echo {word}"));
        assert_eq!(served.code(&["wait", "last"]), Some(0));
    }
    let ids = || -> Vec<Value> {
        let jobs = served.json(&["ps", "--all"]);
        jobs["items"].as_array().into_iter().flatten().map(|job| job["id"].clone()).collect()
    };
    assert_eq!(ids(), [2, 3]);
    assert_eq!(served.code(&["server", "stop"]), Some(0));
    assert_eq!(served.submit("true"), 4);
    assert_eq!(ids(), [2, 3, 4], "the next server, which keeps more, finds no other");
    let told = served.run(&["logs", "1"]).stdout;
    assert!(String::from_utf8_lossy(&told).contains("one"));
}

#[test]
fn two_jobs_never_go_on_in_one_directory() {
    let served = Served::new();
    served.submit("[ -e twice ] && sleep 60; touch twice; exit 1");
    assert_eq!(served.code(&["wait", "1"]), Some(1));
    assert_eq!(served.code(&["requeue", "1"]), Some(0));
    assert_eq!(served.code(&["requeue", "1"]), Some(6), "job 2 works there");
}
