//! What threads hand each other, many things at a time: orders to a thread, reports from all.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use crate::{Completion, Nanos, Wait};

/// What it takes to wake a thread that waits, and about how long one looks around before it does.
pub const WAKE: Nanos = 20_000;

/// Looks of an idle thread before it sleeps.
const SPINS: u32 = 2_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Orders for one thread, in order.
#[derive(Debug)]
pub struct Lane<T> {
    queue: Mutex<Vec<T>>,
    /// Whether the queue has something, for a look without the lock.
    is_filled: AtomicBool,
    is_asleep: AtomicBool,
    is_closed: AtomicBool,
    thread: OnceLock<Thread>,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            is_filled: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }
}

impl<T> Lane<T> {
    pub fn served_by(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Adds orders, which are gone from `from` then.
    pub fn add(&self, from: &mut Vec<T>) {
        if from.is_empty() {
            return;
        }
        lock(&self.queue).append(from);
        self.is_filled.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Takes orders if there are some; false once the lane is closed.
    pub fn poll(&self, into: &mut Vec<T>) -> bool {
        if self.is_filled.swap(false, Ordering::SeqCst) {
            std::mem::swap(&mut *lock(&self.queue), into);
        }
        !self.is_closed.load(Ordering::SeqCst)
    }

    /// Waits for orders; false once the lane is closed and has none.
    pub fn take(&self, into: &mut Vec<T>) -> bool {
        let mut looks = 0;
        loop {
            if self.is_filled.swap(false, Ordering::SeqCst) {
                std::mem::swap(&mut *lock(&self.queue), into);
                return true;
            }
            if self.is_closed.load(Ordering::SeqCst) {
                return false;
            }
            looks += 1;
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            self.is_asleep.store(true, Ordering::SeqCst);
            // Whatever came before that was seen by nobody yet.
            let is_due =
                || self.is_filled.load(Ordering::SeqCst) || self.is_closed.load(Ordering::SeqCst);
            while !is_due() && self.is_asleep.load(Ordering::SeqCst) {
                thread::park();
            }
            self.is_asleep.store(false, Ordering::SeqCst);
            looks = 0;
        }
    }
}

/// Completions of all threads, for the one that waits for them.
#[derive(Debug, Default)]
pub struct Reports {
    done: Mutex<Vec<Completion>>,
    comes: Condvar,
    is_waited_for: AtomicBool,
    has_some: AtomicBool,
    /// Orders without a report yet.
    open: AtomicUsize,
}

impl Reports {
    /// Orders that will have no report: who did them is gone.
    pub fn give_up(&self, count: usize) {
        self.open.fetch_sub(count, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.is_waited_for.swap(false, Ordering::SeqCst) {
            drop(lock(&self.done));
            self.comes.notify_one();
        }
    }

    pub fn expect(&self, count: usize) {
        self.open.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds reports, which are gone from `from` then.
    pub fn add(&self, from: &mut Vec<Completion>) {
        if from.is_empty() {
            return;
        }
        lock(&self.done).append(from);
        self.has_some.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub fn take(&self, wait: Wait, into: &mut Vec<Completion>) {
        if wait == Wait::No && !self.has_some.load(Ordering::SeqCst) {
            return;
        }
        let before = into.len();
        if wait == Wait::ForOne && self.open.load(Ordering::Relaxed) > 0 {
            for _ in 0..SPINS {
                if self.has_some.load(Ordering::SeqCst) {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        let mut done = lock(&self.done);
        while wait == Wait::ForOne && done.is_empty() && self.open.load(Ordering::Relaxed) > 0 {
            self.is_waited_for.store(true, Ordering::SeqCst);
            done = self.comes.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
        into.append(&mut done);
        self.has_some.store(false, Ordering::SeqCst);
        drop(done);
        self.open.fetch_sub(into.len() - before, Ordering::Relaxed);
    }
}
