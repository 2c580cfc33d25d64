//! What making room for a more urgent job would cost a running one, and making it.

use axum::Json;
use axum::extract::{Path, State as Shared};
use het_control::Controller;
use het_core::{Event, JobId, Millis, ShareMillis, StageState};
use het_node::Node;
use het_policy::PREEMPTIONS_MAX;
use het_scheduler::{Yielding, yielding};
use het_wire::api::{PreemptionList, PreemptionRow};

use super::Api;
use super::auth::{Caller, Verb};
use super::jobs::find;
use super::refuse::{ApiError, Code};
use crate::EventStore;
use crate::service::Asked;

type Control = Controller<Node, EventStore>;

/// What it would cost and bring, stage by stage; nothing is stopped.
pub async fn weigh(
    Shared(api): Shared<Api>,
    caller: Caller,
    Path(selector): Path<String>,
) -> Result<Json<PreemptionList>, ApiError> {
    let id = JobId(find(&api, &caller, &selector)?.id);
    let rows = api.0.desk.look(move |control| {
        let all = of_job(control, id).into_iter();
        all.map(|yielding| row(control, &caller, &yielding)).collect()
    });
    Ok(Json(PreemptionList::new(rows.await?)))
}

/// Stops what can make room, whether or not that pays.
pub async fn preempt(
    Shared(api): Shared<Api>,
    caller: Caller,
    Path(selector): Path<String>,
) -> Result<Json<PreemptionList>, ApiError> {
    let found = find(&api, &caller, &selector)?;
    caller.check(Verb::ChangeJobs, &found.tenant)?;
    let id = JobId(found.id);
    let rows = api.0.desk.tell(move |control| {
        let all = of_job(control, id);
        let event = |one: &Yielding| {
            let Yielding { lease, beneficiary, .. } = *one;
            Event::StageYields { lease, beneficiary }
        };
        let answer: Vec<_> = all.iter().map(|one| row(control, &caller, one)).collect();
        Asked { events: all.iter().map(event).collect(), answer }
    });
    let rows = rows.await?;
    if rows.is_empty() {
        let text = format!("nobody of higher priority waits for what job {id} holds");
        return Err(ApiError::new(Code::Conflict, text)
            .hint(format!("`het hold {id}` stops it in any case")));
    }
    Ok(Json(PreemptionList::new(rows)))
}

fn of_job(control: &Control, id: JobId) -> Vec<Yielding> {
    let view = control.situation().view;
    let state = view.state;
    let stages = state.job(id).into_iter().flat_map(|job| &job.stages);
    let leases = stages.filter_map(|stage| match stage.state {
        StageState::Active { lease } => Some(lease),
        _ => None,
    });
    leases.filter_map(|lease| yielding(&view, lease)).collect()
}

fn row(control: &Control, caller: &Caller, one: &Yielding) -> PreemptionRow {
    let state = control.state();
    let key = state.leases()[&one.lease].stage;
    let (_, spec, stage) = state.stage(key);
    let (ours, our_spec, _) = state.stage(one.beneficiary);
    let may_see = caller.may(Verb::ReadJobs, ours.spec.tenant.as_str());
    let seconds = |span: Millis| span.as_seconds();
    let device_seconds = |time: ShareMillis| time.device_seconds();
    PreemptionRow {
        id: key.job.0,
        stage: spec.name.to_string(),
        beneficiary: may_see.then_some(one.beneficiary.job.0),
        beneficiary_stage: may_see.then(|| our_spec.name.to_string()),
        save_s: seconds(one.cost.save),
        load_s: seconds(one.cost.load),
        lost_s: seconds(one.cost.lost),
        cost_device_s: device_seconds(one.cost.cost),
        gain_device_s: device_seconds(one.cost.gain),
        pays: one.pays(),
        preemptions: stage.preemptions,
        preemptions_max: PREEMPTIONS_MAX,
    }
}
