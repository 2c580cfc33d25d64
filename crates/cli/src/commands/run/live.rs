//! The live view of a run: one line a stage on a terminal, single lines elsewhere.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use anstream::eprintln;
use het_core::{Event, State, Time};
use het_wire::quantity::duration_text;
use het_wire::report::{RunReport, StageReport};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Off a terminal, a stage that only makes progress is told this often.
const LINE_EVERY_MS: u64 = 5_000;

/// How often clocks on a terminal move.
const TICK: Duration = Duration::from_millis(200);

/// Where the progress of a run goes.
pub enum Live {
    Quiet,
    Lines(Lines),
    Bars(Bars),
}

impl Live {
    pub fn new(quiet: bool) -> Self {
        match (quiet, stderr().is_terminal()) {
            (true, _) => Self::Quiet,
            (false, true) => Self::Bars(Bars::default()),
            (false, false) => Self::Lines(Lines::default()),
        }
    }

    pub fn update(&mut self, state: &State, events: &[(Time, Event)], report: &RunReport) {
        match self {
            Self::Quiet => {}
            Self::Lines(lines) => lines.update(state.now(), report),
            Self::Bars(bars) => bars.update(events, report),
        }
    }

    pub fn finish(&mut self) {
        if let Self::Bars(bars) = self {
            bars.finish();
        }
    }
}

/// One line for every change of a stage, and now and then for its progress.
#[derive(Debug, Default)]
pub struct Lines {
    told: BTreeMap<String, (String, Time)>,
    header: bool,
}

impl Lines {
    fn update(&mut self, now: Time, report: &RunReport) {
        if !self.header {
            self.header = true;
            eprintln!("{}", header(report));
        }
        for stage in &report.stages {
            let (state, at) = self.told.get(&stage.name).cloned().unwrap_or_default();
            let changed = state != stage.state && stage.state != "queued";
            let due = stage.state == "running"
                && stage.step.is_some()
                && now.since(at).0 >= LINE_EVERY_MS;
            if changed || due {
                eprintln!("{}", line(stage));
                self.told.insert(stage.name.clone(), (stage.state.clone(), now));
            }
        }
    }
}

fn header(report: &RunReport) -> String {
    let continues = report.resumes.map(|id| format!(", continues job {id}")).unwrap_or_default();
    format!(
        "job {} `{}` · {} · policy {}{continues} · Ctrl-C saves and stops",
        report.id, report.name, report.priority, report.policy
    )
}

fn line(stage: &StageReport) -> String {
    let mut parts = vec![format!("[{}] {}", stage.name, stage.state)];
    match stage.state.as_str() {
        "running" => {
            parts.push(stage.devices.join(" "));
            parts.extend(progress(stage));
            if stage.step.is_none() {
                parts.extend(stage.reasons.iter().cloned());
            }
        }
        "succeeded" => {
            parts.push(format!("{:.1} s", stage.wall_s));
            parts.extend(stage.ran_on.as_ref().map(|ran| format!("ran on {ran}")));
        }
        "failed" => parts.extend(stage.message.clone()),
        _ => parts.extend(stage.reasons.iter().cloned()),
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" · ")
}

fn progress(stage: &StageReport) -> Vec<String> {
    let mut parts = Vec::new();
    match (stage.step, stage.total) {
        (Some(step), Some(total)) => {
            let percent = (step * 100).checked_div(total).unwrap_or(0);
            parts.push(format!("step {step}/{total} ({percent} %)"));
            parts.extend(eta(stage).map(|eta| format!("{eta} left")));
        }
        (Some(step), None) => parts.push(format!("step {step}")),
        _ => {}
    }
    parts.extend(stage.loss.map(|loss| format!("loss {loss:.3}")));
    parts
}

/// What the rest takes at the pace so far; unknown before the first steps.
fn eta(stage: &StageReport) -> Option<String> {
    let (step, total) = (stage.step?, stage.total?);
    if step == 0 || step > total {
        return None;
    }
    let left = stage.wall_s / step as f64 * (total - step) as f64;
    Some(duration_text(het_core::Millis((left * 1_000.0) as u64)))
}

/// A line on the job, a line on its devices, a bar a stage.
#[derive(Debug, Default)]
pub struct Bars {
    area: Option<MultiProgress>,
    head: Option<ProgressBar>,
    devices: Option<ProgressBar>,
    stages: BTreeMap<String, ProgressBar>,
}

impl Bars {
    fn update(&mut self, events: &[(Time, Event)], report: &RunReport) {
        let area = self.area.get_or_insert_with(MultiProgress::new);
        let line = || area.add(ProgressBar::new_spinner().with_style(style("{wide_msg}")));
        let head = self.head.get_or_insert_with(line);
        head.set_message(header(report));
        let devices = self.devices.get_or_insert_with(line);
        devices.set_message(format!("  devices · {}", utilisation(report)));
        for stage in &report.stages {
            let bar = self.stages.entry(stage.name.clone()).or_insert_with(|| {
                let bar = area.add(ProgressBar::new(1));
                bar.set_prefix(stage.name.clone());
                bar.set_style(style("  {prefix:<16} · {wide_msg}"));
                bar
            });
            if !bar.is_finished() {
                draw(bar, stage);
            }
        }
        let stopping = events.iter().any(|(_, event)| matches!(event, Event::JobHeld { .. }));
        if stopping {
            head.set_message("saving and stopping");
        }
    }

    fn finish(&mut self) {
        self.stages.values().filter(|bar| !bar.is_finished()).for_each(ProgressBar::abandon);
        let lines = [&self.head, &self.devices];
        lines.into_iter().flatten().for_each(ProgressBar::finish_and_clear);
    }
}

fn draw(bar: &ProgressBar, stage: &StageReport) {
    match stage.state.as_str() {
        "running" => {
            let template = match stage.total {
                Some(_) => "  {prefix:<16} {spinner} {bar:24} {wide_msg}",
                None => "  {prefix:<16} {spinner} {elapsed} {wide_msg}",
            };
            bar.set_style(style(template));
            bar.enable_steady_tick(TICK);
            bar.set_length(stage.total.unwrap_or(1).max(1));
            bar.set_position(stage.step.unwrap_or(0));
            let mut parts = vec![stage.devices.join(" ")];
            parts.extend(progress(stage));
            bar.set_message(parts.join(" · "));
        }
        "succeeded" => {
            bar.set_style(style("  {prefix:<16} ✔ {wide_msg}"));
            let ran = stage.ran_on.clone().unwrap_or_else(|| stage.devices.join(" "));
            bar.finish_with_message(format!("{:.1} s · {ran}", stage.wall_s));
        }
        "failed" | "cancelled" => {
            bar.set_style(style("  {prefix:<16} ✘ {wide_msg}"));
            let why = stage.message.clone().unwrap_or_else(|| stage.state.clone());
            bar.abandon_with_message(why);
        }
        other => {
            let mut parts = vec![other.to_owned()];
            parts.extend(stage.reasons.iter().cloned());
            bar.set_message(parts.join(" · "));
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("templates are constants of this module")
}

fn utilisation(report: &RunReport) -> String {
    let part = |value: Option<f64>| match value {
        Some(value) => format!("{:.0} %", value * 100.0),
        None => "–".to_owned(),
    };
    let used = report.utilisation;
    format!(
        "allocated {}, busy {}, useful {}",
        part(Some(used.allocated)),
        part(used.busy),
        part(used.useful)
    )
}
