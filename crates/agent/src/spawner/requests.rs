//! The socket between the server and the supervisor: a user's name there, a connection back.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use het_node::messages::{receive, send};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::{SpawnAgents, SpawnError};

/// How long the supervisor may take; asking who is in a group may reach across a network.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

const DONE: &[u8] = b"done";
const REFUSED: &[u8] = b"refused ";
const FAILED: &[u8] = b"failed ";

/// The server's end.
#[derive(Debug)]
pub struct SpawnRequests(Mutex<OwnedFd>);

impl SpawnRequests {
    /// # Errors
    /// When it is no such socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let limit = TimeVal::milliseconds(ANSWER_LIMIT.as_millis() as i64);
        setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
        setsockopt(&socket, sockopt::SendTimeout, &limit)?;
        Ok(Self(Mutex::new(socket)))
    }
}

impl SpawnAgents for SpawnRequests {
    fn spawn(&self, user: &str) -> Result<UnixStream, SpawnError> {
        // One question at a time: answers name no question.
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        send(socket.as_fd(), user.as_bytes(), std::iter::empty())?;
        let answer = receive(socket.as_fd())?;
        let (bytes, descriptors) =
            answer.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let text = |from: usize| String::from_utf8_lossy(&bytes[from..]).into_owned();
        match descriptors.into_iter().next() {
            Some(agent) if bytes == DONE => Ok(agent.into()),
            None if bytes.starts_with(REFUSED) => Err(SpawnError::Refused(text(REFUSED.len()))),
            None if bytes.starts_with(FAILED) => {
                Err(SpawnError::Io(io::Error::other(text(FAILED.len()))))
            }
            _ => Err(SpawnError::Io(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// Answers one server until it is gone. The connections that the function gives are closed here.
pub fn serve_requests(socket: &OwnedFd, spawn: impl Fn(&str) -> Result<UnixStream, SpawnError>) {
    loop {
        let asked = match receive(socket.as_fd()) {
            Ok(Some((bytes, _))) => String::from_utf8(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(None) | Err(_) => return,
        };
        let spawned = match &asked {
            Ok(user) => spawn(user),
            Err(_) => Err(SpawnError::Refused("that is no user's name".to_owned())),
        };
        let sent = match spawned {
            Ok(agent) => send(socket.as_fd(), DONE, [agent.as_raw_fd()].into_iter()),
            Err(SpawnError::Refused(why)) => {
                send(socket.as_fd(), &[REFUSED, why.as_bytes()].concat(), std::iter::empty())
            }
            Err(SpawnError::Io(error)) => {
                let why = error.to_string();
                send(socket.as_fd(), &[FAILED, why.as_bytes()].concat(), std::iter::empty())
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::thread;

    use het_node::messages::pair;
    use nix::sys::socket::SockFlag;

    use super::*;

    #[test]
    fn an_answer_is_a_connection_or_says_why_there_is_none() {
        let (asking, answering) = pair(SockFlag::empty()).expect("a pair can be made");
        let server = thread::spawn(move || {
            serve_requests(&answering, |user| match user {
                "ada" => {
                    let (mut one, other) = UnixStream::pair()?;
                    one.write_all(b"hello")?;
                    Ok(other)
                }
                "bob" => Err(SpawnError::Refused("not bob".to_owned())),
                _ => Err(io::Error::other("no memory").into()),
            });
        });
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
        drop(requests);
        server.join().expect("it ends with its server");
    }
}
