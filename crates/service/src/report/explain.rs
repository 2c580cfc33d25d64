//! Why a job's stages stand where they stand, in sentences.

use std::cell::RefCell;

use het_core::{
    JobId, Millis, Name, Occupant, Placement, Planned, PlannedSpeeds, Reason, Stage, StageKey,
    StageState, State, Topology,
};
use het_perf::{Rates, StopTimes, Timed};
use het_policy::{Cadence, Candidate, Policy, Stands, Terms, View, candidates};
use het_scheduler::{Blocker, Explanation, PassedOver, Situation, WhatIf};
use het_wire::API_VERSION;
use het_wire::report::{
    BlockerReport, CandidateReport, ExplanationReport, HolderReport, OccupantReport,
    OccupiedReport, StageExplanation, StopTimesReport,
};
use het_wire::text::{self, Lang};

use super::stops::{never_saved, stops};
use super::waiting;

/// How much is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    Reasons,
    /// And what the alternatives are weighed by.
    Placement,
}

/// Explains all stages of a job of this state.
pub fn explanation(
    situation: &Situation<'_>,
    id: JobId,
    (lang, detail): (Lang, Detail),
) -> Option<ExplanationReport> {
    let state = situation.view.state;
    let job = state.job(id)?;
    let stage = |stage| {
        let key = StageKey { job: id, stage };
        let told = het_scheduler::explain(situation, key);
        let candidates = match detail {
            Detail::Reasons => Vec::new(),
            Detail::Placement => candidates(&situation.view, key),
        };
        StageExplanation {
            stops: stops(state, state.stage_record(key)),
            stop_times: (detail == Detail::Placement).then(|| stop_times(&situation.view, key)),
            candidates: candidates
                .iter()
                .map(|one| candidate(state.topology(), one, lang))
                .collect(),
            ..stage_explanation(&situation.view, &told, lang)
        }
    };
    Some(ExplanationReport {
        api_version: API_VERSION.to_owned(),
        kind: "Explanation".to_owned(),
        id: id.0,
        name: job.spec.name.to_string(),
        state: job.state(state.leases()).word().to_owned(),
        priority: job.spec.priority.to_string(),
        stages: job.spec.stage_indices().map(stage).collect(),
    })
}

/// The same of what a store has kept, where nothing runs: by a policy that remembers nothing.
pub fn explanation_of_record(
    state: &State,
    policy: &dyn Policy,
    id: JobId,
    how: (Lang, Detail),
) -> Option<ExplanationReport> {
    let rates = Rates::default();
    let view = View { state, rates: &rates, now: state.now(), cadence: Cadence::default() };
    let situation = Situation { view, policy, cache: &RefCell::default() };
    explanation(&situation, id, how)
}

fn stage_explanation(view: &View<'_>, told: &Explanation, lang: Lang) -> StageExplanation {
    let state = view.state;
    let (job, spec, stage) = state.stage(told.stage);
    let sentences = |reasons: &[Reason]| -> Vec<String> {
        reasons.iter().map(|reason| text::reason(lang, reason)).collect()
    };
    let failure = match &stage.state {
        StageState::Failed(failure) => {
            let (rank, code) = (failure.rank, failure.exit_code);
            Some(format!("rank {rank} ended with {code}: {}", failure.message))
        }
        _ => None,
    };
    let never_saved = never_saved(state, stage, view.now).into_iter();
    let never_saved = never_saved.map(|ran| text::never_saved(lang, ran.as_seconds()));
    StageExplanation {
        name: spec.name.to_string(),
        state: text::stage_state(&stage.state).to_owned(),
        start_reasons: sentences(&told.start_reasons),
        wait_reasons: match stage.state {
            StageState::Active { .. } | StageState::Succeeded | StageState::Failed(_) => Vec::new(),
            _ => waiting::reasons(lang, state, told.stage.job, job),
        }
        .into_iter()
        .chain(waiting::restart(lang, job, told.stage.stage))
        .chain(sentences(&told.wait_reasons))
        .collect(),
        preparation: waiting::prepared(lang, state, told.stage),
        after: told.after.iter().map(ToString::to_string).collect(),
        follows: told.follows.iter().map(ToString::to_string).collect(),
        position: told.position,
        passed_over: told.passed_over.iter().map(|one| passed_over(state, one, lang)).collect(),
        blockers: told.blockers.iter().map(|one| blocker(state, one)).collect(),
        what_if: told.what_if.iter().map(|option| what_if(option, lang)).collect(),
        warnings: never_saved
            .chain(waiting::rejected(lang, job, told.stage.stage))
            .chain(too_large(&spec.planned, lang))
            .chain(impaired(state, stage, lang))
            .collect(),
        stops: Vec::new(),
        stop_times: None,
        candidates: Vec::new(),
        failure,
    }
}

fn stop_times(view: &View<'_>, key: StageKey) -> StopTimesReport {
    let (_, spec, stage) = view.state.stage(key);
    let units = match stage.state {
        StageState::Active { lease } => view.state.leases()[&lease].placement.units(),
        _ => spec.alternatives[0].count,
    };
    let StopTimes { save, load } = view.rates.stop_times(spec, units);
    let is_measured = |timed| view.rates.measured_time(&spec.profile, timed, units).is_some();
    StopTimesReport {
        save_s: save.as_seconds(),
        save_measured: is_measured(Timed::Save),
        load_s: load.as_seconds(),
        load_measured: is_measured(Timed::Load),
    }
}

/// One sentence for each slow or suspected device that a stage runs on.
fn impaired(state: &State, stage: &Stage, lang: Lang) -> Vec<String> {
    let StageState::Active { lease } = stage.state else { return Vec::new() };
    let devices = state.leases()[&lease].placement.devices().map(|grant| grant.device);
    let sentences = devices.flat_map(|id| {
        let name = &state.topology().device(id).name;
        let slow = state.slowness(id).map(|it| text::slow_device(lang, name.as_str(), it.part));
        let degraded = state
            .degraded(id)
            .map(|it| text::degraded_device(lang, name.as_str(), &it.degradation));
        let suspected = state.suspected_since(id);
        slow.into_iter()
            .chain(degraded)
            .chain(suspected.map(|_| text::suspected_device(lang, name.as_str())))
    });
    sentences.collect()
}

/// One sentence for each gang that lacks memory, however its job is cut.
fn too_large(planned: &PlannedSpeeds, lang: Lang) -> Vec<String> {
    let rows = planned.iter();
    let sentences = rows.filter_map(|(class, units, planned)| match planned {
        Planned::Runs(_) => None,
        Planned::Lacks(bytes) => Some(text::lacks(lang, class, units, bytes)),
    });
    sentences.collect()
}

fn candidate(topology: &Topology, candidate: &Candidate, lang: Lang) -> CandidateReport {
    let Candidate { word, units, stands, best, lacks, terms } = candidate;
    let (state, why_not) = match stands {
        Stands::Runs(_) => ("runs", None),
        Stands::Free(_) => ("free", None),
        Stands::Nowhere(reason) => ("waits", Some(reason)),
    };
    let apart = terms.as_ref().and_then(|terms| terms.apart.as_ref());
    let remarks = why_not.into_iter().chain(apart).map(|reason| text::reason(lang, reason));
    let lacks = lacks.map(|bytes| text::lacks(lang, word, *units, bytes));
    let term = |of: fn(&Terms) -> f64| terms.as_ref().map(of);
    CandidateReport {
        devices: format!("{word}:{units}"),
        state: state.to_owned(),
        nodes: stands.placement().map(Placement::nodes),
        known_by: best.map(|(_, source)| source.word().to_owned()),
        best_steps_per_s: best.map(|(rate, _)| rate),
        steps_per_s: term(|terms| terms.rate),
        cluster_part: term(|terms| terms.part),
        price: term(|terms| terms.price),
        step_cost_s: term(|terms| terms.step_cost_s),
        ends_in_s: terms.as_ref().and_then(|terms| terms.ends_in).map(Millis::as_seconds),
        slowest_link: terms.as_ref().and_then(|terms| terms.slowest).map(|(one, other, path)| {
            let name = |id| &topology.device(id).name;
            let carries = path.bandwidth.map(|each| format!(" {:.0} GB/s", each.0 as f64 / 1e9));
            let (one, other, how) = (name(one), name(other), path.distance.word());
            format!("{one}–{other} {how}{}", carries.unwrap_or_default())
        }),
        remarks: remarks.chain(lacks).collect(),
    }
}

fn blocker(state: &State, blocker: &Blocker) -> BlockerReport {
    let holder = |holder: &het_scheduler::Holder| {
        let (job, spec, _) = state.stage(holder.stage);
        HolderReport {
            job: Some(holder.stage.job.0),
            name: Some(job.spec.name.to_string()),
            stage: Some(spec.name.to_string()),
            units: holder.units,
        }
    };
    BlockerReport {
        word: blocker.word.to_string(),
        need: blocker.need,
        free: blocker.free,
        total: blocker.total,
        used_by_others: blocker.used_by_others,
        out_of_service: blocker.out_of_service,
        occupied: blocker.occupied.iter().map(occupied).collect(),
        lacks_beside: blocker.lacks_beside,
        never: blocker.never,
        held_by: blocker.held_by.iter().map(holder).collect(),
    }
}

fn passed_over(state: &State, passed_over: &PassedOver, lang: Lang) -> String {
    let PassedOver { word, devices, drivers, of_program } = passed_over;
    let name = |&id| state.topology().device(id).name.as_str();
    let names: Vec<&str> = devices.iter().map(name).collect();
    text::passed_over(lang, word, &names, (drivers, of_program))
}

fn occupied((device, by): &(Name, Occupant)) -> OccupiedReport {
    let by = OccupantReport {
        process: by.process,
        user: by.user.to_string(),
        command: by.command.to_string(),
    };
    OccupiedReport { device: device.to_string(), by: Some(by) }
}

fn what_if(option: &WhatIf, lang: Lang) -> String {
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
            let mut jobs: Vec<JobId> = stops.iter().map(|stage| stage.job).collect();
            jobs.dedup();
            let word = if zh { "作业" } else { "job" };
            // By number: they may be of other tenants.
            let stops: Vec<String> = jobs.iter().map(|id| format!("{word} {id}")).collect();
            match (zh, stops.is_empty()) {
                (true, _) => {
                    format!("优先级设为 `{priority}` 即可开始，将停止{}", stops.join("、"))
                }
                (false, true) => format!("it would start now as `{priority}`"),
                (false, false) => {
                    format!("it would start as `{priority}`, stopping {}", stops.join(", "))
                }
            }
        }
    }
}
