//! Starting the processes of a gang.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use het_core::Failure;

use crate::environment;
use crate::exit::{EXIT_CANNOT_RUN, EXIT_NOT_FOUND, Exit};
use crate::order::Order;
use crate::sys::{lead_own_group, pidfd_open};

/// How much of the end of a log is searched for its last line.
const LOG_TAIL_BYTES: u64 = 16 * 1024;

/// One live process of a gang, and the leader of its group.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) rank: u32,
    pub(crate) child: Child,
    pub(crate) pidfd: OwnedFd,
    pub(crate) exit: Option<Exit>,
    /// Processor time at its exit.
    pub(crate) cpu_ticks: u64,
}

impl Process {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

/// Makes the directories and empty files that the programs are promised.
pub(crate) fn prepare(order: &Order) -> Result<(), Failure> {
    let lease_dir = order.lease_dir();
    // Left over from a lease of the same number whose supervisor died.
    match fs::remove_dir_all(&lease_dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(cannot(0, &lease_dir, &error));
        }
        _ => {}
    }
    let dirs = [Some(lease_dir), Some(order.log_dir()), Some(order.output_dir())];
    for dir in dirs.into_iter().chain([order.checkpoint_dir()]).flatten() {
        fs::create_dir_all(&dir).map_err(|error| cannot(0, &dir, &error))?;
    }
    let progress = order.progress();
    File::create(&progress).map_err(|error| cannot(0, &progress, &error))?;
    Ok(())
}

/// Starts one rank; returns once its program has begun.
pub(crate) fn spawn(order: &Order, rank: u32) -> Result<Process, Failure> {
    let argv = order.argv(rank);
    let Some((program, arguments)) = argv.split_first() else {
        return Err(failure(rank, EXIT_NOT_FOUND, "the stage has no program to run".to_owned()));
    };
    let log_path = order.log(rank);
    let log = OpenOptions::new().create(true).append(true).open(&log_path);
    let log = log.map_err(|error| cannot(rank, &log_path, &error))?;
    let errors = log.try_clone().map_err(|error| cannot(rank, &log_path, &error))?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&order.launch.cwd).stdin(Stdio::null());
    for name in environment::OPTIONAL {
        command.env_remove(name);
    }
    command.envs(environment::table(order, rank)).stdout(log).stderr(errors);
    lead_own_group(&mut command, &order.picked[rank as usize].cores);
    let mut child = command.spawn().map_err(|error| explain(order, rank, program, &error))?;
    match pidfd_open(child.id() as i32) {
        Ok(pidfd) => Ok(Process { rank, child, pidfd, exit: None, cpu_ticks: 0 }),
        Err(error) => {
            // Nobody could see it end: better not run it at all.
            let _ = child.kill();
            let _ = child.wait();
            let text =
                format!("rank {rank} cannot be supervised: `pidfd_open` failed with {error}");
            Err(failure(rank, EXIT_CANNOT_RUN, text))
        }
    }
}

/// The end of a rank's log.
pub(crate) fn log_tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    // The message is only poorer without it.
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

fn failure(rank: u32, exit_code: i32, message: String) -> Failure {
    Failure { rank, exit_code, message }
}

pub(crate) fn cannot(rank: u32, path: &Path, error: &io::Error) -> Failure {
    failure(rank, EXIT_CANNOT_RUN, format!("cannot write `{}`: {error}", path.display()))
}

/// Why a program did not start: the system's error does not say which file it is about.
fn explain(order: &Order, rank: u32, program: &str, error: &io::Error) -> Failure {
    let cwd = Path::new(&order.launch.cwd);
    if !cwd.is_dir() {
        let text = format!(
            "directory `{}` to start in does not exist, hint: it is where the job was submitted",
            cwd.display()
        );
        return failure(rank, EXIT_CANNOT_RUN, text);
    }
    let missing = error.kind() == io::ErrorKind::NotFound;
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    let (code, text) = if missing && !program.contains('/') {
        let hint = "hint: install it, activate its environment, or give its path";
        (EXIT_NOT_FOUND, format!("`{program}` was not found in PATH, {hint}"))
    } else if missing && cwd.join(program).exists() {
        let hint = "hint: check its first line (`#!`)";
        (EXIT_CANNOT_RUN, format!("the interpreter of `{program}` does not exist, {hint}"))
    } else if missing {
        let hint = format!("hint: relative paths start at `{}`", cwd.display());
        (EXIT_NOT_FOUND, format!("`{program}` does not exist, {hint}"))
    } else if denied {
        (EXIT_CANNOT_RUN, format!("`{program}` is not executable, hint: `chmod +x {program}`"))
    } else {
        (EXIT_CANNOT_RUN, format!("`{program}` cannot be run: {error}"))
    };
    failure(rank, code, text)
}
