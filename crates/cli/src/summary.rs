//! How a run went: what each stage took, where and why, and what to do next.

use std::env;

use anstream::{eprintln, println};
use het_wire::report::{RunReport, StageReport};
use het_wire::text::{self, Lang};
use owo_colors::OwoColorize;

use crate::output::{plain_table, print_table};

/// Whose job it is: what goes on with it depends on that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    Run,
    Server,
}

/// The summary of a job, on standard output.
pub fn print(report: &RunReport, keeper: Keeper) {
    let mark = match (report.state.as_str(), &report.ended_at) {
        ("succeeded", _) => "✔".green().to_string(),
        (_, Some(_)) => "✘".red().to_string(),
        // A run that was stopped is over for now.
        (_, None) if keeper == Keeper::Run => "✘".red().to_string(),
        (_, None) => "·".to_owned(),
    };
    println!(
        "{mark} job {} {} {} after {:.1} s, {:.1} device-seconds",
        report.id,
        report.name.bold(),
        report.state,
        report.wall_s,
        report.device_seconds
    );
    println!();
    let mut table =
        plain_table(&["STAGE", "STATE", "DEVICES", "WALL_S", "DEVICE_S", "CKPTS", "RAN ON"]);
    for stage in &report.stages {
        table.add_row([
            stage.name.clone(),
            stage.state.clone(),
            or_dash(stage.devices.join(" ")),
            format!("{:.1}", stage.wall_s),
            format!("{:.1}", stage.device_seconds),
            stage.checkpoints.to_string(),
            or_dash(stage.ran_on.clone().unwrap_or_default()),
        ]);
    }
    print_table(&table);
    println!();
    for stage in report.stages.iter().filter(|stage| !stage.reasons.is_empty()) {
        println!("  {}: {}", stage.name, stage.reasons.join("; "));
    }
    for stage in report.stages.iter().filter(|stage| stage.attempts > 1) {
        let from = match stage.checkpoint_step {
            Some(step) => format!("its newest checkpoint is of step {step}"),
            None => "it saved nothing, so each began anew".to_owned(),
        };
        println!("  {}: started {} times; {from}", stage.name, stage.attempts);
    }
    report.stages.iter().for_each(work);
    stops(report);
    for (stage, told) in report.stages.iter().filter_map(|s| Some((&s.name, s.recoveries?))) {
        println!(
            "  {stage}: came back from {} fault{}: {:.1} s until devices were found, \
             {:.1} s to its first step, {:.1} s done again",
            told.count,
            if told.count == 1 { "" } else { "s" },
            told.reassign_s,
            told.restore_s,
            told.recompute_s
        );
    }
    if !report.results.is_empty() {
        println!();
        for (name, value) in &report.results {
            println!("  {name:<24} {value:.4}");
        }
    }
    println!();
    println!("  of the devices it used: {}", utilisation(report, "not measured"));
    failures(report);
    if let Some(commit) = &report.commit {
        println!("  commit   {commit}");
    }
    println!("  outputs  {}", report.workdir);
    println!("  next     {}", next_command(report, keeper));
}

/// How much a stage computed and how fast, where its program says so.
fn work(stage: &StageReport) {
    let told = |count: Option<u64>, unit: &str| {
        let count = count.filter(|count| *count > 0)?;
        let useful_s = stage.useful_s.filter(|seconds| *seconds > 0.0);
        let rate = useful_s.map(|seconds| format!(" ({:.1}/s)", count as f64 / seconds));
        Some(format!("{count} {unit}{}", rate.unwrap_or_default()))
    };
    let parts = [told(stage.samples, "samples"), told(stage.tokens, "tokens")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if !parts.is_empty() {
        println!("  {}: {}", stage.name, parts.join(", "));
    }
}

/// Who asked for what of it, who stopped it and what was lost, and what a stop would lose where
/// nothing was saved.
fn stops(report: &RunReport) {
    let lang = Lang::find(|name| env::var(name).ok());
    for request in &report.requests {
        println!("  {}", text::request(lang, request));
    }
    for stage in &report.stages {
        for told in &stage.stops {
            println!("  {}: {}", stage.name, text::stop(lang, told));
        }
        if let Some(ran) = stage.never_saved_s {
            println!("  {} {}: {}", "!".yellow(), stage.name, text::never_saved(lang, ran));
        }
    }
}

/// The summary of a single command, on standard error: standard output is the command's.
pub fn print_command(report: &RunReport, keeper: Keeper) {
    let failed = report.stages.iter().find(|stage| stage.state == "failed");
    if let Some(message) = failed.and_then(|stage| stage.message.as_ref()) {
        eprintln!("{} {message}", "error:".red().bold());
    }
    eprintln!(
        "job {} {} {} after {:.1} s on {} · {}",
        report.id,
        report.name,
        report.state,
        report.wall_s,
        or_dash(
            report
                .stages
                .iter()
                .flat_map(|stage| stage.devices.clone())
                .collect::<Vec<_>>()
                .join(" ")
        ),
        next_command(report, keeper)
    );
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "–".to_owned() } else { text }
}

/// How much of its devices a run used; `unknown` stands for what was not measured.
pub fn utilisation(report: &RunReport, unknown: &str) -> String {
    let part = |value: Option<f64>| match value {
        Some(value) => format!("{:.0} %", value * 100.0),
        None => unknown.to_owned(),
    };
    let used = report.utilisation;
    format!(
        "allocated {}, busy {}, useful {}",
        part(Some(used.allocated)),
        part(used.busy),
        part(used.useful)
    )
}

fn failures(report: &RunReport) {
    let failed = |stage: &&StageReport| stage.state == "failed";
    for stage in report.stages.iter().filter(failed) {
        let why = stage.message.as_deref().unwrap_or("it gave no reason");
        println!(
            "  {} stage {} ended with {}: {why}",
            "✘".red(),
            stage.name,
            stage.exit_code.unwrap_or(1)
        );
    }
}

fn next_command(report: &RunReport, keeper: Keeper) -> String {
    let id = report.id;
    match (report.state.as_str(), keeper) {
        ("held", Keeper::Server) => format!("`het release {id}` lets it go on"),
        (_, Keeper::Server) if report.ended_at.is_none() => {
            format!("`het logs {id}` shows what it writes, `het explain {id}` why it runs or waits")
        }
        ("failed" | "cancelled", Keeper::Server) => {
            format!("`het logs {id}` shows what it wrote, `het requeue {id}` goes on with it")
        }
        _ => next_of_run(report),
    }
}

fn next_of_run(report: &RunReport) -> String {
    match report.state.as_str() {
        "succeeded" => format!("`het explain {}` says why it ran where it ran", report.id),
        "held" => format!("`het run --resume {}` continues it", report.id),
        _ => format!(
            "`het logs {0}` shows what it wrote, `het run --resume {0}` continues it",
            report.id
        ),
    }
}
