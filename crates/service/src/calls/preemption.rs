//! Who is stopped for whom and what that costs, and stopping a running job for a more urgent one.

use het_core::{Event, JobId, ShareMillis, StageKey, StageState, State};
use het_policy::PREEMPTIONS_MAX;
use het_scheduler::{Outlook, Preview, Stopping, Yielding, preview, yielding};
use het_wire::api::PreemptionRow;
use het_wire::text::{self, Lang};

use crate::{CallError, Change, Code, Handle, Replica};

/// What the next decision makes of each stage of a job: whom it stops for it, or whether it is
/// stopped itself, and what that costs. Nothing is stopped for the question.
///
/// # Errors
/// When it has left the state, or the replica cannot be reached.
pub async fn preview_preemption(
    handle: &Handle,
    id: JobId,
    lang: Lang,
) -> Result<Vec<PreemptionRow>, CallError> {
    let rows = handle.query(move |replica| {
        let situation = replica.situation();
        let state = situation.view.state;
        let stages = state.job(id)?.spec.stage_indices();
        let told = stages.map(|stage| preview(&situation, StageKey { job: id, stage }));
        Some(told.flat_map(|told| preview_rows(state, &told, lang)).collect())
    });
    rows.await?.ok_or_else(|| ended(id))
}

fn ended(id: JobId) -> CallError {
    CallError::new(Code::Conflict, format!("job {id} has ended")).hint("submit it again")
}

/// Stops what can make room, whether or not that pays.
///
/// # Errors
/// When there is nothing to make room for, or the loop cannot be reached.
pub async fn preempt(handle: &Handle, id: JobId) -> Result<Vec<PreemptionRow>, CallError> {
    let asked = handle.query(move |replica| (of_job(replica, id), is_left(replica, id)));
    let (found, is_left) = asked.await?;
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
        let text = match is_left {
            true => format!("job {id} may not be preempted now: its file says so"),
            false => format!("nobody of higher priority waits for what job {id} holds"),
        };
        return Err(CallError::new(Code::Conflict, text)
            .hint(format!("`het hold {id}` stops it in any case")));
    }
    Ok(rows)
}

fn of_job(replica: &Replica, id: JobId) -> Vec<(Yielding, PreemptionRow)> {
    let view = replica.situation().view;
    let stages = view.state.job(id).into_iter().flat_map(|job| &job.stages);
    let leases = stages.filter_map(|stage| match stage.state {
        StageState::Active { lease } => Some(lease),
        _ => None,
    });
    let found = leases.filter_map(|lease| {
        let one = yielding(&view, lease)?;
        let stage = view.state.leases()[&lease].stage;
        let stop = Stopping {
            stage,
            preemptor: Some(one.preemptor),
            cause: Some(one.cause()),
            cost: one.cost,
        };
        let told = Preview { stage, outlook: Outlook::Stops, stops: Vec::new() };
        Some((one, preview_row(view.state, (&told, Lang::En), Some(&stop))))
    });
    found.collect()
}

/// Whether all that runs of a job is left alone by others now.
fn is_left(replica: &Replica, id: JobId) -> bool {
    let view = replica.situation().view;
    let mut leases = view.state.leases().values().filter(|lease| lease.stage.job == id).peekable();
    leases.peek().is_some()
        && leases.all(|lease| {
            let (_, spec, _) = view.state.stage(lease.stage);
            !spec.preemptible.allows(lease.since, view.now)
        })
}

/// One row a stop, or one that says that there is none.
fn preview_rows(state: &State, told: &Preview, lang: Lang) -> Vec<PreemptionRow> {
    match told.stops.is_empty() {
        true => vec![preview_row(state, (told, lang), None)],
        false => {
            let row = |stop| preview_row(state, (told, lang), Some(stop));
            told.stops.iter().map(row).collect()
        }
    }
}

fn preview_row(
    state: &State,
    (told, lang): (&Preview, Lang),
    stop: Option<&Stopping>,
) -> PreemptionRow {
    let (_, spec, _) = state.stage(told.stage);
    let (outlook, reasons) = outlook(&told.outlook, lang);
    let row = PreemptionRow {
        id: told.stage.job.0,
        stage: spec.name.to_string(),
        outlook: outlook.to_owned(),
        reasons,
        preemptions_max: PREEMPTIONS_MAX,
        ..PreemptionRow::default()
    };
    let Some(stop) = stop else { return row };
    let named = |key: StageKey| {
        let (_, spec, _) = state.stage(key);
        (key.job.0, spec.name.to_string())
    };
    // One that nobody stops is no victim.
    let victim = stop.cause.map(|_| named(stop.stage));
    let (victim, victim_stage) = victim.unzip();
    let cost = stop.cost;
    PreemptionRow {
        victim,
        victim_stage,
        cause: stop.cause.map(|cause| cause.word().to_owned()),
        save_s: cost.save.as_seconds(),
        load_s: cost.load.as_seconds(),
        lost_s: cost.lost.as_seconds(),
        cost_device_s: cost.cost.device_seconds(),
        gain_device_s: cost.gain.device_seconds(),
        pays: cost.gain > ShareMillis::ZERO && cost.gain > cost.cost,
        preemptions: state.stage_record(stop.stage).preemptions,
        ..row
    }
    .for_preemptor(stop.preemptor.map(named))
}

/// The word for what becomes of a stage, and why.
fn outlook(outlook: &Outlook, lang: Lang) -> (&'static str, Vec<String>) {
    let none = Vec::new();
    match outlook {
        Outlook::GoesOn => ("goes_on", none),
        Outlook::OnRequest => ("on_request", none),
        Outlook::NotPreemptible => ("not_preemptible", vec![text::not_preemptible(lang)]),
        Outlook::Stops => ("stops", none),
        Outlook::Starts => ("starts", none),
        Outlook::StartsOnceReleased => ("starts_once_released", none),
        Outlook::Waits { reasons, held } => {
            let held = held.then(|| text::held(lang));
            let reasons = reasons.iter().map(|reason| text::reason(lang, reason));
            ("waits", held.into_iter().chain(reasons).collect())
        }
        Outlook::Pending => ("pending", vec![text::pending(lang)]),
        Outlook::Ended => ("ended", none),
    }
}
