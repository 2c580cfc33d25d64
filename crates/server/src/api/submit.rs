//! How jobs come: submissions, and ended jobs that are to go on.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Path as PathOf, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use het_core::{ArrayMember, JobId, JobSpec, Name, StartConditions};
use het_host::{ENVIRONMENT_BYTES_MAX, Home, keep_environment, keep_script, newest_checkpoint};
use het_planner::models;
use het_scheduler::impossible;
use het_service::calls::{Waiting, Waits};
use het_service::{Unavailable, calls, carried};
use het_wire::API_VERSION;
use het_wire::api::{ArrayPlace, JobRow, Submission, Submitted};
use het_wire::job::{Context, Override, TrainingJob, begin, parse_after, parse_with};
use jiff::Zoned;
use tokio::sync::OnceCell;

use super::auth::{Auth, Verb};
use super::refuse::{ApiError, Body};
use super::{Api, Caller, Code, FILE_BYTES_MAX, KEY_CHARS_MAX, Parts};
use crate::planning::plan;

/// The header that makes a second submission the same as the first.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Answers to submissions under a key: a second one waits for the first and gets the same.
#[derive(Debug, Default)]
pub struct Keys(Mutex<HashMap<String, Arc<Answer>>>);

/// What a key stands for.
#[derive(Debug, Default)]
struct Answer {
    /// Of the job file; `None` for a submission to a server before this one.
    file: Option<u64>,
    submitted: OnceCell<Submitted>,
}

impl Answer {
    /// Whether a job is, as far as is known, the one that the key was given for.
    fn is_of(&self, job: &TrainingJob, file: u64) -> bool {
        let same_name = |submitted: &Submitted| submitted.name == job.file.metadata.name;
        match self.file {
            Some(own) => own == file,
            None => self.submitted.get().is_none_or(same_name),
        }
    }
}

pub async fn submit(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    headers: HeaderMap,
    Body(submission): Body<Submission>,
) -> Result<impl IntoResponse, ApiError> {
    let job = read(&submission)?;
    let tenant = job.file.metadata.tenant.clone().unwrap_or_else(|| "default".to_owned());
    caller.check(Verb::SubmitJobs, &tenant)?;
    let key = key(&headers, &tenant)?;
    // A task of its own: a client that goes away must not take back half a submission.
    let accepted = tokio::spawn(async move {
        let Some(key) = key else {
            let submitted = accept(&api.0, &caller, &submission, &job, None).await?;
            return Ok((StatusCode::CREATED, submitted));
        };
        let file = hash_of(&submission);
        let answer = api.0.keys.answer(&key, file);
        if !answer.is_of(&job, file) {
            let text = "another job was submitted under this key";
            return Err(ApiError::new(Code::Conflict, text).hint("a key stands for one job"));
        }
        if let Some(before) = answer.submitted.get() {
            return Ok((StatusCode::OK, Submitted { known: true, ..before.clone() }));
        }
        let name = Name::from(key.as_str());
        let accept = || accept(&api.0, &caller, &submission, &job, Some(name));
        let accepted = answer.submitted.get_or_try_init(accept).await.cloned();
        if accepted.is_err() {
            api.0.keys.forget(&key);
        }
        Ok((StatusCode::CREATED, accepted?))
    });
    let accepted = accepted.await.map_err(|_| Unavailable::Gone)?;
    accepted.map(|(status, submitted)| (status, Json(submitted)))
}

/// Queues a job; durable when it returns.
async fn accept(
    parts: &Parts,
    caller: &Caller,
    submission: &Submission,
    job: &TrainingJob,
    key: Option<Name>,
) -> Result<Submitted, ApiError> {
    calls::check_room(&parts.service)?;
    refuse_impossible(parts, submission, job)?;
    let id = parts.service.new_job_id();
    let array = submission.array.map(|place| ArrayMember {
        array: place.first.map_or(id, JobId),
        index: place.index,
        parallel_max: place.parallel_max,
    });
    let start = start_conditions(parts, caller, job, array)?;
    let workdir = workdir(parts, submission, id)?;
    let kept = Kept::of(parts, submission).await?;
    let spec = resolve(parts, submission, job, &kept.context(id, array, &workdir))?;
    let (spec, too_large) = with_planned_speeds(parts, job, spec).await?;
    let warnings = job.warnings.list().iter().map(|problem| problem.message.clone());
    let warnings = warnings.chain(too_large).collect();
    let name = match submission.array {
        Some(place) => format!("{}-{}", spec.name, place.index).into(),
        None => spec.name.clone(),
    };
    let answer = submitted(id, name.to_string(), workdir, warnings);
    let commit = submission.commit.as_deref().map(Name::from);
    let spec = Arc::new(JobSpec { name, key, start, commit, ..spec });
    calls::submit(&parts.service, id, spec, submission.begin).await?;
    Ok(answer)
}

/// What the job waits for before it may ask for devices.
fn start_conditions(
    parts: &Parts,
    caller: &Caller,
    job: &TrainingJob,
    array: Option<ArrayMember>,
) -> Result<StartConditions, ApiError> {
    let spec = &job.file.spec;
    let begin = spec.begin.as_deref().and_then(|text| begin(text, &Zoned::now()));
    // The file was checked: what does not parse is not there.
    let after = spec.after.as_ref().and_then(|after| parse_after(&after.text()).ok());
    let Some(after) = after else {
        return Ok(StartConditions { begin, array, ..StartConditions::default() });
    };
    let metadata = &job.file.metadata;
    let name = match array {
        Some(member) => format!("{}-{}", metadata.name, member.index),
        None => metadata.name.clone(),
    };
    let tenant = metadata.tenant.as_deref().unwrap_or("default");
    let waiting = Waiting { name: &name, tenant, index: array.map(|member| member.index) };
    let Waits { dependencies, not_before } = calls::waits(&parts.service, caller, &after, waiting)?;
    Ok(StartConditions { dependencies, begin: begin.max(not_before), array })
}

/// The job with what the planner expects of it, and what is to be said of that. A search may take
/// a while, so it is no other request's business.
async fn with_planned_speeds(
    parts: &Parts,
    job: &TrainingJob,
    mut spec: JobSpec,
) -> Result<(JobSpec, Vec<String>), ApiError> {
    if !job.says_what_it_trains() {
        return Ok((spec, Vec::new()));
    }
    let (file, topology) = (job.file.clone(), parts.service.topology());
    let calibrations = parts.home.calibrations();
    let planning = tokio::task::spawn_blocking(move || {
        let warnings = plan(&file, &topology, &calibrations, &mut spec);
        (spec, warnings)
    });
    Ok(planning.await.map_err(|_| Unavailable::Gone)?)
}

/// `POST /api/v1/jobs/{job}/requeue`: a new job that goes on where an ended one left off.
pub async fn requeue(
    Shared(api): Shared<Api>,
    Auth(caller): Auth,
    PathOf(selector): PathOf<String>,
) -> Result<impl IntoResponse, ApiError> {
    let service = &api.0.service;
    let row = calls::find(service, &caller, &selector)?;
    caller.check(Verb::SubmitJobs, &row.tenant)?;
    calls::check_room(service)?;
    let old = JobId(row.id);
    let job = calls::requeue_source(service, old).await?;
    let carried = tokio::task::spawn_blocking(move || carried(&job, newest_checkpoint));
    let carried = carried.await.map_err(|_| Unavailable::Gone)?;
    let new = service.new_job_id();
    let spec = calls::requeue(service, old, new, carried).await?;
    let answer = submitted(new, spec.name.to_string(), spec.workdir.clone(), Vec::new());
    Ok((StatusCode::CREATED, Json(answer)))
}

fn submitted(id: JobId, name: String, workdir: String, warnings: Vec<String>) -> Submitted {
    let (api_version, kind) = (API_VERSION.to_owned(), "Submitted".to_owned());
    Submitted { api_version, kind, id: id.0, name, workdir, warnings, known: false }
}

/// Of what makes one submission another: not of when it begins, or of who watches it.
fn hash_of(submission: &Submission) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Submission { file, overrides, script, .. } = submission;
    file.hash(&mut hasher);
    for Override { key, value, .. } in overrides {
        (key, value).hash(&mut hasher);
    }
    script.as_ref().map(|script| &script.text).hash(&mut hasher);
    hasher.finish()
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

fn read(submission: &Submission) -> Result<TrainingJob, ApiError> {
    if submission.file.len() > FILE_BYTES_MAX {
        let text = format!("the job file is longer than {FILE_BYTES_MAX} bytes");
        return Err(ApiError::new(Code::TooLarge, text));
    }
    let absolute = |path: &str| Path::new(path).is_absolute() && !path.contains('\0');
    let others = submission.workdir.iter().chain(&submission.stdin);
    if !absolute(&submission.cwd) || !others.into_iter().all(|path| absolute(path)) {
        let text = "`cwd`, `workdir` and `stdin` are absolute paths";
        return Err(ApiError::new(Code::BadRequest, text));
    }
    parse_with(&submission.file, &submission.source, &submission.overrides)
        .map_err(|problems| ApiError::new(Code::BadJobFile, problems.to_string()))
}

fn refuse_impossible(
    parts: &Parts,
    submission: &Submission,
    job: &TrainingJob,
) -> Result<(), ApiError> {
    let kept = Kept::default();
    let spec = resolve(parts, submission, job, &kept.context(JobId(0), None, "/"))?;
    match impossible(&parts.service.topology(), &spec).first() {
        None => Ok(()),
        Some(one) => Err(ApiError::new(Code::Impossible, one.to_string()).hint(one.hint())),
    }
}

fn workdir(parts: &Parts, submission: &Submission, id: JobId) -> Result<String, ApiError> {
    let dir = parts.home.job(id.0);
    let path = submission.workdir.as_ref().map_or_else(|| dir.work(), PathBuf::from);
    // The job's own directory is made in any case: it is what takes the id.
    fs::create_dir_all(&dir.path).and_then(|()| fs::create_dir_all(&path)).map_err(|error| {
        ApiError::new(Code::BadRequest, format!("`{}` cannot be made: {error}", path.display()))
    })?;
    Ok(path.to_string_lossy().into_owned())
}

fn resolve(
    parts: &Parts,
    submission: &Submission,
    job: &TrainingJob,
    place: &Place<'_>,
) -> Result<JobSpec, ApiError> {
    let mut env = submission.array.map(|it| array_variables(it, place.job)).unwrap_or_default();
    if !submission.environment.contains_key("PATH") {
        env.extend(submission.path.clone().map(|path| ("PATH".to_owned(), path)));
    }
    let topology = parts.service.topology();
    let context = Context {
        workdir: place.workdir,
        cwd: &submission.cwd,
        classes: &topology.classes,
        models: models(),
        env: &env,
        job: place.job,
        array: place.array,
        script: place.script,
        stdin: submission.stdin.as_deref(),
        environment: place.environment,
    };
    job.resolve(&context).map_err(|problems| ApiError::new(Code::BadJobFile, problems.to_string()))
}

/// What a job of an array finds its place in, and where scripts written for Slurm look for it.
fn array_variables(place: ArrayPlace, job: JobId) -> BTreeMap<String, String> {
    let rows = [
        ("HET_ARRAY_INDEX", u64::from(place.index)),
        ("HET_ARRAY_COUNT", u64::from(place.count)),
        ("SLURM_ARRAY_JOB_ID", place.first.unwrap_or(job.0)),
        ("SLURM_ARRAY_TASK_ID", u64::from(place.index)),
        ("SLURM_ARRAY_TASK_COUNT", u64::from(place.count)),
        ("SLURM_ARRAY_TASK_MIN", u64::from(place.min)),
        ("SLURM_ARRAY_TASK_MAX", u64::from(place.max)),
        ("SLURM_ARRAY_TASK_STEP", u64::from(place.step)),
    ];
    rows.map(|(name, value)| (name.to_owned(), value.to_string())).into()
}

/// What is kept of a submission beside its event: paths of files.
#[derive(Debug, Default)]
struct Kept {
    script: Option<String>,
    environment: Option<String>,
}

/// Where a submission ends up.
struct Place<'a> {
    job: JobId,
    array: Option<ArrayMember>,
    workdir: &'a str,
    script: Option<&'a str>,
    environment: Option<&'a str>,
}

impl Kept {
    async fn of(parts: &Parts, submission: &Submission) -> Result<Self, ApiError> {
        let Submission { script, environment, env, .. } = submission;
        check_variables(environment.iter().chain(env))?;
        let has_variables = !environment.is_empty() || !env.is_empty();
        if script.is_none() && !has_variables {
            return Ok(Self::default());
        }
        let (dir, script) = (parts.home.kept(), script.clone());
        let (environment, env) = (environment.clone(), env.clone());
        // A sync of the disk may take a while.
        let kept = tokio::task::spawn_blocking(move || -> io::Result<Self> {
            let text = |path: PathBuf| path.to_string_lossy().into_owned();
            let script = script.map(|script| keep_script(&dir, &script.name, &script.text));
            let script = script.transpose()?.map(text);
            let environment = match has_variables {
                true => Some(text(keep_environment(&dir, &env, &environment)?)),
                false => None,
            };
            Ok(Self { script, environment })
        });
        kept.await.map_err(|_| Unavailable::Gone)?.map_err(|error| {
            let text = format!("the script or the variables cannot be kept: {error}");
            ApiError::new(Code::BadRequest, text)
        })
    }

    fn context<'a>(
        &'a self,
        job: JobId,
        array: Option<ArrayMember>,
        workdir: &'a str,
    ) -> Place<'a> {
        let (script, environment) = (self.script.as_deref(), self.environment.as_deref());
        Place { job, array, workdir, script, environment }
    }
}

/// Variables are those of a process: names without `=`, no zero bytes, not too many.
fn check_variables<'a>(
    variables: impl Iterator<Item = (&'a String, &'a String)> + Clone,
) -> Result<(), ApiError> {
    let bytes: usize = variables.clone().map(|(name, value)| name.len() + value.len() + 2).sum();
    if bytes > ENVIRONMENT_BYTES_MAX {
        let text = format!("the variables have more than {ENVIRONMENT_BYTES_MAX} bytes");
        return Err(ApiError::new(Code::TooLarge, text).hint("`--clean-env` leaves them out"));
    }
    let mut variables = variables;
    let wrong = variables.find(|(name, value)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    });
    match wrong {
        None => Ok(()),
        Some((name, _)) => {
            Err(ApiError::new(Code::BadRequest, format!("`{name}` is no variable of a process")))
        }
    }
}

impl Keys {
    /// Of the jobs that were submitted under a key before.
    pub(crate) fn of(rows: &[Arc<JobRow>], home: &Home) -> Self {
        let known = rows.iter().filter_map(|row| {
            let id = JobId(row.id);
            let workdir = home.job(row.id).work().to_string_lossy().into_owned();
            let answer = submitted(id, row.name.clone(), workdir, Vec::new());
            let answer = Answer { file: None, submitted: OnceCell::new_with(Some(answer)) };
            Some((row.key.clone()?, Arc::new(answer)))
        });
        Self(Mutex::new(known.collect()))
    }

    fn answer(&self, key: &str, file: u64) -> Arc<Answer> {
        let new = || Arc::new(Answer { file: Some(file), submitted: OnceCell::new() });
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
