//! Preparing a run without a server: a new job or one that goes on, and the machine for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use anstream::eprintln;
use het_core::{JobId, JobSpec, Name, StartConditions};
use het_server::{
    ControlLoopKind, DeviceLockError, DeviceLocks, Home, Impossible, JobDir, LockHolder, Machine,
    MachineLock, PreparedRun, TrainerDrivers, impossible, keep_environment, keep_job_variables,
    keep_script, models, plan, take_devices, wait_for_device,
};
use het_wire::file::Problems;
use het_wire::job::{Context, Trainer, TrainingJob, begin, parse_with};
use het_wire::report::RunReport;
use jiff::Zoned;
use owo_colors::OwoColorize;

use super::{Asked, RunArgs, asked};
use crate::environment::{self, Variables};
use crate::fail::{Fail, code};
use crate::live::{Begins, ends};
use crate::local::{device_lock_dir, read, refuse_unsupervised, select};
use crate::request::{JobText, Origin, Request, origin, standard_input};

/// A job that this process is about to run.
pub(super) struct Prepared {
    pub(super) run: PreparedRun,
    pub(super) lock: MachineLock,
    pub(super) asked: Asked,
    /// Of logs that are there already.
    pub(super) begins: Begins,
    pub(super) warnings: Vec<String>,
}

pub(super) fn submit(args: &RunArgs, machine: &mut Machine, home: &Home) -> Result<Prepared, Fail> {
    let request = Request::read(args.file.as_deref(), &args.command, &args.short)?;
    let (asked, text) = (asked(&request), request.one()?);
    let job = parsed(&text)?;
    if job.file.spec.after.is_some() {
        return Err(Fail::new(code::USAGE, "a run without a server has no jobs to wait for")
            .hint("`het submit` starts a server and queues it there"));
    }
    let variables = environment::variables(&args.environment, request.export())?;
    let asked_trainer = TrainerDrivers::default().asked_for(&job, &machine.topology);
    let trainer = asked_trainer.trainer();
    let (classes, nothing) = (&machine.topology.classes, BTreeMap::new());
    let context = Context { trainer, ..Context::new(classes, models(), &nothing) };
    let unplaced = job.resolve(&context).map_err(bad_file)?;
    refuse_impossible(&impossible(&machine.topology, &unplaced))?;
    let mut lock = acquire(args, machine, home, None)?;
    let dir = home.new_job()?;
    let workdir = match &args.workdir {
        Some(path) => std::path::absolute(path).map_err(|error| Fail::file(path, error))?,
        None => dir.work(),
    };
    fs::create_dir_all(&workdir).map_err(|error| Fail::file(&workdir, error))?;
    let origin = origin(&request, &args.short, &dir.kept())?;
    let kept = (workdir.as_path(), &origin, &variables);
    let mut spec = resolve((&job, trainer), &text, machine, &dir, kept)?;
    let told = job.warnings.to_string();
    let told = Some(told.trim_end().to_owned()).filter(|told| !told.is_empty());
    let planned = plan(&job.file, &machine.topology, &home.calibrations(), &mut spec);
    let told_of_stages = planned.iter().chain(&asked_trainer.fault);
    let planned = told_of_stages.map(|warning| format!("{} {warning}", "warning:".yellow()));
    let warnings = told.into_iter().chain(planned).collect();
    announce(&mut lock, home, &dir, spec.name.as_str())?;
    let begins = ends(&workdir);
    Ok(Prepared { run: PreparedRun::submit(dir, spec)?, lock, asked, begins, warnings })
}

pub(super) fn resume(
    args: &RunArgs,
    selector: &str,
    machine: &mut Machine,
    home: &Home,
) -> Result<Prepared, Fail> {
    let named = match &args.file {
        Some(_) if selector == "last" => {
            let request = Request::read(args.file.as_deref(), &args.command, &args.short)?;
            parsed(&request.one()?)?.file.metadata.name
        }
        _ => selector.to_owned(),
    };
    let dir = select(home, &named)?;
    let mut lock = acquire(args, machine, home, Some(&dir))?;
    let report = read(&dir);
    let name = report.as_ref().map_or_else(|| dir.id.to_string(), |report| report.name.clone());
    announce(&mut lock, home, &dir, &name)?;
    let begins = report.as_ref().map(|report| ends(Path::new(&report.workdir)));
    Ok(Prepared {
        run: PreparedRun::resume(dir, || home.new_job())?,
        lock,
        asked: report.as_ref().map_or(Asked::Job, asked_before),
        begins: begins.unwrap_or_default(),
        warnings: Vec::new(),
    })
}

/// The job file, or one made from the command line.
fn parsed(job: &JobText) -> Result<TrainingJob, Fail> {
    parse_with(&job.text, &job.source, &job.overrides, &[]).map_err(bad_file)
}

/// What a report tells of: the only stage of a command is named so.
fn asked_before(report: &RunReport) -> Asked {
    match report.stages.as_slice() {
        [stage] if stage.name == "main" => Asked::Command,
        _ => Asked::Job,
    }
}

fn bad_file(problems: Problems) -> Fail {
    Fail::Report { code: code::USAGE, text: problems.to_string() }
}

/// Keeps what belongs to the job beside its events, and resolves it for this machine.
fn resolve(
    (job, trainer): (&TrainingJob, Option<Trainer<'_>>),
    text: &JobText,
    machine: &Machine,
    dir: &JobDir,
    (workdir, origin, variables): (&Path, &Origin, &Variables),
) -> Result<JobSpec, Fail> {
    let kept = dir.kept();
    let cannot_keep = |error| Fail::file(&kept, error);
    let environment =
        keep_environment(&kept, &variables.named, &variables.others).map_err(cannot_keep)?;
    let script = text.script.as_ref().map(|script| keep_script(&kept, &script.name, &script.text));
    let script = script.transpose().map_err(cannot_keep)?;
    let script = script.map(|path| path.to_string_lossy().into_owned());
    let stdin = standard_input();
    let nothing = BTreeMap::new();
    let context = Context {
        user: None,
        workdir: &workdir.to_string_lossy(),
        cwd: &origin.cwd.to_string_lossy(),
        job: JobId(dir.id),
        script: script.as_deref(),
        stdin: stdin.as_deref(),
        environment: Some(&environment.to_string_lossy()),
        trainer,
        ..Context::new(&machine.topology.classes, models(), &nothing)
    };
    let mut spec = job.resolve(&context).map_err(bad_file)?;
    keep_job_variables(&kept, &mut spec, &nothing).map_err(cannot_keep)?;
    let begin = job.file.spec.begin.as_deref().and_then(|text| begin(text, &Zoned::now()));
    let start = StartConditions { begin, ..StartConditions::default() };
    let commit = origin.commit.as_deref().map(Name::from);
    Ok(JobSpec { start, commit, ..spec })
}

fn refuse_impossible(stages: &[Impossible]) -> Result<(), Fail> {
    if stages.is_empty() {
        return Ok(());
    }
    let tell = |one: &Impossible| format!("error: {one}\nhint: {}", one.hint());
    let text = stages.iter().map(tell).collect::<Vec<_>>().join("\n");
    Err(Fail::Report { code: code::USAGE, text })
}

/// Takes the machine, where nothing runs without a supervisor.
fn acquire(
    args: &RunArgs,
    machine: &mut Machine,
    home: &Home,
    resumed: Option<&JobDir>,
) -> Result<MachineLock, Fail> {
    let mut lock = wait_for_the_machine(args, home)?;
    refuse_unsupervised(home, resumed.map(|dir| dir.run.as_path()))?;
    lock.hold_devices(wait_for_devices(args, machine, home)?);
    Ok(lock)
}

/// Waits for the devices of another state directory's server or run, unless told not to.
fn wait_for_devices(
    args: &RunArgs,
    machine: &mut Machine,
    home: &Home,
) -> Result<DeviceLocks, Fail> {
    let dir = device_lock_dir()?;
    loop {
        let taken = take_devices(&dir, machine, None, (ControlLoopKind::Run, home.root()));
        let conflict = match taken {
            Err(DeviceLockError::Held(conflict)) => conflict,
            taken => return taken.map_err(Fail::from_error),
        };
        if args.no_wait {
            return Err(Fail::new(code::CONFLICT, conflict.to_string())
                .hint("run it without `--no-wait` to wait for its end"));
        }
        eprintln!("waiting: {conflict} · Ctrl-C stops waiting");
        wait_for_device((&dir, home.root()), machine, &conflict.device)
            .map_err(Fail::from_error)?;
    }
}

/// Waits for the holder of the machine's lock, unless told not to.
fn wait_for_the_machine(args: &RunArgs, home: &Home) -> Result<MachineLock, Fail> {
    let path = home.lock_file();
    let broken = |error: io::Error| Fail::file(&path, error);
    match MachineLock::try_acquire(&path).map_err(broken)? {
        Ok(lock) => Ok(lock),
        Err(holder) => {
            let whom = match holder {
                Some(holder) => holder.to_string(),
                None => "another run".to_owned(),
            };
            if args.no_wait {
                return Err(Fail::new(code::CONFLICT, format!("{whom} uses this machine"))
                    .hint("run it without `--no-wait` to wait for its end"));
            }
            eprintln!("waiting for {whom}, which uses this machine · Ctrl-C stops waiting");
            MachineLock::acquire(&path).map_err(broken)
        }
    }
}

fn announce(lock: &mut MachineLock, home: &Home, dir: &JobDir, name: &str) -> Result<(), Fail> {
    lock.announce(&LockHolder::here(dir, name))
        .map_err(|error| Fail::file(&home.lock_file(), error))
}
