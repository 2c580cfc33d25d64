//! What outlives the ranks of a gang: it is killed before the gang's devices are free.

use std::process::Child;

use het_core::{Millis, Time};

use super::GangStatus;
use super::processes::Processes;
use super::shutdown::Shutdown;
use crate::cgroup::Group;
use crate::context::Context;
use crate::launch::{self, GangSpec, Given};
use crate::process::{Exit, Others, containers, kill_all, pidfd_open};

/// How often processes are looked for whose end cannot be watched.
const LOOK_EVERY: Millis = Millis(5);

#[derive(Debug, Default)]
pub(super) struct Survivors {
    /// Removes containers that killed runtimes left.
    remover: Option<Child>,
    /// When to look again for processes whose end cannot be watched.
    look_again_at: Option<Time>,
}

impl Survivors {
    pub(super) fn deadline(&self) -> Option<Time> {
        self.look_again_at
    }

    /// Kills what is left of a gang whose ranks have all ended. The gang ends when nothing is,
    /// however long that takes.
    pub(super) fn kill(
        &mut self,
        spec: &GangSpec,
        processes: &mut Processes,
        cgroups: &[Group],
        (others, shutdown): (Others, &Shutdown),
        context: &mut Context,
    ) -> GangStatus {
        let selector = processes.selector(spec, cgroups);
        // What a container runtime leaves behind descends from a monitor without the variable.
        let is_contained = spec.launch.container.is_some();
        let nobody_left = others == Others::None && !cgroups.iter().any(Group::has_members);
        if !is_contained && nobody_left && processes.iter().all(|process| process.is_zombie()) {
            return GangStatus::Ended;
        }
        let killed = kill_all(&selector);
        self.look_again_at = None;
        if killed.is_empty() {
            return self.remove_containers(spec, processes, shutdown, context);
        }
        // Without a descriptor the process is most likely gone.
        for fd in killed.into_iter().filter_map(|pid| pidfd_open(pid).ok()) {
            processes.wait_for(fd, spec.lease, &context.poller);
        }
        if !processes.is_waiting_for_others() {
            self.look_again_at = Some(context.clock.now() + LOOK_EVERY);
        }
        GangStatus::Running
    }

    /// No process of the gang runs. Containers that its killed runtimes were about to start must
    /// not run either.
    fn remove_containers(
        &mut self,
        spec: &GangSpec,
        processes: &mut Processes,
        shutdown: &Shutdown,
        context: &mut Context,
    ) -> GangStatus {
        if let Some(mut remover) = self.remover.take() {
            // It has ended: it was among the processes that were waited for.
            let _ = remover.wait();
            return GangStatus::Ended;
        }
        // A runtime that exited without a signal from us has removed its container. One that got a
        // signal while it started may leave it.
        let exited_by_itself = |exit: Option<Exit>| {
            *shutdown == Shutdown::Running && matches!(exit, Some(Exit::Code(_)))
        };
        let ranks = processes.iter().filter(|process| !exited_by_itself(process.exit));
        let files = ranks.map(|process| spec.container_id_file(process.rank));
        let left: Vec<String> = files.filter_map(|file| containers::id_in(&file)).collect();
        if left.is_empty() {
            return GangStatus::Ended;
        }
        let Ok(given) = Given::read(&spec.launch, &mut context.environments) else {
            return GangStatus::Ended;
        };
        let (inherited, variables) = (&given.inherited, launch::variables(spec, 0, &given));
        let Ok(remover) =
            containers::removal(&left, inherited.iter().chain(variables.iter())).spawn()
        else {
            return GangStatus::Ended;
        };
        match pidfd_open(remover.id() as i32) {
            Ok(fd) => processes.wait_for(fd, spec.lease, &context.poller),
            Err(_) => self.look_again_at = Some(context.clock.now()),
        }
        self.remover = Some(remover);
        GangStatus::Running
    }
}
