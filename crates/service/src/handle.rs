//! How others reach the control loop and the replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use het_core::{Event, JobId, Requester, State, Topology};
use het_engine::Waker;
use tokio::sync::{oneshot, watch};

use crate::replica::Questions;
use crate::{JobTable, Replica, Unavailable};

/// Changes that wait for the loop; further ones are refused.
const WAITING_MAX: usize = 4_096;

/// What the loop runs between two turns.
pub(crate) type Request = Box<dyn FnOnce(&State) -> Pending + Send>;

/// Answers a caller.
pub(crate) type Acknowledge = Box<dyn FnOnce() + Send>;

/// What a request leaves to the loop.
pub(crate) struct Pending {
    pub(crate) brought: Brought,
    pub(crate) then: Then,
    /// Called once the events are durable.
    pub(crate) acknowledge: Acknowledge,
}

/// What becomes of events that cannot be made durable.
pub(crate) enum Brought {
    /// They never were, and the caller is told so.
    Changes(Vec<Event>),
    /// They stay true.
    Facts(Vec<Event>),
}

/// Whether the loop goes on after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    GoOn,
    End,
}

/// Facts that a caller brings, and the answer once they are durable.
#[derive(Debug)]
pub struct Change<T> {
    pub events: Vec<Event>,
    pub answer: T,
}

/// The way to a service; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    requests: SyncSender<Request>,
    waker: Waker,
    questions: Questions,
    jobs: Arc<JobTable>,
    next_job: Arc<AtomicU64>,
    published: Published,
    /// Closed when the loop has ended.
    alive: watch::Receiver<()>,
    /// Who asks for the changes that are made through this handle.
    requester: Option<Arc<Requester>>,
}

/// Held by the loop as long as it runs.
pub(crate) type Alive = watch::Sender<()>;

/// Where the loop publishes the topology.
pub(crate) type PublishedTopology = watch::Sender<Arc<Topology>>;

/// Where the loop publishes why the store cannot be written.
pub(crate) type PublishedStorage = watch::Sender<Option<Arc<str>>>;

/// What the loop publishes beside rows and batches.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    pub(crate) topology: watch::Receiver<Arc<Topology>>,
    pub(crate) storage: watch::Receiver<Option<Arc<str>>>,
}

impl Handle {
    pub(crate) fn new(
        waker: Waker,
        questions: Questions,
        jobs: Arc<JobTable>,
        next_job: u64,
        published: Published,
    ) -> (Self, Receiver<Request>, Alive) {
        let (requests, receiver) = sync_channel(WAITING_MAX);
        let next_job = Arc::new(AtomicU64::new(next_job));
        let (sender, alive) = watch::channel(());
        let requester = None;
        let handle =
            Self { requests, waker, questions, jobs, next_job, published, alive, requester };
        (handle, receiver, sender)
    }

    /// The same on behalf of somebody: the log says so of every change.
    #[must_use]
    pub fn on_behalf_of(&self, by: Requester) -> Self {
        Self { requester: Some(Arc::new(by)), ..self.clone() }
    }

    pub fn jobs(&self) -> &Arc<JobTable> {
        &self.jobs
    }

    /// Nodes, devices and links as of the last turn, also those that are gone.
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.published.topology.borrow())
    }

    /// The same as it changes.
    pub fn topologies(&self) -> watch::Receiver<Arc<Topology>> {
        self.published.topology.clone()
    }

    /// Why nothing can be changed at present, in one line; `None` where the store can be written.
    pub fn storage_trouble(&self) -> Option<Arc<str>> {
        self.published.storage.borrow().clone()
    }

    /// A job id that nobody else gets.
    pub fn new_job_id(&self) -> JobId {
        JobId(self.next_job.fetch_add(1, Ordering::SeqCst))
    }

    /// Asks the replica: a question costs the control loop nothing.
    ///
    /// # Errors
    /// When the replica is gone or too many questions wait.
    pub async fn query<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Replica) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (sender, answer) = oneshot::channel();
        // The caller may have gone.
        self.questions.ask(move |replica| drop(sender.send(question(replica))))?;
        answer.await.map_err(|_| Unavailable::Gone)
    }

    /// Decides on the loop, by the state between two turns, which facts there are; answers when
    /// they are durable. `change` should be short: nothing is decided while it runs.
    ///
    /// # Errors
    /// When the loop is gone or too much waits for it, or its store cannot be written: then nothing
    /// was changed. The facts may or may not be durable if the loop ended meanwhile.
    pub async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&State) -> Change<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.request(Then::GoOn, change).await
    }

    /// Brings a fact without waiting until it is durable. A full queue is waited for; without
    /// effect once the loop is gone.
    pub fn report(&self, event: Event) {
        self.send(Box::new(|_| Pending {
            brought: Brought::Facts(vec![event]),
            then: Then::GoOn,
            acknowledge: Box::new(|| ()),
        }));
    }

    /// Answers once the loop has taken a turn: it is alive and its log can be written.
    ///
    /// # Errors
    /// When the loop is gone, too much waits for it, or its store cannot be written.
    pub async fn ready(&self) -> Result<(), Unavailable> {
        self.change(|_| Change { events: Vec::new(), answer: () }).await
    }

    /// Ends the loop; answers when its last turn is over. What runs goes on.
    ///
    /// # Errors
    /// When the loop is gone already or too much waits for it.
    pub async fn stop(&self) -> Result<(), Unavailable> {
        self.request(Then::End, |_| Change { events: Vec::new(), answer: () }).await
    }

    /// Ends the loop without waiting for it.
    pub fn stop_soon(&self) {
        self.send(Box::new(|_| Pending {
            brought: Brought::Changes(Vec::new()),
            then: Then::End,
            acknowledge: Box::new(|| ()),
        }));
    }

    /// Waits until the loop has ended.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        let mut alive = self.alive.clone();
        async move {
            // Nothing is ever sent: it only closes.
            while alive.changed().await.is_ok() {}
        }
    }

    fn send(&self, request: Request) {
        // A full queue is emptied before long; a gone loop needs nothing any more.
        let _ = self.requests.send(request);
        self.waker.wake();
    }

    async fn request<T: Send + 'static>(
        &self,
        then: Then,
        change: impl FnOnce(&State) -> Change<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        if then == Then::GoOn {
            self.check_storage()?;
        }
        let (sender, answered) = oneshot::channel();
        let requester = self.requester.clone();
        let request: Request = Box::new(move |state| {
            let Change { events, answer } = change(state);
            let events = match &requester {
                Some(by) => attributed(events, state, by),
                None => events,
            };
            // The caller may have gone.
            let acknowledge = Box::new(move || drop(sender.send(answer)));
            Pending { brought: Brought::Changes(events), then, acknowledge }
        });
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => Unavailable::Busy,
            TrySendError::Disconnected(_) => Unavailable::Gone,
        })?;
        self.waker.wake();
        match answered.await {
            Ok(answer) => Ok(answer),
            // The loop took it back, or has ended.
            Err(_) => self.check_storage().and(Err(Unavailable::Gone)),
        }
    }

    /// # Errors
    /// While the store cannot be written.
    pub(crate) fn check_storage(&self) -> Result<(), Unavailable> {
        self.storage_trouble().map_or(Ok(()), |why| Err(Unavailable::Unwritable(why)))
    }
}

/// The facts, each with who asked for it behind it; of several about one job the first alone.
fn attributed(events: Vec<Event>, state: &State, by: &Arc<Requester>) -> Vec<Event> {
    let mut last = None;
    let mut told = Vec::with_capacity(2 * events.len());
    for event in events {
        let job = match &event {
            Event::StageYields { lease, .. } => {
                state.leases().get(lease).map(|lease| lease.stage.job)
            }
            event => event.requested_of(),
        };
        let what = event.requested().filter(|_| job.is_none() || job != last);
        told.push(event);
        let by = Arc::clone(by);
        told.extend(what.map(|what| Event::ChangeRequested { job, what, by }));
        last = job;
    }
    told
}
