//! Why a job asks for no devices: somebody holds it, or its start conditions are not met.

use het_core::{
    DependencyRule, FailureCause, Job, JobId, NotEligible, PreparationOutcome, StageIndex,
    StageKey, StageState, State, StopCause,
};
use het_wire::text::{self, Lang};

/// Sentences; none for a job that competes for devices, or that has ended otherwise.
pub(super) fn reasons(lang: Lang, state: &State, id: JobId, job: &Job) -> Vec<String> {
    if job.held && job.end.is_none() {
        return vec![match job.given_up() {
            Some((stage, failure)) => {
                let count = job.stages[stage.index()].faults.count;
                text::given_up(lang, id, failure, count)
            }
            None => text::on_hold(lang),
        }];
    }
    let reasons = state.not_eligible(id);
    let sentence = |reason: &NotEligible| text::not_eligible(lang, reason);
    let (others, more): (Vec<_>, Vec<_>) =
        reasons.iter().partition(|reason| matches!(reason, NotEligible::DependsOn { .. }));
    let others: Vec<String> = others.into_iter().map(sentence).collect();
    let others = match job.spec.start.dependencies.rule {
        DependencyRule::Any if others.len() > 1 => vec![text::either(lang, &others)],
        _ => others,
    };
    others.into_iter().chain(more.into_iter().map(sentence)).collect()
}

/// What failed and when the stage starts again; none for one that goes on or is held.
pub(super) fn restart(lang: Lang, job: &Job, index: StageIndex) -> Option<String> {
    let (spec, stage) = (job.spec.stage(index), &job.stages[index.index()]);
    let failure = stage.faults.last.as_ref()?;
    if job.held || !matches!(stage.state, StageState::Stopped { cause: StopCause::Fault, .. }) {
        return None;
    }
    let number = match failure.cause {
        FailureCause::Untold => return None,
        FailureCause::Refused => {
            return Some(text::refused(lang, failure, stage.faults.retry_at));
        }
        cause if cause.is_own() => (stage.failures, spec.retries),
        _ => (stage.faults.count, spec.restarts),
    };
    Some(text::resting(lang, failure, number, stage.faults.retry_at))
}

/// What was begun for a stage that waits for its devices.
pub(super) fn prepared(lang: Lang, state: &State, key: StageKey) -> Option<String> {
    let preparation = state.preparation(key).filter(|_| state.is_waiting(key))?;
    let launch = &state.stage(key).1.alternatives[preparation.placement.alternative].launch;
    let node = &state.topology().node(preparation.placement.ranks.first()?.node).name;
    Some(match (&preparation.outcome, launch.warm) {
        (PreparationOutcome::Failed { reason }, _) => text::starts_cold(lang, reason),
        (PreparationOutcome::Pending, true) => text::starts_warm(lang, node.as_str()),
        (PreparationOutcome::Pending, false) => text::reads_inputs(lang, node.as_str()),
    })
}

/// Checkpoints that the stage does not go on from.
pub(super) fn rejected(lang: Lang, job: &Job, index: StageIndex) -> Vec<String> {
    let rejected = &job.stages[index.index()].other_checkpoints.rejected;
    rejected.iter().map(|checkpoint| text::rejected(lang, checkpoint.step)).collect()
}
