//! From state to the report of one job.

use het_core::{
    DeviceId, Job, JobId, Millis, Name, Placement, Recoveries, Request, Requester, Share,
    ShareMillis, Stage, StageIndex, StageKey, StageState, State, StopCause, Time,
};
use het_wire::API_VERSION;
use het_wire::report::{RecoveryReport, RequestReport, RunReport, StageReport, Utilisation};
use het_wire::text::{self, Lang};

use super::stops;
use super::{devices, exit_code, stage_exit_code, stamp, waiting};

/// The report of a job of this state at `now`.
pub fn report(state: &State, id: JobId, policy: &str, now: Time) -> Option<RunReport> {
    let job = state.job(id)?;
    let end = job.end.map(|(at, _)| at);
    let until = end.unwrap_or(now);
    let job_state = job.state(state.leases());
    let stages = job.spec.stage_indices().map(|index| StageReport {
        stops: stops::stops(state, &job.stages[index.index()]),
        ..stage_report(state, id, job, index, now)
    });
    let results = job.stages.iter().flat_map(|stage| &stage.progress.results);
    Some(RunReport {
        api_version: API_VERSION.to_owned(),
        kind: "Run".to_owned(),
        id: id.0,
        name: job.spec.name.to_string(),
        tenant: job.spec.tenant.to_string(),
        priority: job.spec.priority.to_string(),
        state: job_state.word().to_owned(),
        exit_code: exit_code(job, job_state),
        policy: policy.to_owned(),
        workdir: job.spec.workdir.clone(),
        commit: job.spec.commit.as_ref().map(ToString::to_string),
        resumes: None,
        submitted_at: stamp(job.submitted),
        ended_at: end.map(stamp),
        wall_s: until.since(job.submitted).as_seconds(),
        device_seconds: held(state, job, now).device_seconds(),
        stages: stages.collect(),
        requests: job.requests.iter().map(request).collect(),
        utilisation: utilisation(state, job, until),
        results: results.map(|(name, value)| (name.to_string(), value.as_f64())).collect(),
    })
}

fn request(request: &Request) -> RequestReport {
    let Requester { token, user, address } = request.by.as_ref();
    let text = |name: &Option<Name>| name.as_ref().map(ToString::to_string);
    RequestReport {
        at: stamp(request.at),
        what: request.what.word().to_owned(),
        token: text(token),
        user: text(user),
        address: text(address),
    }
}

fn stage_report(state: &State, id: JobId, job: &Job, index: StageIndex, now: Time) -> StageReport {
    let key = StageKey { job: id, stage: index };
    let (spec, stage) = (job.spec.stage(index), &job.stages[index.index()]);
    let active = matches!(stage.state, StageState::Active { .. });
    let ended = stage.ended.filter(|_| !active);
    let reasons = match stage.placement {
        Some(_) if active || stage.state.is_terminal() => &stage.start_reasons,
        _ => &stage.wait_reasons,
    };
    let not_asking = match stage.state {
        StageState::Active { .. } | StageState::Succeeded | StageState::Failed(_) => Vec::new(),
        _ => waiting::reasons(Lang::En, state, id, job),
    };
    let started = stage.first_started;
    let wall = started.map_or(Millis(0), |at| ended.unwrap_or(now).since(at));
    let devices = stage.placement.as_ref().map(|place| devices(state.topology(), place));
    let failure = match &stage.state {
        StageState::Failed(failure) => Some(failure.message.clone()),
        StageState::Stopped { cause: StopCause::Fault, .. } => {
            let failure = stage.faults.last.as_ref();
            failure.map(|failure| failure.message.clone()).or(stage.progress.message.clone())
        }
        _ => stage.progress.message.clone(),
    };
    StageReport {
        name: spec.name.to_string(),
        state: text::stage_state(&stage.state).to_owned(),
        devices: devices.unwrap_or_default(),
        ran_on: stage.progress.ran_on.as_ref().map(ToString::to_string),
        started_at: started.map(stamp),
        ended_at: ended.map(stamp),
        wall_s: wall.as_seconds(),
        device_seconds: (stage.charged + held_now(state, key, now)).device_seconds(),
        exit_code: stage_exit_code(stage),
        attempts: stage.attempts,
        recoveries: (stage.recoveries.count > 0).then(|| recoveries(&stage.recoveries)),
        stops: Vec::new(),
        never_saved_s: stops::never_saved(state, stage, now).map(Millis::as_seconds),
        checkpoints: stage.checkpoints,
        checkpoint_step: stage.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
        step: stage.progress.step,
        total: stage.progress.total,
        loss: stage.progress.loss.map(|loss| loss.as_f64()),
        samples: stage.progress.samples,
        tokens: stage.progress.tokens,
        useful_s: stage.placement.as_ref().and_then(|place| useful_s(stage, place)),
        reasons: not_asking
            .into_iter()
            .chain(waiting::restart(Lang::En, job, index))
            .chain(reasons.iter().map(|reason| text::reason(Lang::En, reason)))
            .collect(),
        message: failure,
    }
}

/// Seconds of steps that count, of all attempts, as if all had run where the last one did.
fn useful_s(stage: &Stage, place: &Placement) -> Option<f64> {
    let (_, running) = stage.progress.device_time(place);
    let share: Share = place.devices().map(|grant| grant.share).sum();
    let each = share.over(Millis(1_000)).device_seconds();
    let useful = (stage.useful + running).device_seconds();
    (useful > 0.0 && each > 0.0).then(|| useful / each)
}

fn recoveries(told: &Recoveries) -> RecoveryReport {
    RecoveryReport {
        count: told.count,
        reassign_s: told.reassign.as_seconds(),
        restore_s: told.restore.as_seconds(),
        recompute_s: told.recompute.as_seconds(),
    }
}

/// What the live lease of a stage has held so far.
fn held_now(state: &State, key: StageKey, now: Time) -> ShareMillis {
    let lease = state.leases().values().find(|lease| lease.stage == key);
    lease.map_or(ShareMillis::ZERO, |lease| {
        lease.placement.grants().map(|grant| grant.share.over(now.since(lease.since))).sum()
    })
}

fn held(state: &State, job: &Job, now: Time) -> ShareMillis {
    let leases = state.leases().values().filter(|lease| state.job(lease.stage.job) == Some(job));
    job.charged() + leases.map(|lease| held_now(state, lease.stage, now)).sum()
}

/// Over the devices that any stage used, from submit to end.
fn utilisation(state: &State, job: &Job, until: Time) -> Utilisation {
    let topology = state.topology();
    let placements = || job.stages.iter().filter_map(|stage| stage.placement.as_ref());
    let mut used: Vec<DeviceId> =
        placements().flat_map(|place| place.devices()).map(|grant| grant.device).collect();
    used.sort_unstable();
    used.dedup();
    let span = until.since(job.submitted);
    let capacity: ShareMillis =
        used.iter().map(|&id| topology.device(id).capacity.over(span)).sum();
    let part = |time: ShareMillis| match capacity {
        ShareMillis::ZERO => 0.0,
        capacity => time.0 as f64 / capacity.0 as f64,
    };
    let (busy, useful) = device_time(job);
    let on_cpu_only = used.iter().all(|&id| topology.class_of(id).kind == "cpu");
    Utilisation {
        allocated: part(held(state, job, until)),
        busy: on_cpu_only.then(|| part(busy)),
        useful: (useful > ShareMillis::ZERO).then(|| part(useful)),
    }
}

fn device_time(job: &Job) -> (ShareMillis, ShareMillis) {
    let mut sums = (ShareMillis::ZERO, ShareMillis::ZERO);
    for stage in &job.stages {
        let live = stage.placement.as_ref().map(|place| stage.progress.device_time(place));
        let (busy, useful) = live.unwrap_or_default();
        sums.0 += stage.busy + busy;
        sums.1 += stage.useful + useful;
    }
    sums
}
