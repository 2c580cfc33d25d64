//! `het explain`: why a stage ran where it ran, or everything that stands against it.

use std::env;

use anstream::println;
use clap::Args;
use het_core::JobId;
use het_server::{Detail, EventStore, JobDir, StoreError, explanation_of_record};
use het_wire::report::{
    BlockerReport, CandidateReport, ExplanationReport, HolderReport, OccupantReport,
    OccupiedReport, StageExplanation,
};
use het_wire::text::{self, Lang};
use owo_colors::OwoColorize;

use crate::client::{client_if_any, escaped};
use crate::fail::{Fail, code};
use crate::local::{home, read, select, without_report};
use crate::output::{Form, object, plain_table, print_table};
use crate::scheduling::policy_named;

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Job id, `last`, or a job's name.
    #[arg(default_value = "last")]
    pub job: String,
    /// Show what each alternative is weighed by: its speed in the best place and where it stands.
    #[arg(long)]
    pub placement: bool,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn explain(args: &ExplainArgs) -> Result<u8, Fail> {
    let lang = Lang::find(|name| env::var(name).ok());
    if let Some(mut client) = client_if_any()? {
        let job = escaped(&args.job);
        let (tag, placement) = (lang.tag(), args.placement);
        let path = format!("/api/v1/jobs/{job}/explanation?lang={tag}&placement={placement}");
        match client.get(&path) {
            Ok(report) => return show(&report, args),
            // It may be a job that ran without the server.
            Err(fail) if fail.code() != code::NOT_FOUND => return Err(fail),
            Err(_) => {}
        }
    }
    let job = select(&home()?, &args.job)?;
    match EventStore::open(&job.store()) {
        Ok(store) => {
            let state = store.replay()?;
            let policy = read(&job).map(|report| report.policy);
            let policy = policy_named(policy.as_deref().unwrap_or("adaptive"))?;
            let id = JobId(job.id);
            let detail = if args.placement { Detail::Placement } else { Detail::Reasons };
            let told = explanation_of_record(&state, policy, id, (lang, detail));
            let told = told.ok_or_else(|| {
                Fail::new(code::NOT_FOUND, format!("job {id} was never completely submitted"))
            })?;
            show(&told, args)
        }
        // While the job runs its store belongs to that process, and a server's job has none of its
        // own; the report says the rest.
        Err(StoreError::InUse) => from_report(&job, args),
        Err(_) if !job.store().exists() => from_report(&job, args),
        Err(error) => Err(error.into()),
    }
}

fn from_report(job: &JobDir, args: &ExplainArgs) -> Result<u8, Fail> {
    let report = read(job).ok_or_else(|| without_report(job))?;
    let lang = Lang::find(|name| env::var(name).ok());
    let value = serde_json::to_value(&report).unwrap_or_default();
    object(&value, args.output, || {
        println!("job {} {} · {}", report.id, report.name.bold(), report.state);
        for stage in &report.stages {
            println!("  {} · {} {}", stage.name, stage.state, stage.devices.join(" "));
            stage.reasons.iter().for_each(|reason| println!("    {reason}"));
            stage.stops.iter().for_each(|stop| println!("    ■ {}", text::stop(lang, stop)));
        }
    });
    Ok(code::OK)
}

fn show(told: &ExplanationReport, args: &ExplainArgs) -> Result<u8, Fail> {
    let lang = Lang::find(|name| env::var(name).ok());
    let value = serde_json::to_value(told).unwrap_or_default();
    object(&value, args.output, || {
        println!("job {} {} · {} · {}", told.id, told.name.bold(), told.state, told.priority);
        told.stages.iter().for_each(|stage| print(stage, lang));
    });
    Ok(code::OK)
}

fn print(stage: &StageExplanation, lang: Lang) {
    println!("  {} · {}", stage.name.bold(), stage.state);
    for sentence in &stage.start_reasons {
        println!("    {} {sentence}", "✔".green());
    }
    for sentence in &stage.wait_reasons {
        println!("    {} {sentence}", "✘".red());
    }
    for sentence in &stage.passed_over {
        println!("    – {sentence}");
    }
    if let Some(sentence) = &stage.preparation {
        println!("    … {sentence}");
    }
    if !stage.after.is_empty() && stage.state == "queued" {
        println!("    … after {}", stage.after.join(", "));
    }
    if !stage.follows.is_empty() && stage.state == "queued" {
        println!("    … once {} runs and has published", stage.follows.join(", "));
    }
    stage.blockers.iter().for_each(print_blocker);
    for option in &stage.what_if {
        println!("    → {option}");
    }
    for warning in &stage.warnings {
        println!("    {} {warning}", "!".yellow());
    }
    for stop in &stage.stops {
        println!("    {} {}", "■".yellow(), text::stop(lang, stop));
    }
    if let Some(times) = &stage.stop_times {
        println!("    {}", text::stop_times(lang, times));
    }
    print_candidates(&stage.candidates);
    if let Some(failure) = &stage.failure {
        println!("    {} {failure}", "✘".red());
    }
}

/// Candidates × terms; unknown is a dash.
fn print_candidates(candidates: &[CandidateReport]) {
    if candidates.is_empty() {
        return;
    }
    let titles = [
        "    CANDIDATE",
        "NOW",
        "NODES",
        "STEPS/S",
        "AT BEST",
        "KNOWN BY",
        "OF CLUSTER",
        "PRICE",
        "STEP COSTS",
        "ENDS IN",
        "SLOWEST LINK",
        "REMARKS",
    ];
    let mut table = plain_table(&titles);
    let number = |value: Option<f64>, unit: &str| match value {
        Some(value) => format!("{value:.3}{unit}"),
        None => "–".to_owned(),
    };
    for row in candidates {
        table.add_row([
            format!("    {}", row.devices),
            row.state.clone(),
            row.nodes.map_or("–".to_owned(), |nodes| nodes.to_string()),
            number(row.steps_per_s, ""),
            number(row.best_steps_per_s, ""),
            row.known_by.clone().unwrap_or_else(|| "–".to_owned()),
            number(row.cluster_part, ""),
            number(row.price, ""),
            number(row.step_cost_s, " s"),
            number(row.ends_in_s, " s"),
            row.slowest_link.clone().unwrap_or_else(|| "–".to_owned()),
            row.remarks.join(", "),
        ]);
    }
    print_table(&table);
}

fn print_blocker(blocker: &BlockerReport) {
    let kind = if blocker.never { "never" } else { "waiting" };
    let holders = blocker.held_by.iter();
    let held = holders.map(|HolderReport { job, name, units, .. }| match (job, name) {
        (Some(job), Some(name)) => format!("{units} held by job {job} `{name}`"),
        _ => format!("{units} held by jobs that you may not look at"),
    });
    let down = (blocker.out_of_service > 0)
        .then(|| format!("{} out of service, see `het devices -o wide`", blocker.out_of_service));
    let taken =
        (blocker.used_by_others > 0).then(|| format!("{} used by others", blocker.used_by_others));
    let occupied = blocker.occupied.iter().map(|OccupiedReport { device, by }| match by {
        Some(OccupantReport { process, user, command }) => {
            format!("{device} used by {user}'s `{command}` (process {process})")
        }
        None => format!("{device} used by a process of no job"),
    });
    let beside = blocker.lacks_beside.then(|| {
        "no node has what it asks for beside them: cores, memory, disk or room for a task"
            .to_owned()
    });
    let why = held.chain(taken).chain(down).chain(occupied).chain(beside);
    let why: Vec<String> = why.collect();
    println!(
        "      `{}`: need {}, free {} of {} ({kind}) {}",
        blocker.word,
        blocker.need,
        blocker.free,
        blocker.total,
        why.join(", ")
    );
}
