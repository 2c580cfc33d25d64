//! What root does for a server of several users, and nothing else: it makes the directories of
//! users and starts their agents, for members of one group alone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, fs, thread};

use het_agent::{Members, SpawnError, UserDirs, serve_requests};
use het_host::Home;
use het_node::messages;
use nix::sys::socket::SockFlag;
use nix::unistd::{User, geteuid};
use thiserror::Error;

/// Why no server of several users can begin.
#[derive(Debug, Error)]
pub enum PrivilegeError {
    #[error("only root can start a server whose jobs run as their users")]
    NotRoot,
    #[error("there is no user `{0}`")]
    NoUser(String),
    #[error("a server never runs as root where jobs run as their users")]
    Root,
    #[error("`{}` belongs to another user than `{user}`, as whom the server runs", path.display())]
    Owner { path: PathBuf, user: String },
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Group(io::Error),
}

/// The word by which this program is told to be the agent of a user.
pub const AGENT_COMMAND: &str = "__agent";

/// How those variables begin that a server gets of root's.
const SERVER_VARIABLES: [&str; 6] = ["HET_", "LANG", "LC_", "MIMALLOC_", "PATH", "TZ"];

/// Starts agents.
#[derive(Debug, Clone)]
pub struct Privileged(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    members: Members,
    dirs: UserDirs,
    program: PathBuf,
    /// Of agents that were started; ids of those that ended may be others' now.
    agents: Mutex<BTreeSet<u32>>,
}

impl Privileged {
    /// Prepares the state directory of a server that runs as this user.
    ///
    /// # Errors
    /// When this process is not root's, or what is there is not the server's.
    pub fn prepare(
        home: &Home,
        (run_as, group): (&str, &str),
        lock_dir: &Path,
        program: PathBuf,
    ) -> Result<Self, PrivilegeError> {
        if !geteuid().is_root() {
            return Err(PrivilegeError::NotRoot);
        }
        let user = User::from_name(run_as).ok().flatten();
        let user = user.ok_or_else(|| PrivilegeError::NoUser(run_as.to_owned()))?;
        if user.uid.is_root() {
            return Err(PrivilegeError::Root);
        }
        let members = Members::of(group).map_err(PrivilegeError::Group)?;
        let trouble = |path: &Path| {
            let path = path.to_owned();
            move |source| PrivilegeError::Io { path, source }
        };
        let root = home.root();
        if fs::symlink_metadata(root).is_err() {
            let parent = root.parent().unwrap_or(root);
            fs::create_dir_all(parent).map_err(trouble(parent))?;
            // Users pass through it to their own directories and to the socket.
            fs::DirBuilder::new().mode(0o711).create(root).map_err(trouble(root))?;
            let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
            chown(root, Some(uid), Some(gid)).map_err(trouble(root))?;
        }
        for dir in [root, lock_dir] {
            let found = fs::symlink_metadata(dir).map_err(trouble(dir))?;
            if dir == lock_dir && found.is_dir() && found.uid() == 0 {
                chown(dir, Some(user.uid.as_raw()), None).map_err(trouble(dir))?;
            } else if !found.is_dir() || found.uid() != user.uid.as_raw() {
                let (path, user) = (dir.to_owned(), user.name);
                return Err(PrivilegeError::Owner { path, user });
            }
        }
        let users = home.users();
        let dirs = UserDirs::open(&users, user.gid).map_err(trouble(&users))?;
        Ok(Self(Arc::new(Parts { members, dirs, program, agents: Mutex::default() })))
    }

    /// Gives a server that is to be started nothing of root's but what it sends its requests
    /// through, as its standard input. They are answered until it is gone.
    ///
    /// # Errors
    /// When the system gives no socket or thread.
    pub fn prepare_server(&self, command: &mut Command) -> io::Result<()> {
        for (name, _) in env::vars_os() {
            let stays = |known: &str| name.as_bytes().starts_with(known.as_bytes());
            if !SERVER_VARIABLES.iter().any(|known| stays(known)) {
                command.env_remove(&name);
            }
        }
        let (own, server) = messages::pair(SockFlag::empty())?;
        let parts = Arc::clone(&self.0);
        let run = move || serve_requests(&own, |user| parts.spawn(user));
        thread::Builder::new().name("agents".to_owned()).spawn(run)?;
        command.stdin(server);
        Ok(())
    }

    /// Whether a process is an agent: its user may stop it, and its jobs would hold their devices.
    pub fn is_agent(&self, process: u32) -> bool {
        self.0.agents.lock().unwrap_or_else(PoisonError::into_inner).contains(&process)
    }
}

impl Parts {
    fn spawn(&self, name: &str) -> Result<UnixStream, SpawnError> {
        let user = self.members.user(name)?;
        self.dirs.make(&user)?;
        let (server, agent) = UnixStream::pair()?;
        let arguments = [OsStr::new(AGENT_COMMAND), OsStr::new(&user.name)];
        let mut command = Command::new(&self.program);
        // Nothing of root's goes along; the agent gives up the rest before it listens.
        command.args(arguments).env_clear().env("MIMALLOC_PURGE_DELAY", "0").current_dir("/");
        command.stdin(OwnedFd::from(agent)).stdout(Stdio::null());
        // Whoever waits for all children collects it.
        let child = command.spawn()?;
        self.agents.lock().unwrap_or_else(PoisonError::into_inner).insert(child.id());
        Ok(server)
    }
}
