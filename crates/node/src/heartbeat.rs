//! What the thread of a control loop is doing, for a watchdog that looks from another thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use het_core::{JobId, LeaseId};

/// What a control loop is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopTask {
    /// It waits for something to happen.
    Idle,
    /// It writes to its own store, which takes as long as the disk takes.
    Store,
    /// It starts, watches or ends the programs of a lease, and touches files that these can change.
    Lease(LeaseId),
    /// It touches files of a job.
    Job(JobId),
    Other,
}

/// The task of one control loop, as another thread sees it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// As [`LoopTask::encode`] writes it.
    task: AtomicU64,
    /// How often the task changed.
    beats: AtomicU64,
    watchdog: OnceLock<Thread>,
    watchdog_sleeps: AtomicBool,
}

/// A task, until it is dropped: then the one before goes on.
#[derive(Debug)]
pub struct Task {
    heartbeat: Heartbeat,
    before: u64,
}

/// The low bits of an encoded task say which kind it is, the others have its id.
const KIND_BITS: u32 = 3;

impl LoopTask {
    fn encode(self) -> u64 {
        match self {
            Self::Other => 0,
            Self::Idle => 1,
            Self::Store => 2,
            Self::Lease(LeaseId(id)) => id << KIND_BITS | 3,
            Self::Job(JobId(id)) => id << KIND_BITS | 4,
        }
    }

    fn decode(code: u64) -> Self {
        let id = code >> KIND_BITS;
        match code & ((1 << KIND_BITS) - 1) {
            1 => Self::Idle,
            2 => Self::Store,
            3 => Self::Lease(LeaseId(id)),
            4 => Self::Job(JobId(id)),
            _ => Self::Other,
        }
    }

    /// It ends soon, whatever happens elsewhere.
    fn is_bounded(self) -> bool {
        !matches!(self, Self::Idle | Self::Store)
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            task: AtomicU64::new(LoopTask::Other.encode()),
            beats: AtomicU64::default(),
            watchdog: OnceLock::new(),
            watchdog_sleeps: AtomicBool::default(),
        }
    }
}

impl Heartbeat {
    /// The loop does this until the guard is dropped.
    pub fn begin(&self, task: LoopTask) -> Task {
        let before = self.0.task.load(Ordering::Relaxed);
        self.set(task.encode());
        Task { heartbeat: self.clone(), before }
    }

    fn set(&self, code: u64) {
        // Both orders are total: the watchdog sees the task, or the loop sees that it sleeps.
        self.0.task.store(code, Ordering::SeqCst);
        self.0.beats.fetch_add(1, Ordering::Relaxed);
        if self.0.watchdog_sleeps.load(Ordering::SeqCst)
            && LoopTask::decode(code).is_bounded()
            && self.0.watchdog_sleeps.swap(false, Ordering::SeqCst)
        {
            self.0.watchdog.get().into_iter().for_each(Thread::unpark);
        }
    }

    /// Waits until a task that ends soon has not ended for `looks` times `every`; gives that task.
    /// While the loop is idle nothing wakes up. Called by one thread, once.
    ///
    /// Counted in looks, so that time in which this whole process stood still counts once.
    pub fn watch(&self, every: Duration, looks: u32) -> LoopTask {
        let _ = self.0.watchdog.set(thread::current());
        let (mut seen, mut unchanged) = (None, 0);
        loop {
            let task = LoopTask::decode(self.0.task.load(Ordering::SeqCst));
            let beats = self.0.beats.load(Ordering::Relaxed);
            unchanged = if seen == Some(beats) { unchanged + 1 } else { 0 };
            seen = Some(beats);
            if !task.is_bounded() {
                unchanged = 0;
                self.sleep_while_idle();
            } else if unchanged >= looks {
                return task;
            }
            thread::park_timeout(every);
        }
    }

    fn sleep_while_idle(&self) {
        self.0.watchdog_sleeps.store(true, Ordering::SeqCst);
        while self.0.watchdog_sleeps.load(Ordering::SeqCst) {
            if LoopTask::decode(self.0.task.load(Ordering::SeqCst)).is_bounded() {
                self.0.watchdog_sleeps.store(false, Ordering::SeqCst);
                return;
            }
            thread::park();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.heartbeat.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const EVERY: Duration = Duration::from_millis(1);

    #[test]
    fn tasks_survive_being_encoded() {
        for task in [
            LoopTask::Idle,
            LoopTask::Store,
            LoopTask::Other,
            LoopTask::Lease(LeaseId(7)),
            LoopTask::Job(JobId(1 << 40)),
        ] {
            assert_eq!(LoopTask::decode(task.encode()), task);
        }
    }

    #[test]
    fn a_task_that_does_not_end_is_told_and_waiting_or_writing_is_none() {
        let heartbeat = Heartbeat::default();
        let idle = heartbeat.begin(LoopTask::Idle);
        let (send, told) = channel();
        let watched = heartbeat.clone();
        thread::spawn(move || send.send(watched.watch(EVERY, 4)));
        while !heartbeat.0.watchdog_sleeps.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let writing = heartbeat.begin(LoopTask::Store);
        assert!(told.recv_timeout(20 * EVERY).is_err());
        drop((writing, idle));
        let _stuck = heartbeat.begin(LoopTask::Lease(LeaseId(3)));
        assert_eq!(told.recv().expect("it is told"), LoopTask::Lease(LeaseId(3)));
    }

    #[test]
    fn a_loop_whose_tasks_change_is_left_alone() {
        let heartbeat = Heartbeat::default();
        let (send, told) = channel();
        let watched = heartbeat.clone();
        thread::spawn(move || send.send(watched.watch(EVERY, 1_000)));
        for lease in 0..10_000 {
            drop(heartbeat.begin(LoopTask::Lease(LeaseId(lease))));
        }
        assert!(told.try_recv().is_err());
    }
}
