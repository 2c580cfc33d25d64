//! `het logs --follow`: until the job has ended.

use std::path::{Path, PathBuf};
use std::{fs, thread};

use het_server::{JobDir, LockHolder};
use het_wire::report::RunReport;

use super::{LogsArgs, tail};
use crate::client::{Client, WATCH, client};
use crate::fail::{Fail, code};
use crate::live::{Attempts, Begins, Copied, Follow, LiveView, Progress, Selection, Teller};
use crate::local::{home, read};
use crate::watch::{Interrupted, LOOK_EVERY, watch};

/// Who tells of a job.
pub enum Source {
    Server(Box<Client>),
    /// The files of a run without a server.
    Run(JobDir),
}

/// Shows what is in the files, or their last lines, and what is written from then on.
pub fn follow(
    args: &LogsArgs,
    report: &RunReport,
    source: Source,
    files: &[PathBuf],
) -> Result<u8, Fail> {
    let mut begins = Begins::new();
    if args.tail.is_some() {
        for path in files {
            let last = tail(path, args.tail).map_err(|error| Fail::file(path, error))?;
            begins.insert(path.clone(), last.begin);
        }
    }
    let interrupted = Interrupted::catch()?;
    let selection = Selection { stage: args.stage.clone(), rank: args.rank };
    let follow = Follow { selection, attempts: Attempts::FromLast, begins };
    let view = LiveView::start(Progress::Hidden, Some(follow));
    view.teller().report(report);
    let last = match source {
        Source::Server(server) => {
            let changes = client()?.open(WATCH)?;
            watch(report.id, (*server, changes), &view.teller(), &interrupted)?
        }
        Source::Run(job) => watch_run(&job, &view.teller(), &interrupted)?,
    };
    match last {
        Some(last) => match view.finish(&last) {
            Copied::All => Ok(code::OK),
            Copied::Partly => Ok(code::FAILED),
        },
        None => Ok(code::INTERRUPTED),
    }
}

/// The same of a job that another process runs without a server.
fn watch_run(
    job: &JobDir,
    view: &Teller,
    interrupted: &Interrupted,
) -> Result<Option<RunReport>, Fail> {
    let lock_file = home()?.lock_file();
    while !interrupted.is_set() {
        let lives = lives(&lock_file, job.id);
        // Looked at after that: one that ended meanwhile has a last report.
        if let Some(report) = read(job) {
            if report.exit_code.is_some() {
                return Ok(Some(report));
            }
            if !lives {
                let id = job.id;
                view.message(format!(
                    "job {id} was cut off · `het run --resume {id}` goes on with it"
                ));
                return Ok(Some(report));
            }
            view.report(&report);
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(None)
}

/// Whether a process runs this job.
fn lives(lock_file: &Path, job: u64) -> bool {
    let holder = fs::read_to_string(lock_file).ok();
    let holder = holder.and_then(|text| serde_json::from_str::<LockHolder>(&text).ok());
    holder.is_some_and(|holder| {
        holder.job == job && Path::new(&format!("/proc/{}", holder.pid)).exists()
    })
}
