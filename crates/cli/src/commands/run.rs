//! `het run`: validate, submit, stay attached, sum up.

mod attach;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io, thread};

use anstream::eprintln;
use clap::Args;
use het_core::{Event, JobId, JobSpec, Name, StartConditions, State, Time};
use het_server::{
    Home, Impossible, JobDir, LockHolder, Machine, MachineLock, PreparedRun, Run, Scheduling,
    impossible, keep_environment, keep_script, models, plan, this_machine,
};
use het_wire::file::Problems;
use het_wire::job::{Context, TrainingJob, begin, parse_with};
use het_wire::report::RunReport;
use jiff::Zoned;
use owo_colors::OwoColorize;
use signal_hook::iterator::Signals;

use crate::client::client_if_any;
use crate::environment::{self, EnvironmentArgs, Variables};
use crate::fail::{Fail, code};
use crate::live::{Attempts, Begins, Copied, Follow, LiveView, Progress, Selection, Teller, ends};
use crate::local::{home, read, refuse_unsupervised, select};
use crate::output::{self, Form};
use crate::request::{JobText, Origin, Request, ShortArgs, origin, standard_input};
use crate::scheduling::{CadenceArgs, policy_named};
use crate::summary::{self, Keeper};
use crate::watch::STOP_SIGNALS;

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Job file (YAML), or a script with `#HET` or `#SBATCH` directives.
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub short: ShortArgs,
    /// Continue a job that did not succeed, from its newest checkpoints; the last one if no id is
    /// given.
    #[arg(long, value_name = "JOB", num_args = 0..=1, default_missing_value = "last",
          conflicts_with = "command")]
    pub resume: Option<String>,
    /// Fail with 6 instead of waiting when another run uses this machine. Where a server does, the
    /// job is queued like any other.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub environment: EnvironmentArgs,
    #[command(flatten)]
    pub cadence: CadenceArgs,
    /// Who chooses devices: `fifo`, `static`, `dynamic`, `hybrid`, `feedback` or `adaptive`.
    #[arg(long, default_value = "adaptive")]
    pub policy: String,
    /// Directory for outputs, logs and checkpoints; a new one under the state directory if absent.
    #[arg(long)]
    pub workdir: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
    /// No progress, only the result.
    #[arg(short, long)]
    pub quiet: bool,
    /// Show what the stages of a job file write, each line after its `[STAGE]` or `[STAGE/RANK]`
    /// where there are several. What a command or a script writes is always shown.
    #[arg(long)]
    pub follow: bool,
    /// A command to run instead of a job file, or the arguments of a script.
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// What was asked for: whose output is shown, and how the result is told, depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Job,
    /// A single command or script.
    Command,
}

/// A job that this process is about to run.
struct Prepared {
    run: PreparedRun,
    lock: MachineLock,
    asked: Asked,
    /// Of logs that are there already.
    begins: Begins,
    warnings: Vec<String>,
}

pub fn run(args: &RunArgs) -> Result<u8, Fail> {
    refuse_two_outputs(args)?;
    if let Some(server) = client_if_any()? {
        return attach::attach(args, server);
    }
    let scheduling =
        Scheduling { policy: policy_named(&args.policy)?, cadence: args.cadence.cadence() };
    let machine = this_machine();
    let home = home()?;
    let prepared = match &args.resume {
        Some(selector) => resume(args, selector, &home)?,
        None => submit(args, &machine, &home)?,
    };
    let Prepared { run, lock, asked, begins, warnings } = prepared;
    // Caught first: an interrupt that comes while the job starts holds it.
    let signals = Signals::new(STOP_SIGNALS)
        .map_err(|error| Fail::new(code::FAILED, format!("signals cannot be caught: {error}")))?;
    let view = view(args, asked, begins, "Ctrl-C saves and stops");
    let observe = observe(args, view.teller(), warnings);
    let run = run.start(&machine, scheduling, &home, lock, observe)?;
    stop_on_signals(signals, &run, view.teller());
    let report = run.wait()?;
    let copied = view.finish(&report);
    finish(args, (asked, Keeper::Run), &report, copied)
}

/// Standard output is of the programs or of the result.
fn refuse_two_outputs(args: &RunArgs) -> Result<(), Fail> {
    if args.follow && !is_for_people(args.output) {
        let text = "`--follow` writes to standard output, where `--output` writes the result";
        return Err(Fail::new(code::USAGE, text).hint("leave one of them out"));
    }
    Ok(())
}

fn is_for_people(form: Form) -> bool {
    matches!(form, Form::Table | Form::Wide)
}

/// The live view of a job; `hint` is what Ctrl-C does.
fn view(args: &RunArgs, asked: Asked, begins: Begins, hint: &str) -> LiveView {
    let progress = match args.quiet {
        true => Progress::Hidden,
        false => Progress::Shown { hint: hint.to_owned() },
    };
    let follows = (asked == Asked::Command || args.follow) && is_for_people(args.output);
    let selection = Selection::default();
    LiveView::start(
        progress,
        follows.then_some(Follow { selection, attempts: Attempts::All, begins }),
    )
}

fn submit(args: &RunArgs, machine: &Machine, home: &Home) -> Result<Prepared, Fail> {
    let request = Request::read(args.file.as_deref(), &args.command, &args.short)?;
    let (asked, text) = (asked(&request), request.one()?);
    let job = parsed(&text)?;
    if job.file.spec.after.is_some() {
        return Err(Fail::new(code::USAGE, "a run without a server has no jobs to wait for")
            .hint("`het submit` starts a server and queues it there"));
    }
    let variables = environment::variables(&args.environment, request.export())?;
    let unplaced = job
        .resolve(&Context::new(&machine.topology.classes, models(), &BTreeMap::new()))
        .map_err(bad_file)?;
    refuse_impossible(&impossible(&machine.topology, &unplaced))?;
    let mut lock = acquire(args, home, None)?;
    let dir = home.new_job()?;
    let workdir = match &args.workdir {
        Some(path) => std::path::absolute(path).map_err(|error| Fail::file(path, error))?,
        None => dir.work(),
    };
    fs::create_dir_all(&workdir).map_err(|error| Fail::file(&workdir, error))?;
    let origin = origin(&request, &args.short, &dir.kept())?;
    let mut spec = resolve(&job, &text, machine, &dir, (&workdir, &origin, &variables))?;
    let told = job.warnings.to_string();
    let told = Some(told.trim_end().to_owned()).filter(|told| !told.is_empty());
    let planned = plan(&job.file, &machine.topology, &home.calibrations(), &mut spec);
    let planned = planned.iter().map(|warning| format!("{} {warning}", "warning:".yellow()));
    let warnings = told.into_iter().chain(planned).collect();
    announce(&mut lock, home, &dir, spec.name.as_str())?;
    let begins = ends(&workdir);
    Ok(Prepared { run: PreparedRun::submit(dir, spec)?, lock, asked, begins, warnings })
}

fn resume(args: &RunArgs, selector: &str, home: &Home) -> Result<Prepared, Fail> {
    let named = match &args.file {
        Some(_) if selector == "last" => {
            let request = Request::read(args.file.as_deref(), &args.command, &args.short)?;
            parsed(&request.one()?)?.file.metadata.name
        }
        _ => selector.to_owned(),
    };
    let dir = select(home, &named)?;
    let mut lock = acquire(args, home, Some(&dir))?;
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
    parse_with(&job.text, &job.source, &job.overrides).map_err(bad_file)
}

/// What a report tells of: the only stage of a command is named so.
fn asked_before(report: &RunReport) -> Asked {
    match report.stages.as_slice() {
        [stage] if stage.name == "main" => Asked::Command,
        _ => Asked::Job,
    }
}

fn asked(request: &Request) -> Asked {
    match request {
        Request::File { .. } => Asked::Job,
        Request::Command { .. } => Asked::Command,
    }
}

fn bad_file(problems: Problems) -> Fail {
    Fail::Report { code: code::USAGE, text: problems.to_string() }
}

/// Keeps what belongs to the job beside its events, and resolves it for this machine.
fn resolve(
    job: &TrainingJob,
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
        workdir: &workdir.to_string_lossy(),
        cwd: &origin.cwd.to_string_lossy(),
        job: JobId(dir.id),
        script: script.as_deref(),
        stdin: stdin.as_deref(),
        environment: Some(&environment.to_string_lossy()),
        ..Context::new(&machine.topology.classes, models(), &nothing)
    };
    let spec = job.resolve(&context).map_err(bad_file)?;
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
fn acquire(args: &RunArgs, home: &Home, resumed: Option<&JobDir>) -> Result<MachineLock, Fail> {
    let lock = wait_for_the_machine(args, home)?;
    refuse_unsupervised(home, resumed.map(|dir| dir.run.as_path()))?;
    Ok(lock)
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

/// Tells the view what happens, batch by batch; first what Ctrl-C does.
fn observe(
    args: &RunArgs,
    view: Teller,
    warnings: Vec<String>,
) -> impl FnMut(&State, &[(Time, Event)], &RunReport) + Send + 'static {
    let is_quiet = args.quiet;
    let mut warnings = Some(warnings);
    move |_, _, report| {
        if let Some(warnings) = warnings.take() {
            if !is_quiet {
                view.message(first_line(report));
            }
            warnings.into_iter().for_each(|warning| view.message(warning));
        }
        view.report(report);
    }
}

fn first_line(report: &RunReport) -> String {
    let continues = report.resumes.map(|id| format!(", continues job {id}")).unwrap_or_default();
    format!(
        "job {} `{}` · {} · policy {}{continues} · Ctrl-C saves and stops",
        report.id, report.name, report.priority, report.policy
    )
}

/// Tells how a run went; its code is the command's.
fn finish(
    args: &RunArgs,
    (asked, keeper): (Asked, Keeper),
    report: &RunReport,
    copied: Copied,
) -> Result<u8, Fail> {
    let value = serde_json::to_value(report).unwrap_or_default();
    output::object(&value, args.output, || match asked {
        Asked::Job => summary::print(report, keeper),
        Asked::Command => summary::print_command(report, keeper),
    });
    if report.state == "held" {
        let id = report.id;
        eprintln!("job {id} is saved and stopped · resume it with `het run --resume {id}`");
    }
    let exit = report.exit_code.unwrap_or(i32::from(code::FAILED));
    match (u8::try_from(exit).unwrap_or(code::FAILED), copied) {
        // As of a program that cannot write itself.
        (code::OK, Copied::Partly) => Ok(code::FAILED),
        (exit, _) => Ok(exit),
    }
}

/// The first interrupt holds the job: its programs save and stop. The second cancels it.
fn stop_on_signals(mut signals: Signals, run: &Run, view: Teller) {
    let (job, service) = (run.job(), run.handle().clone());
    thread::spawn(move || {
        let mut received = signals.forever();
        if received.next().is_some() {
            view.message("saving and stopping · press Ctrl-C again to cancel the job for good");
            view.hint("saving and stopping · Ctrl-C cancels the job for good");
            service.report(Event::JobHeld { job });
        }
        if received.next().is_some() {
            view.message("cancelling");
            view.hint("cancelling");
            service.report(Event::JobCancelled { job });
        }
    });
}
