//! `het fabric simulate`: published flows played again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anstream::{eprintln, println};
use clap::Args;
use het_lab::report::{Cloud, scatter_plot};
use het_lab::{FlowError, FlowScenario, FlowScore, read_flows, score_flows, summarise};
use serde_json::{Map, Value, json};

use super::write;
use crate::fail::{Fail, code};
use crate::output::{Form, object};
use crate::workload::unusable;

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Flows with their published completion times (CSV).
    #[arg(long, value_name = "CSV")]
    pub flows: PathBuf,
    /// Draw our completion times beside the published ones.
    #[arg(long, value_name = "SVG")]
    pub plot: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

/// Plays published flows, and says how far our times are from theirs.
pub fn simulate(args: &SimulateArgs) -> Result<u8, Fail> {
    let scenarios = read_flows(&args.flows).map_err(|error| unusable(&error))?;
    let began = Instant::now();
    let scores = score_flows(&scenarios);
    let wall_s = began.elapsed().as_secs_f64();
    let flows = || scores.iter().flat_map(|score| &score.flows);
    if let Some(path) = &args.plot {
        write(path, &scatter_plot(&clouds(&scenarios, &scores), "µs"))?;
        eprintln!("drawn in `{}`", path.display());
    }
    let difference = flows().map(|flow| flow.max_min_difference).fold(0.0, f64::max);
    let (median, mean) = (by_control(&scores, |score| score.0), by_control(&scores, |s| s.1));
    let value = json!({
        "flows": flows().count(),
        "scenarios": scores.len(),
        "max_rel_diff_maxmin": difference,
        "median_err_by_cc": median,
        "mean_err_by_cc": mean,
        "wall_s": (wall_s * 1e3).round() / 1e3,
    });
    object(&value, args.output, || {
        println!(
            "{} flows of {} scenarios in {wall_s:.2} s; max-min shares within {difference:.1e} of \
             the published",
            flows().count(),
            scores.len()
        );
        for (name, error) in &median {
            let (median, mean) = (percent(error), percent(&mean[name]));
            println!("  {name:<18} median error {median:>5.1} %, mean {mean:>5.1} %");
        }
    });
    Ok(code::OK)
}

/// Completion times in microseconds, by congestion control.
fn clouds(scenarios: &[FlowScenario], scores: &[FlowScore]) -> Vec<Cloud> {
    let mut clouds: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for (scenario, score) in scenarios.iter().zip(scores) {
        let times = scenario.flows.iter().zip(&score.flows);
        let points = times.map(|(told, ours)| (told.packets_ns / 1e3, ours.predicted_ns / 1e3));
        clouds.entry(score.control.family()).or_default().extend(points);
    }
    clouds.into_iter().map(|(name, points)| Cloud { name: name.to_owned(), points }).collect()
}

fn percent(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN) * 100.0
}

/// One of (median, mean) of every congestion control, by the name of its family.
fn by_control(scores: &[FlowScore], pick: impl Fn((f64, f64)) -> f64) -> Map<String, Value> {
    let mut errors: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for score in scores {
        let of_flows = score.flows.iter().map(|flow: &FlowError| flow.predicted_error);
        errors.entry(score.control.family()).or_default().extend(of_flows);
    }
    let rows = errors.into_iter().filter_map(|(name, errors)| {
        let summary = summarise(errors.into_iter())?;
        let value = pick((summary.median, summary.mean));
        Some((name.to_owned(), json!((value * 1e6).round() / 1e6)))
    });
    rows.collect()
}
