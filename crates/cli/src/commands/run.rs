//! `het run`: validate, submit, stay attached, sum up.

mod attach;
mod prepare;

use std::path::PathBuf;
use std::thread;

use anstream::eprintln;
use clap::Args;
use het_core::{Event, State, Time};
use het_server::{Run, Scheduling, this_machine};
use het_wire::report::RunReport;
use signal_hook::iterator::Signals;

use crate::client::client_if_any;
use crate::environment::EnvironmentArgs;
use crate::fail::{Fail, code};
use crate::live::{Attempts, Begins, Copied, Follow, LiveView, Progress, Selection, Teller};
use crate::local::home;
use crate::output::{self, Form};
use crate::request::{Request, ShortArgs};
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

pub fn run(args: &RunArgs) -> Result<u8, Fail> {
    refuse_two_outputs(args)?;
    if let Some(server) = client_if_any()? {
        return attach::attach(args, server);
    }
    let scheduling =
        Scheduling { policy: policy_named(&args.policy)?, cadence: args.cadence.cadence() };
    let mut machine = this_machine();
    let home = home()?;
    let prepared = match &args.resume {
        Some(selector) => prepare::resume(args, selector, &mut machine, &home)?,
        None => prepare::submit(args, &mut machine, &home)?,
    };
    let prepare::Prepared { run, lock, asked, begins, warnings } = prepared;
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

fn asked(request: &Request) -> Asked {
    match request {
        Request::File { .. } => Asked::Job,
        Request::Command { .. } => Asked::Command,
    }
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
