//! From the plan to programs that run: the request for a gang, and the time until its programs have
//! begun.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use het_core::{Event, Failure, FailureCause, Millis, Time};

use super::process::Process;
use super::processes::Processes;
use super::shim::Shim;
use super::shutdown::{Escalation, Shutdown};
use super::{Gang, notice};
use crate::context::Context;
use crate::launch::{self, explain_exec_error};
use crate::process::{GangFiles, ShimConnection, StartupNote};

/// Whether the programs have begun is checked after this time, and then at growing intervals.
const FIRST_CHECK: Millis = Millis(1);
/// After this time they count as begun if there is a shim: their files load slowly. If there is
/// none, the launcher does not do what it is asked.
const PATIENCE: Millis = Millis(5_000);

#[derive(Debug)]
pub(super) enum Startup {
    /// Not every program has begun.
    Pending {
        since: Time,
        check_at: Time,
    },
    Over,
    /// Not every rank could be started.
    Failed(Failure),
}

/// Whether a gang may still be starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    Left,
    Over,
}

impl Startup {
    pub(super) fn pending(now: Time) -> Self {
        Self::Pending { since: now, check_at: now + FIRST_CHECK }
    }

    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Pending { .. })
    }

    pub(super) fn has_begun(&self) -> bool {
        matches!(self, Self::Over)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Pending { check_at, .. } => Some(*check_at),
            Self::Over | Self::Failed(_) => None,
        }
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// Not every program has begun yet: looks again later.
    pub(super) fn look_again(&mut self, now: Time) -> Patience {
        let Self::Pending { since, check_at } = self else { return Patience::Over };
        let elapsed = now.since(*since);
        *check_at = now + FIRST_CHECK.max(elapsed);
        if elapsed < PATIENCE { Patience::Left } else { Patience::Over }
    }

    /// Nobody will say any more whether its programs begin.
    pub(super) fn give_up(&mut self) {
        *self = Self::Over;
    }

    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        match std::mem::replace(self, Self::Over) {
            Self::Failed(failure) => Some(failure),
            Self::Pending { .. } | Self::Over => None,
        }
    }
}

impl Gang {
    /// Records the lease before there is any process, then asks for every rank.
    pub(super) fn start_processes(&mut self, context: &mut Context) -> Result<(), Failure> {
        let idle = context.launcher.idle_shim();
        let shim = idle.as_ref().and_then(ShimConnection::shim);
        let record = self.holdings.write_record(&self.spec, shim, context)?;
        self.holdings.record = Some(record);
        self.holdings.create_shared_dir(&self.spec)?;
        // They may be removed too early where that is not noted, which its program would say.
        let _ = self.spec.local_inputs.note(&self.spec.lease_dir);
        self.request(idle, context)
    }

    /// Asks for a shim, and tells it the ranks. Where that fails none of them begins.
    pub(super) fn request(
        &mut self,
        idle: Option<ShimConnection>,
        context: &mut Context,
    ) -> Result<(), Failure> {
        let Some(record) = &self.holdings.record else { return Ok(()) };
        let (file, slots_at) = record.slots_in_file();
        let world = self.spec.world();
        let hold = self.hold_devices(context);
        let files = GangFiles { record: file, hold: hold.as_ref().map(AsFd::as_fd) };
        let shim = context.launcher.shim(idle, files, slots_at, world).map_err(|error| {
            let message = format!("no process can be started: {error}");
            Failure {
                rank: 0,
                exit_code: Failure::CANNOT_RUN,
                message,
                cause: FailureCause::CannotRun,
            }
        })?;
        for rank in 0..world {
            let group = self.holdings.cgroups.get(rank as usize);
            launch::spawn(&self.spec, context, shim.as_fd(), group, rank)?;
        }
        self.processes = Processes::new((0..world).map(Process::requested).collect());
        self.shim.watch(Shim::Own(shim), self.spec.lease, &context.poller);
        Ok(())
    }

    /// Without a hold the devices are this control loop's only as long as it lives.
    pub(super) fn hold_devices(&self, context: &Context) -> Option<OwnedFd> {
        if self.awaits_devices() {
            return None;
        }
        let holds = context.device_holds.as_ref()?;
        let ranks = (0..self.spec.world()).map(|rank| self.spec.rank(rank));
        let devices = ranks.flat_map(launch::all_grants);
        let devices = devices.map(|grant| self.spec.topology.device(grant.device).name.clone());
        let cores: Vec<u32> =
            self.spec.cores.iter().flat_map(|assigned| assigned.cores.iter().copied()).collect();
        holds.hold(&devices.collect(), &cores).ok()
    }

    pub(super) fn check_startup(&mut self, now: Time, context: &mut Context) {
        if self.learn_ids() > 0 {
            self.repeat_signals(context);
        }
        match self.slots().startup {
            Some(StartupNote::Begun) => self.begun(context),
            Some(StartupNote::Failed { rank, errno }) => self.cannot_begin(rank, errno, context),
            None => match (self.startup.look_again(now), self.shim.pid()) {
                (Patience::Left, _) => {}
                (Patience::Over, Some(_)) => self.begun(context),
                // What the launcher was asked is dropped with it: its gangs ask again.
                (Patience::Over, None) => drop(context.launcher.replace()),
            },
        }
    }

    /// All programs have begun.
    pub(super) fn begun(&mut self, context: &mut Context) {
        if self.startup.is_pending() {
            self.startup = Startup::Over;
            if !self.awaits_devices() {
                context.emit(Event::StageStarted { lease: self.spec.lease });
            }
        }
    }

    /// Ranks that began after a signal was sent get it too.
    fn repeat_signals(&mut self, context: &Context) {
        if self.is_notified {
            self.processes.notify(&self.spec, notice::signal(&self.spec));
        }
        match self.shutdown {
            Shutdown::Terminated { .. } => self.escalate(Escalation::Terminate, context),
            Shutdown::Killed => self.escalate(Escalation::Kill, context),
            Shutdown::Running | Shutdown::Saving { .. } => {}
        }
    }

    /// The program of a rank cannot begin.
    pub(super) fn cannot_begin(&mut self, rank: u32, errno: i32, context: &Context) {
        self.learn_ids();
        self.processes.forget_unstarted();
        let error = io::Error::from_raw_os_error(errno);
        self.fail_start(explain_exec_error(&self.spec, rank, &error), context);
    }

    /// Not every rank begins: the others are killed.
    pub(super) fn fail_start(&mut self, failure: Failure, context: &Context) {
        if !matches!(self.startup, Startup::Failed(_)) {
            self.startup = Startup::Failed(failure);
            self.kill(context);
        }
    }
}
