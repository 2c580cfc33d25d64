//! The two transports, and whether the other end is who it has to be.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use socket2::SockRef;
use thiserror::Error;

use super::protocol::{
    self, CHUNK, ChannelId, FRAME_MAX, FrameError, GREETING_MAX, Hello, LENGTH, Report, TOKEN,
};
use super::{Limits, Offer};

/// What a worker has to show over TCP. It crosses the network as it is: whoever reads along has
/// it, and what is computed, too.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub(super) [u8; TOKEN]);

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
    pub(super) fn is(&self, other: &[u8; TOKEN]) -> bool {
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
    /// Bytes that a frame may have.
    most: usize,
}

impl Frames {
    pub fn new(socket: Socket) -> Self {
        let socket = BufReader::with_capacity(READ_AHEAD, socket);
        Self { socket, frame: Vec::new(), most: FRAME_MAX }
    }

    fn with_most(self, most: usize) -> Self {
        Self { most, ..self }
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
        if length > self.most {
            return Err(FrameError::Length(length).into());
        }
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
enum Entrance {
    Unix(UnixListener, PathBuf),
    /// `None` where whoever comes shows something else, and later.
    Tcp(TcpListener, Option<Token>),
}

/// Where workers come to.
#[derive(Debug)]
pub struct Listener {
    entrance: Entrance,
}

/// A worker that was let in.
#[derive(Debug)]
pub struct Peer {
    pub(super) frames: Frames,
    pub(super) offer: Offer,
    pub(super) neighbour: Option<Neighbour>,
    process: Option<i32>,
}

/// A worker that listens to other workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// As others are told: a file in the directory of the program's socket, or an address and port.
    pub place: String,
    /// Where it is, over TCP.
    address: Option<IpAddr>,
}

impl Neighbour {
    /// `None` where a worker's door is none that others could come to.
    fn of(socket: &Socket, place: String) -> Option<Self> {
        match socket {
            Socket::Unix(_) => is_file_name(&place).then_some(Self { place, address: None }),
            Socket::Tcp(stream) => {
                let address = stream.peer_addr().ok()?.ip().to_canonical();
                let place = SocketAddr::new(address, place.parse().ok()?).to_string();
                Some(Self { place, address: Some(address) })
            }
        }
    }

    /// Whether each is where the other may come to: what is the machine itself for one of them is
    /// another machine for the other.
    pub fn reaches(&self, other: &Self) -> bool {
        match (self.address, other.address) {
            (None, None) => true,
            (Some(own), Some(other)) => own.is_loopback() == other.is_loopback(),
            _ => false,
        }
    }
}

/// Whether it names a file in whatever directory, and nothing outside of it.
fn is_file_name(place: &str) -> bool {
    let mut parts = Path::new(place).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == place)
}

impl Peer {
    /// What it says of itself.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Whether contents may go from one to the other without passing through the program, which
    /// tries it when there is such a content.
    pub fn reaches(&self, other: &Self) -> bool {
        let both = self.neighbour.as_ref().zip(other.neighbour.as_ref());
        both.is_some_and(|(own, other)| own.reaches(other))
    }

    /// The addresses of this program and of the worker in the network that joins the two, over TCP:
    /// on one machine they are the same.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match self.frames.socket() {
            Socket::Unix(_) => None,
            Socket::Tcp(stream) => {
                let (own, other) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
                Some((own.ip().to_canonical(), other.ip().to_canonical()))
            }
        }
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
        Ok(Self { entrance: Entrance::Unix(listener, path.to_owned()) })
    }

    /// For whoever has the token.
    ///
    /// # Errors
    /// An address that can't be had.
    pub fn tcp(address: impl ToSocketAddrs, token: Token) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { entrance: Entrance::Tcp(listener, Some(token)) })
    }

    /// Where it listens, over TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.entrance {
            Entrance::Unix(..) => None,
            Entrance::Tcp(listener, _) => listener.local_addr().ok(),
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
    pub(super) fn pending(&self, limits: &Limits) -> Result<Pending, ConnectError> {
        let socket = self.next(Instant::now() + limits.handshake, limits.handshake)?;
        let token = match &self.entrance {
            Entrance::Unix(..) => None,
            Entrance::Tcp(_, token) => token.clone(),
        };
        Ok(Pending { socket, token, most: FRAME_MAX })
    }

    /// Nobody is let in any more: who waits for somebody to come ends with an error.
    pub(super) fn shutdown(&self) {
        // One that is down already is what is wanted.
        let _ = SockRef::from(&self.descriptor()).shutdown(Shutdown::Both);
    }

    /// Waits for a connection until then.
    fn next(&self, by: Instant, most: Duration) -> Result<Socket, ConnectError> {
        loop {
            let accepted = match &self.entrance {
                Entrance::Unix(listener, _) => listener.accept().map(|(one, _)| Socket::Unix(one)),
                Entrance::Tcp(listener, _) => listener.accept().map(|(one, _)| Socket::Tcp(one)),
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
            // Rounded up, lest it be asked again and again at the end.
            let left = left + Duration::from_millis(1);
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut ready = [PollFd::new(self.descriptor(), PollFlags::POLLIN)];
            match poll(&mut ready, timeout) {
                // A listener that is shut down.
                Ok(_) if ready[0].revents().is_some_and(|own| own.contains(PollFlags::POLLHUP)) => {
                    return Err(io::Error::from(ErrorKind::NotConnected).into());
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.entrance {
            Entrance::Unix(listener, _) => listener.as_fd(),
            Entrance::Tcp(listener, _) => listener.as_fd(),
        }
    }
}

/// A connection of whoever came.
#[derive(Debug)]
pub struct Pending {
    socket: Socket,
    /// What it has to show, over TCP.
    token: Option<Token>,
    /// Bytes that the first thing that it says may have.
    most: usize,
}

impl Pending {
    /// Waits until it has said which worker it is.
    ///
    /// # Errors
    /// Somebody who is not who it has to be, or does not say so in time.
    fn handshake(self, limits: &Limits) -> Result<Peer, ConnectError> {
        let (frames, process, hello) = self.first(limits, |report| match report {
            Report::Hello(hello) => Some((hello.token, hello)),
            _ => None,
        })?;
        let Hello { device, class, capacity, kernels, door, .. } = hello;
        let offer = Offer { device, class, capacity, kernels };
        let neighbour = door.and_then(|door| Neighbour::of(frames.socket(), door));
        Ok(Peer { frames, offer, neighbour, process })
    }

    /// Waits until a worker has said which channel it brings, and what it shows for it.
    ///
    /// # Errors
    /// Somebody who does not say so in time, or says something else.
    pub fn greeting(
        self,
        limits: &Limits,
    ) -> Result<(Frames, ChannelId, [u8; TOKEN]), ConnectError> {
        let own = Self { most: GREETING_MAX, ..self };
        let (frames, _, (channel, token)) = own.first(limits, |report| match report {
            Report::Greeting { token, channel } => Some((token, (channel, token))),
            _ => None,
        })?;
        Ok((frames.with_most(FRAME_MAX), channel, token))
    }

    /// A clone of its connection.
    pub fn socket(&self) -> io::Result<Socket> {
        self.socket.try_clone()
    }

    /// The first thing that it says, with the token that it shows, and its process.
    fn first<T>(
        self,
        limits: &Limits,
        said: impl FnOnce(Report<'_>) -> Option<([u8; TOKEN], T)>,
    ) -> Result<(Frames, Option<i32>, T), ConnectError> {
        let Self { socket, token, most } = self;
        let by = Instant::now() + limits.handshake;
        let process = match &socket {
            Socket::Unix(stream) => Some(checked(stream)?),
            Socket::Tcp(stream) => {
                set_prompt(stream)?;
                None
            }
        };
        socket.set_timeouts(Some(limits.tick()), Some(limits.silence))?;
        let mut frames = Frames::new(socket).with_most(most);
        let frame = frames.next(|_| match Instant::now() < by {
            true => Ok(()),
            false => Err("it did not say who it is in time".to_owned()),
        })?;
        let report = Report::read(frame).map_err(ReadError::from)?;
        let (shown, found) = said(report).ok_or(ConnectError::NoHello)?;
        match token.is_none_or(|token| token.is(&shown)) {
            true => Ok((frames, process, found)),
            false => Err(ConnectError::Token),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Entrance::Unix(_, path) = &self.entrance {
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
    /// Where this worker and its neighbours meet.
    pub(super) home: Home,
}

/// Where workers of one program meet each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// The directory of the program's socket.
    Directory(PathBuf),
    /// The address that this worker has in the network in which the program is.
    Network(IpAddr),
}

impl Home {
    /// Listens to other workers there; what they have to be told to come.
    ///
    /// # Errors
    /// A place that can't be had.
    pub fn listen(&self) -> io::Result<(Listener, String)> {
        match self {
            Self::Directory(directory) => {
                let place = format!("worker-{}", &Token::random()?.to_text()[..16]);
                Ok((Listener::unix(&directory.join(&place))?, place))
            }
            Self::Network(address) => {
                let listener = TcpListener::bind((*address, 0))?;
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                let entrance = Entrance::Tcp(listener, None);
                Ok((Listener { entrance }, port.to_string()))
            }
        }
    }

    /// A way to another worker.
    ///
    /// # Errors
    /// A place that is none, or where nobody listens.
    pub fn connect(&self, place: &str, limits: &Limits) -> Result<Socket, ConnectError> {
        let none = || io::Error::new(ErrorKind::InvalidInput, format!("`{place}` is no place"));
        let socket = match self {
            Self::Directory(directory) if is_file_name(place) => {
                let stream = UnixStream::connect(directory.join(place))?;
                checked(&stream)?;
                Socket::Unix(stream)
            }
            Self::Directory(_) => return Err(none().into()),
            Self::Network(_) => {
                let address = place.parse().map_err(|_| none())?;
                let stream = TcpStream::connect_timeout(&address, limits.handshake)?;
                set_prompt(&stream)?;
                watch(&stream)?;
                Socket::Tcp(stream)
            }
        };
        socket.set_timeouts(Some(limits.tick()), Some(limits.copy))?;
        Ok(socket)
    }
}

impl Connection {
    /// To a program of the same user.
    ///
    /// # Errors
    /// A path where nobody listens, or somebody else.
    pub fn unix(path: &Path) -> Result<Self, ConnectError> {
        let stream = UnixStream::connect(path)?;
        checked(&stream)?;
        let home = Home::Directory(path.parent().unwrap_or(Path::new("")).to_owned());
        Ok(Self { socket: Socket::Unix(stream), token: [0; TOKEN], home })
    }

    /// # Errors
    /// An address where nobody listens.
    pub fn tcp(address: impl ToSocketAddrs, token: &Token) -> Result<Self, ConnectError> {
        let stream = TcpStream::connect(address)?;
        set_prompt(&stream)?;
        watch(&stream)?;
        let home = Home::Network(stream.local_addr()?.ip());
        Ok(Self { socket: Socket::Tcp(stream), token: token.0, home })
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

    #[test]
    fn a_place_is_a_file_in_the_directory_and_nothing_else() {
        assert!(is_file_name("worker-1"));
        for other in ["", ".", "..", "/", "/tmp", "a/b", "../a", "a/", "./a"] {
            assert!(!is_file_name(other), "{other}");
        }
    }
}
