//! The connection to an agent. Two threads own it, so that an agent which does not read, stands
//! still or says too much holds nobody else up.

use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use het_core::Name;
use het_engine::Waker;
use het_node::DeviceAccess;

use crate::messages::{FromAgent, LINE_BYTES_MAX, ToAgent, line, read};
use crate::spawner::{SpawnAgents, SpawnError};

/// Messages that may wait for an agent: one that leaves more unread is cut off, and its successor
/// is told anew what there is to do.
const UNREAD_MAX: usize = 16_384;

/// How much an agent may say: so many messages at once, and so many a second for long.
const BURST: u32 = 20_000;
const PER_SECOND: u32 = 1_000;

/// What came of a connection.
#[derive(Debug)]
pub(crate) struct Heard {
    pub user: Name,
    /// Which connection to this user's agents.
    pub connection: u64,
    pub what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Said(FromAgent),
    Ended(Ended),
}

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Ended {
    /// No agent is to run for this user.
    Refused(String),
    /// The agent is gone, or never came.
    Gone(String),
    /// Nothing runs for this user any more.
    Cleared,
}

/// Where all connections report, and wake the engine.
#[derive(Debug, Clone)]
pub(crate) struct Ear {
    pub heard: SyncSender<Heard>,
    pub waker: Waker,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Agent,
    /// Nothing is to run for the user afterwards.
    Clearing,
}

#[derive(Debug)]
enum Outgoing {
    Message(String),
    /// Which device nodes the user may open before the next message is sent.
    Access(DeviceAccess),
}

/// The server's end of a connection. What is sent before there is an agent waits for it.
#[derive(Debug)]
pub(crate) struct Link {
    outgoing: SyncSender<Outgoing>,
    /// Once there is one.
    stream: Arc<Mutex<Option<UnixStream>>>,
}

impl Link {
    /// Begins to connect to the agent of a user, or to clear what runs for the user.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn open(
        user: &Name,
        (connection, purpose): (u64, Purpose),
        spawner: Arc<dyn SpawnAgents>,
        ear: Ear,
    ) -> io::Result<Self> {
        let (outgoing, unsent) = sync_channel(UNREAD_MAX);
        let stream = Arc::new(Mutex::new(None));
        let link = Self { outgoing, stream: Arc::clone(&stream) };
        let user = user.clone();
        let run = move || {
            let said = |said| ear.tell(&user, connection, What::Said(said));
            let ended = match purpose {
                Purpose::Clearing => spawner.end_all(user.as_str()).map(|()| Ended::Cleared),
                Purpose::Agent => spawner.spawn(user.as_str()).map(|agent| {
                    let (user, spawner) = (user.clone(), Arc::clone(&spawner));
                    let send = move |agent: &UnixStream| send_all(agent, unsent, &user, &*spawner);
                    Ended::Gone(converse(agent, &stream, said, send))
                }),
            };
            let ended = ended.unwrap_or_else(|error| match error {
                SpawnError::Refused(why) => Ended::Refused(why),
                error => Ended::Gone(error.to_string()),
            });
            let _ = ear.tell(&user, connection, What::Ended(ended));
        };
        thread::Builder::new().name("agent".to_owned()).spawn(run)?;
        Ok(link)
    }

    /// Sends a message, if there is room for it. Without it the connection ends.
    pub(crate) fn send(&self, message: &ToAgent) {
        self.queue(Outgoing::Message(line(message)));
    }

    /// Has this decided before what is sent next.
    pub(crate) fn set_access(&self, access: DeviceAccess) {
        self.queue(Outgoing::Access(access));
    }

    fn queue(&self, outgoing: Outgoing) {
        if self.outgoing.try_send(outgoing).is_err() {
            self.close();
        }
    }

    fn close(&self) {
        if let Some(stream) = &*self.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            // Both threads find that it is over.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

impl Ear {
    /// Whether anybody listens.
    fn tell(&self, user: &Name, connection: u64, what: What) -> bool {
        let told = self.heard.send(Heard { user: user.clone(), connection, what });
        self.waker.wake();
        told.is_ok()
    }
}

/// Sends and hears until the connection is over; why it is.
fn converse(
    agent: UnixStream,
    stream: &Mutex<Option<UnixStream>>,
    said: impl Fn(FromAgent) -> bool,
    send: impl FnOnce(&UnixStream) + Send + 'static,
) -> String {
    let (Ok(reading), Ok(shared)) = (agent.try_clone(), agent.try_clone()) else {
        return "there are no descriptors left".to_owned();
    };
    *stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(shared);
    let writing = thread::Builder::new().name("agent-out".to_owned()).spawn(move || {
        send(&agent);
        // The link was dropped, or nobody reads: the other thread is to end as well.
        let _ = agent.shutdown(Shutdown::Both);
    });
    if writing.is_err() {
        return "there are no threads left".to_owned();
    }
    let mut budget = Budget::full();
    let mut reading = BufReader::new(reading);
    let why = loop {
        match read(&mut reading, LINE_BYTES_MAX) {
            Ok(Some(FromAgent::Failed { why })) => break why,
            Ok(Some(_)) if !budget.spend() => break "it says too much".to_owned(),
            Ok(Some(message)) => {
                if !said(message) {
                    break "the engine is gone".to_owned();
                }
            }
            Ok(None) => break "it has ended".to_owned(),
            Err(error) => break format!("it cannot be understood: {error}"),
        }
    };
    let _ = reading.get_ref().shutdown(Shutdown::Both);
    why
}

/// Until the link is dropped, or something cannot be sent.
fn send_all(
    mut agent: &UnixStream,
    unsent: Receiver<Outgoing>,
    user: &Name,
    supervisor: &dyn SpawnAgents,
) {
    for outgoing in unsent {
        let sent = match outgoing {
            Outgoing::Message(line) => agent.write_all(line.as_bytes()).is_ok(),
            Outgoing::Access(access) => supervisor.set_access(user.as_str(), &access).is_ok(),
        };
        if !sent {
            return;
        }
    }
}

/// How much may still be said.
struct Budget {
    left: u32,
    counted_at: Instant,
}

impl Budget {
    fn full() -> Self {
        Self { left: BURST, counted_at: Instant::now() }
    }

    fn spend(&mut self) -> bool {
        let seconds = self.counted_at.elapsed().as_secs();
        if seconds > 0 {
            let earned = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND);
            self.left = self.left.saturating_add(earned).min(BURST);
            self.counted_at = Instant::now();
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}
