//! A gang whose programs were started before it has devices, and wait for them.

use std::fmt::Display;
use std::fs;
use std::os::fd::AsFd;

use het_core::{Event, Failure, FailureCause, Millis, PreparationEnd, Time};
use het_files::replace;

use super::Gang;
use super::shutdown::Shutdown;
use super::startup::Startup;
use crate::cgroup::RankGrant;
use crate::context::Context;
use crate::launch::{self, Devices, GangSpec, Given};
use crate::process::{Exit, hold, pin_tree, procfs};
use crate::run_dir::marker_variable;

/// Processor time that programs may use before they have devices: more than imports take. Nobody
/// accounts for it.
const CPU_MAX: Millis = Millis::seconds(300);
const LOOK_EVERY: Millis = Millis::seconds(10);

/// When it is looked next how much processor time a gang used that has no devices yet.
#[derive(Debug)]
pub(super) struct EarlyUse {
    look_at: Time,
}

impl EarlyUse {
    pub(super) fn begin(now: Time) -> Self {
        Self { look_at: now + LOOK_EVERY }
    }
}

impl Gang {
    /// When its use of the processor is looked at, while it has no devices.
    pub(super) fn look_at(&self) -> Option<Time> {
        self.early_use.as_ref().filter(|_| self.awaits_devices()).map(|early| early.look_at)
    }

    /// Ends a gang that works instead of waiting for its devices.
    pub(super) fn end_if_it_works(&mut self, now: Time, context: &Context) {
        if self.look_at().is_none_or(|at| at > now) {
            return;
        }
        self.early_use = Some(EarlyUse::begin(now));
        // Also of what left its process group and its session.
        let marked = procfs::topmost(&marker_variable(&self.spec.lease_dir));
        let ticks = marked.into_iter().map(procfs::tree_cpu_ticks).sum();
        let used = procfs::ticks_to_millis(ticks);
        if used > CPU_MAX {
            let seconds = used.as_seconds();
            let message = format!("it used {seconds:.0} s of processor time before it had devices");
            self.fail_start(refused(message), context);
        }
    }

    /// Its devices are another gang's at present.
    pub(crate) fn awaits_devices(&self) -> bool {
        self.spec.devices == Devices::Awaited
    }

    /// Gives a gang that waits for them the devices of `spec`, and lets its programs go on. It
    /// keeps the port that they were told.
    pub(crate) fn grant(&mut self, spec: GangSpec, context: &mut Context) {
        let GangSpec { port, lease_dir, .. } = &self.spec;
        self.spec = GangSpec { port: *port, lease_dir: lease_dir.clone(), ..spec };
        self.reporting.begin(context.clock.now(), self.spec.launch.stall);
        if self.processes.iter().any(|process| process.exit.is_some()) {
            let message = "its program had ended before it had devices".to_owned();
            return self.fail_start(refused(message), context);
        }
        self.open_to_devices(context);
        if matches!(self.startup, Startup::Over) {
            context.emit(Event::StageStarted { lease: self.spec.lease });
        }
    }

    /// Lets its programs go on with its devices. What is done already may be done again.
    pub(super) fn open_to_devices(&mut self, context: &mut Context) {
        self.learn_ids();
        self.pin();
        if let (Some(held), Some(shim)) = (self.hold_devices(context), self.shim.connection()) {
            // Without a hold the devices are this control loop's only as long as it lives.
            let _ = hold(shim, held.as_fd());
        }
        let told = self.allow_devices(context).and_then(|()| {
            (0..self.spec.world()).try_for_each(|rank| self.tell_devices(rank, context))
        });
        if let Err(failure) = told {
            self.fail_start(failure, context);
        }
    }

    /// Keeps its processes to its cores.
    pub(super) fn pin(&self) {
        for process in self.processes.iter() {
            let cores = &self.spec.cores[process.rank as usize].cores;
            process.valid_pid().into_iter().for_each(|pid| pin_tree(pid, cores));
        }
    }

    fn allow_devices(&mut self, context: &Context) -> Result<(), Failure> {
        for (rank, group) in (0..self.spec.world()).zip(&mut self.holdings.cgroups) {
            let grant = RankGrant {
                memory: self.spec.rank(rank).host.memory,
                devices: self.spec.device_names(rank).collect(),
            };
            context.cgroups.allow(group, &grant).map_err(|error| {
                refused(format!("its control group cannot be opened to its devices: {error}"))
            })?;
        }
        Ok(())
    }

    /// What it may have done to the file before it had devices is no reason for a failure.
    fn tell_devices(&self, rank: u32, context: &mut Context) -> Result<(), Failure> {
        let path = self.spec.grant_file(rank);
        let told =
            |error: &dyn Display| refused(format!("cannot write `{}`: {error}", path.display()));
        let given = Given::read(&self.spec.launch, &mut context.environments);
        let given = given.map_err(|(_, error)| told(&error))?;
        let text = launch::grant_text(&self.spec, rank, &given);
        // It may have removed the directory.
        let _ = fs::create_dir(&self.spec.lease_dir);
        let _ = self.spec.local_inputs.note(&self.spec.lease_dir);
        replace(&path, text.as_bytes()).map_err(|error| told(&error))
    }

    /// What it was started for does not come: nothing of it is reported.
    pub(crate) fn give_up(&mut self, context: &Context) {
        self.kill(context);
    }

    /// It was given up, or its program ended by itself.
    pub(super) fn end_unused(&mut self, context: &mut Context) {
        let failure = self.startup.take_failure();
        let given_up = matches!(self.shutdown, Shutdown::Killed) && failure.is_none();
        let cleanup = self.release(context);
        if !given_up {
            let reason = failure.map_or_else(|| self.early_end(), |failure| failure.message);
            let end = PreparationEnd::Failed { reason };
            context.emit(Event::PreparationEnded { lease: self.spec.lease, end });
        }
        // Nothing of it is in the log, and a start of its lease may come at once.
        context.cleanups.push(cleanup);
        context.clean_up();
    }

    /// How its program ended before it had devices.
    fn early_end(&self) -> String {
        let first = self.processes.iter().find_map(|process| process.exit);
        match first {
            Some(Exit::Code(code)) => format!("it ended with {code} before it had devices"),
            Some(Exit::Signal(signal)) => format!("{signal} ended it before it had devices"),
            Some(Exit::Unknown) | None => "it ended before it had devices".to_owned(),
        }
    }
}

fn refused(message: String) -> Failure {
    let (exit_code, cause) = (Failure::CANNOT_RUN, FailureCause::Refused);
    Failure { rank: 0, exit_code, message, cause }
}
