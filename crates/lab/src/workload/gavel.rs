//! Gavel's traces and throughput tables (Narayanan et al., OSDI 2020).

use std::collections::BTreeMap;
use std::path::Path;

use het_core::Priority;
use serde::Deserialize;
use serde_json::{Value, json};

use super::source::{Fields, Spot, TraceError};
use super::{Speeds, TraceJob, Work};

/// Fields of a line: job type, command, working directory, steps argument, needs data, total steps,
/// GPUs, priority weight, SLO, arrival; in short, job type, command, steps argument, needs data,
/// total steps, arrival, GPUs.
const LONG: usize = 10;
const SHORT: usize = 7;

pub(super) fn jobs(path: &Path, text: &str) -> Result<Vec<TraceJob>, TraceError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| job(&Fields::split(path, index + 1, line, '\t'))).collect()
}

fn job(fields: &Fields<'_>) -> Result<TraceJob, TraceError> {
    let (steps, gang, arrival) = match fields.len() {
        LONG => (5, 6, 9),
        SHORT => (4, 6, 5),
        other => {
            let reason = format!("{other} fields, a Gavel trace has {LONG} or {SHORT}");
            return Err(fields.wrong(0, reason));
        }
    };
    let profile = fields.text(0, "job type")?.to_owned();
    let work = Work::Steps(fields.number(steps, "total steps")?);
    let units: u32 = fields.number(gang, "GPUs")?;
    let arrival_s: f64 = fields.number(arrival, "arrival")?;
    if units == 0 {
        return Err(fields.wrong(gang, "a job of no GPUs cannot run".to_owned()));
    }
    Ok(TraceJob::of_one_stage(arrival_s, Priority::Normal, "gavel", Some(profile), units, work))
}

/// One entry of a table; speeds beside a co-runner are not used.
#[derive(Deserialize)]
struct Entry {
    /// Steps per second alone on its devices.
    null: Option<f64>,
}

/// The table of steps per second by class, profile and units.
pub(super) fn speeds(path: &Path, text: &str) -> Result<Speeds, TraceError> {
    let wrong = |line: usize, column: usize, reason: String| TraceError {
        spot: Spot { path: path.to_owned(), line: line.max(1), column: column.max(1) },
        reason,
    };
    let table: BTreeMap<String, BTreeMap<String, Entry>> = serde_json::from_str(text)
        .map_err(|error| wrong(error.line(), error.column(), error.to_string()))?;
    let mut speeds = Speeds::default();
    for (class, rows) in &table {
        for (key, entry) in rows {
            let (profile, units) = split_key(key).ok_or_else(|| {
                wrong(1, 1, format!("`{key}` is no key like `('ResNet-18 (batch size 64)', 1)`"))
            })?;
            if let Some(rate) = entry.null.filter(|rate| *rate > 0.0) {
                speeds.declare(profile, class, units, rate);
            }
        }
    }
    Ok(speeds)
}

/// The opposite of [`speeds`].
pub(super) fn write_speeds(speeds: &Speeds) -> String {
    let mut table: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    for (profile, class, units, rate) in speeds.rows() {
        let rows = table.entry(class).or_default();
        rows.insert(format!("('{profile}', {units})"), json!({ "null": rate }));
    }
    serde_json::to_string_pretty(&table).expect("text and finite numbers are JSON") + "\n"
}

/// `('ResNet-18 (batch size 64)', 4)` → profile and units.
fn split_key(key: &str) -> Option<(&str, u32)> {
    let (profile, units) = key.strip_prefix("('")?.strip_suffix(')')?.rsplit_once("', ")?;
    Some((profile, units.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_line_names_its_place() {
        let line = "ResNet-18 (batch size 64)\tpython\tdir\t-n\t1\tmany\t1\t1\t-1.0\t0";
        let error = jobs(Path::new("a.trace"), line).expect_err("`many` is no number");
        assert_eq!(error.to_string(), "a.trace:1:43: `total steps` is `many`, not such a number");
        let error = jobs(Path::new("a.trace"), "\n\nx\ty").expect_err("too short");
        assert_eq!(error.to_string(), "a.trace:3:1: 2 fields, a Gavel trace has 10 or 7");
    }

    #[test]
    fn a_table_keeps_what_runs_alone() {
        let text = r#"{"v100": {"('LM (batch size 5)', 2)": {"null": 4.5, "('x', 1)": [1.0, 2.0]},
            "('LM (batch size 5)', 4)": {"null": 0.0}}}"#;
        let speeds = speeds(Path::new("t.json"), text).expect("a table");
        assert_eq!(speeds.rate("LM (batch size 5)", "v100", 2), Some(4.5));
        assert_eq!(speeds.rate("LM (batch size 5)", "v100", 4), None);
    }
}
