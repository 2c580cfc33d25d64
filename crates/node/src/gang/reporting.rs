//! When a gang's files are read, and what of them is emitted as events.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use het_core::{Checkpoint, Event, MeasuredNeeds, Millis, Progress, StallRule, Time};
use nix::sys::inotify::WatchDescriptor;

use super::processes::Processes;
use super::report::{Report, Watched};
use crate::checkpoint::Orderly;
use crate::context::Context;
use crate::launch::GangSpec;
use crate::poller::{Source, Trigger};
use crate::progress::{SilenceDetector, StallDetector};

/// Least time between two reads of a gang's files: at most five reports a second.
const REPORT_EVERY: Millis = Millis(200);
/// Least time between two measurements of processor time, each a walk over the process tree.
const BUSY_EVERY: Millis = Millis(1_000);

/// How long a gang runs before its directories are looked into for checkpoints that are not
/// declared: many programs are over by then, and a look may cost as much as a hundred starts.
const SEARCH_AFTER: Millis = Millis(3_000);

/// What a gang that ended may go on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prospect {
    /// Another attempt, from its newest checkpoint.
    Resume,
    Nothing,
}

/// Whether a gang completed a checkpoint that is newer than the one it began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Saved {
    Newer,
    Nothing,
}

#[derive(Debug)]
pub(super) struct Reporting {
    report: Report,
    /// The newest step that is safe in a checkpoint; what the gang began with at first.
    saved: Option<u64>,
    saves: Saved,
    /// When the search begins, unless it has.
    search_at: Option<Time>,
    /// When the gang began.
    since: SystemTime,
    /// Files changed since they were read.
    is_unread: bool,
    reported_at: Option<Time>,
    stall: StallDetector,
    silence: SilenceDetector,
    /// Processor time when it was last measured.
    busy: Millis,
    busy_at: Time,
}

/// When a file was last written, by a clock that says both as the present.
fn written_at(path: &Path, (now, system): (Time, SystemTime)) -> Option<Time> {
    let written = fs::symlink_metadata(path).and_then(|file| file.modified()).ok()?;
    let age = system.duration_since(written).unwrap_or_default();
    Some(Time(now.0.saturating_sub(age.as_millis() as u64)))
}

impl Reporting {
    pub(super) fn new(spec: &GangSpec, context: &mut Context) -> Self {
        let watched = if context.progress_watch.is_some() { Watched::Yes } else { Watched::No };
        let cwd = spec.launch.cwd.clone().into();
        let report = Report::new(spec.progress_file(), spec.checkpoint_dir(), cwd, watched);
        if let Some(watch) = &mut context.directory_watch {
            // From the start on: who works beside it learns that what appears may be of either.
            watch.enter(spec.lease, spec.search_roots().all());
        }
        if let Some(fd) = report.fd() {
            // Without it checkpoints are found when something else is read, or at the end.
            let _ = context.poller.add(fd, Source::Checkpoints(spec.lease), Trigger::OneShot);
        }
        Self {
            report,
            saved: spec.resume.as_ref().map(|checkpoint| checkpoint.step),
            saves: Saved::Nothing,
            search_at: Some(context.clock.now() + SEARCH_AFTER),
            since: SystemTime::now(),
            // The message that nothing is watched is emitted at once.
            is_unread: watched == Watched::No,
            reported_at: None,
            stall: StallDetector::default(),
            silence: SilenceDetector::new(spec.launch.stall, context.clock.now()),
            busy: Millis::ZERO,
            busy_at: Time::ZERO,
        }
    }

    /// Finds what appeared after this time, while nobody watched.
    pub(super) fn catch_up(&mut self, since: SystemTime) {
        self.report.catch_up(since);
        self.since = since;
        self.is_unread = true;
    }

    /// Its gang has devices from now on: what was before says nothing about how it works.
    pub(super) fn begin(&mut self, now: Time, rule: StallRule) {
        self.search_at = Some(now + SEARCH_AFTER);
        self.silence = SilenceDetector::new(rule, now);
    }

    pub(super) fn files_changed(&mut self) {
        self.is_unread = true;
    }

    /// These directories may have changed in which it is looked for checkpoints; none for all.
    pub(super) fn directories_changed(&mut self, which: Option<&BTreeSet<WatchDescriptor>>) {
        self.report.directories_changed(which);
        self.is_unread = true;
    }

    /// Whether there is a newer checkpoint than the one that the gang began with.
    pub(super) fn saved(&self) -> Saved {
        self.saves
    }

    /// A progress file existed.
    pub(super) fn has_read(&self) -> bool {
        self.report.has_read()
    }

    /// The program reported that its work is complete.
    pub(super) fn is_done(&self) -> bool {
        self.report.is_done()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let report = self.is_unread.then(|| self.report_due());
        let stalls = [self.stall.deadline(), self.silence.deadline()];
        [report, self.search_at].into_iter().chain(stalls).flatten().min()
    }

    /// Reads the files if that is due, and emits what is new.
    pub(super) fn read_if_due(
        &mut self,
        now: Time,
        spec: &GangSpec,
        processes: &Processes,
        context: &mut Context,
    ) {
        if self.search_at.is_some_and(|at| at <= now) {
            self.begin_search(spec, context);
            self.is_unread = true;
        }
        if !self.is_unread || self.report_due() > now {
            return;
        }
        self.is_unread = false;
        // Before reading, so that later changes are reported again.
        if let Some(fd) = self.report.fd() {
            context.poller.rearm(fd, Source::Checkpoints(spec.lease));
        }
        let (progress, checkpoints) = self.report.read(context.directory_watch.as_mut());
        let progress = progress.map(|progress| {
            let busy = self.current_busy(now, spec, processes);
            Progress { busy, ..progress }
        });
        self.emit(progress, checkpoints, now, spec, context);
    }

    /// Emits a message if the program has stalled.
    pub(super) fn emit_stall(&mut self, now: Time, spec: &GangSpec, context: &mut Context) {
        if let Some(message) = self.stall.due(now) {
            let progress = Progress { message: Some(message), ..Progress::default() };
            context.emit(Event::Progressed { lease: spec.lease, progress });
        }
    }

    /// How long its programs have given no sign of life, where that is too long.
    pub(super) fn hung_for(&mut self, now: Time, spec: &GangSpec) -> Option<Millis> {
        let clock = (now, SystemTime::now());
        self.silence.hung_for(now, || {
            let logs = (0..spec.world()).map(|rank| spec.log_file(rank));
            logs.filter_map(|log| written_at(&log, clock)).max()
        })
    }

    fn begin_search(&mut self, spec: &GangSpec, context: &mut Context) {
        self.search_at = None;
        let what = (spec.search_roots(), self.since);
        let watched = if context.directory_watch.is_some() { Watched::Yes } else { Watched::No };
        self.report.search(spec.lease, what, watched);
    }

    /// Emits everything that is left to report, once all processes have ended.
    pub(super) fn finish(
        &mut self,
        spec: &GangSpec,
        processes: &Processes,
        (prospect, needs): (Prospect, MeasuredNeeds),
        context: &mut Context,
    ) {
        if prospect == Prospect::Resume && self.search_at.is_some() {
            self.begin_search(spec, context);
        }
        let orderly = if processes.ended_orderly() { Orderly::Yes } else { Orderly::No };
        let (progress, checkpoints) = self.report.finish(orderly, context.directory_watch.as_mut());
        if let Some(watch) = &mut context.directory_watch {
            watch.leave(spec.lease);
        }
        self.measure_busy(spec, processes);
        let needs = (needs != MeasuredNeeds::default()).then(|| Box::new(needs));
        let busy_only = spec.is_cpu_only() && processes.len() > 0;
        let is_measured = busy_only || needs.is_some();
        let progress = progress.or_else(|| is_measured.then(Default::default));
        let now = context.clock.now();
        self.busy_at = now;
        let busy = spec.is_cpu_only().then_some(self.busy);
        let progress = progress.map(|progress| Progress { busy, needs, ..progress });
        self.emit(progress, checkpoints, now, spec, context);
    }

    fn report_due(&self) -> Time {
        self.reported_at.map_or(Time::ZERO, |at| at + REPORT_EVERY)
    }

    fn emit(
        &mut self,
        progress: Option<Progress>,
        checkpoints: Vec<Checkpoint>,
        now: Time,
        spec: &GangSpec,
        context: &mut Context,
    ) {
        self.reported_at = Some(now);
        let lease = spec.lease;
        if let Some(mut progress) = progress {
            match progress.step {
                Some(_) => self.silence.reported(now),
                None => self.silence.gave_sign(now),
            }
            let resumed = progress.step.and_then(|step| self.stall.step(now, step));
            progress.message = progress.message.or(resumed);
            context.emit(Event::Progressed { lease, progress });
        }
        for checkpoint in checkpoints {
            if self.saved.is_none_or(|step| checkpoint.step > step) {
                self.saved = Some(checkpoint.step);
                self.saves = Saved::Newer;
            }
            self.silence.gave_sign(now);
            context.emit(Event::Checkpointed { lease, checkpoint });
        }
    }

    /// Processor time so far; none where accelerators do the work.
    fn current_busy(
        &mut self,
        now: Time,
        spec: &GangSpec,
        processes: &Processes,
    ) -> Option<Millis> {
        if !spec.is_cpu_only() {
            return None;
        }
        if now >= self.busy_at + BUSY_EVERY {
            self.busy_at = now;
            self.measure_busy(spec, processes);
        }
        Some(self.busy)
    }

    fn measure_busy(&mut self, spec: &GangSpec, processes: &Processes) {
        // The time of a daemon is lost when it ends: the figure must not decrease.
        self.busy = self.busy.max(processes.cpu_time(spec));
    }
}
