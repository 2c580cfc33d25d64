//! Processes that compute a part of every batch: those that a run starts on its machine, and the
//! other ranks of its gang. One that ends is started again, or may come again.
//!
//! A worker is this program with the same arguments. A variable of its environment says where the
//! run that started it listens; the other ranks of a gang find the first one as
//! `torch.distributed` has it (`MASTER_ADDR`, `MASTER_PORT`), with a token that it leaves in the
//! checkpoint directory, which all of them share. A worker reads no weights: it gets them as it
//! gets everything.

use crate::error::{Error, IoContext, Result};
use crate::notice::Notice;
use crate::whole;
use het_runtime::MEMORIES_MAX;
use het_runtime::drivers::process::{ConnectError, Connection, Limits, Listener, Peer, Token};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{self, Write};
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The socket of whoever started this process as a worker.
const SOCKET: &str = "HET_TRAIN_WORKER";
/// Which worker of that this process is, from 0 on.
const NUMBER: &str = "HET_TRAIN_WORKER_NUMBER";
/// Threads of a process, as `rayon` reads them.
const THREADS: &str = "RAYON_NUM_THREADS";
/// What only one process of a run may use: it speaks to the scheduler, or resumes.
const OWN: [&str; 3] = ["HET_PROGRESS", "HET_NOTICE", "HET_RESUME_FROM"];
/// Beside this process itself.
const MOST: usize = MEMORIES_MAX - 1;
/// A worker reads a configuration before it comes, and machines may be busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks for the first rank, or for what a worker became.
const PAUSE: Duration = Duration::from_millis(50);
/// A worker that ends is started again at once, and then after pauses that double from the first
/// of these to the second; one that ran for as long as the third is one that never ended. So does
/// Kubernetes with containers.
const RESTART_FIRST: Duration = Duration::from_secs(10);
const RESTART_LAST: Duration = Duration::from_secs(300);
const STEADY: Duration = Duration::from_secs(600);

/// Of each door, the connections that are asked at a time who they are: one that says nothing
/// keeps nobody out.
const HANDSHAKES: usize = 8;

/// The other ranks that a rank has, and where they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    pub rank: usize,
    size: usize,
    /// Of the first rank.
    address: String,
    token: PathBuf,
}

impl Gang {
    /// What the launcher says; `None` of a process that is alone.
    ///
    /// # Errors
    /// A gang of which something is not said.
    pub fn from_environment(checkpoints: &Path) -> Result<Option<Self>> {
        Self::of(&|name| std::env::var(name).ok(), checkpoints)
    }

    fn of(variable: &dyn Fn(&str) -> Option<String>, checkpoints: &Path) -> Result<Option<Self>> {
        let number = |name: &str| variable(name).and_then(|text| text.parse::<usize>().ok());
        let Some(size) = number("WORLD_SIZE").filter(|size| *size > 1) else { return Ok(None) };
        let rank = number("RANK").filter(|rank| *rank < size);
        let told = (rank, variable("MASTER_ADDR"), number("MASTER_PORT"));
        let (Some(rank), Some(host), Some(port)) = told else {
            return Err(Error::Usage {
                what: format!("WORLD_SIZE is {size}, and RANK, MASTER_ADDR or MASTER_PORT is none"),
                hint: "start all ranks as `torchrun` does, or unset WORLD_SIZE",
            });
        };
        let attempt = variable("HET_ATTEMPT").unwrap_or_else(|| "1".to_owned());
        let address = format!("{host}:{port}");
        Ok(Some(Self { rank, size, address, token: checkpoints.join(format!(".ranks-{attempt}")) }))
    }

    /// Where the other ranks come to.
    fn listen(&self) -> Result<Listener> {
        let token = Token::random().at("read", Path::new("/dev/urandom"))?;
        if let Some(directory) = self.token.parent() {
            fs::create_dir_all(directory).at("create", directory)?;
        }
        // Before anybody can connect: whoever reads an earlier one finds nobody.
        whole::write_with(&self.token, |file| {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            file.write_all(token.to_text().as_bytes())
        })?;
        let by = Instant::now() + PATIENCE;
        loop {
            match Listener::tcp(&self.address, token.clone()) {
                // The name of a pod is known a moment after it begins.
                Err(error) if may_pass(&error) && Instant::now() < by => thread::sleep(PAUSE),
                listener => return listener.at("listen at", Path::new(&self.address)),
            }
        }
    }

    /// A way to the first rank, once it is there; `None` where this one is told to end before.
    fn connect(&self, notice: &Notice) -> Result<Option<Connection>> {
        let by = Instant::now() + PATIENCE;
        while notice.reason().is_none() {
            let text = fs::read_to_string(&self.token).ok();
            let token = text.as_deref().and_then(Token::from_text);
            let connected = token.map(|token| Connection::tcp(&self.address, &token));
            if let Some(Ok(connection)) = connected {
                return Ok(Some(connection));
            }
            if Instant::now() > by {
                let why = match connected {
                    Some(Err(error)) => with_causes(&error),
                    _ => format!("`{}` has no token", self.token.display()),
                };
                return Err(failed(&format!("rank 0 at {} is not there: {why}", self.address)));
            }
            thread::sleep(PAUSE);
        }
        Ok(None)
    }
}

/// Whether an address that cannot be had may be had later.
fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    !matches!(error.kind(), AddrInUse | AddrNotAvailable | PermissionDenied)
}

/// The processes, until this is dropped.
#[derive(Debug, Default)]
pub struct Workers {
    /// Those that came and have no place yet.
    peers: Vec<Peer>,
    places: Vec<Place>,
    children: Vec<Restarted>,
    /// The directory of their socket.
    directory: Option<TempDir>,
    doors: Vec<Arc<Listener>>,
    arrivals: Option<Receiver<Peer>>,
    token: Option<PathBuf>,
    /// What could not be done, for whoever watches.
    news: Vec<String>,
}

/// Of one worker after another.
#[derive(Debug)]
struct Place {
    /// What its workers compute with.
    driver: String,
    /// Where the system says so: on this machine.
    process: Option<i32>,
    backoff: Backoff,
    /// When another one may take it.
    due: Instant,
}

/// How often something ended.
#[derive(Debug)]
struct Backoff {
    began: Instant,
    ends: u32,
}

impl Backoff {
    fn new() -> Self {
        Self { began: Instant::now(), ends: 0 }
    }

    /// It has ended; when it may begin again.
    fn ended(&mut self, now: Instant) -> Instant {
        if now - self.began >= STEADY {
            self.ends = 0;
        }
        self.ends += 1;
        now + pause(self.ends - 1)
    }
}

/// A worker that this process started, and starts again.
#[derive(Debug)]
struct Restarted {
    child: Child,
    socket: PathBuf,
    number: usize,
    threads: usize,
    backoff: Backoff,
    /// When it is started again, once it has ended.
    due: Option<Instant>,
    /// It has said who it is.
    came: bool,
}

impl Restarted {
    fn start(socket: PathBuf, number: usize, threads: usize) -> Result<Self> {
        let child = spawn(&socket, number, threads)?;
        let backoff = Backoff::new();
        Ok(Self { child, socket, number, threads, backoff, due: None, came: false })
    }

    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Starts it again where it has ended and it is time. One that does not come ends.
    ///
    /// # Errors
    /// A process that can't be started; it is tried again later.
    fn keep(&mut self) -> Result<()> {
        let now = Instant::now();
        if !self.came && self.due.is_none() && now - self.backoff.began >= PATIENCE {
            self.kill();
        }
        if self.due.is_none() && !self.is_running() {
            self.due = Some(self.backoff.ended(now));
        }
        if self.due.is_some_and(|due| due <= now) {
            self.due = Some(now + RESTART_LAST);
            self.child = spawn(&self.socket, self.number, self.threads)?;
            (self.due, self.came) = (None, false);
            self.backoff.began = now;
        }
        Ok(())
    }

    /// Whether it has ended, and nobody killed it.
    fn gave_up(&mut self) -> bool {
        let status = self.child.try_wait().ok().flatten();
        status.is_some_and(|status| status.signal() != Some(Signal::SIGKILL as i32))
    }

    fn kill(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Before a worker is started again that ended so often before.
fn pause(ends: u32) -> Duration {
    match ends.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => RESTART_LAST.min(RESTART_FIRST * 2_u32.saturating_pow(doublings)),
    }
}

impl Workers {
    /// Starts so many on this machine, divides the threads of this process among them and itself,
    /// and waits for the other ranks of its gang; `None` where the process is told to end before
    /// all are there. Called before anything is computed.
    ///
    /// # Errors
    /// Processes that cannot be started, or do not come.
    pub fn start(count: usize, gang: Option<&Gang>, notice: &Notice) -> Result<Option<Self>> {
        let others = gang.map_or(0, |gang| gang.size - 1);
        if count.saturating_add(others) > MOST {
            return Err(Error::Usage {
                what: format!(
                    "{count} workers and {others} other ranks are more than the {MOST} that one \
                     run has"
                ),
                hint: "lower `--workers`, or start fewer ranks",
            });
        }
        let mut workers = Self::default();
        if count > 0 {
            workers.start_local(count, others)?;
        }
        if let Some(gang) = gang {
            workers.doors.push(Arc::new(gang.listen()?));
            workers.token = Some(gang.token.clone());
        }
        if !workers.doors.is_empty() {
            let arrivals = admit(&workers.doors);
            if !workers.wait_for(&arrivals, count + others, notice)? {
                return Ok(None);
            }
            workers.arrivals = Some(arrivals);
        }
        Ok(Some(workers))
    }

    /// Numbered from `first` on: the other ranks come before them.
    fn start_local(&mut self, count: usize, first: usize) -> Result<()> {
        let threads = threads();
        let each = (threads / (count + 1)).max(1);
        let own = threads.saturating_sub(count * each).max(1);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(own).build_global();
        pool.map_err(|error| failed(&error.to_string()))?;
        let directory = tempfile::Builder::new().prefix("het-train-").tempdir();
        let directory = directory.at("create a directory in", &std::env::temp_dir())?;
        let path = directory.path().join("workers");
        let listener = Listener::unix(&path).at("listen at", &path)?;
        self.directory = Some(directory);
        for number in first..first + count {
            self.children.push(Restarted::start(path.clone(), number, each)?);
        }
        self.doors.push(Arc::new(listener));
        Ok(())
    }

    /// Whether all came; false where the process is told to end before.
    fn wait_for(
        &mut self,
        arrivals: &Receiver<Peer>,
        count: usize,
        notice: &Notice,
    ) -> Result<bool> {
        let by = Instant::now() + PATIENCE;
        while self.peers.len() < count {
            if let Ok(peer) = arrivals.recv_timeout(PAUSE) {
                let (process, backoff, due) = (peer.process(), Backoff::new(), Instant::now());
                let driver = peer.offer().class.clone();
                self.places.push(Place { driver, process, backoff, due });
                self.came(peer);
                continue;
            }
            if notice.reason().is_some() {
                return Ok(false);
            }
            let left = count - self.peers.len();
            for own in self.children.iter_mut().filter(|own| !own.came) {
                // One that gave up would do so again; one that was killed may come the next time.
                if own.gave_up() {
                    return Err(failed("one ended before it was used"));
                }
                own.keep()?;
            }
            if Instant::now() > by {
                let seconds = PATIENCE.as_secs();
                return Err(failed(&format!("{left} of {count} did not come in {seconds} s")));
            }
        }
        Ok(true)
    }

    fn came(&mut self, peer: Peer) {
        self.child_of(peer.process()).into_iter().for_each(|own| own.came = true);
        self.peers.push(peer);
    }

    fn child_of(&mut self, process: Option<i32>) -> Option<&mut Restarted> {
        self.children.iter_mut().find(|own| Some(own.child.id() as i32) == process)
    }

    /// Their connections, for whoever computes with them.
    pub fn take_peers(&mut self) -> Vec<Peer> {
        std::mem::take(&mut self.peers)
    }

    /// The connection to a worker was given up: what is left of it is of no use.
    pub fn give_up(&mut self, worker: usize) {
        let Some(place) = self.places.get_mut(worker) else { return };
        place.due = place.backoff.ended(Instant::now());
        let process = place.process.take();
        self.child_of(process).into_iter().for_each(Restarted::kill);
    }

    /// Another one with the same driver in the place of a worker that was given up, once one is
    /// there. Waits for nothing.
    pub fn replacement(&mut self, worker: usize) -> Option<Peer> {
        // Before children are looked at: one that waits here is not one that does not come.
        let came: Vec<Peer> = self.arrivals.iter().flat_map(Receiver::try_iter).collect();
        came.into_iter().for_each(|peer| self.came(peer));
        let kept = self.children.iter_mut().map(Restarted::keep);
        let failed = kept.filter_map(Result::err).map(|error| with_causes(&error));
        self.news.extend(failed.map(|why| format!("a worker is not there again: {why}")));
        self.peers.retain(|peer| !peer.is_gone());
        let now = Instant::now();
        let place = self.places.get_mut(worker).filter(|place| place.due <= now)?;
        let is_meant = |peer: &Peer| peer.offer().class == place.driver;
        let peer = self.peers.remove(self.peers.iter().position(is_meant)?);
        (place.process, place.backoff.began) = (peer.process(), now);
        Some(peer)
    }

    /// What could not be done since this was asked last.
    pub fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }
}

/// Lets in whoever comes, until its receiver or the doors are gone.
fn admit(doors: &[Arc<Listener>]) -> Receiver<Peer> {
    let (arrived, arrivals) = mpsc::sync_channel(MOST);
    for door in doors.iter().flat_map(|door| std::iter::repeat_n(door, HANDSHAKES)) {
        let (door, arrived) = (Arc::downgrade(door), arrived.clone());
        thread::spawn(move || {
            while let Some(door) = door.upgrade() {
                match door.accept(&Limits::default()) {
                    Ok(peer) => match arrived.send(peer) {
                        Ok(()) => {}
                        Err(_) => return,
                    },
                    // Such as too many open files: there may be room later.
                    Err(ConnectError::Socket(_)) => thread::sleep(PAUSE),
                    // A stranger is none of them, and others may come.
                    Err(_) => {}
                }
            }
        });
    }
    arrivals
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.peers.clear();
        self.children.iter_mut().for_each(Restarted::kill);
        // Nobody comes any more; a file that stays lets nobody in.
        self.token.iter().for_each(|token| drop(fs::remove_file(token)));
    }
}

fn spawn(socket: &Path, number: usize, threads: usize) -> Result<Child> {
    let program = std::env::current_exe().at("find", Path::new("het-train"))?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1)).env(SOCKET, socket);
    command.env(NUMBER, number.to_string()).env(THREADS, threads.to_string());
    for own in OWN {
        command.env_remove(own);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().at("start", &program)
}

/// As many as `rayon` takes by itself.
fn threads() -> usize {
    let told = std::env::var(THREADS).ok().and_then(|text| text.parse().ok());
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    told.filter(|threads| *threads > 0).unwrap_or_else(cores)
}

/// Where the process is that this one is a worker of.
#[derive(Debug)]
pub enum Program<'a> {
    Here(PathBuf),
    Rank(&'a Gang),
}

impl<'a> Program<'a> {
    /// `None` where this process is no worker.
    pub fn from_environment(gang: Option<&'a Gang>) -> Option<Self> {
        let here = std::env::var_os(SOCKET).map(|socket| Self::Here(PathBuf::from(socket)));
        here.or_else(|| gang.filter(|gang| gang.rank > 0).map(Self::Rank))
    }

    /// Which of its workers this process is, from 0 on.
    pub fn number(&self) -> usize {
        match self {
            Self::Here(_) => {
                let told = std::env::var(NUMBER).ok().and_then(|text| text.parse().ok());
                told.unwrap_or(0)
            }
            Self::Rank(gang) => gang.rank.saturating_sub(1),
        }
    }

    /// A way to it, for a worker that can begin at once; `None` where that is told to end before.
    ///
    /// # Errors
    /// A process that is not there.
    pub fn connect(&self, notice: &Notice) -> Result<Option<Connection>> {
        match self {
            Self::Here(socket) => {
                let connection = Connection::unix(socket).map(Some);
                connection.map_err(|error| failed(&with_causes(&error)))
            }
            Self::Rank(gang) => gang.connect(notice),
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn failed(why: &str) -> Error {
    let what = format!("workers cannot be used: {why}");
    Error::DriverFailed { driver: crate::drivers::CPU.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang(variables: &[(&str, &str)]) -> Result<Option<Gang>> {
        let find = |name: &str| {
            let found = variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Gang::of(&find, Path::new("checkpoints"))
    }

    #[test]
    fn a_worker_that_keeps_ending_is_started_ever_later() {
        let pauses = [0, 1, 2, 3, 4, 5, 6, 40].map(|ends| pause(ends).as_secs());
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_gang_is_what_the_launcher_says() {
        let one = [("WORLD_SIZE", "1"), ("RANK", "0")];
        assert_eq!(gang(&one).expect("nothing is missing"), None);
        assert_eq!(gang(&[]).expect("nothing is missing"), None);
        let all = [
            ("WORLD_SIZE", "3"),
            ("RANK", "2"),
            ("MASTER_ADDR", "n0"),
            ("MASTER_PORT", "29500"),
            ("HET_ATTEMPT", "4"),
        ];
        let token = PathBuf::from("checkpoints/.ranks-4");
        let expected = Gang { rank: 2, size: 3, address: "n0:29500".to_owned(), token };
        assert_eq!(gang(&all).expect("nothing is missing"), Some(expected));
        for missing in 1..4 {
            let mut some = all.to_vec();
            some.remove(missing);
            let error = gang(&some).expect_err("something is missing").to_string();
            assert!(error.starts_with("WORLD_SIZE is 3, and RANK"), "{error}");
        }
    }
}
