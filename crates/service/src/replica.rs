//! A second copy of the state beside the control loop, which answers questions.
//!
//! It follows the committed batches, so what it shows is durable, and a question that is asked
//! after a change was acknowledged sees that change. Batches are applied before the questions that
//! came with them: a batch waits for one question at most.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use het_control::Past;
use het_core::{Event, Millis, State, Time};
use het_policy::{Cache, Policy, View};
use het_scheduler::Situation;

use crate::{Scheduling, Unavailable};

/// Questions that wait; further ones are refused.
const QUESTIONS_MAX: usize = 1_024;

/// State, speeds and policy as of a place in the log.
#[derive(Debug)]
pub struct Replica {
    past: Past,
    scheduling: Scheduling,
    /// Of the state as some question before found it.
    cache: RefCell<Cache>,
    sequence: u64,
    decisions: Decisions,
    /// The engine's present at the last batch, and when that came.
    present: (Time, Instant),
}

/// What was decided since the loop began, and how long that took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decisions {
    /// Turns of the loop in which the policy was asked, and something came of the turn.
    pub turns: u64,
    pub time: Millis,
    /// The longest of them.
    pub longest: Millis,
}

impl Decisions {
    fn add(&mut self, time: Millis) {
        self.turns += 1;
        self.time = Millis(self.time.0 + time.0);
        self.longest = self.longest.max(time);
    }
}

/// Sees every committed batch, after it was applied.
pub type Observer = Box<dyn FnMut(&Replica, &[(Time, Event)]) + Send>;

impl Replica {
    pub(crate) fn new(past: Past, scheduling: Scheduling, sequence: u64, now: Time) -> Self {
        let cache = RefCell::default();
        let (decisions, present) = (Decisions::default(), (now, Instant::now()));
        Self { past, scheduling, cache, sequence, decisions, present }
    }

    pub fn state(&self) -> &State {
        &self.past.state
    }

    /// Events that it stands for.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    pub fn decisions(&self) -> Decisions {
        self.decisions
    }

    pub fn policy(&self) -> &'static dyn Policy {
        self.scheduling.policy
    }

    /// The engine's present. In virtual time, that of the last batch but for the moments since.
    pub fn now(&self) -> Time {
        let (at, since) = self.present;
        Time(at.0 + since.elapsed().as_millis() as u64)
    }

    /// What explanations and previews are made from.
    pub fn situation(&self) -> Situation<'_> {
        let Past { state, rates } = &self.past;
        let Scheduling { policy, cadence } = self.scheduling;
        let view = View { state, rates, now: self.now(), cadence };
        Situation { view, policy, cache: &self.cache }
    }

    fn apply(&mut self, batch: &Batch) {
        for (at, event) in batch.events.iter() {
            self.past.apply(*at, event);
            if let Event::NodesJoined { .. } = event {
                self.cache = RefCell::default();
            }
        }
        batch.decided_in.into_iter().for_each(|time| self.decisions.add(time));
        self.sequence = batch.sequence;
        self.present = (batch.now, Instant::now());
    }
}

/// Committed events, the length of the log after them, and the engine's present.
pub(crate) struct Batch {
    pub(crate) events: Vec<(Time, Event)>,
    /// How long deciding took, where the policy was asked.
    pub(crate) decided_in: Option<Millis>,
    pub(crate) sequence: u64,
    pub(crate) now: Time,
}

type Question = Box<dyn FnOnce(&Replica) + Send>;

/// What the replica's thread is sent.
enum Message {
    Batch(Batch),
    /// Taken between the batches before it and those after it.
    Snapshot(Box<dyn FnOnce(&Past) + Send>),
    Question(Question),
    /// The loop has ended: there is nothing more to observe.
    Ended,
}

/// The loop's way to the replica.
#[derive(Debug)]
pub(crate) struct Publisher(Sender<Message>);

/// A caller's way to the replica.
#[derive(Debug, Clone)]
pub(crate) struct Questions {
    sender: Sender<Message>,
    waiting: Arc<AtomicUsize>,
}

/// Gives the replica a thread.
///
/// # Errors
/// When there can be none.
pub(crate) fn spawn(
    replica: Replica,
    observers: Vec<Observer>,
) -> std::io::Result<(Publisher, Questions)> {
    let (sender, messages) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let answered = Arc::clone(&waiting);
    let thread = thread::Builder::new().name("replica".to_owned());
    thread.spawn(move || follow(replica, observers, &messages, &answered))?;
    Ok((Publisher(sender.clone()), Questions { sender, waiting }))
}

fn follow(
    mut replica: Replica,
    mut observers: Vec<Observer>,
    messages: &Receiver<Message>,
    waiting: &AtomicUsize,
) {
    let mut questions: VecDeque<Question> = VecDeque::new();
    loop {
        let first = match questions.is_empty() {
            true => match messages.recv() {
                Ok(message) => Some(message),
                // Nobody can ask any more.
                Err(_) => return,
            },
            false => None,
        };
        for message in first.into_iter().chain(messages.try_iter()) {
            match message {
                Message::Batch(batch) => {
                    replica.apply(&batch);
                    observers.iter_mut().for_each(|observe| observe(&replica, &batch.events));
                }
                Message::Snapshot(take) => take(&replica.past),
                Message::Ended => observers.clear(),
                Message::Question(question) => questions.push_back(question),
            }
        }
        if let Some(question) = questions.pop_front() {
            // A question only reads: one that panics leaves nothing behind but a cache that may be
            // half made.
            if catch_unwind(AssertUnwindSafe(|| question(&replica))).is_err() {
                replica.cache.take();
            }
            waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Publisher {
    pub(crate) fn publish(&self, batch: Batch) {
        // Without the thread questions fail; the loop goes on.
        let _ = self.0.send(Message::Batch(batch));
    }

    /// Shows the replica as it is after the last batch that was published.
    pub(crate) fn look(&self, take: impl FnOnce(&Past) + Send + 'static) {
        let _ = self.0.send(Message::Snapshot(Box::new(take)));
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.0.send(Message::Ended);
    }
}

impl Questions {
    /// # Errors
    /// When too many wait, or the replica is gone.
    pub(crate) fn ask(
        &self,
        question: impl FnOnce(&Replica) + Send + 'static,
    ) -> Result<(), Unavailable> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= QUESTIONS_MAX {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(Unavailable::Busy);
        }
        let sent = self.sender.send(Message::Question(Box::new(question)));
        sent.map_err(|_| Unavailable::Gone)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Message")
    }
}
