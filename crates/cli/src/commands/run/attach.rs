//! `het run` beside a server: the job is the server's, this process only watches it.

use std::path::Path;

use anstream::eprintln;
use het_wire::api::Submitted;
use owo_colors::OwoColorize;

use super::{RunArgs, asked, finish, view};
use crate::client::{Client, WATCH, client};
use crate::environment;
use crate::fail::{Fail, code};
use crate::live::ends;
use crate::local::home;
use crate::request::{Files, Request, origin, standard_input, submission};
use crate::summary::Keeper;
use crate::watch::{Interrupted, watch};

/// Submits the job and stays with it until it has ended; Ctrl-C leaves it alone.
pub fn attach(args: &RunArgs, mut server: Client) -> Result<u8, Fail> {
    if args.resume.is_some() {
        return Err(Fail::new(code::CONFLICT, "a server uses this machine")
            .hint("`het server stop` before `het run --resume`"));
    }
    let request = Request::read(args.file.as_deref(), &args.command, &args.short)?;
    let asked = asked(&request);
    let variables = environment::variables(&args.environment, request.export())?;
    let origin = origin(&request, &args.short, &home()?.kept())?;
    let stdin = standard_input();
    let files = Files { workdir: args.workdir.as_deref(), stdin: stdin.as_deref() };
    let body = submission(request.one()?, &origin, files, &variables)?;
    let begins = body.workdir.as_deref().map(|dir| ends(Path::new(dir))).unwrap_or_default();
    // Caught first: from the submission on, an interrupt leaves the job alone.
    let interrupted = Interrupted::catch()?;
    // Opened before the job is there: nothing of it is missed.
    let changes = client()?.open(WATCH)?;
    let job: Submitted = server.post("/api/v1/jobs", &body)?;
    if !args.quiet {
        let text = "is queued on the server · Ctrl-C detaches, the job goes on";
        eprintln!("job {} `{}` {text}", job.id, job.name);
    }
    for warning in &job.warnings {
        eprintln!("{} {warning}", "warning:".yellow());
    }
    let view = view(args, asked, begins, "Ctrl-C detaches, the job goes on");
    let last = watch(job.id, (server, changes), &view.teller(), &interrupted);
    let Ok(Some(report)) = last else {
        drop(view);
        eprintln!(
            "job {0} goes on · `het logs --follow {0}` follows it, `het wait {0}` waits for it, \
             `het cancel {0}` ends it",
            job.id
        );
        return last.map(|_| code::INTERRUPTED);
    };
    let copied = view.finish(&report);
    finish(args, (asked, Keeper::Server), &report, copied)
}
