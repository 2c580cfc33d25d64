//! The progress of a job: a row a stage below its output, or a line for each change where nothing
//! can be drawn.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use het_core::Millis;
use het_wire::quantity::duration_text;
use het_wire::report::{RunReport, StageReport};

use crate::summary::utilisation;

/// Where nothing can be drawn, a stage that only makes progress is told this often.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// How long a frame of a spinner is shown.
const FRAME: Duration = Duration::from_millis(200);
const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// States of stages that go on later.
const STOPPED: [&str; 4] = ["preempted", "migrating", "restarting", "suspended"];

/// As many stages fit on any terminal.
const STAGES_IN_ORDER_MAX: usize = 8;

/// Columns of a bar.
const BAR_COLUMNS: u64 = 24;

/// One line for every change of a stage, and now and then for its progress.
#[derive(Debug, Default)]
pub struct Lines {
    told: BTreeMap<String, (String, Instant)>,
}

impl Lines {
    /// What is to be told of a new report.
    pub fn of(&mut self, now: Instant, report: &RunReport) -> Vec<String> {
        report.stages.iter().filter_map(|stage| self.line(now, stage)).collect()
    }

    fn line(&mut self, now: Instant, stage: &StageReport) -> Option<String> {
        let told = self.told.get(&stage.name);
        let waits = stage.state == "queued" && stage.reasons.is_empty();
        let is_changed = told.is_none_or(|(state, _)| *state != stage.state) && !waits;
        let is_due = stage.state == "running"
            && stage.step.is_some()
            && told.is_some_and(|(_, at)| now.duration_since(*at) >= LINE_EVERY);
        if !is_changed && !is_due {
            return None;
        }
        self.told.insert(stage.name.clone(), (stage.state.clone(), now));
        Some(line(stage))
    }
}

fn line(stage: &StageReport) -> String {
    let mut parts = vec![format!("[{}] {}", stage.name, stage.state)];
    match stage.state.as_str() {
        "running" => {
            parts.push(stage.devices.join(" "));
            parts.extend(steps(stage));
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

/// A row on what Ctrl-C does and the job's devices, a row a stage.
#[derive(Debug)]
pub struct Rows {
    hint: String,
    report: Option<(Instant, Box<RunReport>)>,
}

impl Rows {
    pub fn new(hint: String) -> Self {
        Self { hint, report: None }
    }

    /// What Ctrl-C does from now on.
    pub fn hint(&mut self, hint: String) {
        self.hint = hint;
    }

    /// Returns what is worth a line that stays: which stages were stopped, and why.
    pub fn update(&mut self, now: Instant, report: Box<RunReport>) -> Vec<String> {
        let before = self.report.iter().flat_map(|(_, report)| &report.stages);
        let running = before.filter(|stage| stage.state == "running");
        let running: Vec<&str> = running.map(|stage| stage.name.as_str()).collect();
        let is_stopped = |stage: &&StageReport| {
            running.contains(&stage.name.as_str()) && STOPPED.contains(&stage.state.as_str())
        };
        let stopped = report.stages.iter().filter(is_stopped).map(line).collect();
        self.report = Some((now, report));
        stopped
    }

    /// All rows; of many stages those come first that run, for there may not be room for all.
    pub fn all(&self, now: Instant) -> Vec<String> {
        let Some((at, report)) = &self.report else { return Vec::new() };
        let since = now.duration_since(*at);
        let head = format!("  {} · devices {}", self.hint, utilisation(report, "–"));
        let mut stages: Vec<&StageReport> = report.stages.iter().collect();
        if stages.len() > STAGES_IN_ORDER_MAX {
            stages.sort_by_key(|stage| stage.state != "running");
        }
        let rows = stages.into_iter().map(|stage| row(stage, since));
        [head].into_iter().chain(rows).collect()
    }

    /// How each stage ended, in the order of the job file.
    pub fn last(&self) -> Vec<String> {
        let stages = self.report.iter().flat_map(|(_, report)| &report.stages);
        stages.map(|stage| row(stage, Duration::ZERO)).collect()
    }
}

/// A stage, some time after it was reported on.
fn row(stage: &StageReport, since: Duration) -> String {
    let (mark, told) = match stage.state.as_str() {
        "running" => running(stage, since),
        "succeeded" => {
            let ran = stage.ran_on.clone().unwrap_or_else(|| stage.devices.join(" "));
            ("✔".to_owned(), vec![format!("{:.1} s", stage.wall_s), ran])
        }
        "failed" | "cancelled" => {
            ("✘".to_owned(), vec![stage.message.clone().unwrap_or_else(|| stage.state.clone())])
        }
        other => {
            let reasons = stage.reasons.iter().cloned();
            ("·".to_owned(), [other.to_owned()].into_iter().chain(reasons).collect())
        }
    };
    format!("  {:<16} {mark} {}", stage.name, told.join(" · "))
}

fn running(stage: &StageReport, since: Duration) -> (String, Vec<String>) {
    let wall = Duration::from_secs_f64(stage.wall_s.max(0.0)) + since;
    let frame = FRAMES[(wall.as_millis() / FRAME.as_millis()) as usize % FRAMES.len()];
    let measure = match (stage.step, stage.total) {
        (step, Some(total)) => bar(step.unwrap_or(0), total),
        (_, None) => duration_text(Millis::seconds(wall.as_secs())),
    };
    let mut told = vec![stage.devices.join(" ")];
    told.extend(steps(stage));
    (format!("{frame} {measure}"), told)
}

fn bar(step: u64, total: u64) -> String {
    let full = (step.min(total) * BAR_COLUMNS).checked_div(total).unwrap_or(0);
    format!("{}{}", "█".repeat(full as usize), "░".repeat((BAR_COLUMNS - full) as usize))
}

fn steps(stage: &StageReport) -> Vec<String> {
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
    Some(duration_text(Millis((left * 1_000.0) as u64)))
}
