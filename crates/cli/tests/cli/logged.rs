//! A server's log as something to simulate.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Sandbox, Served, serve_declared};

/// Steps of twenty milliseconds.
const STEPS: &str = r#"for step in $(seq "$STEPS"); do
  sleep 0.02
  echo "{\"step\":$step,\"total\":$STEPS}" >> "$HET_PROGRESS"
done"#;

fn submit(served: &Served, name: &str, steps: u64) -> String {
    let stage = json!({
        "name": "train", "kind": "train", "profile": "steps", "devices": "gpu:1",
        "steps": steps, "run": ["sh", "-c", STEPS], "env": { "STEPS": steps.to_string() },
    });
    served.submit_stage(name, "normal", &stage).to_string()
}

/// Two jobs that show how fast the program is, then four that are played, and a backup of all.
fn backed_up() -> (Served, String) {
    let served = serve_declared(Sandbox::new(), 2, &[]);
    for name in ["first", "second"] {
        let job = submit(&served, name, 60);
        assert_eq!(served.code(&["wait", "--timeout", "60s", &job]), Some(0));
    }
    let jobs = [40, 80, 60, 100].map(|steps| submit(&served, &format!("later-{steps}"), steps));
    for job in &jobs {
        assert_eq!(served.code(&["wait", "--timeout", "60s", job]), Some(0));
    }
    let backup = served.path().join("backup").to_string_lossy().into_owned();
    assert_eq!(served.code(&["server", "backup", &backup]), Some(0));
    (served, backup)
}

#[test]
fn what_ran_is_played_with_what_was_known_before() {
    let (served, backup) = backed_up();
    let run = ["sim", "run", "--from-log", &backup, "--first-job", "3"];
    let played = served.json(&run);
    assert_eq!(played["jobs_total"], 4, "{played:#}");
    assert_eq!(played["jobs_done"], 4, "{played:#}");
    assert_eq!(played["recorded"]["jobs_done"], 4, "{played:#}");
    let of = |row: &Value, name: &str| row[name].as_f64().expect("a number");
    // 280 steps of at least 20 ms on two devices.
    for row in [&played, &played["recorded"]] {
        assert!(of(row, "makespan_s") > 2.5, "{played:#}");
    }
    // Nothing was known before the first job of all.
    let told = served.run(&["sim", "run", "--from-log", &backup]);
    assert_eq!(told.status.code(), Some(2));
    let error = String::from_utf8_lossy(&told.stderr);
    assert!(error.contains("no job of") && error.contains("--first-job"), "{error}");
}

#[test]
fn a_log_becomes_a_trace_and_a_table() {
    let (served, backup) = backed_up();
    let [trace, table] = ["trace.jsonl", "table.json"]
        .map(|name| served.path().join(name).to_string_lossy().into_owned());
    let export = ["trace", "export", &backup, "--profiles", &table, "-o", &trace];
    assert_eq!(served.code(&export), Some(0));
    let text = fs::read_to_string(trace).expect("it is written");
    let jobs: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let steps: Vec<&Value> = jobs.iter().map(|job| &job["stages"][0]["steps"]).collect();
    assert_eq!(steps, [60, 60, 40, 80, 60, 100]);
    let text = fs::read_to_string(table).expect("it is written");
    let table: Value = serde_json::from_str(&text).expect("JSON");
    let rows = table["photon"].as_object().expect("a class");
    assert_eq!(rows.len(), 6, "{table:#}");
    for rate in rows.values().map(|row| row["null"].as_f64().expect("a rate")) {
        assert!((1.0..=50.0).contains(&rate), "{rate} steps a second of 20 ms");
    }
}

#[test]
fn what_is_no_log_is_named() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("log", "no store").to_string_lossy().into_owned();
    for words in [
        vec!["sim", "run", "--from-log", &file],
        vec!["trace", "export", &file, "--profiles", "table"],
    ] {
        let told = sandbox.run(&words);
        assert_eq!(told.status.code(), Some(2), "{words:?}");
        let error = String::from_utf8_lossy(&told.stderr);
        assert!(error.contains("server backup"), "{error}");
    }
}
