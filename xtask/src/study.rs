//! `cargo xtask study NAME [DATA]`: the figures of `docs/studies/NAME.md`, as Markdown.

mod headline;
mod planning;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A study by name: what it prints, given the folder of published data.
type Study = (&'static str, fn(&Path) -> Result<()>);

/// Every study.
pub const STUDIES: [Study; 9] = [
    ("gavel", gavel),
    ("sia", sia),
    ("packing", packing),
    ("headline", |_| headline::headline()),
    ("faults", |_| faults()),
    ("planner", planning::planner),
    ("fabric", planning::fabric),
    ("mixed", |_| planning::mixed()),
    ("train", |_| train()),
];

/// Clusters and traces of Gavel's study.
const GAVEL_INPUTS: &[(&str, &str)] = &[
    ("8,16,24", "minimize_makespan"),
    ("12,12,12", "minimize_makespan"),
    ("12,12,12", "generated_cont160_seed0"),
    ("12,12,12", "generated_static120_seed1"),
    ("8,16,24", "max_min_fairness"),
    ("12,12,12", "max_min_fairness"),
];

const GAVEL_POLICIES: &str = "max-min-fairness-perf,min-total-duration-perf,\
                              finish-time-fairness-perf,fifo-perf,isolated,static";

/// What is assumed in each of Gavel's two tables.
const ASSUMPTIONS: &[(&str, &[&str])] = &[
    ("Exact speeds and work, restarts cost nothing", &[]),
    (
        "Restarts cost 60 s; speeds are told with σ = 0.2, work with σ = 0.3",
        &["--restart-cost", "60", "--noise", "speed=0.2,work=0.3"],
    ),
];

fn gavel(data: &Path) -> Result<()> {
    let folder = folder(data, "gavel")?;
    let table = folder.join("simulation_throughputs.json");
    for (title, words) in ASSUMPTIONS {
        println!("\n### {title}\n");
        println!(
            "| cluster, trace | policy | mean JCT s | p99 JCT s | makespan s | busy | worst FTF |"
        );
        println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
        for (sizes, trace) in GAVEL_INPUTS {
            let cluster = format!("gavel:{sizes}");
            let trace_file = folder.join(format!("{trace}.trace"));
            let paths = [("--trace", trace_file.as_path()), ("--profiles", &table)];
            let play = |policies: &str, cadence: &[&str]| {
                let words = [words, cadence, &["--policies", policies]].concat();
                items(&[&["sim", "compare", "--cluster", &cluster], &words[..]].concat(), &paths)
            };
            // Ours as it ships, on every event; the published ones in their simulator's rounds.
            let mut rows = play("adaptive", &["--bound"])?;
            rows.extend(play(GAVEL_POLICIES, &["--round", "360"])?);
            for row in rows {
                println!(
                    "| {sizes} {trace} | `{}` | {} | {} | {} | {} | {} |",
                    row["policy"].as_str().unwrap_or_default(),
                    figure(&row, "avg_jct_s", 0),
                    figure(&row, "p99_jct_s", 0),
                    figure(&row, "makespan_s", 0),
                    figure(&row, "busy", 3),
                    figure(&row, "worst_finish_time_fairness", 2),
                );
            }
        }
    }
    Ok(())
}

const SIA_INPUTS: [&str; 5] = [
    "philly/workload-1",
    "saturn/workload-1",
    "philly/workload-2",
    "saturn/workload-2",
    "newtrace/workload-1",
];

fn sia(data: &Path) -> Result<()> {
    let folder = folder(data, "sia")?;
    println!("| workload | policy | mean JCT s | p50 s | p99 s | makespan s | busy | changes |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for workload in SIA_INPUTS {
        let trace = folder.join("workloads").join(format!("{workload}.csv"));
        let profiles = folder.join("profiles");
        let play = |words: &[&str]| {
            let common = ["sim", "compare", "--cluster", "sia:default", "--format", "sia"];
            let words = [&common[..], &["--restart-cost", "profile"], words].concat();
            items(&words, &[("--trace", &trace), ("--profiles", &profiles)])
        };
        let mut rows = play(&["--policies", "adaptive", "--bound"])?;
        rows.extend(play(&["--policies", "sia", "--round", "60"])?);
        for row in rows {
            let changes = ["migrations", "suspensions"].map(|field| row[field].as_f64());
            println!(
                "| {workload} | `{}` | {} | {} | {} | {} | {} | {} |",
                row["policy"].as_str().unwrap_or_default(),
                figure(&row, "avg_jct_s", 0),
                figure(&row, "p50_jct_s", 0),
                figure(&row, "p99_jct_s", 0),
                figure(&row, "makespan_s", 0),
                figure(&row, "busy", 3),
                shown(changes.into_iter().sum(), 0),
            );
        }
    }
    Ok(())
}

fn packing(data: &Path) -> Result<()> {
    let folder = folder(data, "alibaba-gpu-v2023")?;
    let nodes = folder.join("openb_node_list_gpu_node.csv");
    let cluster = format!("alibaba-openb:{}", nodes.display());
    println!("| pods | policy | accelerators allocated, % |");
    println!("| --- | --- | ---: |");
    for list in ["default", "cpu100", "gpuspec33"] {
        let pods = folder.join(format!("openb_pod_list_{list}.csv"));
        for row in items(&["sim", "pack", "--cluster", &cluster], &[("--pods", &pods)])? {
            let policy = row["policy"].as_str().unwrap_or_default();
            println!("| {list} | `{policy}` | {:.2} |", number(&row, "gpu_alloc_pct"));
        }
    }
    Ok(())
}

/// A job of 9,600 devices for 54 days, on 16 spare nodes more.
const LARGE_JOB: &str = "{\"arrival_s\":0,\"stages\":[{\"units\":9600,\"seconds\":4665600}]}\n";

/// Seconds between interruptions of the large job at Llama-3's rate.
const MEAN_TIME_S: f64 = 86_400.0 / (419.0 / 16_384.0 / 54.0 * 9_600.0);

const SAVE_S: f64 = 10.0;

/// Runs of each row.
const FAULT_SEEDS: &str = "10";

fn faults() -> Result<()> {
    let trace = std::env::temp_dir().join(format!("het-large-job-{}.jsonl", std::process::id()));
    std::fs::write(&trace, LARGE_JOB).context("the trace of the large job")?;
    let young = (2.0 * SAVE_S * MEAN_TIME_S).sqrt();
    println!("| every s | restart s | foreseen | effective time | first-order formula |");
    println!("| ---: | ---: | ---: | ---: | ---: |");
    let rows = [0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5].map(|factor| (young * factor, 300.0, 0.0));
    let announced = [(0.35, 300.0), (0.0, 60.0), (0.35, 60.0)]
        .map(|(foreseen, restart)| (young / f64::sqrt(1.0 - foreseen), restart, foreseen));
    for (every, restart, foreseen) in rows.into_iter().chain(announced) {
        let words = [every.round(), restart, foreseen, SAVE_S].map(|value| value.to_string());
        let [every_word, restart_word, foreseen_word, save_word] = &words;
        let command = [
            "sim",
            "compare",
            "--cluster",
            "uniform:1216x8",
            "--policies",
            "adaptive",
            "--seeds",
            FAULT_SEEDS,
            "--faults",
            "llama3",
            "--restart-cost",
            restart_word,
            "--foreseen",
            foreseen_word,
            "--checkpoint-every",
            every_word,
            "--checkpoint-cost",
            save_word,
        ];
        for row in items(&command, &[("--trace", &trace)])? {
            let formula =
                1.0 - SAVE_S / every - every / (2.0 * MEAN_TIME_S) - restart / MEAN_TIME_S;
            let formula = if foreseen > 0.0 { "–".to_owned() } else { format!("{formula:.3}") };
            println!(
                "| {every_word} | {restart_word} | {foreseen_word} | {:.3} | {formula} |",
                number(&row, "effective_time")
            );
        }
    }
    std::fs::remove_file(&trace).context("the trace of the large job")
}

/// Training steps beside PyTorch, by the Python that `PATH` has.
fn train() -> Result<()> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "--package", "het-train"]);
    let program = crate::target().join("release/het-train");
    let mut compare = Command::new("python3");
    compare.arg("benches/training_vs_torch.py").arg(program);
    for (mut command, name) in [(build, "cargo"), (compare, "python3")] {
        let run = command.current_dir(crate::root()).status();
        let status = run.with_context(|| format!("`{name}` does not start"))?;
        if !status.success() {
            bail!("`{name}` ended with {status}; torch, transformers and peft must be installed");
        }
    }
    Ok(())
}

fn folder(data: &Path, name: &str) -> Result<PathBuf> {
    let folder = data.join(name);
    if !folder.is_dir() {
        bail!("`{}` is no folder; give the one that holds `{name}/`", folder.display());
    }
    Ok(folder)
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or(f64::NAN)
}

/// The same for people; a bound has not every figure.
fn figure(row: &Value, name: &str, digits: usize) -> String {
    shown(row[name].as_f64(), digits)
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

/// The list that `het` prints.
fn items(words: &[&str], paths: &[(&str, &Path)]) -> Result<Vec<Value>> {
    let words = [words, &["--output", "json"]].concat();
    let list: Value = serde_json::from_slice(&het(&words, paths)?).context("the list")?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// What `het` prints; it is built first.
fn het(words: &[&str], paths: &[(&str, &Path)]) -> Result<Vec<u8>> {
    static BUILT: OnceLock<bool> = OnceLock::new();
    let cargo = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(words).current_dir(crate::root());
        command
    };
    let built = BUILT.get_or_init(|| {
        let mut build = cargo(&["build", "--quiet", "--release", "--package", "het-cli"]);
        build.status().is_ok_and(|status| status.success())
    });
    if !built {
        bail!("`het` does not build");
    }
    let mut command = Command::new(crate::target().join("release/het"));
    command.args(words).current_dir(crate::root());
    for (name, path) in paths {
        command.arg(name).arg(std::path::absolute(path).context("a path")?);
    }
    let output = command.output().context("`het` does not start")?;
    if !output.status.success() {
        bail!("het {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}
