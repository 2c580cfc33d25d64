//! The supervisor of one gang: it starts the processes, observes them, and reports events. It never
//! blocks: what it waits for is in the poller, and its deadline says until when.

mod disk;
mod health;
mod holdings;
pub(crate) mod notice;
mod process;
mod processes;
mod report;
mod reporting;
mod seen_inputs;
mod shim;
mod shutdown;
mod stacks;
mod startup;
mod streaming;
mod survivors;
mod verdict;
mod warm;

use std::collections::BTreeSet;
use std::time::SystemTime;

use het_core::{CheckpointSpec, Event, Failure, LogRule, MeasuredNeeds, Millis, Outcome, Time};
use nix::sys::inotify::WatchDescriptor;
use nix::sys::signal::Signal;

use crate::cgroup::Group;
use crate::context::{Cleanup, Context};
use crate::launch::{self, Devices, GangSpec, outcome_of_start};
use crate::logs::{self, LogRotation};
use crate::output::OutputWatch;
use crate::poller::Source;
use crate::process::{Exit, Slots};
use crate::recovery::RecordFile;
use crate::resources::AssignedCores;

use disk::DiskUse;
use holdings::{Files, Holdings};
pub(crate) use process::Process;
use processes::Processes;
pub(crate) use report::{Report, Watched};
use reporting::Reporting;
use seen_inputs::SeenInputs;
pub(crate) use shim::Shim;
use shim::{EndsTold, ShimWatch};
use shutdown::{Escalation, Shutdown};
use startup::Startup;
use survivors::Survivors;
use verdict::{Consequence, Verdict};
use warm::EarlyUse;

/// Whether a stop was planned for a gang before its supervisor died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopRequested {
    Yes,
    No,
}

/// A gang whose supervisor died, as it was found.
pub(crate) struct AbandonedGang {
    pub(crate) processes: Vec<Process>,
    pub(crate) shim: Shim,
    pub(crate) cgroups: Vec<Group>,
    pub(crate) record: Option<RecordFile>,
    /// Checkpoints that appeared after this are new.
    pub(crate) since: SystemTime,
    pub(crate) stop: StopRequested,
    pub(crate) early: EarlyStart,
}

/// Whether the programs of a gang were started before it had devices, and know them since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyStart {
    No,
    Told,
    PerhapsUntold,
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
    shim: ShimWatch,
    /// Requests for it that came to nothing, because the launcher died.
    lost_requests: u32,
    holdings: Holdings,
    startup: Startup,
    /// Of one that was started before it had devices.
    early_use: Option<EarlyUse>,
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
    disk: DiskUse,
    seen_inputs: SeenInputs,
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
            Err(failure) => gang.fail_start(failure, context),
        }
        Ok(gang)
    }

    /// Adopts a gang whose supervisor died, in its present state.
    pub(crate) fn adopt(spec: GangSpec, gang: AbandonedGang, context: &mut Context) -> Self {
        let AbandonedGang { processes, shim, cgroups, record, since, stop, early } = gang;
        let mut gang = Self::new(spec, processes, Holdings::adopted(cgroups, record), context);
        gang.reporting.catch_up(since);
        // Its start is over.
        gang.seen_inputs = SeenInputs::None;
        gang.shim.watch(shim, gang.spec.lease, &context.poller);
        if stop == StopRequested::Yes {
            // The stop is requested again: the supervisor may have died before it was.
            gang.verdict.stop_requested();
            gang.is_notified = gang.spec.notice_file().exists();
        }
        context.emit(Event::StageStarted { lease: gang.spec.lease });
        match early {
            EarlyStart::No => {}
            // Its cores were chosen anew.
            EarlyStart::Told => gang.pin(),
            EarlyStart::PerhapsUntold => gang.open_to_devices(context),
        }
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
        let early = spec.devices == Devices::Awaited;
        let has_logs = spec.launch.log == LogRule::EachRank;
        Self {
            logs: has_logs.then(|| LogRotation::begin(context.clock.now())),
            disk: DiskUse::begin(&spec, context.clock.now()),
            seen_inputs: SeenInputs::begin(&spec, context.clock.now()),
            spec,
            processes: Processes::new(processes),
            shim: ShimWatch::new(),
            lost_requests: 0,
            holdings,
            early_use: early.then(|| EarlyUse::begin(context.clock.now())),
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
            Source::Shim(_) => self.hear_shim(context),
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
            self.reporting.deadline().filter(|_| !self.awaits_devices()),
            self.logs.as_ref().map(|logs| logs.check_at),
            Some(self.disk.deadline()),
            self.seen_inputs.deadline(),
            self.startup.deadline(),
            self.look_at(),
            self.processes.deadline(),
            self.shim.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Does what is due, and ends the gang when no process is left.
    pub(crate) fn advance(&mut self, context: &mut Context) -> GangStatus {
        let now = context.clock.now();
        if self.startup.is_due(now) {
            self.check_startup(now, context);
        }
        self.shim.kill_if_due(now);
        self.seen_inputs.look(now, &self.spec, &self.processes);
        for index in 0..self.processes.len() {
            if self.processes.get(index).read_record_at.is_some_and(|at| at <= now) {
                self.process_ended(index, now, context);
            }
        }
        match self.awaits_devices() {
            true => self.end_if_it_works(now, context),
            false => self.report(now, context),
        }
        if let Some(logs) = self.logs.as_mut().filter(|logs| logs.check_at <= now) {
            let spec = &self.spec;
            logs.check(now, (0..spec.world()).map(|rank| spec.log_file(rank)));
        }
        self.end_if_too_large(now, context);
        if let Some(escalation) = self.shutdown.due(now) {
            self.escalate(escalation, context);
        }
        if self.processes.is_any_running() {
            return GangStatus::Running;
        }
        let (cgroups, how) = (&self.holdings.cgroups, (self.shim.others, &self.shutdown));
        let status = self.survivors.kill(&self.spec, &mut self.processes, cgroups, how, context);
        match status {
            GangStatus::Ended if self.awaits_devices() => self.end_unused(context),
            GangStatus::Ended => self.end(context),
            GangStatus::Running => {}
        }
        status
    }

    /// Reads what its programs report, and sees whether they hang.
    fn report(&mut self, now: Time, context: &mut Context) {
        self.reporting.read_if_due(now, &self.spec, &self.processes, context);
        self.reporting.emit_stall(now, &self.spec, context);
        self.end_if_hung(now, context);
    }

    pub(crate) fn kill(&mut self, context: &Context) {
        self.verdict.stop_requested();
        self.shutdown.kill();
        self.escalate(Escalation::Kill, context);
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
            self.learn_ids();
            self.processes.notify(&self.spec, signal);
        }
    }

    /// A gang that hangs is ended and can start again. It gets no time to save: it does not.
    fn end_if_hung(&mut self, now: Time, context: &Context) {
        if !matches!(self.shutdown, Shutdown::Running) || !self.verdict.is_open() {
            return;
        }
        let Some(silent) = self.reporting.hung_for(now, &self.spec) else { return };
        let kept = stacks::keep(&self.spec, &self.processes, &self.holdings.cgroups);
        self.verdict.stalled(silent, kept.as_deref());
        self.end_others(now, context);
    }

    /// A gang whose files take up too much space is ended. It gets no time to save: that takes
    /// more.
    fn end_if_too_large(&mut self, now: Time, context: &Context) {
        let exceeded = self.disk.look(now, &self.processes);
        let Some((used, limit)) = exceeded.filter(|_| self.verdict.is_open()) else { return };
        self.verdict.took_too_much_space(used, limit);
        self.end_others(now, context);
    }

    fn end_others(&mut self, now: Time, context: &Context) {
        if let Some(escalation) = self.shutdown.fail(now) {
            self.escalate(escalation, context);
        }
    }

    /// What its processes have noted.
    fn slots(&self) -> Slots {
        self.holdings.record.as_ref().map(RecordFile::slots).unwrap_or_default()
    }

    /// Learns the ids that its processes noted since; gives how many.
    fn learn_ids(&mut self) -> usize {
        let slots = self.slots();
        self.shim.noted(slots.shim);
        self.processes.learn(&slots)
    }

    /// Ids that its ranks noted.
    pub(crate) fn noted_ranks(&mut self) -> impl Iterator<Item = i32> + '_ {
        self.learn_ids();
        self.processes.iter().filter_map(|process| process.pid)
    }

    /// The process of a rank may have ended, which no shim of this engine tells.
    fn process_ended(&mut self, index: usize, now: Time, context: &Context) {
        let slots = self.slots();
        let process = self.processes.get_mut(index);
        if process.exit.is_some() || process.is_told_by_shim() {
            return;
        }
        let Some(exit) = process.observe_exit(now, &slots, &context.poller) else { return };
        let (rank, pid) = (process.rank, process.pid.unwrap_or_default());
        self.exited(rank, pid, exit, context);
    }

    /// A rank ended. Its id is not reused until the whole gang is gone, as far as its shim lives.
    fn exited(&mut self, rank: u32, pid: i32, exit: Exit, context: &Context) {
        if self.is_notified && exit == Exit::Signal(notice::signal(&self.spec)) {
            self.forward_notice(pid, context);
        }
        match self.verdict.exited(rank, exit) {
            Consequence::None => {}
            Consequence::LetOthersSave => {
                let checkpoint = self.spec.launch.checkpoint.as_ref();
                let grace = checkpoint.map_or(CheckpointSpec::GRACE_DEFAULT, |spec| spec.grace);
                self.shutdown.allow_save(context.clock.now(), grace, Escalation::Terminate);
            }
            Consequence::EndOthers => self.end_others(context.clock.now(), context),
        }
    }

    /// A shell that runs the program as a child dies of the notice without forwarding it.
    fn forward_notice(&mut self, group: i32, context: &Context) {
        if matches!(self.shutdown, Shutdown::Saving { .. }) {
            let (signal, lease) = (notice::signal(&self.spec), self.spec.lease);
            self.processes.notify_orphans(group, signal, lease, &context.poller);
        }
    }

    fn escalate(&mut self, escalation: Escalation, context: &Context) {
        self.learn_ids();
        if escalation == Escalation::Kill {
            self.shim.expect_ends(context.clock.now());
        }
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
        let inputs = self.seen_inputs.take();
        // Who fails may not have come to its inputs.
        let inputs = if self.verdict.culprit().is_none() { inputs } else { Vec::new() };
        let needs = MeasuredNeeds { demand: self.disk.demand(), inputs };
        self.reporting.finish(&self.spec, &self.processes, (prospect, needs), context);
        if self.reporting.is_done() {
            self.verdict.done();
        }
        let outcome = self.outcome(context);
        let cleanup = self.release(context);
        context.emit_end(self.spec.lease, outcome, cleanup);
    }

    /// Gives back what it holds; what is left to remove.
    fn release(&mut self, context: &mut Context) -> Cleanup {
        context.poller.remove(self.output.take());
        let is_told = self.startup.has_begun() && self.processes.iter().all(Process::is_zombie);
        let told = if is_told { EndsTold::All } else { EndsTold::NotAll };
        let shim = self.shim.release(told, &context.poller);
        self.holdings.put_back_cgroups(context);
        let reported = if self.reporting.has_read() { Files::More } else { Files::Record };
        self.holdings.cleanup(&self.spec, reported, shim)
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
