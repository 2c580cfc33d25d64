//! The loop: tasks in, actions out, completions in. It is the same for every driver, in virtual
//! time and in real time.

use thiserror::Error;

use crate::coherence::ReleaseError;
use crate::coordinator::{Loss, MemoryFull, ProvideError};
use crate::{
    Action, Completion, Coordinator, Driver, HandleId, MemoryId, RegisterError, SubmitError, Task,
    TaskId, Wait,
};

/// When submitted tasks begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// With the next flush or wait: schedulers that plan see all of them.
    WhenFlushed,
    /// After so many submissions, too.
    Every(u32),
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RunError {
    /// Tasks were cancelled or handles lost. All else was run.
    #[error("{}", told(.0))]
    Lost(Vec<Loss>),
    #[error(transparent)]
    MemoryFull(#[from] MemoryFull),
    /// The scheduler holds tasks back that nothing will release.
    #[error("{0} tasks are left that no device is given: the scheduler holds them back")]
    HeldBack(usize),
}

fn told(losses: &[Loss]) -> String {
    let sentence = |loss: &Loss| {
        let cause = match &loss.cause {
            crate::Cause::Device { device, reason } => {
                format!("device {} was lost: {reason}", device.0)
            }
            crate::Cause::Memory { memory, reason } => {
                format!("memory {} was lost: {reason}", memory.0)
            }
            crate::Cause::Kernel { kernel, reason } => {
                format!("kernel `{kernel}` failed: {reason}")
            }
            crate::Cause::Copy { from, to, reason, .. } => {
                format!("a copy from memory {} to {} failed: {reason}", from.0, to.0)
            }
        };
        let (tasks, handles) = (loss.cancelled.len(), loss.lost.len());
        format!("{cause}; {tasks} tasks were not run and {handles} handles have no content")
    };
    losses.iter().map(sentence).collect::<Vec<_>>().join("\n")
}

#[derive(Debug)]
pub struct Runtime<D> {
    coordinator: Coordinator,
    driver: D,
    begin: Begin,
    /// Submissions since the last turn.
    submitted: u32,
    actions: Vec<Action>,
    completions: Vec<Completion>,
    /// Losses that cost nothing but time.
    mended: Vec<Loss>,
}

impl<D: Driver> Runtime<D> {
    pub fn new(coordinator: Coordinator, driver: D, begin: Begin) -> Self {
        Self {
            coordinator,
            driver,
            begin,
            submitted: 0,
            actions: Vec::new(),
            completions: Vec::new(),
            mended: Vec::new(),
        }
    }

    /// See [`Coordinator::register`].
    ///
    /// # Errors
    /// A home without room.
    pub fn register(
        &mut self,
        bytes: u64,
        home: Option<MemoryId>,
    ) -> Result<HandleId, RegisterError> {
        let handle = self.coordinator.register(bytes, home, &mut self.actions)?;
        self.act();
        Ok(handle)
    }

    /// Waits for what uses the handle, then drops all its copies.
    ///
    /// # Errors
    /// A handle that does not exist, or one that tasks use which can't run.
    pub fn release(&mut self, handle: HandleId) -> Result<(), ReleaseError> {
        loop {
            match self.coordinator.release(handle, &mut self.actions) {
                Err(ReleaseError::InUse) if self.coordinator.is_under_way() => {
                    self.turn(Wait::ForOne);
                }
                Err(ReleaseError::InUse) if self.submitted > 0 => self.turn(Wait::No),
                other => {
                    self.act();
                    return other;
                }
            }
        }
    }

    /// See [`Coordinator::provide`].
    ///
    /// # Errors
    /// A handle in use, and a memory without room.
    pub fn provide(&mut self, handle: HandleId, memory: MemoryId) -> Result<(), ProvideError> {
        let provided = self.coordinator.provide(handle, memory, &mut self.actions);
        self.act();
        provided
    }

    /// See [`Coordinator::replicate`].
    pub fn replicate(&mut self, handle: HandleId, memory: MemoryId) {
        self.coordinator.replicate(handle, memory, &mut self.actions);
        self.act();
    }

    /// Waits until a memory has a copy of a handle that no task writes; false where nothing brings
    /// it there.
    pub fn bring(&mut self, handle: HandleId, memory: MemoryId) -> bool {
        self.replicate(handle, memory);
        let is_there = |own: &Self| own.coordinator.data().is_valid(handle, memory);
        while !is_there(self) && self.coordinator.is_under_way() {
            self.turn(Wait::ForOne);
        }
        is_there(self)
    }

    /// See [`Coordinator::submit`] and [`Begin`].
    ///
    /// # Errors
    /// A task that could never run.
    pub fn submit(&mut self, task: Task) -> Result<TaskId, SubmitError> {
        let id = self.coordinator.submit(task)?;
        self.submitted += 1;
        if let Begin::Every(count) = self.begin
            && self.submitted >= count
        {
            self.turn(Wait::No);
        }
        Ok(id)
    }

    /// Submitted tasks begin as far as they can; waits for nothing.
    pub fn flush(&mut self) {
        self.turn(Wait::No);
    }

    /// Waits until all submitted tasks have ended but those in the background.
    ///
    /// # Errors
    /// What was lost meanwhile, and tasks that nothing will ever let run.
    pub fn wait(&mut self) -> Result<(), RunError> {
        self.wait_until(|coordinator| coordinator.unfinished() == coordinator.background())
    }

    /// Waits until all submitted tasks have ended.
    ///
    /// # Errors
    /// As [`Runtime::wait`].
    pub fn wait_for_all(&mut self) -> Result<(), RunError> {
        self.wait_until(|coordinator| coordinator.unfinished() == 0)
    }

    fn wait_until(&mut self, is_so: impl Fn(&Coordinator) -> bool) -> Result<(), RunError> {
        self.turn(Wait::No);
        while !is_so(&self.coordinator) {
            if !self.coordinator.is_under_way() {
                return Err(self.stuck());
            }
            self.turn(Wait::ForOne);
        }
        match self.coordinator.take_losses() {
            losses if losses.iter().all(Loss::is_mended) => {
                self.mended.extend(losses);
                Ok(())
            }
            losses => Err(RunError::Lost(losses)),
        }
    }

    fn stuck(&mut self) -> RunError {
        let left = self.coordinator.unfinished();
        match self.coordinator.memory_full() {
            Some(full) => RunError::MemoryFull(full),
            None => RunError::HeldBack(left),
        }
    }

    /// Takes in what ended and gives the driver what may begin.
    fn turn(&mut self, wait: Wait) {
        self.submitted = 0;
        let mut completions = std::mem::take(&mut self.completions);
        self.driver.completions(wait, &mut completions);
        let now = self.driver.now();
        self.coordinator.set_time(now);
        for completion in completions.drain(..) {
            self.coordinator.completed(completion, &mut self.actions);
        }
        self.completions = completions;
        self.coordinator.advance(now, &mut self.actions);
        self.act();
    }

    fn act(&mut self) {
        if self.actions.is_empty() {
            return;
        }
        for action in self.actions.drain(..) {
            match action {
                Action::Launch(launch) => self.driver.launch(launch),
                Action::Copy(copy) => self.driver.copy(copy),
                Action::Drop { handle, memory } => self.driver.drop_buffer(handle, memory),
            }
        }
        self.driver.flush();
    }

    /// Devices, memories and copies that were lost, since this was asked last, without a task or a
    /// content being lost with them.
    pub fn take_mended(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.mended)
    }

    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    pub fn coordinator_mut(&mut self) -> &mut Coordinator {
        &mut self.coordinator
    }

    pub fn driver(&self) -> &D {
        &self.driver
    }

    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }
}
