//! Failures of a start, in messages for the user.

use std::io;
use std::path::Path;

use het_core::{Failure, FailureCause, Outcome};
use het_files::is_shortage;

use super::spec::GangSpec;
use crate::process::EXIT_NOT_FOUND;

pub(super) fn failure(rank: u32, exit_code: i32, message: String) -> Failure {
    Failure { rank, exit_code, message, cause: FailureCause::CannotRun }
}

/// A file of a rank cannot be written.
pub(crate) fn cannot_write(rank: u32, path: &Path, error: &io::Error) -> Failure {
    let text = format!("cannot write `{}`: {error}", path.display());
    blame(failure(rank, Failure::CANNOT_RUN, text), error)
}

/// Where something of the machine ran out, neither the program nor its job is to blame.
fn blame(failure: Failure, error: &io::Error) -> Failure {
    match is_shortage(error) {
        true => Failure { cause: FailureCause::Refused, ..failure },
        false => failure,
    }
}

/// How a lease ends whose start failed.
pub(crate) fn outcome_of_start(failure: Failure) -> Outcome {
    match failure.cause {
        FailureCause::Refused => Outcome::Refused { reason: failure.message },
        _ => Outcome::Failed(failure),
    }
}

/// Why a program did not start. The system's error does not say which file it concerns.
pub(crate) fn explain_exec_error(spec: &GangSpec, rank: u32, error: &io::Error) -> Failure {
    let argv = spec.argv(rank);
    let program = argv.first().map_or("", String::as_str);
    let cwd = Path::new(&spec.launch.cwd);
    if !cwd.is_dir() {
        let text = format!(
            "directory `{}` to start in does not exist, hint: it is where the job was submitted",
            cwd.display()
        );
        return failure(rank, Failure::CANNOT_RUN, text);
    }
    let missing = error.kind() == io::ErrorKind::NotFound;
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    let (code, text) = if missing && !program.contains('/') {
        let hint = "hint: install it, activate its environment, or give its path";
        (EXIT_NOT_FOUND, format!("`{program}` was not found in PATH, {hint}"))
    } else if missing && cwd.join(program).exists() {
        let hint = "hint: check its first line (`#!`)";
        (Failure::CANNOT_RUN, format!("the interpreter of `{program}` does not exist, {hint}"))
    } else if missing {
        let hint = format!("hint: relative paths start at `{}`", cwd.display());
        (EXIT_NOT_FOUND, format!("`{program}` does not exist, {hint}"))
    } else if denied {
        (Failure::CANNOT_RUN, format!("`{program}` is not executable, hint: `chmod +x {program}`"))
    } else {
        (Failure::CANNOT_RUN, format!("`{program}` cannot be run: {error}"))
    };
    blame(failure(rank, code, text), error)
}
