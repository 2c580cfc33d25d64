//! One gang's supervisor: a thread that starts its processes, waits for what happens to them, and
//! reports. It blocks in one poll(2) over wake-ups, exits and file changes, until the next known
//! deadline; it never wakes up just to look.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::time::SystemTime;

use het_core::{Checkpoint, CheckpointSpec, Event, Failure, Millis, Outcome, Progress, Time};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::cores::Picked;
use crate::ending::{Ending, Push};
use crate::environment::NOTICE;
use crate::exit::{Consequence, Exit, Verdict};
use crate::listener::Ear;
use crate::order::Order;
use crate::procfs;
use crate::record::{Identity, Record, boot_ticks, write_atomically};
use crate::report::{Orderly, Report, Sight};
use crate::spawn::{self, Cradle, Kin, Process};
use crate::sweep::{kill_all, signal_groups, sweep};
use crate::sys::{look_at_end, pidfd_open};
use crate::wires::{Command, Wires};

/// Least time between two reads of a gang's files: at most five reports a second.
const REPORT_EVERY: Millis = Millis(200);
/// Least time between two looks at processor time, which costs a walk over the process tree.
const BUSY_EVERY: Millis = Millis(1_000);

#[derive(Serialize)]
struct Notice {
    /// Since the Unix epoch.
    deadline_ms: u64,
    grace_ms: u64,
    reason: &'static str,
}

/// Runs a gang from its start to its end.
pub(crate) fn run(order: Order, wires: Wires) {
    if let Err(failure) = spawn::prepare(&order) {
        wires.end(&order, Outcome::Failed(failure), Vec::new());
        return;
    }
    let mut gang = Gang::new(order, wires, Vec::new());
    match gang.start() {
        Ok(()) => {
            gang.wires.send(Event::StageStarted { lease: gang.order.lease });
            gang.live();
        }
        Err(failure) => gang.end(Some(failure)),
    }
}

/// Takes up a gang that a supervisor left which died, from where it stands.
///
/// Checkpoints that appeared after `since` are news.
pub(crate) fn take_up(
    order: Order,
    wires: Wires,
    processes: Vec<Process>,
    since: SystemTime,
    asked: StopAsked,
) {
    let mut gang = Gang::new(order, wires, processes);
    gang.report.catch_up(since);
    if asked == StopAsked::Yes {
        // What was told to stop is told again: whoever told it may have died before it did.
        gang.verdict.stop_asked();
        gang.noticed = gang.order.notice().exists();
    }
    gang.wires.send(Event::StageStarted { lease: gang.order.lease });
    let gone = (0..gang.processes.len()).filter(|&index| gang.processes[index].pidfd.is_none());
    for index in gone.collect::<Vec<_>>() {
        gang.exited(index);
    }
    gang.live();
}

/// Whether a stop was planned for a gang before its supervisor died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopAsked {
    Yes,
    No,
}

impl Gang {
    fn new(order: Order, wires: Wires, processes: Vec<Process>) -> Self {
        let cwd = order.launch.cwd.clone().into();
        let sight = if wires.ear.is_some() { Sight::Seeing } else { Sight::Blind };
        let report = Report::begin(order.progress(), order.checkpoint_dir(), cwd, sight);
        Self {
            order,
            wires,
            report,
            processes,
            orphans: Vec::new(),
            verdict: Verdict::default(),
            ending: Ending::default(),
            noticed: false,
            reported_at: None,
            busy: Millis::ZERO,
            busy_at: Time::ZERO,
        }
    }
}

struct Gang {
    order: Order,
    wires: Wires,
    report: Report,
    processes: Vec<Process>,
    /// What a shell that died of the notice had started: it gets the time that the shell had.
    orphans: Vec<OwnedFd>,
    verdict: Verdict,
    ending: Ending,
    /// The notice was given.
    noticed: bool,
    reported_at: Option<Time>,
    busy: Millis,
    busy_at: Time,
}

/// What poll(2) found.
struct Ready {
    commands: bool,
    files: bool,
    /// Indices of processes, and of orphans, that ended.
    exits: Vec<usize>,
    orphans: Vec<usize>,
}

impl Gang {
    fn live(mut self) {
        let mut unread = true;
        while self.is_alive() {
            let ready = self.wait(unread);
            unread |= ready.files;
            if ready.commands && self.obey() == Supervision::Over {
                return;
            }
            for index in ready.exits {
                self.exited(index);
            }
            for index in ready.orphans.into_iter().rev() {
                self.orphans.swap_remove(index);
            }
            let now = self.wires.clock.now();
            if unread && self.report_due() <= now {
                unread = false;
                // What is written from here on is heard anew.
                self.has_heard();
                let (progress, checkpoints) = self.report.read();
                self.tell(progress, checkpoints, now);
            }
            if let Some(push) = self.ending.due(now) {
                self.push(push);
            }
        }
        self.end(None);
    }

    fn is_alive(&self) -> bool {
        let live = self.processes.iter().any(|process| process.exit.is_none());
        live || !self.orphans.is_empty()
    }

    /// Records the lease before there is anybody, then starts every rank, in order.
    fn start(&mut self) -> Result<(), Failure> {
        let order = &self.order;
        let record = Record {
            lease: order.lease.0,
            job: order.launch.job.to_string(),
            stage: order.launch.stage.to_string(),
            boot_id: procfs::boot_id(),
            since_ticks: boot_ticks(),
            supervisor: Identity::own(),
            port: order.port,
            cores: order.picked.iter().map(Picked::record).collect(),
        };
        let cradle = Cradle::open(order, &record)?;
        for rank in 0..self.order.world() {
            let process = spawn::spawn(&self.order, &cradle, rank)?;
            self.wires.leaders.insert(process.pid);
            self.processes.push(process);
        }
        Ok(())
    }

    /// Blocks until something happens or is due. Files that wait for their turn to be read are not
    /// listened to: a program that writes all the time costs no more than one that does not.
    fn wait(&self, unread: bool) -> Ready {
        let report_due = unread.then(|| self.report_due());
        let due = [self.ending.deadline(), report_due].into_iter().flatten().min();
        let timeout = due.map_or(PollTimeout::NONE, |at| {
            PollTimeout::try_from(at.since(self.wires.clock.now()).0).unwrap_or(PollTimeout::MAX)
        });
        let live: Vec<usize> =
            (0..self.processes.len()).filter(|&i| self.processes[i].exit.is_none()).collect();
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(self.wires.waker.as_fd())];
        let pidfds = live.iter().filter_map(|&index| self.processes[index].pidfd.as_ref());
        fds.extend(pidfds.map(|fd| readable(fd.as_fd())));
        fds.extend(self.orphans.iter().map(|fd| readable(fd.as_fd())));
        let files = if unread { None } else { self.report.fd() };
        fds.extend(files.map(readable));
        // An interrupted wait is a wait that found nothing.
        let found = poll(&mut fds, timeout).is_ok_and(|found| found > 0);
        let is_ready = |index: usize| found && fds[index].any().unwrap_or(false);
        let orphans = 1 + live.len();
        let after = orphans + self.orphans.len();
        Ready {
            commands: is_ready(0),
            files: !unread && (self.has_heard() || files.is_some() && is_ready(after)),
            exits: (1..orphans).filter(|&fd| is_ready(fd)).map(|fd| live[fd - 1]).collect(),
            orphans: (orphans..after).filter(|&fd| is_ready(fd)).map(|fd| fd - orphans).collect(),
        }
    }

    /// Whether the progress file changed since this was asked last.
    fn has_heard(&self) -> bool {
        self.wires.ear.as_ref().is_some_and(Ear::take)
    }

    fn report_due(&self) -> Time {
        self.reported_at.map_or(Time::ZERO, |at| at + REPORT_EVERY)
    }

    fn obey(&mut self) -> Supervision {
        // Only resets the counter; it was readable.
        let _ = self.wires.waker.read();
        while let Ok(command) = self.wires.commands.try_recv() {
            match command {
                Command::Stop { reason, grace } => self.stop(reason, grace),
                Command::Kill => {
                    self.verdict.stop_asked();
                    self.ending.kill();
                    self.push(Push::Kill);
                }
                Command::Detach => return Supervision::Over,
            }
        }
        Supervision::GoesOn
    }

    /// Gives the notice: the file first, so that a signal handler finds it.
    fn stop(&mut self, reason: &'static str, grace: Millis) {
        self.verdict.stop_asked();
        let now = self.wires.clock.now();
        let signal = notice_signal(&self.order);
        let next = if signal == Signal::SIGTERM { Push::Kill } else { Push::Terminate };
        self.ending.let_save(now, grace, next);
        let Some(deadline) = self.ending.deadline() else { return };
        let notice = Notice { deadline_ms: deadline.0, grace_ms: grace.0, reason };
        let text = serde_json::to_string(&notice).expect("text and numbers always become JSON");
        // The signal says the same, if less: a full disk must not keep it back.
        let _ = write_atomically(&self.order.notice(), &text);
        if !std::mem::replace(&mut self.noticed, true) {
            for process in self.processes.iter().filter(|process| process.exit.is_none()) {
                // One that has just ended needs no notice.
                let _ = kill(Pid::from_raw(process.pid), signal);
            }
        }
    }

    /// A process ended. It stays a zombie until the whole gang is gone, so that its id, which is
    /// also its group's, cannot become anybody else's.
    fn exited(&mut self, index: usize) {
        let process = &self.processes[index];
        let ended = match process.kin {
            Kin::Child => look_at_end(process.pid).unwrap_or(Some((Exit::Unknown, Millis(0)))),
            Kin::Orphan => Some((self.order.orphan_exit(process.pid), Millis(0))),
        };
        let Some((exit, cpu)) = ended else { return };
        let process = &mut self.processes[index];
        process.exit = Some(exit);
        process.cpu = cpu;
        let rank = process.rank;
        let pid = process.pid;
        if self.noticed && exit == Exit::Signal(notice_signal(&self.order)) {
            self.pass_notice_on(pid);
        }
        let now = self.wires.clock.now();
        match self.verdict.exited(rank, exit) {
            Consequence::None => {}
            Consequence::LetOthersSave => {
                let spec = self.order.launch.checkpoint.as_ref();
                let grace = spec.map_or(CheckpointSpec::GRACE_DEFAULT, |s| s.grace);
                self.ending.let_save(now, grace, Push::Terminate);
            }
            Consequence::EndOthers => {
                if let Some(push) = self.ending.fail(now) {
                    self.push(push);
                }
            }
        }
    }

    /// A shell that runs the program as a child does not pass the notice on, it dies of it.
    fn pass_notice_on(&mut self, group: i32) {
        if !matches!(self.ending, Ending::Saving { .. }) {
            return;
        }
        for pid in procfs::orphans(group) {
            // Opened first: the id cannot become another process's between the two.
            if let Ok(fd) = pidfd_open(pid) {
                let _ = kill(Pid::from_raw(pid), notice_signal(&self.order));
                self.orphans.push(fd);
            }
        }
    }

    fn push(&self, push: Push) {
        match push {
            Push::Terminate => {
                signal_groups(&self.groups(), Signal::SIGTERM);
            }
            Push::Kill => {
                kill_all(&self.groups(), &self.mark());
            }
        }
    }

    /// The groups that are this gang's for sure: the id of an orphan that ended, which its keeper
    /// has collected, may be another's now.
    fn groups(&self) -> BTreeSet<i32> {
        let known = |process: &&Process| process.kin == Kin::Child || process.exit.is_none();
        self.processes.iter().filter(known).map(|process| process.pid).collect()
    }

    /// What only processes of this lease have in their environment.
    fn mark(&self) -> String {
        format!("{NOTICE}={}", self.order.notice().display())
    }

    fn tell(&mut self, progress: Option<Progress>, checkpoints: Vec<Checkpoint>, now: Time) {
        self.reported_at = Some(now);
        let lease = self.order.lease;
        if let Some(mut progress) = progress {
            progress.busy = self.busy(now);
            self.wires.send(Event::Progressed { lease, progress });
        }
        for checkpoint in checkpoints {
            self.wires.send(Event::Checkpointed { lease, checkpoint });
        }
    }

    /// Processor time so far; nothing where accelerators do the work.
    fn busy(&mut self, now: Time) -> Option<Millis> {
        if !self.order.is_cpu_only() {
            return None;
        }
        if now >= self.busy_at + BUSY_EVERY {
            self.busy_at = now;
            self.measure_busy();
        }
        Some(self.busy)
    }

    fn measure_busy(&mut self) {
        let times = self.processes.iter().map(|process| match process.exit {
            Some(_) => process.cpu,
            None => procfs::ticks_to_millis(procfs::tree_cpu_ticks(process.pid)),
        });
        // What a daemon used is lost with it: the figure must not shrink.
        self.busy = self.busy.max(times.sum());
    }

    /// Makes sure that nothing of the gang is left, then says all there is still to say.
    fn end(mut self, not_started: Option<Failure>) {
        // Not limited in time: the devices are not free before the last process is gone.
        let ended = |process: &Process| process.kin == Kin::Child && process.exit.is_some();
        let leaders = &self.wires.leaders;
        if !self.processes.iter().all(ended)
            || leaders.may_have_left_somebody(&self.groups(), &self.mark())
        {
            sweep(&self.groups(), &self.mark(), None);
        }
        self.tell_last();
        let outcome = match not_started {
            Some(failure) => Outcome::Failed(failure),
            None => {
                let culprit = self.verdict.culprit().map(|rank| self.order.log(rank));
                let log = culprit.map(|path| spawn::log_tail(&path)).unwrap_or_default();
                self.verdict.outcome(&log)
            }
        };
        let children = self.processes.iter().filter(|process| process.kin == Kin::Child);
        let children = children.map(|process| process.pid).collect();
        self.wires.end(&self.order, outcome, children);
    }

    fn tell_last(&mut self) {
        let orderly = self.processes.iter().all(|p| p.exit.is_some_and(Exit::is_orderly));
        let orderly = if orderly { Orderly::Yes } else { Orderly::No };
        let (progress, checkpoints) = self.report.finish(orderly);
        if self.report.is_done() {
            self.verdict.done();
        }
        self.measure_busy();
        let busy_only = self.order.is_cpu_only() && !self.processes.is_empty();
        let progress = progress.or_else(|| busy_only.then(Default::default));
        let now = self.wires.clock.now();
        self.busy_at = now;
        self.tell(progress, checkpoints, now);
    }
}

/// Whether the thread still has something to do.
#[derive(PartialEq, Eq)]
enum Supervision {
    GoesOn,
    Over,
}

/// The signal of the notice: `SIGUSR1`, `USR1`, `usr1`; SIGTERM where none was named.
fn notice_signal(order: &Order) -> Signal {
    let Some(spec) = &order.launch.checkpoint else { return Signal::SIGTERM };
    let word = spec.notice.as_str().to_uppercase();
    let name = word.strip_prefix("SIG").unwrap_or(&word);
    Signal::from_str(&format!("SIG{name}")).unwrap_or(Signal::SIGTERM)
}
