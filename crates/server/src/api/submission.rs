//! From a submission to the specification of a job: what it waits for, where it works, and what is
//! kept beside it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use het_core::{ArrayMember, Bytes, JobId, JobSpec, Name, StartConditions};
use het_files::is_shortage;
use het_host::{keep_environment, keep_job_variables, keep_script, remove_unused};
use het_planner::models;
use het_scheduler::impossible;
use het_service::calls::{Waiting, Waits};
use het_service::{Handle, Replica, Unavailable, calls};
use het_wire::api::{ArrayPlace, JobRow, Submission};
use het_wire::job::{Context, Trainer, TrainingJob, Volumes, begin, parse_after, scratch};
use jiff::Zoned;

use super::auth::Verb;
use super::disk::on_disk;
use super::refuse::ApiError;
use super::{Caller, Code, Parts};
use crate::planning::plan;
use crate::trainer::{AskedTrainer, Whom};

/// A job as it is to be queued.
pub(super) struct Specified {
    pub spec: JobSpec,
    /// What is accepted but worth a word.
    pub warnings: Vec<String>,
}

/// On whose behalf a job is queued.
#[derive(Debug, Clone, Copy)]
pub(super) struct Submitter<'a> {
    pub service: &'a Handle,
    pub caller: &'a Caller,
    /// By what its work is counted.
    pub counted_by: &'a str,
}

/// The specification of a job under an id of its own; what it names on disk is there then.
pub(super) async fn specify(
    parts: &Parts,
    Submitter { service, caller, counted_by }: Submitter<'_>,
    submission: &Submission,
    (job, trainer): (&TrainingJob, &AskedTrainer),
    id: JobId,
) -> Result<Specified, ApiError> {
    let tenant = job.file.metadata.tenant.as_deref().unwrap_or("default");
    let asked = job.file.spec.stages.iter().filter_map(scratch).max();
    let scratch = calls::scratch_max(service, caller, tenant, asked).await?;
    let array = submission.array.map(|place| member(parts, caller, place, id)).transpose()?;
    let start = start_conditions(parts, caller, job, array)?;
    let user = caller.user.as_deref();
    let workdir = workdir(parts, counted_by, submission, (id, user)).await?;
    let kept = Kept::of(parts, submission).await?;
    let trainer_of = trainer.trainer();
    let place = Place { user, scratch, trainer: trainer_of, ..kept.context(id, array, &workdir) };
    let spec = resolve(parts, submission, job, &place)?;
    let spec = with_kept_variables(parts, submission, spec, id).await?;
    let (spec, too_large) = with_planned_speeds(parts, counted_by, job, spec).await?;
    let spec = calls::with_measured_needs(service, spec).await?;
    let warnings = job.warnings.list().iter().map(|problem| problem.message.clone());
    let name = match array {
        Some(member) => format!("{}-{}", spec.name, member.index).into(),
        None => spec.name.clone(),
    };
    let commit = submission.commit.as_deref().map(Name::from);
    Ok(Specified {
        spec: JobSpec { name, start, commit, ..spec },
        warnings: warnings.chain(too_large).chain(trainer.fault.clone()).collect(),
    })
}

/// Bytes of scripts and variables after which those of no job are removed.
const KEPT_BYTES_MAX: u64 = 256 << 20;
/// Longer than any submission takes until its job is known.
const SUBMISSION_MAX: Duration = Duration::from_secs(600);

/// Jobs that one array may have.
const ARRAY_MAX: u32 = 10_000;

/// The place of a job in an array that is there, or in its own.
fn member(
    parts: &Parts,
    caller: &Caller,
    place: ArrayPlace,
    id: JobId,
) -> Result<ArrayMember, ApiError> {
    let ArrayPlace { first, index, count, step, parallel_max, .. } = place;
    let array = first.map_or(id, JobId);
    let jobs = parts.service.jobs();
    let is_theirs = |row: &JobRow| caller.may(Verb::SubmitJobs, &row.tenant);
    let wrong = if first.is_some() && !jobs.has_array(array, is_theirs) {
        Some("there is no such array")
    } else if jobs.of_index(array, index).is_some() {
        Some("the array has a job of that index")
    } else if parallel_max == Some(0) || step == 0 || !(1..=ARRAY_MAX).contains(&count) {
        Some("an array has 1 to 10,000 jobs, a step and a number that run at a time from 1 on")
    } else {
        None
    };
    match wrong {
        Some(wrong) => Err(ApiError::new(Code::BadRequest, wrong)),
        None => Ok(ArrayMember { array, index, parallel_max }),
    }
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
    counted_by: &str,
    job: &TrainingJob,
    mut spec: JobSpec,
) -> Result<(JobSpec, Vec<String>), ApiError> {
    if !job.says_what_it_trains() {
        return Ok((spec, Vec::new()));
    }
    let (file, topology) = (job.file.clone(), parts.service.topology());
    let calibrations = parts.home.calibrations();
    let place = parts.limits.planner(counted_by).await?;
    let planning = tokio::task::spawn_blocking(move || {
        // Held until it is planned, also if its sender goes away meanwhile.
        let _place = place;
        let warnings = plan(&file, &topology, &calibrations, &mut spec);
        (spec, warnings)
    });
    Ok(planning.await.map_err(|_| Unavailable::Gone)?)
}

/// Asks the installed trainer, which may take a while, where the job needs its answer.
pub(super) async fn asked_trainer(
    parts: &Parts,
    job: &TrainingJob,
) -> Result<AskedTrainer, ApiError> {
    let (drivers, topology) = (Arc::clone(&parts.drivers), parts.service.topology());
    let asked = match Whom::of(job) {
        Whom::Nobody => return Ok(AskedTrainer::default()),
        whom => tokio::task::spawn_blocking(move || drivers.asked(whom, &topology)),
    };
    Ok(asked.await.map_err(|_| Unavailable::Gone)?)
}

pub(super) fn refuse_impossible(
    parts: &Parts,
    submission: &Submission,
    job: &TrainingJob,
    trainer: &AskedTrainer,
) -> Result<(), ApiError> {
    let kept = Kept::default();
    let place = Place { trainer: trainer.trainer(), ..kept.context(JobId(0), None, "/") };
    let spec = resolve(parts, submission, job, &place)?;
    match impossible(&parts.service.topology(), &spec).first() {
        None => Ok(()),
        Some(one) => Err(ApiError::new(Code::Impossible, one.to_string()).hint(one.hint())),
    }
}

/// Where the job's programs leave what they write. The job's own directory is made in any case: it
/// is what takes the id.
async fn workdir(
    parts: &Parts,
    counted_by: &str,
    submission: &Submission,
    (id, user): (JobId, Option<&str>),
) -> Result<String, ApiError> {
    let dir = parts.home.job(id.0);
    let path = match (&submission.workdir, user) {
        (Some(named), _) => PathBuf::from(named),
        (None, None) => dir.work(),
        (None, Some(user)) => parts.home.work_of(user, id.0),
    };
    if let Some(user) = user
        && path.starts_with(parts.home.root())
        && !path.starts_with(parts.home.users().join(user))
    {
        let text = format!("`{}` is a directory of the server, or of another user", path.display());
        return Err(ApiError::new(Code::BadRequest, text).hint("name one of your own"));
    }
    // It is the user's to make, when the job starts.
    let made = user.is_none().then(|| path.clone());
    let make = move || {
        fs::create_dir_all(&dir.path)?;
        made.map_or(Ok(()), fs::create_dir_all)
    };
    on_disk(parts, counted_by, make).await?.map_err(|error: io::Error| {
        unwritable(&error, format!("`{}` cannot be made: {error}", path.display()))
    })?;
    Ok(path.to_string_lossy().into_owned())
}

fn resolve(
    parts: &Parts,
    submission: &Submission,
    job: &TrainingJob,
    place: &Place<'_>,
) -> Result<JobSpec, ApiError> {
    let env = public_variables(submission, place.job);
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
        user: place.user,
        scratch: place.scratch,
        tasks: 0,
        volumes: Volumes::Refused,
        trainer: place.trainer,
    };
    job.resolve(&context).map_err(|problems| ApiError::new(Code::BadJobFile, problems.to_string()))
}

/// The specification without what its file gave to programs: that lies beside the log.
async fn with_kept_variables(
    parts: &Parts,
    submission: &Submission,
    mut spec: JobSpec,
    job: JobId,
) -> Result<JobSpec, ApiError> {
    let (dir, public) = (parts.home.kept(), public_variables(submission, job));
    let kept = tokio::task::spawn_blocking(move || {
        keep_job_variables(&dir, &mut spec, &public).map(|()| spec)
    });
    kept.await.map_err(|_| Unavailable::Gone)?.map_err(|error| {
        unwritable(&error, format!("the variables of the file cannot be kept: {error}"))
    })
}

/// The variables that are no secrets.
fn public_variables(submission: &Submission, job: JobId) -> BTreeMap<String, String> {
    let mut public = submission.array.map(|it| array_variables(it, job)).unwrap_or_default();
    if !submission.environment.contains_key("PATH") {
        public.extend(submission.path.clone().map(|path| ("PATH".to_owned(), path)));
    }
    public
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
    user: Option<&'a str>,
    scratch: Option<Bytes>,
    trainer: Option<Trainer<'a>>,
}

impl Kept {
    async fn of(parts: &Parts, submission: &Submission) -> Result<Self, ApiError> {
        let Submission { script, environment, env, .. } = submission;
        let has_variables = !environment.is_empty() || !env.is_empty();
        if script.is_none() && !has_variables {
            return Ok(Self::default());
        }
        let texts = environment.iter().chain(env).map(|(name, value)| name.len() + value.len());
        let bytes = texts.chain(script.iter().map(|script| script.text.len())).sum::<usize>();
        remove_unused_files(parts, bytes as u64).await;
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
            unwritable(&error, text)
        })
    }

    fn context<'a>(
        &'a self,
        job: JobId,
        array: Option<ArrayMember>,
        workdir: &'a str,
    ) -> Place<'a> {
        let (script, environment) = (self.script.as_deref(), self.environment.as_deref());
        Place { job, array, workdir, script, environment, user: None, scratch: None, trainer: None }
    }
}

/// Removes what ended jobs left beside the log, each time that so many bytes more were kept.
async fn remove_unused_files(parts: &Parts, bytes: u64) {
    let kept = parts.kept.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if kept < KEPT_BYTES_MAX {
        return;
    }
    parts.kept.store(0, Ordering::Relaxed);
    let jobs = |replica: &Replica| replica.state().jobs().values().cloned().collect::<Vec<_>>();
    let Ok(jobs) = parts.service.query(jobs).await else { return };
    let dir = parts.home.kept();
    let remove = move || {
        let jobs = jobs.iter().map(|job| &**job);
        // What cannot be removed now is found again.
        let _ = remove_unused(&dir, jobs, SUBMISSION_MAX);
    };
    tokio::task::spawn_blocking(remove);
}

/// Where something of the machine ran out, the request is not to blame.
fn unwritable(error: &io::Error, text: String) -> ApiError {
    match is_shortage(error) {
        true => ApiError::new(Code::InsufficientStorage, text)
            .hint("see to the disk, or to what the machine ran out of, and try again"),
        false => ApiError::new(Code::BadRequest, text),
    }
}
