//! Jobs in the state directory of this user, and what runs there without a supervisor.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use het_files::Links;
use het_server::{Home, JobDir, Unsupervised, drop_privileges, lock_dir, unsupervised};
use het_wire::report::RunReport;
use nix::unistd::{User, geteuid};

use crate::fail::{Fail, code};
use crate::printable::make_printable;

/// The state directory of this user.
pub fn home() -> Result<Home, Fail> {
    Ok(Home::find(|name| env::var(name).ok())?)
}

/// The state directory that is named, root's being that of the machine's server where one is
/// installed, and else this user's. Nothing is made.
pub fn server_home() -> Result<Home, Fail> {
    let is_named = env::var_os("HET_HOME").is_some_and(|path| !path.is_empty());
    let system = Home::of_system();
    if !is_named && geteuid().is_root() && system.is_shared() {
        return Ok(system);
    }
    Ok(Home::named(|name| env::var(name).ok())?)
}

/// The same, to read and write what a server has there. Root does so with the rights of that
/// server alone, which could not open what root leaves, and might lead root elsewhere.
pub fn open_server_home() -> Result<Home, Fail> {
    let mut home = server_home()?;
    if geteuid().is_root() && home.is_shared() {
        take_rights_of_owner(home.root())?;
    } else {
        home = self::home()?;
    }
    home.server_dir()?;
    Ok(home)
}

/// Gives root's rights up for those of whoever owns a file or directory, links not followed.
pub fn take_rights_of_owner(path: &Path) -> Result<(), Fail> {
    let trouble = |error| Fail::file(path, error);
    let owner = fs::symlink_metadata(path).map_err(trouble)?.uid();
    let user = User::from_uid(owner.into()).map_err(|errno| trouble(errno.into()))?;
    let user = user.ok_or_else(|| trouble(io::Error::other("it belongs to nobody")))?;
    drop_privileges(&user, None).map_err(Fail::from_error)
}

/// The job that a selector names: an id, `last`, or a job's name (its newest run).
pub fn select(home: &Home, selector: &str) -> Result<JobDir, Fail> {
    let jobs = home.jobs()?;
    let found = match selector.parse::<u64>() {
        Ok(id) => jobs.iter().find(|job| job.id == id),
        Err(_) if selector == "last" => jobs.last(),
        Err(_) => jobs.iter().rev().find(|job| read(job).is_some_and(|r| r.name == selector)),
    };
    found.cloned().ok_or_else(|| {
        let message = match jobs.is_empty() {
            true => "no job has run here yet".to_owned(),
            false => format!("there is no job `{selector}`"),
        };
        Fail::new(code::NOT_FOUND, message).hint("`het history` lists the jobs")
    })
}

/// The newest report of a job, if it has one that can be read.
pub fn read(job: &JobDir) -> Option<RunReport> {
    let text = het_files::read(&job.report(), Links::Refused, JobDir::REPORT_BYTES_MAX).ok()?;
    let mut value = serde_json::from_slice(&text).ok()?;
    make_printable(&mut value);
    serde_json::from_value(value).ok()
}

/// Of a job that nothing is known of but its directory: it is a server's, which tells of its live
/// jobs itself, or one whose run was cut off at once.
pub fn without_report(job: &JobDir) -> Fail {
    match job.store().exists() {
        true => Fail::new(code::NOT_FOUND, format!("job {} has no report yet", job.id)).hint(
            format!("`het run --resume {}` goes on with it where its run was killed", job.id),
        ),
        false => {
            let text = format!("job {} is a server's, and that does not answer", job.id);
            let hint =
                format!("`het server` starts it; files of the job: `{}`", job.path.display());
            Fail::new(code::UNREACHABLE, text).hint(hint)
        }
    }
}

/// Programs that a killed run or a stopped server left would share devices with new ones.
pub fn refuse_unsupervised(home: &Home, own_run_dir: Option<&Path>) -> Result<(), Fail> {
    match unsupervised(home, own_run_dir) {
        None => Ok(()),
        Some(Unsupervised::OfJob(id)) => Err(Fail::new(
            code::CONFLICT,
            format!("programs of job {id} run, and nobody watches them"),
        )
        .hint(format!("`het run --resume {id}` ends them and goes on from its newest checkpoint"))),
        Some(Unsupervised::OfServer) => {
            Err(Fail::new(code::CONFLICT, "jobs of the server that ended still run")
                .hint("`het server` takes them up again, and new jobs beside them"))
        }
    }
}

/// Where this machine's control loops lock their devices.
pub fn device_lock_dir() -> Result<PathBuf, Fail> {
    lock_dir(|name| env::var(name).ok()).map_err(Fail::from_error)
}
