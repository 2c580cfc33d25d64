//! The two transports, and whether the other end is who it has to be.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use socket2::SockRef;
use thiserror::Error;

use super::protocol::{self, CHUNK, FrameError, Hello, LENGTH, Report, TOKEN};
use super::{Limits, Offer};

/// What a worker has to show over TCP. It crosses the network as it is: whoever reads along has
/// it, and what is computed, too.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; TOKEN]);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token(..)")
    }
}

impl Token {
    /// A random one.
    ///
    /// # Errors
    /// A system without random numbers.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; TOKEN];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// As hexadecimal digits, for a worker's environment.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// `None` where it is not what [`Token::to_text`] gives.
    pub fn from_text(text: &str) -> Option<Self> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|digit| Some(digit.to_digit(16)? as u8).filter(|_| !digit.is_ascii_uppercase()))
            .collect();
        let digits = digits.filter(|digits| digits.len() == 2 * TOKEN)?;
        let mut bytes = [0; TOKEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Some(Self(bytes))
    }

    /// Takes the same time wherever they differ.
    fn is(&self, other: &[u8; TOKEN]) -> bool {
        self.0.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

#[derive(Debug)]
pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// Both directions, for whoever has a clone, too.
    pub fn shutdown(&self) {
        // Of a connection that is gone already there is nothing to say.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// How long one reading, and one writing, waits.
    pub fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buffer),
            Self::Tcp(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a read or write ran into its timeout.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[derive(Debug, Error)]
pub enum ReadError {
    #[error("it closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
    /// By what `tick` said.
    #[error("{0}")]
    GivenUp(String),
}

/// Bytes that are read at a time where frames are short.
const READ_AHEAD: usize = 1 << 16;

/// Reads frames, a piece at a time.
#[derive(Debug)]
pub struct Frames {
    socket: BufReader<Socket>,
    /// Of the frame that is read; never longer than one.
    frame: Vec<u8>,
}

impl Frames {
    pub fn new(socket: Socket) -> Self {
        Self { socket: BufReader::with_capacity(READ_AHEAD, socket), frame: Vec::new() }
    }

    pub fn socket(&self) -> &Socket {
        self.socket.get_ref()
    }

    /// The next frame without its length. `tick` is called after every piece with its bytes, and
    /// with none after every timeout of the socket; it may give up with a reason.
    ///
    /// # Errors
    /// A connection that ends, a frame that is none, and what `tick` says.
    pub fn next(
        &mut self,
        mut tick: impl FnMut(usize) -> Result<(), String>,
    ) -> Result<&[u8], ReadError> {
        let mut head = [0; LENGTH];
        fill(&mut self.socket, &mut head, &mut tick)?;
        let length = protocol::length(head)?;
        self.frame.resize(length, 0);
        fill(&mut self.socket, &mut self.frame, &mut tick)?;
        Ok(&self.frame)
    }
}

fn fill(
    socket: &mut impl Read,
    into: &mut [u8],
    tick: &mut impl FnMut(usize) -> Result<(), String>,
) -> Result<(), ReadError> {
    let mut at = 0;
    while at < into.len() {
        match socket.read(&mut into[at..]) {
            Ok(0) => return Err(ReadError::Closed),
            Ok(count) => {
                at += count;
                tick(count).map_err(ReadError::GivenUp)?;
            }
            Err(error) if is_timeout(&error) => tick(0).map_err(ReadError::GivenUp)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Err(ReadError::Closed);
            }
            Err(error) => return Err(ReadError::Broken(error)),
        }
    }
    Ok(())
}

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("the socket can't be used")]
    Socket(#[from] io::Error),
    #[error("no worker came within {0:?}")]
    Nobody(Duration),
    #[error("a process of user {found} came, and user {expected} has to")]
    User { found: u32, expected: u32 },
    #[error("a worker came without the token")]
    Token,
    #[error("a worker came and was not let in: {0}")]
    Handshake(#[from] ReadError),
    #[error("a worker came and did not say who it is")]
    NoHello,
}

/// Who may come, and where.
#[derive(Debug)]
enum Door {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, Token),
}

/// Where workers come to.
#[derive(Debug)]
pub struct Listener {
    door: Door,
}

/// A worker that was let in.
#[derive(Debug)]
pub struct Peer {
    pub(super) frames: Frames,
    pub(super) offer: Offer,
    process: Option<i32>,
}

impl Peer {
    /// What it says of itself.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Its process, where the system says so: over a Unix socket.
    pub fn process(&self) -> Option<i32> {
        self.process
    }

    /// Whether it is gone again: nothing is to be read of one that waits.
    pub fn is_gone(&self) -> bool {
        let socket = match self.frames.socket() {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        };
        let mut readable = [PollFd::new(socket, PollFlags::POLLIN)];
        poll(&mut readable, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

impl Listener {
    /// For processes of the same user.
    ///
    /// # Errors
    /// A path that exists, or can't be made.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { door: Door::Unix(listener, path.to_owned()) })
    }

    /// For whoever has the token.
    ///
    /// # Errors
    /// An address that can't be had.
    pub fn tcp(address: impl ToSocketAddrs, token: Token) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { door: Door::Tcp(listener, token) })
    }

    /// Where it listens, over TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.door {
            Door::Unix(..) => None,
            Door::Tcp(listener, _) => listener.local_addr().ok(),
        }
    }

    /// The next one that comes, once it has said who it is. One that is not let in is an error,
    /// after which others may come.
    ///
    /// # Errors
    /// Nobody in time, and somebody who is not who it has to be or does not say so in time.
    pub fn accept(&self, limits: &Limits) -> Result<Peer, ConnectError> {
        self.pending(limits)?.handshake(limits)
    }

    /// The next one that comes, whoever it is.
    ///
    /// # Errors
    /// Nobody in time, and a system that has no room for another connection now.
    fn pending(&self, limits: &Limits) -> Result<Pending, ConnectError> {
        let socket = self.next(Instant::now() + limits.handshake, limits.handshake)?;
        let token = match &self.door {
            Door::Unix(..) => None,
            Door::Tcp(_, token) => Some(token.clone()),
        };
        Ok(Pending { socket, token })
    }

    /// Waits for a connection until then.
    fn next(&self, by: Instant, most: Duration) -> Result<Socket, ConnectError> {
        loop {
            let accepted = match &self.door {
                Door::Unix(listener, _) => listener.accept().map(|(one, _)| Socket::Unix(one)),
                Door::Tcp(listener, _) => listener.accept().map(|(one, _)| Socket::Tcp(one)),
            };
            match accepted {
                Ok(socket) => return Ok(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConnectError::Nobody(most));
            }
            let ready = PollFd::new(self.descriptor(), PollFlags::POLLIN);
            // Rounded up, lest it be asked again and again at the end.
            let left = left + Duration::from_millis(1);
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [ready], timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.door {
            Door::Unix(listener, _) => listener.as_fd(),
            Door::Tcp(listener, _) => listener.as_fd(),
        }
    }
}

/// A connection of whoever came.
#[derive(Debug)]
struct Pending {
    socket: Socket,
    /// What it has to show, over TCP.
    token: Option<Token>,
}

impl Pending {
    /// Waits until it has said who it is.
    ///
    /// # Errors
    /// Somebody who is not who it has to be, or does not say so in time.
    fn handshake(self, limits: &Limits) -> Result<Peer, ConnectError> {
        let Self { socket, token } = self;
        let by = Instant::now() + limits.handshake;
        let process = match &socket {
            Socket::Unix(stream) => Some(checked(stream)?),
            Socket::Tcp(stream) => {
                set_prompt(stream)?;
                None
            }
        };
        socket.set_timeouts(Some(limits.tick()), Some(limits.silence))?;
        let mut frames = Frames::new(socket);
        let frame = frames.next(|_| match Instant::now() < by {
            true => Ok(()),
            false => Err("it did not say who it is in time".to_owned()),
        })?;
        let Ok(Report::Hello(hello)) = Report::read(frame) else {
            return Err(match Report::read(frame) {
                Err(error) => ReadError::from(error).into(),
                Ok(_) => ConnectError::NoHello,
            });
        };
        let Hello { token: shown, device, class, capacity, kernels } = hello;
        if token.is_some_and(|token| !token.is(&shown)) {
            return Err(ConnectError::Token);
        }
        let offer = Offer { device, class, capacity, kernels };
        Ok(Peer { frames, offer, process })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Door::Unix(_, path) = &self.door {
            // Whoever removed it first did what was to be done.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The process at the other end, which has to be of this user.
fn checked(stream: &UnixStream) -> Result<i32, ConnectError> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials).map_err(io::Error::from)?;
    let expected = nix::unistd::geteuid().as_raw();
    match credentials.uid() {
        found if found == expected => Ok(credentials.pid()),
        found => Err(ConnectError::User { found, expected }),
    }
}

/// A worker's end of the connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) socket: Socket,
    pub(super) token: [u8; TOKEN],
}

impl Connection {
    /// To a program of the same user.
    ///
    /// # Errors
    /// A path where nobody listens, or somebody else.
    pub fn unix(path: &Path) -> Result<Self, ConnectError> {
        let stream = UnixStream::connect(path)?;
        checked(&stream)?;
        Ok(Self { socket: Socket::Unix(stream), token: [0; TOKEN] })
    }

    /// # Errors
    /// An address where nobody listens.
    pub fn tcp(address: impl ToSocketAddrs, token: &Token) -> Result<Self, ConnectError> {
        let stream = TcpStream::connect(address)?;
        set_prompt(&stream)?;
        watch(&stream)?;
        Ok(Self { socket: Socket::Tcp(stream), token: token.0 })
    }
}

/// Bytes that the system takes beyond those that are on their way.
const UNSENT_MOST: u32 = CHUNK as u32;

/// Has short frames go at once, and wait for little of the contents before them on a slow link:
/// what the system holds nothing can overtake.
fn set_prompt(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_MOST)
}

/// Seconds after which the system of a worker asks whether the program's host is still there, the
/// first time and each time after that.
const ASK: u32 = 10;

/// Questions without an answer after which it is gone.
const ASKED_MOST: u32 = 3;

/// Has the connection end where the host at the other end vanished while a worker waits: a program
/// says nothing as long as it has nothing for it. What is sent has the system's own limit; a
/// shorter one (`TCP_USER_TIMEOUT`) would end the connection to a program that is only stopped.
fn watch(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &ASK)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &ASK)?;
    setsockopt(stream, sockopt::TcpKeepCount, &ASKED_MOST)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_hears_of_it_when_the_host_of_its_program_vanishes() {
        let token = Token::random().expect("random numbers");
        let listener = Listener::tcp("127.0.0.1:0", token.clone()).expect("a port");
        let address = listener.address().expect("of TCP");
        let connection = Connection::tcp(address, &token).expect("it listens");
        let Socket::Tcp(stream) = &connection.socket else { panic!("{connection:?}") };
        assert_eq!(getsockopt(stream, sockopt::KeepAlive), Ok(true));
        assert_eq!(getsockopt(stream, sockopt::TcpKeepIdle), Ok(10));
        assert_eq!(getsockopt(stream, sockopt::TcpKeepInterval), Ok(10));
        assert_eq!(getsockopt(stream, sockopt::TcpKeepCount), Ok(3));
    }

    #[test]
    fn a_token_is_its_text_and_nothing_else() {
        let token = Token::random().expect("random numbers");
        let text = token.to_text();
        assert_eq!(Token::from_text(&text), Some(token.clone()));
        assert!(Token::from_text(&text[1..]).is_none());
        assert!(Token::from_text(&format!("g{}", &text[1..])).is_none());
        assert!(!format!("{token:?}").contains(&text));
        assert!(token.is(&token.0) && !Token([0; TOKEN]).is(&[1; TOKEN]));
    }
}
