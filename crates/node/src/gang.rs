//! The supervisor of one gang: it starts the processes, observes them, and reports events. It never
//! blocks: what it waits for is in the poller, and its deadline says until when.

mod health;
mod holdings;
mod notice;
mod process;
mod processes;
mod report;
mod reporting;
mod shutdown;
mod stacks;
mod startup;
mod streaming;
mod survivors;
mod verdict;

use std::collections::BTreeSet;
use std::time::SystemTime;

use het_core::{CheckpointSpec, Event, Failure, FailureCause, LogRule, Millis, Outcome, Time};
use nix::sys::inotify::WatchDescriptor;
use nix::sys::signal::Signal;

use crate::cgroup::Group;
use crate::context::Context;
use crate::launch::{self, GangSpec, explain_exec_error, outcome_of_start};
use crate::logs::{self, LogRotation};
use crate::output::OutputWatch;
use crate::poller::Source;
use crate::process::Exit;
use crate::recovery::RecordFile;
use crate::resources::AssignedCores;

use holdings::{Files, Holdings};
pub(crate) use process::Process;
use processes::Processes;
use reporting::Reporting;
use shutdown::{Escalation, Shutdown};
use startup::Startup;
use survivors::Survivors;
use verdict::{Consequence, Verdict};

/// Whether a stop was planned for a gang before its supervisor died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopRequested {
    Yes,
    No,
}

/// A gang whose supervisor died, as it was found.
pub(crate) struct AbandonedGang {
    pub(crate) processes: Vec<Process>,
    pub(crate) cgroups: Vec<Group>,
    pub(crate) record: Option<RecordFile>,
    /// Checkpoints that appeared after this are new.
    pub(crate) since: SystemTime,
    pub(crate) stop: StopRequested,
}

/// Whether a gang has emitted its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GangStatus {
    Running,
    Ended,
}

#[derive(Debug)]
pub(crate) struct Gang {
    spec: GangSpec,
    processes: Processes,
    holdings: Holdings,
    startup: Startup,
    verdict: Verdict,
    shutdown: Shutdown,
    /// The signal of the notice was sent.
    is_notified: bool,
    survivors: Survivors,
    reporting: Reporting,
    /// None where logs are discarded.
    logs: Option<LogRotation>,
    /// While readers wait for its first output.
    output: Option<OutputWatch>,
}

impl Gang {
    /// Starts a gang. If only some of its ranks can be started, it ends by itself.
    ///
    /// # Errors
    /// When nothing was started.
    pub(crate) fn start(spec: GangSpec, context: &mut Context) -> Result<Self, Failure> {
        launch::create_directories(&spec)?;
        let holdings = Holdings::new(context.oom_kills());
        let mut gang = Self::new(spec, Vec::new(), holdings, context);
        match gang.start_processes(context) {
            Ok(()) => gang.startup = Startup::pending(context.clock.now()),
            Err(failure) => gang.fail_start(failure),
        }
        Ok(gang)
    }

    /// Adopts a gang whose supervisor died, in its present state.
    pub(crate) fn adopt(spec: GangSpec, gang: AbandonedGang, context: &mut Context) -> Self {
        let AbandonedGang { processes, cgroups, record, since, stop } = gang;
        let mut gang = Self::new(spec, processes, Holdings::adopted(cgroups, record), context);
        gang.reporting.catch_up(since);
        if stop == StopRequested::Yes {
            // The stop is requested again: the supervisor may have died before it was.
            gang.verdict.stop_requested();
            gang.is_notified = gang.spec.notice_file().exists();
        }
        context.emit(Event::StageStarted { lease: gang.spec.lease });
        let now = context.clock.now();
        for index in 0..gang.processes.len() {
            match gang.processes.watch(index, gang.spec.lease, &context.poller) {
                Ok(()) if gang.processes.get(index).pidfd.is_some() => {}
                _ => gang.process_ended(index, now, context),
            }
        }
        gang
    }

    fn new(
        spec: GangSpec,
        processes: Vec<Process>,
        holdings: Holdings,
        context: &mut Context,
    ) -> Self {
        let reporting = Reporting::new(&spec, context);
        let output = streaming::watch_output(&spec, context);
        let has_logs = spec.launch.log == LogRule::EachRank;
        Self {
            logs: has_logs.then(|| LogRotation::begin(context.clock.now())),
            spec,
            processes: Processes::new(processes),
            holdings,
            startup: Startup::Over,
            verdict: Verdict::default(),
            shutdown: Shutdown::default(),
            is_notified: false,
            survivors: Survivors::default(),
            reporting,
            output,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.spec.port
    }

    /// By rank.
    pub(crate) fn cores(&self) -> &[AssignedCores] {
        &self.spec.cores
    }

    /// A source of this gang is ready.
    pub(crate) fn on_ready(&mut self, source: Source, context: &mut Context) {
        match source {
            Source::Rank(_, index) => {
                self.process_ended(usize::from(index), context.clock.now(), context);
            }
            Source::Other(_, index) => self.processes.other_ended(index, &context.poller),
            Source::Checkpoints(_) | Source::Progress => self.reporting.files_changed(),
            Source::Output(_) => self.publish(context),
            Source::Channel | Source::Directories => {}
        }
    }

    /// These directories may have changed in which it may save; none for all.
    pub(crate) fn directories_changed(&mut self, which: Option<&BTreeSet<WatchDescriptor>>) {
        self.reporting.directories_changed(which);
    }

    /// When [`Self::advance`] has something to do, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let deadlines = [
            self.shutdown.deadline(),
            self.survivors.deadline(),
            self.reporting.deadline(),
            self.logs.as_ref().map(|logs| logs.check_at),
            self.startup.deadline(),
            self.processes.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Does what is due, and ends the gang when no process is left.
    pub(crate) fn advance(&mut self, context: &mut Context) -> GangStatus {
        let now = context.clock.now();
        self.check_startup(now, context);
        for index in 0..self.processes.len() {
            if self.processes.get(index).read_exit_log_at.is_some_and(|at| at <= now) {
                self.process_ended(index, now, context);
            }
        }
        self.reporting.read_if_due(now, &self.spec, &self.processes, context);
        if let Some(logs) = self.logs.as_mut().filter(|logs| logs.check_at <= now) {
            let spec = &self.spec;
            logs.check(now, (0..spec.world()).map(|rank| spec.log_file(rank)));
        }
        self.reporting.emit_stall(now, &self.spec, context);
        self.end_if_hung(now);
        if let Some(escalation) = self.shutdown.due(now) {
            self.escalate(escalation);
        }
        if self.processes.is_any_running() {
            return GangStatus::Running;
        }
        let (cgroups, shutdown) = (&self.holdings.cgroups, &self.shutdown);
        let status =
            self.survivors.kill(&self.spec, &mut self.processes, cgroups, shutdown, context);
        if status == GangStatus::Ended {
            self.end(context);
        }
        status
    }

    pub(crate) fn kill(&mut self) {
        self.verdict.stop_requested();
        self.shutdown.kill();
        self.escalate(Escalation::Kill);
    }

    /// Gives notice to stop: the file first, so that a signal handler finds it.
    pub(crate) fn stop(&mut self, reason: &'static str, grace: Millis, now: Time) {
        self.verdict.stop_requested();
        let signal = notice::signal(&self.spec);
        let is_term = signal == Signal::SIGTERM;
        let next = if is_term { Escalation::Kill } else { Escalation::Terminate };
        self.shutdown.allow_save(now, grace, next);
        let Some(deadline) = self.shutdown.deadline() else { return };
        self.holdings.files = Files::More;
        notice::write(&self.spec, deadline, grace, reason);
        if !std::mem::replace(&mut self.is_notified, true) {
            self.processes.notify(&self.spec, signal);
        }
    }

    /// Records the lease before there is any process, then starts every rank, in order.
    fn start_processes(&mut self, context: &mut Context) -> Result<(), Failure> {
        let record = self.holdings.write_record(&self.spec, context)?;
        let created = self.holdings.create_shared_dir(&self.spec);
        let started = created.and_then(|()| self.start_ranks(&record, context));
        self.holdings.record = Some(record);
        started
    }

    fn start_ranks(&mut self, record: &RecordFile, context: &mut Context) -> Result<(), Failure> {
        for rank in 0..self.spec.world() {
            let group = self.holdings.cgroups.get(rank as usize);
            let started = launch::spawn(&self.spec, context, record.note(rank), group, rank)?;
            context.ranks.insert(started.pid);
            self.processes.push(Process::started(rank, started));
            let index = rank as usize;
            if let Err(errno) = self.processes.watch(index, self.spec.lease, &context.poller) {
                self.processes.kill_and_wait(index);
                self.process_ended(index, context.clock.now(), context);
                let message = format!("its end cannot be waited for: {errno}");
                let (exit_code, cause) = (Failure::CANNOT_RUN, FailureCause::CannotRun);
                return Err(Failure { rank, exit_code, message, cause });
            }
        }
        Ok(())
    }

    /// A gang that hangs is ended and can start again. It gets no time to save: it does not.
    fn end_if_hung(&mut self, now: Time) {
        if !matches!(self.shutdown, Shutdown::Running) || !self.verdict.is_open() {
            return;
        }
        let Some(silent) = self.reporting.hung_for(now, &self.spec) else { return };
        let kept = stacks::keep(&self.spec, &self.processes, &self.holdings.cgroups);
        self.verdict.stalled(silent, kept.as_deref());
        if let Some(escalation) = self.shutdown.fail(now) {
            self.escalate(escalation);
        }
    }

    fn check_startup(&mut self, now: Time, context: &mut Context) {
        self.startup.check(now, &self.processes, self.spec.lease, context);
    }

    /// Not every rank begins: the others are killed.
    fn fail_start(&mut self, failure: Failure) {
        if !matches!(self.startup, Startup::Failed(_)) {
            self.startup = Startup::Failed(failure);
            self.kill();
        }
    }

    /// The process of a rank ended. It stays a zombie until the whole gang is gone, so that its id,
    /// which is also its group's, is not reused.
    fn process_ended(&mut self, index: usize, now: Time, context: &Context) {
        let process = self.processes.get_mut(index);
        let Some(exit) = process.observe_exit(now, &self.spec, &context.poller) else { return };
        let (rank, pid) = (process.rank, process.pid);
        if let Some(error) = process.exec.error() {
            return self.fail_start(explain_exec_error(&self.spec, rank, &error));
        }
        if self.is_notified && exit == Exit::Signal(notice::signal(&self.spec)) {
            self.forward_notice(pid, context);
        }
        match self.verdict.exited(rank, exit) {
            Consequence::None => {}
            Consequence::LetOthersSave => {
                let checkpoint = self.spec.launch.checkpoint.as_ref();
                let grace = checkpoint.map_or(CheckpointSpec::GRACE_DEFAULT, |spec| spec.grace);
                self.shutdown.allow_save(now, grace, Escalation::Terminate);
            }
            Consequence::EndOthers => {
                if let Some(escalation) = self.shutdown.fail(now) {
                    self.escalate(escalation);
                }
            }
        }
    }

    /// A shell that runs the program as a child dies of the notice without forwarding it.
    fn forward_notice(&mut self, group: i32, context: &Context) {
        if matches!(self.shutdown, Shutdown::Saving { .. }) {
            let (signal, lease) = (notice::signal(&self.spec), self.spec.lease);
            self.processes.notify_orphans(group, signal, lease, &context.poller);
        }
    }

    fn escalate(&self, escalation: Escalation) {
        self.processes.send(escalation, &self.spec, &self.holdings.cgroups);
    }

    /// Emits that the first output is there.
    fn publish(&mut self, context: &mut Context) {
        if self.output.as_ref().is_some_and(OutputWatch::shard_completed) {
            context.poller.remove(self.output.take());
            self.check_startup(context.clock.now(), context);
            context.emit(Event::StagePublished { lease: self.spec.lease });
        }
    }

    /// Emits everything that is left to report, and the end.
    fn end(&mut self, context: &mut Context) {
        let prospect = self.verdict.prospect();
        self.reporting.finish(&self.spec, &self.processes, prospect, context);
        if self.reporting.is_done() {
            self.verdict.done();
        }
        context.poller.remove(self.output.take());
        let outcome = self.outcome(context);
        let children = self.processes.children();
        self.holdings.put_back_cgroups(context);
        let reported = if self.reporting.has_read() { Files::More } else { Files::Record };
        let cleanup = self.holdings.cleanup(&self.spec, reported, children);
        context.emit_end(self.spec.lease, outcome, cleanup);
    }

    fn outcome(&mut self, context: &mut Context) -> Outcome {
        let culprit = self.verdict.culprit();
        if let Some(failure) = self.startup.take_failure() {
            return outcome_of_start(failure);
        }
        if health::is_unhealthy(&self.spec, culprit) {
            return health::fail_devices(&self.spec, context);
        }
        let log = culprit.map(|rank| logs::tail(&self.spec.failure_log(rank))).unwrap_or_default();
        let file = culprit.map(|rank| self.spec.error_file(rank));
        let told = match logs::cause(&log).is_empty() {
            true => file.and_then(|file| logs::exception(&file)).unwrap_or_default(),
            false => log,
        };
        let memory = self.holdings.memory_ran_out(&self.spec, culprit);
        let saved = self.reporting.saved();
        streaming::complete_output(&self.spec, self.verdict.outcome(&told, memory, saved))
    }
}
