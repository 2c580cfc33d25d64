//! Why a job asks for no devices: somebody holds it, or its start conditions are not met.

use het_core::{DependencyRule, Job, JobId, NotEligible, State};
use het_wire::text::{self, Lang};

/// Sentences; none for a job that competes for devices, or that has ended otherwise.
pub(super) fn reasons(lang: Lang, state: &State, id: JobId, job: &Job) -> Vec<String> {
    if job.held && job.end.is_none() {
        return vec![text::on_hold(lang)];
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
