//! How an agent is started with the rights of its user: the server, which has no privilege, asks
//! the supervisor, which does nothing else with its own.

mod become_user;
mod requests;
mod user_dirs;

use std::fmt::Debug;
use std::io;
use std::os::unix::net::UnixStream;

use het_node::DeviceAccess;
use nix::unistd::{Gid, Group, User, getgrouplist};
use thiserror::Error;

pub use become_user::{BecomeError, become_user, drop_privileges};
pub use requests::{SpawnRequests, serve_requests};
pub use user_dirs::UserDirs;

/// Why there is no agent.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// Nobody is to run jobs as this user.
    #[error("{0}")]
    Refused(String),
    #[error("the supervisor cannot do it: {0}")]
    Io(#[from] io::Error),
}

/// What a server has done by whoever has the privilege.
pub trait SpawnAgents: Debug + Send + Sync {
    /// A connection to a new agent of this user.
    ///
    /// # Errors
    /// When no agent is to run for the user, or none can be started.
    fn spawn(&self, user: &str) -> Result<UnixStream, SpawnError>;

    /// Decides which device nodes all that runs for this user may open, where the machine has a way
    /// to.
    ///
    /// # Errors
    /// When it has one, and that fails.
    fn set_access(&self, user: &str, access: &DeviceAccess) -> Result<(), SpawnError>;

    /// Ends all that runs for this user, the agent included.
    ///
    /// # Errors
    /// When something is left.
    fn end_all(&self, user: &str) -> Result<(), SpawnError>;
}

/// As whom jobs may run: the members of one group of the machine, and never root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    group: String,
    id: Gid,
}

impl Members {
    /// # Errors
    /// When there is no such group.
    pub fn of(group: &str) -> io::Result<Self> {
        let found = Group::from_name(group)?;
        let found =
            found.ok_or_else(|| io::Error::other(format!("there is no group `{group}`")))?;
        Ok(Self { group: group.to_owned(), id: found.gid })
    }

    pub fn group(&self) -> Gid {
        self.id
    }

    /// The user with this name, where jobs may run as it.
    ///
    /// # Errors
    /// When they may not.
    pub fn user(&self, name: &str) -> Result<User, SpawnError> {
        let refused = |why: String| Err(SpawnError::Refused(why));
        let Some(user) = User::from_name(name).map_err(io::Error::from)? else {
            return refused(format!("there is no user `{name}`"));
        };
        if user.uid.is_root() {
            return refused("jobs never run as root".to_owned());
        }
        let name = std::ffi::CString::new(user.name.as_str()).map_err(io::Error::from)?;
        if !getgrouplist(&name, user.gid).map_err(io::Error::from)?.contains(&self.id) {
            return refused(format!(
                "`{}` is not in the group `{}`, as whose members jobs run",
                user.name, self.group
            ));
        }
        Ok(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(group: Gid) -> String {
        Group::from_gid(group).expect("groups can be read").expect("it has a name").name
    }

    #[test]
    fn root_and_strangers_are_refused() {
        let root = Members::of(&name_of(Gid::from_raw(0))).expect("there is one");
        let refused = |name: &str| root.user(name).expect_err("it is refused").to_string();
        assert_eq!(refused("root"), "jobs never run as root");
        assert_eq!(refused("no such user"), "there is no user `no such user`");
        let told = refused("nobody");
        assert!(told.starts_with("`nobody` is not in the group"), "{told}");
        assert!(Members::of("no such group").is_err());
        let nobody = User::from_name("nobody").expect("users can be read").expect("there is one");
        let members = Members::of(&name_of(nobody.gid)).expect("there is one");
        assert_eq!(members.user("nobody").expect("it is a member").uid, nobody.uid);
    }
}
