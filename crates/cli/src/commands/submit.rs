//! `het submit`: queue a job on the server.

use std::path::PathBuf;

use anstream::{eprintln, println};
use clap::Args;
use het_wire::api::{Begin, Submitted};
use owo_colors::OwoColorize;

use super::wait::wait_for;
use crate::client::on_demand;
use crate::environment::{self, EnvironmentArgs};
use crate::fail::{Fail, code};
use crate::local::home;
use crate::output::{self, Form};
use crate::request::{Files, JobText, Request, ShortArgs, origin, submission};
use crate::selection::SUBMITTED_COLUMNS;

#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// Job file (YAML), or a script with `#HET` or `#SBATCH` directives.
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub short: ShortArgs,
    /// Directory for outputs, logs and checkpoints; a new one under the state directory if absent.
    #[arg(long)]
    pub workdir: Option<PathBuf>,
    /// Queue it, but start it only after `het release`.
    #[arg(long)]
    pub hold: bool,
    /// Submitting again under the same key gives the same job.
    #[arg(long)]
    pub key: Option<String>,
    /// A job for each of these indices (`0-9`, `1,3,5`, `0-100:10`), which it finds in
    /// `HET_ARRAY_INDEX`. The name is that of the array: `het wait`, `cancel`, `logs` take it.
    #[arg(long)]
    pub array: Option<String>,
    /// So many of the array run at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_parallel: Option<u32>,
    #[command(flatten)]
    pub environment: EnvironmentArgs,
    /// Wait for its end and return its code.
    #[arg(long)]
    pub wait: bool,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
    /// A command to run instead of a job file, or the arguments of a script.
    #[arg(last = true)]
    pub command: Vec<String>,
}

pub fn submit(args: &SubmitArgs) -> Result<u8, Fail> {
    let request = Request::read(args.file.as_deref(), &args.command, &args.short)?;
    let members = request.members(args.array.as_deref(), args.max_parallel)?;
    let variables = environment::variables(&args.environment, request.export())?;
    let is_array = members.iter().any(|member| member.array.is_some());
    let mut client = on_demand()?;
    let origin = origin(&request, &args.short, &home()?.kept())?;
    let mut items: Vec<Submitted> = Vec::new();
    let mut queue = |job: JobText| -> Result<(), Fail> {
        let index = job.array.map(|place| place.index);
        let with_index = |text: &str, index: u32| format!("{text}-{index}");
        let workdir = args.workdir.as_ref().map(|dir| match index {
            Some(index) => dir.join(index.to_string()),
            None => dir.clone(),
        });
        let files = Files { workdir: workdir.as_deref(), stdin: None };
        let mut submission = submission(job, &origin, files, &variables)?;
        if args.hold || request.is_held() {
            submission.begin = Begin::Held;
        }
        if let Some(place) = &mut submission.array {
            place.first = items.first().map(|first| first.id);
        }
        let key = args.key.as_deref();
        let key = key.map(|key| index.map_or(key.to_owned(), |index| with_index(key, index)));
        let submitted: Submitted = client.post_once("/api/v1/jobs", &submission, key.as_deref())?;
        // What there is to say of one job of an array is to be said of all.
        let news = submitted.warnings.iter().filter(|_| items.is_empty());
        news.for_each(|warning| eprintln!("{} {warning}", "warning:".yellow()));
        items.push(submitted);
        Ok(())
    };
    let queued = members.into_iter().try_for_each(&mut queue);
    let ids: Vec<u64> = items.iter().map(|submitted| submitted.id).collect();
    // Also where one was refused: those before it are queued.
    if queued.is_ok() || !items.is_empty() {
        match is_array {
            true => tell_array(&items, args.output),
            false => tell_submitted(&items, args.output),
        }
    }
    queued?;
    if args.wait { wait_for(&mut client, &ids, None) } else { Ok(code::OK) }
}

fn tell_submitted(items: &[Submitted], form: Form) {
    for one in items {
        output::object(&serde_json::to_value(one).unwrap_or_default(), form, || {
            println!("{}", one.id);
            let how = if one.known { "was submitted before" } else { "is queued" };
            eprintln!(
                "job {} {} {how} · `het wait {0}` waits for it, `het ps --all` lists it",
                one.id, one.name
            );
        });
    }
}

fn tell_array(items: &[Submitted], form: Form) {
    let values = items.iter().filter_map(|item| serde_json::to_value(item).ok());
    output::list("SubmittedList", &values.collect::<Vec<_>>(), SUBMITTED_COLUMNS, form);
    if let Some(first) = items.first() {
        eprintln!(
            "{} jobs are queued · `het wait {1}[]` waits for all of them, `het cancel {1}[]` ends \
             them",
            items.len(),
            first.id
        );
    }
}
