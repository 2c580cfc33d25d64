//! The socket between the server and the supervisor: a request there, an answer back.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use het_node::DeviceAccess;
use het_node::messages::{receive, send};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::{Deserialize, Serialize};

use super::{SpawnAgents, SpawnError};

/// How long the supervisor may take: asking who is in a group may reach across a network, and a
/// process may take its time to end.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Spawn { user: String },
    SetAccess { user: String, access: DeviceAccess },
    EndAll { user: String },
}

/// With the connection beside it, where one was asked for.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    Refused(String),
    Failed(String),
}

/// The server's end.
#[derive(Debug)]
pub struct SpawnRequests(Mutex<Asking>);

#[derive(Debug)]
struct Asking {
    socket: OwnedFd,
    /// Of the newest request. One that was given up may be answered later, for another user.
    number: u64,
}

impl SpawnRequests {
    /// # Errors
    /// When it is no such socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let limit = TimeVal::milliseconds(ANSWER_LIMIT.as_millis() as i64);
        setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
        setsockopt(&socket, sockopt::SendTimeout, &limit)?;
        Ok(Self(Mutex::new(Asking { socket, number: 0 })))
    }

    fn ask(&self, request: &Request) -> Result<Option<OwnedFd>, SpawnError> {
        let mut asking = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asking.number += 1;
        let Asking { socket, number } = &*asking;
        let request = serde_json::to_vec(&(number, request)).map_err(io::Error::from)?;
        send(socket.as_fd(), &request, std::iter::empty())?;
        loop {
            let answer = receive(socket.as_fd())?;
            let (bytes, descriptors) =
                answer.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            let (of, answer): (u64, _) = serde_json::from_slice(&bytes).map_err(io::Error::from)?;
            match answer {
                _ if of != *number => {}
                Answer::Done => return Ok(descriptors.into_iter().next()),
                Answer::Refused(why) => return Err(SpawnError::Refused(why)),
                Answer::Failed(why) => return Err(io::Error::other(why).into()),
            }
        }
    }
}

impl SpawnAgents for SpawnRequests {
    fn spawn(&self, user: &str) -> Result<UnixStream, SpawnError> {
        let agent = self.ask(&Request::Spawn { user: user.to_owned() })?;
        Ok(agent.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?.into())
    }

    fn set_access(&self, user: &str, access: &DeviceAccess) -> Result<(), SpawnError> {
        let (user, access) = (user.to_owned(), access.clone());
        self.ask(&Request::SetAccess { user, access }).map(drop)
    }

    fn end_all(&self, user: &str) -> Result<(), SpawnError> {
        self.ask(&Request::EndAll { user: user.to_owned() }).map(drop)
    }
}

/// Answers one server until it is gone. The connections that the supervisor gives are closed here.
pub fn serve_requests(socket: &OwnedFd, supervisor: &dyn SpawnAgents) {
    loop {
        let asked = match receive(socket.as_fd()) {
            Ok(Some((bytes, _))) => serde_json::from_slice::<(u64, Request)>(&bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(None) | Err(_) => return,
        };
        // Whoever asks what is no request is no server of this version.
        let Ok((number, request)) = asked else { return };
        let done = match &request {
            Request::Spawn { user } => supervisor.spawn(user).map(Some),
            Request::SetAccess { user, access } => {
                supervisor.set_access(user, access).map(|()| None)
            }
            Request::EndAll { user } => supervisor.end_all(user).map(|()| None),
        };
        let (answer, agent) = match done {
            Ok(agent) => (Answer::Done, agent),
            Err(SpawnError::Refused(why)) => (Answer::Refused(why), None),
            Err(SpawnError::Io(error)) => (Answer::Failed(error.to_string()), None),
        };
        let answer = serde_json::to_vec(&(number, answer)).unwrap_or_default();
        let descriptors = agent.iter().map(AsRawFd::as_raw_fd);
        if send(socket.as_fd(), &answer, descriptors).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::thread;

    use het_node::DeviceNumber;
    use het_node::messages::pair;
    use nix::sys::socket::SockFlag;

    use super::*;

    #[derive(Debug)]
    struct Supervisor;

    impl SpawnAgents for Supervisor {
        fn spawn(&self, user: &str) -> Result<UnixStream, SpawnError> {
            match user {
                "ada" => {
                    let (mut one, other) = UnixStream::pair()?;
                    one.write_all(b"hello")?;
                    Ok(other)
                }
                "bob" => Err(SpawnError::Refused("not bob".to_owned())),
                _ => Err(io::Error::other("no memory").into()),
            }
        }

        fn set_access(&self, _: &str, access: &DeviceAccess) -> Result<(), SpawnError> {
            let numbers: Vec<u32> = access.denied.iter().map(|node| node.minor).collect();
            Err(SpawnError::Refused(format!("{numbers:?}")))
        }

        fn end_all(&self, _: &str) -> Result<(), SpawnError> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_is_a_connection_or_says_why_there_is_none() {
        let (asking, answering) = pair(SockFlag::empty()).expect("a pair can be made");
        let server = thread::spawn(move || serve_requests(&answering, &Supervisor));
        let requests = SpawnRequests::new(asking).expect("it is one");
        let mut text = String::new();
        let mut ada = requests.spawn("ada").expect("there is one");
        ada.read_to_string(&mut text).expect("it is closed at the other end");
        assert_eq!(text, "hello");
        let told = |user: &str| match requests.spawn(user) {
            Err(SpawnError::Refused(why)) => format!("refused: {why}"),
            Err(SpawnError::Io(why)) => why.to_string(),
            Ok(_) => "an agent".to_owned(),
        };
        assert_eq!(["bob", "eve", ""].map(told), ["refused: not bob", "no memory", "no memory"]);
        let nodes = [1, 0].map(|minor| DeviceNumber { major: 195, minor });
        let denied = nodes.into_iter().collect();
        let access = DeviceAccess { denied, ..DeviceAccess::default() };
        let told = requests.set_access("ada", &access);
        assert_eq!(told.expect_err("it is refused").to_string(), "[0, 1]");
        requests.end_all("ada").expect("it says so");
        drop(requests);
        server.join().expect("it ends with its server");
    }
}
