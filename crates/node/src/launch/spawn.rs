//! Starting the processes of a gang.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use het_core::{Container, Failure, LogRule, Millis, OutputRule, Time};
use nix::unistd::{AccessFlags, access};

use crate::cgroup::Group;
use crate::context::Site;
use crate::gang::verdict::{EXIT_CANNOT_RUN, EXIT_NOT_FOUND, Exit};
use crate::launch::container;
use crate::launch::environment;
use crate::launch::spec::Order;
use crate::output;
use crate::process::sys::{ExecStatus, Image, Others, Started, Streams, cpu_set};
use crate::process::variables::{Environment, Variables};
use crate::recovery::record_file::Note;

/// Where programs are looked for when nothing says where (execvp(3)).
const PATH_DEFAULT: &str = "/bin:/usr/bin";

const SHELL: &str = "/bin/sh";

/// How long a health check may take.
const HEALTH_LIMIT_S: u32 = 60;

/// How much of the end of a log is searched for its last line.
const LOG_TAIL_BYTES: u64 = 16 * 1024;

/// One process of a gang, and the leader of its group.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) rank: u32,
    pub(crate) pid: i32,
    /// Readable when it has ended; none for one that was gone before it was taken up again.
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) kin: Kin,
    /// Whether its program began, as far as this process started it.
    pub(crate) exec_status: ExecStatus,
    pub(crate) exit: Option<Exit>,
    /// Processor time at its exit.
    pub(crate) cpu: Millis,
    /// It has ended, but the keeper has not written down how: when to look again, and when nobody
    /// will know any more.
    pub(crate) ask_keeper_at: Option<Time>,
    pub(crate) give_up_at: Option<Time>,
}

impl Process {
    pub(crate) fn new(rank: u32, pid: i32, pidfd: Option<OwnedFd>, kin: Kin) -> Self {
        Self {
            rank,
            pid,
            pidfd,
            kin,
            exec_status: ExecStatus::default(),
            exit: None,
            cpu: Millis::ZERO,
            ask_keeper_at: None,
            give_up_at: None,
        }
    }
}

/// Who tells how a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kin {
    /// The system: it is a child of this process.
    Child,
    /// The keeper: it is a child of a supervisor that died.
    Orphan,
}

/// Makes the directories that the programs are promised.
pub(crate) fn prepare(order: &Order) -> Result<(), Failure> {
    let logs = (order.launch.log == LogRule::EachRank).then(|| order.log_dir());
    let dirs = [logs, Some(order.output_dir()), order.checkpoint_dir()];
    for dir in dirs.into_iter().flatten() {
        // Mostly it is there, by the submission.
        if !dir.is_dir() {
            fs::create_dir_all(&dir).map_err(|error| cannot(0, &dir, &error))?;
        }
    }
    if order.launch.output == OutputRule::Streamed {
        let dir = order.output_dir();
        output::reopen(&dir).map_err(|error| cannot(0, &dir, &error))?;
    }
    Ok(())
}

/// Starts one rank, which notes who it is in the record of its lease; its program begins in a
/// moment, or its process ends.
pub(crate) fn spawn(
    order: &Order,
    site: &mut Site,
    note: Note<'_>,
    group: Option<&Group>,
    rank: u32,
) -> Result<Process, Failure> {
    let argv = order.argv(rank);
    let Some(program) = argv.first() else {
        return Err(failure(rank, EXIT_NOT_FOUND, "the stage has no program to run".to_owned()));
    };
    let log = match order.launch.log {
        LogRule::EachRank => Some(open_log(&order.log(rank), rank)?),
        LogRule::Discard => None,
    };
    // Without it the program runs as it does on a machine without groups.
    let doors = group.map(Group::doors).unwrap_or_default();
    let told = environment::told(order, rank);
    let found = match &order.launch.container {
        Some(container) => Ok(contained(order, container, &told, &argv, rank)?),
        None => find(program, told.get("PATH"), &order.launch.cwd).map(|path| (path, argv.clone())),
    };
    let started = found.and_then(|(path, argv)| {
        let (path, argv) = match &order.health_check {
            Some(check) => checked(check, order, rank, path, &argv),
            None => (path, argv),
        };
        let argv: Result<_, _> = argv.iter().map(|word| CString::new(word.as_str())).collect();
        let image = Image {
            program: CString::new(path)?,
            argv: argv?,
            env: Environment::own_and(told)?,
            cwd: CString::new(order.launch.cwd.as_str())?,
            rank,
            cores: cpu_set(&order.picked[rank as usize].cores),
        };
        let input = site.null.as_fd();
        let log = log.as_ref().map_or(input, AsFd::as_fd);
        // Who has a keeper is a server, which was given nothing for programs.
        let others = order.exits.as_ref().map_or(Others::PassedOn, |_| Others::Closed);
        site.spawner.start(image, &Streams { input, log, note, doors, others })
    });
    let Started { pid, pidfd, exec_status } =
        started.map_err(|error| explain(order, rank, &error))?;
    Ok(Process { exec_status, ..Process::new(rank, pid, Some(pidfd), Kin::Child) })
}

/// Path and arguments of the container runtime that runs the program in its image.
fn contained(
    order: &Order,
    container: &Container,
    told: &Variables,
    argv: &[String],
    rank: u32,
) -> Result<(String, Vec<String>), Failure> {
    let programs = container::programs(container.runtime);
    let found = programs.iter().find_map(|&(program, runtime)| {
        Some((find(program, None, &order.launch.cwd).ok()?, program, runtime))
    });
    let Some((path, program, runtime)) = found else {
        let names: Vec<String> = programs.iter().map(|(name, _)| format!("`{name}`")).collect();
        let text = format!(
            "the image `{}` needs {}, which this machine does not have, hint: install one of them",
            container.image,
            names.join(" or ")
        );
        return Err(failure(rank, EXIT_NOT_FOUND, text));
    };
    prepare_container(order, rank)?;
    let words = container::words(order, container, (program, runtime), told, argv, rank);
    let words = words.map_err(|why| failure(rank, EXIT_CANNOT_RUN, why))?;
    Ok((path, words))
}

/// Makes what is given to a container by name: a file that is given has to be there.
fn prepare_container(order: &Order, rank: u32) -> Result<(), Failure> {
    let progress = order.progress();
    let progress_made = OpenOptions::new().create(true).append(true).open(&progress);
    progress_made.map_err(|error| cannot(rank, &progress, &error))?;
    let id = order.container_id(rank);
    let dir = id.parent().unwrap_or(&id);
    fs::create_dir_all(dir).map_err(|error| cannot(rank, dir, &error))
}

/// A shell that runs a health check first, and then becomes the program. A check that cannot be run
/// says nothing about the devices; what a job sets up for its own program does not change it.
const CHECKED: &str = r#"
check=$0; limit=$1; mark=$2; path=$3; shift 3
env -u LD_PRELOAD -u LD_LIBRARY_PATH PATH="$path" timeout -k 5 "$limit" "$check"
case $? in
  0) ;;
  125|126|127) echo "$check cannot be run: the devices are used unchecked" >&2 ;;
  *) echo "$check failed: the devices are not used" >&2; : > "$mark"; exit 1 ;;
esac
exec "$@"
"#;

/// Program and arguments of that shell.
fn checked(
    check: &Path,
    order: &Order,
    rank: u32,
    program: String,
    argv: &[String],
) -> (String, Vec<String>) {
    // One of a lease of the same number whose supervisor died says nothing about this one.
    let _ = fs::remove_file(order.sick(rank));
    let path = std::env::var("PATH").unwrap_or_else(|_| PATH_DEFAULT.to_owned());
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (check, mark, limit) = (text(check), text(&order.sick(rank)), HEALTH_LIMIT_S.to_string());
    let head = [SHELL, "-c", CHECKED].map(str::to_owned).into_iter();
    let told = [check, limit, mark, path, program];
    (SHELL.to_owned(), head.chain(told).chain(argv.iter().skip(1).cloned()).collect())
}

fn open_log(path: &Path, rank: u32) -> Result<OwnedFd, Failure> {
    let log = OpenOptions::new().create(true).append(true).open(path);
    log.map(OwnedFd::from).map_err(|error| cannot(rank, path, &error))
}

/// Where a program is, as a shell finds it: a name without `/` is looked up in `PATH`.
fn find(program: &str, path: Option<&str>, cwd: &str) -> io::Result<String> {
    if program.contains('/') {
        return Ok(program.to_owned());
    }
    let own = std::env::var("PATH").ok();
    let path = path.or(own.as_deref()).unwrap_or(PATH_DEFAULT);
    let mut denied = None;
    for dir in path.split(':') {
        let dir = Path::new(cwd).join(dir);
        let candidate = dir.join(program);
        if !candidate.is_file() {
            continue;
        }
        match access(&candidate, AccessFlags::X_OK) {
            Ok(()) => return Ok(candidate.to_string_lossy().into_owned()),
            Err(errno) => denied = Some(errno.into()),
        }
    }
    Err(denied.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
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
pub(crate) fn explain(order: &Order, rank: u32, error: &io::Error) -> Failure {
    let argv = order.argv(rank);
    let program = argv.first().map_or("", String::as_str);
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
