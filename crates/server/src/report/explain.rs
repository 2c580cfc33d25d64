//! Why a job's stages stand where they stand, in sentences.

use het_core::{JobId, Name, Occupant, StageKey, StageState, State, Time};
use het_perf::Rates;
use het_policy::Policy;
use het_scheduler::{Blocker, Explanation, WhatIf};
use het_wire::API_VERSION;
use het_wire::report::{
    BlockerReport, ExplanationReport, HolderReport, OccupiedReport, StageExplanation,
};
use het_wire::text::{self, Lang};

/// Explains all stages of a job of this state.
pub fn explanation(
    state: &State,
    policy: &dyn Policy,
    rates: &Rates,
    now: Time,
    id: JobId,
    lang: Lang,
) -> Option<ExplanationReport> {
    let job = state.job(id)?;
    let stage = |stage| {
        let key = StageKey { job: id, stage };
        stage_explanation(state, &het_scheduler::explain(state, policy, rates, now, key), lang)
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

fn stage_explanation(state: &State, told: &Explanation, lang: Lang) -> StageExplanation {
    let (_, spec, stage) = state.stage(told.stage);
    let sentences = |reasons: &[het_core::Reason]| {
        reasons.iter().map(|reason| text::reason(lang, reason)).collect()
    };
    let failure = match &stage.state {
        StageState::Failed(failure) => {
            let (rank, code) = (failure.rank, failure.exit_code);
            Some(format!("rank {rank} ended with {code}: {}", failure.message))
        }
        _ => None,
    };
    StageExplanation {
        name: spec.name.to_string(),
        state: text::stage_state(&stage.state).to_owned(),
        start_reasons: sentences(&told.start_reasons),
        wait_reasons: sentences(&told.wait_reasons),
        after: told.after.iter().map(ToString::to_string).collect(),
        follows: told.follows.iter().map(ToString::to_string).collect(),
        position: told.position,
        blockers: told.blockers.iter().map(blocker).collect(),
        what_if: told.what_if.iter().map(|option| what_if(option, lang)).collect(),
        failure,
    }
}

fn blocker(blocker: &Blocker) -> BlockerReport {
    let holder = |holder: &het_scheduler::Holder| HolderReport {
        stage: holder.stage.to_string(),
        units: holder.units,
    };
    BlockerReport {
        word: blocker.word.to_string(),
        need: blocker.need,
        free: blocker.free,
        total: blocker.total,
        out_of_service: blocker.out_of_service,
        occupied: blocker.occupied.iter().map(occupied).collect(),
        never: blocker.never,
        held_by: blocker.held_by.iter().map(holder).collect(),
    }
}

fn occupied((device, by): &(Name, Occupant)) -> OccupiedReport {
    OccupiedReport {
        device: device.to_string(),
        process: by.process,
        user: by.user.to_string(),
        command: by.command.to_string(),
    }
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
