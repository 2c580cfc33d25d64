//! Starting programs through a small process of its own, the launcher, which makes a shim for each
//! gang.
//!
//! ```text
//! engine ── launcher ─┬─ shim ─┬─ rank 0          requests: engine ──▶ launcher, shim
//!                     │        └─ rank 1          reports:  engine ◀── shim
//!                     └─ shim ─── rank 0
//! ```
//!
//! An engine may be large and die; a copy of the launcher is made in a fixed time, and a shim
//! lives as long as its ranks.

mod lock;
mod report;
mod request;
mod serve;
mod shim;
mod wait;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::SockFlag;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::identity::Identity;
use super::messages;
use super::sys::{Forked, exit_now, fork, keep_only};

use lock::Limits;
pub(crate) use lock::settle;
pub(crate) use report::{Others, Report};
use request::{GangRequest, HOLD, RELEASE, encode_rank};
pub(crate) use request::{RankDescriptors, RankProgram};

/// The word by which the program of an engine is told to be a launcher.
const COMMAND: &str = "__launcher";
/// Most shims that wait for a gang: as many as end and begin at a time on most machines.
const IDLE_MAX: usize = 16;
/// How long an engine waits for a shim that does not take what it is to start.
const SEND_LIMIT: Duration = Duration::from_millis(500);
/// How often a launcher whose engine is gone is looked at, and how long it may take to end before
/// it is killed.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const END_LIMIT: Duration = Duration::from_secs(1);

/// This program becomes a launcher when it is told to.
static IS_LAUNCHER: AtomicBool = AtomicBool::new(false);

/// To be called first in `main` by the program of an engine: runs as the launcher if it was started
/// as one; gives its exit code then. A program that does not call this copies itself to get a
/// launcher, which is slower the larger it is.
pub fn launcher_main() -> Option<ExitCode> {
    IS_LAUNCHER.store(true, Ordering::Relaxed);
    if std::env::args_os().nth(1)? != COMMAND {
        return None;
    }
    Some(if serve::serve().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a shim holds for a gang.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GangFiles<'a> {
    pub(crate) record: BorrowedFd<'a>,
    /// Keeps its devices from others for as long as it is open.
    pub(crate) hold: Option<BorrowedFd<'a>>,
}

impl GangFiles<'_> {
    fn all(&self) -> impl Iterator<Item = i32> {
        [Some(self.record), self.hold].into_iter().flatten().map(|fd| fd.as_raw_fd())
    }
}

/// The engine's end of the connection to a shim.
#[derive(Debug)]
pub(crate) struct ShimConnection {
    fd: OwnedFd,
    /// Known of one that has had a gang.
    shim: Option<Identity>,
}

impl ShimConnection {
    pub(crate) fn shim(&self) -> Option<Identity> {
        self.shim
    }
}

impl AsFd for ShimConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The engine's side.
#[derive(Debug)]
pub(crate) struct Launcher {
    lock: PathBuf,
    replaced: u64,
    idle: Vec<ShimConnection>,
    process: LauncherProcess,
}

#[derive(Debug)]
struct LauncherProcess {
    pid: i32,
    connection: OwnedFd,
}

impl Launcher {
    /// Starts a launcher, once everything that was asked of earlier ones in this run directory has
    /// either begun and noted itself, or never will.
    ///
    /// # Errors
    /// When an earlier one does not end, or none can be started.
    pub(crate) fn start(run_dir: &Path) -> io::Result<Self> {
        let lock = run_dir.join(lock::NAME);
        let process = LauncherProcess::start(&lock, lock::AT_THE_START)?;
        Ok(Self { process, lock, replaced: 0, idle: Vec::new() })
    }

    /// A shim that waits for a gang. Its identity belongs into the record of the gang before
    /// [`Self::shim`] is asked.
    pub(crate) fn idle_shim(&mut self) -> Option<ShimConnection> {
        self.idle.pop()
    }

    /// The shim of a gang, which waits for its ranks: the one that was idle, or another. The
    /// slots of its record begin at this offset. When a connection is closed at the
    /// other end, its shim is gone or never was.
    ///
    /// # Errors
    /// When no launcher can be started in place of one that died.
    pub(crate) fn shim(
        &mut self,
        idle: Option<ShimConnection>,
        files: GangFiles<'_>,
        slots_at: u64,
        ranks: u32,
    ) -> io::Result<ShimConnection> {
        let request = GangRequest { slots_at, ranks }.encode();
        if let Some(shim) = idle
            && messages::send(shim.as_fd(), &request, files.all()).is_ok()
        {
            return Ok(shim);
        }
        let (own, other) = messages::pair(SockFlag::SOCK_NONBLOCK)?;
        set_blocking(&other)?;
        let fds = || [other.as_raw_fd()].into_iter().chain(files.all());
        let connection = self.process.connection.as_fd();
        if send_in_time(connection, &request, fds, SEND_LIMIT).is_err() {
            self.replace()?;
            send_in_time(self.process.connection.as_fd(), &request, fds, SEND_LIMIT)?;
        }
        Ok(ShimConnection { fd: own, shim: None })
    }

    /// The gang of this shim, which has told all ends, is needed no more.
    pub(crate) fn release(&mut self, mut shim: ShimConnection, pid: i32) {
        if self.idle.len() >= IDLE_MAX {
            return;
        }
        shim.shim = shim.shim.or_else(|| Identity::of(pid));
        let is_known = shim.shim.is_some();
        if is_known && messages::send(shim.as_fd(), RELEASE, std::iter::empty()).is_ok() {
            self.idle.push(shim);
        }
    }

    /// Ends a launcher that does not do what it is asked, or is dead, and starts another. What it
    /// has not begun never begins.
    pub(crate) fn replace(&mut self) -> io::Result<()> {
        self.process.kill();
        self.replaced += 1;
        self.process = LauncherProcess::start(&self.lock, lock::WHILE_GANGS_RUN)?;
        Ok(())
    }

    /// Lets the launcher end and removes the file, which goes with the last that has it. What it
    /// was asked for before still begins.
    pub(crate) fn close(&mut self) {
        self.idle.clear();
        self.process.end();
        lock::remove(&self.lock);
    }

    /// Its shims of then are this process's children now.
    pub(crate) fn was_replaced(&self) -> bool {
        self.replaced > 0
    }
}

impl LauncherProcess {
    fn end(&mut self) {
        // Its connection is closed: nothing more will be asked of it.
        if let Ok((closed, _)) = messages::pair(SockFlag::empty()) {
            drop(std::mem::replace(&mut self.connection, closed));
        }
        let until = Instant::now() + END_LIMIT;
        let waits = Some(WaitPidFlag::WNOHANG);
        let pid = Pid::from_raw(self.pid);
        while matches!(waitpid(pid, waits), Ok(status) if status.pid().is_none()) {
            if Instant::now() > until {
                return self.kill();
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn start(path: &Path, limits: Limits) -> io::Result<Self> {
        let lock = lock::take(path, limits)?;
        let (own, other) = messages::pair(SockFlag::SOCK_NONBLOCK)?;
        set_blocking(&other)?;
        let pid = if IS_LAUNCHER.load(Ordering::Relaxed) {
            let mut command = Command::new("/proc/self/exe");
            command.arg(COMMAND).env_clear().stdin(Stdio::from(other));
            command.stdout(Stdio::from(lock.try_clone()?)).spawn()?.id() as i32
        } else {
            match fork()? {
                Forked::Parent { child } => child,
                Forked::Child => {
                    keep_only(other.as_fd(), lock.as_fd());
                    exit_now(i32::from(serve::serve().is_err()));
                }
            }
        };
        // Whoever waits for the lock may have to kill it. Without the note they cannot.
        let _ = lock::name_holder(&lock, pid);
        Ok(Self { pid, connection: own })
    }

    fn kill(&self) {
        let pid = Pid::from_raw(self.pid);
        // Not collected yet, so the id is its own.
        if matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(status) if status.pid().is_none())
        {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }
}

/// Tells a shim one of its ranks.
///
/// # Errors
/// When the shim is gone, or does not listen.
pub(crate) fn start_rank(
    shim: BorrowedFd<'_>,
    program: &RankProgram,
    files: &RankDescriptors<'_>,
) -> io::Result<()> {
    let bytes = encode_rank(program);
    let fds = || files.all().map(|fd| fd.as_raw_fd()).collect::<Vec<_>>().into_iter();
    send_in_time(shim, &bytes, fds, SEND_LIMIT)
}

/// What a shim told.
#[derive(Debug)]
pub(crate) enum Told {
    Report(Report),
    /// Nothing more for now.
    Nothing,
    /// It is gone, and whatever it was about to start has begun or never will.
    Gone,
}

/// Has a shim hold this for its gang.
///
/// # Errors
/// When it is gone.
pub(crate) fn hold(shim: BorrowedFd<'_>, held: BorrowedFd<'_>) -> io::Result<()> {
    messages::send(shim, HOLD, std::iter::once(held.as_raw_fd()))
}

/// Reads the next report of a shim.
pub(crate) fn read_report(shim: BorrowedFd<'_>) -> Told {
    let mut bytes = [0; 64];
    match nix::unistd::read(shim, &mut bytes) {
        Ok(0) => Told::Gone,
        Ok(length) => Report::decode(&bytes[..length]).map_or(Told::Nothing, Told::Report),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => Told::Nothing,
        Err(_) => Told::Gone,
    }
}

/// Sends to whoever reads slowly.
fn send_in_time<I: Iterator<Item = i32>>(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: impl Fn() -> I,
    limit: Duration,
) -> io::Result<()> {
    let until = Instant::now() + limit;
    loop {
        match messages::send(socket, bytes, fds()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            sent => return sent,
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(socket, PollFlags::POLLOUT)], timeout);
    }
}

fn set_blocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK))?;
    Ok(())
}
