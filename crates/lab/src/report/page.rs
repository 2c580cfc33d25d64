//! The page of a report. Everything it needs is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use het_core::{Name, Topology};
use het_wire::text::{self, Lang};
use serde_json::json;

use super::plot::{self, Bar, COLOURS, Scale, Series, escape};
use super::{PolicyRuns, Spread};
use crate::Outcome;
use crate::outcome::accelerators;
use crate::recording::{Decided, Decision, Recording};

/// Columns of the heat map.
const BUCKETS: usize = 120;

/// Devices and bars of a Gantt chart, beyond which a page grows too heavy.
const GANTT_DEVICES_MAX: usize = 128;
const GANTT_BARS_MAX: usize = 6_000;

/// Decisions a policy that are on the page; `het sim explain` has them all.
const DECISIONS_MAX: usize = 5_000;

/// A column of the policy table.
type Figure = (&'static str, fn(&Outcome) -> f64);

const FIGURES: [Figure; 9] = [
    ("mean completion, s", |outcome| outcome.avg_jct_s),
    ("p99, s", |outcome| outcome.p99_jct_s),
    ("makespan, s", |outcome| outcome.makespan_s),
    ("allocated", |outcome| outcome.utilisation.allocated),
    ("busy", |outcome| outcome.utilisation.busy),
    ("useful", |outcome| outcome.utilisation.useful),
    ("worst finish-time fairness", |outcome| outcome.finish_time_fairness.worst),
    ("stops", |outcome| (outcome.preemptions + outcome.suspensions + outcome.migrations) as f64),
    ("jobs done", |outcome| outcome.jobs_done as f64),
];

pub(super) fn html(title: &str, topology: &Topology, runs: &[PolicyRuns]) -> String {
    let seeds = runs.first().map_or(0, |runs| runs.outcomes.len());
    let mut body = format!("<h1>{}</h1>", escape(title));
    let _ = write!(
        body,
        "<p>Means over {seeds} seed(s) with 95 % confidence intervals; drawings show the first \
         seed.</p>{}",
        table(runs)
    );
    let key = key(runs);
    body += &format!("<h2>Completion and waiting</h2>{key}");
    body += "<p>Part of the jobs that took at most so long from submit to end.</p>";
    body += &cumulative(runs, "seconds to the end", |recording| &recording.completion_s);
    body += "<p>And from submit to their first start.</p>";
    body += &cumulative(runs, "seconds of waiting", |recording| &recording.wait_s);
    body += &format!("<h2>Queue</h2>{key}{}", queue(runs));
    body += "<h2>Utilisation</h2><p>Devices held, working, and working for something that counts; \
             dark is all of them.</p>";
    for runs in runs {
        let recording = &runs.recording;
        body += &format!("<h3>{}</h3>{}", recording.outcome.policy, levels(topology, recording));
    }
    body += "<h2>Who ran where</h2><p>A row a device, a colour a job; point at a bar.</p>";
    for runs in runs {
        let recording = &runs.recording;
        body += &format!("<h3>{}</h3>{}", recording.outcome.policy, gantt(topology, recording));
    }
    body += &format!("<h2>Tenants</h2>{}", tenants(runs));
    body += &inspector(topology, runs);
    format!(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{}</title>\
         <style>{}</style></head><body>{body}</body></html>",
        escape(title),
        include_str!("page.css")
    )
}

fn table(runs: &[PolicyRuns]) -> String {
    let titles: String = FIGURES.iter().map(|(title, _)| format!("<th>{title}</th>")).collect();
    let row = |runs: &PolicyRuns| {
        let cells: String = FIGURES
            .iter()
            .map(|(_, figure)| format!("<td>{}</td>", Spread::of(runs.outcomes.iter().map(figure))))
            .collect();
        format!("<tr><td>{}</td>{cells}</tr>", runs.recording.outcome.policy)
    };
    let rows: String = runs.iter().map(row).collect();
    format!("<table><tr><th>policy</th>{titles}</tr>{rows}</table>")
}

fn key(runs: &[PolicyRuns]) -> String {
    let entry = |(index, runs): (usize, &PolicyRuns)| {
        let colour = COLOURS[index % COLOURS.len()];
        let policy = runs.recording.outcome.policy;
        format!("<span><i style='background:{colour}'></i>{policy}</span>")
    };
    format!("<p class='key'>{}</p>", runs.iter().enumerate().map(entry).collect::<String>())
}

fn cumulative(
    runs: &[PolicyRuns],
    title: &str,
    values: impl Fn(&Recording) -> &Vec<f64>,
) -> String {
    let series = runs.iter().map(|runs| {
        let mut values = values(&runs.recording).clone();
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len().max(1) as f64;
        // A few hundred points say as much as all of them.
        let every = values.len().div_ceil(400).max(1);
        let points = values
            .iter()
            .enumerate()
            .filter(|(row, _)| row % every == 0 || row + 1 == values.len());
        Series {
            name: runs.recording.outcome.policy.to_owned(),
            points: points.map(|(row, value)| (*value, (row + 1) as f64 / count)).collect(),
        }
    });
    plot::lines(&series.collect::<Vec<_>>(), title, "part of the jobs", Scale::Logarithmic)
}

fn queue(runs: &[PolicyRuns]) -> String {
    let series = runs.iter().map(|runs| {
        let rows = &runs.recording.waiting;
        let every = rows.len().div_ceil(800).max(1);
        let mut points = Vec::new();
        for (at, count) in rows.iter().step_by(every) {
            let before = points.last().map_or(0.0, |(_, count)| *count);
            points.push((at.0 as f64 / 1e3, before));
            points.push((at.0 as f64 / 1e3, *count as f64));
        }
        Series { name: runs.recording.outcome.policy.to_owned(), points }
    });
    plot::lines(&series.collect::<Vec<_>>(), "seconds", "stages that wait", Scale::Linear)
}

/// Of the devices that the table's utilisation is about.
fn levels(topology: &Topology, recording: &Recording) -> String {
    let counted: BTreeSet<_> = accelerators(topology).into_iter().collect();
    let capacity: u32 = counted.iter().map(|&id| topology.device(id).capacity.whole_units()).sum();
    let end = recording.end.0 as f64 / 1e3;
    let mut rows =
        [("allocated", [0.0; BUCKETS]), ("busy", [0.0; BUCKETS]), ("useful", [0.0; BUCKETS])];
    let width = (end / BUCKETS as f64).max(1e-9);
    for span in &recording.spans {
        let (from, to) = (span.from.0 as f64 / 1e3, span.to.0 as f64 / 1e3);
        let grants = span.placement.devices().filter(|grant| counted.contains(&grant.device));
        let units = f64::from(grants.map(|grant| grant.share.whole_units()).sum::<u32>());
        let (first, last) = ((from / width) as usize, (to / width) as usize);
        for bucket in first..=last.min(BUCKETS - 1) {
            let begin = bucket as f64 * width;
            let overlap = (to.min(begin + width) - from.max(begin)).max(0.0);
            let part = units * overlap / width / f64::from(capacity.max(1));
            for ((_, row), level) in rows.iter_mut().zip([1.0, span.busy, span.useful]) {
                row[bucket] += part * level;
            }
        }
    }
    let rows = rows.map(|(name, values)| (name.to_owned(), values.to_vec()));
    plot::heat_map(&rows, end)
}

fn gantt(topology: &Topology, recording: &Recording) -> String {
    let accelerators: Vec<_> = topology.accelerators().collect();
    let shown = &accelerators[..accelerators.len().min(GANTT_DEVICES_MAX)];
    let row_of: BTreeMap<_, usize> = shown.iter().enumerate().map(|(row, id)| (*id, row)).collect();
    let name = |id: &het_core::DeviceId| {
        let device = topology.device(*id);
        format!("{}/{}", topology.node(device.node).name, device.name)
    };
    let mut bars = Vec::new();
    for span in &recording.spans {
        for grant in span.placement.devices() {
            let Some(&row) = row_of.get(&grant.device) else { continue };
            bars.push(Bar {
                row,
                from: span.from.0 as f64 / 1e3,
                to: span.to.0 as f64 / 1e3,
                colour: COLOURS[span.stage.job.0 as usize % COLOURS.len()],
                title: format!("job {}", span.stage),
            });
        }
    }
    let left_out = accelerators.len() > shown.len() || bars.len() > GANTT_BARS_MAX;
    bars.truncate(GANTT_BARS_MAX);
    let note =
        if left_out { "<p>Not everything fits: see <code>trace.json</code>.</p>" } else { "" };
    let names: Vec<String> = shown.iter().map(name).collect();
    plot::gantt(&names, &bars, recording.end.0 as f64 / 1e3) + note
}

fn tenants(runs: &[PolicyRuns]) -> String {
    let held = |recording: &Recording| {
        let mut by_tenant: BTreeMap<Name, f64> = BTreeMap::new();
        for span in &recording.spans {
            let seconds = span.to.since(span.from).as_seconds();
            let device_s = seconds * f64::from(span.placement.units());
            *by_tenant.entry(span.tenant.clone()).or_default() += device_s;
        }
        by_tenant
    };
    let columns: Vec<_> = runs.iter().map(|runs| held(&runs.recording)).collect();
    let mut names: Vec<&Name> = columns.iter().flat_map(BTreeMap::keys).collect();
    names.sort();
    names.dedup();
    let titles: String =
        runs.iter().map(|runs| format!("<th>{}</th>", runs.recording.outcome.policy)).collect();
    let rows: String = names
        .iter()
        .map(|name| {
            let cells: String = columns
                .iter()
                .map(|column| {
                    let all: f64 = column.values().sum();
                    let part = column.get(*name).copied().unwrap_or(0.0) / all.max(1e-9);
                    format!("<td>{:.1} %</td>", part * 100.0)
                })
                .collect();
            format!("<tr><td>{}</td>{cells}</tr>", escape(name.as_str()))
        })
        .collect();
    format!(
        "<p>Part of the device time that each had.</p><table><tr><th>tenant</th>{titles}</tr>\
         {rows}</table>"
    )
}

/// What was decided about each job, and why.
fn inspector(topology: &Topology, runs: &[PolicyRuns]) -> String {
    let options: String = runs
        .iter()
        .map(|runs| format!("<option>{}</option>", runs.recording.outcome.policy))
        .collect();
    let rows = |recording: &Recording| -> Vec<[String; 3]> {
        let row = |decided: &Decided| {
            let at = format!("{:.0} s", decided.at.0 as f64 / 1e3);
            [at, decided.stage.to_string(), sentence(topology, Lang::En, &decided.what)]
        };
        recording.decisions.iter().take(DECISIONS_MAX).map(row).collect()
    };
    let table: serde_json::Map<String, serde_json::Value> = runs
        .iter()
        .map(|runs| (runs.recording.outcome.policy.to_owned(), json!(rows(&runs.recording))))
        .collect();
    // No tag may end the script early.
    let data = serde_json::Value::Object(table).to_string().replace('<', "\\u003c");
    format!(
        "<h2>Decisions</h2><p>Policy <select id='policy'>{options}</select> job <input id='job' \
         size='8' placeholder='all'></p><div><table><tbody id='found'></tbody></table></div>\
         <script>const decisions = {data};{}</script>",
        include_str!("page.js")
    )
}

/// What was decided, as people read it.
pub fn sentence(topology: &Topology, lang: Lang, what: &Decision) -> String {
    let reasons = |reasons: &[het_core::Reason]| {
        let told: Vec<String> = reasons.iter().map(|r| text::reason(lang, r)).collect();
        told.join("; ")
    };
    match what {
        Decision::Start { placement, reasons: why } => {
            let mut names: Vec<String> = placement
                .devices()
                .map(|grant| {
                    let device = topology.device(grant.device);
                    format!("{}/{}", topology.node(device.node).name, device.name)
                })
                .collect();
            let count = names.len();
            names.truncate(4);
            let more = if count > names.len() { " …" } else { "" };
            format!("starts on {}{more} ({count}): {}", names.join(", "), reasons(why))
        }
        Decision::Stop { cause, cost_device_s: Some(cost) } => {
            format!("stops ({}), which costs {cost:.0} device-seconds", cause.word())
        }
        Decision::Stop { cause, cost_device_s: None } => format!("stops ({})", cause.word()),
        Decision::Wait { reasons: why } => format!("waits: {}", reasons(why)),
    }
}
