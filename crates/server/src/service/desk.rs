//! Where others ask something of the control loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use het_control::Controller;
use het_core::{Event, JobId};
use het_node::{Inlet, Node};
use thiserror::Error;
use tokio::sync::{oneshot, watch};

use super::{Board, Leaving};
use crate::EventStore;

/// Asks that wait for the loop; further ones are refused.
const WAITING_MAX: usize = 4_096;

/// What the loop runs between two turns.
pub(super) type Ask = Box<dyn FnOnce(&Controller<Node, EventStore>) -> Heard + Send>;

/// Tells whoever asked.
pub(super) type Ack = Box<dyn FnOnce() + Send>;

/// What an ask leaves to the loop.
pub(super) struct Heard {
    pub(super) events: Vec<Event>,
    pub(super) leaving: Option<Leaving>,
    /// Called once the events are durable.
    pub(super) ack: Ack,
}

/// Facts that an ask brings, and what is told once they are durable.
#[derive(Debug)]
pub struct Asked<T> {
    pub events: Vec<Event>,
    pub answer: T,
}

/// Why the loop did not hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotHeard {
    #[error("too much waits for the control loop")]
    Busy,
    #[error("the server is going down")]
    Gone,
}

/// The way to a control loop; cheap to clone.
#[derive(Debug, Clone)]
pub struct Desk {
    asks: SyncSender<Ask>,
    bell: Inlet,
    board: Arc<Board>,
    next_job: Arc<AtomicU64>,
    /// Closed when the loop has ended.
    alive: watch::Receiver<()>,
}

/// Held by the loop as long as it runs.
pub(super) type Alive = watch::Sender<()>;

impl Desk {
    pub(super) fn new(
        bell: Inlet,
        board: Arc<Board>,
        next_job: u64,
    ) -> (Self, Receiver<Ask>, Alive) {
        let (asks, receiver) = sync_channel(WAITING_MAX);
        let next_job = Arc::new(AtomicU64::new(next_job));
        let (sender, alive) = watch::channel(());
        (Self { asks, bell, board, next_job, alive }, receiver, sender)
    }

    /// Waits until the loop has ended.
    pub fn gone(&self) -> impl Future<Output = ()> + use<> {
        let mut alive = self.alive.clone();
        async move {
            // Nothing is ever sent: it only closes.
            while alive.changed().await.is_ok() {}
        }
    }

    /// Ends the loop without waiting for it.
    pub fn leave_soon(&self) {
        let leave: Ask = Box::new(|_| Heard {
            events: Vec::new(),
            leaving: Some(Leaving::JobsGoOn),
            ack: Box::new(|| ()),
        });
        // A full queue is emptied before long; a gone loop has left.
        let _ = self.asks.send(leave);
        self.bell.wake();
    }

    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// A job id that nobody else gets.
    pub fn new_job_id(&self) -> JobId {
        JobId(self.next_job.fetch_add(1, Ordering::SeqCst))
    }

    /// Looks at the loop between two turns.
    ///
    /// # Errors
    /// When the loop is gone or too much waits for it.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Controller<Node, EventStore>) -> T + Send + 'static,
    ) -> Result<T, NotHeard> {
        self.ask(|control| (Vec::new(), None, look(control))).await
    }

    /// Brings facts after a look; answers when they are durable.
    ///
    /// # Errors
    /// When the loop is gone or too much waits for it; the facts may or may not be durable if it
    /// went while it was asked.
    pub async fn tell<T: Send + 'static>(
        &self,
        tell: impl FnOnce(&Controller<Node, EventStore>) -> Asked<T> + Send + 'static,
    ) -> Result<T, NotHeard> {
        self.ask(|control| {
            let Asked { events, answer } = tell(control);
            (events, None, answer)
        })
        .await
    }

    /// Ends the loop; answers when its last turn is over.
    ///
    /// # Errors
    /// When the loop is gone already or too much waits for it.
    pub async fn leave(&self, leaving: Leaving) -> Result<(), NotHeard> {
        self.ask(move |_| (Vec::new(), Some(leaving), ())).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Controller<Node, EventStore>) -> (Vec<Event>, Option<Leaving>, T)
        + Send
        + 'static,
    ) -> Result<T, NotHeard> {
        let (sender, answer) = oneshot::channel();
        let ask: Ask = Box::new(move |control| {
            let (events, leaving, told) = ask(control);
            // Who asked may have gone.
            let ack = Box::new(move || drop(sender.send(told)));
            Heard { events, leaving, ack }
        });
        self.asks.try_send(ask).map_err(|error| match error {
            TrySendError::Full(_) => NotHeard::Busy,
            TrySendError::Disconnected(_) => NotHeard::Gone,
        })?;
        self.bell.wake();
        answer.await.map_err(|_| NotHeard::Gone)
    }
}
