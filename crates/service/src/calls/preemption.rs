//! What making room for a more urgent job would cost a running one, and making it.

use het_core::{Event, JobId, Millis, ShareMillis, StageState, State};
use het_policy::PREEMPTIONS_MAX;
use het_scheduler::{Yielding, yielding};
use het_wire::api::PreemptionRow;

use crate::{CallError, Caller, Change, Code, Handle, Replica, Verb};

/// What it would cost and bring, stage by stage; nothing is stopped.
///
/// # Errors
/// When the replica cannot be reached.
pub async fn preview_preemption(
    handle: &Handle,
    caller: Caller,
    id: JobId,
) -> Result<Vec<PreemptionRow>, CallError> {
    Ok(rows(handle, caller, id).await?.into_iter().map(|(_, row)| row).collect())
}

/// Stops what can make room, whether or not that pays.
///
/// # Errors
/// When there is nothing to make room for, or the loop cannot be reached.
pub async fn preempt(
    handle: &Handle,
    caller: Caller,
    id: JobId,
) -> Result<Vec<PreemptionRow>, CallError> {
    let found = rows(handle, caller, id).await?;
    let change = move |state: &State| {
        // What ended meanwhile, or waits no more, is no matter of this any more.
        let still = |one: &Yielding| {
            state.leases().contains_key(&one.lease) && state.is_waiting(one.preemptor)
        };
        let found: Vec<_> = found.into_iter().filter(|(one, _)| still(one)).collect();
        let event = |(one, _): &(Yielding, PreemptionRow)| {
            let Yielding { lease, preemptor, .. } = *one;
            Event::StageYields { lease, preemptor }
        };
        let events = found.iter().map(event).collect();
        Change { events, answer: found.into_iter().map(|(_, row)| row).collect::<Vec<_>>() }
    };
    let rows = handle.change(change).await?;
    if rows.is_empty() {
        let text = format!("nobody of higher priority waits for what job {id} holds");
        return Err(CallError::new(Code::Conflict, text)
            .hint(format!("`het hold {id}` stops it in any case")));
    }
    Ok(rows)
}

async fn rows(
    handle: &Handle,
    caller: Caller,
    id: JobId,
) -> Result<Vec<(Yielding, PreemptionRow)>, CallError> {
    let rows = handle.query(move |replica| {
        let all = of_job(replica, id).into_iter();
        all.map(|one| (one, row(replica.state(), &caller, &one))).collect()
    });
    Ok(rows.await?)
}

fn of_job(replica: &Replica, id: JobId) -> Vec<Yielding> {
    let view = replica.situation().view;
    let stages = view.state.job(id).into_iter().flat_map(|job| &job.stages);
    let leases = stages.filter_map(|stage| match stage.state {
        StageState::Active { lease } => Some(lease),
        _ => None,
    });
    leases.filter_map(|lease| yielding(&view, lease)).collect()
}

fn row(state: &State, caller: &Caller, one: &Yielding) -> PreemptionRow {
    let key = state.leases()[&one.lease].stage;
    let (_, spec, stage) = state.stage(key);
    let (ours, our_spec, _) = state.stage(one.preemptor);
    let may_see = caller.may(Verb::ReadJobs, ours.spec.tenant.as_str());
    let seconds = |span: Millis| span.as_seconds();
    let device_seconds = |time: ShareMillis| time.device_seconds();
    PreemptionRow {
        id: key.job.0,
        stage: spec.name.to_string(),
        save_s: seconds(one.cost.save),
        load_s: seconds(one.cost.load),
        lost_s: seconds(one.cost.lost),
        cost_device_s: device_seconds(one.cost.cost),
        gain_device_s: device_seconds(one.cost.gain),
        pays: one.pays(),
        preemptions: stage.preemptions,
        preemptions_max: PREEMPTIONS_MAX,
        ..PreemptionRow::default()
    }
    .for_preemptor(may_see.then(|| (one.preemptor.job.0, our_spec.name.to_string())))
}
