//! Studies of large jobs: how near step times and flows are predicted, what mixes are worth.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{folder, het, items, number};

/// Mixes of the study: the brief's node, and as many of either maker.
const MIXES: [(&str, [&str; 3]); 2] = [
    ("epyc-h100x8-910b", ["llama3-8b", "llama2-13b", "llama3-70b"]),
    ("hgx-h100-8x8+rail+atlas-800t-a2x8+rail", ["llama3-8b", "llama3-70b", "gpt3-175b"]),
];

/// What a mix is worth: the best plan over all of it beside the best over each part.
pub fn mixed() -> Result<()> {
    println!("| devices | model | mix, tokens/s | each part alone | worth | taking part | cut |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | --- |");
    for (cluster, models) in MIXES {
        for model in models {
            let words = [
                "size",
                "--model",
                model,
                "--cluster",
                cluster,
                "--batch",
                "1024",
                "--output",
                "json",
            ];
            let text = het(&words, &[])?;
            let answer: Value = serde_json::from_slice(&text).context("its answer as JSON")?;
            let best = &answer["items"][0];
            let parts = answer["alone"].as_array().context("the parts")?;
            let told: Vec<String> = parts
                .iter()
                .map(|part| {
                    let class = part["class"].as_str().unwrap_or_default();
                    match part["tokens_per_s"].as_f64() {
                        Some(rate) => format!("{} × {class}: {rate:.0}", part["devices"]),
                        None => format!("{} × {class}: does not fit", part["devices"]),
                    }
                })
                .collect();
            let rate = |part: &Value| part["tokens_per_s"].as_f64();
            let alone = parts.iter().filter_map(rate).fold(0.0, f64::max);
            println!(
                "| `{cluster}` | {model} | {:.0} | {} | {:+.1} % | {} | {} |",
                number(best, "tokens_per_s"),
                told.join(", "),
                (number(best, "tokens_per_s") / alone - 1.0) * 100.0,
                best["devices"],
                best["cut"].as_str().unwrap_or_default(),
            );
        }
    }
    Ok(())
}

/// Errors by source, and both drawings beside the study.
pub fn planner(data: &Path) -> Result<()> {
    let folder = folder(data, "planner")?;
    println!("| source | runs | skipped | mean | median | rank correlation | regret |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (file, drawing) in [
        ("measured-training-runs.csv", "docs/studies/planner.svg"),
        ("measured-single-node.csv", "docs/studies/planner-node.svg"),
    ] {
        let paths = [("--data", folder.join(file)), ("--plot", crate::root().join(drawing))];
        let paths = paths.each_ref().map(|(word, path)| (*word, path.as_path()));
        let rows = items(&["size", "validate"], &paths)?;
        for row in rows.iter().filter(|row| row["model"].is_null() && number(row, "rows") > 0.0) {
            println!(
                "| {} | {} | {} | {} | {} | {} | {} |",
                row["source"].as_str().unwrap_or_default(),
                row["rows"],
                row["skipped"],
                percent(&row["mape"]),
                percent(&row["median_ape"]),
                row["spearman"].as_f64().map_or("–".to_owned(), |rank| format!("{rank:.2}")),
                percent(&row["top1_regret"]),
            );
        }
    }
    Ok(())
}

/// A fraction in percent; a dash where there is nothing to tell.
fn percent(value: &Value) -> String {
    value.as_f64().map_or("–".to_owned(), |part| format!("{:.2} %", part * 100.0))
}

/// Errors by congestion control, and the drawing beside the study.
pub fn fabric(data: &Path) -> Result<()> {
    let flows = folder(data, "fabric")?.join("ns3-flow-completion.csv");
    let drawing = crate::root().join("docs/studies/fabric.svg");
    let words = ["fabric", "simulate", "--output", "json"];
    let told = het(&words, &[("--flows", &flows), ("--plot", &drawing)])?;
    let told: Value = serde_json::from_slice(&told).context("the figures")?;
    println!("| congestion control | median | mean |");
    println!("| --- | ---: | ---: |");
    for (name, median) in told["median_err_by_cc"].as_object().into_iter().flatten() {
        let mean = &told["mean_err_by_cc"][name];
        println!("| {name} | {} | {} |", percent(median), percent(mean));
    }
    println!(
        "\n{} flows of {} scenarios in {} s; max-min shares within {} of the published ones",
        told["flows"], told["scenarios"], told["wall_s"], told["max_rel_diff_maxmin"]
    );
    Ok(())
}
