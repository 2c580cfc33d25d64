//! What root does for a server of several users, and nothing else: for members of one group it
//! makes directories and control groups, starts agents, and ends what these do not.

use std::collections::{BTreeMap, BTreeSet};
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

use het_agent::{Members, SpawnAgents, SpawnError, UserDirs, serve_requests};
use het_host::{Home, share_lock_dir};
use het_node::{DeviceAccess, UserCgroup, delegate_own_cgroup, kill_processes_of, messages};
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
    #[error(
        "`{}` belongs to another user than `{user}`, as whom the server runs; remove it once no \
         other server uses it", path.display()
    )]
    Owner { path: PathBuf, user: String },
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The server reads by its group what users write.
    #[error("the group of `{0}` is that of the users, who could read each other's logs")]
    SharedGroup(String),
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
    /// Of devices; root's, and the server's to write to.
    lock_dir: PathBuf,
    program: PathBuf,
    /// Of agents that were started; ids of those that ended may be others' now.
    agents: Mutex<BTreeSet<u32>>,
    /// Around what runs for a user, by its id.
    cgroups: Mutex<BTreeMap<u32, UserCgroup>>,
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
        if user.gid == members.group() {
            return Err(PrivilegeError::SharedGroup(user.name));
        }
        let trouble = |path: &Path| {
            let path = path.to_owned();
            move |source| PrivilegeError::Io { path, source }
        };
        // Users pass through it to their own directories and to the socket.
        let is_given = give(home.root(), 0o711, &user).map_err(trouble(home.root()))?;
        let other = share_lock_dir(lock_dir, &user).map_err(trouble(lock_dir))?;
        let of_others = [(home.root(), !is_given), (lock_dir, other.is_some())];
        if let Some((dir, _)) = of_others.into_iter().find(|(_, is_others)| *is_others) {
            let (path, user) = (dir.to_owned(), user.name);
            return Err(PrivilegeError::Owner { path, user });
        }
        let users = home.users();
        let dirs = UserDirs::open(&users, user.gid).map_err(trouble(&users))?;
        delegate_own_cgroup();
        let ((agents, cgroups), lock_dir) = (Default::default(), lock_dir.to_owned());
        Ok(Self(Arc::new(Parts { members, dirs, lock_dir, program, agents, cgroups })))
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
        // Nobody else could have prepared it.
        command.env("HET_LOCK_DIR", &self.0.lock_dir);
        let (own, server) = messages::pair(SockFlag::empty())?;
        let parts = Arc::clone(&self.0);
        let run = move || serve_requests(&own, &*parts);
        thread::Builder::new().name("agents".to_owned()).spawn(run)?;
        command.stdin(server);
        Ok(())
    }

    /// Whether a process is an agent: its user may stop it, and its jobs would hold their devices.
    pub fn is_agent(&self, process: u32) -> bool {
        self.0.agents.lock().unwrap_or_else(PoisonError::into_inner).contains(&process)
    }
}

/// Makes a directory for the server's user; whether it is that user's now, or was before.
fn give(dir: &Path, mode: u32, user: &User) -> io::Result<bool> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(mode).create(dir) {
        Ok(()) => chown(dir, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::symlink_metadata(dir)?;
    Ok(found.is_dir() && found.uid() == user.uid.as_raw())
}

impl Parts {
    /// Decides about what runs for a user, where anything may.
    fn with_cgroup<T>(&self, user: &User, act: impl FnOnce(&mut UserCgroup) -> T) -> T {
        let mut cgroups = self.cgroups.lock().unwrap_or_else(PoisonError::into_inner);
        act(cgroups.entry(user.uid.as_raw()).or_insert_with(|| UserCgroup::make(user)))
    }
}

impl SpawnAgents for Parts {
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
        // It starts nothing before the server has the connection.
        self.with_cgroup(&user, |cgroup| cgroup.take(child.id()))?;
        Ok(server)
    }

    fn set_access(&self, name: &str, access: &DeviceAccess) -> Result<(), SpawnError> {
        let user = self.members.user(name)?;
        Ok(self.with_cgroup(&user, |cgroup| cgroup.set_access(access))?)
    }

    /// Also for one who is no member any more.
    fn end_all(&self, name: &str) -> Result<(), SpawnError> {
        let found = User::from_name(name).map_err(io::Error::from)?;
        let user = found.filter(|user| !user.uid.is_root());
        let user = user.ok_or_else(|| SpawnError::Refused(format!("there is no user `{name}`")))?;
        match self.with_cgroup(&user, |cgroup| kill_processes_of(user.uid, cgroup)) {
            true => Ok(()),
            false => Err(io::Error::other("some processes do not end").into()),
        }
    }
}
