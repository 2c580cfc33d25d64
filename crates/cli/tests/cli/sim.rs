//! `het sim` and `het trace`: figures for programs, and what is said about bad input.

use crate::support::Sandbox;

/// Three jobs on a cluster of two: the last has to wait.
const TRACE: &str = r#"{"arrival_s": 0, "stages": [{"units": 1, "seconds": 100}]}
{"arrival_s": 0, "stages": [{"units": 1, "seconds": 300}]}
{"arrival_s": 50, "stages": [{"units": 2, "seconds": 100}]}
"#;

#[test]
fn one_policy_gives_one_object() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let words = ["--cluster", "2xgpu", "--trace", "queue.jsonl", "--policy", "fifo", "-o", "json"];
    let output = sandbox.run(&[["sim", "run"].as_slice(), &words].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    // 100 s and 300 s at once, then 100 s from 300 s on for what came at 50 s.
    assert_eq!(told["jobs_done"], 3);
    assert_eq!(told["makespan_s"], 400.0);
    assert_eq!(told["avg_jct_s"], 250.0);
    assert_eq!(told["utilisation"]["busy"], 0.75);
    for field in ["policy", "jobs_total", "p50_jct_s", "p99_jct_s", "preemptions", "migrations"] {
        assert!(!told[field].is_null(), "`{field}` is missing");
    }
    for field in ["lost_work_s", "decisions", "decision_p99_ms", "wall_s", "seed"] {
        assert!(!told[field].is_null(), "`{field}` is missing");
    }
}

#[test]
fn a_comparison_is_a_list() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let words = ["sim", "compare", "--cluster", "2xgpu", "--trace", "queue.jsonl", "-o", "name"];
    let output = sandbox.run(&[words.as_slice(), &["--policies", "fifo,adaptive"]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "fifo\nadaptive\n");
}

#[test]
fn a_bound_stands_beside_the_policies() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let words = ["sim", "compare", "--cluster", "2xgpu", "--trace", "queue.jsonl", "--bound"];
    let words = [words.as_slice(), &["--policies", "fifo", "-o", "json"]].concat();
    let output = sandbox.run(&words);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a list");
    let row = &told["items"][1];
    assert_eq!(row["policy"], "lower-bound");
    // Each job alone takes as long as it says, and the longest is there from the beginning.
    let alone = (100.0 + 300.0 + 100.0) / 3.0_f64;
    assert!(row["avg_jct_s"].as_f64().is_some_and(|mean| mean >= alone.floor() && mean < 250.0));
    assert_eq!(row["makespan_s"], 300.0);
}

#[test]
fn a_round_is_seconds_or_a_time_with_units() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let play = |round: &str| {
        let words = ["sim", "run", "--cluster", "2xgpu", "--trace", "queue.jsonl", "-o", "json"];
        sandbox.run(&[words.as_slice(), &["--policy", "fifo", "--round", round]].concat())
    };
    let told = |round: &str| {
        let told: serde_json::Value = serde_json::from_slice(&play(round).stdout).expect("figures");
        (told["makespan_s"].clone(), told["decisions"].clone())
    };
    for round in ["2m", "120.0", "1m60s"] {
        assert_eq!(told(round), told("120"), "{round}");
    }
    for round in ["0", "0.5", "nan", "-6m", "6", "soon", ""] {
        let output = play(round);
        let is_read = output.status.success();
        assert_eq!(is_read, round == "6", "{round}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(is_read || told.contains("as in `360` or `6m`") || round == "-6m", "{told}");
    }
}

#[test]
fn a_published_trace_becomes_ours() {
    let sandbox = Sandbox::new();
    let line = "LM (batch size 5)\tpython\tlm\t--steps\t1\t90\t2\t1\t-1.0\t7\n";
    sandbox.write("a.trace", line);
    let output = sandbox.run(&["trace", "import", "a.trace"]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        told,
        "{\"arrival_s\":7.0,\"tenant\":\"gavel\",\"priority\":\"normal\",\"stages\":[{\"kind\":\
         \"train\",\"profile\":\"LM (batch size 5)\",\"units\":2,\"steps\":90}]}\n"
    );
}

#[test]
fn what_slurm_tells_becomes_ours_and_theirs() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "jobs.sacct",
        "JobID|JobName|Account|QOS|Submit|ElapsedRaw|ReqTRES\n\
         7|tune|nlp|high|2026-11-20T10:00:00|90|cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1\n\
         8|prep|nlp|normal|2026-11-20T10:01:00|30|cpu=16,mem=4G,node=1\n",
    );
    assert_told!(sandbox.told(&["trace", "import", "jobs.sacct"]));
    assert_told!(sandbox.told(&["trace", "convert", "jobs.sacct", "--to", "philly"]));
    assert_told!(sandbox.told(&["trace", "convert", "jobs.sacct", "--to", "gavel"]));
}

#[test]
fn the_last_job_grows_onto_what_the_others_leave() {
    let sandbox = Sandbox::new();
    let speeds = "{\"gpu\": {\"('m', 1)\": {\"null\": 1.0}, \"('m', 2)\": {\"null\": 1.6}}}";
    sandbox.write("speeds.json", speeds);
    let job =
        |asks: &str| format!("{{\"arrival_s\":0,\"stages\":[{{\"profile\":\"m\",{asks}}}]}}\n");
    // The first may have one device only, the second one or both.
    sandbox.write("two.jsonl", &(job(r#""units":1,"steps":1000"#) + &job(r#""steps":4000"#)));
    let words = ["sim", "run", "--cluster", "uniform:1x2", "--trace", "two.jsonl"];
    let more = ["--profiles", "speeds.json", "--policy", "adaptive", "-o", "json"];
    let output = sandbox.run(&[words.as_slice(), &more].concat());
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    // After 1,000 s the second has 3,000 steps left, which take 1,875 s on both devices.
    assert_eq!(told["makespan_s"], 2_875.0);
    assert_eq!(told["migrations"], 1);
}

#[test]
fn a_malformed_line() {
    let sandbox = Sandbox::new();
    sandbox
        .write("queue.jsonl", "{\"arrival_s\": 0, \"stages\": [{\"units\": 1, \"second\": 9}]}\n");
    let words = ["sim", "run", "--cluster", "2xgpu", "--trace", "queue.jsonl"];
    assert_told!(sandbox.told(&words));
}

#[test]
fn a_cluster_that_is_none() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let words = ["sim", "run", "--cluster", "gavel:8,16", "--trace", "queue.jsonl"];
    assert_told!(sandbox.told(&words));
}

#[test]
fn a_gang_that_never_fits() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let words = ["sim", "run", "--cluster", "1xgpu", "--trace", "queue.jsonl"];
    assert_told!(sandbox.told(&words));
}

#[test]
fn a_noise_that_is_none() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let words = ["sim", "run", "--cluster", "2xgpu", "--trace", "queue.jsonl"];
    assert_told!(sandbox.told(&[words.as_slice(), &["--noise", "speed=fast"]].concat()));
}

#[test]
fn a_report_is_a_page_a_table_and_a_trace() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let words = ["sim", "compare", "--cluster", "2xgpu", "--trace", "queue.jsonl", "--seeds", "3"];
    let more = ["--policies", "fifo,adaptive", "--report", "report", "-o", "name"];
    let output = sandbox.run(&[words.as_slice(), &more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = sandbox.read("report/index.html");
    for heading in ["Completion and waiting", "Utilisation", "Who ran where", "Decisions"] {
        assert!(page.contains(heading), "the page has no `{heading}`");
    }
    assert!(!page.contains("http"), "the page needs something beside itself");
    let rows = sandbox.read("report/results.csv");
    assert_eq!(rows.lines().count(), 1 + 2 * 3, "a row a policy and seed");
    let trace: serde_json::Value =
        serde_json::from_str(&sandbox.read("report/trace.json")).expect("a trace");
    let spans = trace["traceEvents"].as_array().expect("events").iter();
    // Two single devices and a pair, under two policies.
    assert_eq!(spans.filter(|event| event["ph"] == "X").count(), 2 * 4);
}

#[test]
fn a_job_is_explained() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let words = ["sim", "explain", "3", "--cluster", "2xgpu", "--trace", "queue.jsonl"];
    assert_told!(sandbox.told(&[words.as_slice(), &["--policies", "fifo,adaptive"]].concat()));
}

#[test]
fn a_fault_on_a_node_that_is_not_there() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    sandbox.write("faults.jsonl", "\n{\"at_s\": 9, \"node\": \"gpu-7\", \"kind\": \"lost\"}\n");
    let words = ["sim", "run", "--cluster", "2xgpu", "--trace", "queue.jsonl"];
    assert_told!(sandbox.told(&[words.as_slice(), &["--faults", "faults.jsonl"]].concat()));
}

#[test]
fn a_lost_node_costs_its_work() {
    let sandbox = Sandbox::new();
    sandbox.write("queue.jsonl", TRACE);
    let faults = "{\"at_s\": 90, \"node\": \"gpu-0\", \"kind\": \"lost\"}\n\
                  {\"at_s\": 95, \"node\": \"gpu-0\", \"kind\": \"returned\"}\n";
    sandbox.write("faults.jsonl", faults);
    let words = ["sim", "run", "--cluster", "2xgpu", "--trace", "queue.jsonl", "-o", "json"];
    let more = ["--policy", "fifo", "--faults", "faults.jsonl"];
    let output = sandbox.run(&[words.as_slice(), &more].concat());
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    // Nobody saved: the first job begins again at 95 s, and 90 s of work are lost.
    assert_eq!(told["jobs_done"], 3);
    assert_eq!(told["lost_work_s"], 90.0);
}

#[test]
fn the_same_seed_draws_the_same_mix() {
    let sandbox = Sandbox::new();
    let draw = |seed: &str| sandbox.run(&["trace", "gen", "--jobs", "5", "--seed", seed]).stdout;
    assert_eq!(draw("1"), draw("1"));
    assert_ne!(draw("1"), draw("2"));
    let of = |preset| sandbox.run(&["trace", "gen", "--jobs", "5", "--preset", preset]).stdout;
    assert_ne!(of("philly"), of("llm"));
}

#[test]
fn a_cluster_is_packed() {
    let sandbox = Sandbox::new();
    sandbox.write("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,65536,2,T4\n");
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np0,1000,1024,1,500,\n";
    sandbox.write("pods.csv", pods);
    let words = ["sim", "pack", "--cluster", "alibaba-openb:nodes.csv", "--pods", "pods.csv"];
    assert_told!(sandbox.told(&[words.as_slice(), &["--seeds", "2"]].concat()));
}
