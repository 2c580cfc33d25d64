//! `cargo xtask study gavel DATA`: the figures of `docs/studies/gavel.md`, as Markdown.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Clusters and traces of the study.
const INPUTS: &[(&str, &str)] = &[
    ("8,16,24", "minimize_makespan"),
    ("12,12,12", "minimize_makespan"),
    ("12,12,12", "generated_cont160_seed0"),
    ("12,12,12", "generated_static120_seed1"),
    ("8,16,24", "max_min_fairness"),
    ("12,12,12", "max_min_fairness"),
];

const POLICIES: &str = "adaptive,max-min-fairness-perf,min-total-duration-perf,\
                        finish-time-fairness-perf,fifo-perf,isolated,static";

/// What is assumed in each of the two tables.
const ASSUMPTIONS: &[(&str, &[&str])] = &[
    ("Exact speeds and work, restarts cost nothing", &[]),
    (
        "Restarts cost 60 s; speeds are told with σ = 0.2, work with σ = 0.3",
        &["--restart-cost", "60", "--noise", "speed=0.2,work=0.3"],
    ),
];

/// Prints the tables; `data` holds `gavel/` with the published files.
pub fn gavel(data: &Path) -> Result<()> {
    let folder = data.join("gavel");
    if !folder.is_dir() {
        bail!("`{}` is no folder; give the one that holds `gavel/`", folder.display());
    }
    for (title, words) in ASSUMPTIONS {
        println!("\n### {title}\n");
        println!(
            "| cluster, trace | policy | mean JCT s | p99 JCT s | makespan s | busy | worst FTF |"
        );
        println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
        for (sizes, trace) in INPUTS {
            for row in compare(&folder, sizes, trace, words)? {
                let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
                println!(
                    "| {sizes} {trace} | `{}` | {:.0} | {:.0} | {:.0} | {:.3} | {:.2} |",
                    row["policy"].as_str().unwrap_or_default(),
                    number("avg_jct_s"),
                    number("p99_jct_s"),
                    number("makespan_s"),
                    number("busy"),
                    number("worst_finish_time_fairness"),
                );
            }
        }
    }
    Ok(())
}

fn compare(folder: &Path, sizes: &str, trace: &str, words: &[&str]) -> Result<Vec<Value>> {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--release", "--package", "het-cli", "--", "sim", "compare"])
        .args(["--cluster", &format!("gavel:{sizes}"), "--round", "360", "--output", "json"])
        .arg("--trace")
        .arg(folder.join(format!("{trace}.trace")))
        .arg("--profiles")
        .arg(folder.join("simulation_throughputs.json"))
        .args(["--policies", POLICIES])
        .args(words)
        .current_dir(crate::root())
        .output()
        .context("cargo does not start")?;
    if !output.status.success() {
        bail!("het sim compare: {}", String::from_utf8_lossy(&output.stderr));
    }
    let list: Value = serde_json::from_slice(&output.stdout).context("the comparison")?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}
