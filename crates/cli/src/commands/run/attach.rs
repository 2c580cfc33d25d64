//! `het run` beside a server: the job is the server's, this process only watches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anstream::eprintln;
use het_wire::api::{Change, JobRow, Submitted};
use het_wire::report::RunReport;
use owo_colors::OwoColorize;
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::{RunArgs, finish};
use crate::client::{Client, Next, WATCH, client, client_again};
use crate::environment;
use crate::fail::{Fail, code};
use crate::follow::{Follower, first_log};
use crate::local::home;
use crate::output::Form;
use crate::request::{Files, Request, origin, standard_input, submission};

/// How often what the program wrote is looked for: the server tells of steps, not of output.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Submits the job and stays with it until it has ended; Ctrl-C leaves it alone.
pub fn attach(args: &RunArgs, mut server: Client) -> Result<u8, Fail> {
    if args.resume.is_some() {
        return Err(Fail::new(code::CONFLICT, "a server uses this machine")
            .hint("`het server stop` before `het run --resume`"));
    }
    let request = Request::read(args.file.as_deref(), &args.command, &args.short)?;
    let variables = environment::variables(&args.environment, request.export())?;
    let origin = origin(&request, &args.short, &home()?.kept())?;
    let stdin = standard_input();
    let files = Files { workdir: args.workdir.as_deref(), stdin: stdin.as_deref() };
    let body = submission(request.one()?, &origin, files, &variables)?;
    // Opened before the job is there: nothing of it is missed.
    let mut changes = client()?.open(WATCH)?;
    let job: Submitted = server.post("/api/v1/jobs", &body)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    flag::register(SIGINT, Arc::clone(&interrupted))
        .map_err(|error| Fail::new(code::FAILED, format!("signals cannot be caught: {error}")))?;
    for warning in &job.warnings {
        eprintln!("{} {warning}", "warning:".yellow());
    }
    if !args.quiet {
        eprintln!("job {} {} is queued on the server", job.id, job.name);
    }
    let mut shown = Shown::default();
    let follows = !args.command.is_empty() && args.output == Form::Table;
    let mut follower = Follower::new(first_log(&job.workdir));
    loop {
        if interrupted.load(Ordering::SeqCst) {
            eprintln!(
                "job {0} goes on · `het wait {0}` waits for it, `het cancel {0}` ends it",
                job.id
            );
            return Ok(code::INTERRUPTED);
        }
        if follows {
            // What cannot be shown now stays in the log file.
            let _ = follower.copy();
        }
        let row = match changes.next(Some(Instant::now() + LOOK_EVERY)) {
            Next::Deadline => continue,
            Next::Told(told) => match serde_json::from_str::<Change>(&told.data) {
                Ok(change) => change.job,
                // Too slow: something was missed.
                Err(_) => server.get(&format!("/api/v1/jobs/{}", job.id))?,
            },
            Next::Ended => {
                changes = client_again()?.open(WATCH)?;
                server = client_again()?;
                server.get(&format!("/api/v1/jobs/{}", job.id))?
            }
        };
        if row.id != job.id {
            continue;
        }
        if !args.quiet {
            shown.update(&row);
        }
        if row.ended_at.is_some() {
            break;
        }
    }
    if follows {
        let _ = follower.copy();
    }
    let report: RunReport = server.get(&format!("/api/v1/jobs/{}/report", job.id))?;
    finish(args, &report)
}

/// What was told last, so that only news is told.
#[derive(Default)]
struct Shown(String);

impl Shown {
    fn update(&mut self, row: &JobRow) {
        let stage = row.stage.as_deref().unwrap_or("");
        let at = row.devices.join(" ");
        let why = row.reason.as_deref().unwrap_or("");
        let words = [row.state.as_str(), stage, &at, why];
        let told =
            words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" · ");
        if told != self.0 {
            eprintln!("{told}");
            self.0 = told;
        }
    }
}
