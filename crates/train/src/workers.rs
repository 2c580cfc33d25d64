//! Processes on this machine that compute a part of every batch.
//!
//! A worker is this program with the same arguments. A variable of its environment says where the
//! one that started it listens; it serves that until the connection ends, and reads no weights: it
//! gets them as it gets everything.

use crate::error::{Error, IoContext, Result};
use het_runtime::drivers::process::{Connection, Limits, Listener, Peer};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The socket of whoever started this process as a worker.
const SOCKET: &str = "HET_TRAIN_WORKER";
/// Threads of a process, as `rayon` reads them.
const THREADS: &str = "RAYON_NUM_THREADS";
/// What only one process of a run may use: it speaks to the scheduler, or holds its devices.
const OWN: [&str; 3] = ["HET_PROGRESS", "HET_NOTICE", "HET_RESUME_FROM"];
/// A worker reads a configuration before it says who it is, and the machine may be busy.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// The processes, until this is dropped.
#[derive(Debug, Default)]
pub struct Workers {
    peers: Vec<Peer>,
    children: Vec<Child>,
}

impl Workers {
    /// Starts so many, and divides the threads of this process among them and itself. Called before
    /// anything is computed.
    ///
    /// # Errors
    /// Processes that cannot be started, or do not come.
    pub fn start(count: usize) -> Result<Self> {
        if count == 0 {
            return Ok(Self::default());
        }
        let threads = threads();
        let each = (threads / (count + 1)).max(1);
        let own = threads.saturating_sub(count * each).max(1);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(own).build_global();
        pool.map_err(|error| failed(&error))?;
        let directory = tempfile::Builder::new().prefix("het-train-").tempdir();
        let directory = directory.at("create a directory in", &std::env::temp_dir())?;
        let path = directory.path().join("workers");
        let listener = Listener::unix(&path).at("listen at", &path)?;
        let mut workers = Self::default();
        for _ in 0..count {
            workers.children.push(spawn(&path, each)?);
        }
        let limits = Limits { handshake: HANDSHAKE, ..Limits::default() };
        for _ in 0..count {
            workers.peers.push(listener.accept(&limits).map_err(|error| failed(&error))?);
        }
        Ok(workers)
    }

    /// Their connections, for whoever computes with them.
    pub fn take_peers(&mut self) -> Vec<Peer> {
        std::mem::take(&mut self.peers)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.peers.clear();
        for child in &mut self.children {
            // One that has ended already is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spawn(socket: &Path, threads: usize) -> Result<Child> {
    let program = std::env::current_exe().at("find", Path::new("het-train"))?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1)).env(SOCKET, socket).env(THREADS, threads.to_string());
    for own in OWN {
        command.env_remove(own);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().at("start", &program)
}

/// As many as `rayon` takes by itself.
fn threads() -> usize {
    let told = std::env::var(THREADS).ok().and_then(|text| text.parse().ok());
    let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
    told.filter(|threads| *threads > 0).unwrap_or_else(cores)
}

/// A way to whoever started this process as a worker; `None` where it is none.
///
/// # Errors
/// A socket where nobody listens.
pub fn connection() -> Result<Option<Connection>> {
    let Some(socket) = std::env::var_os(SOCKET).map(PathBuf::from) else { return Ok(None) };
    Connection::unix(&socket).map(Some).map_err(|error| failed(&error))
}

fn failed(error: &dyn std::error::Error) -> Error {
    let mut what = format!("workers cannot be used: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        what.push_str(&format!(": {error}"));
        cause = error.source();
    }
    Error::DriverFailed { driver: crate::drivers::CPU.to_owned(), what }
}
