//! `het size` and `het fabric`: what a team asks before a large job is queued.

use serde_json::Value;

use crate::support::Sandbox;

#[track_caller]
fn json(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let output = sandbox.run(&[arguments, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

const GPT3: [&str; 5] = ["size", "--model", "gpt3-175b", "--tokens", "300e9"];

#[test]
fn the_briefs_figures_come_out_of_its_own_rule() {
    let sandbox = Sandbox::new();
    let check = |more: &[&str], days: f64| {
        let answer = json(&sandbox, &[&GPT3, more].concat());
        let item = &answer["items"][0];
        let found = item["days"].as_f64().expect("days");
        assert!((found / days - 1.0).abs() < 0.02, "{found} days");
        let own = item["calibrated_days"].as_f64().expect("an estimate of our own");
        assert!(own < 0.8 * found, "{own} days, and it is said why: {}", item["why"]);
        assert!(item["why"].as_array().is_some_and(|why| why.len() > 2));
    };
    check(&["--cluster", "20000xa100-sxm4-80", "--mfu", "0.116"], 5.0);
    check(
        &["--cluster", "20000xh100-sxm5-80", "--mfu", "0.116", "--precision", "fp8"],
        19.0 / 24.0,
    );
}

#[test]
fn a_plan_fits_its_devices_and_says_what_limits_it() {
    let sandbox = Sandbox::new();
    let answer = json(&sandbox, &[&GPT3, &["--cluster", "1024xh100-sxm5-80"][..]].concat());
    let items = answer["items"].as_array().expect("a list");
    for item in items {
        let bytes = |field: &str| item[field].as_u64().expect("bytes");
        assert!(bytes("memory_per_device_bytes") <= bytes("capacity_bytes"), "{item}");
        for field in ["config", "devices", "step_time_s", "tokens_per_s", "mfu", "bubble"] {
            assert!(!item[field].is_null(), "{field} is missing");
        }
        assert!(item["limit"].as_str().is_some_and(|limit| !limit.is_empty()));
    }
    assert!(!answer["lost"].as_array().expect("a list").is_empty());
}

#[test]
fn a_small_team_learns_what_fits_its_card() {
    let sandbox = Sandbox::new();
    let asked = ["size", "--model", "llama3-8b", "--cluster", "1xrtx-4090", "--tuning", "any"];
    let answer = json(&sandbox, &[&asked[..], &["--batch", "16"]].concat());
    let items = answer["items"].as_array().expect("a list");
    let first = &items[0];
    assert_eq!(first["fits"], true, "{first}");
    assert!(first["way"].as_str().is_some_and(|way| way.starts_with("QLoRA")), "{first}");
    let last = items.last().expect("several ways");
    assert!(last["lacks_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{last}");
}

#[test]
fn a_picked_plan_is_a_job_file() {
    let sandbox = Sandbox::new();
    let asked = ["size", "--model", "llama3-8b", "--cluster", "8xh100-sxm5-80"];
    let written = sandbox.run(&[&asked[..], &["--pick", "1", "-o", "job.yaml"]].concat());
    assert_eq!(written.status.code(), Some(0), "{}", String::from_utf8_lossy(&written.stderr));
    let run = sandbox.run(&["run", "job.yaml"]);
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(told.contains("h100-sxm5-80:8"), "it is read, and asks for what is not here: {told}");
}

#[test]
fn questions_without_an_answer_say_what_has_one() {
    let sandbox = Sandbox::new();
    let check = |more: &[&str], hint: &str| {
        let refused = sandbox.run(&[&["size"], more].concat());
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(hint), "{told}");
    };
    check(&["--model", "lama3-8b", "--cluster", "8xt4"], "did you mean `llama3-8b`?");
    check(&["--model", "gpt3-175b", "--cluster", "2xt4"], "devices of `t4`");
    check(&["--model", "gpt2", "--cluster", "2xt4", "--batch", "many"], "samples of a step");
    check(&["--model", "gpt2", "--cluster", "nowhere"], "`nowhere` is no cluster");
}

#[test]
fn planned_paths_never_collide_where_hashing_does() {
    let sandbox = Sandbox::new();
    let answer = json(&sandbox, &["fabric", "paths", "--traffic", "leaf"]);
    assert_eq!(answer["slowest_planned"], 1.0);
    let hashed = answer["worst_load_hashed"].as_f64().expect("a load");
    assert!((2.3..2.9).contains(&hashed), "2.60 is expected of 8 on 8: {hashed}");
}

#[test]
fn thresholds_are_proposed_with_reasons_and_files() {
    let sandbox = Sandbox::new();
    let asked = ["fabric", "ecn", "--plot", "queue.svg", "--sonic", "config_db.json"];
    let answer = json(&sandbox, &asked);
    let number = |field: &str| answer[field].as_f64().expect("a number");
    assert!(number("kmin_bytes") < number("kmax_bytes"));
    assert!(number("kmax_bytes") <= number("pause_bytes"));
    assert!(sandbox.read("queue.svg").starts_with("<svg"));
    let tables: Value = serde_json::from_str(&sandbox.read("config_db.json")).expect("JSON");
    let profile = &tables["WRED_PROFILE"]["HETEROSIS_ROCE"];
    assert_eq!(profile["green_min_threshold"], answer["kmin_bytes"].to_string());
}
