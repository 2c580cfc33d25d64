//! How jobs come: submissions, and ended jobs that are to go on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use het_core::{DeviceClass, JobId, JobSpec, Name};
use het_host::{Home, newest_checkpoint};
use het_service::{Unavailable, calls, carried};
use het_wire::API_VERSION;
use het_wire::api::{Begin, JobRow, Submission, Submitted};
use het_wire::job::{Override, TrainingJob, parse_with};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::auth::{Auth, Verb};
use super::disk::on_disk;
use super::refuse::{ApiError, Body, InPath};
use super::requester::{Acting, CountedBy};
use super::seen::Seen;
use super::submission::{Specified, Submitter, asked_trainer, refuse_impossible, specify};
use super::submitted_texts::{check_directory, check_texts};
use super::{Api, Caller, Code, FILE_BYTES_MAX, KEY_CHARS_MAX, Parts};
use crate::served::{JobMaker, SubmitError};

/// The header that makes a second submission the same as the first.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Answers to submissions under a key: a second one waits for the first and gets the same.
#[derive(Debug, Default)]
pub struct Keys(Mutex<HashMap<String, Arc<Answer>>>);

/// What a key stands for.
#[derive(Debug, Default)]
struct Answer {
    /// The hash of the request; `None` where a version kept none.
    request: Option<String>,
    submitted: OnceCell<Submitted>,
}

impl Answer {
    /// Whether a job is, as far as is known, the one that the key was given for.
    fn is_of(&self, job: &TrainingJob, request: &str) -> bool {
        let same_name = |submitted: &Submitted| submitted.name == job.file.metadata.name;
        match &self.request {
            Some(own) => own == request,
            None => self.submitted.get().is_none_or(same_name),
        }
    }
}

pub async fn submit(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    Acting(service): Acting,
    CountedBy(counted_by): CountedBy,
    headers: HeaderMap,
    Body(submission): Body<Submission>,
) -> Result<impl IntoResponse, ApiError> {
    check_user(&api, &caller)?;
    let (submission, mut job) = read_beside(&api, &counted_by, submission).await?;
    if caller.user.is_some() && job.file.metadata.tenant.is_none() {
        job.file.metadata.tenant.clone_from(&caller.tenant);
    }
    let tenant = job.file.metadata.tenant.clone().unwrap_or_else(|| "default".to_owned());
    caller.check(Verb::SubmitJobs, &tenant)?;
    let key = key(&headers, &tenant)?;
    let (serving, seen_by) = (api.clone(), caller.clone());
    // A task of its own: a client that goes away must not take back half a submission.
    let accepted = tokio::spawn(async move {
        let api = serving;
        let submitter = Submitter { service: &service, caller: &caller, counted_by: &counted_by };
        let Some(key) = key else {
            let submitted = accept(&api.0, submitter, &submission, &job, None).await?;
            return Ok((StatusCode::CREATED, submitted));
        };
        let request = hash_of(&submission);
        let answer = api.0.keys.answer(&key, &request);
        if !answer.is_of(&job, &request) {
            let text = "another request came under this key";
            return Err(ApiError::new(Code::Conflict, text).hint("a key stands for one job"));
        }
        if let Some(before) = answer.submitted.get() {
            return Ok((StatusCode::OK, Submitted { known: true, ..before.clone() }));
        }
        let name = Name::from(format!("{key}\n{request}"));
        let accept = || accept(&api.0, submitter, &submission, &job, Some(name));
        let accepted = answer.submitted.get_or_try_init(accept).await.cloned();
        if accepted.is_err() {
            api.0.keys.forget(&key);
        }
        Ok((StatusCode::CREATED, accepted?))
    });
    let accepted = accepted.await.map_err(|_| Unavailable::Gone)?;
    let (status, submitted) = accepted?;
    Ok((status, Seen::by(&api, &seen_by, submitted)?))
}

/// Where jobs run as users, a job is somebody's; elsewhere it is the server's own.
fn check_user(api: &Api, caller: &Caller) -> Result<(), ApiError> {
    let (text, hint) = match (&api.0.local_users, &caller.user) {
        (Some(_), None) => (
            "jobs run as users here, and whoever asks is none of them",
            "submit as a user of the server's group, or with a token that names one: `het server \
             token --user NAME`",
        ),
        (None, Some(_)) => (
            "the token is for jobs that run as another user than the server's",
            "`sudo het server install` sets up a server that has such jobs",
        ),
        _ => return Ok(()),
    };
    Err(ApiError::new(Code::NotAllowed, text).hint(hint))
}

/// Queues a job; durable when it returns.
async fn accept(
    parts: &Parts,
    submitter: Submitter<'_>,
    submission: &Submission,
    job: &TrainingJob,
    key: Option<Name>,
) -> Result<Submitted, ApiError> {
    let tenant = job.file.metadata.tenant.as_deref().unwrap_or("default");
    let service = submitter.service;
    let _room = calls::room(service, tenant, parts.jobs_of_a_tenant)?;
    let priority = job.file.spec.priority.into();
    calls::check_priority(service, submitter.caller, tenant, priority).await?;
    if let Some(cluster) = &parts.cluster {
        return accept_in(&**cluster, submission, job).await;
    }
    let trainer = asked_trainer(parts, job).await?;
    refuse_impossible(parts, submission, job, &trainer)?;
    let id = parts.service.new_job_id();
    let specified = specify(parts, submitter, submission, (job, &trainer), id).await?;
    let Specified { spec, warnings } = specified;
    let answer = submitted(id, spec.name.to_string(), spec.workdir.clone(), warnings);
    let spec = Arc::new(JobSpec { key, ..spec });
    calls::submit(service, id, spec, submission.begin).await?;
    Ok(answer)
}

/// Makes a job in the cluster and waits until it is taken in. Files of the client mean nothing
/// there.
async fn accept_in(
    cluster: &dyn JobMaker,
    submission: &Submission,
    job: &TrainingJob,
) -> Result<Submitted, ApiError> {
    let of_a_machine = [
        ("an array", submission.array.is_some()),
        ("a script", submission.script.is_some()),
        ("standard input", submission.stdin.is_some()),
        ("a directory of its own", submission.workdir.is_some()),
        ("a time at which it is held", submission.begin == Begin::Held),
    ];
    if let Some((what, _)) = of_a_machine.iter().find(|(_, is_there)| *is_there) {
        let text = format!("a job of a cluster cannot have {what}");
        return Err(ApiError::new(Code::BadRequest, text).hint("submit a job file without it"));
    }
    let id = cluster.submit(job).await.map_err(|error| match error {
        SubmitError::NotAResource(ref why) => {
            ApiError::new(Code::BadJobFile, error.to_string()).hint(why.hint())
        }
        SubmitError::Refused(text) => ApiError::new(Code::BadRequest, text),
    })?;
    let warnings = job.warnings.list().iter().map(|problem| problem.message.clone());
    let workdir = cluster.workdir().to_owned();
    Ok(submitted(id, job.file.metadata.name.clone(), workdir, warnings.collect()))
}

/// `POST /api/v1/jobs/{job}/requeue`: a new job that goes on where an ended one left off.
pub async fn requeue(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    Acting(service): Acting,
    CountedBy(counted_by): CountedBy,
    InPath(selector): InPath<String>,
) -> Result<impl IntoResponse, ApiError> {
    let service = &service;
    let row = calls::find(service, &caller, &selector)?;
    caller.check(Verb::SubmitJobs, &row.tenant)?;
    if api.0.cluster.is_some() {
        let text = "what a job of a cluster wrote went with its pods, so it cannot go on from that";
        return Err(ApiError::new(Code::BadRequest, text).hint("submit it again"));
    }
    let _room = calls::room(service, &row.tenant, api.0.jobs_of_a_tenant)?;
    let old = JobId(row.id);
    let job = calls::requeue_source(service, old).await?;
    let of_users = api.0.local_users.is_some();
    let carried = move || match of_users {
        // What the server may read is not always the user's own.
        true => carried(&job, |job, index| job.stages[index.index()].checkpoint.clone()),
        false => carried(&job, newest_checkpoint),
    };
    let carried = on_disk(&api.0, &counted_by, carried).await?;
    let new = service.new_job_id();
    let spec = calls::requeue(service, old, new, carried).await?;
    let answer = submitted(new, spec.name.to_string(), spec.workdir.clone(), Vec::new());
    Ok((StatusCode::CREATED, Seen::by(&api, &caller, answer)?))
}

fn submitted(id: JobId, name: String, workdir: String, warnings: Vec<String>) -> Submitted {
    let (api_version, kind) = (API_VERSION.to_owned(), "Submitted".to_owned());
    Submitted { api_version, kind, id: id.0, name, workdir, warnings, known: false }
}

/// SHA-256 of all that makes one submission another: not of when it begins, or of what a shell has
/// in its environment.
fn hash_of(submission: &Submission) -> String {
    let Submission { file, overrides, script, cwd, workdir, stdin, env, array, .. } = submission;
    let overrides: Vec<_> =
        overrides.iter().map(|Override { key, value, .. }| (key, value)).collect();
    let all = (file, overrides, script, cwd, workdir, stdin, env, array);
    let all = serde_json::to_vec(&all).expect("texts and numbers always become JSON");
    Sha256::digest(all).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key of a submission; each tenant has keys of its own.
fn key(headers: &HeaderMap, tenant: &str) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let fits = |key: &&str| !key.is_empty() && key.len() <= KEY_CHARS_MAX;
    let key = value.to_str().ok().filter(fits).ok_or_else(|| {
        let text = format!("an idempotency key has 1 to {KEY_CHARS_MAX} visible characters");
        ApiError::new(Code::BadRequest, text)
    })?;
    Ok(Some(format!("{tenant} {key}")))
}

/// Reads a job file on a thread where nobody is answered, one or two at a time.
async fn read_beside(
    api: &Api,
    counted_by: &str,
    submission: Submission,
) -> Result<(Submission, TrainingJob), ApiError> {
    let place = api.0.limits.reader(counted_by).await?;
    let topology = api.0.service.topology();
    let read = tokio::task::spawn_blocking(move || {
        // Held until the file is read, also if its sender goes away meanwhile.
        let _place = place;
        let job = read(&submission, &topology.classes)?;
        Ok::<_, ApiError>((submission, job))
    });
    let (submission, job) = read.await.map_err(|_| Unavailable::Gone)??;
    if api.0.local_users.is_none() && api.0.cluster.is_none() {
        // Elsewhere the kernel says what the user may see, when the job starts.
        let cwd = submission.cwd.clone();
        on_disk(&api.0, counted_by, move || check_directory(&cwd)).await??;
    }
    Ok((submission, job))
}

fn read(submission: &Submission, classes: &[DeviceClass]) -> Result<TrainingJob, ApiError> {
    if submission.file.len() > FILE_BYTES_MAX {
        let text = format!("the job file is longer than {FILE_BYTES_MAX} bytes");
        return Err(ApiError::new(Code::TooLarge, text));
    }
    check_texts(submission)?;
    parse_with(&submission.file, &submission.source, &submission.overrides, classes)
        .map_err(|problems| ApiError::new(Code::BadJobFile, problems.to_string()))
}

impl Keys {
    /// Of the jobs that were submitted under a key before.
    pub(crate) fn of(rows: &[Arc<JobRow>], home: &Home) -> Self {
        let known = rows.iter().filter_map(|row| {
            let id = JobId(row.id);
            let workdir = home.job(row.id).work().to_string_lossy().into_owned();
            let answer = submitted(id, row.name.clone(), workdir, Vec::new());
            let submitted = OnceCell::new_with(Some(answer));
            // No key has more than one line.
            let (key, request) = match row.key.as_deref()?.split_once('\n') {
                Some((key, request)) => (key, Some(request.to_owned())),
                None => (row.key.as_deref()?, None),
            };
            Some((key.to_owned(), Arc::new(Answer { request, submitted })))
        });
        Self(Mutex::new(known.collect()))
    }

    fn answer(&self, key: &str, request: &str) -> Arc<Answer> {
        let request = || Some(request.to_owned());
        let new = || Arc::new(Answer { request: request(), submitted: OnceCell::new() });
        Arc::clone(self.lock().entry(key.to_owned()).or_insert_with(new))
    }

    /// Lets the key of a refused submission go, unless another came through meanwhile.
    fn forget(&self, key: &str) {
        let mut keys = self.lock();
        if keys.get(key).is_some_and(|answer| !answer.submitted.initialized()) {
            keys.remove(key);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Answer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
