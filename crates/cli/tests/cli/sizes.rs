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

/// Words that the job file of a picked plan runs.
fn picked(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let asked = [&["size"], arguments, &["-o", "job.yaml"]].concat();
    let written = sandbox.run(&asked);
    assert_eq!(written.status.code(), Some(0), "{}", String::from_utf8_lossy(&written.stderr));
    sandbox.read("job.yaml")
}

#[test]
fn a_picked_plan_is_what_was_priced() {
    let sandbox = Sandbox::new();
    let lora = ["--model", "llama3-8b", "--cluster", "1xrtx-4090", "--batch", "16"];
    let text = picked(&sandbox, &[&lora[..], &["--tuning", "qlora", "--pick", "1"]].concat());
    for word in ["trl.scripts.sft", "Meta-Llama-3-8B", "--load_in_4bit", "--use_peft", "8192"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let mixture = ["--model", "mixtral-8x7b", "--cluster", "64xh100-sxm5-80", "--pick", "1"];
    let text = picked(&sandbox, &mixture);
    for word in ["--num-experts", "--moe-router-topk", "--normalization=RMSNorm"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let cut = ["--model", "llama3-70b", "--cluster", "64xh100-sxm5-80", "--tp", "8", "--pick", "1"];
    let text = picked(&sandbox, &cut);
    for word in ["tensor-model-parallel-size", "CUDA_DEVICE_MAX_CONNECTIONS", "untie-embeddings"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_plan_that_no_launcher_takes_is_not_written() {
    let sandbox = Sandbox::new();
    let check = |arguments: &[&str], text: &str, hint: &str| {
        let refused = sandbox.run(&[&["size"], arguments, &["-o", "job.yaml"]].concat());
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(text) && told.contains(hint), "{told}");
    };
    let mixed = "64xh100-sxm5-80+64xascend-910b";
    let asked = ["--model", "llama3-70b", "--cluster", mixed, "--pick", "1"];
    check(&asked, "h100-sxm5-80 and ascend-910b", "one class");
    let small = ["--model", "gpt2", "--cluster", "1xl40s", "--pick", "1", "--batch", "16"];
    check(&[&small[..], &["--mfu", "0.4", "--tokens", "1e9"]].concat(), "no plan", "--mfu");
    check(&[&small[..], &["--tuning", "any"]].concat(), "one way", "--tuning");
}

#[test]
fn a_cluster_is_a_file_a_template_or_a_count() {
    let sandbox = Sandbox::new();
    let speed = |cluster: &str| {
        let asked = ["size", "--model", "llama3-70b", "--batch", "512", "--cluster", cluster];
        json(&sandbox, &asked)["items"][0]["tokens_per_s"].as_f64().expect("a rate")
    };
    let counted = speed("64xh100-sxm5-80");
    let drawn = speed("hgx-h100-8x8+rail");
    assert!((drawn / counted - 1.0).abs() < 0.05, "{drawn} {counted}");
    let narrow = "apiVersion: heterosis.dev/v1alpha1\nkind: Cluster\nmetadata: { name: narrow }\n\
        nodes: [{ template: hgx-h100-8, count: 8 }]\n\
        fabric: { template: spine-leaf, oversubscription: 8, nodes_per_leaf: 2 }\n";
    sandbox.write("narrow.yaml", narrow);
    let slower = speed("narrow.yaml");
    assert!(slower < drawn, "uplinks that are too few cost: {slower} of {drawn}");
}

#[test]
fn questions_without_an_answer_say_what_has_one() {
    let sandbox = Sandbox::new();
    let check = |more: &[&str], hint: &str| {
        let refused = sandbox.run(more);
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(hint), "{told}");
    };
    check(&["size", "--model", "lama3-8b", "--cluster", "8xt4"], "did you mean `llama3-8b`?");
    let large = ["size", "--model", "gpt3-175b", "--cluster", "2xt4"];
    check(&large, "--precision fp16");
    check(&[&large[..], &["--precision", "fp16"]].concat(), "devices of `t4`");
    let gpt2 = ["size", "--model", "gpt2", "--cluster"];
    check(&[&gpt2[..], &["8xh100"]].concat(), "`h100-sxm5-80`");
    check(&[&gpt2[..], &["2xl40s", "--batch", "many"]].concat(), "samples of a step");
    check(&[&gpt2[..], &["nowhere"]].concat(), "`nowhere` is no cluster");
    check(&[&gpt2[..], &["hgx-h100-9"]].concat(), "did you mean `hgx-h100-8`?");
    check(&[&gpt2[..], &["t4"]].concat(), "`8xt4`");
    let many = ["fabric", "paths", "--pods", "4000", "--leaves", "4000"];
    check(&many, "a pod at a time");
    check(&["fabric", "ecn", "--queue", "9"], "from 0 to 7");
    check(&["fabric", "ecn", "--port", "Ethernet0|3"], "no name of a port");
    check(&["fabric", "ecn", "--buffer-mb", "0.2"], "a buffer of 0.2 MB is less");
    check(&["fabric", "ecn", "--link", "inf"], "`--link inf`");
}

/// Steps of a device that is a fifth slower than is known of its class.
const PROFILE: &str = "gpu,n_gpus,layers,hidden,heads,seq,vocab,tp,pp,dp,microbatch,global_batch,\
    precision,recompute,measured_iter_time_s\n\
    rtx-4090,1,12,768,12,1024,50257,1,1,1,8,64,bf16,none,1.20\n\
    rtx-4090,1,12,768,12,1024,50257,1,1,1,4,64,bf16,none,1.25\n\
    rtx-4090,1,24,1024,16,1024,50257,1,1,1,4,64,bf16,none,3.40\n";

#[test]
fn what_was_measured_is_gone_by() {
    let sandbox = Sandbox::new();
    sandbox.write("steps.csv", PROFILE);
    let asked = ["size", "--model", "gpt2", "--cluster", "1xrtx-4090", "--batch", "64"];
    let step = |more: &[&str]| {
        let answer = json(&sandbox, &[&asked[..], more].concat());
        let item = &answer["items"][0];
        (item["step_time_s"].as_f64().expect("a time"), item["expected_error"].clone())
    };
    let before = step(&[]);
    let fitted = json(&sandbox, &["profile", "import", "steps.csv"]);
    let class = &fitted["items"][0];
    assert_eq!((&class["class"], &class["steps"]), (&"rtx-4090".into(), &3.into()));
    let after = step(&[]);
    assert_ne!(before.0, after.0);
    assert_eq!(step(&["--uncalibrated"]), before);
    assert!(class["error"].as_f64().is_some_and(|error| error < 0.2), "{class}");
    assert_eq!(json(&sandbox, &["profile", "list"])["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(sandbox.run(&["profile", "forget", "rtx-4090"]).status.code(), Some(0));
    assert_eq!(step(&[]), before);
}

#[test]
fn a_profile_that_no_device_makes_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("fast.jsonl", "{\"step\":1,\"useful_ms\":1}\n{\"step\":2,\"useful_ms\":2}\n");
    sandbox.write("none.jsonl", "{\"step\":0,\"useful_ms\":0}\n{\"step\":1,\"useful_ms\":0}\n");
    let refused = |file: &str| {
        let asked = ["profile", "import", file, "--model", "llama3-8b", "--batch", "64"];
        let output = sandbox.run(&[&asked[..], &["--class", "h100-sxm5-80"]].concat());
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused("fast.jsonl").contains("faster than the peak"));
    assert!(refused("none.jsonl").contains("two lines"));
    assert_eq!(json(&sandbox, &["profile", "list"])["items"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_pytorch_profile_is_a_step_too() {
    let sandbox = Sandbox::new();
    let step = |number: u32| {
        let begin = number * 700_000;
        format!(
            r#"{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{number}","ts":{begin},
            "dur":600000}}"#
        )
    };
    let events = [1, 2, 3].map(step).join(",");
    let device = r#"[{"id":0,"name":"NVIDIA GeForce RTX 4090"}]"#;
    let text = format!(r#"{{"deviceProperties":{device},"traceEvents":[{events}]}}"#);
    sandbox.write("rank0.pt.trace.json", &text);
    let asked = ["profile", "import", "rank0.pt.trace.json", "--model", "gpt2"];
    let refused = sandbox.run(&asked);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--batch"));
    let fitted = json(&sandbox, &[&asked[..], &["--batch", "32", "--microbatch", "8"]].concat());
    assert_eq!(fitted["items"][0]["class"], "rtx-4090");
}

#[test]
fn a_timeline_tells_what_limits_a_run() {
    let sandbox = Sandbox::new();
    let track = |id: u32, name: &str| {
        format!(r#"{{"ph":"M","tid":{id},"name":"thread_name","args":{{"name":"{name}"}}}}"#)
    };
    let piece = |id: u32, category: &str, name: &str, start: u32, length: u32| {
        format!(
            r#"{{"ph":"X","tid":{id},"cat":"{category}","name":"{name}","ts":{start},
            "dur":{length},"args":{{"bytes":1048576}}}}"#
        )
    };
    let events = [
        track(1, "cpu0: compute"),
        track(2, "worker1: compute"),
        track(3, "worker1: copy in"),
        piece(1, "task", "layer_forward", 0, 2_000_000),
        piece(1, "idle", "waits for data", 2_000_000, 2_000_000),
        piece(2, "idle", "waits for a transfer", 0, 1_000_000),
        piece(2, "task", "layer_forward", 1_000_000, 3_000_000),
        piece(3, "copy", "host to worker1", 0, 1_250_000),
    ];
    let text = format!(r#"{{"traceEvents":[{}]}}"#, events.join(","));
    sandbox.write("timeline.json", &text);
    let output = sandbox.run(&["profile", "show", "timeline.json"]);
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
    let shown = json(&sandbox, &["profile", "show", "timeline.json"]);
    assert_eq!((&shown["limit"], &shown["largest_loss"]), (&"compute".into(), &"imbalance".into()));
    assert_eq!(shown["devices"][1]["seconds"]["communication"], 1.0);
    assert_eq!(shown["copies"][0]["hidden"], 0.25);

    sandbox.write("rank0.pt.trace.json", r#"{"traceEvents":[]}"#);
    let refused = sandbox.run(&["profile", "show", "rank0.pt.trace.json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("timeline.json"));
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

#[test]
fn ranks_know_their_cards() {
    let sandbox = Sandbox::new();
    let cluster = ["fabric", "ranks", "--cluster", "hgx-h100-8x2+rail", "--cards", "mlx5_"];
    let answer = json(&sandbox, &[&cluster[..], &["--env", "env"]].concat());
    let last = &answer["items"][15];
    assert_eq!((&last["node"], &last["card"]), (&"node-1".into(), &"mlx5_7".into()));
    let variables = sandbox.read("env/rank-15.env");
    assert!(variables.contains("NCCL_IB_HCA==mlx5_0,mlx5_1"), "{variables}");
    let npus = ["fabric", "ranks", "--cluster", "atlas-800t-a2", "--rank-table", "ranks.json"];
    let refused = sandbox.run(&npus);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--addresses"));
    let rows: String = (0..8).map(|npu| format!("node-0,npu{npu},192.168.1.{npu}\n")).collect();
    sandbox.write("addresses.csv", &format!("node,device,address\nnode-0,,10.0.0.1\n{rows}"));
    let answer = json(&sandbox, &[&npus[..], &["--addresses", "addresses.csv"]].concat());
    assert_eq!(answer["items"][3]["env"]["RANK_ID"], "3");
    let table: Value = serde_json::from_str(&sandbox.read("ranks.json")).expect("JSON");
    assert_eq!(table["server_list"][0]["device"][7]["device_ip"], "192.168.1.7");
}

#[test]
fn reading_counts_where_storage_is_slow() {
    let sandbox = Sandbox::new();
    let asked = ["size", "--model", "llama3-8b", "--cluster", "hgx-h100-8x2+rail"];
    let days = |more: &[&str]| {
        let tokens = ["--tokens", "1e9", "--batch", "256"];
        let answer = json(&sandbox, &[&asked[..], &tokens, more].concat());
        let item = &answer["items"][0];
        (item["days"].as_f64().expect("days"), item["reading_limit"].clone())
    };
    let without = days(&[]).0;
    let quick = days(&["--dataset", "4GB"]);
    assert!((quick.0 / without - 1.0).abs() < 0.01, "{quick:?} {without}");
    let slow = days(&["--dataset", "400TB", "--storage", "5GB/s"]);
    assert!(slow.0 > 1.2 * without, "{slow:?} {without}");
    assert_eq!(slow.1, "the storage system");
}
