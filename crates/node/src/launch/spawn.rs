//! Tells the shim of a gang the program of one rank.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use het_core::{Failure, Isolation, LogRule, OutputRule};

use super::container::containerized;
use super::device_numbers::{NVIDIA, device_numbers};
use super::environment::{self, Given};
use super::failure::{cannot_write, explain_exec_error, failure};
use super::files;
use super::health_check::with_health_check;
use super::launcher::{self, Granted};
use super::lookup::find;
use super::spec::GangSpec;
use crate::cgroup::{Group, RunMode};
use crate::context::Context;
use crate::output;
use crate::process::{
    EXIT_NOT_FOUND, Environment, InheritedFds, RankDescriptors, RankProgram, start_rank,
};

/// Creates the directories of the contract.
pub(crate) fn create_directories(spec: &GangSpec) -> Result<(), Failure> {
    let has_logs = spec.launch.log == LogRule::EachRank || spec.launch.log_files.is_some();
    let logs = has_logs.then(|| spec.log_dir());
    let dirs = [logs, Some(spec.output_dir()), spec.checkpoint_dir()];
    for dir in dirs.into_iter().flatten() {
        // The submission created most of them.
        if !dir.is_dir() {
            fs::create_dir_all(&dir).map_err(|error| cannot_write(0, &dir, &error))?;
        }
    }
    if spec.launch.output == OutputRule::Streamed {
        let dir = spec.output_dir();
        output::mark_incomplete(&dir).map_err(|error| cannot_write(0, &dir, &error))?;
    }
    Ok(())
}

/// Tells the shim one rank. It starts the ranks once it knows all of them.
pub(crate) fn spawn(
    spec: &GangSpec,
    context: &mut Context,
    shim: BorrowedFd<'_>,
    group: Option<&Group>,
    rank: u32,
) -> Result<(), Failure> {
    let argv = launcher::told(spec.argv(rank), spec.port, || granted(spec, rank))
        .map_err(|why| failure(rank, Failure::CANNOT_RUN, why))?;
    let Some(program) = argv.first() else {
        return Err(failure(rank, EXIT_NOT_FOUND, "the stage has no program to run".to_owned()));
    };
    let (input, output) = (files::input(spec, rank)?, files::output(spec, rank)?);
    let given = given(spec, context, rank)?;
    let inherited = &given.inherited;
    // Without a cgroup the program runs as on a machine without cgroups.
    let cgroup_procs = group.map(Group::procs).unwrap_or_default();
    let variables = environment::variables(spec, rank, &given);
    let found = match &spec.launch.container {
        Some(container) => {
            Ok(containerized(spec, container, (inherited, &variables), &argv, rank)?)
        }
        None => {
            let path = variables.get("PATH").or(inherited.get("PATH"));
            let path = find(program, path, &spec.launch.cwd);
            path.map(|path| (path, argv.clone()))
        }
    };
    let started = found.and_then(|(path, argv)| {
        let (path, argv) = match &spec.health_check {
            Some(check) => with_health_check(check, spec, rank, path, &argv),
            None => (path, argv),
        };
        let argv: Result<_, _> = argv.iter().map(|word| CString::new(word.as_str())).collect();
        // A service inherited nothing for programs.
        let inherited_fds = match spec.mode {
            RunMode::Service => InheritedFds::Closed,
            RunMode::Embedded => InheritedFds::Kept,
        };
        let program = RankProgram {
            path: CString::new(path)?,
            argv: argv?,
            env: Environment::new(inherited, variables)?,
            cwd: CString::new(spec.launch.cwd.as_str())?,
            rank,
            cores: spec.cores[rank as usize].cores.clone(),
            inherited: inherited_fds,
        };
        let null = context.null.as_fd();
        let stdin = input.as_ref().map_or(null, AsFd::as_fd);
        let stdout = output.as_ref().map_or(null, |output| output.stdout.as_fd());
        let stderr = output.as_ref().and_then(|output| output.stderr.as_ref());
        let stderr = stderr.map_or(stdout, AsFd::as_fd);
        let files = RankDescriptors { stdin, stdout, stderr, cgroup_procs };
        start_rank(shim, &program, &files)
    });
    started.map_err(|error| explain_exec_error(spec, rank, &error))
}

/// The accelerators of a rank, for launchers that choose devices by their numbers: of one driver,
/// whose variable such a launcher replaces. AMD's is not among them: what it hides has no number.
fn granted(spec: &GangSpec, rank: u32) -> Option<Granted<'_>> {
    const NUMBERED: [&str; 7] = ["cann", "corex", "cuda", "level-zero", "maca", "mlu", "ppu"];
    let visible = spec.visible_devices(rank);
    let (_, visible) = visible.into_iter().find(|(driver, _)| NUMBERED.contains(driver))?;
    let numbers = match spec.launch.isolation() {
        Isolation::Process => device_numbers(&visible, Path::new(NVIDIA)),
        // It has no others there.
        Isolation::Container => Some((0..visible.len() as u32).collect()),
    };
    Some(Granted { visible, numbers })
}

/// The variables of whoever submitted the job.
fn given(spec: &GangSpec, context: &mut Context, rank: u32) -> Result<Given, Failure> {
    Given::read(&spec.launch, &mut context.environments).map_err(|(file, error)| {
        let text = format!(
            "the variables of its submitter cannot be read from `{file}`: {error}, hint: submit \
             it again"
        );
        failure(rank, Failure::CANNOT_RUN, text)
    })
}
