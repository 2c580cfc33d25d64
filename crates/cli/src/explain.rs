//! `het explain`: why a stage ran where it ran, or everything that stands against it.

use std::env;

use anstream::println;
use het_core::{JobId, StageKey, StageState, State};
use het_perf::Rates;
use het_policy::Policy;
use het_server::{Blocker, EventStore, Explanation, JobDir, StoreError, WhatIf};
use het_wire::text::{self, Lang};
use owo_colors::OwoColorize;
use serde_json::{Value, json};

use crate::args::ExplainArgs;
use crate::fail::{Fail, code};
use crate::history::{home, read, select};
use crate::output::object;
use crate::run;

pub fn explain(args: &ExplainArgs) -> Result<u8, Fail> {
    let home = home()?;
    let job = select(&home, &args.job)?;
    let lang = Lang::find(|name| env::var(name).ok());
    match EventStore::open(&job.store()) {
        Ok(store) => {
            let state = store.replay()?;
            let policy = read(&job).map(|report| report.policy);
            let policy = run::policy(policy.as_deref().unwrap_or("adaptive"))?;
            let told = explanations(&state, JobId(job.id), policy);
            let value = document(&state, job.id, &told, lang);
            object(&value, args.output, || print(&state, JobId(job.id), &told, lang));
            Ok(code::OK)
        }
        // While the job runs its store belongs to that process; its report says the rest.
        Err(StoreError::InUse) => from_report(&job, args),
        Err(error) => Err(error.into()),
    }
}

fn from_report(job: &JobDir, args: &ExplainArgs) -> Result<u8, Fail> {
    let report = read(job).ok_or_else(|| {
        Fail::new(code::NOT_FOUND, format!("job {} has no report yet", job.id))
            .hint("try again in a moment")
    })?;
    let value = serde_json::to_value(&report).unwrap_or_default();
    object(&value, args.output, || {
        println!("job {} {} · {}", report.id, report.name.bold(), report.state);
        for stage in &report.stages {
            println!("  {} · {} {}", stage.name, stage.state, stage.devices.join(" "));
            stage.reasons.iter().for_each(|reason| println!("    {reason}"));
        }
    });
    Ok(code::OK)
}

fn explanations(state: &State, job: JobId, policy: &dyn Policy) -> Vec<Explanation> {
    let Some(found) = state.job(job) else { return Vec::new() };
    let rates = Rates::default();
    let keys = found.spec.stage_indices().map(|stage| StageKey { job, stage });
    let explain = |key| het_server::explain(state, policy, &rates, state.now(), key);
    keys.map(explain).collect()
}

fn document(state: &State, id: u64, told: &[Explanation], lang: Lang) -> Value {
    let stages = told.iter().map(|one| {
        let (_, spec, stage) = state.stage(one.stage);
        let options = one.what_if.iter().map(|option| what_if_text(option, lang));
        let options: Vec<String> = options.collect();
        json!({
            "name": spec.name.as_str(),
            "state": text::stage_state(&stage.state),
            "start_reasons": sentences(&one.start_reasons, lang),
            "wait_reasons": sentences(&one.wait_reasons, lang),
            "after": one.after.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
            "position": one.position,
            "blockers": one.blockers.iter().map(blocker_json).collect::<Vec<_>>(),
            "what_if": options,
        })
    });
    json!({
        "apiVersion": het_wire::API_VERSION,
        "kind": "Explanation",
        "id": id,
        "stages": stages.collect::<Vec<_>>(),
    })
}

fn sentences(reasons: &[het_core::Reason], lang: Lang) -> Vec<String> {
    reasons.iter().map(|reason| text::reason(lang, reason)).collect()
}

fn blocker_json(blocker: &Blocker) -> Value {
    let held_by = blocker
        .held_by
        .iter()
        .map(|holder| json!({ "stage": holder.stage.to_string(), "units": holder.units }));
    json!({
        "word": blocker.word.as_str(),
        "need": blocker.need,
        "free": blocker.free,
        "total": blocker.total,
        "never": blocker.never,
        "held_by": held_by.collect::<Vec<_>>(),
    })
}

fn what_if_text(option: &WhatIf, lang: Lang) -> String {
    let zh = lang == Lang::Zh;
    match option {
        WhatIf::FewerDevices { word, count } if zh => {
            format!("只要求 `{word}:{count}` 即可立即开始")
        }
        WhatIf::FewerDevices { word, count } => {
            format!("it would start now with `{word}:{count}`")
        }
        WhatIf::AnyDomain if zh => "允许跨域即可立即开始".to_owned(),
        WhatIf::AnyDomain => "it would start now spread over domains".to_owned(),
        WhatIf::HigherPriority { priority, stops } => {
            let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
            match (zh, stops.is_empty()) {
                (true, _) => {
                    format!("优先级设为 `{priority}` 即可开始，将停止 {}", stops.join("、"))
                }
                (false, true) => format!("it would start now as `{priority}`"),
                (false, false) => {
                    format!("it would start as `{priority}`, stopping {}", stops.join(", "))
                }
            }
        }
    }
}

fn print(state: &State, job: JobId, told: &[Explanation], lang: Lang) {
    let Some(found) = state.job(job) else { return };
    let word = text::job_state(lang, found.state(state.leases()));
    println!("job {job} {} · {word} · {}", found.spec.name.bold(), found.spec.priority);
    for one in told {
        let (_, spec, stage) = state.stage(one.stage);
        println!("  {} · {}", spec.name.bold(), text::stage_state(&stage.state));
        for sentence in sentences(&one.start_reasons, lang) {
            println!("    {} {sentence}", "✔".green());
        }
        for sentence in sentences(&one.wait_reasons, lang) {
            println!("    {} {sentence}", "✘".red());
        }
        if !one.after.is_empty() && matches!(stage.state, StageState::Queued { .. }) {
            let names: Vec<&str> = one.after.iter().map(|name| name.as_str()).collect();
            println!("    … after {}", names.join(", "));
        }
        for blocker in &one.blockers {
            let kind = if blocker.never { "never" } else { "waiting" };
            let held: Vec<String> = blocker
                .held_by
                .iter()
                .map(|holder| format!("{} by {}", holder.units, holder.stage))
                .collect();
            println!(
                "      `{}`: need {}, free {} of {} ({kind}) {}",
                blocker.word,
                blocker.need,
                blocker.free,
                blocker.total,
                held.join(", ")
            );
        }
        for option in &one.what_if {
            println!("    → {}", what_if_text(option, lang));
        }
        if let StageState::Failed(failure) = &stage.state {
            println!(
                "    {} rank {} ended with {}: {}",
                "✘".red(),
                failure.rank,
                failure.exit_code,
                failure.message
            );
        }
    }
}
