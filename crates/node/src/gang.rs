//! One gang's supervisor: it starts the processes, hears what happens to them, and reports. It
//! never waits: what it waits for stands in the poller, and until when is its deadline.

pub(crate) mod report;
pub(crate) mod shutdown;
pub(crate) mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::str::FromStr;
use std::time::SystemTime;

use het_core::{
    Bytes, Checkpoint, CheckpointSpec, Event, Failure, LogRule, Millis, Outcome, OutputRule,
    Progress, Time,
};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpgid};
use serde::Serialize;

use crate::cgroup::Group;
use crate::context::{LastOf, Remains, Site};
use crate::gang::report::{Orderly, Report, Sight};
use crate::gang::shutdown::{Ending, Push};
use crate::gang::verdict::{Consequence, EXIT_CANNOT_RUN, Exit, MemoryRanOut, Verdict};
use crate::launch::container;
use crate::launch::environment::{self, RANK};
use crate::launch::spawn::{self, Kin, Process};
use crate::launch::spec::Order;
use crate::logs::rotation::Trim;
use crate::output::{self, OutputWatch};
use crate::poller::{Source, Until};
use crate::process::kill::{Marks, kill_all, signal_groups};
use crate::process::procfs;
use crate::process::sys::{look_at_end, pidfd_open};
use crate::progress::stall::Pace;
use crate::recovery::record::{self, Identity, Record, boot_ticks, write_atomically};
use crate::recovery::record_file::RecordFile;
use crate::resources::cores::Picked;

/// Least time between two reads of a gang's files: at most five reports a second.
const REPORT_EVERY: Millis = Millis(200);
/// Least time between two looks at processor time, which costs a walk over the process tree.
const BUSY_EVERY: Millis = Millis(1_000);
/// How often and how long the keeper is asked how an orphan ended.
const KEEPER_EVERY: Millis = Millis(5);
const KEEPER_LIMIT: Millis = Millis(1_000);
/// How often somebody is looked for whose end cannot be waited for.
const LOOK_EVERY: Millis = Millis(5);
/// Whether the programs have begun is looked at after this time, and then ever more seldom.
const STARTUP_FIRST: Millis = Millis(1);
/// After this time they count as begun, long as it is: their files come slowly, or the kernel does
/// not say.
const STARTUP_PATIENCE: Millis = Millis(5_000);

#[derive(Serialize)]
struct Notice {
    /// Since the Unix epoch.
    deadline_ms: u64,
    grace_ms: u64,
    reason: &'static str,
}

/// Whether a stop was planned for a gang before its supervisor died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopAsked {
    Yes,
    No,
}

/// What there is of a gang whose supervisor died.
pub(crate) struct Left {
    pub(crate) processes: Vec<Process>,
    pub(crate) cgroups: Vec<Group>,
    pub(crate) record_file: Option<RecordFile>,
    /// Checkpoints that appeared after this are news.
    pub(crate) since: SystemTime,
    pub(crate) asked: StopAsked,
}

/// What a gang has in the run directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    /// Nothing but its record, unless its programs have reported something.
    Record,
    More,
}

/// Whether a gang has told its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    GoesOn,
    Over,
}

/// The time between the start of a gang's processes and that of their programs.
#[derive(Debug)]
struct Startup {
    since: Time,
    look_at: Time,
}

impl Startup {
    fn since(now: Time) -> Self {
        Self { since: now, look_at: now + STARTUP_FIRST }
    }

    fn look_later(&mut self, now: Time) {
        self.look_at = now + STARTUP_FIRST.max(now.since(self.since));
    }
}

#[derive(Debug)]
pub(crate) struct Gang {
    order: Order,
    report: Report,
    processes: Vec<Process>,
    /// By rank; none where the machine lets us make none.
    cgroups: Vec<Group>,
    /// The file of its record, once it is written.
    record_file: Option<RecordFile>,
    files: Files,
    /// Whoever else has to be gone before the gang is: what a shell left that died of the notice,
    /// and what was killed at the end.
    others: BTreeMap<u16, OwnedFd>,
    /// What removes containers that killed runtimes left.
    remover: Option<Child>,
    verdict: Verdict,
    ending: Ending,
    pace: Pace,
    /// The kernel's count at the start; unknown for a gang that another supervisor started.
    memory_kills: Option<u64>,
    /// Somebody may be left whose end nobody tells of.
    look_again_at: Option<Time>,
    /// Until every program has begun.
    startup: Option<Startup>,
    /// Why not every rank began.
    not_started: Option<Failure>,
    /// The notice was given.
    noticed: bool,
    /// Its files changed since they were read.
    unread: bool,
    reported_at: Option<Time>,
    busy: Millis,
    busy_at: Time,
    /// Where logs are kept.
    trim: Option<Trim>,
    /// While others wait for its first output.
    output_watch: Option<OutputWatch>,
}

impl Gang {
    /// Starts a gang. One of which not every rank could be started ends by itself.
    ///
    /// # Errors
    /// When nothing was started.
    pub(crate) fn start(order: Order, site: &mut Site) -> Result<Self, Failure> {
        spawn::prepare(&order)?;
        let mut gang = Self::new(order, Vec::new(), site);
        gang.memory_kills = site.memory_kills();
        match gang.begin(site) {
            Ok(()) => gang.startup = Some(Startup::since(site.clock.now())),
            Err(failure) => gang.give_up(failure),
        }
        Ok(gang)
    }

    /// Takes up a gang that a supervisor left which died, from where it stands.
    pub(crate) fn take_up(order: Order, left: Left, site: &mut Site) -> Self {
        let Left { processes, cgroups, record_file, since, asked } = left;
        let mut gang = Self::new(order, processes, site);
        (gang.cgroups, gang.record_file, gang.files) = (cgroups, record_file, Files::More);
        gang.report.catch_up(since);
        gang.unread = true;
        if asked == StopAsked::Yes {
            // What was told to stop is told again: whoever told it may have died before it did.
            gang.verdict.stop_asked();
            gang.noticed = gang.order.notice().exists();
        }
        site.tell(Event::StageStarted { lease: gang.order.lease });
        let now = site.clock.now();
        for index in 0..gang.processes.len() {
            match gang.listen_to(index, site) {
                Ok(()) if gang.processes[index].pidfd.is_some() => {}
                _ => gang.exited(index, now, site),
            }
        }
        gang
    }

    fn new(order: Order, processes: Vec<Process>, site: &mut Site) -> Self {
        let cwd = order.launch.cwd.clone().into();
        let sight = if site.listener.is_some() { Sight::Seeing } else { Sight::Blind };
        let report = Report::begin(order.progress(), order.checkpoint_dir(), cwd, sight);
        if let Some(fd) = report.fd() {
            // Without it checkpoints are found when something else is read, or at the end.
            let _ = site.poller.listen(fd, Source::Saves(order.lease), Until::Heard);
        }
        let keeps_logs = order.launch.log == LogRule::EachRank;
        let output_watch = open_output_watch(&order, site);
        Self {
            trim: keeps_logs.then(|| Trim::begin(site.clock.now())),
            order,
            report,
            output_watch,
            processes,
            cgroups: Vec::new(),
            record_file: None,
            files: Files::Record,
            others: BTreeMap::new(),
            remover: None,
            verdict: Verdict::default(),
            ending: Ending::default(),
            pace: Pace::default(),
            memory_kills: None,
            look_again_at: None,
            startup: None,
            not_started: None,
            noticed: false,
            // That nobody tells of changes is told at once.
            unread: sight == Sight::Blind,
            reported_at: None,
            busy: Millis::ZERO,
            busy_at: Time::ZERO,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.order.port
    }

    pub(crate) fn picked(&self) -> &[Picked] {
        &self.order.picked
    }

    /// Something of it has something to say.
    pub(crate) fn found(&mut self, source: Source, site: &mut Site) {
        match source {
            Source::Rank(_, index) => self.exited(usize::from(index), site.clock.now(), site),
            Source::Other(_, index) => site.poller.stop(self.others.remove(&index)),
            Source::Saves(_) | Source::Progress => self.unread = true,
            Source::Output(_) => self.publish(site),
            Source::Inbox => {}
        }
    }

    /// When [`Self::go_on`] has something to do, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let report = self.unread.then(|| self.report_due());
        let keeper = self.processes.iter().filter_map(|process| process.ask_keeper_at);
        let logs = self.trim.as_ref().map(|trim| trim.look_at);
        let startup = self.startup.as_ref().map(|startup| startup.look_at);
        [self.ending.deadline(), self.pace.deadline(), self.look_again_at, report, logs, startup]
            .into_iter()
            .flatten()
            .chain(keeper)
            .min()
    }

    /// Does what is due, and ends when nobody is left.
    pub(crate) fn go_on(&mut self, site: &mut Site) -> Life {
        let now = site.clock.now();
        self.check_startup(now, site);
        for index in 0..self.processes.len() {
            if self.processes[index].ask_keeper_at.is_some_and(|at| at <= now) {
                self.exited(index, now, site);
            }
        }
        if self.unread && self.report_due() <= now {
            self.unread = false;
            // What is written from here on is heard anew.
            if let Some(fd) = self.report.fd() {
                site.poller.listen_again(fd, Source::Saves(self.order.lease));
            }
            let (progress, checkpoints) = self.report.read();
            self.tell(progress, checkpoints, now, site);
        }
        if let Some(trim) = self.trim.as_mut().filter(|trim| trim.look_at <= now) {
            let order = &self.order;
            trim.look(now, (0..order.world()).map(|rank| order.log(rank)));
        }
        if let Some(message) = self.pace.due(now) {
            let stalled = Progress { message: Some(message), ..Progress::default() };
            site.tell(Event::Progressed { lease: self.order.lease, progress: stalled });
        }
        if let Some(push) = self.ending.due(now) {
            self.push(push);
        }
        if self.is_alive() || self.kill_who_is_left(site) == Life::GoesOn {
            return Life::GoesOn;
        }
        self.end(site);
        Life::Over
    }

    fn is_alive(&self) -> bool {
        let live = self.processes.iter().any(|process| process.exit.is_none());
        live || !self.others.is_empty()
    }

    /// Records the lease before there is anybody, then starts every rank, in order.
    fn begin(&mut self, site: &mut Site) -> Result<(), Failure> {
        let record_file = self.write_record(site)?;
        let started = self.make_dir().and_then(|()| self.start_ranks(&record_file, site));
        self.record_file = Some(record_file);
        started
    }

    fn write_record(&mut self, site: &mut Site) -> Result<RecordFile, Failure> {
        let order = &self.order;
        let memory: Vec<Bytes> = order.placement.ranks.iter().map(|rank| rank.memory).collect();
        self.cgroups = site.hierarchy.take(&memory);
        let record = Record {
            lease: order.lease.0,
            job: order.launch.job.to_string(),
            stage: order.launch.stage.to_string(),
            boot_id: procfs::boot_id(),
            since_ticks: boot_ticks(),
            supervisor: Identity::own(),
            port: order.port,
            cores: order.picked.iter().map(Picked::record).collect(),
            cgroups: self.cgroups.iter().map(|group| group.dirs().to_vec()).collect(),
        };
        let record_file = record.write(&mut site.spares);
        record_file.map_err(|error| spawn::cannot(0, &order.lease_dir, &error))
    }

    /// Makes what its programs share, where they may need it.
    fn make_dir(&mut self) -> Result<(), Failure> {
        if !self.order.settles() {
            return Ok(());
        }
        self.files = Files::More;
        let dir = &self.order.lease_dir;
        make_anew(dir).map_err(|error| spawn::cannot(0, dir, &error))
    }

    fn start_ranks(&mut self, record_file: &RecordFile, site: &mut Site) -> Result<(), Failure> {
        for rank in 0..self.order.world() {
            let group = self.cgroups.get(rank as usize);
            let process = spawn::spawn(&self.order, site, record_file.note(rank), group, rank)?;
            site.leaders.insert(process.pid);
            self.processes.push(process);
            if let Err(errno) = self.listen_to(rank as usize, site) {
                self.end_unheard(rank as usize, site);
                let message = format!("its end cannot be waited for: {errno}");
                return Err(Failure { rank, exit_code: EXIT_CANNOT_RUN, message });
            }
        }
        Ok(())
    }

    /// Tells when all programs have begun.
    fn check_startup(&mut self, now: Time, site: &mut Site) {
        let Some(startup) = &mut self.startup else { return };
        let is_over = self.processes.iter().all(|process| process.exec_status.is_over());
        if !is_over && now.since(startup.since) < STARTUP_PATIENCE {
            return startup.look_later(now);
        }
        self.startup = None;
        if self.processes.iter().all(|process| process.exec_status.error().is_none()) {
            site.tell(Event::StageStarted { lease: self.order.lease });
        }
    }

    /// Not every rank begins: none goes on.
    fn give_up(&mut self, failure: Failure) {
        if self.not_started.is_none() {
            self.startup = None;
            self.not_started = Some(failure);
            self.kill();
        }
    }

    /// Ends a process whose end nobody would hear of.
    fn end_unheard(&mut self, index: usize, site: &Site) {
        let pid = Pid::from_raw(self.processes[index].pid);
        let _ = kill(pid, Signal::SIGKILL);
        // It stays a zombie, as all of a gang's do.
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        self.exited(index, site.clock.now(), site);
    }

    fn listen_to(&self, index: usize, site: &Site) -> Result<(), Errno> {
        let Some(fd) = &self.processes[index].pidfd else { return Ok(()) };
        let source = Source::Rank(self.order.lease, index as u16);
        site.poller.listen(fd.as_fd(), source, Until::Closed)
    }

    fn report_due(&self) -> Time {
        self.reported_at.map_or(Time::ZERO, |at| at + REPORT_EVERY)
    }

    pub(crate) fn kill(&mut self) {
        self.verdict.stop_asked();
        self.ending.kill();
        self.push(Push::Kill);
    }

    /// Gives the notice: the file first, so that a signal handler finds it.
    pub(crate) fn stop(&mut self, reason: &'static str, grace: Millis, now: Time) {
        self.verdict.stop_asked();
        let signal = notice_signal(&self.order);
        let next = if signal == Signal::SIGTERM { Push::Kill } else { Push::Terminate };
        self.ending.let_save(now, grace, next);
        let Some(deadline) = self.ending.deadline() else { return };
        let notice = Notice { deadline_ms: deadline.0, grace_ms: grace.0, reason };
        let text = serde_json::to_string(&notice).expect("text and numbers always become JSON");
        // The signal says the same, if less: a full disk must not keep it back.
        self.files = Files::More;
        let _ = fs::create_dir(&self.order.lease_dir);
        let _ = write_atomically(&self.order.notice(), &text);
        if !std::mem::replace(&mut self.noticed, true) {
            for pid in self.to_be_told() {
                // One that has just ended needs no notice.
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
    }

    /// Every rank's program. A container runtime in its first moments ends of a signal instead of
    /// passing it on, so the programs in containers are told themselves; a rank whose program has
    /// not begun has only its runtime to tell.
    fn to_be_told(&self) -> Vec<i32> {
        let inside = self.inside();
        let alive = self.processes.iter().filter(|process| process.pidfd.is_some());
        let told = alive.flat_map(|process| match inside.get(&process.rank) {
            Some(programs) => programs.clone(),
            None => vec![process.pid],
        });
        told.collect()
    }

    /// What runs in containers and descends from no process of this gang outside, by rank.
    fn inside(&self) -> BTreeMap<u32, Vec<i32>> {
        let mut inside: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
        if self.order.launch.container.is_none() {
            return inside;
        }
        let runtimes: BTreeSet<i32> = self.processes.iter().map(|process| process.pid).collect();
        for pid in procfs::topmost(&self.marks().mark) {
            let rank = procfs::variable(pid, RANK).and_then(|rank| rank.parse().ok());
            if let Some(rank) = rank.filter(|_| !runtimes.contains(&pid)) {
                inside.entry(rank).or_default().push(pid);
            }
        }
        inside
    }

    /// A process ended. It stays a zombie until the whole gang is gone, so that its id, which is
    /// also its group's, cannot become anybody else's.
    fn exited(&mut self, index: usize, now: Time, site: &Site) {
        let process = &mut self.processes[index];
        let ended = match process.kin {
            Kin::Child => look_at_end(process.pid).unwrap_or(Some((Exit::Unknown, Millis(0)))),
            Kin::Orphan => {
                site.poller.stop(process.pidfd.take());
                let give_up_at = *process.give_up_at.get_or_insert(now + KEEPER_LIMIT);
                process.ask_keeper_at = (now < give_up_at).then_some(now + KEEPER_EVERY);
                let known = self.order.orphan_exit(process.pid);
                let exit = known.or_else(|| (now >= give_up_at).then_some(Exit::Unknown));
                exit.map(|exit| (exit, Millis(0)))
            }
        };
        let Some((exit, cpu)) = ended else { return };
        process.exit = Some(exit);
        process.cpu = cpu;
        site.poller.stop(process.pidfd.take());
        process.ask_keeper_at = None;
        let (rank, pid) = (process.rank, process.pid);
        if let Some(error) = process.exec_status.error() {
            return self.give_up(spawn::explain(&self.order, rank, &error));
        }
        if self.noticed && exit == Exit::Signal(notice_signal(&self.order)) {
            self.pass_notice_on(pid, site);
        }
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
    fn pass_notice_on(&mut self, group: i32, site: &Site) {
        if !matches!(self.ending, Ending::Saving { .. }) {
            return;
        }
        for pid in procfs::orphans(group) {
            // Opened first: the id cannot become another process's between the two.
            if let Ok(fd) = pidfd_open(pid) {
                let _ = kill(Pid::from_raw(pid), notice_signal(&self.order));
                self.wait_for(fd, site);
            }
        }
    }

    fn wait_for(&mut self, fd: OwnedFd, site: &Site) {
        let free = (0..=u16::MAX).find(|index| !self.others.contains_key(index));
        let Some(index) = free else { return };
        let source = Source::Other(self.order.lease, index);
        if site.poller.listen(fd.as_fd(), source, Until::Closed).is_ok() {
            self.others.insert(index, fd);
        }
    }

    fn push(&self, push: Push) {
        let signal = match push {
            Push::Terminate => Signal::SIGTERM,
            Push::Kill => Signal::SIGKILL,
        };
        for pid in self.ungrouped() {
            let _ = kill(pid, signal);
        }
        match push {
            Push::Terminate => signal_groups(&self.groups(), signal),
            Push::Kill => drop(kill_all(&self.marks())),
        }
    }

    /// Who has just been born, and does not lead a group yet.
    fn ungrouped(&self) -> impl Iterator<Item = Pid> {
        let lives = |process: &&Process| process.kin == Kin::Child && process.exit.is_none();
        let alive = self.processes.iter().filter(lives).map(|process| Pid::from_raw(process.pid));
        alive.filter(|&pid| getpgid(Some(pid)).is_ok_and(|group| group != pid))
    }

    /// The groups that are this gang's for sure: the id of an orphan that ended, which its keeper
    /// has collected, may be another's now.
    fn groups(&self) -> BTreeSet<i32> {
        let known = |process: &&Process| process.kin == Kin::Child || process.pidfd.is_some();
        self.processes.iter().filter(known).map(|process| process.pid).collect()
    }

    fn marks(&self) -> Marks<'_> {
        let mark = record::mark(&self.order.lease_dir);
        Marks { groups: self.groups(), mark, cgroups: &self.cgroups }
    }

    fn tell(
        &mut self,
        progress: Option<Progress>,
        checkpoints: Vec<Checkpoint>,
        now: Time,
        site: &mut Site,
    ) {
        self.reported_at = Some(now);
        let lease = self.order.lease;
        if let Some(mut progress) = progress {
            let went_on = progress.step.and_then(|step| self.pace.step(now, step));
            progress.message = progress.message.or(went_on);
            progress.busy = self.busy(now);
            site.tell(Event::Progressed { lease, progress });
        }
        for checkpoint in checkpoints {
            site.tell(Event::Checkpointed { lease, checkpoint });
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
        let inside = self.inside().into_values().flatten();
        let inside = inside.map(|pid| procfs::ticks_to_millis(procfs::tree_cpu_ticks(pid)));
        // What a daemon used is lost with it: the figure must not shrink.
        self.busy = self.busy.max(times.chain(inside).sum());
    }

    /// Makes sure that nothing of the gang is left: the devices are not free before the last
    /// process is gone, however long that takes.
    fn kill_who_is_left(&mut self, site: &mut Site) -> Life {
        let ended = |process: &Process| process.kin == Kin::Child && process.exit.is_some();
        let marks = self.marks();
        // What a container runtime leaves behind descends from a watcher without any mark.
        let watched = self.order.launch.container.is_some();
        if !watched
            && self.processes.iter().all(ended)
            && !site.leaders.may_have_left_somebody(&marks)
        {
            return Life::Over;
        }
        let killed = kill_all(&marks);
        self.look_again_at = None;
        if killed.is_empty() {
            return self.remove_containers(site);
        }
        // Without a descriptor the process is most likely gone.
        for fd in killed.into_iter().filter_map(|pid| pidfd_open(pid).ok()) {
            self.wait_for(fd, site);
        }
        if self.others.is_empty() {
            self.look_again_at = Some(site.clock.now() + LOOK_EVERY);
        }
        Life::GoesOn
    }

    /// Nothing of the gang lives; what its killed runtimes were about to start must not either.
    fn remove_containers(&mut self, site: &mut Site) -> Life {
        if let Some(mut remover) = self.remover.take() {
            // It has ended: it was among those that are waited for.
            let _ = remover.wait();
            return Life::Over;
        }
        // A runtime that was told nothing and ended by itself has removed its container. One that
        // was told something in its first moments ends as it likes, and leaves it.
        let in_peace = |process: &Process| {
            self.ending == Ending::Running && matches!(process.exit, Some(Exit::Code(_)))
        };
        let ranks = self.processes.iter().filter(|process| !in_peace(process));
        let left = ranks.map(|process| self.order.container_id(process.rank));
        let left: Vec<String> = left.filter_map(|file| container::named(&file)).collect();
        if left.is_empty() {
            return Life::Over;
        }
        let told = environment::told(&self.order, 0);
        let Ok(remover) = container::removal(&left, &told).spawn() else { return Life::Over };
        match pidfd_open(remover.id() as i32) {
            Ok(fd) => self.wait_for(fd, site),
            Err(_) => self.look_again_at = Some(site.clock.now()),
        }
        self.remover = Some(remover);
        Life::GoesOn
    }

    fn publish(&mut self, site: &mut Site) {
        if self.output_watch.as_ref().is_some_and(OutputWatch::heard_of_any) {
            site.poller.stop(self.output_watch.take());
            self.check_startup(site.clock.now(), site);
            site.tell(Event::StagePublished { lease: self.order.lease });
        }
    }

    /// Says all there is still to say.
    fn end(&mut self, site: &mut Site) {
        self.tell_last(site);
        site.poller.stop(self.output_watch.take());
        let outcome = match self.not_started.take() {
            Some(failure) => Outcome::Failed(failure),
            None if self.is_unhealthy() => self.fence(site),
            None => {
                let culprit = self.verdict.culprit().map(|rank| self.order.log(rank));
                let log = culprit.map(|path| spawn::log_tail(&path)).unwrap_or_default();
                self.close_output(self.verdict.outcome(&log, self.memory_ran_out()))
            }
        };
        let children = self.processes.iter().filter(|process| process.kin == Kin::Child);
        let children = children.map(|process| process.pid).collect();
        for group in std::mem::take(&mut self.cgroups) {
            site.hierarchy.take_back(group);
        }
        let has_more = self.files == Files::More || self.report.has_read();
        let lease_dir = has_more.then(|| self.order.lease_dir.clone());
        let record = self.record_file.take().map_or(LastOf::Nothing, LastOf::Kept);
        let remains = Remains { lease_dir, record, children };
        site.end(self.order.lease, outcome, remains);
    }

    /// Readers that are never told of the end would wait for ever.
    fn close_output(&self, outcome: Outcome) -> Outcome {
        let streams = self.order.launch.output == OutputRule::Streamed;
        if !streams || outcome != Outcome::Finished {
            return outcome;
        }
        match output::close(&self.order.output_dir()) {
            Ok(()) => outcome,
            Err(error) => {
                let message = format!("the end of its output cannot be written down: {error}");
                Outcome::Failed(Failure { rank: 0, exit_code: 1, message })
            }
        }
    }

    /// Its first rank to fail did so in its health check.
    fn is_unhealthy(&self) -> bool {
        self.verdict.culprit().is_some_and(|rank| self.order.sick(rank).exists())
    }

    /// Takes the devices of every rank whose health check failed out of service: the gang begins
    /// again elsewhere, which is not counted against its program.
    fn fence(&self, site: &mut Site) -> Outcome {
        for rank in (0..self.order.world()).filter(|rank| self.order.sick(*rank).exists()) {
            for device in self.order.devices_of(rank) {
                site.tell(Event::DeviceFailed { device });
            }
            // One that stays is removed by the next lease of this number.
            let _ = fs::remove_file(self.order.sick(rank));
        }
        Outcome::Lost
    }

    fn memory_ran_out(&self) -> MemoryRanOut {
        let Some(rank) = self.verdict.culprit() else { return MemoryRanOut::Unknown };
        let limit = self.order.rank(rank).memory;
        match self.cgroups.get(rank as usize) {
            Some(group) if group.used_its_memory_up() => MemoryRanOut::OfRank(limit),
            _ => MemoryRanOut::between(self.memory_kills, procfs::memory_kills()),
        }
    }

    fn tell_last(&mut self, site: &mut Site) {
        let orderly = self.processes.iter().all(|p| p.exit.is_some_and(Exit::is_orderly));
        let orderly = if orderly { Orderly::Yes } else { Orderly::No };
        let (progress, checkpoints) = self.report.finish(orderly);
        if self.report.is_done() {
            self.verdict.done();
        }
        self.measure_busy();
        let busy_only = self.order.is_cpu_only() && !self.processes.is_empty();
        let progress = progress.or_else(|| busy_only.then(Default::default));
        let now = site.clock.now();
        self.busy_at = now;
        self.tell(progress, checkpoints, now, site);
    }
}

/// One that is there is of a lease of the same number whose supervisor died.
fn make_anew(lease_dir: &Path) -> io::Result<()> {
    match fs::create_dir(lease_dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            record::forget_rest(lease_dir);
            fs::create_dir(lease_dir)
        }
        made => made,
    }
}

/// Listens for the first output of a gang that others follow, or tells of what is there already.
fn open_output_watch(order: &Order, site: &mut Site) -> Option<OutputWatch> {
    if order.launch.output != OutputRule::Streamed {
        return None;
    }
    let opened = OutputWatch::open(order.output_dir()).ok();
    let output_watch =
        opened.filter(|output_watch| !output_watch.holds_any()).filter(|output_watch| {
            let source = Source::Output(order.lease);
            site.poller.listen(output_watch.as_fd(), source, Until::Closed).is_ok()
        });
    if output_watch.is_none() {
        // Without inotify those who follow begin at once, and wait for it themselves.
        site.tell(Event::StagePublished { lease: order.lease });
    }
    output_watch
}

/// The signal of the notice: `SIGUSR1`, `USR1`, `usr1`; SIGTERM where none was named.
fn notice_signal(order: &Order) -> Signal {
    let Some(spec) = &order.launch.checkpoint else { return Signal::SIGTERM };
    let word = spec.notice.as_str().to_uppercase();
    let name = word.strip_prefix("SIG").unwrap_or(&word);
    Signal::from_str(&format!("SIG{name}")).unwrap_or(Signal::SIGTERM)
}
