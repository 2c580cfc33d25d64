//! Job files as people write them, right and wrong: what is read, and what is said.

use std::collections::BTreeMap;

use het_core::{Alternative, Drivers, Isolation, JobId, Millis, Preemptible, Priority, StageIndex};
use het_wire::job::{Context, Trainer, parse};

fn context<'a>(models: &'a [&'a str], env: &'a BTreeMap<String, String>) -> Context<'a> {
    let job = JobId(7);
    Context { workdir: "/w", cwd: "/home", job, ..Context::new(&[], models, env) }
}

fn resolved(text: &str) -> het_core::JobSpec {
    let job = parse(text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let env = BTreeMap::new();
    let context = context(&[], &env);
    job.resolve(&context).unwrap_or_else(|problems| panic!("{problems}"))
}

fn refused(text: &str) -> String {
    match parse(text, "job.yaml") {
        Ok(_) => panic!("the file should be refused"),
        Err(problems) => problems.to_string(),
    }
}

const LONG: &str = r#"
apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: smollm-lora, tenant: research }
spec:
  priority: high
  stages:
    - name: preprocess
      kind: preprocess
      run: [het-train, tokenize, --output, "{workdir}/tokens"]
      devices: "cpu:1"
    - name: train
      kind: train
      after: [preprocess]
      run: [het-train, finetune, --data, "{stage.preprocess.output}"]
      devices: "h100:8 | a100:16 | cpu:2"
      alternatives:
        - { devices: "ascend-910b:16", run: [torchrun, train_npu.py], env: { HCCL: "600" } }
      with: { cores: 8, memory: 64GiB }
      topology: { within: node }
      checkpoint: { dir: "{workdir}/ckpt", every: 60s, notice: SIGUSR1, grace: 90s }
      resume: [--resume, "{checkpoint}"]
      precision: int8
  time_limit: 6h
"#;

#[test]
fn what_a_program_can_be_given_goes_by_its_container() {
    let check = |container: &str, expected: Isolation| {
        let spec = resolved(&format!("name: x\nrun: [x]\ndevices: npu:1\n{container}"));
        let alternative = &spec.stage(StageIndex(0)).alternatives[0];
        assert_eq!(alternative.selector.isolation, expected, "{container}");
    };
    check("", Isolation::Process);
    check("container: image", Isolation::Container);
    check("container: { image: image, runtime: podman }", Isolation::Container);
    check("container: { image: image.sif, runtime: apptainer }", Isolation::Process);
}

/// The drivers of each alternative of a job of one stage, where the installed trainer has only
/// `cpu`; `?` where nobody knows them.
fn drivers(text: &str) -> Vec<String> {
    let job = parse(text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let (env, cpu) = (BTreeMap::new(), ["cpu"].into_iter().collect::<Drivers>());
    let program = "/opt/bin/het-train";
    let trainer = Some(Trainer { program, drivers: &cpu });
    let spec = job.resolve(&Context { trainer, ..context(&[], &env) });
    let spec = spec.unwrap_or_else(|problems| panic!("{problems}"));
    let told = |one: &Alternative| {
        assert_eq!(one.selector.drivers, one.launch.drivers);
        let words = one.selector.drivers.named()?.iter().map(ToString::to_string);
        Some(words.collect::<Vec<_>>().join(" "))
    };
    let alternatives = spec.stages[0].alternatives.iter();
    let all: Vec<String> =
        alternatives.map(|one| told(one).unwrap_or_else(|| "?".to_owned())).collect();
    let is_asked = all.iter().any(|words| words == "cpu") && !text.contains("[cpu]");
    assert_eq!(job.asks_trainer(program), is_asked, "{text}");
    all
}

#[test]
fn drivers_are_a_programs() {
    let check = |rest: &str, expected: &[&str]| {
        let text = format!("name: x\ndevices: \"gpu:1 | cpu:1\"\n{rest}");
        assert_eq!(drivers(&text), expected, "{rest}");
    };
    check("run: [python]", &["?", "?"]);
    check("run: [python]\ndrivers: [cuda, vulkan]", &["cuda vulkan", "cuda vulkan"]);
    // An alternative takes them over, unless it runs another program or says its own.
    let row = |row: &str| {
        format!("run: [python]\ndrivers: [cuda]\nalternatives: [{{ devices: npu, {row} }}]")
    };
    check(&row("env: { A: b }"), &["cuda", "cuda", "cuda"]);
    check(&row("run: [other]"), &["cuda", "cuda", "?"]);
    check(&row("container: image"), &["cuda", "cuda", "?"]);
    check(&row("run: [other], drivers: [cann]"), &["cuda", "cuda", "cann"]);
}

#[test]
fn the_installed_trainer_says_its_own_drivers() {
    let check = |run: &str, expected: &str| {
        assert_eq!(drivers(&format!("name: x\ndevices: gpu\nrun: {run}")), [expected], "{run}");
    };
    check("[het-train, load]", "cpu");
    check("[/opt/bin/het-train, load]", "cpu");
    check("het-train load --weights w", "cpu");
    check("[het-train, load]\ndrivers: [cuda]", "cuda");
    check("[het-train, load]\ncontainer: image", "?");
    check("[/home/user/het-train, load]", "?");
    check("[sh, -c, het-train load]", "?");
    check("het-train load; python train.py", "?");
    check("\"het-train load\\npython train.py\"", "?");
}

#[test]
fn a_driver_that_nobody_knows_is_worth_a_word() {
    let text = "name: x\nrun: [x]\ndevices: gpu\ndrivers: [cudda, cpu, photon]\n\
                alternatives: [{ devices: npu, drivers: [habanna] }]\n";
    let job = parse(text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let told: Vec<&str> = job.warnings.list().iter().map(|it| it.message.as_str()).collect();
    assert_eq!(
        told,
        [
            "`cudda` is no driver that is known: did you mean `cuda`?",
            "`photon` is no driver that is known: `het devices` lists the drivers of devices",
            "`habanna` is no driver that is known: did you mean `habana`?",
        ]
    );
    for wrong in ["[]", "[CUDA]", "cuda", "[\"\"]"] {
        refused(&format!("name: x\nrun: [x]\ndrivers: {wrong}\n"));
    }
}

#[test]
fn the_long_form_is_resolved() {
    let spec = resolved(LONG);
    assert_eq!((spec.priority, spec.time_limit), (Priority::High, Some(Millis::seconds(21_600))));
    let train = spec.stage(StageIndex(1));
    assert_eq!(train.after, [StageIndex(0)]);
    assert_eq!(train.alternatives.len(), 4);
    let launch = &train.alternatives[0].launch;
    assert_eq!(launch.argv, ["het-train", "finetune", "--data", "/w/preprocess"]);
    let checkpoint = launch.checkpoint.as_ref().expect("declared");
    assert_eq!((checkpoint.dir.as_str(), checkpoint.grace), ("/w/ckpt", Millis::seconds(90)));
    let npu = &train.alternatives[3];
    assert_eq!((npu.count, npu.launch.argv[0].as_str()), (16, "torchrun"));
    assert_eq!(npu.launch.env["HCCL"], "600");
}

#[test]
fn the_short_form_is_one_train_stage() {
    let spec = resolved(
        "name: llama-lora\npriority: high\nrun: torchrun train.py\n\
         devices: \"h100:8 | ascend-910b:16\"\ncheckpoint: 10m\ntime_limit: 6h\n",
    );
    let stage = spec.stage(StageIndex(0));
    assert_eq!((stage.name.as_str(), stage.alternatives.len()), ("train", 2));
    assert_eq!(stage.alternatives[0].launch.argv, ["/bin/sh", "-c", "torchrun train.py"]);
}

#[test]
fn how_many_ranks_a_request_may_have_goes_by_all_its_alternatives() {
    let check = |ranks: &str, expected: u32| {
        let text = format!("name: a\nrun: t\ndevices: \"cuda:1 | cuda:4 | cpu:2\"\n{ranks}");
        let spec = resolved(&text);
        let all = spec.stages[0].alternatives.iter().map(|shape| shape.launch.ranks_max);
        assert_eq!(all.collect::<Vec<_>>(), [expected; 3], "{ranks}");
    };
    check("ranks: device\n", 4);
    check("ranks: node\n", 1);
    check("", 1);
}

#[test]
fn an_elastic_stage_may_have_other_numbers_of_devices() {
    let check = |elastic: &str, expected: &[(u32, u32)]| {
        let text = format!(
            "name: a\nrun: t\ndevices: \"cuda:4 | cpu:8\"\ncheckpoint: 10m\nelastic: {elastic}\n"
        );
        let spec = resolved(&text);
        let row = |shape: &Alternative| {
            (shape.count, shape.launch.elastic.expect("it is elastic").reference)
        };
        assert_eq!(spec.stages[0].alternatives.iter().map(row).collect::<Vec<_>>(), expected);
    };
    check("{ min: 4, max: 8 }", &[(4, 4), (8, 4), (8, 8), (4, 8)]);
    check("{ min: 2, max: 8, batch: keep }", &[(4, 4), (2, 4), (8, 4), (8, 8), (4, 8), (2, 8)]);
    check("{ min: 3, max: 8 }", &[(4, 4), (3, 4), (6, 4), (8, 4), (8, 8), (6, 8), (3, 8)]);
}

#[test]
fn speeds_in_batches_of_a_range_are_remembered_by_themselves() {
    let profile = |elastic: &str| {
        let text = format!("name: a\nrun: t\ndevices: \"cuda:4\"\ncheckpoint: 10m\n{elastic}");
        resolved(&text).stages[0].profile.to_string()
    };
    assert_eq!(profile("elastic: { min: 1, max: 4 }\n"), "a/train");
    let range = "elastic: { min: 1, max: 4, batch: { min: 8, max: 64 } }\n";
    assert_eq!(profile(range), "a/train/batch-8-64");
}

#[test]
fn sizes_of_an_elastic_stage_are_checked() {
    let check = |elastic: &str, checkpoint: &str, expected: &str| {
        let told = refused(&format!(
            "name: a\nrun: t\ndevices: \"cpu:4\"\n{checkpoint}elastic: {elastic}\n"
        ));
        assert!(told.contains(expected), "{told}");
    };
    let saves = "checkpoint: 10m\n";
    check("{ min: 0, max: 2 }", saves, "0 to 2 are no numbers of devices");
    check("{ min: 3, max: 2 }", saves, "3 to 2 are no numbers of devices");
    check("{ min: 1, max: 2 }", saves, "asks for 4 devices, which is not from 1 to 2");
    check("{ min: 1, max: 4 }", "", "a stage without `checkpoint` would begin anew");
    check("{ min: 1, max: 4, batch: { min: 8, max: 4 } }", saves, "8 to 4 are no sizes of a batch");
    check("{ min: 1, max: 4, batch: { min: 0, max: 4 } }", saves, "`batch` has the wrong form");
    check("{ min: 1, max: 4, batch: half }", saves, "`batch: keep`");
}

#[test]
fn all_problems_are_told_at_once_with_their_places() {
    insta::assert_snapshot!(refused(
        r#"apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: Smol LM }
spec:
  priorty: high
  stages:
    - name: train
      run: 7
      device: "cpu:1"
      retries: many
    - name: validate
      kind: valdate
      run: [true]
"#
    ));
}

#[test]
fn sense_is_checked_after_the_shape() {
    insta::assert_snapshot!(refused(
        r#"apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: lora }
spec:
  time_limit: six hours
  stages:
    - name: load
      after: [validate]
      run: [cat, "{stage.tokenise.output}"]
      devices: "cpu:1 | asend-910b:8"
    - name: train
      after: [load, preprocess]
      run: "true"
      devices: "gpu:0"
    - name: validate
      after: [train]
      follows: [train]
      run: "true"
      with: { memory: 64 gigs }
      checkpoint: { every: often }
"#
    ));
}

#[test]
fn a_model_that_nobody_knows_is_told_with_the_nearest() {
    let text = "name: lora\nrun: train\ntrains: { model: lama3-8b, batch: 8, rank: 4 }\n";
    let job = parse(text, "job.yaml").map(|job| job.file.metadata.name);
    assert!(job.expect_err("all weights have no rank").to_string().contains("`rank`"));
    let text = "name: lora\nrun: train\ntrains: { model: lama3-8b, batch: 8 }\n";
    let job = parse(text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let env = BTreeMap::new();
    let models = ["gpt2", "llama3-8b"];
    let context = context(&models, &env);
    insta::assert_snapshot!(job.resolve(&context).expect_err("it is misspelt").to_string());
}

#[test]
fn broken_yaml_says_where() {
    insta::assert_snapshot!(refused("name: lora\n  run: x\ndevices: [\n"));
}

#[test]
fn an_empty_file_is_told_what_to_be() {
    insta::assert_snapshot!(refused("\n"));
}

#[test]
fn a_missing_program_is_named() {
    insta::assert_snapshot!(refused("name: lora\npriority: hihg\ndevices: cpu:1\n"));
}

#[test]
fn the_schema_is_the_one_in_the_repository() {
    let text = serde_json::to_string_pretty(&het_wire::job::json_schema()).expect("plain data");
    insta::assert_snapshot!("job.schema.json", text);
}

#[test]
fn the_shipped_examples_are_valid() {
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let read =
        |name: &str| std::fs::read_to_string(examples.join(name)).expect("the example is shipped");
    for name in ["finetune.yaml", "pipeline.yaml", "pretrain.yaml", "torchrun.yaml"] {
        resolved(&read(name));
    }
    let shipped: serde_json::Value =
        serde_json::from_str(&read("job.schema.json")).expect("the schema is JSON");
    assert_eq!(shipped, het_wire::job::json_schema(), "`het schema job` writes the newest");
}

#[test]
fn what_is_wrong_inside_a_choice_is_told_by_its_name() {
    let trains = "{ model: gpt2, batch: -1, sequence: 0, precision: bf32, tunning: full }";
    let text = format!("{{ name: job, run: [train], devices: 'cpu:1', trains: {trains} }}");
    let told = parse(&text, "job.yaml").expect_err("much is wrong").to_string();
    for part in ["`batch`", "`sequence`", "did you mean `fp32`?", "did you mean `tuning`?"] {
        assert!(told.contains(part), "{part} in {told}");
    }
}

#[test]
fn a_stage_says_when_it_may_be_stopped_for_others() {
    let check = |words: &str, expected: Preemptible| {
        let spec = resolved(&format!("name: x\nrun: [x]\ndevices: npu:1\n{words}"));
        assert_eq!(spec.stage(StageIndex(0)).preemptible, expected, "{words}");
    };
    check("", Preemptible::After(Millis::ZERO));
    check("preemptible: true\nmin_runtime: 10m", Preemptible::After(Millis::seconds(600)));
    check("preemptible: false", Preemptible::Never);
    let of_stage = LONG.replace("      precision: int8", "      preemptible: false");
    assert_eq!(resolved(&of_stage).stage(StageIndex(1)).preemptible, Preemptible::Never);
    assert_eq!(resolved(&of_stage).stage(StageIndex(0)).preemptible, Preemptible::default());
    let both = refused("name: x\nrun: [x]\npreemptible: false\nmin_runtime: 10m");
    assert!(both.contains("`min_runtime` means nothing beside `preemptible: false`"), "{both}");
    let no_span = refused("name: x\nrun: [x]\nmin_runtime: long");
    assert!(no_span.contains("`long` is not a duration"), "{no_span}");
}

/// A job of so many stages, each of which waits for so many of those before it.
fn dense(stages: usize, edges: usize) -> String {
    let stage = |number: usize| {
        let after: Vec<String> = (0..number).rev().take(edges).map(|n| format!("s{n}")).collect();
        let after = after.join(", ");
        format!("  - {{ name: s{number}, after: [{after}], run: [\"true\"], devices: cpu }}\n")
    };
    let stages: String = (0..stages).map(stage).collect();
    format!(
        "apiVersion: heterosis.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{ name: dense }}\n\
         spec:\n  stages:\n{stages}"
    )
}

/// What is said first of a file that is refused; nothing of one that is taken.
fn first_problem(text: &str) -> String {
    let problems = parse(text, "job.yaml").err();
    problems.map_or_else(String::new, |problems| problems.list()[0].message.clone())
}

#[test]
fn a_job_may_be_large_and_is_read_in_time() {
    assert_eq!(first_problem(&dense(64, 64)), "");
    assert_eq!(first_problem(&dense(65, 1)), "`stages` has 65 items, more than 64");
    let many = vec!["s0"; 4_097].join(", ");
    let text = |names: &str| dense(2, 1).replace("after: [s0]", &format!("after: [{names}]"));
    assert_eq!(first_problem(&text(&many)), "the stages name 4097 others, more than 4096");
    assert_eq!(first_problem(&text(&many["s0, ".len()..])), "");
}

#[test]
fn alternatives_and_placeholders_make_no_job_large() {
    let text = |count: usize| {
        format!("name: many\nrun: [x]\ndevices: {}\n", vec!["cpu"; count].join(" | "))
    };
    assert_eq!(first_problem(&text(256)), "");
    assert_eq!(first_problem(&text(257)), "the stages have 257 alternatives, more than 256");

    let env = BTreeMap::new();
    let workdir = "w".repeat(4_000);
    let context = Context { workdir: &workdir, ..Context::new(&[], &[], &env) };
    let told = |count: usize| {
        let text = format!("name: wide\nrun: [\"{}\"]\n", "{workdir}".repeat(count));
        let job = parse(&text, "job.yaml").expect("it is read");
        job.resolve(&context).err().map(|problems| problems.list()[0].message.clone())
    };
    assert_eq!(told(200), None);
    let why = told(20_000).expect("it is refused");
    assert!(why.contains("once its placeholders are filled in"), "{why}");
}

#[test]
fn a_long_circle_is_told_from_its_first_stage() {
    let text = dense(64, 1).replace("name: s0, after: []", "name: s0, after: [s63]");
    let told = first_problem(&text);
    assert!(told.starts_with("`after` goes round in a circle: s0 → s63 → s62 →"), "{told}");
    assert!(told.ends_with("→ s1 → s0"), "{told}");
}

#[test]
fn what_grows_when_it_is_read_is_refused() {
    let level = |n: u32| {
        let below = (0..10).map(|_| format!("*a{}", n - 1)).collect::<Vec<_>>().join(", ");
        format!("a{n}: &a{n} [{below}]\n")
    };
    let bomb: String = (1..9).map(level).collect();
    assert!(!first_problem(&format!("a0: &a0 [x]\n{bomb}")).is_empty());
    let deep = format!("name: {}x{}\n", "[".repeat(100_000), "]".repeat(100_000));
    assert!(!first_problem(&deep).is_empty());
}

#[test]
fn of_many_problems_the_first_are_told() {
    let stages: String = (0..60)
        .map(|n| format!("  - {{ name: s{n}, run: [\"true\"], devices: nonsense }}\n"))
        .collect();
    let text = format!(
        "apiVersion: heterosis.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{ name: many }}\n\
         spec:\n  stages:\n{stages}"
    );
    let problems = parse(&text, "job.yaml").expect_err("no device is called so");
    assert_eq!(problems.list().len(), 50);
    assert!(problems.to_string().ends_with("and 10 more like these\n"));
}
