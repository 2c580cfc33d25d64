//! Estimates held against published measurements.

use anstream::eprintln;
use het_lab::planner::{Score, figures, predict, read_training_runs, score};
use serde_json::{Value, json};

use crate::args::ValidateArgs;
use crate::fail::{Fail, code};
use crate::output::{Column, Shown, list};
use crate::trace;

const COLUMNS: &[Column] = &[
    Column("SOURCE", "source", Shown::Always),
    Column("MODEL", "model", Shown::Always),
    Column("ROWS", "rows", Shown::Always),
    Column("SKIPPED", "skipped", Shown::Always),
    Column("MAPE", "mape", Shown::Always),
    Column("MEDIAN", "median_ape", Shown::Always),
    Column("SPEARMAN", "spearman", Shown::Always),
    Column("REGRET", "top1_regret", Shown::Always),
];

pub fn validate(args: &ValidateArgs) -> Result<u8, Fail> {
    let mut runs = Vec::new();
    for path in &args.data {
        runs.extend(read_training_runs(path).map_err(|error| trace::unusable(&error))?);
    }
    let predictions = predict(&runs, figures);
    let items: Vec<Value> = score(&runs, &predictions).iter().map(told).collect();
    list("ScoreList", &items, COLUMNS, args.output);
    let skipped = runs.len() - predictions.len();
    if skipped > 0 {
        eprintln!(
            "{skipped} of {} rows lack something that a prediction needs, or ran on a device \
             without figures",
            runs.len()
        );
    }
    Ok(code::OK)
}

/// Fractions, to six digits.
fn told(score: &Score) -> Value {
    let rounded = |value: Option<f64>| value.map(|value| (value * 1e6).round() / 1e6);
    json!({
        "source": score.source,
        "model": score.model,
        "rows": score.rows,
        "skipped": score.skipped,
        "mape": rounded(score.mape),
        "median_ape": rounded(score.median_ape),
        "spearman": rounded(score.spearman),
        "top1_regret": rounded(score.top1_regret),
    })
}
