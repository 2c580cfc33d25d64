//! Estimates held against published measurements.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anstream::eprintln;
use clap::Args;
use het_lab::measured::read_training_runs;
use het_lab::report::{Cloud, scatter_plot};
use het_planner::validation::{Prediction, Score, figures, predict, score};
use serde_json::{Value, json};

use crate::fail::{Fail, code};
use crate::output::{Column, Form, Shown, list};
use crate::workload::unusable;

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

#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Measured training runs (CSV); may be given several times.
    #[arg(long, required = true, value_name = "CSV")]
    pub data: Vec<PathBuf>,
    /// Draw predicted beside measured step times.
    #[arg(long, value_name = "SVG")]
    pub plot: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn validate(args: &ValidateArgs) -> Result<u8, Fail> {
    let mut runs = Vec::new();
    for path in &args.data {
        runs.extend(read_training_runs(path).map_err(|error| unusable(&error))?);
    }
    if runs.is_empty() {
        return Err(Fail::new(code::USAGE, "there are no rows to hold estimates against")
            .hint("a header and a row for each measured run"));
    }
    let predictions = predict(&runs, figures);
    let items: Vec<Value> = score(&runs, &predictions).iter().map(told).collect();
    list("ScoreList", &items, COLUMNS, args.output);
    if let Some(path) = &args.plot {
        let drawing = scatter_plot(&clouds(&predictions), "seconds a step");
        fs::write(path, drawing).map_err(|error| Fail::file(path, error))?;
        eprintln!("drawn in `{}`", path.display());
    }
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

/// Step times by source.
fn clouds(predictions: &[Prediction<'_>]) -> Vec<Cloud> {
    let mut clouds: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for prediction in predictions {
        let times = (prediction.setup.seconds, prediction.time.total_s);
        clouds.entry(&prediction.run.source).or_default().push(times);
    }
    clouds.into_iter().map(|(name, points)| Cloud { name: name.to_owned(), points }).collect()
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
