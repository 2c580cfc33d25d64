//! The page of a report. Everything it needs is in it.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Name, Topology};
use het_wire::text::{self, Lang, ReportWords, report_words};
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

/// A column of the policy table; nothing to show where the figure is not known.
type Figure = (fn(&ReportWords) -> &'static str, fn(&Outcome) -> Option<f64>);

const FIGURES: [Figure; 11] = [
    (|words| words.mean_completion, |outcome| Some(outcome.avg_jct_s)),
    (|words| words.p99, |outcome| Some(outcome.p99_jct_s)),
    (|words| words.makespan, |outcome| Some(outcome.makespan_s)),
    (|words| words.allocated, |outcome| Some(outcome.utilisation.allocated)),
    (|words| words.busy, |outcome| Some(outcome.utilisation.busy)),
    (|words| words.useful, |outcome| Some(outcome.utilisation.useful)),
    (|words| words.worst_fairness, |outcome| Some(outcome.finish_time_fairness.worst)),
    (|words| words.energy, |outcome| outcome.energy_kwh),
    (|words| words.price, |outcome| outcome.price),
    (|words| words.stops, |outcome| Some(outcome.stops() as f64)),
    (|words| words.jobs_done, |outcome| Some(outcome.jobs_done as f64)),
];

pub(super) fn html(title: &str, lang: Lang, topology: &Topology, runs: &[PolicyRuns]) -> String {
    let words = report_words(lang);
    let seeds = runs.first().map_or(0, |runs| runs.outcomes.len()).to_string();
    let key = key(runs);
    let ended = cumulative(runs, words, words.seconds_to_the_end, |r| &r.completion_s);
    let began = cumulative(runs, words, words.seconds_of_waiting, |r| &r.wait_s);
    let of_each = |draw: &dyn Fn(&Recording) -> String| -> String {
        let one = |runs: &PolicyRuns| {
            format!("<h3>{}</h3>{}", runs.recording.outcome.policy, draw(&runs.recording))
        };
        runs.iter().map(one).collect()
    };
    let sections = [
        format!("<h1>{}</h1><p>{}</p>", escape(title), text::fill(words.intro, &[&seeds])),
        table(runs, words),
        format!("<h2>{}</h2>{key}", words.completion_and_waiting),
        format!("<p>{}</p>{ended}", words.part_completed),
        format!("<p>{}</p>{began}", words.part_started),
        format!("<h2>{}</h2>{key}{}", words.queue, queue(runs, words)),
        format!("<h2>{}</h2><p>{}</p>", words.utilisation, words.three_levels),
        of_each(&|recording| levels(topology, words, recording)),
        format!("<h2>{}</h2><p>{}</p>", words.who_ran_where, words.a_row_a_device),
        of_each(&|recording| gantt(topology, words, recording)),
        format!("<h2>{}</h2>{}", words.tenants, tenants(runs, words)),
        inspector(topology, lang, runs),
    ];
    format!(
        "<!doctype html><html lang='{}'><head><meta charset='utf-8'><title>{}</title>\
         <style>{}</style></head><body>{}</body></html>",
        words.tag,
        escape(title),
        include_str!("page.css"),
        sections.concat()
    )
}

fn table(runs: &[PolicyRuns], words: &ReportWords) -> String {
    let known = |figure: &fn(&Outcome) -> Option<f64>| {
        runs.iter().flat_map(|runs| &runs.outcomes).any(|outcome| figure(outcome).is_some())
    };
    let figures: Vec<&Figure> = FIGURES.iter().filter(|(_, figure)| known(figure)).collect();
    let titles: String =
        figures.iter().map(|(title, _)| format!("<th>{}</th>", title(words))).collect();
    let row = |runs: &PolicyRuns| {
        let cell = |figure: fn(&Outcome) -> Option<f64>| {
            format!("<td>{}</td>", Spread::of(runs.outcomes.iter().filter_map(figure)))
        };
        let cells: String = figures.iter().map(|(_, figure)| cell(*figure)).collect();
        format!("<tr><td>{}</td>{cells}</tr>", runs.recording.outcome.policy)
    };
    let rows: String = runs.iter().map(row).collect();
    format!("<table><tr><th>{}</th>{titles}</tr>{rows}</table>", words.policy)
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
    words: &ReportWords,
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
    plot::lines(&series.collect::<Vec<_>>(), title, words.part_of_jobs, Scale::Logarithmic)
}

fn queue(runs: &[PolicyRuns], words: &ReportWords) -> String {
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
    plot::lines(&series.collect::<Vec<_>>(), words.seconds, words.waiting_stages, Scale::Linear)
}

/// Of the devices that the table's utilisation is about.
fn levels(topology: &Topology, words: &ReportWords, recording: &Recording) -> String {
    let counted: BTreeSet<_> = accelerators(topology).into_iter().collect();
    let capacity: u32 = counted.iter().map(|&id| topology.device(id).capacity.whole_units()).sum();
    let end = recording.end.0 as f64 / 1e3;
    let mut rows = [words.allocated, words.busy, words.useful].map(|name| (name, [0.0; BUCKETS]));
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
    plot::heat_map(&rows, end, words.seconds)
}

fn gantt(topology: &Topology, words: &ReportWords, recording: &Recording) -> String {
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
                title: format!("{} {}", words.job, span.stage),
            });
        }
    }
    let left_out = accelerators.len() > shown.len() || bars.len() > GANTT_BARS_MAX;
    bars.truncate(GANTT_BARS_MAX);
    let file = "<code>trace.json</code>";
    let note = left_out.then(|| format!("<p>{}</p>", text::fill(words.not_everything, &[file])));
    let names: Vec<String> = shown.iter().map(name).collect();
    let end = recording.end.0 as f64 / 1e3;
    plot::gantt(&names, &bars, end, words.seconds) + &note.unwrap_or_default()
}

fn tenants(runs: &[PolicyRuns], words: &ReportWords) -> String {
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
        "<p>{}</p><table><tr><th>{}</th>{titles}</tr>{rows}</table>",
        words.part_of_device_time, words.tenant
    )
}

/// What was decided about each job, and why.
fn inspector(topology: &Topology, lang: Lang, runs: &[PolicyRuns]) -> String {
    let words = report_words(lang);
    let options: String = runs
        .iter()
        .map(|runs| format!("<option>{}</option>", runs.recording.outcome.policy))
        .collect();
    let rows = |recording: &Recording| -> Vec<[String; 3]> {
        let row = |decided: &Decided| {
            let at = format!("{:.0} s", decided.at.0 as f64 / 1e3);
            [at, decided.stage.to_string(), sentence(topology, lang, &decided.what)]
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
        "<h2>{}</h2><p>{} <select id='policy'>{options}</select> {} <input id='job' size='8' \
         placeholder='{}'></p><div><table><tbody id='found'></tbody></table></div>\
         <script>const decisions = {data};{}</script>",
        words.decisions,
        words.policy,
        words.job,
        words.all,
        include_str!("page.js")
    )
}

/// What was decided, as people read it.
pub fn sentence(topology: &Topology, lang: Lang, what: &Decision) -> String {
    let reasons = |reasons: &[het_core::Reason]| {
        let told: Vec<String> = reasons.iter().map(|r| text::reason(lang, r)).collect();
        told.join("; ")
    };
    let words = report_words(lang);
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
            let names = names.join(", ") + more;
            text::fill(words.starts, &[&names, &count.to_string(), &reasons(why)])
        }
        Decision::Stop { cause, cost_device_s: Some(cost) } => {
            let cause = text::stop_cause(lang, *cause);
            text::fill(words.stops_at_a_cost, &[cause, &format!("{cost:.0}")])
        }
        Decision::Stop { cause, cost_device_s: None } => {
            text::fill(words.stops_because, &[text::stop_cause(lang, *cause)])
        }
        Decision::Wait { reasons: why } => text::fill(words.waits, &[&reasons(why)]),
    }
}
